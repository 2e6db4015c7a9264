//! The storage daemon.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use sandbox::{
    Device, DeviceRequest, ImportEvent, ImportedImage, PullProgress, PullRequest, Storage, StorageError,
    StorageStatus,
};
use tokio::sync::mpsc;

use super::{Step, World};

#[derive(Debug)]
pub struct FakeStorage(pub Arc<World>);

fn device(id: &str) -> Device {
    Device { id: id.to_owned(), path: PathBuf::from("/devices").join(id), damage: None }
}

/// The layers that the import of `source` gives.
pub fn layers_of(source: &str) -> Vec<PathBuf> {
    (1..=2).map(|number| PathBuf::from(format!("/layers/{source}-{number}"))).collect()
}

#[async_trait]
impl Storage for FakeStorage {
    async fn status(&self) -> Result<StorageStatus, StorageError> {
        Ok(StorageStatus { front_end: "fake".to_owned() })
    }

    async fn create_device(&self, request: DeviceRequest) -> Result<Device, StorageError> {
        self.0.seen.lock().unwrap().push(request.id.clone());
        let creating = self.0.creating.fetch_add(1, Ordering::Relaxed) + 1;
        self.0.most_creating.fetch_max(creating, Ordering::Relaxed);
        self.0.pass(Step::CreateDevice).await.map_err(StorageError::Failed)?;
        std::fs::create_dir_all(&request.upper_directory).unwrap();
        std::fs::write(request.upper_directory.join("upper.data"), "x").unwrap();
        self.0.devices.lock().unwrap().insert(request.id.clone(), request.lower_paths);
        Ok(device(&request.id))
    }

    async fn list_devices(&self) -> Result<Vec<Device>, StorageError> {
        self.0.pass(Step::ListDevices).await.map_err(StorageError::Failed)?;
        if !self.0.storage_answers.load(Ordering::Relaxed) {
            return Err(StorageError::Unavailable("it is down".to_owned()));
        }
        let damages = self.0.damages.lock().unwrap().clone();
        let devices = self.0.devices.lock().unwrap();
        Ok(devices.keys().map(|id| Device { damage: damages.get(id).cloned(), ..device(id) }).collect())
    }

    async fn close_device(&self, id: &str) -> Result<(), StorageError> {
        self.0.pass(Step::CloseDevice).await.map_err(StorageError::Failed)?;
        let running = self.0.machines.lock().unwrap().contains_key(id);
        assert!(!running, "the disk of a running machine was closed");
        self.0.devices.lock().unwrap().remove(id);
        Ok(())
    }

    async fn import_image(&self, request: &PullRequest) -> Result<mpsc::Receiver<ImportEvent>, StorageError> {
        let (events, receiver) = mpsc::channel(4);
        let (world, source) = (self.0.clone(), request.source.clone());
        tokio::spawn(async move {
            let progress =
                PullProgress { phase: "fetch".to_owned(), layer_count: 2, ..PullProgress::default() };
            let _ = events.send(ImportEvent::Progress(progress)).await;
            let event = match world.pass(Step::Import).await {
                Ok(()) => ImportEvent::Done(ImportedImage {
                    manifest_digest: format!("sha256:{source}"),
                    layer_paths: layers_of(&source),
                    virtual_size_bytes: 1 << 30,
                    config_json:
                        br#"{"config":{"Env":["PATH=/bin"],"User":"user:group","WorkingDir":"/srv"}}"#
                            .to_vec(),
                }),
                Err(reason) => ImportEvent::Failed(StorageError::Failed(reason)),
            };
            let _ = events.send(event).await;
        });
        Ok(receiver)
    }

    async fn collect_layers(&self, keep: Vec<PathBuf>) -> Result<u32, StorageError> {
        self.0.kept_layers.lock().unwrap().push(keep);
        Ok(0)
    }
}
