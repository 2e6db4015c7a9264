//! Local sources: layouts with several images, `docker save` archives, root file system tars.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use image::{Digest, ImageError};
use serde_json::json;

use crate::support::Bench;
use crate::support::layout::{self, Layer};
use crate::support::mounted::Mounted;
use crate::support::tar::{Tar, file, symlink};

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn content(layer: &Path, name: &str) -> String {
    fs::read_to_string(Mounted::new(layer).path(name)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_of_every_compression_are_read_whatever_their_media_type() {
    let tar = |name: &str| Tar::new().add(file(name, name.as_bytes())).finish();
    let (one, two, three, four) = (tar("one"), tar("two"), tar("three"), tar("four"));
    let plain_type = "application/vnd.oci.image.layer.v1.tar";
    // Two gzip members, two zstd frames with a skippable one before.
    let members = [gzip(&two[..700]), gzip(&two[700..])].concat();
    let frames = [
        &[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..],
        &zstd::encode_all(&three[..700], 3).unwrap(),
        &zstd::encode_all(&three[700..], 3).unwrap(),
    ]
    .concat();
    let bench = Bench::new();
    let path = bench.directory.path().join("layout");
    layout::write(
        &path,
        &[
            Layer::compressed(&one, gzip(&one), plain_type),
            Layer::compressed(&two, members, "application/vnd.docker.image.rootfs.diff.tar.gzip"),
            Layer::compressed(&three, frames, "application/vnd.oci.image.layer.v1.tar+gzip"),
            Layer::compressed(&four, four.clone(), "application/vnd.oci.image.layer.v1.tar+zstd"),
        ],
    );
    let image = bench.import(&format!("oci:{}", path.display())).await.unwrap();
    let mounted = Mounted::new(&image.layer_paths[3]);
    for name in ["one", "two", "three", "four"] {
        assert_eq!(fs::read_to_string(mounted.path(name)).unwrap(), name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_compression_is_refused() {
    let tar = Tar::new().add(file("a", &[b'x'; 100_000])).finish();
    let whole = gzip(&tar);
    let cut = whole[..whole.len() - 20].to_vec();
    let trailing = [&whole[..], b"garbage"].concat();
    let zstd_cut = {
        let all = zstd::encode_all(&tar[..], 3).unwrap();
        all[..all.len() - 10].to_vec()
    };
    for blob in [cut, trailing, zstd_cut] {
        let bench = Bench::new();
        let path = bench.directory.path().join("layout");
        layout::write(&path, &[Layer::compressed(&tar, blob, "application/vnd.oci.image.layer.v1.tar+gzip")]);
        let error = bench.import(&format!("oci:{}", path.display())).await.unwrap_err();
        assert!(matches!(error, ImageError::Damaged { .. }), "{error}");
        bench.assert_clean();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_chosen_by_platform_and_by_tag() {
    let bench = Bench::new();
    let path = bench.directory.path().join("layout");
    fs::create_dir_all(&path).unwrap();
    let tar = |name: &str| Tar::new().add(file("which", name.as_bytes())).finish();
    let image = |name: &str, architecture: &str, tag: &str| {
        let mut descriptor = layout::write_image(&path, &[Layer::plain(&tar(name))], architecture);
        descriptor["platform"] = json!({"os": "linux", "architecture": architecture});
        descriptor["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        descriptor
    };
    let (arm, amd, old) =
        (image("arm", "arm64", "v2"), image("amd", "amd64", "v2"), image("old", "amd64", "v1"));
    // An attestation, as BuildKit adds.
    let mut attestation = arm.clone();
    attestation["platform"] = json!({"os": "unknown", "architecture": "unknown"});
    layout::write_index(&path, &[attestation, arm.clone(), amd.clone(), old]);
    let source = format!("oci:{}", path.display());
    let found = bench.import(&source).await.unwrap();
    assert_eq!(content(&found.layer_paths[0], "which"), "amd");
    let found = bench.import(&format!("{source}:v1")).await.unwrap();
    assert_eq!(content(&found.layer_paths[0], "which"), "old");
    let error = bench.import(&format!("{source}:v3")).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error}");
    // An index inside the index.
    let nested = serde_json::to_vec(&json!({"schemaVersion": 2, "manifests": [arm.clone(), amd]})).unwrap();
    layout::write_index(
        &path,
        &[layout::descriptor(&path, "application/vnd.oci.image.index.v1+json", &nested)],
    );
    assert_eq!(bench.import(&source).await.unwrap().reused_layer_count, 1);
    layout::write_index(&path, &[arm]);
    let error = bench.import(&source).await.unwrap_err();
    assert!(
        matches!(&error, ImageError::WrongPlatform { available, .. } if available == "linux/arm64"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn documents_that_contradict_themselves_are_refused() {
    let bench = Bench::new();
    let path = bench.directory.path().join("layout");
    let source = format!("oci:{}", path.display());
    let error = bench.import(&source).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error}");
    let tar = Tar::new().finish();
    layout::write(&path, &[Layer::plain(&tar)]);
    let good = layout::write_image(&path, &[Layer::plain(&tar)], "amd64");
    let manifest_of = |document: serde_json::Value| {
        let text = serde_json::to_vec(&document).unwrap();
        layout::write_index(
            &path,
            &[layout::descriptor(&path, "application/vnd.oci.image.manifest.v1+json", &text)],
        );
    };
    let config = json!({"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": []}});
    let config = layout::descriptor(&path, "c", &serde_json::to_vec(&config).unwrap());
    let layer = layout::descriptor(&path, "application/vnd.oci.image.layer.v1.tar", &tar);
    let typed = |kind: &str| layout::descriptor(&path, kind, &tar);
    for document in [
        json!({"schemaVersion": 1, "fsLayers": []}),
        json!({"schemaVersion": 2}),
        json!({"schemaVersion": 2, "config": config, "layers": [layer]}),
        json!({"schemaVersion": 2, "config": config, "layers": [], "manifests": []}),
        json!({"schemaVersion": 2, "config": config, "layers": []}),
        json!({"schemaVersion": 2, "config": config, "layers": [typed("application/vnd.oci.image.layer.v1.tar+encrypted")]}),
        json!({"schemaVersion": 2, "config": config, "layers": [typed("application/wasm")]}),
        json!({"schemaVersion": 2, "config": config, "layers": vec![layer.clone(); 255]}),
        json!({"schemaVersion": 2, "config": {"digest": "sha256:../../../etc/passwd", "size": 1}, "layers": []}),
        json!([1, 2]),
    ] {
        manifest_of(document.clone());
        assert!(bench.import(&source).await.is_err(), "{document}");
    }
    // A manifest whose size is not the announced one.
    let mut wrong = good;
    wrong["size"] = json!(1);
    layout::write_index(&path, &[wrong]);
    assert!(matches!(bench.import(&source).await, Err(ImageError::SizeMismatch { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn docker_archives_of_both_generations_are_read() {
    let bench = Bench::new();
    let one = Tar::new().add(file("a", b"1")).finish();
    let two = Tar::new().add(file("a", b"2")).finish();
    let config = serde_json::to_vec(&json!({
        "os": "linux", "architecture": "amd64",
        "rootfs": {"type": "layers", "diff_ids": [Digest::of(&one), Digest::of(&two), Digest::of(&one)]},
    }))
    .unwrap();
    let name = format!("{}.json", Digest::of(&config).hex());
    let manifest = |tags: &[&str]| json!({"Config": name, "RepoTags": tags, "Layers": ["l1/layer.tar", "l2/layer.tar", "l3/layer.tar"]});
    let archive = |images: serde_json::Value| {
        Tar::new()
            .add(file(&name, &config))
            .add(file("./l1/layer.tar", &one))
            .add(file("l2/layer.tar", &two))
            // A layer that occurs twice is stored once.
            .add(symlink("l3/layer.tar", "../l1/layer.tar"))
            .add(file("manifest.json", &serde_json::to_vec(&images).unwrap()))
            .finish()
    };
    let path = bench.directory.path().join("save.tar");
    let source = format!("docker-archive:{}", path.display());
    fs::write(&path, archive(json!([manifest(&["app:1"])]))).unwrap();
    let image = bench.import(&source).await.unwrap();
    assert_eq!(image.layer_paths.len(), 3);
    assert_eq!(content(&image.layer_paths[2], "a"), "1");
    assert_eq!(image.manifest_digest, Digest::of(&config));
    // Compressed as a whole.
    fs::write(&path, gzip(&archive(json!([manifest(&["app:1"]), manifest(&["app:2"])])))).unwrap();
    assert_eq!(bench.import(&format!("{source}:app:2")).await.unwrap().reused_layer_count, 3);
    let error = bench.import(&source).await.unwrap_err().to_string();
    assert!(error.contains("app:1, app:2"), "{error}");
    let error = bench.import(&format!("{source}:app:3")).await.unwrap_err();
    assert!(matches!(error, ImageError::NotFound { .. }), "{error}");
    // Cut off within a layer.
    let whole = archive(json!([manifest(&["app:1"])]));
    fs::write(&path, &whole[..3000]).unwrap();
    assert!(bench.import(&source).await.is_err());

    // What skopeo writes, and an OCI layout in a tar.
    let layout_path = bench.directory.path().join("layout");
    layout::write(&layout_path, &[Layer::plain(&one), Layer::plain(&two)]);
    for (kind, name) in [("docker-archive", "skopeo.tar"), ("oci-archive", "oci.tar")] {
        let written = bench.directory.path().join(name);
        let copied = Command::new("skopeo")
            .args(["copy", "--quiet"])
            .arg(format!("oci:{}", layout_path.display()))
            .arg(format!("{kind}:{}:app:1", written.display()))
            .status();
        assert!(copied.unwrap().success(), "skopeo failed");
        let image = bench.import(&format!("docker-archive:{}", written.display())).await.unwrap();
        assert_eq!((image.layer_paths.len(), image.reused_layer_count), (2, 2), "{kind}");
    }
    bench.assert_clean();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_root_file_system_is_one_layer_in_every_compression() {
    let bench = Bench::new();
    let tar = Tar::new().add(file("etc/os-release", b"ID=test\n")).finish();
    let zstd = zstd::encode_all(&tar[..], 3).unwrap();
    let mut reused = Vec::new();
    for (name, bytes) in [("plain.tar", tar.clone()), ("gzip.tar.gz", gzip(&tar)), ("zstd.tar.zst", zstd)] {
        let path = bench.directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        let image = bench.import(&format!("rootfs:{}", path.display())).await.unwrap();
        assert_eq!(image.layer_paths.len(), 1);
        assert_eq!(content(&image.layer_paths[0], "etc/os-release"), "ID=test\n");
        assert!(image.config_json.contains(&Digest::of(&tar).to_string()));
        reused.push(image.reused_layer_count);
    }
    assert_eq!(reused, [0, 1, 1]);
    let error = bench.import("rootfs:/does/not/exist").await.unwrap_err().to_string();
    assert!(error.contains("/does/not/exist"), "{error}");
    let error = bench.import("rootfs:/dev/zero").await.unwrap_err().to_string();
    assert!(error.contains("not a regular file"), "{error}");
}
