//! OCI image layouts: a directory with `index.json` and `blobs/<algorithm>/<hex>`.

use std::path::{Path, PathBuf};

use super::{BlobLocation, Blobs, FileRange, ResolvedImage, ResolvedLayer};
use crate::ImageError;
use crate::digest::Digest;
use crate::manifest::{CONFIG_BYTES, Descriptor, Document, MANIFEST_BYTES, diff_ids, parse_document, select};

/// Annotation that names an image in `index.json`.
const REFERENCE_NAME: &str = "org.opencontainers.image.ref.name";

/// Indexes may refer to indexes; deeper than this nobody nests them.
const INDEX_DEPTH: usize = 4;

struct Layout<'a>(&'a Path);

impl Blobs for Layout<'_> {
    fn find(&self, digest: &Digest) -> Result<FileRange, ImageError> {
        let path: PathBuf = self.0.join("blobs").join(digest.algorithm()).join(digest.hex());
        if !path.exists() {
            return Err(ImageError::NotFound {
                image: digest.to_string(),
                reason: format!("{} does not exist; the layout is incomplete", path.display()),
            });
        }
        FileRange::open(&path)
    }
}

/// Resolves the image of a layout; blocking.
pub(crate) fn resolve_layout(
    image: &str,
    directory: &Path,
    tag: Option<&str>,
) -> Result<ResolvedImage, ImageError> {
    let path = directory.join("index.json");
    if !path.exists() {
        return Err(ImageError::NotFound {
            image: image.to_owned(),
            reason: format!("{} does not exist; is this an OCI image layout?", path.display()),
        });
    }
    let index = FileRange::open(&path)?.read_all("index.json", MANIFEST_BYTES)?;
    resolve_index(image, &index, tag, &Layout(directory))
}

/// Resolves the image that an `index.json` names.
pub(super) fn resolve_index(
    image: &str,
    index: &[u8],
    tag: Option<&str>,
    blobs: &dyn Blobs,
) -> Result<ResolvedImage, ImageError> {
    let Document::Index(mut manifests) = parse_document(image, index)? else {
        return Err(ImageError::Damaged {
            what: image.to_owned(),
            reason: "index.json is not an index".to_owned(),
        });
    };
    if let Some(tag) = tag {
        manifests.retain(|descriptor| name_of(descriptor) == Some(tag));
        if manifests.is_empty() {
            return Err(ImageError::NotFound {
                image: image.to_owned(),
                reason: format!("index.json names no image `{tag}`"),
            });
        }
    }
    let mut descriptor = select(image, &manifests)?;
    for _ in 0..INDEX_DEPTH {
        let content = blobs.read("a manifest", &descriptor.digest, descriptor.size, MANIFEST_BYTES)?;
        match parse_document(image, &content)? {
            Document::Index(manifests) => descriptor = select(image, &manifests)?,
            Document::Manifest(manifest) => {
                let config = &manifest.config;
                let config_json =
                    blobs.read("the image configuration", &config.digest, config.size, CONFIG_BYTES)?;
                let diff_ids = diff_ids(image, &config_json, manifest.layers.len())?;
                let layers = manifest
                    .layers
                    .into_iter()
                    .zip(diff_ids)
                    .map(|(layer, diff_digest)| {
                        Ok(ResolvedLayer {
                            diff_digest,
                            location: BlobLocation::File(blobs.find(&layer.digest)?),
                            blob_digest: Some(layer.digest),
                            blob_bytes: Some(layer.size),
                        })
                    })
                    .collect::<Result<_, ImageError>>()?;
                return Ok(ResolvedImage { manifest_digest: descriptor.digest, config_json, layers });
            }
        }
    }
    Err(ImageError::Damaged {
        what: image.to_owned(),
        reason: format!("its indexes are nested deeper than {INDEX_DEPTH}"),
    })
}

fn name_of(descriptor: &Descriptor) -> Option<&str> {
    descriptor.annotations.as_ref()?.get(REFERENCE_NAME).map(String::as_str)
}
