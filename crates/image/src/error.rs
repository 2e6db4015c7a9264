//! What can go wrong between a reference and a converted layer.

use std::io;
use std::path::{Path, PathBuf};

use crate::digest::Digest;

/// Why an image could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The text of a source or reference cannot be understood.
    #[error("`{text}` is not an image source: {reason}")]
    InvalidSource {
        /// The text as given, cut to a printable length.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A digest is malformed or of an unknown algorithm.
    #[error("`{text}` is not a digest of the form sha256:<64 lower-case hexadecimal digits>")]
    InvalidDigest {
        /// The text as found.
        text: String,
    },
    /// An option or a configured value is out of range.
    #[error("{0}")]
    InvalidOption(String),
    /// The image, or a part of it, does not exist.
    #[error("{image} was not found: {reason}")]
    NotFound {
        /// The image or blob asked for.
        image: String,
        /// Who says so, and what to check.
        reason: String,
    },
    /// The registry wants other credentials than it was given.
    #[error("the registry {registry} refuses access to {repository}: {reason}")]
    Unauthorized {
        /// Host of the registry.
        registry: String,
        /// Repository asked for.
        repository: String,
        /// Whether credentials were sent, and how to provide them.
        reason: String,
    },
    /// The host answers, but not as a registry does.
    #[error("{registry} does not answer like a container registry: {reason}")]
    NotARegistry {
        /// Host asked.
        registry: String,
        /// What it answered.
        reason: String,
    },
    /// The image exists, but not for this machine.
    #[error("{image} has no image for linux/amd64, only for: {available}")]
    WrongPlatform {
        /// The image.
        image: String,
        /// Platforms it has.
        available: String,
    },
    /// The connection could not be secured.
    #[error("no secure connection to {registry}: {reason}")]
    Tls {
        /// Host of the registry.
        registry: String,
        /// What failed, and what to do.
        reason: String,
    },
    /// The registry could not be reached, or kept failing.
    #[error("the registry {registry} failed after {attempts} attempts: {reason}")]
    RegistryFailed {
        /// Host of the registry.
        registry: String,
        /// How often it was tried.
        attempts: u32,
        /// The last failure.
        reason: String,
    },
    /// A credential helper or the credential file failed.
    #[error("credentials for {registry} could not be read: {reason}")]
    Credentials {
        /// Host of the registry.
        registry: String,
        /// What failed.
        reason: String,
    },
    /// The image is of a kind that is not supported.
    #[error("{image} is not supported: {reason}")]
    Unsupported {
        /// The image or layer.
        image: String,
        /// What is missing.
        reason: String,
    },
    /// A document or archive of the image contradicts its own format.
    #[error("{what} is damaged: {reason}")]
    Damaged {
        /// The document or blob.
        what: String,
        /// What is wrong.
        reason: String,
    },
    /// Bytes do not have the digest they were announced with.
    #[error("{what} has the digest {actual}, but {expected} was announced; nothing of it was kept")]
    DigestMismatch {
        /// The document, blob, or uncompressed layer.
        what: String,
        /// Digest announced.
        expected: Digest,
        /// Digest of the bytes received.
        actual: Digest,
    },
    /// Bytes are more or fewer than announced.
    #[error("{what} has {actual} bytes, but {expected} were announced; nothing of it was kept")]
    SizeMismatch {
        /// The document or blob.
        what: String,
        /// Bytes announced.
        expected: u64,
        /// Bytes received (at least).
        actual: u64,
    },
    /// A configured bound was reached.
    #[error("{what} is above the limit of {limit}")]
    LimitExceeded {
        /// What grew too large.
        what: String,
        /// The limit, with its unit.
        limit: String,
    },
    /// A member of a layer cannot be unpacked.
    #[error("layer {layer}: member `{member}` was refused: {reason}")]
    Member {
        /// Digest of the uncompressed layer.
        layer: Digest,
        /// Name of the member, unprintable bytes escaped.
        member: String,
        /// Why.
        reason: String,
    },
    /// The virtual disk has no room for the layer.
    #[error(
        "layer {layer}: the virtual disk of {virtual_size_bytes} bytes is full at member `{member}`; import the \
         image with a larger virtual size"
    )]
    DiskFull {
        /// Digest of the uncompressed layer.
        layer: Digest,
        /// Name of the member that did not fit.
        member: String,
        /// Size of the virtual disk.
        virtual_size_bytes: u64,
    },
    /// The unpacking process, or a tool it needs, failed for a reason outside the image.
    #[error("layer {layer} could not be converted: {reason}")]
    Conversion {
        /// Digest of the uncompressed layer.
        layer: Digest,
        /// What failed, and what to do.
        reason: String,
    },
    /// The scratch disk could not be opened, sealed or discarded.
    #[error("scratch disk: {operation} failed: {reason}")]
    ScratchDisk {
        /// What was tried.
        operation: &'static str,
        /// Why it failed.
        reason: String,
    },
    /// The import was cancelled by its caller.
    #[error("the import was cancelled; layers converted so far are kept")]
    Cancelled,
    /// A file of ours could not be read or written.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was tried, as the start of a sentence.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
}

impl ImageError {
    /// For `map_err` on file operations.
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }

    /// The error of reading a blob; one of ours travels through `io::Error` unchanged.
    pub(crate) fn from_source(error: io::Error, what: &str) -> Self {
        match error.downcast::<Self>() {
            Ok(ours) => ours,
            Err(source) => Self::Io { action: "reading", path: PathBuf::from(what), source },
        }
    }

    /// A blocking task that panicked or was aborted.
    pub(crate) fn task(error: &tokio::task::JoinError) -> Self {
        Self::Io {
            action: "running a task for",
            path: PathBuf::from("an import"),
            source: io::Error::other(error.to_string()),
        }
    }
}
