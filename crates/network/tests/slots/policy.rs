//! What a guest reaches and what reaches it.

use std::net::{IpAddr, Ipv4Addr};

use network::{GUEST_ADDRESS, GUEST_GATEWAY, Slot, SlotManager};

use crate::lab::{Guest, HOST, INTERNET, Lab, PRIVATE, prefix, seen_as};

struct World {
    lab: Lab,
    manager: std::sync::Arc<SlotManager>,
    slot: Slot,
    guest: Guest,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new();
        let manager = lab.manager(&prefix());
        let (slot, guest) = add_guest(&lab, &manager);
        Self { lab, manager, slot, guest }
    }
}

fn add_guest(lab: &Lab, manager: &SlotManager) -> (Slot, Guest) {
    let slot = lab.wait(manager.acquire()).unwrap();
    let guest = Guest::start(lab.wait(manager.open_tap(&slot)).unwrap());
    (slot, guest)
}

impl Drop for World {
    fn drop(&mut self) {
        self.lab.wait(self.manager.release(&self.slot)).unwrap();
    }
}

#[test]
fn the_host_reaches_the_guest_on_any_port_and_the_guest_sees_its_gateway() {
    let world = World::new();
    let address = world.slot.host_side_guest_address;
    for port in [1, 80, 49983, 65535] {
        let _server = world.guest.namespace.serve(port);
        assert_eq!(seen_as(world.lab.host.connect(address, port)), IpAddr::V4(GUEST_GATEWAY), "port {port}");
    }
    let inside = world.guest.namespace.udp(Ipv4Addr::UNSPECIFIED, 5353);
    let outside = world.lab.host.udp(Ipv4Addr::UNSPECIFIED, 0);
    outside.send_to(b"question", (address, 5353)).unwrap();
    let mut buffer = [0; 16];
    let (_, peer) = inside.recv_from(&mut buffer).unwrap();
    assert_eq!(peer.ip(), IpAddr::V4(GUEST_GATEWAY));
    inside.send_to(b"answer", peer).unwrap();
    assert_eq!(outside.recv_from(&mut buffer).unwrap().1.ip(), IpAddr::V4(address));
}

#[test]
fn the_guest_reaches_the_outside_under_the_hosts_address() {
    let world = World::new();
    let _server = world.lab.internet.serve(443);
    assert_eq!(seen_as(world.guest.namespace.connect(INTERNET, 443)), IpAddr::V4(HOST));
    let resolver = world.lab.internet.udp(INTERNET, 53);
    let client = world.guest.namespace.udp(Ipv4Addr::UNSPECIFIED, 0);
    client.send_to(b"name?", (INTERNET, 53)).unwrap();
    let mut buffer = [0; 16];
    let (_, peer) = resolver.recv_from(&mut buffer).unwrap();
    assert_eq!(peer.ip(), IpAddr::V4(HOST));
    resolver.send_to(b"address", peer).unwrap();
    assert_eq!(client.recv(&mut buffer).unwrap(), 7);
}

#[test]
fn the_guest_reaches_none_of_the_hosts_addresses() {
    let world = World::new();
    let _server = world.lab.host.serve(22);
    assert!(world.lab.internet.connect(HOST, 22).is_some(), "the host does serve the outside");
    let own = u32::from(world.slot.host_side_guest_address);
    for address in [HOST, Ipv4Addr::from(own - 1), GUEST_GATEWAY, Ipv4Addr::from(own), Ipv4Addr::LOCALHOST] {
        assert!(!world.guest.namespace.reaches(address, 22), "{address}");
    }
}

#[test]
fn the_guest_gets_no_datagram_to_the_host() {
    let world = World::new();
    let host = world.lab.host.udp(Ipv4Addr::UNSPECIFIED, 53);
    let guest = world.guest.namespace.udp(Ipv4Addr::UNSPECIFIED, 0);
    guest.send_to(b"hello", (HOST, 53)).unwrap();
    assert!(host.recv(&mut [0; 8]).is_err());
}

#[test]
fn the_guest_reaches_no_private_network() {
    let world = World::new();
    let _server = world.lab.internet.serve(80);
    for address in PRIVATE {
        assert!(world.lab.host.connect(address, 80).is_some(), "the host does reach {address}");
        assert!(!world.guest.namespace.reaches(address, 80), "{address}");
    }
}

#[test]
fn a_published_port_of_the_host_is_no_way_around() {
    let world = World::new();
    let _server = world.lab.internet.serve(8080);
    world.lab.host.command(
        "nft",
        &["add table ip published; add chain ip published pre { type nat hook prerouting priority -100; }; \
           add rule ip published pre tcp dport 80 dnat to 10.99.0.1:8080"],
    );
    assert!(!world.guest.namespace.reaches(HOST, 80), "by the host's address");
    assert!(
        !world.guest.namespace.reaches(INTERNET, 80),
        "by an outside address that is translated to a denied one"
    );
}

