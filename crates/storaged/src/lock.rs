//! One daemon for one set of directories.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::StorageError;

/// A daemon that was killed holds its locks until it has finished the disk operation it is in.
const PATIENCE: Duration = Duration::from_secs(5);

/// A locked file; unlocked when this is dropped, or the process ends in whatever way.
#[derive(Debug)]
pub(crate) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    /// Locks `path` and writes this process's id into it.
    pub(crate) fn take(path: &Path) -> Result<Self, StorageError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path)
            .map_err(StorageError::io("opening the lock", path))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                Err(Errno::WOULDBLOCK) => {
                    let mut owner = String::new();
                    // Only for the message.
                    drop((&mut file).take(32).read_to_string(&mut owner));
                    let process_id = owner.trim().parse().ok();
                    return Err(StorageError::Locked { path: path.to_owned(), process_id });
                }
                Err(error) => return Err(StorageError::io("locking", path)(error)),
            }
        }
        // Only for the message of whoever is refused.
        drop(
            file.set_len(0)
                .and_then(|()| file.rewind())
                .and_then(|()| writeln!(file, "{}", std::process::id())),
        );
        Ok(Self { _file: file })
    }
}
