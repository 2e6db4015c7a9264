//! Single-file sources: `docker save` archives and root file system tars.

use std::collections::HashMap;
use std::io::{self, BufReader, Seek, Write};
use std::path::Path;

use serde::Deserialize;

use super::layout::resolve_index;
use super::{BlobLocation, Blobs, FileRange, RangeReader, ResolvedImage, ResolvedLayer};
use crate::ImageError;
use crate::digest::Digest;
use crate::manifest::{CONFIG_BYTES, MANIFEST_BYTES, MAXIMUM_LAYERS, diff_ids};
use crate::stream::{Compression, StreamError, pump};
use crate::tar::{Limits, MemberKind, TarError, TarReader};

/// Members of a `docker save` archive: three for each layer in old ones.
const ARCHIVE_MEMBERS: u64 = 100_000;

/// Links from member to member: old archives store a layer once and link the others to it.
const LINKS: usize = 8;

/// The members of an archive by cleaned name.
struct Archive {
    range: FileRange,
    members: HashMap<String, Stored>,
}

enum Stored {
    File { offset: u64, bytes: u64 },
    Link(String),
}

impl Archive {
    fn index(range: FileRange) -> Result<Self, ImageError> {
        let damaged = |error: TarError| match error {
            TarError::Malformed { member, reason } => ImageError::Damaged {
                what: format!("the archive {}", range.path.display()),
                reason: format!("member `{member}`: {reason}"),
            },
            TarError::Io(error) => ImageError::io("reading", &range.path)(error),
        };
        let mut members = HashMap::new();
        let limits = Limits { members: ARCHIVE_MEMBERS, ..Limits::default() };
        let mut reader =
            TarReader::new(BufReader::with_capacity(64 * 1024, SeekingRange::new(&range)), limits);
        while let Some(member) = reader.next_member().map_err(damaged)? {
            let Ok(path) = String::from_utf8(member.path) else { continue };
            let name = clean(&path);
            let stored = match member.kind {
                MemberKind::File if member.sparse_runs.is_none() => {
                    let offset = reader.position();
                    if offset + member.stored_bytes > range.bytes {
                        return Err(damaged(TarError::Malformed {
                            member: path,
                            reason: "it is cut off".to_owned(),
                        }));
                    }
                    Stored::File { offset, bytes: member.stored_bytes }
                }
                // A symbolic link is relative to its directory, a hard link to the archive.
                MemberKind::Symlink => {
                    let directory = name.rsplit_once('/').map_or("", |(directory, _)| directory);
                    let target = String::from_utf8_lossy(&member.link);
                    Stored::Link(clean(&format!("{directory}/{target}")))
                }
                MemberKind::HardLink => Stored::Link(clean(&String::from_utf8_lossy(&member.link))),
                _ => continue,
            };
            members.insert(name, stored);
            let skip = |input: &mut BufReader<SeekingRange<'_>>, bytes: u64| {
                let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
                input.seek_relative(bytes)
            };
            reader.skip_data_by(skip).map_err(damaged)?;
        }
        Ok(Self { range, members })
    }

    fn find(&self, name: &str) -> Option<FileRange> {
        let mut name = clean(name);
        for _ in 0..LINKS {
            match self.members.get(&name)? {
                Stored::Link(target) => name.clone_from(target),
                Stored::File { offset, bytes } => {
                    let offset = self.range.offset + offset;
                    return Some(FileRange { offset, bytes: *bytes, ..self.range.clone() });
                }
            }
        }
        None
    }

    fn require(&self, name: &str) -> Result<FileRange, ImageError> {
        self.find(name).ok_or_else(|| ImageError::NotFound {
            image: name.to_owned(),
            reason: format!("{} has no such member; is it from `docker save`?", self.range.path.display()),
        })
    }
}

impl Blobs for Archive {
    fn find(&self, digest: &Digest) -> Result<FileRange, ImageError> {
        self.require(&format!("blobs/{}/{}", digest.algorithm(), digest.hex()))
    }
}

