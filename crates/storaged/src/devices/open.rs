//! From a record to a stack, whatever a crash left.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use overlaybd::{Layer, Stack, Upper, UpperError, UpperFiles, UpperMode, UpperOptions};
use uuid::Uuid;

use super::Devices;
use crate::StorageError;
use crate::records::DeviceRecord;

/// Index entries are written at once, never collected in memory: when this process is killed, its users go on with what
/// they were told is written, without having flushed. Collected entries would be lost to them.
const GROUP_COMMIT_BYTES: u32 = 0;

/// A daemon that was killed holds the locks of its uppers until the disk operation it is in has ended.
const UPPER_PATIENCE: Duration = Duration::from_secs(5);

impl Devices {
    /// Opens what the record says, after carrying a restack through that was interrupted.
    pub(super) fn open_stack(&self, record: &mut DeviceRecord) -> Result<Arc<Stack>, StorageError> {
        self.finish_restack(record)?;
        let lowers = self.open_lowers(&record.lower_paths)?;
        let upper = match &record.upper {
            Some(upper) => Some(open_upper(&upper.live_files())?),
            None => None,
        };
        let action = format!("opening the stack of device {:?}", record.device_id);
        let stack = Stack::open(lowers, upper).map_err(StorageError::stack(action))?;
        if stack.virtual_size_bytes() != record.virtual_size_bytes {
            return Err(StorageError::Damaged {
                device_id: record.device_id.clone(),
                reason: format!(
                    "its layers say it has {} bytes, its record says {}",
                    stack.virtual_size_bytes(),
                    record.virtual_size_bytes
                ),
            });
        }
        Ok(Arc::new(stack))
    }

    pub(crate) fn open_lowers<P: AsRef<Path>>(&self, paths: &[P]) -> Result<Vec<Arc<Layer>>, StorageError> {
        paths.iter().map(|path| self.layers.get(path.as_ref())).collect()
    }
}

/// Makes an empty upper for a disk of `virtual_size_bytes`.
pub(crate) fn create_upper(
    files: &UpperFiles,
    virtual_size_bytes: u64,
    uuid: Uuid,
    parent_uuid: Option<Uuid>,
) -> Result<Upper, StorageError> {
    let options = UpperOptions {
        mode: UpperMode::Append,
        virtual_size_bytes,
        uuid,
        parent_uuid,
        group_commit_bytes: GROUP_COMMIT_BYTES,
    };
    let action = format!("making the writable layer {}", files.data.display());
    Upper::create(files, &options).map_err(StorageError::upper(action))
}

/// Opens an upper, waiting for a predecessor that is still ending.
pub(crate) fn open_upper(files: &UpperFiles) -> Result<Upper, StorageError> {
    let deadline = Instant::now() + UPPER_PATIENCE;
    loop {
        match Upper::open(files, GROUP_COMMIT_BYTES) {
            Err(UpperError::InUse { .. }) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            result => {
                let action = format!("opening the writable layer {}", files.data.display());
                return result.map_err(StorageError::upper(action));
            }
        }
    }
}
