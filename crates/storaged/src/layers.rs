//! Layer files that many devices use are opened once.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use overlaybd::Layer;

use crate::StorageError;

/// What tells one file from another that took its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    size_bytes: u64,
}

/// Open layers by path. A layer is closed with the last device that uses it.
#[derive(Debug, Default)]
pub(crate) struct LayerCache {
    open: Mutex<HashMap<PathBuf, (Identity, Weak<Layer>)>>,
}

impl LayerCache {
    /// The layer at `path`.
    ///
    /// Two callers at once may both open a layer that is new; one of the two openings is then used by one device only,
    /// which costs memory and nothing else.
    pub(crate) fn get(&self, path: &Path) -> Result<Arc<Layer>, StorageError> {
        let metadata = fs::metadata(path).map_err(StorageError::io("examining the layer", path))?;
        let identity = Identity { device: metadata.dev(), inode: metadata.ino(), size_bytes: metadata.len() };
        if let Some((known, layer)) = self.table().get(path)
            && *known == identity
            && let Some(layer) = layer.upgrade()
        {
            return Ok(layer);
        }
        let layer = Layer::open_file(path).map_err(|error| StorageError::Layers {
            action: format!("opening the layer {}", path.display()),
            reason: error.to_string(),
            no_space: false,
        })?;
        let mut table = self.table();
        table.retain(|_, (_, layer)| layer.strong_count() > 0);
        table.insert(path.to_owned(), (identity, Arc::downgrade(&layer)));
        Ok(layer)
    }

    /// Enters a layer that was made here, so that the next device finds it open.
    pub(crate) fn add(&self, path: &Path, layer: &Arc<Layer>) {
        let Ok(metadata) = fs::metadata(path) else { return };
        let identity = Identity { device: metadata.dev(), inode: metadata.ino(), size_bytes: metadata.len() };
        self.table().insert(path.to_owned(), (identity, Arc::downgrade(layer)));
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<PathBuf, (Identity, Weak<Layer>)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
