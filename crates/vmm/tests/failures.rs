//! Machines that do not start say why and leave nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::{Place, qemu};
use vmm::qemu::{Qemu, QemuConfig};
use vmm::{MachineConfig, Vmm, VmmError};

async fn refusal(place: &Place, change: impl FnOnce(&mut MachineConfig)) -> VmmError {
    let mut config = place.config("wait");
    change(&mut config);
    let error = match qemu().boot(config).await {
        Err(error) => error,
        Ok(machine) => {
            machine.kill().await.unwrap();
            panic!("it started");
        }
    };
    place.assert_nothing_left();
    assert_eq!(common::zombies(), Vec::<String>::new());
    error
}

#[tokio::test]
async fn a_missing_disk_is_named() {
    let place = Place::new();
    let error = refusal(&place, |config| config.disks[1].path = "/nonexistent/disk".into()).await;
    let text = error.to_string();
    assert!(matches!(error, VmmError::Config(_)), "{text}");
    assert!(text.contains("disk 1 of machine test: /nonexistent/disk: No such file"), "{text}");
}

#[tokio::test]
async fn what_qemu_cannot_use_is_told_in_its_words() {
    let place = Place::new();
    let directory = place.path("run");
    let error = refusal(&place, |config| config.disks[1].path = directory).await.to_string();
    assert!(error.contains("exit code 1"), "{error}");
    assert!(error.contains("/run': Is a directory"), "{error}");
}

#[tokio::test]
async fn something_else_than_a_kernel_is_refused() {
    let place = Place::new();
    std::fs::write(place.path("text"), "not a kernel").unwrap();
    let kernel = place.path("text");
    let error = refusal(&place, |config| config.kernel = kernel).await;
    let text = error.to_string();
    assert!(matches!(error, VmmError::Start { .. }), "{text}");
    assert!(text.contains("kernel"), "{text}");
}

#[tokio::test]
async fn more_memory_than_the_host_can_map_is_refused() {
    let place = Place::new();
    let error = refusal(&place, |config| config.memory_mib = 1 << 20).await.to_string();
    assert!(error.contains("cannot set up guest memory"), "{error}");
}

#[tokio::test]
async fn impossible_shapes_are_refused_before_anything_starts() {
    let place = Place::new();
    assert!(matches!(refusal(&place, |config| config.vcpus = 0).await, VmmError::Config(_)));
    assert!(matches!(refusal(&place, |config| config.memory_mib = 1).await, VmmError::Config(_)));
}

#[tokio::test]
async fn a_directory_in_use_is_refused_and_its_machine_left_alone() {
    let place = Place::new();
    let qemu = qemu();
    let machine = qemu.boot(place.config("wait")).await.unwrap();
    let error = qemu.boot(place.config("wait")).await.unwrap_err().to_string();
    assert!(error.contains("another machine uses this runtime directory"), "{error}");
    assert_eq!(machine.status().await, vmm::MachineStatus::Running);
    machine.kill().await.unwrap();
    place.assert_nothing_left();
}

/// A QEMU that answers like one but does something else when it is started for real.
fn impostor(place: &Place, body: &str) -> PathBuf {
    let real = qemu().report().program.display().to_string();
    let path = place.path("qemu");
    let script = format!("#!/bin/sh\ncase $1 in --version|-L) exec {real} \"$@\";; esac\n{body}\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

#[tokio::test]
async fn a_monitor_that_never_answers_is_ended_in_time() {
    let place = Place::new();
    let program = impostor(&place, "echo waiting >&2; while :; do /bin/sleep 0.1; done");
    let config = QemuConfig { program, start_timeout: Duration::from_millis(500), ..QemuConfig::default() };
    let qemu = Qemu::new(config).unwrap();
    let started = Instant::now();
    let error = qemu.boot(place.config("wait")).await.unwrap_err().to_string();
    assert!(started.elapsed() < Duration::from_secs(20));
    assert!(error.contains("its processors did not run within") && error.ends_with("waiting\n"), "{error}");
    place.assert_nothing_left();
}

#[tokio::test]
async fn a_start_that_is_given_up_leaves_nothing() {
    let place = Place::new();
    let program = impostor(&place, "while :; do /bin/sleep 0.1; done");
    let qemu = Qemu::new(QemuConfig { program, ..QemuConfig::default() }).unwrap();
    for limit_ms in [0, 1, 5, 20, 300] {
        let given_up =
            tokio::time::timeout(Duration::from_millis(limit_ms), qemu.boot(place.config("wait"))).await;
        assert!(given_up.is_err(), "an impostor that never answers started");
        // A process that was being started when its future was dropped is ended as soon as it exists.
        tokio::time::sleep(Duration::from_millis(300)).await;
        place.assert_nothing_left();
    }
    assert_eq!(common::zombies(), Vec::<String>::new());
}
