//! Threads that read requests from the kernel and write the answers back.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::thread::JoinHandleExt as _;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;

use super::abi::{Encoder, Header, IN_HEADER_BYTES, OUT_HEADER_BYTES, WRITE_IN_BYTES, opcode};
use super::flushers::{Flush, Flushers};
use super::server::{REQUEST_BYTES_MAX, Reply, Server};
use crate::FrontEndError;

const PAGE_BYTES: usize = 4096;

/// Memory that begins at a page boundary.
struct PageBuffer {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl PageBuffer {
    fn new(length: usize) -> Self {
        let memory = vec![0; length + PAGE_BYTES];
        let start = memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES);
        Self { memory, start, length }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}

/// The threads of one session.
#[derive(Debug)]
pub(crate) struct Workers {
    threads: Vec<JoinHandle<()>>,
    flushers: Flushers,
    stopping: Arc<AtomicBool>,
}

impl Workers {
    /// One thread for each channel. A request must be answered on the channel it was read from: every channel has its
    /// own list of unanswered requests in the kernel.
    pub(crate) fn start(channels: &[Arc<OwnedFd>], server: &Arc<Server>) -> Result<Self, FrontEndError> {
        install_wake_handler()?;
        let stopping = Arc::new(AtomicBool::new(false));
        let mut workers = Self { threads: Vec::new(), flushers: Flushers::start(server)?, stopping };
        for (number, channel) in channels.iter().enumerate() {
            let (channel, server, stopping) =
                (Arc::clone(channel), Arc::clone(server), Arc::clone(&workers.stopping));
            let flushes = workers.flushers.queue();
            let thread = std::thread::Builder::new()
                .name(format!("fuse-{number}"))
                .spawn(move || serve(&channel, &server, &flushes, &stopping));
            match thread {
                Ok(thread) => workers.threads.push(thread),
                Err(error) => {
                    workers.stop();
                    return Err(FrontEndError::host("start a thread that answers the kernel", error));
                }
            }
        }
        Ok(workers)
    }

