//! What is durable about devices: one JSON file each, and the inode counter.
//!
//! `<state>/devices/<device id>.json` is a [`DeviceRecord`]. `<state>/next-inode` is a number; every inode below it may have
//! been given out, so it is advanced, durably and in steps, before any is.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

use crate::StorageError;
use crate::durable;

/// Version of the record's layout.
const FORMAT: u32 = 1;

/// 255 paths of at most 4 KiB, with JSON's escapes.
const RECORD_BYTES_MAX: u64 = 8 << 20;

/// A device, as it must be opened again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DeviceRecord {
    /// Always 1 so far; another number is from another version of the daemon.
    pub(crate) format: u32,
    pub(crate) device_id: String,
    /// Number of its file on the mount; never given to another device.
    pub(crate) inode: u64,
    /// Bottom first.
    pub(crate) lower_paths: Vec<PathBuf>,
    /// How many of them it was created with; the others were sealed from its own uppers.
    pub(crate) created_lower_count: usize,
    pub(crate) virtual_size_bytes: u64,
    pub(crate) upper: Option<UpperRecord>,
    /// Set when the mount had to be made anew while the device existed: whoever opened it before has a file that fails for
    /// ever, and a later daemon on the new mount must know that too. Cleared when the device is asked for again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) users_lost: bool,
}

/// The writable layer of a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpperRecord {
    pub(crate) directory: PathBuf,
    /// How many uppers came before this one; part of the files' names.
    pub(crate) generation: u64,
    /// Identity of the live upper, which its successor names as its parent.
    pub(crate) uuid: String,
    /// Set while a restack is under way: the upper is being sealed into this path and the next generation is or is about
    /// to be in use. A crash leaves it set; then the restack is carried through when the device is opened.
    pub(crate) sealing_into: Option<PathBuf>,
}

impl UpperRecord {
    /// Files of the given generation. The first has plain names.
    pub(crate) fn files(&self, generation: u64) -> overlaybd::UpperFiles {
        let name = |suffix: &str| match generation {
            0 => self.directory.join(format!("upper.{suffix}")),
            _ => self.directory.join(format!("upper-{generation}.{suffix}")),
        };
        overlaybd::UpperFiles { data: name("data"), index: name("index") }
    }

    pub(crate) fn live_files(&self) -> overlaybd::UpperFiles {
        self.files(self.generation)
    }
}

impl DeviceRecord {
    pub(crate) const FORMAT: u32 = FORMAT;
}

/// A record that cannot be used.
#[derive(Debug)]
pub(crate) struct BadRecord {
    pub(crate) path: PathBuf,
    pub(crate) reason: String,
}

/// The directory of records.
#[derive(Debug)]
pub(crate) struct Records {
    directory: PathBuf,
}

impl Records {
    /// Opens the directory, made when missing; removes what an interrupted write left.
    pub(crate) fn open(directory: &Path) -> Result<Self, StorageError> {
        durable::make_directory(directory).map_err(StorageError::io("making", directory))?;
        let records = Self { directory: directory.to_owned() };
        for path in records.paths()? {
            if path.to_string_lossy().ends_with(durable::PARTIAL_SUFFIX) {
                durable::remove(&path).map_err(StorageError::io("removing", &path))?;
            }
        }
        Ok(records)
    }

    fn path(&self, device_id: &str) -> PathBuf {
        self.directory.join(format!("{device_id}.json"))
    }

