//! Hands slots out and takes them back.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Semaphore, oneshot};

use crate::config::{NetworkConfig, SlotPlan};
use crate::netlink::Netlink;
use crate::provision::{self, CreateError};
use crate::{NetworkError, Slot, SlotRecord, host, namespace};

/// Slots made or removed at the same time. The kernel serializes most of it on one lock.
const WORKERS: usize = 4;

/// Makes and removes slots.
///
/// Bound to the network namespace in which it was made: that is "the host". Every piece of work runs on a thread of its
/// own that ends with it, because the work moves its thread between namespaces.
#[derive(Debug)]
pub struct SlotManager {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: NetworkConfig,
    host: OwnedFd,
    reservations: Mutex<Reservations>,
    workers: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct Reservations {
    taken: BTreeSet<u32>,
    /// Where the search goes on: an address that was just given back rests, because peers and the host's connection
    /// tracking may still know its last user.
    next: u32,
}

impl SlotManager {
    /// Checks the configuration and prepares the host's own rules (forwarding and the deny list), replacing those an
    /// earlier process with the same prefix left.
    pub async fn new(config: NetworkConfig) -> Result<Self, NetworkError> {
        config.validate()?;
        let host =
            namespace::current().map_err(|error| NetworkError::io("open the network namespace", error))?;
        let inner = Arc::new(Inner {
            config,
            host: host.into(),
            reservations: Mutex::default(),
            workers: Arc::new(Semaphore::new(WORKERS)),
        });
        let worker = Arc::clone(&inner);
        run(&inner, move || worker.prepare(), |_| ()).await?;
        Ok(Self { inner })
    }

    /// Makes a new slot. On failure, and when the caller stops waiting, nothing of it is left.
    pub async fn acquire(&self) -> Result<Slot, NetworkError> {
        let (worker, undo) = (Arc::clone(&self.inner), Arc::clone(&self.inner));
        run(&self.inner, move || worker.acquire(), move |slot| undo.abandon(slot.index)).await
    }

    /// Takes a slot of an earlier process into use again, making what is missing of it. A machine that holds the slot's
    /// tap does not notice.
    pub async fn adopt(&self, record: &SlotRecord) -> Result<Slot, NetworkError> {
        let index = record.index;
        self.inner.reserve_exactly(index)?;
        let worker = Arc::clone(&self.inner);
        run(&self.inner, move || worker.adopt(index), |_| ()).await
    }

    /// Opens the slot's tap, for one machine. Needs no further right once open.
    pub async fn open_tap(&self, slot: &Slot) -> Result<OwnedFd, NetworkError> {
        let (worker, index) = (Arc::clone(&self.inner), slot.index);
        run(
            &self.inner,
            move || provision::open_tap(&worker.config.plan(index), worker.host_namespace()),
            drop,
        )
        .await
    }

    /// Removes a slot; succeeds when it is already gone. A machine that still holds its tap keeps a dead descriptor.
    pub async fn release(&self, slot: &Slot) -> Result<(), NetworkError> {
        let (worker, index) = (Arc::clone(&self.inner), slot.index);
        run(&self.inner, move || worker.release(index), drop).await
    }

    /// Removes every slot with this manager's prefix that it neither made nor adopted. Returns how many.
    pub async fn sweep(&self) -> Result<u32, NetworkError> {
        let worker = Arc::clone(&self.inner);
        run(&self.inner, move || worker.sweep(), drop).await
    }

    /// Removes the host's own rules too; for the end of the last process that uses this prefix.
    pub async fn remove_host_rules(&self) -> Result<(), NetworkError> {
        let worker = Arc::clone(&self.inner);
        run(
            &self.inner,
            move || {
                worker.enter_host()?;
                host::uninstall(&worker.config)
            },
            drop,
        )
        .await
    }

