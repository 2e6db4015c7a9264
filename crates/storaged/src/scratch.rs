//! Writable devices on which image layers are made.
//!
//! They are not on record: an import that a daemon did not finish is begun again by the next one, which removes what is in
//! the scratch directory before anything else. Their names have a dot, which no device id has.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use blockdev::{DeviceKind, DeviceSpec, FrontEndError, Image};
use image::{ImageError, ScratchDisk, ScratchDisks};
use overlaybd::{Stack, UpperFiles};
use uuid::Uuid;

use crate::devices::{Devices, create_upper};
use crate::{StorageError, durable};

/// Scratch disks among the daemon's devices.
#[derive(Debug)]
pub(crate) struct Scratch {
    devices: Arc<Devices>,
    counter: AtomicU64,
    open: Mutex<HashMap<String, OpenScratch>>,
}

#[derive(Debug)]
struct OpenScratch {
    stack: Arc<Stack>,
    files: UpperFiles,
    directory: PathBuf,
}

impl Scratch {
    pub(crate) fn new(devices: Arc<Devices>) -> Self {
        Self { devices, counter: AtomicU64::new(0), open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, OpenScratch>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(
        &self,
        lowers: &[PathBuf],
        parent: &Path,
        virtual_size_bytes: u64,
    ) -> Result<ScratchDisk, StorageError> {
        self.devices.check_not_ending()?;
        let id = format!("scratch.{}", self.counter.fetch_add(1, Ordering::Relaxed));
        let directory = parent.join(format!("disk-{}", Uuid::new_v4().simple()));
        durable::make_directory(&directory).map_err(StorageError::io("making", &directory))?;
        let made = self.make_in(&id, lowers, &directory, virtual_size_bytes);
        if made.is_err() {
            remove_directory(&directory);
        }
        made
    }

    fn make_in(
        &self,
        id: &str,
        lowers: &[PathBuf],
        directory: &Path,
        virtual_size_bytes: u64,
    ) -> Result<ScratchDisk, StorageError> {
        let lowers = self.devices.open_lowers(lowers)?;
        let files = UpperFiles { data: directory.join("upper.data"), index: directory.join("upper.index") };
        let parent_uuid = lowers.last().and_then(|layer| layer.header().uuid);
        let upper = create_upper(&files, virtual_size_bytes, Uuid::new_v4(), parent_uuid)?;
        let stack =
            Stack::open(lowers, Some(upper)).map_err(StorageError::stack("opening a scratch disk"))?;
        let stack = Arc::new(stack);
        let spec =
            DeviceSpec { name: id.to_owned(), inode: self.devices.next_inode()?, kind: DeviceKind::Disk };
        let path = self.devices.front_end().open(spec, Arc::clone(&stack) as Arc<dyn Image>)?;
        self.open().insert(id.to_owned(), OpenScratch { stack, files, directory: directory.to_owned() });
        Ok(ScratchDisk { id: id.to_owned(), path })
    }

    fn close(&self, id: &str) -> Result<Option<OpenScratch>, StorageError> {
        match self.devices.front_end().close(id) {
            Ok(_) | Err(FrontEndError::NotFound(_)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.open().remove(id))
    }

    fn seal(&self, id: &str, sealed_path: &Path) -> Result<(), StorageError> {
        let open = self.close(id)?.ok_or_else(|| StorageError::NotFound(id.to_owned()))?;
        let sealed = open.stack.seal(sealed_path).map_err(StorageError::stack("sealing a scratch disk"));
        drop(open.stack);
        drop(open.files);
        remove_directory(&open.directory);
        let layer = sealed?;
        self.devices.add_layer(sealed_path, &layer);
        Ok(())
    }

    fn discard(&self, id: &str) -> Result<(), StorageError> {
        if let Some(open) = self.close(id)? {
            remove_directory(&open.directory);
        }
        Ok(())
    }
}

/// Best effort: the next start removes what stays.
fn remove_directory(directory: &Path) {
    if let Err(error) = std::fs::remove_dir_all(directory) {
        tracing::warn!(path = %directory.display(), %error, "a scratch directory stays until the next start");
    }
}

/// The trait as the importer sees it; each call runs on a blocking thread.
#[derive(Debug)]
pub(crate) struct AsyncScratch(pub(crate) Arc<Scratch>);

impl AsyncScratch {
    async fn run<T: Send + 'static>(
        &self,
        operation: &'static str,
        work: impl FnOnce(&Scratch) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, ImageError> {
        let scratch = Arc::clone(&self.0);
        let failed = |reason: String| ImageError::ScratchDisk { operation, reason };
        match tokio::task::spawn_blocking(move || work(&scratch)).await {
            Ok(result) => result.map_err(|error| failed(error.to_string())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

#[async_trait]
impl ScratchDisks for AsyncScratch {
    async fn open(
        &self,
        lowers: &[PathBuf],
        scratch_directory: &Path,
        virtual_size_bytes: u64,
    ) -> Result<ScratchDisk, ImageError> {
        let (lowers, directory) = (lowers.to_vec(), scratch_directory.to_owned());
        self.run("open", move |scratch| scratch.make(&lowers, &directory, virtual_size_bytes)).await
    }

    async fn seal(&self, disk: ScratchDisk, sealed_path: &Path) -> Result<(), ImageError> {
        let sealed_path = sealed_path.to_owned();
        self.run("seal", move |scratch| scratch.seal(&disk.id, &sealed_path)).await
    }

    async fn discard(&self, disk: ScratchDisk) -> Result<(), ImageError> {
        self.run("discard", move |scratch| scratch.discard(&disk.id)).await
    }
}
