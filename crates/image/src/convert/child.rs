//! Starting, feeding and judging the unpacking child.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::{Converter, LayerInput};
use crate::ImageError;
use crate::digest::Digest;
use crate::stream::{CHUNK_BYTES, StreamError, StreamSummary, pump};
use crate::unpack::{Outcome, Request};

/// The largest pipe an unprivileged process may have; fewer switches between us and the child.
const PIPE_BYTES: usize = 1 << 20;

/// Chunks under way from the decompressor to the pipe.
const CHUNKS: usize = 4;

/// Bytes of the child's output that are read.
const OUTPUT_BYTES: u64 = 64 * 1024;

/// How long a killed child may take to go away: its mount is taken down, which writes what is dirty.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);

type PumpResult = Result<StreamSummary, (StreamError, Option<(Digest, u64)>)>;

pub(super) struct Unpacker<'a> {
    pub converter: &'a Converter,
    pub device: &'a Path,
    pub mount_point: PathBuf,
    pub virtual_size_bytes: u64,
}

impl Unpacker<'_> {
    /// Applies the layer. When this returns, the child has ended.
    pub(super) async fn run(self, input: LayerInput, cancel: &CancellationToken) -> Result<(), ImageError> {
        let expected = Expected {
            layer: input.diff_digest.clone(),
            blob_digest: input.blob_digest.clone(),
            blob_bytes: input.blob_bytes,
            virtual_size_bytes: self.virtual_size_bytes,
        };
        let mut child = self.start(&expected.layer)?;
        let result = tokio::select! {
            () = cancel.cancelled() => Err(ImageError::Cancelled),
            result = self.feed(&mut child, input, &expected) => result,
        };
        if result.is_err() {
            // Fails when the child has ended, which is as well.
            let _ = child.start_kill();
            if timeout(KILL_TIMEOUT, child.wait()).await.is_err() {
                tracing::error!(pid = child.id(), "the unpacking process does not end after SIGKILL");
            }
        }
        result
    }

    fn start(&self, layer: &Digest) -> Result<Child, ImageError> {
        let failed = |reason: String| ImageError::Conversion { layer: layer.clone(), reason };
        let request = Request {
            device: self.device.to_owned(),
            mount_point: self.mount_point.clone(),
            limits: self.converter.tar_limits,
            loop_timeout_ms: u64::try_from(self.converter.loop_timeout.as_millis()).unwrap_or(u64::MAX),
            trailer_bytes: self.converter.uncompressed_bytes,
        };
        let request = serde_json::to_string(&request).map_err(|error| failed(error.to_string()))?;
        let Some((program, arguments)) = self.converter.unpack_command.split_first() else {
            return Err(failed("no command for the unpacking process is configured".to_owned()));
        };
        Command::new(program)
            .args(arguments)
            .arg(request)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed(format!("starting {}: {error}", program.to_string_lossy())))
    }

    async fn feed(
        &self,
        child: &mut Child,
        input: LayerInput,
        expected: &Expected,
    ) -> Result<(), ImageError> {
        let failed = |reason: String| ImageError::Conversion { layer: expected.layer.clone(), reason };
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(failed("the unpacking process has no pipes".to_owned()));
        };
        let output = async { tokio::join!(read_bounded(stdout), read_bounded(stderr)) };
        let transfer = self.transfer(stdin, input, &expected.layer);
        let ((stdout, stderr), transferred) = {
            tokio::pin!(output);
            tokio::pin!(transfer);
            tokio::select! {
                biased;
                transferred = &mut transfer => {
                    let transferred = transferred?;
                    let finish = self.converter.finish_timeout;
                    let output = timeout(finish, output).await.map_err(|_| {
                        failed(format!("the disk was not written out within {} s", finish.as_secs()))
                    })?;
                    (output, transferred)
                }
                // The child has closed its output, so it is ending; the transfer notices.
                output = &mut output => (output, transfer.await?),
            }
        };
        let status = timeout(self.converter.finish_timeout, child.wait())
            .await
            .map_err(|_| failed("the unpacking process does not end".to_owned()))?
            .map_err(|error| failed(format!("waiting for the unpacking process: {error}")))?;
        let outcome = match serde_json::from_slice(stdout.trim_ascii()) {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Failed {
                reason: format!(
                    "the unpacking process ended without a report ({status}): {}",
                    String::from_utf8_lossy(stderr.trim_ascii())
                ),
            },
        };
        expected.judge(transferred, outcome)
    }

    /// Reads and decompresses in a blocking thread, writes the child's input here. A child that ends early is no
    /// error of the transfer.
    async fn transfer(
        &self,
        mut stdin: ChildStdin,
        input: LayerInput,
        layer: &Digest,
    ) -> Result<PumpResult, ImageError> {
        // Where the kernel refuses, the pipe stays at its default size.
        let _ = rustix::pipe::fcntl_setpipe_size(stdin.as_fd(), PIPE_BYTES);
        let (sender, mut chunks) = mpsc::channel::<Vec<u8>>(CHUNKS);
        let (recycle, recycled) = std::sync::mpsc::channel::<Vec<u8>>();
        let limit = self.converter.uncompressed_bytes;
        let LayerInput { source, blob_digest, blob_bytes, mut reporter, .. } = input;
        let pumped = tokio::task::spawn_blocking(move || {
            let sink = |chunk| {
                sender.blocking_send(chunk).map_err(drop)?;
                Ok(recycled.try_recv().unwrap_or_else(|_| Vec::with_capacity(CHUNK_BYTES)))
            };
            pump(source, blob_digest.as_ref(), blob_bytes, limit, sink, |done| reporter.advance(done))
        });
        let stall = self.converter.stall_timeout;
        while let Some(chunk) = chunks.recv().await {
            match timeout(stall, stdin.write_all(&chunk)).await {
                Ok(Ok(())) => {
                    // The pump may have ended.
                    let _ = recycle.send(chunk);
                }
                // The child has closed its input; its report says why.
                Ok(Err(_)) => break,
                Err(_) => {
                    return Err(ImageError::Conversion {
                        layer: layer.clone(),
                        reason: format!("the disk took no data for {} s", stall.as_secs()),
                    });
                }
            }
        }
        drop(chunks);
        drop(stdin);
        pumped.await.map_err(|error| ImageError::task(&error))
    }
}

