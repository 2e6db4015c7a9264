//! Where an image comes from.

mod archive;
mod layout;
mod reference;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

pub use reference::Reference;

use crate::ImageError;
use crate::digest::Digest;

pub(crate) use archive::{resolve_docker_archive, resolve_root_filesystem};
pub(crate) use layout::resolve_layout;

/// A place an image can be imported from.
///
/// | text | meaning |
/// |---|---|
/// | `registry.example/team/name:tag`, `name@sha256:…` | a registry; Docker's short names work |
/// | `oci:DIRECTORY[:TAG]` | an OCI image layout |
/// | `docker-archive:FILE[:NAME:TAG]` | what `docker save` writes |
/// | `rootfs:FILE` | a tar of a root file system, also compressed; becomes one layer |
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A registry.
    Registry(Reference),
    /// An OCI image layout.
    OciLayout {
        /// Directory with `index.json`.
        directory: PathBuf,
        /// Value of the annotation `org.opencontainers.image.ref.name`.
        tag: Option<String>,
    },
    /// An archive as `docker save` writes.
    DockerArchive {
        /// The archive.
        file: PathBuf,
        /// Which of its images, as listed in `RepoTags`.
        tag: Option<String>,
    },
    /// A tar of a root file system.
    RootFilesystem {
        /// The archive.
        file: PathBuf,
    },
}

impl FromStr for Source {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let invalid = |reason: &str| ImageError::InvalidSource {
            text: text.chars().take(200).collect(),
            reason: reason.to_owned(),
        };
        let path = |path: &str| {
            if path.is_empty() || path.contains('\0') {
                return Err(invalid("the path is missing"));
            }
            Ok(PathBuf::from(path))
        };
        if let Some(rest) = text.strip_prefix("oci:") {
            let (directory, tag) = match rest.rsplit_once(':') {
                Some((directory, tag)) if !tag.contains('/') => (directory, Some(tag.to_owned())),
                _ => (rest, None),
            };
            return Ok(Self::OciLayout { directory: path(directory)?, tag });
        }
        if let Some(rest) = text.strip_prefix("docker-archive:") {
            let (file, tag) = match rest.split_once(':') {
                Some((file, tag)) => (file, Some(tag.to_owned())),
                None => (rest, None),
            };
            return Ok(Self::DockerArchive { file: path(file)?, tag });
        }
        if let Some(rest) = text.strip_prefix("rootfs:") {
            return Ok(Self::RootFilesystem { file: path(rest)? });
        }
        text.strip_prefix("docker://").unwrap_or(text).parse().map(Self::Registry)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let with_tag = |formatter: &mut fmt::Formatter<'_>, kind: &str, path: &Path, tag: &Option<String>| {
            write!(formatter, "{kind}:{}", path.display())?;
            tag.as_ref().map_or(Ok(()), |tag| write!(formatter, ":{tag}"))
        };
        match self {
            Self::Registry(reference) => reference.fmt(formatter),
            Self::OciLayout { directory, tag } => with_tag(formatter, "oci", directory, tag),
            Self::DockerArchive { file, tag } => with_tag(formatter, "docker-archive", file, tag),
            Self::RootFilesystem { file } => write!(formatter, "rootfs:{}", file.display()),
        }
    }
}

/// An image whose layers can be read.
#[derive(Debug)]
pub(crate) struct ResolvedImage {
    pub manifest_digest: Digest,
    pub config_json: Vec<u8>,
    /// Bottom first.
    pub layers: Vec<ResolvedLayer>,
}

/// A layer that can be read.
#[derive(Debug, Clone)]
pub(crate) struct ResolvedLayer {
    /// Digest of the uncompressed tar.
    pub diff_digest: Digest,
    /// Digest of the blob, where the source names it.
    pub blob_digest: Option<Digest>,
    pub blob_bytes: Option<u64>,
    pub location: BlobLocation,
}

/// Where a blob's bytes are.
#[derive(Debug, Clone)]
pub(crate) enum BlobLocation {
    /// In the registry the image was resolved from.
    Registry,
    /// In a local file.
    File(FileRange),
}

/// Bytes in a file; a blob of a layout, or a member of an archive.
#[derive(Debug, Clone)]
pub(crate) struct FileRange {
    pub file: Arc<File>,
    pub path: PathBuf,
    pub offset: u64,
    pub bytes: u64,
}