    fn paths(&self) -> Result<Vec<PathBuf>, StorageError> {
        let list =
            || fs::read_dir(&self.directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
        list().map_err(StorageError::io("listing", &self.directory))
    }

    /// All records, good and bad. A bad one hides no good one.
    pub(crate) fn load(&self) -> Result<(Vec<DeviceRecord>, Vec<BadRecord>), StorageError> {
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        for path in self.paths()? {
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            match read(&path) {
                Ok(record) if self.path(&record.device_id) == path => good.push(record),
                Ok(record) => {
                    let reason =
                        format!("it is the record of device {:?}; a file was renamed", record.device_id);
                    bad.push(BadRecord { path, reason });
                }
                Err(reason) => bad.push(BadRecord { path, reason }),
            }
        }
        good.sort_by_key(|record| record.inode);
        Ok((good, bad))
    }

    /// Gives a record that cannot be used another name, so that nothing is lost and its id is free.
    pub(crate) fn put_aside(&self, device_id: &str) -> Result<(), StorageError> {
        let path = self.path(device_id);
        let mut aside = path.clone().into_os_string();
        aside.push(".damaged");
        fs::rename(&path, &aside)
            .and_then(|()| durable::sync_directory_of(&path))
            .map_err(StorageError::io("putting aside", &path))
    }

    pub(crate) fn write(&self, record: &DeviceRecord) -> Result<(), StorageError> {
        let path = self.path(&record.device_id);
        let text =
            serde_json::to_vec_pretty(record).map_err(|error| StorageError::Internal(error.to_string()))?;
        durable::write(&path, &text).map_err(StorageError::io("writing the record", &path))
    }

    pub(crate) fn remove(&self, device_id: &str) -> Result<(), StorageError> {
        let path = self.path(device_id);
        durable::remove(&path).map_err(StorageError::io("removing the record", &path))
    }
}

fn read(path: &Path) -> Result<DeviceRecord, String> {
    let size = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > RECORD_BYTES_MAX {
        return Err(format!("it has {size} bytes, more than any record"));
    }
    let text = fs::read(path).map_err(|error| error.to_string())?;
    let record: DeviceRecord = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if record.format != FORMAT {
        return Err(format!("it has format {}, this version knows {FORMAT}", record.format));
    }
    if record.created_lower_count > record.lower_paths.len() {
        return Err("it counts more layers than it names".to_owned());
    }
    Ok(record)
}

/// Gives out inodes, each once in the life of the state directory.
#[derive(Debug)]
pub(crate) struct Inodes {
    path: PathBuf,
    counter: Mutex<Counter>,
}

#[derive(Debug)]
struct Counter {
    next: u64,
    /// First number that is not durably marked as given out.
    reserved: u64,
}

/// Numbers reserved by one durable write. Those left over when the daemon ends are never used; there are enough.
const STEP: u64 = 1024;

impl Inodes {
    /// `highest_used` is the highest inode on record: should the counter be lost, it is not set back below.
    pub(crate) fn open(path: &Path, highest_used: u64) -> Result<Self, StorageError> {
        let stored = match fs::read_to_string(path) {
            Ok(text) => text.trim().parse().ok(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(StorageError::io("reading", path)(error)),
        };
        if stored.is_none() && highest_used > 0 {
            tracing::warn!(path = %path.display(), "the inode counter is lost; it goes on above the devices on record");
        }
        // A counter that was lost may have been some steps further than the devices that are left.
        let after_records = highest_used.saturating_add(1).max(blockdev::fuse::FIRST_DEVICE_INODE);
        let next = match stored {
            Some(stored) => after_records.max(stored),
            None if highest_used > 0 => after_records.saturating_add(64 * STEP),
            None => after_records,
        };
        Ok(Self { path: path.to_owned(), counter: Mutex::new(Counter { next, reserved: next }) })
    }

    pub(crate) fn next(&self) -> Result<u64, StorageError> {
        let mut counter = self.counter.lock().unwrap_or_else(PoisonError::into_inner);
        if counter.next >= counter.reserved {
            let reserved = counter.next.checked_add(STEP).ok_or_else(|| {
                StorageError::Internal(format!("{} holds an impossible number", self.path.display()))
            })?;
            durable::write(&self.path, format!("{reserved}\n").as_bytes())
                .map_err(StorageError::io("writing", &self.path))?;
            counter.reserved = reserved;
        }
        let inode = counter.next;
        counter.next += 1;
        Ok(inode)
    }
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