/// What the layer must turn out to be.
struct Expected {
    layer: Digest,
    blob_digest: Option<Digest>,
    blob_bytes: Option<u64>,
    virtual_size_bytes: u64,
}

impl Expected {
    /// The transfer is judged first: what a child makes of damaged bytes says nothing.
    fn judge(&self, transferred: PumpResult, outcome: Outcome) -> Result<(), ImageError> {
        let seen = match &transferred {
            Ok(summary) => Some((&summary.blob_digest, summary.blob_bytes)),
            Err((_, seen)) => seen.as_ref().map(|(digest, bytes)| (digest, *bytes)),
        };
        if let Some((digest, bytes)) = seen {
            self.check_blob(digest, bytes)?;
        }
        let summary = match transferred {
            Ok(summary) => Some(summary),
            Err((StreamError::Closed, _)) => None,
            Err((error, _)) => return Err(self.stream_error(error)),
        };
        match outcome {
            Outcome::Applied(counts) => {
                tracing::debug!(layer = %self.layer, ?counts, "layer applied");
            }
            Outcome::Refused { member, reason } => {
                return Err(ImageError::Member { layer: self.layer.clone(), member, reason });
            }
            Outcome::DiskFull { member } => {
                let virtual_size_bytes = self.virtual_size_bytes;
                return Err(ImageError::DiskFull { layer: self.layer.clone(), member, virtual_size_bytes });
            }
            Outcome::Failed { reason } => {
                return Err(ImageError::Conversion { layer: self.layer.clone(), reason });
            }
        }
        match summary {
            Some(summary) if summary.diff_digest == self.layer => Ok(()),
            Some(summary) => Err(ImageError::DigestMismatch {
                what: "the uncompressed layer".to_owned(),
                expected: self.layer.clone(),
                actual: summary.diff_digest,
            }),
            None => Err(ImageError::Conversion {
                layer: self.layer.clone(),
                reason: "the unpacking process stopped reading before the end of the layer".to_owned(),
            }),
        }
    }

    fn blob_name(&self) -> String {
        match &self.blob_digest {
            Some(digest) => format!("the layer blob {digest}"),
            None => format!("the blob of layer {}", self.layer),
        }
    }

    fn check_blob(&self, digest: &Digest, bytes: u64) -> Result<(), ImageError> {
        if let Some(expected) = self.blob_bytes.filter(|&expected| expected != bytes) {
            return Err(ImageError::SizeMismatch { what: self.blob_name(), expected, actual: bytes });
        }
        match &self.blob_digest {
            Some(expected) if expected != digest => Err(ImageError::DigestMismatch {
                what: self.blob_name(),
                expected: expected.clone(),
                actual: digest.clone(),
            }),
            _ => Ok(()),
        }
    }

    fn stream_error(&self, error: StreamError) -> ImageError {
        match error {
            StreamError::Source(error) => ImageError::from_source(error, &self.blob_name()),
            StreamError::Damaged(reason) => ImageError::Damaged {
                what: self.blob_name(),
                reason: format!("it cannot be decompressed: {reason}"),
            },
            StreamError::TooLong { announced } => ImageError::SizeMismatch {
                what: self.blob_name(),
                expected: announced,
                actual: announced.saturating_add(1),
            },
            StreamError::UncompressedLimit { limit } => ImageError::LimitExceeded {
                what: format!("the uncompressed size of layer {}", self.layer),
                limit: format!("{limit} bytes"),
            },
            StreamError::Closed => ImageError::Cancelled,
        }
    }
}

/// The start of what a pipe delivers; the rest is read and dropped, so that the writer does not block.
async fn read_bounded(mut pipe: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut kept = Vec::new();
    // An error ends the output as its end does; the exit status tells the rest.
    let _ = (&mut pipe).take(OUTPUT_BYTES).read_to_end(&mut kept).await;
    let _ = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await;
    kept
}
