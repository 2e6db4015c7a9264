//! The JSON documents of an image: index, manifest, configuration.
//!
//! Formats: OCI image specification 1.1 ("Image Index", "Image Manifest", "Image Configuration") and Docker's "Image
//! Manifest V 2, Schema 2", which differ in media types only.

use serde::Deserialize;

use crate::ImageError;
use crate::digest::Digest;

/// Bound on an index or manifest; registries accept no more than 4 MiB.
pub(crate) const MANIFEST_BYTES: u64 = 4 << 20;
/// Bound on an image configuration.
pub(crate) const CONFIG_BYTES: u64 = 4 << 20;
/// A stack has at most 255 layers, one of them the writable one.
pub(crate) const MAXIMUM_LAYERS: usize = 254;

/// Media types asked for, best first.
pub(crate) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, \
     application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, \
     application/vnd.docker.distribution.manifest.v2+json";

/// A reference to content.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default)]
    pub platform: Option<Platform>,
    #[serde(default)]
    pub annotations: Option<std::collections::BTreeMap<String, String>>,
}

/// What machine an image is for.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub os: String,
    #[serde(default)]
    pub architecture: String,
    #[serde(default)]
    pub variant: Option<String>,
}

impl Platform {
    fn is_ours(&self) -> bool {
        self.os == "linux" && self.architecture == "amd64"
    }

    fn name(&self) -> String {
        match &self.variant {
            Some(variant) => format!("{}/{}/{variant}", self.os, self.architecture),
            None => format!("{}/{}", self.os, self.architecture),
        }
    }
}

/// An index or a manifest.
#[derive(Debug)]
pub(crate) enum Document {
    Index(Vec<Descriptor>),
    Manifest(Manifest),
}

/// One image.
#[derive(Debug, Clone)]
pub(crate) struct Manifest {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawDocument {
    schema_version: u32,
    #[serde(default)]
    manifests: Option<Vec<Descriptor>>,
    #[serde(default)]
    config: Option<Descriptor>,
    #[serde(default)]
    layers: Option<Vec<Descriptor>>,
}

/// Reads an index or manifest; `image` names it in errors.
pub(crate) fn parse_document(image: &str, bytes: &[u8]) -> Result<Document, ImageError> {
    let damaged = |reason: String| ImageError::Damaged { what: format!("the manifest of {image}"), reason };
    // The version alone first: schema 1 has nothing else in common.
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        schema_version: u32,
    }
    let version: Version = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    if version.schema_version != 2 {
        return Err(ImageError::Unsupported {
            image: image.to_owned(),
            reason: format!(
                "its manifest has schema version {}; push it again with a current tool",
                version.schema_version
            ),
        });
    }
    let raw: RawDocument = serde_json::from_slice(bytes).map_err(|error| damaged(error.to_string()))?;
    debug_assert_eq!(raw.schema_version, 2);
    match raw {
        RawDocument { manifests: Some(manifests), config: None, layers: None, .. } => {
            Ok(Document::Index(manifests))
        }
        RawDocument { manifests: None, config: Some(config), layers: Some(layers), .. } => {
            if layers.len() > MAXIMUM_LAYERS {
                return Err(ImageError::LimitExceeded {
                    what: format!("the number of layers of {image} ({})", layers.len()),
                    limit: MAXIMUM_LAYERS.to_string(),
                });
            }
            for layer in &layers {
                check_layer_type(image, layer)?;
            }
            Ok(Document::Manifest(Manifest { config, layers }))
        }
        // A document that could be read both ways means different things to different tools.
        _ => Err(damaged("it is neither an index nor a manifest".to_owned())),
    }
}

/// Refuses layers that are not tar archives, whatever the compression. An absent type is taken as tar.
fn check_layer_type(image: &str, layer: &Descriptor) -> Result<(), ImageError> {
    let media_type = layer.media_type.as_str();
    let is_tar = media_type.is_empty()
        || media_type.starts_with("application/vnd.oci.image.layer.")
        || media_type.starts_with("application/vnd.docker.image.rootfs.");
    if is_tar && !media_type.contains("encrypted") {
        return Ok(());
    }
    Err(ImageError::Unsupported {
        image: image.to_owned(),
        reason: format!("its layer {} is of type {media_type}, not a plain tar archive", layer.digest),
    })
}

/// The entry of an index for this machine. An index with a single entry that names no platform is taken at its word;
/// the configuration is checked later.
pub(crate) fn select(image: &str, manifests: &[Descriptor]) -> Result<Descriptor, ImageError> {
    let ours =
        || manifests.iter().filter(|descriptor| descriptor.platform.as_ref().is_some_and(Platform::is_ours));
    let without_variant = |descriptor: &&Descriptor| {
        descriptor.platform.as_ref().is_some_and(|platform| platform.variant.is_none())
    };
    if let Some(descriptor) = ours().find(without_variant).or_else(|| ours().next()) {
        return Ok(descriptor.clone());
    }
    let mut unnamed = manifests.iter().filter(|descriptor| {
        descriptor
            .platform
            .as_ref()
            .is_none_or(|platform| platform.os.is_empty() && platform.architecture.is_empty())
    });
    if let (Some(descriptor), None) = (unnamed.next(), unnamed.next()) {
        return Ok(descriptor.clone());
    }
    let mut available: Vec<String> = manifests
        .iter()
        .filter_map(|descriptor| descriptor.platform.as_ref())
        .map(Platform::name)
        .filter(|name| name != "unknown/unknown")
        .take(20)
        .collect();
    available.sort();
    available.dedup();
    let available = if available.is_empty() { "no named platform".to_owned() } else { available.join(", ") };
    Err(ImageError::WrongPlatform { image: image.to_owned(), available })
}

#[derive(Deserialize)]
struct RawConfig {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    rootfs: RawRootfs,
}

#[derive(Default, Deserialize)]
struct RawRootfs {
    #[serde(default)]
    diff_ids: Vec<Digest>,
}

/// Digests of the uncompressed layers, from an image configuration that is for this machine.
pub(crate) fn diff_ids(image: &str, config: &[u8], layer_count: usize) -> Result<Vec<Digest>, ImageError> {
    let damaged =
        |reason: String| ImageError::Damaged { what: format!("the configuration of {image}"), reason };
    let config: RawConfig = serde_json::from_slice(config).map_err(|error| damaged(error.to_string()))?;
    let platform = Platform { os: config.os, architecture: config.architecture, variant: None };
    let unnamed = platform.os.is_empty() && platform.architecture.is_empty();
    if !unnamed && !platform.is_ours() {
        return Err(ImageError::WrongPlatform { image: image.to_owned(), available: platform.name() });
    }
    let diff_ids = config.rootfs.diff_ids;
    if diff_ids.len() != layer_count {
        return Err(damaged(format!("it lists {} layers, the manifest {layer_count}", diff_ids.len())));
    }
    if let Some(digest) = diff_ids.iter().find(|digest| digest.algorithm() != "sha256") {
        return Err(damaged(format!("its layer {digest} is not named by sha256")));
    }
    Ok(diff_ids)
}
