//! A stack of overlaybd layers as an image.

use std::io;

use overlaybd::{Stack, StackError};

use crate::Image;

impl Image for Stack {
    fn size_bytes(&self) -> u64 {
        self.virtual_size_bytes()
    }

    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        Stack::read_at(self, buffer, offset_bytes).map_err(|error| failed("read", &error))
    }

    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
        Stack::write_at(self, data, offset_bytes).map_err(|error| failed("write", &error))
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        Stack::write_zeroes(self, offset_bytes, length_bytes).map_err(|error| failed("write zeros", &error))
    }

    fn flush(&self) -> io::Result<()> {
        Stack::flush(self).map_err(|error| failed("flush", &error))
    }
}

/// A device's user is told a number only, so the words go to the log.
fn failed(operation: &'static str, error: &StackError) -> io::Error {
    tracing::error!(operation, %error, "a request to a stack of layers failed");
    io::Error::from_raw_os_error(error.errno())
}
