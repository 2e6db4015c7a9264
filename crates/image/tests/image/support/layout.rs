//! Writing OCI image layouts.

use std::fs;
use std::path::Path;

use image::Digest;
use serde_json::{Value, json};

/// A layer to write: its blob, and the digest of the uncompressed tar the configuration shall name.
pub(crate) struct Layer {
    pub(crate) blob: Vec<u8>,
    pub(crate) diff: Digest,
    pub(crate) media_type: &'static str,
}

impl Layer {
    pub(crate) fn plain(tar: &[u8]) -> Self {
        let media_type = "application/vnd.oci.image.layer.v1.tar";
        Self { blob: tar.to_vec(), diff: Digest::of(tar), media_type }
    }

    pub(crate) fn compressed(tar: &[u8], blob: Vec<u8>, media_type: &'static str) -> Self {
        Self { blob, diff: Digest::of(tar), media_type }
    }
}

pub(crate) fn write_blob(directory: &Path, content: &[u8]) -> Digest {
    let digest = Digest::of(content);
    let blobs = directory.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(digest.hex()), content).unwrap();
    digest
}

pub(crate) fn descriptor(directory: &Path, media_type: &str, content: &[u8]) -> Value {
    json!({"mediaType": media_type, "digest": write_blob(directory, content), "size": content.len()})
}

/// Writes configuration and manifest of an image; returns the manifest's descriptor.
pub(crate) fn write_image(directory: &Path, layers: &[Layer], architecture: &str) -> Value {
    let config = json!({
        "os": "linux", "architecture": architecture, "config": {"Env": ["A=b"]},
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| layer.diff.to_string()).collect::<Vec<_>>()},
    });
    let config = serde_json::to_vec(&config).unwrap();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": descriptor(directory, "application/vnd.oci.image.config.v1+json", &config),
        "layers": layers.iter().map(|layer| descriptor(directory, layer.media_type, &layer.blob)).collect::<Vec<_>>(),
    });
    let manifest = serde_json::to_vec(&manifest).unwrap();
    descriptor(directory, "application/vnd.oci.image.manifest.v1+json", &manifest)
}

pub(crate) fn write_index(directory: &Path, manifests: &[Value]) {
    fs::write(directory.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let index = json!({"schemaVersion": 2, "manifests": manifests});
    fs::write(directory.join("index.json"), serde_json::to_vec(&index).unwrap()).unwrap();
}

/// Writes a layout with one image.
pub(crate) fn write(directory: &Path, layers: &[Layer]) {
    fs::create_dir_all(directory).unwrap();
    let manifest = write_image(directory, layers, "amd64");
    write_index(directory, &[manifest]);
}
