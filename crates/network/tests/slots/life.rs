//! Making, finding again and removing slots.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;
use std::time::Instant;

use network::{NetworkError, Slot, SlotManager};

use crate::lab::{Guest, INTERNET, Lab, Namespace, config, prefix};

/// Everything a manager with `prefix` could leave: namespaces, links, rules.
fn traces(lab: &Lab, prefix: &str) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir("/run/netns")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with(prefix))
        .collect();
    for listing in
        [lab.host.ip("-o link"), lab.host.ip("route"), fs::read_to_string("/proc/self/mounts").unwrap()]
    {
        found.extend(listing.lines().filter(|line| line.contains(&format!("{prefix}-"))).map(str::to_owned));
    }
    found
}

fn tables(lab: &Lab) -> String {
    lab.host.command("nft", &["list", "tables"])
}

#[test]
fn a_hundred_slots_come_and_go_without_a_trace() {
    let (lab, prefix) = (Lab::new(), prefix());
    let manager = lab.manager(&prefix);
    let (mut made, mut removed) = (Vec::new(), Vec::new());
    for _ in 0..100 {
        let begin = Instant::now();
        let slot = lab.wait(manager.acquire()).unwrap();
        made.push(begin.elapsed());
        let begin = Instant::now();
        lab.wait(manager.release(&slot)).unwrap();
        removed.push(begin.elapsed());
    }
    made.sort();
    removed.sort();
    println!(
        "acquire p50 {:?} p99 {:?}, release p50 {:?} p99 {:?}",
        made[50], made[98], removed[50], removed[98]
    );
    assert_eq!(traces(&lab, &prefix), Vec::<String>::new());
    lab.wait(manager.remove_host_rules()).unwrap();
    assert_eq!(tables(&lab), "");
}

#[test]
fn two_nodes_that_share_a_range_never_share_an_address() {
    let lab = Lab::new();
    let managers = [lab.manager(&prefix()), lab.manager(&prefix())];
    let slots: Vec<(Arc<SlotManager>, Slot)> = lab.wait(async {
        let mut tasks = tokio::task::JoinSet::new();
        for manager in managers.iter().cycle().take(24) {
            let manager = Arc::clone(manager);
            tasks.spawn(async move {
                let slot = manager.acquire().await.unwrap();
                (manager, slot)
            });
        }
        tasks.join_all().await
    });
    let addresses: BTreeSet<_> = slots.iter().map(|(_, slot)| slot.host_side_guest_address).collect();
    assert_eq!(addresses.len(), slots.len());
    for (manager, slot) in &slots {
        lab.wait(manager.release(slot)).unwrap();
    }
}

#[test]
fn a_range_that_is_used_up_says_so_and_recovers() {
    let (lab, prefix) = (Lab::new(), prefix());
    let mut small = config(&prefix);
    small.slot_range.1 = 30;
    let manager = lab.host.run(|| lab_runtime().block_on(SlotManager::new(small))).unwrap();
    let one = lab.wait(manager.acquire()).unwrap();
    let two = lab.wait(manager.acquire()).unwrap();
    assert!(matches!(lab.wait(manager.acquire()), Err(NetworkError::Exhausted { limit: 2 })));
    lab.wait(manager.release(&one)).unwrap();
    let three = lab.wait(manager.acquire()).unwrap();
    assert_eq!(three.index, one.index);
    for slot in [two, three] {
        lab.wait(manager.release(&slot)).unwrap();
    }
}

fn lab_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn a_slot_is_adopted_under_a_running_machine() {
    let (lab, prefix) = (Lab::new(), prefix());
    let slot;
    let guest;
    {
        let before = lab.manager(&prefix);
        slot = lab.wait(before.acquire()).unwrap();
        guest = Guest::start(lab.wait(before.open_tap(&slot)).unwrap());
    }
    let _server = lab.internet.serve(80);
    let after = lab.manager(&prefix);
    let adopted = lab.wait(after.adopt(&slot.record())).unwrap();
    assert_eq!(adopted, slot);
    assert_eq!(lab.wait(after.sweep()).unwrap(), 0, "an adopted slot is not swept");
    assert!(guest.namespace.connect(INTERNET, 80).is_some());
    let _inside = guest.namespace.serve(80);
    assert!(lab.host.connect(slot.host_side_guest_address, 80).is_some());
    assert!(lab.wait(after.adopt(&slot.record())).is_err(), "a slot is adopted once");
    lab.wait(after.release(&slot)).unwrap();
    assert_eq!(traces(&lab, &prefix), Vec::<String>::new());
}

#[test]
fn adoption_makes_what_is_missing() {
    let (lab, prefix) = (Lab::new(), prefix());
    let name = format!("{prefix}-0");
    let damages: [(&str, &dyn Fn()); 6] = [
        ("nothing", &|| {}),
        ("the host's link", &|| drop(lab.host.ip(&format!("link del {name}")))),
        ("the tap", &|| drop(Namespace::named(&name).ip("link del tap0"))),
        ("the rules", &|| drop(Namespace::named(&name).command("nft", &["flush", "ruleset"]))),
        ("the addresses", &|| drop(Namespace::named(&name).ip("addr flush dev tap0"))),
        ("the namespace", &|| drop(lab.host.ip(&format!("netns del {name}")))),
    ];
    for (what, damage) in damages {
        let slot = lab.wait(lab.manager(&prefix).acquire()).unwrap();
        assert_eq!(slot.namespace, name);
        damage();
        let manager = lab.manager(&prefix);
        let slot = lab.wait(manager.adopt(&slot.record())).unwrap();
        let guest = Guest::start(lab.wait(manager.open_tap(&slot)).unwrap());
        let _server = guest.namespace.serve(80);
        assert!(lab.host.connect(slot.host_side_guest_address, 80).is_some(), "without {what}");
        lab.wait(manager.release(&slot)).unwrap();
    }
}

