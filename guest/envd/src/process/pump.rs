//! From a process' pipe or terminal to its subscribers.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use protocol::connect;
use protocol::envd::append_output_event;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use super::descriptor::watch;
use super::fanout::Fanout;

/// Most bytes of one event from a pipe.
const PIPE_CHUNK_BYTES: usize = 32 << 10;
/// Most bytes of one event from a terminal.
const TERMINAL_CHUNK_BYTES: usize = 16 << 10;
/// JSON around the bytes of an event.
const EVENT_OVERHEAD_BYTES: usize = 40;
/// What the process itself wrote is in the pipe when it has ended and is always read. A child it left behind may hold
/// the pipe open for ever, so its end is only waited for this long.
const HELD_PIPE_GRACE: Duration = Duration::from_millis(250);

/// Where output comes from.
#[derive(Debug)]
pub(super) struct Source {
    descriptor: AsyncFd<OwnedFd>,
    /// Field of the output event.
    field: &'static str,
    chunk_bytes: usize,
}

impl Source {
    /// The reading end of a pipe; `field` is `stdout` or `stderr`.
    pub(super) fn pipe(descriptor: OwnedFd, field: &'static str) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&descriptor, true)?;
        let descriptor = watch(descriptor, Interest::READABLE)?;
        Ok(Self { descriptor, field, chunk_bytes: PIPE_CHUNK_BYTES })
    }

    /// The master side of a terminal, already non-blocking.
    pub(super) fn terminal(descriptor: OwnedFd) -> io::Result<Self> {
        let descriptor = watch(descriptor, Interest::READABLE)?;
        Ok(Self { descriptor, field: "pty", chunk_bytes: TERMINAL_CHUNK_BYTES })
    }
}

/// What a read found.
enum Read {
    Frame { frame: Vec<u8>, bytes: usize },
    Nothing,
    End,
}

/// Publishes everything until the end of the source, or until the process has ended (`exited` becomes true) and all it
/// wrote was published.
pub(super) async fn pump(source: Source, fanout: &Fanout, mut exited: watch::Receiver<bool>) {
    while !*exited.borrow() {
        let found = tokio::select! {
            biased;
            found = next(&source) => found,
            changed = exited.changed() => match changed {
                Ok(()) => continue,
                // Nobody waits for the process any more.
                Err(_) => return,
            },
        };
        match found {
            Read::Frame { frame, .. } => fanout.publish(frame.into()).await,
            Read::Nothing | Read::End => return,
        }
    }
    let mut unread = unread_bytes(&source.descriptor);
    while unread > 0 {
        match read(&source) {
            Read::Frame { frame, bytes } => {
                fanout.publish(frame.into()).await;
                unread = unread.saturating_sub(bytes);
            }
            Read::Nothing => break,
            Read::End => return,
        }
    }
    let held = tokio::time::timeout(HELD_PIPE_GRACE, async {
        while let Read::Frame { frame, .. } = next(&source).await {
            fanout.publish(frame.into()).await;
        }
    });
    if held.await.is_err() {
        // Whoever holds the other end would be killed by writing into a closed pipe.
        tokio::spawn(async move { while let Read::Frame { .. } = next(&source).await {} });
    }
}

/// Waits for the next output or the end; never finds nothing, except when the runtime is shutting down.
async fn next(source: &Source) -> Read {
    loop {
        let Ok(mut ready) = source.descriptor.readable().await else { return Read::Nothing };
        match read(source) {
            Read::Nothing => ready.clear_ready(),
            found => return found,
        }
    }
}

fn unread_bytes(descriptor: &AsyncFd<OwnedFd>) -> usize {
    rustix::io::ioctl_fionread(descriptor.get_ref())
        .ok()
        .and_then(|bytes| usize::try_from(bytes).ok())
        .unwrap_or(0)
}

/// Reads once and frames what came. The bytes pass through the stack, so that a waiting pump holds no buffer.
fn read(source: &Source) -> Read {
    let mut buffer = [0_u8; PIPE_CHUNK_BYTES];
    let bytes = match rustix::io::read(source.descriptor.get_ref(), &mut buffer[..source.chunk_bytes]) {
        Ok(0) => return Read::End,
        Ok(bytes) => bytes,
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Read::Nothing,
        // A terminal whose last user has gone answers EIO.
        Err(_) => return Read::End,
    };
    let chunk = &buffer[..bytes];
    let capacity = bytes.div_ceil(3) * 4 + EVENT_OVERHEAD_BYTES;
    let frame = connect::encode(0, capacity, |frame| append_output_event(source.field, chunk, frame));
    Read::Frame { frame, bytes }
}