#[test]
fn slots_do_not_reach_each_other() {
    let world = World::new();
    let (slot, other) = add_guest(&world.lab, &world.manager);
    let _server = other.namespace.serve(80);
    assert!(world.lab.host.connect(slot.host_side_guest_address, 80).is_some(), "the host does reach it");
    assert!(!world.guest.namespace.reaches(slot.host_side_guest_address, 80));
    world.lab.wait(world.manager.release(&slot)).unwrap();
}

#[test]
fn two_nodes_slots_do_not_reach_each_other() {
    let world = World::new();
    let neighbour = world.lab.manager(&prefix());
    let (slot, other) = add_guest(&world.lab, &neighbour);
    let _server = other.namespace.serve(80);
    assert!(world.lab.host.connect(slot.host_side_guest_address, 80).is_some(), "the host does reach it");
    assert!(!world.guest.namespace.reaches(slot.host_side_guest_address, 80));
    world.lab.wait(neighbour.release(&slot)).unwrap();
}

#[test]
fn the_outside_does_not_reach_a_guest() {
    let world = World::new();
    let _server = world.guest.namespace.serve(80);
    world.lab.internet.ip("route add 10.12.0.0/16 via 203.0.113.1");
    let address = world.slot.host_side_guest_address;
    assert!(world.lab.host.connect(address, 80).is_some(), "the host does reach it");
    assert!(!world.lab.internet.reaches(address, 80));
}

#[test]
fn a_forged_source_address_goes_nowhere() {
    let world = World::new();
    let receiver = world.lab.internet.udp(INTERNET, 9);
    let host = world.lab.host.udp(Ipv4Addr::UNSPECIFIED, 9);
    let guest = &world.guest.namespace;
    for forged in ["203.0.113.99", "10.12.0.1", "127.0.0.9", "169.254.0.22"] {
        guest.ip(&format!("addr add {forged}/32 dev eth0"));
        let forged: Ipv4Addr = forged.parse().unwrap();
        let sender = guest.udp(forged, 0);
        // The guest's own kernel may refuse some of these, which is as good.
        let _ = sender.send_to(b"forged", (INTERNET, 9));
        let _ = sender.send_to(b"forged", (HOST, 9));
    }
    assert!(receiver.recv(&mut [0; 8]).is_err());
    assert!(host.recv(&mut [0; 8]).is_err());
    let honest = guest.udp(GUEST_ADDRESS, 0);
    honest.send_to(b"honest", (INTERNET, 9)).unwrap();
    assert!(receiver.recv(&mut [0; 8]).is_ok(), "an honest datagram does arrive");
}

#[test]
fn there_is_no_ipv6_around_a_slot() {
    let world = World::new();
    let inside = crate::lab::Namespace::named(&world.slot.namespace);
    assert_eq!(inside.ip("-6 addr show"), "");
    assert_eq!(world.lab.host.ip(&format!("-6 addr show dev {}", world.slot.namespace)), "");
    // A guest that makes itself an address still finds nobody: not even the neighbour discovery of its gateway.
    world.guest.namespace.ip("-6 addr add fd00::21/64 dev eth0 nodad");
    let ping = world.guest.namespace.run(|| {
        std::process::Command::new("python3")
            .args([
                "-c",
                "import socket; s=socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.settimeout(0.4)\n\
                 s.sendto(b'x', ('ff02::1', 9, 0, socket.if_nametoindex('eth0')))",
            ])
            .status()
            .unwrap()
    });
    assert!(ping.success());
    assert_eq!(inside.ip("-6 neigh show"), "");
}

#[test]
fn a_guest_that_was_refused_before_it_was_up_is_reached_at_once_when_it_is() {
    let lab = Lab::new();
    let manager = lab.manager(&prefix());
    let slot = lab.wait(manager.acquire()).unwrap();
    let tap = lab.wait(manager.open_tap(&slot)).unwrap();
    assert!(!lab.host.reaches(slot.host_side_guest_address, 80));
    let guest = Guest::start(tap);
    let _server = guest.namespace.serve(80);
    let begin = std::time::Instant::now();
    assert!(lab.host.connect(slot.host_side_guest_address, 80).is_some());
    assert!(begin.elapsed() < std::time::Duration::from_millis(900), "{:?}", begin.elapsed());
    lab.wait(manager.release(&slot)).unwrap();
}