    /// Waits for the requests in hand and ends the threads.
    pub(crate) fn stop(self) {
        self.stopping.store(true, Ordering::Release);
        for thread in self.threads {
            while !thread.is_finished() {
                // A thread may look at the flag just before the store and sleep just after the signal: hence the loop.
                // SAFETY: the thread has not been joined, so its id is valid, whether it still runs or not.
                unsafe { libc::pthread_kill(thread.as_pthread_t(), wake_signal()) };
                std::thread::sleep(Duration::from_millis(2));
            }
            // A panic was already answered and logged.
            drop(thread.join());
        }
        self.flushers.stop();
    }
}

/// A signal whose only effect is that a thread comes back from `read`. A blocking read is the one way of waiting for a
/// FUSE request that wakes one thread for each request and costs one system call; polling costs two more.
fn wake_signal() -> i32 {
    libc::SIGRTMIN() + 11
}

fn install_wake_handler() -> Result<(), FrontEndError> {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: all-zero is a valid sigaction: no flags (in particular no SA_RESTART), empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
    // SAFETY: `action` is initialised and its handler does nothing, which is safe in a signal handler.
    if unsafe { libc::sigaction(wake_signal(), &raw const action, std::ptr::null_mut()) } != 0 {
        return Err(FrontEndError::host("set a signal handler", std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Tells the kernel that this thread is part of writing pages out. A loop device on one of our files, written back under
/// memory pressure, waits for this thread; the thread must not wait for that same writeback when it needs memory.
pub(crate) fn become_io_flusher() {
    // `linux/prctl.h`; the libc crate has it for some targets only.
    const PR_SET_IO_FLUSHER: libc::c_int = 57;
    // SAFETY: PR_SET_IO_FLUSHER takes one integer and only changes how the calling thread allocates memory.
    let result = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if result != 0 {
        tracing::debug!(
            error = %std::io::Error::last_os_error(),
            "not marked as an I/O flusher (needs Linux 5.6 and CAP_SYS_RESOURCE)"
        );
    }
}

fn serve(channel: &Arc<OwnedFd>, server: &Server, flushes: &SyncSender<Flush>, stopping: &AtomicBool) {
    become_io_flusher();
    // The header of a WRITE ends where a page begins, so that its data is aligned for direct I/O.
    let lead = PAGE_BYTES - IN_HEADER_BYTES - WRITE_IN_BYTES;
    let mut request = PageBuffer::new(PAGE_BYTES + REQUEST_BYTES_MAX as usize + PAGE_BYTES);
    let mut body = PageBuffer::new(REQUEST_BYTES_MAX as usize);
    while !stopping.load(Ordering::Acquire) {
        let message = &mut request.bytes()[lead..];
        let length = match rustix::io::read(channel, &mut *message) {
            Ok(length) => length,
            // ENOENT: the request was taken back before we got it.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            // Unmounted, or the connection was aborted by the administrator.
            Err(Errno::NODEV | Errno::CONNABORTED) => return,
            Err(error) => {
                tracing::error!(%error, "reading a FUSE request failed; this thread ends");
                return;
            }
        };
        let Ok((header, request)) = Header::parse(&message[..length]) else {
            tracing::error!(length, "the kernel sent a request that contradicts its own length; ignored");
            continue;
        };
        if header.opcode == opcode::FSYNC {
            match flushes.try_send(Flush { channel: Arc::clone(channel), header }) {
                Ok(()) => continue,
                Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
            }
        }
        answer(channel.as_fd(), server, header, request, body.bytes());
    }
}

/// Does what a request asks for and answers it on the channel it was read from. FSYNC needs neither its body nor `out`.
pub(crate) fn answer(
    channel: BorrowedFd<'_>,
    server: &Server,
    header: Header,
    request: &[u8],
    out: &mut [u8],
) {
    // A defect in one image must not end the thread that serves all of them.
    let reply = std::panic::catch_unwind(AssertUnwindSafe(|| server.answer(header, request, out)))
        .unwrap_or_else(|_| {
            tracing::error!(
                opcode = header.opcode,
                inode = header.inode,
                "a request failed by a panic; answered EIO"
            );
            Reply::Error(libc::EIO)
        });
    let (error, length) = match reply {
        Reply::None => return,
        Reply::Body(length) => (0, length),
        Reply::Error(number) => (-number, 0),
    };
    let mut head = [0; OUT_HEADER_BYTES];
    encode_head(&mut head, length, error, header.unique);
    let parts = [std::io::IoSlice::new(&head), std::io::IoSlice::new(&out[..length])];
    match rustix::io::writev(channel, &parts) {
        // ENOENT: whoever asked was killed meanwhile. ENODEV: unmounted.
        Ok(_) | Err(Errno::NOENT | Errno::NODEV) => {}
        Err(error) => {
            tracing::error!(%error, opcode = header.opcode, inode = header.inode, "the kernel refused an answer");
        }
    }
}

/// Asks the kernel to send again what was read from any channel and never answered. Must be done while no thread of
/// this process has a request in hand.
pub(crate) fn ask_to_resend(channel: BorrowedFd<'_>) -> Result<(), FrontEndError> {
    notify(channel, super::abi::notify::RESEND, &[])
        .map_err(|error| FrontEndError::host("have the kernel send unanswered requests again", error))
}

/// Drops the kernel's cached pages of an inode. Not to be called from a thread that answers requests.
pub(crate) fn drop_pages(channel: BorrowedFd<'_>, inode: u64) -> Result<(), Errno> {
    // `struct fuse_notify_inval_inode_out`: ino u64, off i64, len i64; no length means to the end.
    let mut body = [0; 24];
    Encoder::new(&mut body).u64(inode);
    match notify(channel, super::abi::notify::INVALIDATE_INODE, &body) {
        // The kernel has forgotten it already.
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

fn notify(channel: BorrowedFd<'_>, code: i32, body: &[u8]) -> Result<(), Errno> {
    let mut head = [0; OUT_HEADER_BYTES];
    encode_head(&mut head, body.len(), code, 0);
    let parts = [std::io::IoSlice::new(&head), std::io::IoSlice::new(body)];
    rustix::io::writev(channel, &parts).map(drop)
}

/// `struct fuse_out_header`: len u32, error i32, unique u64.
pub(crate) fn encode_head(head: &mut [u8; OUT_HEADER_BYTES], body_bytes: usize, error: i32, unique: u64) {
    // Bodies have at most `REQUEST_BYTES_MAX` bytes.
    let length = u32::try_from(OUT_HEADER_BYTES + body_bytes).unwrap_or(u32::MAX);
    Encoder::new(head).u32(length).u32(error.cast_unsigned()).u64(unique);
}