/// Names in the archive are compared only, so `..` just has to be taken out consistently.
fn clean(path: &str) -> String {
    let mut names: Vec<&str> = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name => names.push(name),
        }
    }
    names.join("/")
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ArchivedImage {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

/// Resolves an image of a `docker save` archive, which has a `manifest.json` in every version and, from Docker 25 on, an
/// OCI layout beside it. A compressed archive is first unpacked into an unnamed file in `scratch_directory`. Blocking.
pub(crate) fn resolve_docker_archive(
    image: &str,
    file: &Path,
    tag: Option<&str>,
    scratch_directory: &Path,
    limit: u64,
) -> Result<ResolvedImage, ImageError> {
    let archive = Archive::index(plain(image, FileRange::open(file)?, scratch_directory, limit)?)?;
    let Some(manifest) = archive.find("manifest.json") else {
        // An OCI layout in a tar without Docker's file (`oci-archive`).
        let index = archive.require("index.json")?.read_all("index.json", MANIFEST_BYTES)?;
        return resolve_index(image, &index, tag, &archive);
    };
    let damaged = |reason: String| ImageError::Damaged { what: format!("manifest.json of {image}"), reason };
    let manifest = manifest.read_all("manifest.json", MANIFEST_BYTES)?;
    let images: Vec<ArchivedImage> =
        serde_json::from_slice(&manifest).map_err(|error| damaged(error.to_string()))?;
    let archived = choose(image, images, tag)?;
    if archived.layers.len() > MAXIMUM_LAYERS {
        return Err(ImageError::LimitExceeded {
            what: format!("the number of layers of {image} ({})", archived.layers.len()),
            limit: MAXIMUM_LAYERS.to_string(),
        });
    }
    let config_json = archive.require(&archived.config)?.read_all("the image configuration", CONFIG_BYTES)?;
    let config_digest = Digest::of(&config_json);
    // The file is named by its digest in both versions; the layers are vouched for by it.
    if let Some(named) = digest_in_name(&archived.config).filter(|named| *named != config_digest) {
        let what = "the image configuration".to_owned();
        return Err(ImageError::DigestMismatch { what, expected: named, actual: config_digest });
    }
    let diff_ids = diff_ids(image, &config_json, archived.layers.len())?;
    let layers = archived
        .layers
        .iter()
        .zip(diff_ids)
        .map(|(name, diff_digest)| {
            let range = archive.require(name)?;
            Ok(ResolvedLayer {
                diff_digest,
                blob_digest: None,
                blob_bytes: Some(range.bytes),
                location: BlobLocation::File(range),
            })
        })
        .collect::<Result<_, ImageError>>()?;
    // There is no manifest in the registry's sense; the configuration's digest is what Docker calls the image id.
    Ok(ResolvedImage { manifest_digest: config_digest, config_json, layers })
}

/// `<hex>.json` of old archives, `blobs/sha256/<hex>` of new ones.
fn digest_in_name(name: &str) -> Option<Digest> {
    let name = name.rsplit('/').next()?;
    format!("sha256:{}", name.strip_suffix(".json").unwrap_or(name)).parse().ok()
}

fn choose(image: &str, images: Vec<ArchivedImage>, tag: Option<&str>) -> Result<ArchivedImage, ImageError> {
    let tags: Vec<String> =
        images.iter().flat_map(|image| image.repo_tags.iter().flatten()).take(50).cloned().collect();
    let mut matching: Vec<ArchivedImage> = match tag {
        Some(tag) => images
            .into_iter()
            .filter(|image| image.repo_tags.iter().flatten().any(|found| found == tag))
            .collect(),
        None => images,
    };
    match (matching.pop(), matching.is_empty()) {
        (Some(image), true) => Ok(image),
        (None, _) => Err(ImageError::NotFound {
            image: image.to_owned(),
            reason: format!("the archive has these images: {}", tags.join(", ")),
        }),
        (Some(_), false) => Err(ImageError::InvalidSource {
            text: image.to_owned(),
            reason: format!("the archive has several images; append one of: {}", tags.join(", ")),
        }),
    }
}

/// The archive itself, or its uncompressed bytes in an unnamed file.
fn plain(
    image: &str,
    range: FileRange,
    scratch_directory: &Path,
    limit: u64,
) -> Result<FileRange, ImageError> {
    let mut start = [0; 4];
    let length =
        io::Read::read(&mut range.reader(), &mut start).map_err(ImageError::io("reading", &range.path))?;
    if Compression::detect(&start[..length]) == Compression::None {
        return Ok(range);
    }
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::CLOEXEC;
    let unnamed = rustix::fs::open(scratch_directory, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR)
        .map_err(|error| ImageError::io("making a file in", scratch_directory)(error.into()))?;
    let mut unnamed = std::fs::File::from(unnamed);
    let mut write_error = None;
    let summary = pump(
        range.reader(),
        None,
        None,
        limit,
        |buffer| unnamed.write_all(&buffer).map(|()| buffer).map_err(|error| write_error = Some(error)),
        |_| {},
    );
    match summary {
        Ok(summary) => Ok(FileRange {
            file: std::sync::Arc::new(unnamed),
            path: range.path,
            offset: 0,
            bytes: summary.diff_bytes,
        }),
        Err((StreamError::Closed, _)) => Err(ImageError::io("writing a file in", scratch_directory)(
            write_error.unwrap_or_else(|| io::ErrorKind::Other.into()),
        )),
        Err((error, _)) => Err(error.into_image_error(image, &range.path)),
    }
}

/// A tar of a root file system as an image of one layer. It is read once to learn its digest, so that importing
/// it again finds the converted layer. Blocking.
pub(crate) fn resolve_root_filesystem(
    image: &str,
    file: &Path,
    limit: u64,
) -> Result<ResolvedImage, ImageError> {
    let range = FileRange::open(file)?;
    let summary = pump(range.reader(), None, None, limit, Ok, |_| {})
        .map_err(|(error, _)| error.into_image_error(image, &range.path))?;
    let config_json = serde_json::to_vec(&serde_json::json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {},
        "rootfs": { "type": "layers", "diff_ids": [summary.diff_digest] },
    }))
    .map_err(|error| ImageError::Damaged { what: image.to_owned(), reason: error.to_string() })?;
    Ok(ResolvedImage {
        manifest_digest: Digest::of(&config_json),
        config_json,
        layers: vec![ResolvedLayer {
            diff_digest: summary.diff_digest,
            blob_digest: Some(summary.blob_digest),
            blob_bytes: Some(summary.blob_bytes),
            location: BlobLocation::File(range),
        }],
    })
}

/// A range that can be skipped through.
#[derive(Debug)]
struct SeekingRange<'a> {
    range: &'a FileRange,
    reader: RangeReader,
}

impl<'a> SeekingRange<'a> {
    fn new(range: &'a FileRange) -> Self {
        Self { range, reader: range.reader() }
    }
}

impl io::Read for SeekingRange<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.reader.read(buffer)
    }
}

impl Seek for SeekingRange<'_> {
    fn seek(&mut self, target: io::SeekFrom) -> io::Result<u64> {
        let position = self.reader.offset - self.range.offset;
        let target = match target {
            io::SeekFrom::Start(target) => Some(target),
            io::SeekFrom::Current(delta) => position.checked_add_signed(delta),
            io::SeekFrom::End(delta) => self.range.bytes.checked_add_signed(delta),
        };
        // A seek past the end reads as the end, which the tar reader reports.
        let target = target.ok_or(io::ErrorKind::InvalidInput)?.min(self.range.bytes);
        self.reader.offset = self.range.offset + target;
        self.reader.left = self.range.bytes - target;
        Ok(target)
    }
}
