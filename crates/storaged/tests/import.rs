//! Importing an image through the daemon, and collecting what nobody uses.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{MIB, Mounted, Site, check_file_system};
use protocol::storage::import_event::Event;
use protocol::storage::{ImportImageRequest, ImportedImage};
use storaged::{Client, ClientError};

/// A root file system as a tar, with one file of this content.
fn root_file_system(site: &Site, name: &str, content: &[u8]) -> PathBuf {
    let tree = site.path(&format!("{name}.tree"));
    std::fs::create_dir_all(tree.join("etc")).unwrap();
    std::fs::write(tree.join("etc/content"), content).unwrap();
    let tar = site.path(&format!("{name}.tar"));
    common::run(Command::new("tar").arg("-cf").arg(&tar).arg("-C").arg(&tree).arg("."));
    tar
}

fn request(tar: &std::path::Path) -> ImportImageRequest {
    ImportImageRequest {
        source: format!("rootfs:{}", tar.display()),
        virtual_size_bytes: 256 * MIB,
        username: None,
        password: None,
    }
}

async fn import(client: &Client, request: ImportImageRequest) -> (Vec<String>, ImportedImage) {
    let mut phases = Vec::new();
    let mut import = client.import_image(request).await.unwrap();
    loop {
        match import.next().await.unwrap() {
            Event::Progress(progress) => phases.push(progress.phase),
            Event::Done(image) => return (phases, image),
        }
    }
}

#[tokio::test]
async fn an_imported_image_is_a_disk_and_its_layers_are_kept_while_they_are_used() {
    let site = Site::new();
    let tar = root_file_system(&site, "one", b"imported\n");
    let daemon = site.start().await;
    let client = &daemon.client;
    let (phases, image) = import(client, request(&tar)).await;
    assert!(phases.iter().any(|phase| phase == "convert"), "{phases:?}");
    assert_eq!((image.layer_paths.len(), image.reused_layer_count), (1, 0));
    assert_eq!(image.virtual_size_bytes, 256 * MIB);
    assert!(image.manifest_digest.starts_with("sha256:"));

    let (_, again) = import(client, request(&tar)).await;
    assert_eq!((&again.layer_paths, again.reused_layer_count), (&image.layer_paths, 1));

    let lowers: Vec<_> = image.layer_paths.iter().map(PathBuf::from).collect();
    let disk = daemon.disk_on(&site, "disk", &lowers, 0).await;
    let mounted = Mounted::new(&disk, &site.path("mnt"));
    assert_eq!(std::fs::read_to_string(mounted.path.join("etc/content")).unwrap(), "imported\n");
    drop(mounted);
    check_file_system(&disk);
    assert_eq!(client.list_devices().await.unwrap().len(), 1, "scratch disks are no devices");

    // A new daemon does not remember who imported; the device alone keeps the layer.
    daemon.kill();
    let daemon = site.start().await;
    assert_eq!(daemon.client.collect_layers(&[]).await.unwrap().removed_count, 0);
    daemon.client.close_device("disk", true).await.unwrap();
    assert_eq!(daemon.client.collect_layers(&lowers).await.unwrap().removed_count, 0);
    let removed = daemon.client.collect_layers(&[]).await.unwrap();
    assert_eq!(removed.removed_count, 1);
    assert!(removed.removed_bytes > 0);
    assert!(!lowers[0].exists());
    daemon.end();
}

#[tokio::test]
async fn imports_that_cannot_succeed_say_why() {
    let site = Site::new();
    let daemon = site.start().await;
    let missing = request(&site.path("missing.tar"));
    let no_source = ImportImageRequest { source: String::new(), ..missing.clone() };
    let half = ImportImageRequest { username: Some("somebody".into()), ..missing.clone() };
    let failure = async |request| match daemon.client.import_image(request).await {
        Err(error) => error,
        Ok(mut import) => loop {
            match import.next().await {
                Ok(Event::Progress(_)) => {}
                Ok(Event::Done(image)) => panic!("{image:?}"),
                Err(error) => break error,
            }
        },
    };
    let error = failure(missing).await;
    assert!(error.to_string().contains("missing.tar"), "{error}");
    let error = failure(no_source).await;
    assert!(matches!(error, ClientError::Invalid(_)), "{error}");
    let error = failure(half).await;
    assert!(matches!(error, ClientError::Invalid(_)), "{error}");
    daemon.end();
}

#[tokio::test]
async fn dropping_an_import_cancels_it_and_leaves_no_scratch() {
    let site = Site::new();
    let tar = root_file_system(&site, "large", &vec![0x42; 100 << 20]);
    let daemon = site.start().await;
    let mut import = daemon.client.import_image(request(&tar)).await.unwrap();
    while !matches!(import.next().await.unwrap(), Event::Progress(progress) if progress.phase == "convert") {}
    drop(import);
    let deadline = Instant::now() + Duration::from_secs(60);
    let scratch = site.path("data/storaged/scratch");
    let left = || {
        std::fs::read_dir(&scratch).unwrap().count() + std::fs::read_dir(site.mount_point()).unwrap().count()
    };
    while left() > 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let layers: Vec<_> =
        std::fs::read_dir(site.path("data/layers")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(
        !layers.iter().any(|path| path.extension().is_some_and(|extension| extension == "layer")),
        "{layers:?}"
    );
    daemon.end();
    assert_eq!(site.mounts(), 0);
}
