//! Threads for flushes, so that the threads that read requests do not wait for disks.
//!
//! Reads and writes mostly end in the host's page cache and are over in microseconds; a flush waits for the disk, for
//! milliseconds or, under load, seconds. A few guests that sync at once must not stop all others.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::abi::Header;
use super::server::Server;
use super::worker::answer;
use crate::FrontEndError;

/// Flushes at the same time. A disk gains little from more.
const THREADS: usize = 8;
/// Flushes that wait; when there are more, the threads that read requests do them.
const WAITING_MAX: usize = 64;

/// A flush to be done. It is answered on the channel it was read from.
pub(crate) struct Flush {
    pub(crate) channel: Arc<OwnedFd>,
    pub(crate) header: Header,
}

/// The threads of one session.
#[derive(Debug)]
pub(crate) struct Flushers {
    queue: SyncSender<Flush>,
    threads: Vec<JoinHandle<()>>,
}

impl Flushers {
    pub(crate) fn start(server: &Arc<Server>) -> Result<Self, FrontEndError> {
        let (queue, waiting) = sync_channel(WAITING_MAX);
        let waiting = Arc::new(Mutex::new(waiting));
        let mut threads = Vec::new();
        for number in 0..THREADS {
            let (server, waiting) = (Arc::clone(server), Arc::clone(&waiting));
            let thread = std::thread::Builder::new()
                .name(format!("fuse-flush-{number}"))
                .spawn(move || work(&server, &waiting))
                .map_err(|error| FrontEndError::host("start a thread that flushes", error))?;
            threads.push(thread);
        }
        Ok(Self { queue, threads })
    }

    /// Where flushes are handed over.
    pub(crate) fn queue(&self) -> SyncSender<Flush> {
        self.queue.clone()
    }

    /// Waits for the flushes handed over. Every clone of the queue must be gone.
    pub(crate) fn stop(self) {
        drop(self.queue);
        for thread in self.threads {
            // A panic was already answered and logged.
            drop(thread.join());
        }
    }
}

fn work(server: &Server, waiting: &Mutex<Receiver<Flush>>) {
    super::worker::become_io_flusher();
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Flush { channel, header }) = next else { return };
        answer(channel.as_fd(), server, header, &[], &mut []);
    }
}
