//! What a device serves.

use std::fmt;
use std::io;

mod memory;
mod stack;
mod unreadable;

pub use memory::MemoryImage;
pub use unreadable::UnreadableImage;

/// An array of 512-byte sectors, safe to call from many threads at once.
///
/// Offsets and lengths are bytes, multiples of [`crate::SECTOR_BYTES`], inside `size_bytes`; a front end takes care of
/// that. The order of calls that overlap in time is not defined, a later call sees the effect of one that returned.
///
/// An error with an operating system code (`ENOSPC`, `EROFS`) reaches the user of the device with that code, any other
/// as `EIO`. After an error the image must stay usable: a full disk that has room again is written again.
pub trait Image: Send + Sync + fmt::Debug {
    /// Size in bytes, a multiple of 512; constant.
    fn size_bytes(&self) -> u64;

    /// Fills `buffer`; what was never written reads as zeros.
    ///
    /// # Errors
    /// The backing store failed, or what it holds is damaged.
    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()>;

    /// Stores `data`. Not durable before the next [`flush`](Self::flush).
    ///
    /// # Errors
    /// The backing store failed or is full; the range then holds old or new data, sector by sector.
    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()>;

    /// Makes the range read as zeros and gives its space back where that is possible.
    ///
    /// # Errors
    /// As [`write_at`](Self::write_at).
    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()>;

    /// Makes everything that was acknowledged before the call survive a loss of power.
    ///
    /// # Errors
    /// The backing store failed; then nothing may be assumed to be durable.
    fn flush(&self) -> io::Result<()>;
}
