//! Progress of an import, thinned out so that a fast layer does not flood a slow reader.

use std::time::{Duration, Instant};

use tokio::sync::mpsc;

use crate::digest::Digest;

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Finding the manifest and configuration.
    Resolve,
    /// Fetching a layer's blob.
    Fetch,
    /// Unpacking a layer onto the disk.
    Convert,
    /// A layer was converted earlier.
    Reuse,
    /// The layer is durable; or, without a layer, the image is complete.
    Finish,
}

impl Phase {
    /// The name used in protocols.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Resolve => "resolve",
            Self::Fetch => "fetch",
            Self::Convert => "convert",
            Self::Reuse => "reuse",
            Self::Finish => "finish",
        }
    }
}

/// One event. Events are advisory: one that finds the channel full is dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What is being done.
    pub phase: Phase,
    /// Layer this is about (digest of its blob where known, else of its uncompressed tar); `None` for the image.
    pub layer: Option<Digest>,
    /// Position of the layer from 0.
    pub layer_index: usize,
    /// Number of layers; 0 before the manifest is known.
    pub layer_count: usize,
    /// Bytes of the blob done.
    pub done_bytes: u64,
    /// Bytes of the blob; 0 when not known.
    pub total_bytes: u64,
}

/// Least time between two events of one phase of one layer.
const INTERVAL: Duration = Duration::from_millis(100);

/// Sends the events of one phase of one layer.
#[derive(Debug, Clone)]
pub(crate) struct Reporter {
    sender: mpsc::Sender<Progress>,
    event: Progress,
    last: Option<Instant>,
}

impl Reporter {
    pub(crate) fn new(sender: mpsc::Sender<Progress>, event: Progress) -> Self {
        Self { sender, event, last: None }
    }

    /// Reports that `done_bytes` are done, unless an event was just sent.
    pub(crate) fn advance(&mut self, done_bytes: u64) {
        if self.last.is_some_and(|last| last.elapsed() < INTERVAL) && done_bytes != self.event.total_bytes {
            return;
        }
        self.last = Some(Instant::now());
        self.send(done_bytes);
    }

    /// Reports whenever called.
    pub(crate) fn send(&self, done_bytes: u64) {
        // Full or closed: the reader is slow or not interested.
        let _ = self.sender.try_send(Progress { done_bytes, ..self.event.clone() });
    }
}
