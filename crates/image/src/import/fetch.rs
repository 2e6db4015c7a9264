//! Fetching layers ahead of their conversion.

use std::collections::HashMap;
use std::io::Read;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use super::{ImporterConfig, is_remote};
use crate::ImageError;
use crate::progress::{Phase, Progress, Reporter};
use crate::registry::RemoteImage;
use crate::source::{BlobLocation, ResolvedLayer};
use crate::spool::{SpoolReader, spool};

/// The blobs of one import. Remote ones are fetched in order, a bounded number at once; the bound also holds spooled
/// layers that wait for their conversion. Dropping it ends every transfer.
#[derive(Debug)]
pub(super) struct Fetcher {
    remote: Option<Arc<RemoteImage>>,
    scratch_directory: PathBuf,
    progress: mpsc::Sender<Progress>,
    layer_count: usize,
    ahead: Arc<Semaphore>,
    started: bool,
    spools: HashMap<usize, Spooled>,
    transfers: JoinSet<()>,
}

#[derive(Debug)]
struct Spooled {
    reader: Option<SpoolReader>,
    /// Dropped to let the next transfer start.
    _release: oneshot::Sender<()>,
}

impl Fetcher {
    pub(super) fn new(
        config: &ImporterConfig,
        remote: Option<Arc<RemoteImage>>,
        progress: mpsc::Sender<Progress>,
        layer_count: usize,
    ) -> Self {
        Self {
            remote,
            scratch_directory: config.scratch_directory.clone(),
            progress,
            layer_count,
            ahead: Arc::new(Semaphore::new(config.limits.layers_ahead.max(1))),
            started: false,
            spools: HashMap::new(),
            transfers: JoinSet::new(),
        }
    }

    /// Starts fetching `layers` from `first` on, unless that has been done. Nothing is fetched before a layer is known
    /// to need conversion, so an import that only waits for another one fetches nothing.
    pub(super) fn start(&mut self, layers: &[ResolvedLayer], first: usize) -> Result<(), ImageError> {
        let Some(remote) = self.remote.clone().filter(|_| !self.started) else { return Ok(()) };
        self.started = true;
        let mut jobs = Vec::new();
        for (index, layer) in layers.iter().enumerate().skip(first).filter(|(_, layer)| is_remote(layer)) {
            let (writer, reader) = spool(&self.scratch_directory)?;
            let (release, released) = oneshot::channel();
            self.spools.insert(index, Spooled { reader: Some(reader), _release: release });
            let reporter = Reporter::new(
                self.progress.clone(),
                Progress {
                    phase: Phase::Fetch,
                    layer: layer.blob_digest.clone(),
                    layer_index: index,
                    layer_count: self.layer_count,
                    done_bytes: 0,
                    total_bytes: layer.blob_bytes.unwrap_or_default(),
                },
            );
            jobs.push((layer.clone(), writer, released, reporter));
        }
        let ahead = Arc::clone(&self.ahead);
        self.transfers.spawn(async move {
            // Ends with this task, which ends with the set.
            let mut running = JoinSet::new();
            for (layer, writer, mut released, reporter) in jobs {
                // Released already: the layer turned out not to be needed.
                if released.try_recv() == Err(oneshot::error::TryRecvError::Closed) {
                    continue;
                }
                let Ok(permit) = Arc::clone(&ahead).acquire_owned().await else { return };
                let remote = Arc::clone(&remote);
                running.spawn(async move {
                    let permit: OwnedSemaphorePermit = permit;
                    tokio::select! {
                        () = remote.fetch(&layer, writer, reporter) => {
                            // The spool takes room until it is converted.
                            let _ = released.await;
                        }
                        _ = &mut released => {}
                    }
                    drop(permit);
                });
            }
            while running.join_next().await.is_some() {}
        });
        Ok(())
    }

    /// The bytes of a layer.
    pub(super) fn take(
        &mut self,
        layer: &ResolvedLayer,
        index: usize,
    ) -> Result<Box<dyn Read + Send>, ImageError> {
        match &layer.location {
            BlobLocation::File(range) => Ok(Box::new(range.reader())),
            BlobLocation::Registry => {
                match self.spools.get_mut(&index).and_then(|spooled| spooled.reader.take()) {
                    Some(reader) => Ok(Box::new(reader)),
                    None => Err(ImageError::Damaged {
                        what: format!("layer {index}"),
                        reason: "it is not being fetched".to_owned(),
                    }),
                }
            }
        }
    }

    /// The layer is not needed; its transfer ends.
    pub(super) fn skip(&mut self, index: usize) {
        self.spools.remove(&index);
    }

    /// The layer is converted; its spool is gone.
    pub(super) fn done(&mut self, index: usize) {
        self.spools.remove(&index);
    }
}
