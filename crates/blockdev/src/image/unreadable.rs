//! The image of a device that could not be opened again.

use std::io;

use crate::Image;

/// Answers everything with EIO.
///
/// A device whose layers are damaged or missing after a restart gets this image: its users see an error at once and the
/// other devices are served as ever, instead of the whole daemon refusing to start.
#[derive(Debug)]
pub struct UnreadableImage {
    size_bytes: u64,
    reason: String,
}

impl UnreadableImage {
    /// An image of the size the device had on record; `reason` is for [`reason`](Self::reason) and the log.
    pub fn new(size_bytes: u64, reason: impl Into<String>) -> Self {
        Self { size_bytes, reason: reason.into() }
    }

    /// Why the device cannot be read.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    fn error() -> io::Error {
        io::Error::from_raw_os_error(libc::EIO)
    }
}

impl Image for UnreadableImage {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, _buffer: &mut [u8], _offset_bytes: u64) -> io::Result<()> {
        Err(Self::error())
    }

    fn write_at(&self, _data: &[u8], _offset_bytes: u64) -> io::Result<()> {
        Err(Self::error())
    }

    fn write_zeroes(&self, _offset_bytes: u64, _length_bytes: u64) -> io::Result<()> {
        Err(Self::error())
    }

    fn flush(&self) -> io::Result<()> {
        Err(Self::error())
    }
}
