//! What can go wrong with a writable upper.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::header::SectionProblem;

/// Why an upper cannot be created, opened, written, flushed or sealed.
#[derive(Debug, Error)]
pub enum UpperError {
    /// A file operation failed.
    #[error("cannot {action} {path}: {error}", path = path.display())]
    File {
        /// What was tried, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        error: io::Error,
    },
    /// The header of one of the files is not what it must be.
    #[error("{path} is not the {role} file of a writable layer: {problem}", path = path.display())]
    Header {
        /// The file.
        path: PathBuf,
        /// "data" or "index".
        role: &'static str,
        /// What is wrong with it.
        problem: SectionProblem,
    },
    /// A file is shorter than what was made durable when it was created.
    #[error("{path} has {size_bytes} bytes, a writable layer's has at least {least_bytes}: it was truncated", path = path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its size.
        size_bytes: u64,
        /// The least it must have.
        least_bytes: u64,
    },
    /// Data file and index file belong to different uppers.
    #[error("{data} and {index} belong to different layers: their uuids differ", data = data.display(), index = index.display())]
    Mismatched {
        /// The data file.
        data: PathBuf,
        /// The index file.
        index: PathBuf,
    },
    /// Another process, or another part of this one, has it open for writing.
    #[error("{path} is in use: it can be open for writing only once", path = path.display())]
    InUse {
        /// The data file.
        path: PathBuf,
    },
    /// The index file holds more entries than fit into memory at once.
    #[error("{path} holds {entries} entries, more than the 128000000 allowed", path = path.display())]
    TooManyEntries {
        /// The index file.
        path: PathBuf,
        /// How many it holds.
        entries: u64,
    },
    /// An option is out of its bounds.
    #[error("invalid option: {0}")]
    Option(&'static str),
    /// Sparse uppers need a file system that reports holes.
    #[error(
        "the file system of {path} does not report holes, which sparse mode needs: use append mode or another file system",
        path = path.display()
    )]
    NoHoles {
        /// The data file.
        path: PathBuf,
    },
    /// The upper was opened read-only.
    #[error("{path} was opened read-only", path = path.display())]
    ReadOnly {
        /// The data file.
        path: PathBuf,
    },
    /// An earlier flush failed. The kernel may have dropped what it could not write, so no later flush can promise
    /// anything until the upper is opened again.
    #[error("an earlier flush of {path} failed, writes may be lost: {reason}", path = path.display())]
    FlushFailedBefore {
        /// The data file.
        path: PathBuf,
        /// What the earlier flush said.
        reason: String,
    },
    /// The name for the sealed layer is taken.
    #[error("{path} exists already and is not overwritten: move it away or choose another name", path = path.display())]
    SealedPathExists {
        /// The name.
        path: PathBuf,
    },
    /// Writes in flight did not end.
    #[error("writes to {path} did not end within {timeout_ms} ms, it was not sealed", path = path.display())]
    WritesInFlight {
        /// The data file.
        path: PathBuf,
        /// How long they were waited for.
        timeout_ms: u128,
    },
}

impl UpperError {
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> UpperError {
        move |error| UpperError::File { action, path: path.to_owned(), error }
    }

    /// The operating system's reason, when there is one.
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            UpperError::File { error, .. } => Some(error),
            _ => None,
        }
    }
}
