//! A file as the body of an answer.

use std::fs::File;
use std::io::{self, Read as _};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::mpsc;

/// Bytes read and sent at once.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks read ahead of the client.
const CHUNKS_AHEAD: usize = 2;

/// A part of a file, read on a helper thread while it is sent.
#[derive(Debug)]
pub(crate) struct FileBody {
    chunks: mpsc::Receiver<io::Result<Bytes>>,
    bytes_left: u64,
}

impl FileBody {
    /// Sends `bytes` bytes from where `file` stands.
    pub(super) fn read(file: File, bytes: u64) -> Self {
        let (sender, chunks) = mpsc::channel(CHUNKS_AHEAD);
        tokio::task::spawn_blocking(move || read_chunks(file, bytes, &sender));
        Self { chunks, bytes_left: bytes }
    }

    pub(crate) fn bytes_left(&self) -> u64 {
        self.bytes_left
    }

    pub(crate) fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        let chunk = std::task::ready!(self.chunks.poll_recv(context));
        if let Some(Ok(bytes)) = &chunk {
            self.bytes_left = self.bytes_left.saturating_sub(bytes.len() as u64);
        }
        Poll::Ready(chunk)
    }
}

/// Ends early when the client has gone.
fn read_chunks(mut file: File, mut bytes_left: u64, sender: &mpsc::Sender<io::Result<Bytes>>) {
    while bytes_left > 0 {
        let length = usize::try_from(bytes_left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let mut chunk = vec![0; length];
        let read = match file.read(&mut chunk) {
            // The length was promised: the client must see that the file did not keep it.
            Ok(0) => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file was shortened while it was sent"))
            }
            Ok(count) => {
                chunk.truncate(count);
                bytes_left -= count as u64;
                Ok(Bytes::from(chunk))
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = read.is_err();
        if sender.blocking_send(read).is_err() || failed {
            return;
        }
    }
}
