//! Importing an image: resolve, reuse what is converted, convert the rest in order.

mod fetch;
mod options;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

pub use options::{ImportLimits, ImportOptions, ImportedImage, ImporterConfig};

use crate::convert::{Converter, LayerInput, prepare_scratch_directory};
use crate::digest::Digest;
use crate::manifest::MAXIMUM_LAYERS;
use crate::progress::{Phase, Progress, Reporter};
use crate::registry::Registry;
use crate::source::{
    ResolvedImage, ResolvedLayer, resolve_docker_archive, resolve_layout, resolve_root_filesystem,
};
use crate::store::{LayerPins, LayerRecord, LayerStore, chain_id};
use crate::{ImageError, ScratchDisks, Source};
use fetch::Fetcher;

/// Imports images into one layer directory.
#[derive(Debug)]
pub struct Importer {
    config: ImporterConfig,
    converter: Arc<Converter>,
    store: Arc<LayerStore>,
    registry: Registry,
}

impl Importer {
    /// Opens the layer directory (one process at a time), makes the scratch directory, and removes what an interrupted
    /// import left in both. `scratch_disks` must have forgotten the scratch disks of a former life.
    pub fn new(config: ImporterConfig, scratch_disks: Arc<dyn ScratchDisks>) -> Result<Self, ImageError> {
        options::check_virtual_size(config.default_virtual_size_bytes)?;
        let store = Arc::new(LayerStore::open(&config.layers_directory)?);
        prepare_scratch_directory(&config.scratch_directory)?;
        let converter = Arc::new(Converter {
            scratch_disks,
            scratch_directory: config.scratch_directory.clone(),
            unpack_command: config.unpack_command.clone(),
            mke2fs: config.mke2fs.clone(),
            tar_limits: config.limits.tar(),
            uncompressed_bytes: config.limits.uncompressed_layer_bytes,
            loop_timeout: config.limits.loop_device_timeout,
            stall_timeout: config.limits.stall_timeout,
            finish_timeout: config.limits.finish_timeout,
        });
        let registry = Registry::new(&config)?;
        Ok(Self { config, converter, store, registry })
    }

    /// Imports an image. Layers that are converted are durable and kept whatever happens later; dropping the future
    /// cancels the import and cleans up in the background.
    pub async fn import(
        &self,
        source: &Source,
        options: ImportOptions,
        progress: mpsc::Sender<Progress>,
    ) -> Result<ImportedImage, ImageError> {
        let virtual_size_bytes = options.virtual_size_bytes.unwrap_or(self.config.default_virtual_size_bytes);
        options::check_virtual_size(virtual_size_bytes)?;
        let image_event = Progress {
            phase: Phase::Resolve,
            layer: None,
            layer_index: 0,
            layer_count: 0,
            done_bytes: 0,
            total_bytes: 0,
        };
        Reporter::new(progress.clone(), image_event.clone()).send(0);
        let (resolved, remote) = match source {
            Source::Registry(reference) => {
                let (resolved, remote) = self.registry.resolve(reference, options.credentials).await?;
                (resolved, Some(Arc::new(remote)))
            }
            local => (self.resolve_local(local.clone()).await?, None),
        };
        let layer_count = resolved.layers.len();
        if layer_count == 0 {
            return Err(ImageError::Unsupported {
                image: source.to_string(),
                reason: "it has no layers".to_owned(),
            });
        }
        if layer_count > MAXIMUM_LAYERS {
            return Err(ImageError::LimitExceeded {
                what: format!("the number of layers of {source} ({layer_count})"),
                limit: MAXIMUM_LAYERS.to_string(),
            });
        }
        let cancel = CancellationToken::new();
        let _cancel_when_dropped = cancel.clone().drop_guard();
        let mut fetcher = Fetcher::new(&self.config, remote, progress.clone(), layer_count);
        let mut pins = LayerPins::new(Arc::clone(&self.store));
        let mut records: Vec<LayerRecord> = Vec::with_capacity(layer_count);
        let mut reused_layer_count = 0;
        let chains = chain_ids(&resolved.layers, virtual_size_bytes);
        let mut guards = VecDeque::new();
        for (index, (layer, chain)) in resolved.layers.iter().zip(&chains).enumerate() {
            let parent = records.last();
            let event = Progress {
                phase: Phase::Convert,
                layer: Some(layer.blob_digest.clone().unwrap_or_else(|| layer.diff_digest.clone())),
                layer_index: index,
                layer_count,
                done_bytes: 0,
                total_bytes: layer.blob_bytes.unwrap_or_default(),
            };
            let guard = match guards.pop_front() {
                Some(guard) => guard,
                None => self.store.flight(chain).lock_owned().await,
            };
            if let Some(record) = self.store.find(chain, parent, &mut pins)? {
                let event = Progress { phase: Phase::Reuse, ..event };
                Reporter::new(progress.clone(), event.clone()).send(event.total_bytes);
                fetcher.skip(index);
                reused_layer_count += 1;
                records.push(record);
                continue;
            }
            // The first layer to convert makes this import the one that does all above it too, or another import of
            // the same image could overtake it and fetch everything a second time. Everybody locks upwards, so nobody
            // waits in a circle.
            if guards.is_empty() {
                for above in &chains[index + 1..] {
                    guards.push_back(self.store.flight(above).lock_owned().await);
                }
            }
            fetcher.start(&resolved.layers, index)?;
            let source = fetcher.take(layer, index)?;
            let reporter = Reporter::new(progress.clone(), event.clone());
            reporter.send(0);
            let input = LayerInput {
                source,
                blob_digest: layer.blob_digest.clone(),
                blob_bytes: layer.blob_bytes,
                diff_digest: layer.diff_digest.clone(),
                reporter,
            };
            let lowers: Vec<PathBuf> =
                records.iter().map(|record| self.store.layer_path(&record.chain)).collect();
            let job = ConvertJob {
                converter: Arc::clone(&self.converter),
                store: Arc::clone(&self.store),
                lowers,
                parent: parent.cloned(),
                chain: chain.clone(),
                diff_digest: layer.diff_digest.clone(),
                virtual_size_bytes,
                cancel: cancel.clone(),
            };
            // A task of its own: when this future is dropped, the task still cleans up before others may convert
            // the same layer.
            let task = tokio::spawn(async move {
                let record = job.run(input).await;
                drop(guard);
                record
            });
            records.push(task.await.map_err(|error| ImageError::task(&error))??);
            fetcher.done(index);
            let event = Progress { phase: Phase::Finish, ..event };
            Reporter::new(progress.clone(), event.clone()).send(event.total_bytes);
        }
        let event = Progress { phase: Phase::Finish, layer_index: layer_count, layer_count, ..image_event };
        Reporter::new(progress, event).send(0);
        let ResolvedImage { manifest_digest, config_json, .. } = resolved;
        Ok(ImportedImage {
            manifest_digest,
            layer_paths: records.iter().map(|record| self.store.layer_path(&record.chain)).collect(),
            virtual_size_bytes,
            config_json: String::from_utf8_lossy(&config_json).into_owned(),
            reused_layer_count,
            pins,
        })
    }

