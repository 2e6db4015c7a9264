//! What the lifecycle needs of the storage daemon, so that its tests run without one.

mod daemon;

use std::path::PathBuf;

use async_trait::async_trait;
use tokio::sync::mpsc;

/// Why the storage daemon did not do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StorageError {
    /// The caller asked for something impossible.
    #[error("storage: {0}")]
    Invalid(String),
    /// What was named does not exist: an image, a file, a layer.
    #[error("storage: {0}")]
    NotFound(String),
    /// The registry refused the credentials.
    #[error("storage: {0}")]
    Denied(String),
    /// The daemon cannot be reached or did not answer in time.
    #[error("the storage daemon does not answer: {0}")]
    Unavailable(String),
    /// Anything else it reported.
    #[error("storage: {0}")]
    Failed(String),
}

/// A device to be made: a stack of layers under a new upper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceRequest {
    /// 1 to 64 characters of `[a-z0-9-]`.
    pub id: String,
    /// Layers, bottom first.
    pub lower_paths: Vec<PathBuf>,
    /// Where the writable layer lives.
    pub upper_directory: PathBuf,
    /// Size in bytes.
    pub virtual_size_bytes: u64,
}

/// A device that can be opened by path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its id.
    pub id: String,
    /// What a machine opens.
    pub path: PathBuf,
    /// Why every request of a machine that has it open fails; nothing for a sound one.
    pub damage: Option<String>,
}

/// What an import says while it runs; the last event is `Done` or `Failed`.
#[derive(Debug, Clone)]
pub enum ImportEvent {
    /// Where it stands.
    Progress(crate::PullProgress),
    /// The layers are there.
    Done(ImportedImage),
    /// It ended without a result.
    Failed(StorageError),
}

/// An image converted into layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportedImage {
    /// Digest of the image manifest.
    pub manifest_digest: String,
    /// Layers, bottom first.
    pub layer_paths: Vec<PathBuf>,
    /// Size of the file system in bytes.
    pub virtual_size_bytes: u64,
    /// The OCI image configuration.
    pub config_json: Vec<u8>,
}

/// What the daemon says about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageStatus {
    /// `fuse` or `ublk`.
    pub front_end: String,
}

/// The storage daemon. Every call has a deadline of its own, and repeating one that succeeded changes nothing.
#[async_trait]
pub trait Storage: Send + Sync + std::fmt::Debug {
    /// Asks whether it is there.
    async fn status(&self) -> Result<StorageStatus, StorageError>;
    /// Makes a device with a new empty upper.
    async fn create_device(&self, request: DeviceRequest) -> Result<Device, StorageError>;
    /// Every device, whoever made it.
    async fn list_devices(&self) -> Result<Vec<Device>, StorageError>;
    /// Closes a device and removes its upper. Succeeds when there is none.
    async fn close_device(&self, id: &str) -> Result<(), StorageError>;
    /// Fetches and converts an image. Dropping the receiver cancels it.
    async fn import_image(
        &self,
        request: &crate::PullRequest,
    ) -> Result<mpsc::Receiver<ImportEvent>, StorageError>;
    /// Removes every layer that is neither named nor in use. Returns how many.
    async fn collect_layers(&self, keep: Vec<PathBuf>) -> Result<u32, StorageError>;
}
