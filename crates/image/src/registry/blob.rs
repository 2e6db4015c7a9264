//! Fetching a blob into a spool, resuming where a broken transfer ended.

use reqwest::header::{CONTENT_RANGE, RANGE};
use reqwest::{Response, StatusCode};

use super::RemoteImage;
use super::http::{Failure, describe};
use crate::ImageError;
use crate::progress::Reporter;
use crate::source::ResolvedLayer;
use crate::spool::SpoolWriter;

/// Written to the spool at once.
const WRITE_BYTES: usize = 1 << 20;

/// Resumptions of one blob; each of them brought new bytes, so this only ends a transfer that will not.
const RESUMPTIONS: u32 = 1000;

impl RemoteImage {
    /// Fetches a layer's blob; success and failure both arrive at the spool's reader.
    pub(crate) async fn fetch(&self, layer: &ResolvedLayer, writer: SpoolWriter, mut reporter: Reporter) {
        let (Some(digest), Some(bytes)) = (&layer.blob_digest, layer.blob_bytes) else {
            let reason = "a registry's layer has a digest and a size".to_owned();
            writer.finish(Err(ImageError::Damaged { what: self.reference.to_string(), reason }));
            return;
        };
        let what = format!("the layer blob {digest} of {}", self.reference);
        let mut spooled = Spooled { writer: Some(writer), pending: Vec::new(), written: 0 };
        let result =
            self.transfer(&format!("blobs/{digest}"), &what, bytes, &mut spooled, &mut reporter).await;
        if let Some(writer) = spooled.writer {
            writer.finish(result);
        }
    }

    async fn transfer(
        &self,
        path: &str,
        what: &str,
        bytes: u64,
        spooled: &mut Spooled,
        reporter: &mut Reporter,
    ) -> Result<(), ImageError> {
        let url = self.url(path)?;
        let mut failures = 0;
        for _ in 0..RESUMPTIONS {
            let start = spooled.written;
            let attempt = async {
                let range = format!("bytes={start}-");
                let headers = [(RANGE, range.as_str())];
                let response = self.get_once(&url, what, if start == 0 { &[] } else { &headers }).await?;
                receive(response, what, bytes, spooled, reporter).await
            };
            let failure = match attempt.await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure {
                Failure::Final(error) => return Err(error),
                Failure::Transient { reason, wait } => {
                    failures = if spooled.written > start { 1 } else { failures + 1 };
                    self.wait_or_fail(failures, reason, wait).await?;
                }
            }
        }
        let registry = self.reference.registry().to_owned();
        let reason = format!("{what} broke off again and again");
        Err(ImageError::RegistryFailed { registry, attempts: RESUMPTIONS, reason })
    }
}

/// The spool and the bytes collected for it.
struct Spooled {
    /// Absent only when a write has panicked.
    writer: Option<SpoolWriter>,
    pending: Vec<u8>,
    /// Bytes in the spool and pending.
    written: u64,
}

impl Spooled {
    async fn push(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        self.pending.extend_from_slice(bytes);
        self.written += bytes.len() as u64;
        if self.pending.len() >= WRITE_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), ImageError> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        let write = move || {
            let result = writer.write(&pending);
            (writer, pending, result)
        };
        let (writer, mut pending, result) =
            tokio::task::spawn_blocking(write).await.map_err(|error| ImageError::task(&error))?;
        self.writer = Some(writer);
        pending.clear();
        self.pending = pending;
        result.map_err(|source| ImageError::Io {
            action: "writing a fetched layer to",
            path: "the scratch directory".into(),
            source,
        })
    }
}

/// Takes a response's body, from the position it starts at.
async fn receive(
    mut response: Response,
    what: &str,
    bytes: u64,
    spooled: &mut Spooled,
    reporter: &mut Reporter,
) -> Result<(), Failure> {
    // A server may ignore the range and send everything: then what is here already is passed over.
    let mut skip = match response.status() {
        StatusCode::PARTIAL_CONTENT => {
            let start =
                response.headers().get(CONTENT_RANGE).and_then(|value| range_start(value.to_str().ok()?));
            if start != Some(spooled.written) {
                return Err(Failure::Transient {
                    reason: format!("it answered with another part of {what} than asked for"),
                    wait: None,
                });
            }
            0
        }
        _ => spooled.written,
    };
    let ended = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                let passed = usize::try_from(skip).unwrap_or(usize::MAX).min(chunk.len());
                skip -= passed as u64;
                let chunk = &chunk[passed..];
                if spooled.written + chunk.len() as u64 > bytes {
                    let actual = spooled.written + chunk.len() as u64;
                    let what = what.to_owned();
                    return Err(Failure::Final(ImageError::SizeMismatch { what, expected: bytes, actual }));
                }
                spooled.push(chunk).await.map_err(Failure::Final)?;
                reporter.advance(spooled.written);
            }
            Ok(None) => break None,
            Err(error) => break Some(describe(&error)),
        }
    };
    spooled.flush().await.map_err(Failure::Final)?;
    if spooled.written == bytes {
        return Ok(());
    }
    let reason = ended.unwrap_or_else(|| "the connection was closed".to_owned());
    let reason = format!("{what} broke off after {} of {bytes} bytes: {reason}", spooled.written);
    Err(Failure::Transient { reason, wait: None })
}

/// The first position of `bytes START-END/TOTAL`.
fn range_start(value: &str) -> Option<u64> {
    value.strip_prefix("bytes ")?.split('-').next()?.trim().parse().ok()
}
