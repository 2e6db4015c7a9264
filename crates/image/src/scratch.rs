//! The writable devices that layers are made on.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::ImageError;

/// A writable device on a stack of layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScratchDisk {
    /// Identity given by the implementation.
    pub id: String,
    /// Where it can be opened: a block device, or a file that a loop device can be attached to.
    pub path: PathBuf,
}

/// Makes scratch disks. Implemented by whoever owns the block devices (the storage daemon).
#[async_trait]
pub trait ScratchDisks: Send + Sync + Debug {
    /// Opens a writable device of `virtual_size_bytes` on `lowers` (bottom first) with a new empty upper, whose files
    /// belong into `scratch_directory`. Without lowers it reads as zeros.
    async fn open(
        &self,
        lowers: &[PathBuf],
        scratch_directory: &Path,
        virtual_size_bytes: u64,
    ) -> Result<ScratchDisk, ImageError>;

    /// Flushes and closes the device and makes its upper a read-only layer at `sealed_path`, which is on the same file
    /// system as the scratch directory and does not exist. Nothing has the device open any more. After a failure the
    /// disk is gone, and nothing is left at `sealed_path`.
    async fn seal(&self, disk: ScratchDisk, sealed_path: &Path) -> Result<(), ImageError>;

    /// Closes the device and removes its upper. Succeeds when it is gone already.
    async fn discard(&self, disk: ScratchDisk) -> Result<(), ImageError>;
}
