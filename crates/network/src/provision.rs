//! Making and removing one slot. Blocking, and moves the calling thread between namespaces: for threads of its own only.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::config::SlotPlan;
use crate::netlink::{Netlink, Route, VethEnd};
use crate::{
    GUEST_ADDRESS, GUEST_GATEWAY, GUEST_MAC, GUEST_PREFIX_LENGTH, NetworkError, TAP_MAC, namespace, nft,
    rules, tap,
};

/// Name of the veth end inside the namespace.
pub(crate) const NAMESPACE_LINK: &str = "veth0";

/// Fixed, so that nothing on the host (udev's address policy, for one) changes them after a neighbour has learnt them.
const HOST_LINK_MAC: [u8; 6] = [0x02, 0xaa, 0xaa, 0xaa, 0xaa, 0x02];
const NAMESPACE_LINK_MAC: [u8; 6] = [0x02, 0xaa, 0xaa, 0xaa, 0xaa, 0x03];

/// Why a slot was not made.
#[derive(Debug)]
pub(crate) enum CreateError {
    /// Somebody else, another node or a leftover, has this index. The next one may be free.
    Occupied,
    Failed(NetworkError),
}

impl From<NetworkError> for CreateError {
    fn from(error: NetworkError) -> Self {
        Self::Failed(error)
    }
}

/// Makes a slot. On failure nothing of it is left.
pub(crate) fn create(plan: &SlotPlan, host: BorrowedFd<'_>) -> Result<(), CreateError> {
    let step = Step(plan);
    step.io("enter the host's namespace", namespace::enter(host))?;
    let mut netlink = step.io("open netlink", Netlink::open())?;
    // Only saves work: the route added below decides.
    let matched = step.io("look up the slot's route", netlink.route_to(plan.guest_address))?;
    // Without a namespace of that name, a link of it is a leftover: for `sweep` to remove, not for the clean-up below.
    let lone = step.io("look for the host's link", netlink.link_index(&plan.name))?;
    if matches!(matched, Some((32, _))) || lone.is_some() {
        return Err(CreateError::Occupied);
    }
    step.claim("claim the namespace's name", namespace::claim(&plan.name))?;
    let outcome = build(&step, host, &mut netlink, None);
    if outcome.is_err()
        && let Err(error) = remove(plan, host)
    {
        tracing::warn!(slot = plan.name, %error, "a slot that could not be made could not be removed either");
    }
    outcome
}

/// Makes whatever is missing of an existing slot.
pub(crate) fn repair(plan: &SlotPlan, host: BorrowedFd<'_>) -> Result<(), NetworkError> {
    let step = Step(plan);
    step.io("enter the host's namespace", namespace::enter(host))?;
    let mut netlink = step.io("open netlink", Netlink::open())?;
    let existing = step.io("open the namespace", namespace::open(&plan.name))?.map(OwnedFd::from);
    if existing.is_none() {
        // A name without a namespace, or a link whose other end is in no namespace we can find.
        remove(plan, host)?;
        step.io("claim the namespace's name", namespace::claim(&plan.name))?;
    }
    build(&step, host, &mut netlink, existing).map_err(|error| match error {
        CreateError::Failed(error) => error,
        CreateError::Occupied => NetworkError::Operation {
            operation: step.context("take the slot into use again"),
            reason: format!("another node on this host uses {}", plan.guest_address),
        },
    })
}

/// Removes a slot; whatever is gone already is no error. A tap that a machine still holds is detached from it.
pub(crate) fn remove(plan: &SlotPlan, host: BorrowedFd<'_>) -> Result<(), NetworkError> {
    let step = Step(plan);
    step.io("enter the host's namespace", namespace::enter(host))?;
    let mut netlink = step.io("open netlink", Netlink::open())?;
    step.io("remove the veth pair", netlink.delete_link(&plan.name))?;
    if let Some(inside) = step.io("open the namespace", namespace::open(&plan.name))? {
        // The descriptor of a tap holds its namespace, so the device has to be removed by hand.
        let removed = namespace::within(&inside, host, || Netlink::open()?.delete_link(tap::NAME));
        step.io("remove the tap", removed)?;
    }
    step.io("remove the namespace", namespace::remove(&plan.name))
}

/// Opens the slot's tap.
pub(crate) fn open_tap(plan: &SlotPlan, host: BorrowedFd<'_>) -> Result<OwnedFd, NetworkError> {
    let step = Step(plan);
    let inside = step.io("open the namespace", namespace::open(&plan.name))?.ok_or_else(|| {
        NetworkError::Operation {
            operation: step.context("open the tap"),
            reason: "its namespace does not exist; the slot was released or removed by hand".into(),
        }
    })?;
    step.io("open the tap", namespace::within(&inside, host, tap::open))
}

