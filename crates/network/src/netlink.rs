//! A small client of the kernel's routing netlink (rtnetlink(7)): links, addresses, routes, neighbours.
//!
//! Blocking, one request at a time, bound to the namespace in which it was opened: exactly what making a slot needs, and
//! about a tenth of the code that the general client crates bring along.

mod message;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with};

use message::{Message, Reply, attribute, number, replies};

/// The kernel answers in microseconds, unless it waits for the lock all network configuration shares.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// The kernel never sends a datagram larger than this to a reader that offers it (netlink(7)).
const RECEIVE_BYTES: usize = 32 * 1024;

/// Message types, flags and attributes as in linux/rtnetlink.h, linux/if_link.h, linux/if_addr.h, linux/neighbour.h.
mod number_of {
    pub(super) const RTM_NEWLINK: u16 = 16;
    pub(super) const RTM_DELLINK: u16 = 17;
    pub(super) const RTM_GETLINK: u16 = 18;
    pub(super) const RTM_NEWADDR: u16 = 20;
    pub(super) const RTM_GETADDR: u16 = 22;
    pub(super) const RTM_NEWROUTE: u16 = 24;
    pub(super) const RTM_GETROUTE: u16 = 26;
    pub(super) const RTM_NEWNEIGH: u16 = 28;

    pub(super) const REPLACE: u16 = 0x100;
    pub(super) const EXCLUSIVE: u16 = 0x200;
    pub(super) const CREATE: u16 = 0x400;
    pub(super) const DUMP: u16 = 0x300;

    pub(super) const IFLA_ADDRESS: u16 = 1;
    pub(super) const IFLA_IFNAME: u16 = 3;
    pub(super) const IFLA_LINKINFO: u16 = 18;
    pub(super) const IFLA_NET_NS_FD: u16 = 28;
    pub(super) const IFLA_INFO_KIND: u16 = 1;
    pub(super) const IFLA_INFO_DATA: u16 = 2;
    pub(super) const VETH_INFO_PEER: u16 = 1;
    pub(super) const IFF_UP: u32 = 1;

    pub(super) const IFA_ADDRESS: u16 = 1;
    pub(super) const IFA_LOCAL: u16 = 2;

    pub(super) const RTA_DST: u16 = 1;
    pub(super) const RTA_OIF: u16 = 4;
    pub(super) const RTA_GATEWAY: u16 = 5;
    pub(super) const RTA_PREFSRC: u16 = 7;
    pub(super) const RT_TABLE_MAIN: u8 = 254;
    pub(super) const RTPROT_STATIC: u8 = 4;
    pub(super) const RT_SCOPE_UNIVERSE: u8 = 0;
    pub(super) const RT_SCOPE_LINK: u8 = 253;
    pub(super) const RTN_UNICAST: u8 = 1;
    /// Answer a lookup with the entry that matched, not with the resulting path.
    pub(super) const RTM_F_FIB_MATCH: u32 = 0x2000;

    pub(super) const NDA_DST: u16 = 1;
    pub(super) const NDA_LLADDR: u16 = 2;
    pub(super) const NUD_PERMANENT: u16 = 0x80;

    pub(super) const AF_INET: u8 = 2;
}
use number_of as n;

/// One end of a new veth pair.
#[derive(Debug)]
pub(crate) struct VethEnd<'a> {
    pub(crate) name: &'a str,
    pub(crate) mac: [u8; 6],
}

/// A way out of the namespace.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) destination: (Ipv4Addr, u8),
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Source address of packets the namespace itself sends this way.
    pub(crate) source: Option<Ipv4Addr>,
    pub(crate) link: u32,
}

