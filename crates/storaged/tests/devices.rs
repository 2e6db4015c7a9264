//! Devices through the daemon's socket: making, using, restacking, closing, and what a request may not do.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{
    MIB, Mounted, Site, Writer, block, check_file_system, check_written_files, make_file_system, read_write,
};
use storaged::ClientError;

#[tokio::test]
async fn a_device_is_made_used_and_removed_without_a_trace() {
    let site = Site::new();
    let daemon = site.start().await;
    let path = daemon.disk(&site, "disk", 64 * MIB).await;
    assert_eq!(path, site.mount_point().join("disk"));
    let file = read_write(&path);
    file.write_all_at(&block(1, 1), 8 * MIB).unwrap();
    daemon.client.flush_device("disk").await.unwrap();
    let device = daemon.client.get_device("disk").await.unwrap();
    assert_eq!(device.virtual_size_bytes, 64 * MIB);
    assert!(!device.read_only);
    assert!(device.upper_data_bytes >= 4096, "{}", device.upper_data_bytes);
    assert_eq!(device.damage, "");
    assert_eq!(daemon.client.list_devices().await.unwrap(), [device]);
    let status = daemon.client.status().await.unwrap();
    assert_eq!((status.device_count, status.front_end.as_str()), (1, "fuse"));
    assert_eq!(Path::new(&status.mount_point), site.mount_point());
    drop(file);

    daemon.client.close_device("disk", true).await.unwrap();
    daemon.client.close_device("disk", true).await.unwrap();
    assert!(!path.exists());
    assert!(!site.path("uppers/disk").exists());
    assert!(matches!(daemon.client.get_device("disk").await, Err(ClientError::NotFound(_))));
    assert_eq!(std::fs::read_dir(site.path("data/storaged/devices")).unwrap().count(), 0);
    daemon.end();
}

#[tokio::test]
async fn making_a_device_again_answers_the_same_one_and_another_one_is_refused() {
    let site = Site::new();
    let daemon = site.start().await;
    let client = &daemon.client;
    let upper = site.path("upper");
    let first = client.create_device("disk", &[], Some(&upper), MIB).await.unwrap();
    let again = client.create_device("disk", &[], Some(&upper), MIB).await.unwrap();
    assert_eq!(first, again);
    let sealed = site.path("sealed");
    let restacked = client.restack_device("disk", &sealed).await.unwrap();
    assert_eq!(restacked.lower_paths, [sealed.to_str().unwrap()]);
    // The request that made it is still the request that made it.
    assert_eq!(client.create_device("disk", &[], Some(&upper), MIB).await.unwrap(), restacked);
    assert_eq!(client.restack_device("disk", &sealed).await.unwrap(), restacked);
    for result in [
        client.create_device("disk", std::slice::from_ref(&sealed), Some(&upper), MIB).await,
        client.create_device("disk", &[], Some(&site.path("other")), MIB).await,
        client.create_device("disk", &[], Some(&upper), 2 * MIB).await,
    ] {
        assert!(matches!(result, Err(ClientError::AlreadyExists(_))), "{result:?}");
    }
    daemon.end();
}

#[tokio::test]
async fn requests_that_cannot_succeed_say_why() {
    let site = Site::new();
    let daemon = site.start().await;
    let client = &daemon.client;
    let upper = site.path("upper");
    for id in ["", "UPPER", "a/b", "..", "a.b", "x y", &"x".repeat(65)] {
        let result = client.create_device(id, &[], Some(&upper), MIB).await;
        assert!(matches!(result, Err(ClientError::Invalid(_))), "{id:?}: {result:?}");
    }
    let invalid = [
        client.create_device("a", &[], None, MIB).await,
        client.create_device("a", &[], Some(&upper), 1000).await,
        client.create_device("a", &[], Some(&upper), 0).await,
        client.create_device("a", &[], Some(Path::new("relative")), MIB).await,
        client.create_device("a", &[], Some(&site.path("x/../y")), MIB).await,
        client.create_device("a", &vec![PathBuf::from("/layer"); 255], Some(&upper), MIB).await,
    ];
    for result in invalid {
        assert!(matches!(result, Err(ClientError::Invalid(_))), "{result:?}");
    }
    let missing = site.path("missing-layer");
    let result = client.create_device("a", std::slice::from_ref(&missing), Some(&upper), 0).await;
    assert!(
        matches!(&result, Err(ClientError::Unsuitable(text)) if text.contains("missing-layer")),
        "{result:?}"
    );
    std::fs::write(&missing, vec![7; 100_000]).unwrap();
    let result = client.create_device("a", &[missing], Some(&upper), 0).await;
    assert!(
        matches!(&result, Err(ClientError::Unsuitable(text)) if text.contains("missing-layer")),
        "{result:?}"
    );
    assert!(client.list_devices().await.unwrap().is_empty());
    assert!(!upper.join("upper.data").exists());
    daemon.end();
}

