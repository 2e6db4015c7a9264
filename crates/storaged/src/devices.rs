//! Every device of the host: what is on record, what is open, and the operations on them.
//!
//! All of this blocks on disks; the service calls it from blocking threads. Operations on one device are done one after
//! the other, those on different devices at the same time. Looking at devices waits for neither.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blockdev::{DeviceKind, DeviceSpec, FrontEnd, FrontEndError, Image, UnreadableImage};
use overlaybd::Stack;
use tokio::sync::RwLock;

use crate::StorageError;
use crate::layers::LayerCache;
use crate::records::{BadRecord, DeviceRecord, Inodes, Records};

mod create;
mod open;
mod restack;

pub(crate) use create::NewDevice;
pub(crate) use open::create_upper;

/// A device as others see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DeviceView {
    pub(crate) device_id: String,
    pub(crate) path: PathBuf,
    pub(crate) virtual_size_bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) lower_paths: Vec<PathBuf>,
    pub(crate) upper_data_bytes: u64,
    /// Why it is of no use to whoever has it open; empty when it is sound.
    pub(crate) damage: String,
}

/// All devices, and what they are made of.
#[derive(Debug)]
pub(crate) struct Devices {
    records: Records,
    inodes: Inodes,
    layers: LayerCache,
    front_end: Arc<dyn FrontEnd>,
    entries: Mutex<BTreeMap<String, Arc<Entry>>>,
    ending: AtomicBool,
    /// Held shared while a device begins to use layers, exclusively while unused layers are removed.
    creation: RwLock<()>,
}

/// One device id.
#[derive(Debug, Default)]
struct Entry {
    /// Held for the whole of an operation that changes the device.
    operation: Mutex<()>,
    /// Held for moments. `None` before the device is made and after it is closed.
    state: Mutex<Option<OpenDevice>>,
}

#[derive(Debug, Clone)]
struct OpenDevice {
    record: DeviceRecord,
    served: Served,
}

/// What users of a device are told whose mount was lost.
const USERS_LOST: &str = "its mount was lost when both the storage daemon and its keeper ended, and was made anew: every \
                          request on a file that was opened before fails; its data is intact";

#[derive(Debug, Clone)]
enum Served {
    Stack(Arc<Stack>),
    /// Its layers or files cannot be opened.
    Damaged(String),
    /// Its record cannot be read; nothing is known but its id.
    Unrecorded(String),
}

