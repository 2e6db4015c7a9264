//! Real guests in real QEMU processes.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::{Duration, Instant};

use common::{BOOT_LIMIT, Place, qemu};
use vmm::qemu::{Qemu, QemuConfig, RunAs};
use vmm::{Machine, MachineStatus, Vmm, wait_for_console};

async fn boot(place: &Place, mode: &str) -> Box<dyn Machine> {
    let machine = qemu().boot(place.config(mode)).await.unwrap();
    if let Err(error) = wait_for_console(&*machine, "test-init: ready", BOOT_LIMIT).await {
        machine.kill().await.unwrap();
        panic!("{error}");
    }
    machine
}

#[tokio::test]
async fn a_guest_sees_its_disks_in_order_and_its_devices() {
    let place = Place::new();
    let machine = boot(&place, "wait").await;
    assert_eq!(machine.status().await, MachineStatus::Running);
    let console = machine.console_tail(100_000);
    machine.kill().await.unwrap();
    assert!(console.contains("disk vda read-only=1 sectors=2048 "), "{console}");
    assert!(console.contains("disk vdb read-only=0 sectors=4096 discard=2147483136"), "{console}");
    assert!(console.contains("random virtio_rng.0 virtio 1 "), "{console}");
    assert!(!console.contains("not inserted"), "{console}");
    place.assert_nothing_left();
}

#[tokio::test]
async fn ten_boots_in_a_row_reach_init() {
    let qemu = qemu();
    let mut boots_ms = Vec::new();
    let mut resident_mib = Vec::new();
    for _ in 0..10 {
        let place = Place::new();
        let started = Instant::now();
        let machine = qemu.boot(place.config("wait")).await.unwrap();
        let reached = wait_for_console(&*machine, "test-init: started", BOOT_LIMIT).await;
        boots_ms.push(started.elapsed().as_millis());
        resident_mib.push(machine.statistics().map_or(0, |statistics| statistics.resident_bytes >> 20));
        machine.kill().await.unwrap();
        reached.unwrap();
        place.assert_nothing_left();
    }
    boots_ms.sort_unstable();
    println!("boot to init: median {} ms of {boots_ms:?}; resident {resident_mib:?} MiB", boots_ms[5]);
    assert_eq!(common::zombies(), Vec::<String>::new());
}

#[tokio::test]
async fn the_monitor_is_confined() {
    let place = Place::new();
    let machine = qemu().boot(place.config("wait")).await.unwrap();
    let id = machine.record().process_id;
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).unwrap();
    let (status, interfaces, environment, stat) =
        (read("status"), read("net/dev"), read("environ"), read("stat"));
    let descriptors = std::fs::read_dir(format!("/proc/{id}/fd")).unwrap().flatten();
    let descriptors: Vec<_> = descriptors
        .filter_map(|entry| std::fs::read_link(entry.path()).ok()?.into_os_string().into_string().ok())
        .collect();
    machine.kill().await.unwrap();

    for expected in
        ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
    {
        assert!(status.contains(expected), "{expected} is not in {status}");
    }
    let interfaces: Vec<_> =
        interfaces.lines().skip(2).map(|line| line.split(':').next().unwrap().trim()).collect();
    assert_eq!(interfaces, ["lo"]);
    assert_eq!(environment, "");
    let session = stat[stat.rfind(')').unwrap() + 2..].split(' ').nth(3).unwrap().to_owned();
    assert_eq!(session, id.to_string(), "not in a session of its own");
    for descriptor in descriptors {
        let expected = ["anon_inode:", "socket:", "/memfd:"].iter().any(|kind| descriptor.starts_with(kind))
            || descriptor == "/dev/null"
            || descriptor.starts_with(&*place.directory.path().to_string_lossy());
        assert!(expected, "unexpected descriptor of {descriptor}");
    }
}

#[tokio::test]
async fn the_end_of_the_monitor_is_seen() {
    let place = Place::new();
    let machine = boot(&place, "wait").await;
    let id = i32::try_from(machine.record().process_id).unwrap();
    let waiting = machine.wait();
    rustix::process::kill_process(rustix::process::Pid::from_raw(id).unwrap(), rustix::process::Signal::KILL)
        .unwrap();
    tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap();
    assert_eq!(machine.status().await, MachineStatus::Exited);
    assert!(machine.statistics().is_err());
    assert!(matches!(machine.resume().await, Err(vmm::VmmError::Gone { .. })));
    machine.kill().await.unwrap();
    place.assert_nothing_left();
    assert_eq!(common::zombies(), Vec::<String>::new());
}

