//! Sealing: an upper becomes a read-only layer without its data being copied.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::files::{SYNC, sync_directories, sync_directory_of};
use super::{Engine, Upper, UpperError};
use crate::SECTOR_BYTES;
use crate::header::{FLAG_DATA, FLAG_SEALED, FLAG_SPARSE, Header, SECTION_BYTES};
use crate::layer::Layer;
use crate::mapping::MAPPING_BYTES;
use crate::number::to_usize;

/// How long writes in flight may take to end. They are plain file writes; one that takes longer hangs in a broken device.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

impl Upper {
    /// Removes both files, durably. What is open stays readable.
    pub(crate) fn remove_files(&self) -> Result<(), UpperError> {
        for path in [&self.files.data, &self.files.index] {
            fs::remove_file(path).map_err(UpperError::file("remove", path))?;
        }
        sync_directories(&self.files)
    }

    /// Seals the upper and moves it to `sealed_path`, on the same file system. What was completed before is durable
    /// when this returns. On failure the files are as before, apart from bytes without meaning behind their data, and can
    /// be opened again. Repeating it after a crash is safe as long as `sealed_path` does not exist; when it does, the
    /// crash came after the move and the layer is complete.
    pub fn seal(self, sealed_path: &Path) -> Result<Arc<Layer>, UpperError> {
        let layer = self.close_and_seal(sealed_path)?;
        self.publish(sealed_path)?;
        Ok(layer)
    }

    /// Refuses what would fail later anyway.
    pub(crate) fn check_sealable(&self, sealed_path: &Path) -> Result<(), UpperError> {
        if self.is_read_only() {
            return Err(UpperError::ReadOnly { path: self.files.data.clone() });
        }
        if sealed_path.symlink_metadata().is_ok() {
            return Err(UpperError::SealedPathExists { path: sealed_path.to_owned() });
        }
        Ok(())
    }

    /// Ends writing and makes the data file a complete, durable, sealed layer under its old name.
    pub(crate) fn close_and_seal(&self, sealed_path: &Path) -> Result<Arc<Layer>, UpperError> {
        self.check_sealable(sealed_path)?;
        if !self.gate().close(DRAIN_TIMEOUT) {
            return Err(UpperError::WritesInFlight {
                path: self.files.data.clone(),
                timeout_ms: DRAIN_TIMEOUT.as_millis(),
            });
        }
        // A failed sync before may have lost data; sealing must not turn that into a layer that looks complete.
        self.check_flushable()?;
        let data_path = &self.files.data;
        let mappings = self.live().mappings();
        let index_at = self.end_of_data_bytes();
        let sparse = if self.header.is_sparse() { FLAG_SPARSE } else { 0 };
        let trailer = Header {
            flags: FLAG_DATA | FLAG_SEALED | sparse,
            index_offset_bytes: index_at,
            index_entries: mappings.len() as u64,
            ..self.header.clone()
        };
        let index_bytes = (mappings.len() as u64 * MAPPING_BYTES).next_multiple_of(SECTOR_BYTES);
        let mut tail = Vec::with_capacity(to_usize(index_bytes + SECTION_BYTES));
        for mapping in &mappings {
            tail.extend_from_slice(&mapping.to_bytes());
        }
        tail.resize(to_usize(index_bytes), 0);
        tail.extend_from_slice(&trailer.encode());
        self.data.write_all_at(&tail, index_at).map_err(UpperError::file("write", data_path))?;
        self.data.set_len(index_at + tail.len() as u64).map_err(UpperError::file("cut", data_path))?;
        self.data.sync_data().map_err(UpperError::file(SYNC, data_path)).inspect_err(|error| {
            self.remember_failed_flush(error);
        })?;
        Ok(Layer::from_parts(trailer, mappings, self.data.clone()))
    }

    /// Moves the sealed file into place and gives up the index file.
    pub(crate) fn publish(&self, sealed_path: &Path) -> Result<(), UpperError> {
        let data_path = &self.files.data;
        rename_new(data_path, sealed_path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => UpperError::SealedPathExists { path: sealed_path.to_owned() },
            _ => UpperError::file("move the sealed layer to", sealed_path)(error),
        })?;
        let synced = sync_directory_of(sealed_path).and_then(|()| sync_directory_of(data_path));
        if let Err(error) = synced {
            // Best effort: if the name cannot be given back either, the caller finds the layer under the new one.
            let _ = rename_new(sealed_path, data_path);
            return Err(error);
        }
        // From here on the layer is complete. What is left over does no harm and must not look like a failure.
        let _ = fs::remove_file(&self.files.index);
        let _ = self.data.unlock();
        Ok(())
    }

    /// Takes a failed seal back: index and trailer are cut off, writes may enter again.
    pub(crate) fn unseal(&self) {
        // When the cut fails, the bytes stay as dead data, which no entry names.
        let _ = self.data.set_len(self.end_of_data_bytes());
        self.gate().reopen();
    }

    /// Where the data ends, as a place for the index.
    fn end_of_data_bytes(&self) -> u64 {
        match &self.engine {
            Engine::Append { next_sector, .. } => next_sector.load(Ordering::SeqCst) * SECTOR_BYTES,
            Engine::Sparse { .. } | Engine::ReadOnly => SECTION_BYTES + self.header.virtual_size_bytes,
        }
    }
}

/// Renames without replacing a file of the new name.
fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // The file system does not know the flag; the name was checked before.
        Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_err() => fs::rename(from, to),
        result => Ok(result?),
    }
}
