//! The daemon is killed, its files are damaged, its disk is full.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{
    MIB, Mounted, Site, Writer, block, check_file_system, check_written_files, make_file_system, read_write,
};
use storaged::{Client, ClientError};

#[tokio::test]
async fn a_file_system_in_use_does_not_notice_that_the_daemon_is_killed() {
    let site = Site::new();
    let mut daemon = site.start().await;
    let disk = daemon.disk(&site, "disk", 512 * MIB).await;
    make_file_system(&disk);
    let mounted = Mounted::new(&disk, &site.path("mnt"));
    let mut writer = Writer::start(&mounted.path);
    for round in 0..4 {
        writer.wait_for(20);
        daemon.kill();
        std::thread::sleep(Duration::from_millis(200 * round));
        daemon = site.start().await;
    }
    writer.wait_for(20);
    let count = writer.stop();
    check_written_files(&mounted.path, count);
    drop(mounted);
    check_file_system(&disk);
    daemon.end();
}

#[tokio::test]
async fn what_was_flushed_is_there_after_the_daemon_is_killed() {
    let site = Site::new();
    let mut daemon = site.start().await;
    let disk = daemon.disk(&site, "disk", 64 * MIB).await;
    for round in 1..6 {
        let file = read_write(&disk);
        for number in 0..200 {
            file.write_all_at(&block(number, round), number * 4096 * 7).unwrap();
        }
        file.sync_all().unwrap();
        drop(file);
        daemon.kill();
        daemon = site.start().await;
        let file = read_write(&disk);
        for number in 0..200 {
            let mut bytes = [0; 4096];
            file.read_exact_at(&mut bytes, number * 4096 * 7).unwrap();
            assert!(bytes == block(number, round), "block {number} of round {round}");
        }
    }
    daemon.end();
}

#[tokio::test]
async fn devices_and_their_layers_are_the_same_after_a_restart() {
    let site = Site::new();
    let daemon = site.start().await;
    for name in ["one", "two"] {
        daemon.disk(&site, name, 16 * MIB).await;
    }
    daemon.client.restack_device("one", &site.path("sealed")).await.unwrap();
    let before = daemon.client.list_devices().await.unwrap();
    let inode = |name: &str| {
        std::os::unix::fs::MetadataExt::ino(&std::fs::metadata(site.mount_point().join(name)).unwrap())
    };
    let inodes = (inode("one"), inode("two"));
    daemon.kill();
    let daemon = site.start().await;
    assert_eq!(daemon.client.list_devices().await.unwrap(), before);
    assert_eq!((inode("one"), inode("two")), inodes);
    daemon.disk(&site, "three", MIB).await;
    assert!(inode("three") > inodes.1);
    daemon.end();
}

#[tokio::test]
async fn the_end_with_devices_leaves_them_waiting_and_without_devices_leaves_nothing() {
    let site = Site::new();
    let mut daemon = site.start().await;
    let disk = daemon.disk(&site, "disk", MIB).await;
    let file = read_write(&disk);
    let refused = daemon.client.shutdown(false).await;
    assert!(matches!(refused, Err(ClientError::Unsuitable(_))), "{refused:?}");
    daemon.client.shutdown(true).await.unwrap();
    assert!(daemon.child.wait().unwrap().success());
    assert_eq!(site.processes("fuse-keeper").len(), 1);
    let writer = std::thread::spawn(move || file.write_all_at(&block(0, 1), 0).unwrap());
    std::thread::sleep(Duration::from_millis(100));
    assert!(!writer.is_finished());

    let mut daemon = site.start().await;
    writer.join().unwrap();
    daemon.client.close_device("disk", true).await.unwrap();
    daemon.client.shutdown(false).await.unwrap();
    assert!(daemon.child.wait().unwrap().success());
    assert_eq!(site.mounts(), 0);
    assert!(site.processes("fuse-keeper").is_empty());
    let left: Vec<_> =
        std::fs::read_dir(site.path("run")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "only the empty mount point and the lock: {left:?}");
}

#[tokio::test]
async fn the_client_finds_the_next_daemon_by_itself() {
    let site = Site::new();
    let daemon = site.start().await;
    let client = daemon.client.clone();
    client.status().await.unwrap();
    daemon.kill();
    let gone = client.status().await;
    assert!(matches!(gone, Err(ClientError::Unreachable { .. })), "{gone:?}");
    let daemon = site.start().await;
    let status = client.status().await.unwrap();
    assert_eq!(status.process_id, daemon.child.id());
    daemon.end();
    let nobody = Client::connect(&site.socket()).await;
    assert!(matches!(nobody, Err(ClientError::Unreachable { .. })), "{nobody:?}");
}

#[tokio::test]
async fn a_second_daemon_on_the_same_directories_is_refused() {
    let site = Site::new();
    let daemon = site.start().await;
    let output =
        site.command().stderr(std::process::Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
    assert!(!output.status.success());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains(&format!("process {}", daemon.child.id())), "{message}");
    daemon.client.status().await.unwrap();
    daemon.end();
}

#[tokio::test]
async fn a_damaged_record_is_reported_and_others_are_served() {
    let site = Site::new();
    let daemon = site.start().await;
    let good = daemon.disk(&site, "good", MIB).await;
    read_write(&good).write_all_at(&block(0, 1), 0).unwrap();
    daemon.disk(&site, "bad", MIB).await;
    daemon.kill();
    let record = site.path("data/storaged/devices/bad.json");
    std::fs::write(&record, "{\"format\": 1, \"device").unwrap();
    let daemon = site.start().await;
    let mut bytes = [0; 4096];
    read_write(&good).read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == block(0, 1));
    let bad = daemon.client.get_device("bad").await.unwrap();
    assert!(bad.damage.contains("bad.json"), "{}", bad.damage);
    let again = daemon.client.create_device("bad", &[], Some(&site.path("uppers/bad")), MIB).await;
    assert!(matches!(&again, Err(ClientError::Damaged(text)) if text.contains("bad.json")), "{again:?}");
    daemon.client.close_device("bad", false).await.unwrap();
    assert!(record.with_extension("json.damaged").exists());
    assert!(matches!(daemon.client.get_device("bad").await, Err(ClientError::NotFound(_))));
    daemon.end();
}