#[tokio::test]
async fn a_guest_that_powers_off_ends_its_monitor() {
    let place = Place::new();
    let machine = boot(&place, "poweroff").await;
    tokio::time::timeout(BOOT_LIMIT, machine.wait()).await.unwrap();
    assert_eq!(machine.status().await, MachineStatus::Exited);
    machine.kill().await.unwrap();
    place.assert_nothing_left();
}

#[tokio::test]
async fn a_guest_that_panics_ends_its_monitor_and_its_last_words_are_kept() {
    let place = Place::new();
    let machine = boot(&place, "panic").await;
    let error = wait_for_console(&*machine, "never said", BOOT_LIMIT).await.unwrap_err().to_string();
    machine.kill().await.unwrap();
    assert!(error.contains("its monitor ended"), "{error}");
    assert!(
        error.contains("Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000300"),
        "{error}"
    );
}

fn beats(machine: &dyn Machine) -> usize {
    machine.console_tail(1 << 20).matches("test-init: beat").count()
}

#[tokio::test]
async fn a_paused_guest_stands_still_and_goes_on() {
    let place = Place::new();
    let machine = boot(&place, "talk").await;
    wait_for_console(&*machine, "beat 2", BOOT_LIMIT).await.unwrap();
    machine.pause(Duration::from_secs(10)).await.unwrap();
    assert_eq!(machine.status().await, MachineStatus::Paused);
    // What was said before is still on its way.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = beats(&*machine);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(beats(&*machine), before);
    machine.resume().await.unwrap();
    assert_eq!(machine.status().await, MachineStatus::Running);
    wait_for_console(&*machine, &format!("beat {}", before + 3), BOOT_LIMIT).await.unwrap();
    machine.kill().await.unwrap();
}

#[tokio::test]
async fn a_guest_that_prints_for_ever_fills_neither_the_disk_nor_stops_without_a_reader() {
    const LIMIT_BYTES: u64 = 64 * 1024;
    let place = Place::new();
    let qemu = Qemu::new(QemuConfig { console_limit_bytes: LIMIT_BYTES, ..QemuConfig::default() }).unwrap();
    let machine = qemu.boot(place.config("flood")).await.unwrap();
    wait_for_console(&*machine, "earlier console output was dropped", BOOT_LIMIT).await.unwrap();
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(std::fs::metadata(place.console_log()).unwrap().len() <= LIMIT_BYTES);
    }
    // Nobody reads for a while, as when the node is restarted.
    let record = machine.record().clone();
    drop(machine);
    tokio::time::sleep(Duration::from_secs(2)).await;
    std::fs::write(place.console_log(), "").unwrap();
    let machine = qemu.adopt(&record).await.unwrap();
    let resumed = wait_for_console(&*machine, "test-init: flood", Duration::from_secs(20)).await;
    machine.kill().await.unwrap();
    resumed.unwrap();
    place.assert_nothing_left();
}

#[tokio::test]
async fn monitors_run_as_another_user_when_told_to() {
    use std::os::unix::fs::{PermissionsExt, chown};
    const NOBODY: RunAs = RunAs { uid: 65534, gid: 65534 };
    let place = Place::new();
    std::fs::set_permissions(place.directory.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let mut config = place.config("wait");
    for (path, name) in [(&mut config.kernel, "vmlinux"), (&mut config.initramfs, "initramfs.img")] {
        std::fs::copy(&path, place.path(name)).unwrap();
        std::fs::set_permissions(place.path(name), std::fs::Permissions::from_mode(0o644)).unwrap();
        *path = place.path(name);
    }
    for disk in &config.disks {
        chown(&disk.path, Some(NOBODY.uid), Some(NOBODY.gid)).unwrap();
    }
    let qemu = Qemu::new(QemuConfig { run_as: Some(NOBODY), ..QemuConfig::default() }).unwrap();
    let machine = qemu.boot(config).await.unwrap();
    let reached = wait_for_console(&*machine, "test-init: ready", BOOT_LIMIT).await;
    let status = std::fs::read_to_string(format!("/proc/{}/status", machine.record().process_id)).unwrap();
    let found = qemu.find("test", &place.runtime(), &place.console_log()).unwrap();
    assert_eq!(found.as_ref(), Some(machine.record()));
    machine.kill().await.unwrap();
    reached.unwrap();
    for expected in ["Uid:\t65534\t65534\t65534\t65534", "Gid:\t65534\t65534\t65534\t65534", "Groups:\t \n"] {
        assert!(status.contains(expected), "{expected:?} is not in {status}");
    }
    place.assert_nothing_left();
}