    /// Removes every converted layer that is not in `keep` or `in_use` (paths as imports return them), not below one that
    /// is, and not part of a running import or an [`ImportedImage`] still held. Returns how many and their bytes.
    pub async fn collect(&self, keep: &[PathBuf], in_use: &[PathBuf]) -> Result<(u64, u64), ImageError> {
        let kept = [keep, in_use].concat();
        let store = Arc::clone(&self.store);
        tokio::task::spawn_blocking(move || store.collect(&kept))
            .await
            .map_err(|error| ImageError::task(&error))?
    }

    async fn resolve_local(&self, source: Source) -> Result<ResolvedImage, ImageError> {
        let image = source.to_string();
        let scratch_directory = self.config.scratch_directory.clone();
        let limit = self.config.limits.uncompressed_layer_bytes;
        let resolve = move || match &source {
            Source::OciLayout { directory, tag } => resolve_layout(&image, directory, tag.as_deref()),
            Source::DockerArchive { file, tag } => {
                resolve_docker_archive(&image, file, tag.as_deref(), &scratch_directory, limit)
            }
            Source::RootFilesystem { file } => resolve_root_filesystem(&image, file, limit),
            Source::Registry(_) => {
                Err(ImageError::Unsupported { image, reason: "it is not a local source".to_owned() })
            }
        };
        tokio::task::spawn_blocking(resolve).await.map_err(|error| ImageError::task(&error))?
    }
}

/// The conversion and publication of one layer.
struct ConvertJob {
    converter: Arc<Converter>,
    store: Arc<LayerStore>,
    lowers: Vec<PathBuf>,
    parent: Option<LayerRecord>,
    chain: Digest,
    diff_digest: Digest,
    virtual_size_bytes: u64,
    cancel: CancellationToken,
}

impl ConvertJob {
    async fn run(self, input: LayerInput) -> Result<LayerRecord, ImageError> {
        let partial = self.store.partial_path(&self.chain);
        self.converter.convert(&self.lowers, input, self.virtual_size_bytes, &partial, &self.cancel).await?;
        let publish = move || {
            let Self { store, parent, chain, diff_digest, virtual_size_bytes, .. } = self;
            store.publish(&partial, &chain, parent.as_ref(), &diff_digest, virtual_size_bytes)
        };
        tokio::task::spawn_blocking(publish).await.map_err(|error| ImageError::task(&error))?
    }
}

/// The chain ids of an image's layers, bottom first.
fn chain_ids(layers: &[ResolvedLayer], virtual_size_bytes: u64) -> Vec<Digest> {
    let mut chains: Vec<Digest> = Vec::with_capacity(layers.len());
    for layer in layers {
        chains.push(chain_id(chains.last(), &layer.diff_digest, virtual_size_bytes));
    }
    chains
}

/// Whether a layer's bytes must be fetched first.
fn is_remote(layer: &ResolvedLayer) -> bool {
    matches!(layer.location, crate::source::BlobLocation::Registry)
}