/// An open netlink socket.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's namespace.
    pub(crate) fn open() -> io::Result<Self> {
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_TIMEOUT))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Makes a veth pair with `near` here and `far` in `far_namespace`. Fails with `AlreadyExists`.
    pub(crate) fn create_veth(
        &mut self,
        near: &VethEnd<'_>,
        far: &VethEnd<'_>,
        far_namespace: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let mut message = Message::new(n::RTM_NEWLINK, n::CREATE | n::EXCLUSIVE);
        message.push(&link_header(0, 0));
        message.text(n::IFLA_IFNAME, near.name);
        message.attribute(n::IFLA_ADDRESS, &near.mac);
        message.nested(n::IFLA_LINKINFO, |information| {
            information.text(n::IFLA_INFO_KIND, "veth");
            information.nested(n::IFLA_INFO_DATA, |data| {
                data.nested(n::VETH_INFO_PEER, |peer| {
                    peer.push(&link_header(0, 0));
                    peer.text(n::IFLA_IFNAME, far.name);
                    peer.attribute(n::IFLA_ADDRESS, &far.mac);
                    peer.attribute(n::IFLA_NET_NS_FD, &far_namespace.as_raw_fd().to_ne_bytes());
                });
            });
        });
        self.execute(message)
    }

    /// The number of the link called `name`, if there is one.
    pub(crate) fn link_index(&mut self, name: &str) -> io::Result<Option<u32>> {
        let mut message = Message::new(n::RTM_GETLINK, 0);
        message.push(&link_header(0, 0));
        message.text(n::IFLA_IFNAME, name);
        match self.request(message) {
            Ok(replies) => Ok(replies.first().and_then(|reply| number(&reply.payload, 4))),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names and numbers of all links.
    pub(crate) fn links(&mut self) -> io::Result<Vec<(String, u32)>> {
        let mut message = Message::new(n::RTM_GETLINK, n::DUMP);
        message.push(&link_header(0, 0));
        let named = |reply: &Reply| {
            let name = attribute(&reply.payload, LINK_HEADER_BYTES, n::IFLA_IFNAME)?;
            let name = std::str::from_utf8(name).ok()?.trim_end_matches('\0');
            Some((name.to_owned(), number(&reply.payload, 4)?))
        };
        Ok(self.request(message)?.iter().filter_map(named).collect())
    }

    /// Sets a link's hardware address.
    pub(crate) fn set_mac(&mut self, link: u32, mac: [u8; 6]) -> io::Result<()> {
        let mut message = Message::new(n::RTM_NEWLINK, 0);
        message.push(&link_header(link, 0));
        message.attribute(n::IFLA_ADDRESS, &mac);
        self.execute(message)
    }

    /// Brings a link up.
    pub(crate) fn set_up(&mut self, link: u32) -> io::Result<()> {
        let mut message = Message::new(n::RTM_NEWLINK, 0);
        message.push(&link_header(link, n::IFF_UP));
        self.execute(message)
    }

    /// Removes the link called `name`, of a pair both ends. Answers whether there was one.
    pub(crate) fn delete_link(&mut self, name: &str) -> io::Result<bool> {
        let mut message = Message::new(n::RTM_DELLINK, 0);
        message.push(&link_header(0, 0));
        message.text(n::IFLA_IFNAME, name);
        match self.execute(message) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Gives a link an address; having it already is no error.
    pub(crate) fn set_address(&mut self, link: u32, address: Ipv4Addr, length: u8) -> io::Result<()> {
        let mut message = Message::new(n::RTM_NEWADDR, n::CREATE | n::REPLACE);
        message.push(&address_header(link, length));
        message.attribute(n::IFA_LOCAL, &address.octets());
        message.attribute(n::IFA_ADDRESS, &address.octets());
        self.execute(message)
    }

    /// All IPv4 addresses as (link, address, prefix length).
    pub(crate) fn addresses(&mut self) -> io::Result<Vec<(u32, Ipv4Addr, u8)>> {
        let mut message = Message::new(n::RTM_GETADDR, n::DUMP);
        message.push(&address_header(0, 0));
        let parsed = |reply: &Reply| {
            let local = attribute(&reply.payload, ADDRESS_HEADER_BYTES, n::IFA_LOCAL)?;
            let octets: [u8; 4] = local.try_into().ok()?;
            Some((number(&reply.payload, 4)?, Ipv4Addr::from(octets), *reply.payload.get(1)?))
        };
        Ok(self.request(message)?.iter().filter_map(parsed).collect())
    }

    /// Adds a route. Fails with `AlreadyExists` when the namespace already has one to the same destination, through
    /// whatever link: that makes a route a claim that two processes cannot both hold.
    pub(crate) fn add_route(&mut self, route: &Route) -> io::Result<()> {
        let scope = if route.gateway.is_some() { n::RT_SCOPE_UNIVERSE } else { n::RT_SCOPE_LINK };
        let mut message = Message::new(n::RTM_NEWROUTE, n::CREATE | n::EXCLUSIVE);
        message.push(&route_header(route.destination.1, scope, 0));
        message.attribute(n::RTA_DST, &route.destination.0.octets());
        message.attribute(n::RTA_OIF, &route.link.to_ne_bytes());
        if let Some(gateway) = route.gateway {
            message.attribute(n::RTA_GATEWAY, &gateway.octets());
        }
        if let Some(source) = route.source {
            message.attribute(n::RTA_PREFSRC, &source.octets());
        }
        self.execute(message)
    }

    /// The routing entry that `destination` matches, as (prefix length, link).
    pub(crate) fn route_to(&mut self, destination: Ipv4Addr) -> io::Result<Option<(u8, u32)>> {
        let mut message = Message::new(n::RTM_GETROUTE, 0);
        message.push(&route_header(32, n::RT_SCOPE_UNIVERSE, n::RTM_F_FIB_MATCH));
        message.attribute(n::RTA_DST, &destination.octets());
        let replies = match self.request(message) {
            Ok(replies) => replies,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENETUNREACH | libc::EHOSTUNREACH)) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Ok(replies.first().and_then(|reply| {
            let link = attribute(&reply.payload, ROUTE_HEADER_BYTES, n::RTA_OIF)?;
            Some((*reply.payload.get(1)?, number(link, 0)?))
        }))
    }

    /// Fixes the hardware address of a neighbour for good.
    pub(crate) fn set_neighbour(&mut self, link: u32, address: Ipv4Addr, mac: [u8; 6]) -> io::Result<()> {
        let mut message = Message::new(n::RTM_NEWNEIGH, n::CREATE | n::REPLACE);
        let mut header = [0_u8; 12];
        header[0] = n::AF_INET;
        header[4..8].copy_from_slice(&link.to_ne_bytes());
        header[8..10].copy_from_slice(&n::NUD_PERMANENT.to_ne_bytes());
        message.push(&header);
        message.attribute(n::NDA_DST, &address.octets());
        message.attribute(n::NDA_LLADDR, &mac);
        self.execute(message)
    }

    fn execute(&mut self, message: Message) -> io::Result<()> {
        self.request(message).map(drop)
    }

    /// Sends one request and gathers its replies until the kernel says it is done.
    fn request(&mut self, message: Message) -> io::Result<Vec<Reply>> {
        self.sequence += 1;
        let bytes = message.finish(self.sequence)?;
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let mut gathered = Vec::new();
        let mut buffer = vec![0_u8; RECEIVE_BYTES];
        loop {
            let length = match recv(&self.socket, buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((_, length)) => length.min(RECEIVE_BYTES),
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::AGAIN) => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel did not answer in time"));
                }
                Err(error) => return Err(error.into()),
            };
            if replies(&buffer[..length], self.sequence, &mut gathered)? {
                return Ok(gathered);
            }
        }
    }
}

