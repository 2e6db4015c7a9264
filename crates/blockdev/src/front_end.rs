//! The contract between a device's owner and what makes it openable.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{FrontEndError, Image};

/// What a device is used for; decides about caching and about who may change its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceKind {
    /// A disk that is written. The host's page cache is bypassed: the guest has its own.
    Disk,
    /// A disk that refuses writes with EROFS.
    ReadOnlyDisk,
    /// A guest memory image, mapped privately by any number of virtual machines. The host's page cache is shared among
    /// them and kept between opens, so the content behind one inode must never change. Requests to give ranges back
    /// are answered with success and do nothing: QEMU discards ranges of a privately mapped file as if it owned it.
    Memory,
}

/// A device to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Name under which it appears; at most 255 bytes, no `/`.
    pub name: String,
    /// Durable number of this content: the same after every restart, never given to another device. Kernels cache by
    /// it. At least [`crate::fuse::FIRST_DEVICE_INODE`].
    pub inode: u64,
    /// What it is used for.
    pub kind: DeviceKind,
}

/// A device that is open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Name, inode and kind as they were given.
    pub spec: DeviceSpec,
    /// What users of the device open.
    pub path: PathBuf,
    /// Size that users see, in bytes.
    pub size_bytes: u64,
}

/// Makes images openable by path.
///
/// # Phases
///
/// 1. **Adopted.** Construction takes over what an earlier process left: its users' requests wait, none fails. Nothing
///    is answered yet. The owner opens every device it has on record, with the inodes they had.
/// 2. **Serving**, from [`serve`](Self::serve) on. Requests that were taken by a dead predecessor but not answered are
///    answered now, again if need be: an [`Image`] must bear the same write twice. Devices come and go.
/// 3. **Ended**, by one of
///    [`detach`](Self::detach) (users keep their open files, requests wait for the next process) or
///    [`remove`](Self::remove) (nothing is left on the host; refused while files are open).
///
/// An implementation may call an image from many threads at once, and never calls it before `open` or after `close`
/// returned. It never opens or reads one of its own paths.
pub trait FrontEnd: Send + Sync + fmt::Debug {
    /// Short name for people: `fuse` or `ublk`.
    fn name(&self) -> &'static str;

    /// Directory under which devices appear.
    fn mount_point(&self) -> &Path;

    /// Makes `image` openable and answers its path. The device is there when this returns.
    ///
    /// # Errors
    /// An unusable name, inode or size; a name or inode that is taken.
    fn open(&self, spec: DeviceSpec, image: Arc<dyn Image>) -> Result<PathBuf, FrontEndError>;

    /// Puts another image of the same size behind an open device and answers the old one. When this returns, no request
    /// uses the old image any more; requests that came meanwhile have waited.
    ///
    /// # Errors
    /// An unknown device, a different size.
    fn swap(&self, name: &str, image: Arc<dyn Image>) -> Result<Arc<dyn Image>, FrontEndError>;

    /// Takes the device away and answers its image, which no request uses any more. Nothing is flushed: that is the
    /// owner's decision. Users who still have the device open get EIO.
    ///
    /// # Errors
    /// An unknown device.
    fn close(&self, name: &str) -> Result<Arc<dyn Image>, FrontEndError>;

    /// Every open device, by name.
    fn list(&self) -> Vec<DeviceInfo>;

    /// Begins to answer requests. Calling it again does nothing.
    ///
    /// # Errors
    /// The host does not give threads, or refuses to send the predecessor's requests again.
    fn serve(&self) -> Result<(), FrontEndError>;

    /// Stops answering after the requests in hand. Users' files stay open; their requests wait for the next process.
    fn detach(&self);

    /// Takes the whole front end off the host.
    ///
    /// # Errors
    /// [`FrontEndError::MountBusy`] while a device's file is open somewhere; then everything goes on as before.
    fn remove(&self) -> Result<(), FrontEndError>;
}