#[test]
fn a_tap_serves_one_machine_after_another() {
    let lab = Lab::new();
    let manager = lab.manager(&prefix());
    let slot = lab.wait(manager.acquire()).unwrap();
    let first = lab.wait(manager.open_tap(&slot)).unwrap();
    assert!(lab.wait(manager.open_tap(&slot)).is_err(), "it is in use");
    drop(first);
    let guest = Guest::start(lab.wait(manager.open_tap(&slot)).unwrap());
    let _server = guest.namespace.serve(80);
    assert!(lab.host.connect(slot.host_side_guest_address, 80).is_some());
    lab.wait(manager.release(&slot)).unwrap();
}

#[test]
fn a_slot_is_released_while_its_tap_is_held() {
    let (lab, prefix) = (Lab::new(), prefix());
    let manager = lab.manager(&prefix);
    let slot = lab.wait(manager.acquire()).unwrap();
    let inside = Namespace::named(&slot.namespace);
    let _tap = lab.wait(manager.open_tap(&slot)).unwrap();
    lab.wait(manager.release(&slot)).unwrap();
    assert_eq!(traces(&lab, &prefix), Vec::<String>::new());
    assert!(!inside.ip("-o link").contains("tap0"));
    lab.wait(manager.release(&slot)).expect("releasing twice succeeds");
    assert!(lab.wait(manager.open_tap(&slot)).is_err());
}

#[test]
fn half_made_slots_are_passed_over_and_swept() {
    let (lab, prefix) = (Lab::new(), prefix());
    let manager = lab.manager(&prefix);
    fs::write(format!("/run/netns/{prefix}-0"), "").unwrap();
    lab.host.ip(&format!("tuntap add dev {prefix}-1 mode tap"));
    lab.host.ip(&format!("netns add {prefix}-2"));
    lab.host.ip(&format!("tuntap add dev {prefix}x-1 mode tap"));
    let slot = lab.wait(manager.acquire()).unwrap();
    assert_eq!(slot.index, 3);
    assert_eq!(lab.wait(manager.sweep()).unwrap(), 3);
    lab.wait(manager.release(&slot)).unwrap();
    assert_eq!(traces(&lab, &prefix), Vec::<String>::new());
    assert!(lab.host.ip("-o link").contains(&format!("{prefix}x-1")), "a foreign link stays");
}

#[test]
fn nobody_gets_a_slot_that_nobody_waited_for() {
    let (lab, prefix) = (Lab::new(), prefix());
    let manager = lab.manager(&prefix);
    lab.wait(async {
        for _ in 0..8 {
            let _ = tokio::time::timeout(std::time::Duration::from_millis(1), manager.acquire()).await;
        }
        // Work is bounded and ordered: when this one is through, so are those before it.
        for _ in 0..8 {
            let slot = manager.acquire().await.unwrap();
            manager.release(&slot).await.unwrap();
        }
    });
    let deadline = Instant::now() + std::time::Duration::from_secs(10);
    while !traces(&lab, &prefix).is_empty() && Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(traces(&lab, &prefix), Vec::<String>::new());
}

#[test]
fn forwarding_is_switched_on_and_off_again_with_the_last_node() {
    let lab = Lab::new();
    let forwarding = || lab.host.sysctl("net/ipv4/ip_forward");
    let first = lab.manager(&prefix());
    assert_eq!(forwarding(), "1");
    lab.wait(first.remove_host_rules()).unwrap();
    assert_eq!(forwarding(), "0");

    lab.host.run(|| fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap());
    let other = lab.manager(&prefix());
    lab.wait(other.remove_host_rules()).unwrap();
    assert_eq!(forwarding(), "1", "it was on before");
}

#[test]
fn forwarding_that_was_off_is_remembered_across_restarts() {
    let (lab, prefix) = (Lab::new(), prefix());
    drop(lab.manager(&prefix));
    let again = lab.manager(&prefix);
    lab.wait(again.remove_host_rules()).unwrap();
    assert_eq!(lab.host.sysctl("net/ipv4/ip_forward"), "0");
}

#[test]
fn foreign_rules_stay() {
    let lab = Lab::new();
    lab.host.command(
        "nft",
        &["add table ip theirs; add chain ip theirs c { type filter hook input priority 0; }"],
    );
    let manager = lab.manager(&prefix());
    let slot = lab.wait(manager.acquire()).unwrap();
    lab.wait(manager.release(&slot)).unwrap();
    lab.wait(manager.remove_host_rules()).unwrap();
    assert_eq!(tables(&lab), "table ip theirs\n");
}

#[test]
fn a_firewall_that_drops_forwarded_packets_is_named() {
    let lab = Lab::new();
    let manager = lab.manager(&prefix());
    assert_eq!(lab.wait(manager.forwarding_obstacles()).unwrap(), Vec::<String>::new());
    lab.host.command(
        "nft",
        &["add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }"],
    );
    assert_eq!(lab.wait(manager.forwarding_obstacles()).unwrap(), ["ip filter FORWARD"]);
}

#[test]
fn a_range_the_host_itself_is_in_is_refused() {
    let lab = Lab::new();
    lab.host.ip("addr add 10.12.200.1/24 dev up0");
    let refused = lab.host.run(|| lab_runtime().block_on(SlotManager::new(config(&prefix()))));
    assert!(matches!(refused, Err(NetworkError::Config(reason)) if reason.contains("10.12.200.1/24")));
}