    /// Chains of the host's own firewall that drop forwarded packets, and so cut sandboxes off from the outside.
    pub async fn forwarding_obstacles(&self) -> Result<Vec<String>, NetworkError> {
        let worker = Arc::clone(&self.inner);
        run(
            &self.inner,
            move || {
                worker.enter_host()?;
                host::forwarding_obstacles()
            },
            drop,
        )
        .await
    }
}

/// Runs `work` on a thread of its own. When the caller has stopped waiting, `undo` gets the result.
async fn run<T: Send + 'static>(
    inner: &Inner,
    work: impl FnOnce() -> Result<T, NetworkError> + Send + 'static,
    undo: impl FnOnce(T) + Send + 'static,
) -> Result<T, NetworkError> {
    let lost = || NetworkError::Operation {
        operation: "network slot".into(),
        reason: "its worker thread ended early; the log says why".into(),
    };
    let permit = Arc::clone(&inner.workers).acquire_owned().await.map_err(|_| lost())?;
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("network-slot".into())
        .spawn(move || {
            let _permit = permit;
            if let Err(Ok(unclaimed)) = sender.send(work()) {
                undo(unclaimed);
            }
        })
        .map_err(|error| NetworkError::io("start a network worker thread", error))?;
    receiver.await.map_err(|_| lost())?
}

impl Inner {
    fn host_namespace(&self) -> BorrowedFd<'_> {
        self.host.as_fd()
    }

    fn enter_host(&self) -> Result<(), NetworkError> {
        namespace::enter(self.host_namespace())
            .map_err(|error| NetworkError::io("enter the host's network namespace", error))
    }

    fn prepare(&self) -> Result<(), NetworkError> {
        self.enter_host()?;
        self.refuse_overlap()?;
        namespace::prepare_directory().map_err(|error| NetworkError::io("prepare /run/netns", error))?;
        host::install(&self.config)?;
        for obstacle in host::forwarding_obstacles()? {
            tracing::warn!(
                chain = obstacle,
                "the host's firewall drops forwarded packets: sandboxes will not reach the outside until it lets \
                 links named {}-* through",
                self.config.name_prefix
            );
        }
        Ok(())
    }

    /// Slots inside a network the host itself is in would cut the host off from part of it.
    fn refuse_overlap(&self) -> Result<(), NetworkError> {
        let failed = |error| NetworkError::io("list the host's addresses", error);
        let mut netlink = Netlink::open().map_err(failed)?;
        let slots: BTreeSet<u32> = netlink
            .links()
            .map_err(failed)?
            .into_iter()
            .filter(|(name, _)| is_slot_link(name))
            .map(|l| l.1)
            .collect();
        for (link, address, length) in netlink.addresses().map_err(failed)? {
            if !slots.contains(&link) && overlap(self.config.slot_range, (address, length)) {
                let (range, range_length) = self.config.slot_range;
                return Err(NetworkError::Config(format!(
                    "the slot range {range}/{range_length} overlaps with this host's own address {address}/{length}; \
                     configure another slot range"
                )));
            }
        }
        Ok(())
    }

    fn acquire(&self) -> Result<Slot, NetworkError> {
        let limit = self.config.limit();
        for _ in 0..limit {
            let index = self.reserve_next()?;
            let plan = self.config.plan(index);
            match provision::create(&plan, self.host_namespace()) {
                Ok(()) => return Ok(slot(&plan)),
                Err(CreateError::Occupied) => self.unreserve(index),
                Err(CreateError::Failed(error)) => {
                    self.unreserve(index);
                    return Err(error);
                }
            }
        }
        Err(NetworkError::Exhausted { limit })
    }

    fn adopt(&self, index: u32) -> Result<Slot, NetworkError> {
        let plan = self.config.plan(index);
        match provision::repair(&plan, self.host_namespace()) {
            Ok(()) => Ok(slot(&plan)),
            Err(error) => {
                self.unreserve(index);
                Err(error)
            }
        }
    }

    fn release(&self, index: u32) -> Result<(), NetworkError> {
        if index >= self.config.limit() {
            return Err(self.out_of_range(index));
        }
        provision::remove(&self.config.plan(index), self.host_namespace())?;
        self.unreserve(index);
        Ok(())
    }

    fn abandon(&self, index: u32) {
        if let Err(error) = self.release(index) {
            tracing::warn!(index, %error, "a network slot nobody waited for could not be removed");
        }
    }

    fn sweep(&self) -> Result<u32, NetworkError> {
        self.enter_host()?;
        let mut found: BTreeSet<u32> = BTreeSet::new();
        let names =
            namespace::names().map_err(|error| NetworkError::io("list the network namespaces", error))?;
        found.extend(names.iter().filter_map(|name| self.config.index_of(name)));
        let links = Netlink::open()
            .and_then(|mut netlink| netlink.links())
            .map_err(|error| NetworkError::io("list the network links", error))?;
        found.extend(links.iter().filter_map(|(name, _)| self.config.index_of(name)));
        let mut removed = 0;
        for index in found {
            // Reserved while it is being removed, so that nobody makes it anew meanwhile; and a slot in use stays.
            if self.reserve_exactly(index).is_ok() {
                let outcome = provision::remove(&self.config.plan(index), self.host_namespace());
                self.unreserve(index);
                outcome?;
                removed += 1;
            }
        }
        Ok(removed)
    }

    fn reserve_next(&self) -> Result<u32, NetworkError> {
        let limit = self.config.limit();
        let mut reservations = self.reservations();
        let start = reservations.next;
        let free = (start..limit).chain(0..start).find(|index| !reservations.taken.contains(index));
        let index = free.ok_or(NetworkError::Exhausted { limit })?;
        reservations.taken.insert(index);
        reservations.next = (index + 1) % limit;
        Ok(index)
    }

    fn reserve_exactly(&self, index: u32) -> Result<(), NetworkError> {
        if index >= self.config.limit() {
            return Err(self.out_of_range(index));
        }
        if self.reservations().taken.insert(index) {
            return Ok(());
        }
        Err(NetworkError::Config(format!("network slot {index} is already in use by this process")))
    }

    fn unreserve(&self, index: u32) {
        self.reservations().taken.remove(&index);
    }

    /// No code panics while it holds the lock, and the set is valid at every step anyway.
    fn reservations(&self) -> std::sync::MutexGuard<'_, Reservations> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn out_of_range(&self, index: u32) -> NetworkError {
        NetworkError::Config(format!(
            "network slot {index} is outside the configured range of {} slots; was the slot range made smaller while \
             sandboxes ran?",
            self.config.limit()
        ))
    }
}

