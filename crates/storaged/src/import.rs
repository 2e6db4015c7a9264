//! Image imports: the plumbing between the service and crate `image`.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use image::{
    Credentials, ImportOptions, ImportedImage, Importer, ImporterConfig, Progress, ScratchDisks, Source,
};
use tokio::sync::mpsc;

use crate::{Config, StorageError};

/// Layers of a finished import are kept this long for whoever asked for it to record them; only then can a collection
/// remove them.
const KEPT_FOR: Duration = Duration::from_secs(600);

/// Imports and collects.
#[derive(Debug, Clone)]
pub(crate) struct Imports {
    importer: Arc<Importer>,
}

/// What an import is asked for.
#[derive(Debug)]
pub(crate) struct NewImport {
    pub(crate) source: String,
    pub(crate) virtual_size_bytes: u64,
    pub(crate) credentials: Option<Credentials>,
}

impl Imports {
    /// Opens the layer store and removes what an interrupted import left.
    pub(crate) fn open(config: &Config, scratch_disks: Arc<dyn ScratchDisks>) -> Result<Self, StorageError> {
        let importer = ImporterConfig {
            default_virtual_size_bytes: config.default_virtual_size_bytes,
            insecure_registries: config.insecure_registries.clone(),
            docker_config: config.docker_config.clone(),
            ..ImporterConfig::new(
                config.layers_directory.clone(),
                config.scratch_directory(),
                config.unpack_command.clone(),
            )
        };
        Ok(Self { importer: Arc::new(Importer::new(importer, scratch_disks)?) })
    }

    /// Runs one import; dropping the future cancels it.
    pub(crate) async fn import(
        &self,
        request: NewImport,
        progress: mpsc::Sender<Progress>,
    ) -> Result<ImportedImage, StorageError> {
        let source: Source = request.source.parse()?;
        let options = ImportOptions {
            virtual_size_bytes: Some(request.virtual_size_bytes).filter(|bytes| *bytes != 0),
            credentials: request.credentials,
        };
        Ok(self.importer.import(&source, options, progress).await?)
    }

    /// Keeps the layers of a finished import from being collected for a while.
    pub(crate) fn keep_for_a_while(image: ImportedImage) {
        tokio::spawn(async move {
            tokio::time::sleep(KEPT_FOR).await;
            drop(image);
        });
    }

    /// Removes the layers that neither `keep` names nor a device uses; answers how many and their bytes.
    pub(crate) async fn collect(
        &self,
        keep: &[PathBuf],
        in_use: &[PathBuf],
    ) -> Result<(u64, u64), StorageError> {
        Ok(self.importer.collect(keep, in_use).await?)
    }
}