impl FileRange {
    /// A whole file.
    pub(crate) fn open(path: &Path) -> Result<Self, ImageError> {
        let file = File::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ImageError::NotFound {
                image: path.display().to_string(),
                reason: "there is no such file on the node's machine".to_owned(),
            },
            _ => ImageError::Io { action: "opening", path: path.to_owned(), source },
        })?;
        let metadata = file.metadata().map_err(ImageError::io("examining", path))?;
        if !metadata.is_file() {
            return Err(ImageError::Io {
                action: "opening",
                path: path.to_owned(),
                source: io::Error::other("it is not a regular file"),
            });
        }
        Ok(Self { file: Arc::new(file), path: path.to_owned(), offset: 0, bytes: metadata.len() })
    }

    pub(crate) fn reader(&self) -> RangeReader {
        RangeReader { file: Arc::clone(&self.file), offset: self.offset, left: self.bytes }
    }

    /// All of it, at most `limit` bytes.
    pub(crate) fn read_all(&self, what: &str, limit: u64) -> Result<Vec<u8>, ImageError> {
        if self.bytes > limit {
            let limit = format!("{limit} bytes");
            return Err(ImageError::LimitExceeded { what: format!("the size of {what}"), limit });
        }
        let mut content = Vec::new();
        self.reader().read_to_end(&mut content).map_err(ImageError::io("reading", &self.path))?;
        Ok(content)
    }
}

/// Reads a range without a shared file position.
#[derive(Debug)]
pub(crate) struct RangeReader {
    file: Arc<File>,
    offset: u64,
    left: u64,
}

impl Read for RangeReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let length = self.file.read_at(&mut buffer[..wanted], self.offset)?;
        self.offset += length as u64;
        self.left -= length as u64;
        Ok(length)
    }
}

/// Blobs named by digest, in a directory or an archive.
pub(crate) trait Blobs {
    /// Finds a blob.
    fn find(&self, digest: &Digest) -> Result<FileRange, ImageError>;

    /// Reads a small blob and checks it.
    fn read(&self, what: &str, digest: &Digest, size: u64, limit: u64) -> Result<Vec<u8>, ImageError> {
        let content = self.find(digest)?.read_all(what, limit)?;
        check_content(what, &content, digest, Some(size))?;
        Ok(content)
    }
}

/// Checks bytes against what was announced.
pub(crate) fn check_content(
    what: &str,
    content: &[u8],
    digest: &Digest,
    size: Option<u64>,
) -> Result<(), ImageError> {
    if let Some(expected) = size.filter(|&size| size != content.len() as u64) {
        return Err(ImageError::SizeMismatch {
            what: what.to_owned(),
            expected,
            actual: content.len() as u64,
        });
    }
    if !digest.matches(content) {
        let mut hasher = digest.hasher();
        hasher.update(content);
        return Err(ImageError::DigestMismatch {
            what: what.to_owned(),
            expected: digest.clone(),
            actual: hasher.finish(),
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_told_apart_by_prefix() {
        let parsed = |text: &str| text.parse::<Source>().unwrap();
        assert_eq!(parsed("oci:/a/b"), Source::OciLayout { directory: "/a/b".into(), tag: None });
        assert_eq!(
            parsed("oci:/a/b:v1"),
            Source::OciLayout { directory: "/a/b".into(), tag: Some("v1".into()) }
        );
        assert_eq!(
            parsed("docker-archive:/x.tar:name:v1"),
            Source::DockerArchive { file: "/x.tar".into(), tag: Some("name:v1".into()) }
        );
        assert_eq!(parsed("rootfs:/x.tar.gz"), Source::RootFilesystem { file: "/x.tar.gz".into() });
        assert!(matches!(parsed("docker://debian"), Source::Registry(_)));
        for source in ["oci:/a/b:v1", "docker-archive:/x.tar:name:v1", "rootfs:/x.tar"] {
            assert_eq!(parsed(source).to_string(), source);
        }
    }

    #[test]
    fn sources_without_a_path_are_refused() {
        for text in ["oci:", "rootfs:", "docker-archive:", ""] {
            assert!(text.parse::<Source>().is_err(), "{text:?}");
        }
    }
}