#[tokio::test]
async fn a_damaged_layer_fails_its_device_only() {
    let site = Site::new();
    let daemon = site.start().await;
    for name in ["good", "bad"] {
        let path = daemon.disk(&site, name, MIB).await;
        read_write(&path).write_all_at(&block(0, 1), 0).unwrap();
        daemon.client.restack_device(name, &site.path(&format!("{name}.layer"))).await.unwrap();
    }
    daemon.kill();
    let layer = std::fs::OpenOptions::new().write(true).open(site.path("bad.layer")).unwrap();
    layer.set_len(layer.metadata().unwrap().len() - 4096).unwrap();
    let daemon = site.start().await;
    let mut bytes = [0; 4096];
    let read =
        |name: &str, bytes: &mut [u8]| read_write(&site.mount_point().join(name)).read_exact_at(bytes, 0);
    read("good", &mut bytes).unwrap();
    assert!(bytes == block(0, 1));
    assert_eq!(
        read("bad", &mut bytes).unwrap_err().raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    let damage = daemon.client.get_device("bad").await.unwrap().damage;
    assert!(damage.contains("bad.layer"), "{damage}");
    let flush = daemon.client.flush_device("bad").await;
    assert!(matches!(flush, Err(ClientError::Damaged(_))), "{flush:?}");
    daemon.client.close_device("bad", true).await.unwrap();
    assert_eq!(daemon.client.list_devices().await.unwrap().len(), 1);
    daemon.end();
}

#[tokio::test]
async fn a_dead_keeper_and_a_dead_daemon_are_replaced_and_open_devices_stay_marked_as_lost() {
    let site = Site::new();
    let daemon = site.start().await;
    let disk = daemon.disk(&site, "disk", MIB).await;
    let user = read_write(&disk);
    user.write_all_at(&block(0, 1), 0).unwrap();
    let keeper = site.processes("fuse-keeper");
    daemon.kill();
    keeper.into_iter().for_each(common::kill_process);
    let daemon = site.start().await;
    let mut bytes = [0; 4096];
    assert!(user.read_exact_at(&mut bytes, 0).is_err(), "the file of the lost mount works");
    read_write(&disk).read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == block(0, 1));
    assert_eq!(site.mounts(), 1);
    let damage = daemon.client.get_device("disk").await.unwrap().damage;
    assert!(damage.contains("made anew"), "{damage}");
    daemon.disk(&site, "new", MIB).await;
    // The next daemon finds the mount in order; the first user is lost all the same.
    daemon.kill();
    let daemon = site.start().await;
    assert!(user.read_exact_at(&mut bytes, 0).is_err());
    let damage = async |name| daemon.client.get_device(name).await.unwrap().damage;
    assert!(damage("disk").await.contains("made anew"));
    assert_eq!(damage("new").await, "");
    daemon.disk(&site, "disk", MIB).await;
    assert_eq!(damage("disk").await, "");
    daemon.end();
}

#[tokio::test]
async fn scratch_of_a_killed_import_is_removed_at_the_start() {
    let site = Site::new();
    let scratch = site.path("data/storaged/scratch");
    std::fs::create_dir_all(scratch.join("disk-1")).unwrap();
    std::fs::write(scratch.join("disk-1/upper.data"), "x").unwrap();
    let daemon = site.start().await;
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0);
    daemon.end();
}

#[tokio::test]
async fn a_full_disk_is_enospc_for_the_guest_and_passes() {
    let site = Site::new();
    let small = SmallDisk::new(&site.path("small"));
    let daemon = site.start().await;
    let device =
        daemon.client.create_device("disk", &[], Some(&small.path.join("upper")), 256 * MIB).await.unwrap();
    let file = read_write(Path::new(&device.path));
    let mut written = 0;
    let full = loop {
        match file.write_all_at(&block(written, 1), written * 4096) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    assert!(written > 500, "{written}");
    let restack = daemon.client.restack_device("disk", &small.path.join("sealed")).await;
    assert!(matches!(restack, Err(ClientError::NoSpace(_))), "{restack:?}");

    common::run(Command::new("mount").args(["-o", "remount,size=32m"]).arg(&small.path));
    for number in written..written + 500 {
        file.write_all_at(&block(number, 1), number * 4096).unwrap();
    }
    file.sync_all().unwrap();
    daemon.client.restack_device("disk", &small.path.join("sealed")).await.unwrap();
    let mut bytes = [0; 4096];
    for number in 0..written + 500 {
        file.read_exact_at(&mut bytes, number * 4096).unwrap();
        assert!(bytes == block(number, 1), "block {number}");
    }
    drop(file);
    daemon.client.close_device("disk", true).await.unwrap();
    daemon.end();
}

/// A file system of 4 MiB.
struct SmallDisk {
    path: std::path::PathBuf,
}

impl SmallDisk {
    fn new(path: &Path) -> Self {
        std::fs::create_dir_all(path).unwrap();
        common::run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=4m", "storaged-test"]).arg(path));
        Self { path: path.to_owned() }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(&self.path).status());
    }
}