impl Entry {
    fn lock(&self) -> MutexGuard<'_, ()> {
        // The record on disk and the state below are consistent at every step, also after a panic.
        self.operation.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, Option<OpenDevice>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Devices {
    /// Opens every device on record. The front end does not serve yet; call its `serve` next.
    ///
    /// A device that cannot be opened is served with errors and reported; it keeps no other from being served. On a
    /// `fresh_mount`, every device on record is marked as lost to its users.
    pub(crate) fn open(
        state_directory: &Path,
        records: Records,
        front_end: Arc<dyn FrontEnd>,
        fresh_mount: bool,
    ) -> Result<Self, StorageError> {
        let (mut good, bad) = records.load()?;
        // Before anything is served, and durably: the next daemon takes the new mount over and would not know.
        for record in good.iter_mut().filter(|record| fresh_mount && !record.users_lost) {
            record.users_lost = true;
            records.write(record)?;
            tracing::error!(device_id = record.device_id, "a device is lost to its users: {USERS_LOST}");
        }
        let highest_inode = good.last().map_or(0, |record| record.inode);
        let devices = Self {
            records,
            inodes: Inodes::open(&state_directory.join("next-inode"), highest_inode)?,
            layers: LayerCache::default(),
            front_end,
            entries: Mutex::default(),
            ending: AtomicBool::new(false),
            creation: RwLock::default(),
        };
        for record in good {
            devices.reopen(record)?;
        }
        for bad in bad {
            devices.report_bad_record(bad);
        }
        Ok(devices)
    }

    fn reopen(&self, mut record: DeviceRecord) -> Result<(), StorageError> {
        let served = match self.open_stack(&mut record) {
            Ok(stack) => Served::Stack(stack),
            Err(error) => {
                tracing::error!(device_id = record.device_id, %error, "a device cannot be opened; its users get I/O errors");
                Served::Damaged(error.to_string())
            }
        };
        self.front_end.open(spec(&record), image(&record, &served))?;
        let device_id = record.device_id.clone();
        let entry =
            Entry { operation: Mutex::default(), state: Mutex::new(Some(OpenDevice { record, served })) };
        self.entries().insert(device_id, Arc::new(entry));
        Ok(())
    }

    fn report_bad_record(&self, bad: BadRecord) {
        let reason = format!(
            "its record {} cannot be used: {}; repair it, or close the device to put the record aside",
            bad.path.display(),
            bad.reason
        );
        let Some(device_id) = bad.path.file_stem().and_then(|stem| stem.to_str()) else { return };
        tracing::error!(device_id, reason, "a device is lost to its users");
        let record = DeviceRecord {
            format: DeviceRecord::FORMAT,
            device_id: device_id.to_owned(),
            inode: 0,
            lower_paths: Vec::new(),
            created_lower_count: 0,
            virtual_size_bytes: 0,
            upper: None,
            users_lost: false,
        };
        let open = OpenDevice { record, served: Served::Unrecorded(reason) };
        let entry = Entry { operation: Mutex::default(), state: Mutex::new(Some(open)) };
        self.entries().insert(device_id.to_owned(), Arc::new(entry));
    }

    pub(crate) fn get(&self, device_id: &str) -> Result<DeviceView, StorageError> {
        let entry = self.entry(device_id)?;
        let state = entry.state();
        state.as_ref().map(|open| self.view(open)).ok_or_else(|| StorageError::NotFound(device_id.to_owned()))
    }

    pub(crate) fn list(&self) -> Vec<DeviceView> {
        let entries: Vec<_> = self.entries().values().cloned().collect();
        entries.iter().filter_map(|entry| entry.state().as_ref().map(|open| self.view(open))).collect()
    }

    /// Devices that exist, damaged ones included.
    pub(crate) fn count(&self) -> usize {
        let entries: Vec<_> = self.entries().values().cloned().collect();
        entries.iter().filter(|entry| entry.state().is_some()).count()
    }

    /// Makes every write acknowledged so far durable.
    pub(crate) fn flush(&self, device_id: &str) -> Result<(), StorageError> {
        // Not an operation: a flush is safe beside anything.
        let (_, stack) = self.sound(&*self.entry(device_id)?, device_id)?;
        stack.flush().map_err(StorageError::stack(format!("flushing device {device_id:?}")))
    }

    /// Closes the device and forgets it; an unknown one is fine.
    pub(crate) fn close(&self, device_id: &str, delete_upper: bool) -> Result<(), StorageError> {
        let entry = match self.entry(device_id) {
            Ok(entry) => entry,
            Err(StorageError::NotFound(_)) => return Ok(()),
            Err(error) => return Err(error),
        };
        let _operation = entry.lock();
        let Some(OpenDevice { record, served }) = entry.state().clone() else { return Ok(()) };
        match served {
            Served::Unrecorded(_) => self.records.put_aside(device_id)?,
            Served::Damaged(_) => {
                self.close_path(device_id)?;
                self.records.remove(device_id)?;
            }
            Served::Stack(stack) => {
                // While it is open, so that a failure leaves everything as it was.
                let flushed =
                    stack.flush().map_err(StorageError::stack(format!("flushing device {device_id:?}")));
                if !delete_upper {
                    flushed?;
                }
                self.close_path(device_id)?;
                // What was written between the flush and the end.
                if !delete_upper && let Err(error) = stack.flush() {
                    tracing::error!(device_id, %error, "the last writes to a device that was closed in use are lost");
                }
                self.records.remove(device_id)?;
            }
        }
        *entry.state() = None;
        self.forget(device_id, &entry);
        if delete_upper && let Some(upper) = &record.upper {
            // Without syncing the directory: no record names these files any more. The next generation's are of a restack
            // that did not get far, or that a damaged device could not carry through.
            for files in [upper.live_files(), upper.files(upper.generation + 1)] {
                for path in [&files.data, &files.index] {
                    match std::fs::remove_file(path) {
                        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                            return Err(StorageError::io("removing", path)(error));
                        }
                        _ => {}
                    }
                }
            }
            // Only when it holds nothing else.
            drop(std::fs::remove_dir(&upper.directory));
        }
        Ok(())
    }

