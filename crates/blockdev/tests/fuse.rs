//! The FUSE front end on a real mount: the conformance suite, and what is particular to FUSE.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "conformance/suite.rs"]
mod suite;

use std::path::PathBuf;
use std::sync::Arc;

use blockdev::fuse::{FuseConfig, FuseFrontEnd};
use blockdev::{DeviceKind, DeviceSpec, FrontEnd as _, FrontEndError, MemoryImage};

fn config(directory: &std::path::Path) -> FuseConfig {
    FuseConfig {
        mount_point: directory.join("devices"),
        keeper_socket: directory.join("run/keeper.sock"),
        keeper_command: vec![env!("CARGO_BIN_EXE_blockdev-role").into(), "fuse-keeper".into()],
        threads: 4,
        never_resend: false,
    }
}

fn mounts_under(directory: &std::path::Path) -> usize {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().filter(|line| line.contains(directory.to_str().unwrap())).count()
}

#[test]
fn the_fuse_front_end_passes_the_conformance_suite() {
    let directory = tempfile::tempdir().unwrap();
    let front_end = FuseFrontEnd::attach(&config(directory.path())).unwrap();
    assert!(!front_end.taken_over());
    front_end.serve().unwrap();
    suite::run_all(&front_end);
    front_end.remove().unwrap();
}

#[test]
fn removing_leaves_no_mount_no_process_and_no_socket() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let front_end = FuseFrontEnd::attach(&config).unwrap();
    front_end.serve().unwrap();
    assert_eq!(mounts_under(directory.path()), 1);
    front_end.remove().unwrap();
    assert_eq!(mounts_under(directory.path()), 0);
    assert!(!config.keeper_socket.exists());
    let children = std::fs::read_to_string(format!(
        "/proc/self/task/{}/children",
        rustix::thread::gettid().as_raw_nonzero()
    ));
    assert_eq!(children.unwrap_or_default().trim(), "");
}

#[test]
fn removing_is_refused_while_a_file_is_open_and_nothing_changes() {
    let directory = tempfile::tempdir().unwrap();
    let front_end = FuseFrontEnd::attach(&config(directory.path())).unwrap();
    front_end.serve().unwrap();
    let spec = DeviceSpec { name: "disk".into(), inode: 16, kind: DeviceKind::Disk };
    let path = front_end.open(spec, Arc::new(MemoryImage::new(1 << 20))).unwrap();
    let file = std::fs::File::open(path).unwrap();
    assert!(matches!(front_end.remove(), Err(FrontEndError::MountBusy { .. })));
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut [0; 4096], 0).unwrap();
    drop(file);
    front_end.remove().unwrap();
    assert_eq!(mounts_under(directory.path()), 0);
}

#[test]
fn a_keeper_that_cannot_start_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.keeper_command = vec!["/nonexistent/program".into()];
    let error = FuseFrontEnd::attach(&config).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/program"), "{error}");
    config.keeper_command = vec!["/bin/true".into()];
    let error = FuseFrontEnd::attach(&config).unwrap_err().to_string();
    assert!(error.contains("without a word"), "{error}");
    config.keeper_command = vec!["/bin/echo".into(), "cannot mount: no permission".into()];
    let error = FuseFrontEnd::attach(&config).unwrap_err().to_string();
    assert!(error.contains("no permission"), "{error}");
    let blocked = directory.path().join("file");
    std::fs::write(&blocked, "").unwrap();
    config.mount_point = PathBuf::from(&blocked).join("devices");
    let error = FuseFrontEnd::attach(&config).unwrap_err().to_string();
    assert!(error.contains("make the directory"), "{error}");
}