#[tokio::test]
async fn a_directory_with_somebodys_upper_is_not_taken() {
    let site = Site::new();
    let daemon = site.start().await;
    let path = daemon.disk(&site, "first", MIB).await;
    let taken = daemon.client.create_device("second", &[], Some(&site.path("uppers/first")), MIB).await;
    assert!(matches!(taken, Err(ClientError::Unsuitable(_))), "{taken:?}");
    read_write(&path).write_all_at(&block(0, 1), 0).unwrap();
    daemon.client.close_device("first", false).await.unwrap();
    let taken = daemon.client.create_device("second", &[], Some(&site.path("uppers/first")), MIB).await;
    assert!(matches!(taken, Err(ClientError::Unsuitable(_))), "{taken:?}");
    assert!(site.path("uppers/first/upper.data").exists());
    daemon.end();
}

#[tokio::test]
async fn devices_on_the_same_layers_are_private() {
    let site = Site::new();
    let daemon = site.start().await;
    let base = daemon.disk(&site, "base", 16 * MIB).await;
    read_write(&base).write_all_at(&block(5, 1), 5 * 4096).unwrap();
    let sealed = site.path("base.layer");
    daemon.client.restack_device("base", &sealed).await.unwrap();
    daemon.client.close_device("base", true).await.unwrap();

    let lowers = [sealed];
    let mut disks = Vec::new();
    for name in ["one", "two", "three"] {
        disks.push(read_write(&daemon.disk_on(&site, name, &lowers, 0).await));
    }
    let read_only = daemon.client.create_device("read-only", &lowers, None, 0).await.unwrap();
    assert!(read_only.read_only);
    disks[1].write_all_at(&block(5, 2), 5 * 4096).unwrap();
    for (disk, seed) in disks.iter().zip([1, 2, 1]) {
        let mut bytes = [0; 4096];
        disk.read_exact_at(&mut bytes, 5 * 4096).unwrap();
        assert!(bytes == block(5, seed));
    }
    let error = std::fs::OpenOptions::new().write(true).open(&read_only.path).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let refused = daemon.client.restack_device("read-only", &site.path("x")).await;
    assert!(matches!(refused, Err(ClientError::Unsuitable(_))), "{refused:?}");
    daemon.end();
}

#[tokio::test]
async fn a_mounted_file_system_is_restacked_under_a_running_writer() {
    let site = Site::new();
    let daemon = site.start().await;
    let disk = daemon.disk(&site, "disk", 512 * MIB).await;
    make_file_system(&disk);
    let mounted = Mounted::new(&disk, &site.path("mnt"));
    let mut writer = Writer::start(&mounted.path);
    let mut lowers = Vec::new();
    for round in 0..4 {
        writer.wait_for(15);
        let sealed = site.path(&format!("sealed-{round}"));
        let device = daemon.client.restack_device("disk", &sealed).await.unwrap();
        lowers.push(sealed.to_str().unwrap().to_owned());
        assert_eq!(device.lower_paths, lowers);
    }
    writer.wait_for(15);
    let count = writer.stop();
    check_written_files(&mounted.path, count);
    drop(mounted);
    check_file_system(&disk);

    // The sealed layers alone are a file system as it was at that moment: consistent after its journal is replayed.
    let lowers: Vec<_> = lowers.iter().map(PathBuf::from).collect();
    let copy = daemon.disk_on(&site, "copy", &lowers, 0).await;
    let mounted = Mounted::new(&copy, &site.path("mnt"));
    check_written_files(&mounted.path, 55);
    drop(mounted);
    check_file_system(&copy);
    // And without them, only the last upper is left in its directory.
    let names = std::fs::read_dir(site.path("uppers/disk")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["upper-4.data", "upper-4.index"]);
    daemon.end();
}