/// The parts of a slot in their order. With an `existing` namespace each part is made only where it is missing.
fn build(
    step: &Step<'_>,
    host: BorrowedFd<'_>,
    netlink: &mut Netlink,
    existing: Option<OwnedFd>,
) -> Result<(), CreateError> {
    let plan = step.0;
    let repairing = existing.is_some();
    let inside = match existing {
        Some(inside) => inside,
        None => step.io("make the namespace", namespace::create(&plan.name))?.into(),
    };
    step.io("enter the namespace", namespace::enter(inside.as_fd()))?;
    // Before there is any link, so that none ever gets an IPv6 address.
    for scope in ["all", "default"] {
        let off = namespace::set_sysctl(&format!("net/ipv6/conf/{scope}/disable_ipv6"), "1");
        step.io("switch IPv6 off", off)?;
    }
    let mut near = step.io("open netlink", Netlink::open())?;
    let has_veth = step.io("look for the veth", near.link_index(NAMESPACE_LINK))?.is_some();

    step.io("enter the host's namespace", namespace::enter(host))?;
    host_side(step, netlink, inside.as_fd(), has_veth, repairing)?;

    step.io("enter the namespace", namespace::enter(inside.as_fd()))?;
    namespace_side(step, &mut near)?;
    nft::apply(&step.context("install its rules"), &rules::slot(plan, repairing))?;
    // Last: nothing is forwarded before the rules are there.
    step.io("switch forwarding on", namespace::set_sysctl("net/ipv4/ip_forward", "1"))?;
    Ok(())
}

fn host_side(
    step: &Step<'_>,
    netlink: &mut Netlink,
    inside: BorrowedFd<'_>,
    has_veth: bool,
    repairing: bool,
) -> Result<(), CreateError> {
    let plan = step.0;
    let present = step.io("look for the host's link", netlink.link_index(&plan.name))?.is_some();
    if !(present && has_veth) {
        if has_veth {
            // Its other end is not where it belongs: of no use, and in the way.
            let home = step.io("hold the namespace", namespace::current())?;
            let removed =
                namespace::within(&inside, home.as_fd(), || Netlink::open()?.delete_link(NAMESPACE_LINK));
            step.io("remove a lone veth", removed)?;
        }
        if present && repairing {
            step.io("remove a lone host link", netlink.delete_link(&plan.name))?;
        }
        let near = VethEnd { name: &plan.name, mac: HOST_LINK_MAC };
        let far = VethEnd { name: NAMESPACE_LINK, mac: NAMESPACE_LINK_MAC };
        step.claim("make the veth pair", netlink.create_veth(&near, &far, inside))?;
    }
    let link = step.link(netlink, &plan.name)?;
    let off = namespace::set_sysctl(&format!("net/ipv6/conf/{}/disable_ipv6", plan.name), "1");
    step.io("switch IPv6 off", off)?;
    step.io("set the host's address", netlink.set_address(link, plan.host_address, 32))?;
    step.io("bring the host's link up", netlink.set_up(link))?;
    let route =
        Route { destination: (plan.guest_address, 32), gateway: None, source: Some(plan.host_address), link };
    match netlink.add_route(&route) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let matched = step.io("look up the slot's route", netlink.route_to(plan.guest_address))?;
            if matched == Some((32, link)) { Ok(()) } else { Err(CreateError::Occupied) }
        }
        other => Ok(step.io("add the slot's route", other)?),
    }
}

fn namespace_side(step: &Step<'_>, netlink: &mut Netlink) -> Result<(), NetworkError> {
    let plan = step.0;
    let veth = step.link(netlink, NAMESPACE_LINK)?;
    step.io("set the namespace's address", netlink.set_address(veth, plan.guest_address, 31))?;
    step.io("bring the veth up", netlink.set_up(veth))?;
    let way_out = Route {
        destination: (std::net::Ipv4Addr::UNSPECIFIED, 0),
        gateway: Some(plan.host_address),
        source: None,
        link: veth,
    };
    match netlink.add_route(&way_out) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => step.io("add the default route", other)?,
    }
    if step.io("look for the tap", netlink.link_index(tap::NAME))?.is_none() {
        step.io("make the tap (is the kernel module `tun` loaded?)", tap::create())?;
    }
    let link = step.link(netlink, tap::NAME)?;
    step.io("set the tap's hardware address", netlink.set_mac(link, TAP_MAC))?;
    step.io("set the tap's address", netlink.set_address(link, GUEST_GATEWAY, GUEST_PREFIX_LENGTH))?;
    step.io("bring the tap up", netlink.set_up(link))?;
    // Without it, a connection tried while the guest still boots leaves a failed entry behind that refuses the next ones
    // for seconds.
    step.io("set the guest's neighbour entry", netlink.set_neighbour(link, GUEST_ADDRESS, GUEST_MAC))
}

/// Names the slot in every error.
struct Step<'a>(&'a SlotPlan);

impl Step<'_> {
    fn context(&self, what: &str) -> String {
        format!("network slot {}: {what}", self.0.name)
    }

    fn io<T>(&self, what: &str, result: io::Result<T>) -> Result<T, NetworkError> {
        result.map_err(|error| NetworkError::io(self.context(what), error))
    }

    /// Like [`Self::io`] for a step that finds out whether the slot is somebody else's.
    fn claim<T>(&self, what: &str, result: io::Result<T>) -> Result<T, CreateError> {
        match result {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(CreateError::Occupied),
            other => Ok(self.io(what, other)?),
        }
    }

    fn link(&self, netlink: &mut Netlink, name: &str) -> Result<u32, NetworkError> {
        self.io("look for a link", netlink.link_index(name))?.ok_or_else(|| NetworkError::Operation {
            operation: self.context("look for a link"),
            reason: format!("{name} has disappeared; something else on this host removes links"),
        })
    }
}