    /// Refuses what would begin from now on and makes every device durable.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::SeqCst);
        let entries: Vec<_> =
            self.entries().iter().map(|(id, entry)| (id.clone(), Arc::clone(entry))).collect();
        for (device_id, entry) in entries {
            let _operation = entry.lock();
            if let Ok((_, stack)) = self.sound(&entry, &device_id)
                && let Err(error) = stack.flush()
            {
                tracing::error!(device_id, %error, "flushing a device at the end failed");
            }
        }
    }

    /// Keeps devices from being made while it is held.
    pub(crate) async fn hold_creation(&self) -> tokio::sync::RwLockWriteGuard<'_, ()> {
        self.creation.write().await
    }

    /// Layer files that devices use, and those that a restack is making.
    pub(crate) fn layers_in_use(&self) -> Vec<PathBuf> {
        let entries: Vec<_> = self.entries().values().cloned().collect();
        let mut paths = Vec::new();
        for entry in entries {
            if let Some(open) = &*entry.state() {
                paths.extend_from_slice(&open.record.lower_paths);
            }
        }
        paths
    }

    pub(crate) fn front_end(&self) -> &dyn FrontEnd {
        &*self.front_end
    }

    pub(crate) fn next_inode(&self) -> Result<u64, StorageError> {
        self.inodes.next()
    }

    /// Enters a layer that was made elsewhere, so that it need not be opened again.
    pub(crate) fn add_layer(&self, path: &Path, layer: &Arc<overlaybd::Layer>) {
        self.layers.add(path, layer);
    }

    pub(crate) fn check_not_ending(&self) -> Result<(), StorageError> {
        if self.ending.load(Ordering::SeqCst) { Err(StorageError::ShuttingDown) } else { Ok(()) }
    }

    fn close_path(&self, device_id: &str) -> Result<(), StorageError> {
        match self.front_end.close(device_id) {
            Ok(_) | Err(FrontEndError::NotFound(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entry(&self, device_id: &str) -> Result<Arc<Entry>, StorageError> {
        create::check_device_id(device_id)?;
        self.entries().get(device_id).cloned().ok_or_else(|| StorageError::NotFound(device_id.to_owned()))
    }

    /// Takes an entry without a device out of the table, unless somebody waits for it.
    fn forget(&self, device_id: &str, entry: &Arc<Entry>) {
        let mut entries = self.entries();
        // Two: the table's and the caller's. Clones are only made under the table's lock.
        if Arc::strong_count(entry) <= 2 && entry.state().is_none() {
            entries.remove(device_id);
        }
    }

    /// Record and stack of a device that can be worked on.
    fn sound(&self, entry: &Entry, device_id: &str) -> Result<(DeviceRecord, Arc<Stack>), StorageError> {
        match &*entry.state() {
            None => Err(StorageError::NotFound(device_id.to_owned())),
            Some(OpenDevice { record, served: Served::Stack(stack) }) => {
                Ok((record.clone(), Arc::clone(stack)))
            }
            Some(OpenDevice { served: Served::Damaged(reason) | Served::Unrecorded(reason), .. }) => {
                Err(StorageError::Damaged { device_id: device_id.to_owned(), reason: reason.clone() })
            }
        }
    }

    fn view(&self, open: &OpenDevice) -> DeviceView {
        let record = &open.record;
        let (upper_data_bytes, damage) = match &open.served {
            Served::Stack(stack) => {
                let damage = if record.users_lost { USERS_LOST } else { "" };
                (stack.upper_data_bytes(), damage.to_owned())
            }
            Served::Damaged(reason) | Served::Unrecorded(reason) => (0, reason.clone()),
        };
        DeviceView {
            device_id: record.device_id.clone(),
            path: self.front_end.mount_point().join(&record.device_id),
            virtual_size_bytes: record.virtual_size_bytes,
            read_only: record.upper.is_none(),
            lower_paths: record.lower_paths.clone(),
            upper_data_bytes,
            damage,
        }
    }
}

fn spec(record: &DeviceRecord) -> DeviceSpec {
    let kind = if record.upper.is_some() { DeviceKind::Disk } else { DeviceKind::ReadOnlyDisk };
    DeviceSpec { name: record.device_id.clone(), inode: record.inode, kind }
}

fn image(record: &DeviceRecord, served: &Served) -> Arc<dyn Image> {
    match served {
        Served::Stack(stack) => Arc::clone(stack) as Arc<dyn Image>,
        Served::Damaged(reason) | Served::Unrecorded(reason) => {
            Arc::new(UnreadableImage::new(record.virtual_size_bytes, reason.as_str()))
        }
    }
}

#[cfg(test)]
mod tests;
