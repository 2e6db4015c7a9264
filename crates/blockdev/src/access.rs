//! Byte-granular access to an image of sectors, and the lock that makes it safe.
//!
//! A virtual machine sends whole sectors. Programs on the host need not: a FUSE file takes a write of any length. Such a
//! write is a read-modify-write of the sectors at its edges, and must not overlap any other write to them. It is rare and
//! hurts only whoever sends it, so it excludes every other request of the device instead of a range of it: one
//! reader-writer lock a device, shared by aligned requests, is cheaper for those than any table of ranges.

use std::io;
use std::sync::{Arc, PoisonError, RwLock};

use crate::{Image, SECTOR_BYTES};

const SECTOR: usize = 512;

/// An image that front-end threads use, and that can be exchanged or taken away under them.
#[derive(Debug)]
pub(crate) struct Slot {
    size_bytes: u64,
    /// Held shared by each request while it uses the image; exclusively by an unaligned write, by a swap and by closing.
    image: RwLock<Option<Arc<dyn Image>>>,
}

impl Slot {
    pub(crate) fn new(image: Arc<dyn Image>) -> Self {
        Self { size_bytes: image.size_bytes(), image: RwLock::new(Some(image)) }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Exchanges the image and answers the old one, after all requests that use it have ended; `None` when closed.
    pub(crate) fn swap(&self, image: Arc<dyn Image>) -> Option<Arc<dyn Image>> {
        let mut slot = self.image.write().unwrap_or_else(PoisonError::into_inner);
        match slot.as_mut() {
            Some(current) => Some(std::mem::replace(current, image)),
            None => None,
        }
    }

    /// Takes the image away after all requests that use it have ended; later requests fail with EIO.
    pub(crate) fn close(&self) -> Option<Arc<dyn Image>> {
        self.image.write().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Reads from `offset` as much of `buffer` as lies inside the device; answers how much that is.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let length = self.clip(offset, buffer.len());
        let buffer = &mut buffer[..length];
        if buffer.is_empty() {
            return Ok(0);
        }
        self.shared(|image| {
            if aligned(offset, length) {
                return image.read_at(buffer, offset);
            }
            let start = offset - offset % SECTOR_BYTES;
            let skip = to_usize(offset - start)?;
            let mut sectors = vec![0; (skip + length).next_multiple_of(SECTOR)];
            image.read_at(&mut sectors, start)?;
            buffer.copy_from_slice(&sectors[skip..skip + length]);
            Ok(())
        })?;
        Ok(length)
    }

    /// Writes as much of `data` as lies inside the device; answers how much that is. At the end it is ENOSPC, as on
    /// any block device.
    pub(crate) fn write(&self, data: &[u8], offset: u64) -> io::Result<usize> {
        let length = self.clip(offset, data.len());
        let data = &data[..length];
        if data.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        if aligned(offset, length) {
            self.shared(|image| image.write_at(data, offset))?;
        } else {
            self.exclusive(|image| {
                let start = offset - offset % SECTOR_BYTES;
                let skip = to_usize(offset - start)?;
                let mut sectors = vec![0; (skip + length).next_multiple_of(SECTOR)];
                image.read_at(&mut sectors, start)?;
                sectors[skip..skip + length].copy_from_slice(data);
                image.write_at(&sectors, start)
            })?;
        }
        Ok(length)
    }

    /// Zeroes the part of the range that lies inside the device.
    pub(crate) fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        let end = offset.saturating_add(length).min(self.size_bytes);
        if offset >= end {
            return Ok(());
        }
        if offset.is_multiple_of(SECTOR_BYTES) && end.is_multiple_of(SECTOR_BYTES) {
            return self.shared(|image| image.write_zeroes(offset, end - offset));
        }
        self.exclusive(|image| {
            let first_whole = offset.next_multiple_of(SECTOR_BYTES);
            let last_whole = end - end % SECTOR_BYTES;
            if first_whole >= last_whole {
                // No whole sector in between: at most two sectors are touched, each in part.
                zero_part(image, offset, end.min(first_whole))?;
                return zero_part(image, first_whole.min(end), end);
            }
            zero_part(image, offset, first_whole)?;
            image.write_zeroes(first_whole, last_whole - first_whole)?;
            zero_part(image, last_whole, end)
        })
    }

    pub(crate) fn flush(&self) -> io::Result<()> {
        self.shared(|image| image.flush())
    }

    fn clip(&self, offset: u64, length: usize) -> usize {
        usize::try_from(self.size_bytes.saturating_sub(offset)).map_or(length, |left| left.min(length))
    }

    fn shared<T>(&self, operation: impl FnOnce(&dyn Image) -> io::Result<T>) -> io::Result<T> {
        // A panic of an image while the lock is held poisons it; the image itself has to be sound after a panic.
        match self.image.read().unwrap_or_else(PoisonError::into_inner).as_deref() {
            Some(image) => operation(image),
            None => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }

    fn exclusive<T>(&self, operation: impl FnOnce(&dyn Image) -> io::Result<T>) -> io::Result<T> {
        match self.image.write().unwrap_or_else(PoisonError::into_inner).as_deref() {
            Some(image) => operation(image),
            None => Err(io::Error::from_raw_os_error(libc::EIO)),
        }
    }
}

/// Zeroes `from..to`, which lies inside one sector, by read-modify-write.
fn zero_part(image: &dyn Image, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    let start = from - from % SECTOR_BYTES;
    let mut sector = [0; SECTOR];
    image.read_at(&mut sector, start)?;
    sector[to_usize(from - start)?..to_usize(to - start)?].fill(0);
    image.write_at(&sector, start)
}

fn aligned(offset: u64, length: usize) -> bool {
    offset.is_multiple_of(SECTOR_BYTES) && length.is_multiple_of(SECTOR)
}

fn to_usize(value: u64) -> io::Result<usize> {
    usize::try_from(value).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
#[path = "access_tests.rs"]
mod tests;
