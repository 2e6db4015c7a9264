//! What can go wrong in a front end.

use std::io;
use std::path::PathBuf;

/// Why a front end did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrontEndError {
    /// A name that cannot be a file name on the mount.
    #[error(
        "device name {name:?} is not usable: it must be 1 to {limit} bytes without '/' or NUL, and not '.' or '..'"
    )]
    InvalidName {
        /// The name that was refused.
        name: String,
        /// Longest name in bytes.
        limit: usize,
    },
    /// Inode numbers below the first usable one belong to the mount itself.
    #[error("inode {inode} is reserved; device inodes begin at {first}")]
    InvalidInode {
        /// The inode that was refused.
        inode: u64,
        /// Lowest inode a device may have.
        first: u64,
    },
    /// An image whose size is not a whole number of sectors cannot be a disk.
    #[error("the image of device {name:?} has {size_bytes} bytes, which is not a multiple of 512")]
    InvalidSize {
        /// The device it was meant for.
        name: String,
        /// The size that was refused.
        size_bytes: u64,
    },
    /// The name is taken.
    #[error("device {0:?} is open already")]
    NameInUse(String),
    /// The inode is taken, or was given to a device that was closed since.
    #[error("inode {0} was given to a device already; inodes are never used twice")]
    InodeInUse(u64),
    /// No such device.
    #[error("device {0:?} is not open")]
    NotFound(String),
    /// A swap must keep the size: users of the device have it in their tables.
    #[error("device {name:?} has {device_bytes} bytes, the new image has {image_bytes}")]
    SizeChanged {
        /// The device.
        name: String,
        /// What its users see.
        device_bytes: u64,
        /// What the refused image has.
        image_bytes: u64,
    },
    /// Another process serves this mount.
    #[error("the devices under {mount_point} are served by process {process_id}; stop it first")]
    ServedElsewhere {
        /// The mount.
        mount_point: PathBuf,
        /// Who serves it.
        process_id: i32,
    },
    /// The process that holds the mount's descriptor could not be started or spoken to.
    #[error("keeper of {mount_point}: {reason}")]
    Keeper {
        /// The mount.
        mount_point: PathBuf,
        /// What went wrong, and what to do.
        reason: String,
    },
    /// The mount is in use and cannot be taken away.
    #[error("{mount_point} is still in use; close what has its files open, then try again")]
    MountBusy {
        /// The mount.
        mount_point: PathBuf,
    },
    /// An operation of the host failed.
    #[error("cannot {action}: {source}")]
    Host {
        /// What was tried, in words that follow "cannot".
        action: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl FrontEndError {
    /// Wraps a failed system call with what was being tried.
    pub(crate) fn host(action: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::Host { action: action.into(), source: source.into() }
    }
}