const LINK_HEADER_BYTES: usize = 16;
const ADDRESS_HEADER_BYTES: usize = 8;
const ROUTE_HEADER_BYTES: usize = 12;

/// `struct ifinfomsg`: family, type, index, flags, mask of the flags to change.
fn link_header(index: u32, flags: u32) -> [u8; LINK_HEADER_BYTES] {
    let mut header = [0; LINK_HEADER_BYTES];
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&flags.to_ne_bytes());
    header
}

/// `struct ifaddrmsg`: family, prefix length, flags, scope, index.
fn address_header(link: u32, length: u8) -> [u8; ADDRESS_HEADER_BYTES] {
    let mut header = [0; ADDRESS_HEADER_BYTES];
    header[0] = n::AF_INET;
    header[1] = length;
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header
}

/// `struct rtmsg`: family, destination and source length, tos, table, protocol, scope, type, flags.
fn route_header(length: u8, scope: u8, flags: u32) -> [u8; ROUTE_HEADER_BYTES] {
    let mut header = [0; ROUTE_HEADER_BYTES];
    header[0] = n::AF_INET;
    header[1] = length;
    header[4] = n::RT_TABLE_MAIN;
    header[5] = n::RTPROT_STATIC;
    header[6] = scope;
    header[7] = n::RTN_UNICAST;
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::message::attributes;
    use super::*;

    #[test]
    fn an_attribute_after_a_header_is_found() {
        let mut message = Message::new(n::RTM_GETLINK, 0);
        message.push(&link_header(7, 0));
        message.text(n::IFLA_IFNAME, "tap0");
        message.attribute(n::IFLA_ADDRESS, &[1, 2, 3, 4, 5, 6]);
        let bytes = message.finish(1).unwrap();
        let payload = &bytes[16..];
        assert_eq!(number(payload, 4), Some(7));
        assert_eq!(attribute(payload, LINK_HEADER_BYTES, n::IFLA_IFNAME), Some(&b"tap0\0"[..]));
        assert_eq!(attribute(payload, LINK_HEADER_BYTES, n::IFLA_ADDRESS), Some(&[1, 2, 3, 4, 5, 6][..]));
        assert_eq!(attributes(payload.get(LINK_HEADER_BYTES..).unwrap()).count(), 2);
    }
}
