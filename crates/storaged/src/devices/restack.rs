//! Sealing the live upper and going on upon a new one, with the device open.
//!
//! The steps and what a crash after each leaves:
//!
//! 1. A new, empty upper is made under the next generation's names. Left over: files that no record names; the next
//!    restack removes them.
//! 2. The record says `sealing_into`. From here the device is opened by carrying the restack through: writes may have gone
//!    to the new upper from this moment on, so it is never thrown away.
//! 3. The stack goes on upon the new upper, seals the old one and moves it. Left over: the sealed file or its parts;
//!    sealing again is safe until the file has its final name, which means that it is complete.
//! 4. The record names the sealed layer among the lowers, and the new upper.

use std::path::Path;

use overlaybd::StackError;
use uuid::Uuid;

use super::create::{check_path, remove_files};
use super::open::{create_upper, open_upper};
use super::{DeviceView, Devices};
use crate::StorageError;
use crate::records::{DeviceRecord, UpperRecord};

impl Devices {
    /// Seals the live upper into `sealed_path`. Repeating a call that succeeded changes nothing.
    pub(crate) fn restack(&self, device_id: &str, sealed_path: &Path) -> Result<DeviceView, StorageError> {
        self.check_not_ending()?;
        check_path(sealed_path)?;
        let entry = self.entry(device_id)?;
        let _operation = entry.lock();
        let (record, stack) = self.sound(&entry, device_id)?;
        let sealed_by_us = &record.lower_paths[record.created_lower_count..];
        if sealed_by_us.last().is_some_and(|last| last == sealed_path) {
            return self.get(device_id);
        }
        let Some(upper) = record.upper.clone() else {
            return Err(StorageError::Unsuitable(format!(
                "device {device_id:?} is read-only: it has nothing to seal"
            )));
        };
        if record.lower_paths.len() + 2 > overlaybd::MAX_LAYERS {
            return Err(StorageError::Unsuitable(format!(
                "device {device_id:?} has {} layers already; compact them before the next restack",
                record.lower_paths.len() + 1
            )));
        }
        if sealed_path.symlink_metadata().is_ok() {
            return Err(StorageError::Unsuitable(format!(
                "{} exists already; a sealed layer overwrites nothing",
                sealed_path.display()
            )));
        }

        let next_files = upper.files(upper.generation + 1);
        // No record names them: left by a restack that did not get to its second step.
        remove_files(&next_files);
        let uuid = Uuid::new_v4();
        let parent_uuid = Uuid::parse_str(&upper.uuid).ok();
        let next_upper = create_upper(&next_files, record.virtual_size_bytes, uuid, parent_uuid)?;
        let begun = UpperRecord { sealing_into: Some(sealed_path.to_owned()), ..upper };
        let begun = DeviceRecord { upper: Some(begun), ..record.clone() };
        if let Err(error) = self.records.write(&begun) {
            drop(next_upper);
            remove_files(&next_files);
            return Err(error);
        }
        match stack.restack(next_upper, sealed_path) {
            Ok(layer) => self.layers.add(sealed_path, &layer),
            Err(error @ StackError::Broken { .. }) => {
                // The record stays as it is: the next daemon carries the restack through.
                tracing::error!(device_id, %error, "a device cannot be written until the storage daemon is restarted");
                return Err(StorageError::stack(format!("restacking device {device_id:?}"))(error));
            }
            Err(error) => {
                // In this order, a crash or a full disk in between is still seen as a restack that was given up.
                remove_files(&next_files);
                self.records.write(&record)?;
                return Err(StorageError::stack(format!("restacking device {device_id:?}"))(error));
            }
        }

        let mut done = begun;
        advance(&mut done, sealed_path, uuid);
        if let Err(error) = self.records.write(&done) {
            // What is on record leads to the same state; only the next restack must find it up to date.
            tracing::warn!(device_id, %error, "the record of a restack could not be completed; it will be at the next start");
        }
        if let Some(open) = entry.state().as_mut() {
            open.record = done;
        }
        self.get(device_id)
    }

    /// Carries a restack through that a crash interrupted, or drops one that had not begun.
    pub(super) fn finish_restack(&self, record: &mut DeviceRecord) -> Result<(), StorageError> {
        let Some(upper) = record.upper.clone() else { return Ok(()) };
        let Some(sealed_path) = &upper.sealing_into else { return Ok(()) };
        let device_id = &record.device_id;
        let next_files = upper.files(upper.generation + 1);
        let sealed = sealed_path.symlink_metadata().is_ok();
        let continued = next_files.data.symlink_metadata().is_ok();
        if !sealed && !continued {
            tracing::warn!(device_id, "a restack that was given up is dropped");
            record.upper = Some(UpperRecord { sealing_into: None, ..upper });
            return self.records.write(record);
        }
        tracing::warn!(device_id, sealed_path = %sealed_path.display(), "carrying an interrupted restack through");
        if !sealed {
            let action = format!("sealing the writable layer of device {device_id:?}");
            let layer =
                open_upper(&upper.live_files())?.seal(sealed_path).map_err(StorageError::upper(action))?;
            self.layers.add(sealed_path, &layer);
        }
        let uuid = open_upper(&next_files)?.header().uuid.unwrap_or_default();
        advance(record, sealed_path, uuid);
        self.records.write(record)
    }
}

/// The record after the restack.
fn advance(record: &mut DeviceRecord, sealed_path: &Path, uuid: Uuid) {
    record.lower_paths.push(sealed_path.to_owned());
    if let Some(upper) = &mut record.upper {
        upper.generation += 1;
        upper.uuid = uuid.to_string();
        upper.sealing_into = None;
    }
}
