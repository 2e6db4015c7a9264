//! An image in memory, for tests and for measuring a front end by itself.

use std::io;
use std::sync::{PoisonError, RwLock};

use crate::Image;

/// Sectors in memory. Nothing survives the process.
#[derive(Debug)]
pub struct MemoryImage {
    size_bytes: u64,
    content: RwLock<Vec<u8>>,
}

impl MemoryImage {
    /// An image of zeros; `size_bytes` is rounded up to whole sectors.
    pub fn new(size_bytes: usize) -> Self {
        let rounded = size_bytes.next_multiple_of(512);
        Self { size_bytes: rounded as u64, content: RwLock::new(vec![0; rounded]) }
    }

    fn range(&self, offset_bytes: u64, length: usize) -> io::Result<std::ops::Range<usize>> {
        let start = usize::try_from(offset_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        match start.checked_add(length) {
            Some(end)
                if end as u64 <= self.size_bytes
                    && start.is_multiple_of(512)
                    && length.is_multiple_of(512) =>
            {
                Ok(start..end)
            }
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }
}

impl Image for MemoryImage {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let range = self.range(offset_bytes, buffer.len())?;
        buffer.copy_from_slice(&self.content.read().unwrap_or_else(PoisonError::into_inner)[range]);
        Ok(())
    }

    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
        let range = self.range(offset_bytes, data.len())?;
        self.content.write().unwrap_or_else(PoisonError::into_inner)[range].copy_from_slice(data);
        Ok(())
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let length = usize::try_from(length_bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let range = self.range(offset_bytes, length)?;
        self.content.write().unwrap_or_else(PoisonError::into_inner)[range].fill(0);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}
