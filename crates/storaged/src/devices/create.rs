//! Making a device, once or again.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use overlaybd::{Stack, Upper, UpperFiles};
use uuid::Uuid;

use super::open::{create_upper, open_upper};
use super::{DeviceView, Devices, OpenDevice, Served, image, spec};
use crate::records::{DeviceRecord, UpperRecord};
use crate::{StorageError, durable};

const DEVICE_ID_BYTES_MAX: usize = 64;
/// The format numbers layers with 8 bits, one number is not used, and one layer is the upper.
const LOWERS_MAX: usize = 254;

/// What a device is asked to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewDevice {
    pub(crate) device_id: String,
    /// Bottom first.
    pub(crate) lower_paths: Vec<PathBuf>,
    /// None for a read-only device.
    pub(crate) upper_directory: Option<PathBuf>,
    /// 0 takes the size of the stack.
    pub(crate) virtual_size_bytes: u64,
}

impl Devices {
    /// Makes the device, or answers the one that was made by the same request before.
    pub(crate) fn create(&self, request: &NewDevice) -> Result<DeviceView, StorageError> {
        self.check_not_ending()?;
        request.check()?;
        let _layers_stay = self.creation.blocking_read();
        let entry = Arc::clone(self.entries().entry(request.device_id.clone()).or_default());
        let _operation = entry.lock();
        if let Some(open) = &mut *entry.state() {
            if let Served::Unrecorded(reason) = &open.served {
                let reason = reason.clone();
                return Err(StorageError::Damaged { device_id: request.device_id.clone(), reason });
            }
            request.check_same(&open.record)?;
            if open.record.users_lost {
                // Whoever asks again opens it again.
                let record = DeviceRecord { users_lost: false, ..open.record.clone() };
                self.records.write(&record)?;
                open.record = record;
            }
            return Ok(self.view(open));
        }
        let made = self.make(request).map(|open| {
            let view = self.view(&open);
            *entry.state() = Some(open);
            view
        });
        self.forget(&request.device_id, &entry);
        made
    }

    fn make(&self, request: &NewDevice) -> Result<OpenDevice, StorageError> {
        let lowers = self.open_lowers(&request.lower_paths)?;
        let of_lowers = lowers.iter().rev().map(|layer| layer.virtual_size_bytes()).find(|bytes| *bytes != 0);
        let asked = Some(request.virtual_size_bytes).filter(|bytes| *bytes != 0);
        let virtual_size_bytes = match (asked, of_lowers, &request.upper_directory) {
            (Some(asked), Some(stored), None) if asked != stored => {
                return Err(StorageError::InvalidRequest(format!(
                    "the layers have {stored} bytes; a read-only device cannot have {asked}"
                )));
            }
            (Some(asked), _, _) => asked,
            (None, Some(stored), _) => stored,
            (None, None, _) => {
                return Err(StorageError::InvalidRequest(
                    "neither the request nor a layer says how large the device is".to_owned(),
                ));
            }
        };
        let uuid = Uuid::new_v4();
        let parent_uuid = lowers.last().and_then(|layer| layer.header().uuid);
        let record = DeviceRecord {
            format: DeviceRecord::FORMAT,
            device_id: request.device_id.clone(),
            inode: self.inodes.next()?,
            lower_paths: request.lower_paths.clone(),
            created_lower_count: request.lower_paths.len(),
            virtual_size_bytes,
            upper: request.upper_directory.as_ref().map(|directory| UpperRecord {
                directory: directory.clone(),
                generation: 0,
                uuid: uuid.to_string(),
                sealing_into: None,
            }),
            users_lost: false,
        };
        let upper = match &record.upper {
            Some(upper) => {
                durable::make_directory(&upper.directory)
                    .map_err(StorageError::io("making", &upper.directory))?;
                let files = upper.live_files();
                remove_unused(&files)?;
                Some((create_upper(&files, virtual_size_bytes, uuid, parent_uuid)?, files))
            }
            None => None,
        };
        let (upper, files) = upper.unzip();
        self.publish(record, lowers, upper).inspect_err(|_| {
            if let Some(files) = files {
                remove_files(&files);
            }
        })
    }

