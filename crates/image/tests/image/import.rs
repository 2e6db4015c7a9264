//! Reuse, concurrency, cancellation and verification of imports.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use image::{Digest, ImageError, ImportOptions, Importer, Phase, Progress};
use tokio::sync::mpsc;

use crate::support::layout::{self, Layer};
use crate::support::mounted::Mounted;
use crate::support::tar::{Tar, file};
use crate::support::{Bench, VIRTUAL_SIZE_BYTES};

fn small(name: &str) -> Vec<u8> {
    Tar::new().add(file(name, name.as_bytes())).finish()
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_are_converted_once_and_shared_between_images() {
    let bench = Bench::new();
    let first = bench.import_layers(&[small("a"), small("b")]).await.unwrap();
    assert_eq!((first.reused_layer_count, first.virtual_size_bytes), (0, VIRTUAL_SIZE_BYTES));
    let again = bench.import_layers(&[small("a"), small("b")]).await.unwrap();
    assert_eq!((again.reused_layer_count, &again.layer_paths), (2, &first.layer_paths));
    assert_eq!(again.manifest_digest, first.manifest_digest);
    let other = bench.import_layers(&[small("a"), small("c")]).await.unwrap();
    assert_eq!((other.reused_layer_count, &other.layer_paths[0]), (1, &first.layer_paths[0]));
    assert_eq!(bench.disks.opened.load(Ordering::SeqCst), 3);
    // The same tar in another place of the stack is another layer.
    let swapped = bench.import_layers(&[small("b"), small("a")]).await.unwrap();
    assert_eq!(swapped.reused_layer_count, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_virtual_size_is_another_layer() {
    let bench = Bench::new();
    bench.import_layers(&[small("a")]).await.unwrap();
    let path = bench.directory.path().join("layout");
    let source = format!("oci:{}", path.display()).parse().unwrap();
    let (progress, _events) = mpsc::channel(8);
    let options = ImportOptions { virtual_size_bytes: Some(64 << 20), ..ImportOptions::default() };
    let image = bench.importer.import(&source, options, progress.clone()).await.unwrap();
    assert_eq!((image.reused_layer_count, image.virtual_size_bytes), (0, 64 << 20));
    let odd = ImportOptions { virtual_size_bytes: Some((64 << 20) + 512), ..ImportOptions::default() };
    assert!(matches!(bench.importer.import(&source, odd, progress).await, Err(ImageError::InvalidOption(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_imports_at_once_convert_each_layer_once() {
    let bench = Bench::new();
    let path = bench.directory.path().join("layout");
    let layers: Vec<Vec<u8>> = ["a", "b", "c"].map(small).to_vec();
    layout::write(&path, &layers.iter().map(|layer| Layer::plain(layer)).collect::<Vec<_>>());
    let source = format!("oci:{}", path.display());
    let (one, two, three) = tokio::join!(bench.import(&source), bench.import(&source), bench.import(&source));
    let paths = [one, two, three].map(|image| image.unwrap().layer_paths);
    assert!(paths.iter().all(|found| *found == paths[0]));
    assert_eq!(bench.disks.opened.load(Ordering::SeqCst), 3);
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_layer_is_refused_and_the_ones_below_are_kept() {
    let bench = Bench::new();
    let path = bench.directory.path().join("layout");
    let source = format!("oci:{}", path.display());
    let good = small("good");
    let bad = small("bad");
    let wrong_diff = Layer { diff: Digest::of(b"another"), ..Layer::plain(&bad) };
    layout::write(&path, &[Layer::plain(&good), wrong_diff]);
    let error = bench.import(&source).await.unwrap_err();
    assert!(
        matches!(&error, ImageError::DigestMismatch { what, .. } if what == "the uncompressed layer"),
        "{error}"
    );

    // The blob is not what its digest says.
    layout::write(&path, &[Layer::plain(&good), Layer::plain(&bad)]);
    let blob = path.join("blobs/sha256").join(Digest::of(&bad).hex());
    let mut changed = bad.clone();
    changed[512] ^= 1;
    fs::write(&blob, &changed).unwrap();
    let error = bench.import(&source).await.unwrap_err();
    assert!(matches!(&error, ImageError::DigestMismatch { what, .. } if what.contains("blob")), "{error}");
    // Damage that the unpacker stumbles over is still reported as a wrong digest.
    changed[0] ^= 1;
    fs::write(&blob, &changed).unwrap();
    let error = bench.import(&source).await.unwrap_err();
    assert!(matches!(&error, ImageError::DigestMismatch { .. }), "{error}");
    // Shorter and longer than announced.
    fs::write(&blob, &bad[..1024]).unwrap();
    let error = bench.import(&source).await.unwrap_err();
    assert!(matches!(&error, ImageError::SizeMismatch { .. }), "{error}");
    fs::write(&blob, [&bad[..], &[0; 512]].concat()).unwrap();
    let error = bench.import(&source).await.unwrap_err();
    assert!(matches!(&error, ImageError::SizeMismatch { .. }), "{error}");

    fs::write(&blob, &bad).unwrap();
    let image = bench.import(&source).await.unwrap();
    assert_eq!(image.reused_layer_count, 1, "the good layer was not kept");
    assert_eq!(bench.disks.opened.load(Ordering::SeqCst), 1 + 5 + 1);
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn progress_tells_phases_in_order() {
    let bench = Bench::new();
    let path = bench.directory.path().join("layout");
    layout::write(&path, &[Layer::plain(&small("a")), Layer::plain(&small("b"))]);
    let source = format!("oci:{}", path.display()).parse().unwrap();
    let (progress, mut events) = mpsc::channel::<Progress>(64);
    bench.importer.import(&source, ImportOptions::default(), progress).await.unwrap();
    let mut phases = Vec::new();
    while let Some(event) = events.recv().await {
        if phases.last() != Some(&(event.phase, event.layer_index)) {
            phases.push((event.phase, event.layer_index));
        }
    }
    let expected = [
        (Phase::Resolve, 0),
        (Phase::Convert, 0),
        (Phase::Finish, 0),
        (Phase::Convert, 1),
        (Phase::Finish, 1),
        (Phase::Finish, 2),
    ];
    assert_eq!(phases, expected);
}

/// A layer that takes a while: its tar comes through a slow pipe of a stand-in for the unpacking command.
fn slow_command(directory: &Path) -> Vec<std::ffi::OsString> {
    let script = directory.join("slow-unpack");
    let child = env!("CARGO_BIN_EXE_image-unpack");
    // Holds the data back after the mount is made, as a slow disk would.
    let text = format!("#!/bin/sh\n(cat; exec sleep 3) | exec {child} \"$@\"\n");
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    vec![script.into_os_string()]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_import_leaves_nothing_and_the_next_one_goes_on() {
    let bench = Bench::new();
    let path = bench.directory.path().join("layout");
    layout::write(
        &path,
        &[
            Layer::plain(&small("a")),
            Layer::plain(&Tar::new().add(file("big", &vec![b'x'; 150 << 20])).finish()),
        ],
    );
    let source = format!("oci:{}", path.display());
    let importer = bench.importer.clone();
    let parsed = source.parse().unwrap();
    let (progress, mut events) = mpsc::channel::<Progress>(64);
    let import =
        tokio::spawn(
            async move { importer.import(&parsed, ImportOptions::default(), progress).await.map(drop) },
        );
    // In the middle of the second layer.
    loop {
        let event = events.recv().await.expect("the import ended before it was cancelled");
        if event.layer_index == 1 && event.done_bytes > 10 << 20 {
            break;
        }
    }
    import.abort();
    assert!(import.await.unwrap_err().is_cancelled());
    let deadline = Instant::now() + Duration::from_secs(30);
    while bench.disks.open_now.load(Ordering::SeqCst) > 0 {
        assert!(Instant::now() < deadline, "the scratch disk is still open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    bench.assert_clean();
    let image = bench.import(&source).await.unwrap();
    assert_eq!(image.reused_layer_count, 1);
    let size = fs::metadata(Mounted::new(&image.layer_paths[1]).path("big")).unwrap().len();
    assert_eq!(size, 150 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_unpacker_is_an_error_and_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("dies");
    fs::write(&script, "#!/bin/sh\necho boom >&2\nkill -9 $$\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let bench = Bench::with(|config| config.unpack_command = vec![script.into_os_string()]);
    let error = bench.import_layers(&[small("a")]).await.unwrap_err().to_string();
    assert!(error.contains("without a report") && error.contains("boom"), "{error}");
    bench.assert_clean();
}

/// Starts the unpacker itself on a fresh disk, gives it half a member, and waits until it has its loop device.
fn half_fed_unpacker(directory: &Path) -> (Child, PathBuf) {
    let (disk, mount_point) = (directory.join("disk"), directory.join("mount"));
    fs::File::create(&disk).unwrap().set_len(1 << 30).unwrap();
    fs::create_dir(&mount_point).unwrap();
    assert!(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(&disk).status().unwrap().success());
    let request = serde_json::json!({
        "device": disk, "mount_point": mount_point, "loop_timeout_ms": 30_000, "trailer_bytes": 0,
        "limits": {"members": 100, "extension_bytes": 1024, "path_components": 10},
    });
    let mut child = Command::new(env!("CARGO_BIN_EXE_image-unpack"))
        .arg(request.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let archive = Tar::new().add(file("big", &vec![b'x'; 64 << 20])).finish();
    child.stdin.as_mut().unwrap().write_all(&archive[..40 << 20]).unwrap();
    assert!(has_loop_device(&disk), "the unpacker has read its input without a loop device");
    (child, disk)
}

fn has_loop_device(disk: &Path) -> bool {
    fs::read_dir("/sys/block").unwrap().any(|entry| {
        let backing = fs::read_to_string(entry.unwrap().path().join("loop/backing_file"));
        backing.is_ok_and(|backing| backing.trim_end() == disk.to_str().unwrap())
    })
}

#[test]
fn a_killed_unpacker_takes_its_mount_and_loop_device_with_it() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, disk) = half_fed_unpacker(directory.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while has_loop_device(&disk) {
        assert!(Instant::now() < deadline, "the loop device is left");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(directory.path().to_str().unwrap()), "the mount is left, or was ever seen here");
}

#[test]
fn an_unpacker_whose_importer_dies_ends_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let (mut child, disk) = half_fed_unpacker(directory.path());
    // All that a killed importer does.
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(report.contains("cut off"), "{report}");
    assert!(!has_loop_device(&disk), "the loop device is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unpacker_that_hangs_is_ended_by_the_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let command = slow_command(directory.path());
    let bench = Bench::with(|config| {
        config.unpack_command = command;
        config.limits.finish_timeout = Duration::from_millis(500);
    });
    let error = bench.import_layers(&[small("a")]).await.unwrap_err().to_string();
    assert!(error.contains("not written out within"), "{error}");
    // The script is gone, the unpacker behind it ends with its input.
    tokio::time::sleep(Duration::from_secs(4)).await;
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_importer_process_leaves_its_layers_usable() {
    // What a SIGKILL leaves behind: a partial layer and a scratch directory.
    let bench = Bench::new();
    let image = bench.import_layers(&[small("a")]).await.unwrap();
    let config = Bench::config(bench.directory.path());
    let chain = image.layer_paths[0].file_stem().unwrap().to_str().unwrap().to_owned();
    let partial = config.layers_directory.join(format!("{chain}.{}.partial", "0".repeat(32)));
    fs::write(&partial, "half").unwrap();
    let scratch = config.scratch_directory.join("convert-0123");
    fs::create_dir_all(scratch.join("mount")).unwrap();
    let foreign = config.scratch_directory.join("foreign");
    fs::create_dir(&foreign).unwrap();
    drop(image);
    let Bench { directory, disks, importer } = bench;
    drop(importer);
    let importer = Importer::new(config, disks.clone()).unwrap();
    assert!(!partial.exists() && !scratch.exists());
    assert!(foreign.exists(), "a foreign directory was removed");
    fs::remove_dir(&foreign).unwrap();
    let bench = Bench { directory, disks, importer: importer.into() };
    assert_eq!(bench.import_layers(&[small("a")]).await.unwrap().reused_layer_count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn collecting_spares_images_kept_in_use_or_just_imported() {
    let bench = Bench::new();
    let kept = bench.import_layers(&[small("base"), small("kept")]).await.unwrap();
    let held = bench.import_layers(&[small("base"), small("held")]).await.unwrap();
    let loose = bench.import_layers(&[small("base"), small("loose")]).await.unwrap();
    let (kept_paths, loose_paths) = (kept.layer_paths.clone(), loose.layer_paths.clone());
    drop((kept, loose));
    let (count, bytes) = bench.importer.collect(&kept_paths, &[]).await.unwrap();
    assert_eq!(count, 1);
    assert!(bytes > 0);
    assert!(!loose_paths[1].exists() && loose_paths[0].exists());
    assert!(held.layer_paths.iter().all(|path| path.exists()), "an image just imported was collected");
    let held_paths = held.layer_paths.clone();
    drop(held);
    assert_eq!(bench.importer.collect(&[], &held_paths[1..]).await.unwrap().0, 1);
    assert!(held_paths.iter().all(|path| path.exists()), "a layer below one in use was collected");
    assert_eq!(bench.importer.collect(&[], &[]).await.unwrap().0, 2);
    let again = bench.import_layers(&[small("base"), small("kept")]).await.unwrap();
    assert_eq!(again.reused_layer_count, 0);
}
