//! Descriptors in the event loop.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Watches a descriptor that lives as long as the watch.
pub(super) fn watch(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd is open and stays the same descriptor until it is dropped, which happens with the AsyncFd.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}

/// Watches a borrowed descriptor.
pub(super) fn watch_borrowed(
    descriptor: BorrowedFd<'_>,
    interest: Interest,
) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    // SAFETY: its owner keeps a BorrowedFd open for the lifetime that the AsyncFd cannot outlive.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}
