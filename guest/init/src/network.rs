//! Loopback and the one network card, with the addresses every guest has.
//!
//! The classic interface ioctls are enough for a fixed IPv4 address and need no netlink code.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};

use crate::console;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 21);
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 252);
const GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 22);
const CARD: &str = "eth0";
/// The card is normally there when its module has been inserted; a guest without one should not wait long.
const CARD_DEADLINE: Duration = Duration::from_millis(200);

/// Brings both interfaces up. A guest without a network still serves its console, so failures are only reported.
pub(crate) fn configure() {
    match configure_loopback() {
        Ok(()) => {}
        Err(error) => console::log(format_args!("loopback not up: {error}")),
    }
    match configure_card() {
        Ok(()) => console::log(format_args!("network {CARD} {ADDRESS}/30 via {GATEWAY}")),
        Err(error) => console::log(format_args!("no network: {CARD}: {error}")),
    }
}

fn configure_loopback() -> io::Result<()> {
    Interface::open("lo")?.up()
}

fn configure_card() -> io::Result<()> {
    let sysfs = Path::new("/sys/class/net").join(CARD);
    let start = Instant::now();
    while !sysfs.exists() {
        if start.elapsed() >= CARD_DEADLINE {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no such network card"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let card = Interface::open(CARD)?;
    card.set_address(ADDRESS)?;
    card.set_netmask(NETMASK)?;
    card.up()?;
    card.add_default_route(GATEWAY)
}

/// A network interface by name, and a socket to configure it through.
struct Interface {
    socket: OwnedFd,
    name: &'static str,
}

impl Interface {
    fn open(name: &'static str) -> io::Result<Self> {
        let socket = rustix::net::socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        Ok(Self { socket, name })
    }

    fn request(&self, value: libc::__c_anonymous_ifr_ifru) -> libc::ifreq {
        let mut name = [0; libc::IFNAMSIZ];
        for (to, from) in name.iter_mut().zip(self.name.bytes().take(libc::IFNAMSIZ - 1)) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        libc::ifreq { ifr_name: name, ifr_ifru: value }
    }

    fn set_address(&self, address: Ipv4Addr) -> io::Result<()> {
        let mut request = self.request(libc::__c_anonymous_ifr_ifru { ifru_addr: socket_address(address) });
        // SAFETY: SIOCSIFADDR reads one ifreq with an address in it, which lives across the call.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCSIFADDR, &raw mut request) })
    }

    fn set_netmask(&self, netmask: Ipv4Addr) -> io::Result<()> {
        let mut request =
            self.request(libc::__c_anonymous_ifr_ifru { ifru_netmask: socket_address(netmask) });
        // SAFETY: SIOCSIFNETMASK reads one ifreq with a netmask in it, which lives across the call.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCSIFNETMASK, &raw mut request) })
    }

    fn up(&self) -> io::Result<()> {
        let mut request = self.request(libc::__c_anonymous_ifr_ifru { ifru_flags: 0 });
        // SAFETY: SIOCGIFFLAGS reads the name of one ifreq and writes its flags; it lives across the call.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCGIFFLAGS, &raw mut request) })?;
        // SAFETY: the kernel has just written the flags member.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        #[expect(
            clippy::cast_possible_truncation,
            reason = "interface flags are defined as 16 bits; IFF_UP is 1"
        )]
        let up = libc::IFF_UP as libc::c_short;
        request.ifr_ifru = libc::__c_anonymous_ifr_ifru { ifru_flags: flags | up };
        // SAFETY: SIOCSIFFLAGS reads one ifreq with flags in it, which lives across the call.
        check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw mut request) })
    }

    fn add_default_route(&self, gateway: Ipv4Addr) -> io::Result<()> {
        // SAFETY: rtentry is a plain C struct for which all zeroes (null pointers, no flags) is a valid value.
        let mut route: libc::rtentry = unsafe { std::mem::zeroed() };
        route.rt_dst = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_genmask = socket_address(Ipv4Addr::UNSPECIFIED);
        route.rt_gateway = socket_address(gateway);
        route.rt_flags = libc::RTF_UP | libc::RTF_GATEWAY;
        // SAFETY: SIOCADDRT reads one rtentry, which lives across the call; its device pointer is null.
        match check(unsafe { libc::ioctl(self.socket.as_raw_fd(), libc::SIOCADDRT, &raw mut route) }) {
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(()),
            result => result,
        }
    }
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut data = [0; 14];
    // A sockaddr_in seen as a sockaddr: two bytes of port, four of address.
    for (to, from) in data[2..6].iter_mut().zip(address.octets()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    #[expect(clippy::cast_possible_truncation, reason = "AF_INET is 2")]
    let sa_family = libc::AF_INET as libc::sa_family_t;
    libc::sockaddr { sa_family, sa_data: data }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_where_sockaddr_in_has_it() {
        let general = socket_address(Ipv4Addr::new(1, 2, 3, 4));
        // SAFETY: both structs are 16 plain bytes.
        let internet: libc::sockaddr_in = unsafe { std::mem::transmute(general) };
        assert_eq!(internet.sin_family, general.sa_family);
        assert_eq!(internet.sin_addr.s_addr.to_ne_bytes(), [1, 2, 3, 4]);
    }
}
