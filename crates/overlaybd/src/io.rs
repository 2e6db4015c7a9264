//! Where bytes come from: the one trait through which layers are read.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use crate::number::to_usize;

/// Bytes that can be read at any offset, by many threads at once.
pub trait ReadAt: Send + Sync + fmt::Debug {
    /// Current size in bytes.
    fn size_bytes(&self) -> io::Result<u64>;

    /// Fills `buffer` from `offset_bytes`. Fewer bytes than asked for is an error of kind
    /// [`io::ErrorKind::UnexpectedEof`], never a short read and never zeros.
    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset_bytes)
    }
}

impl ReadAt for Vec<u8> {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        let end = offset_bytes.checked_add(buffer.len() as u64);
        match end {
            Some(end) if end <= self.len() as u64 => {
                buffer.copy_from_slice(&self[to_usize(offset_bytes)..to_usize(end)]);
                Ok(())
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl<T: ReadAt + ?Sized> ReadAt for Arc<T> {
    fn size_bytes(&self) -> io::Result<u64> {
        (**self).size_bytes()
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        (**self).read_exact_at(buffer, offset_bytes)
    }
}

/// A part of another source, for a layer that lies inside an archive.
#[derive(Debug)]
pub(crate) struct Window {
    inner: Arc<dyn ReadAt>,
    offset_bytes: u64,
    length_bytes: u64,
}

impl Window {
    /// The caller has checked that the window lies inside `inner`.
    pub(crate) fn new(inner: Arc<dyn ReadAt>, offset_bytes: u64, length_bytes: u64) -> Self {
        Window { inner, offset_bytes, length_bytes }
    }
}

impl ReadAt for Window {
    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.length_bytes)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        match offset_bytes.checked_add(buffer.len() as u64) {
            Some(end) if end <= self.length_bytes => {
                self.inner.read_exact_at(buffer, self.offset_bytes + offset_bytes)
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
