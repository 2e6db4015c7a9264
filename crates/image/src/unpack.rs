//! The child process that applies one layer to a scratch disk (role `aenv image-unpack`).
//!
//! The kernel's own ext4 writes the file system, so mounting is needed; doing it in a child confines every consequence:
//! the child lives in a private mount namespace, so the mount and the self-clearing loop device end with it however it
//! ends, and the thread that reads the archive is locked into the mounted tree by `chroot` with few capabilities left.
//!
//! Protocol: the last argument is a [`Request`] in JSON, the uncompressed tar comes on standard input, and the last
//! line of standard output is an [`Outcome`] in JSON.

mod apply;
mod attributes;
mod child;
mod loop_device;
mod tree;
mod whiteout;

use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use crate::tar::Limits;

/// What the parent asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    /// The scratch disk: a block device or a file with an ext4 file system.
    pub device: PathBuf,
    /// An empty directory to mount on; the mount is never visible outside the child.
    pub mount_point: PathBuf,
    pub limits: Limits,
    /// How long to wait for a free loop device.
    pub loop_timeout_ms: u64,
    /// Bytes that may follow the end of the archive.
    pub trailer_bytes: u64,
}

/// What became of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Applied(Summary),
    /// A member cannot be unpacked; the archive is to blame.
    Refused {
        member: String,
        reason: String,
    },
    /// No room on the disk.
    DiskFull {
        member: String,
    },
    /// Something outside the archive failed.
    Failed {
        reason: String,
    },
}

/// Counts of an applied layer.
#[derive(Debug, Default, Clone, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub members: u64,
    pub file_bytes: u64,
    pub whiteouts: u64,
    /// Extended attributes that ext4 does not take on this kind of file.
    pub skipped_xattrs: u64,
}

/// The whole role: reads the request from the last command line argument, applies the archive on standard input, and
/// reports on standard output. Must be called while the process has a single thread.
#[must_use]
pub fn child_main() -> ExitCode {
    child::run()
}