#[tokio::test]
async fn a_restack_that_cannot_succeed_changes_nothing() {
    let site = Site::new();
    let daemon = site.start().await;
    let disk = daemon.disk(&site, "disk", MIB).await;
    let file = read_write(&disk);
    file.write_all_at(&block(0, 1), 0).unwrap();
    std::fs::write(site.path("exists"), "x").unwrap();
    for (sealed, expected) in [
        (site.path("exists"), "exists already"),
        (site.path("no/such/directory/layer"), "cannot"),
        (PathBuf::from("/dev/shm/storaged-test-other-file-system"), "cannot"),
    ] {
        let error = daemon.client.restack_device("disk", &sealed).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        file.write_all_at(&block(1, 2), 4096).unwrap();
    }
    assert_eq!(std::fs::read_to_string(site.path("exists")).unwrap(), "x");
    daemon.client.restack_device("disk", &site.path("sealed")).await.unwrap();
    for number in 0..2 {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, number * 4096).unwrap();
        assert!(bytes == block(number, number + 1));
    }
    daemon.end();
}

#[tokio::test]
async fn a_discard_of_the_file_system_reaches_the_layer() {
    let site = Site::new();
    let daemon = site.start().await;
    let disk = daemon.disk(&site, "disk", 128 * MIB).await;
    make_file_system(&disk);
    let mounted = Mounted::new(&disk, &site.path("mnt"));
    std::fs::write(mounted.path.join("big"), vec![0x5a; 16 << 20]).unwrap();
    common::run(Command::new("sync").arg("-f").arg(&mounted.path));
    std::fs::remove_file(mounted.path.join("big")).unwrap();
    common::run(Command::new("sync").arg("-f").arg(&mounted.path));
    common::run(Command::new("fstrim").arg(&mounted.path));
    drop(mounted);
    // Nothing of the file's content can be read any more.
    let file = read_write(&disk);
    let mut chunk = vec![0; 1 << 20];
    for number in 0..128 {
        file.read_exact_at(&mut chunk, number * MIB).unwrap();
        assert!(!chunk.windows(4096).step_by(4096).any(|block| block.iter().all(|byte| *byte == 0x5a)));
    }
    daemon.end();
}

#[tokio::test]
async fn two_hundred_devices_come_and_go_and_leave_nothing() {
    let site = Site::new();
    let daemon = site.start().await;
    let descriptors = |daemon: &common::Daemon| {
        std::fs::read_dir(format!("/proc/{}/fd", daemon.child.id())).unwrap().count()
    };
    daemon.disk(&site, "warm-up", MIB).await;
    daemon.client.close_device("warm-up", true).await.unwrap();
    let before = descriptors(&daemon);
    for number in 0..200 {
        let name = format!("disk-{number}");
        let path = daemon.disk(&site, &name, MIB).await;
        read_write(&path).write_all_at(&block(number, 1), 0).unwrap();
        daemon.client.close_device(&name, true).await.unwrap();
    }
    assert_eq!(descriptors(&daemon), before);
    assert!(daemon.client.list_devices().await.unwrap().is_empty());
    assert_eq!(std::fs::read_dir(site.mount_point()).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(site.path("uppers")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(site.path("data/storaged/devices")).unwrap().count(), 0);
    daemon.end();
    assert_eq!(site.mounts(), 0);
    assert!(site.processes("fuse-keeper").is_empty());
}

#[tokio::test]
async fn the_socket_is_for_the_owner_only() {
    let site = Site::new();
    let daemon = site.start().await;
    let mode = std::fs::metadata(site.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    daemon.end();
    assert!(!site.socket().exists());
}
