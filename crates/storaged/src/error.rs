//! What can go wrong in the daemon.

use std::io;
use std::path::{Path, PathBuf};

use blockdev::FrontEndError;

/// Why the daemon did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// A request that can never succeed as it stands.
    #[error("{0}")]
    InvalidRequest(String),
    /// No device of this id.
    #[error("there is no device {0:?}")]
    NotFound(String),
    /// The id is taken by a device that differs from what was asked for.
    #[error("device {device_id:?} exists already with {difference}; close it first or choose another id")]
    AlreadyExists {
        /// The id.
        device_id: String,
        /// In what it differs.
        difference: String,
    },
    /// The request fits the device, but not its present state.
    #[error("{0}")]
    Unsuitable(String),
    /// The device's layers or files are damaged or missing.
    #[error("device {device_id:?} cannot be used: {reason}")]
    Damaged {
        /// The device.
        device_id: String,
        /// What is wrong.
        reason: String,
    },
    /// A layer, an upper or a stack of them failed.
    #[error("{action}: {reason}")]
    Layers {
        /// What was tried.
        action: String,
        /// Why it failed.
        reason: String,
        /// The disk is full.
        no_space: bool,
    },
    /// The front end failed.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// Another daemon runs on these directories.
    #[error("{} is locked{}: another storage daemon uses it; stop it first", path.display(), owner(*process_id))]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// Who holds it, when known.
        process_id: Option<u32>,
    },
    /// A file operation failed.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was tried, as the start of a sentence.
        action: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The image could not be imported.
    #[error(transparent)]
    Image(#[from] image::ImageError),
    /// The daemon is about to end.
    #[error("the storage daemon is shutting down; try again when it is back")]
    ShuttingDown,
    /// A defect of the daemon.
    #[error("internal error: {0}")]
    Internal(String),
}

fn owner(process_id: Option<u32>) -> String {
    process_id.map_or_else(String::new, |process_id| format!(" by process {process_id}"))
}

impl StorageError {
    /// For `map_err` on file operations.
    pub(crate) fn io<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source: source.into() }
    }

    /// For `map_err` on stacks.
    pub(crate) fn stack(action: impl Into<String>) -> impl FnOnce(overlaybd::StackError) -> Self {
        let action = action.into();
        move |error| Self::Layers {
            action,
            reason: error.to_string(),
            no_space: error.errno() == rustix::io::Errno::NOSPC.raw_os_error(),
        }
    }

    /// For `map_err` on uppers.
    pub(crate) fn upper(action: impl Into<String>) -> impl FnOnce(overlaybd::UpperError) -> Self {
        move |error| Self::stack(action)(error.into())
    }
}