fn slot(plan: &SlotPlan) -> Slot {
    Slot { index: plan.index, namespace: plan.name.clone(), host_side_guest_address: plan.guest_address }
}

/// Whether a link looks like the host's end of some node's slot.
fn is_slot_link(name: &str) -> bool {
    name.split_once('-').is_some_and(|(prefix, digits)| {
        !prefix.is_empty()
            && !digits.is_empty()
            && prefix.len() <= 4
            && digits.bytes().all(|b| b.is_ascii_digit())
    })
}

fn overlap(one: (Ipv4Addr, u8), other: (Ipv4Addr, u8)) -> bool {
    let shorter = one.1.min(other.1).min(32);
    let mask = u32::MAX.checked_shl(32 - u32::from(shorter)).unwrap_or(0);
    u32::from(one.0) & mask == u32::from(other.0) & mask
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_overlap_when_one_holds_the_other() {
        let range = (Ipv4Addr::new(10, 12, 0, 0), 16);
        assert!(overlap(range, (Ipv4Addr::new(10, 12, 5, 1), 24)));
        assert!(overlap(range, (Ipv4Addr::new(10, 0, 0, 1), 8)));
        assert!(overlap(range, (Ipv4Addr::new(192, 0, 2, 1), 0)));
        assert!(!overlap(range, (Ipv4Addr::new(10, 13, 0, 1), 16)));
    }

    #[test]
    fn a_slot_link_is_told_from_other_links() {
        assert!(is_slot_link("aenv-12"));
        for other in ["docker0", "eth0", "br-1a2b3c4d5e6f", "veth-x", "-1", "aenv-", "bridge-1"] {
            assert!(!is_slot_link(other), "{other}");
        }
    }
}