    fn publish(
        &self,
        record: DeviceRecord,
        lowers: Vec<Arc<overlaybd::Layer>>,
        upper: Option<Upper>,
    ) -> Result<OpenDevice, StorageError> {
        let action = format!("opening the stack of device {:?}", record.device_id);
        let stack = Arc::new(Stack::open(lowers, upper).map_err(StorageError::stack(action))?);
        let served = Served::Stack(stack);
        // Before the path exists: what somebody may have opened must be there again after a crash.
        self.records.write(&record)?;
        if let Err(error) = self.front_end.open(spec(&record), image(&record, &served)) {
            if let Err(error) = self.records.remove(&record.device_id) {
                tracing::error!(device_id = record.device_id, %error, "the record of a device that was not made stays");
            }
            return Err(error.into());
        }
        Ok(OpenDevice { record, served })
    }
}

/// A request that was interrupted by a crash may have left an upper that nothing was written to. It gives way to the
/// repeated request; anything else in its place is somebody's data.
fn remove_unused(files: &UpperFiles) -> Result<(), StorageError> {
    if files.data.symlink_metadata().is_err() && files.index.symlink_metadata().is_err() {
        return Ok(());
    }
    let taken = |reason: &str| {
        StorageError::Unsuitable(format!(
            "{} exists already ({reason}); a new device needs a directory without an upper",
            files.data.display()
        ))
    };
    match open_upper(files) {
        Ok(upper) if upper.is_empty() => {}
        Ok(_) => return Err(taken("it has data")),
        Err(error) => return Err(taken(&error.to_string())),
    }
    remove_files(files);
    Ok(())
}

/// Best effort: what stays is refused by name when it is in the way.
pub(super) fn remove_files(files: &UpperFiles) {
    for path in [&files.data, &files.index] {
        if let Err(error) = durable::remove(path) {
            tracing::warn!(path = %path.display(), %error, "a file of an unused upper stays");
        }
    }
}

impl NewDevice {
    fn check(&self) -> Result<(), StorageError> {
        check_device_id(&self.device_id)?;
        if self.lower_paths.len() > LOWERS_MAX {
            let count = self.lower_paths.len();
            return Err(StorageError::InvalidRequest(format!(
                "{count} layers are too many: a device has at most {LOWERS_MAX}; compact some first"
            )));
        }
        if self.lower_paths.is_empty() && self.upper_directory.is_none() {
            return Err(StorageError::InvalidRequest(
                "a device needs at least one layer or an upper".to_owned(),
            ));
        }
        if !self.virtual_size_bytes.is_multiple_of(blockdev::SECTOR_BYTES) {
            return Err(StorageError::InvalidRequest(format!(
                "the virtual size of {} bytes is not a multiple of 512",
                self.virtual_size_bytes
            )));
        }
        self.lower_paths.iter().chain(&self.upper_directory).try_for_each(|path| check_path(path))
    }

    fn check_same(&self, record: &DeviceRecord) -> Result<(), StorageError> {
        let differs = |difference: &str| StorageError::AlreadyExists {
            device_id: self.device_id.clone(),
            difference: difference.to_owned(),
        };
        if record.lower_paths.get(..record.created_lower_count) != Some(&self.lower_paths[..]) {
            return Err(differs("other layers"));
        }
        if record.upper.as_ref().map(|upper| &upper.directory) != self.upper_directory.as_ref() {
            return Err(differs("another upper directory"));
        }
        if self.virtual_size_bytes != 0 && self.virtual_size_bytes != record.virtual_size_bytes {
            return Err(differs("another size"));
        }
        Ok(())
    }
}

/// Ids become file names and appear in logs and command lines.
pub(super) fn check_device_id(device_id: &str) -> Result<(), StorageError> {
    let usable = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=DEVICE_ID_BYTES_MAX).contains(&device_id.len()) && device_id.bytes().all(usable) {
        return Ok(());
    }
    let shown: String = device_id.chars().take(80).collect();
    Err(StorageError::InvalidRequest(format!(
        "device id {shown:?} is not 1 to {DEVICE_ID_BYTES_MAX} characters of a-z, 0-9 and '-'"
    )))
}

/// Paths are absolute and without `..`: the daemon's own directory is nobody's business.
pub(super) fn check_path(path: &Path) -> Result<(), StorageError> {
    let plain = path.is_absolute()
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && !path.as_os_str().as_encoded_bytes().contains(&0)
        && path.as_os_str().len() < 4096;
    if plain {
        Ok(())
    } else {
        Err(StorageError::InvalidRequest(format!("{path:?} is not an absolute path without '..'")))
    }
}
