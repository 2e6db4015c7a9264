//! One tar layer becomes one sealed layer: open a scratch disk, feed the unpacking child, seal.

mod child;
mod file_system;

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::ImageError;
use crate::digest::Digest;
use crate::progress::Reporter;
use crate::scratch::{ScratchDisk, ScratchDisks};
use crate::tar::Limits;
use child::Unpacker;

/// How long mke2fs may take; it writes a few hundred kilobytes.
const MKE2FS_TIMEOUT: Duration = Duration::from_secs(120);

/// What conversions need, the same for all.
#[derive(Debug)]
pub(crate) struct Converter {
    pub scratch_disks: Arc<dyn ScratchDisks>,
    pub scratch_directory: PathBuf,
    pub unpack_command: Vec<OsString>,
    pub mke2fs: PathBuf,
    pub tar_limits: Limits,
    pub uncompressed_bytes: u64,
    pub loop_timeout: Duration,
    pub stall_timeout: Duration,
    pub finish_timeout: Duration,
}

/// One layer to convert.
pub(crate) struct LayerInput {
    /// The blob, compressed or not.
    pub source: Box<dyn Read + Send>,
    pub blob_digest: Option<Digest>,
    pub blob_bytes: Option<u64>,
    pub diff_digest: Digest,
    pub reporter: Reporter,
}

impl Converter {
    /// Converts a layer onto `lowers` (bottom first) and leaves it sealed at `sealed_path`, fully verified. However this
    /// ends, the scratch disk is gone; cancelling ends it early.
    pub(crate) async fn convert(
        &self,
        lowers: &[PathBuf],
        input: LayerInput,
        virtual_size_bytes: u64,
        sealed_path: &Path,
        cancel: &CancellationToken,
    ) -> Result<(), ImageError> {
        let directory = ScratchDirectory::make(&self.scratch_directory)?;
        let disk = self.scratch_disks.open(lowers, &directory.path, virtual_size_bytes).await?;
        match self.fill(&disk, lowers.is_empty(), input, virtual_size_bytes, &directory, cancel).await {
            Ok(()) => self.scratch_disks.seal(disk, sealed_path).await,
            Err(error) => {
                if let Err(discard) = self.scratch_disks.discard(disk).await {
                    tracing::warn!(error = %discard, "a scratch disk could not be discarded");
                }
                Err(error)
            }
        }
    }

    async fn fill(
        &self,
        disk: &ScratchDisk,
        is_first: bool,
        input: LayerInput,
        virtual_size_bytes: u64,
        directory: &ScratchDirectory,
        cancel: &CancellationToken,
    ) -> Result<(), ImageError> {
        let layer = input.diff_digest.clone();
        if is_first {
            file_system::make(&self.mke2fs, &disk.path, MKE2FS_TIMEOUT)
                .await
                .map_err(|reason| ImageError::Conversion { layer: layer.clone(), reason })?;
        }
        let mount_point = directory.path.join("mount");
        fs::create_dir(&mount_point).map_err(ImageError::io("making", &mount_point))?;
        Unpacker { converter: self, device: &disk.path, mount_point, virtual_size_bytes }
            .run(input, cancel)
            .await
    }
}

/// A directory of one conversion, removed when it ends.
#[derive(Debug)]
struct ScratchDirectory {
    path: PathBuf,
}

/// Names of scratch directories; leftovers of a crash are recognised by it.
const SCRATCH_PREFIX: &str = "convert-";

impl ScratchDirectory {
    fn make(parent: &Path) -> Result<Self, ImageError> {
        let path = parent.join(format!("{SCRATCH_PREFIX}{}", uuid::Uuid::new_v4().simple()));
        fs::create_dir(&path).map_err(ImageError::io("making a scratch directory", &path))?;
        Ok(Self { path })
    }
}

impl Drop for ScratchDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "a scratch directory could not be removed");
        }
    }
}

/// Makes the scratch directory and removes what an interrupted conversion left there.
pub(crate) fn prepare_scratch_directory(directory: &Path) -> Result<(), ImageError> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(directory).map_err(ImageError::io("making the scratch directory", directory))?;
    for entry in fs::read_dir(directory).map_err(ImageError::io("listing", directory))? {
        let entry = entry.map_err(ImageError::io("listing", directory))?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(SCRATCH_PREFIX)) {
            let path = entry.path();
            fs::remove_dir_all(&path).map_err(ImageError::io("removing a left scratch directory", &path))?;
        }
    }
    Ok(())
}
