//! The storage daemon over its socket.

use std::path::PathBuf;

use async_trait::async_trait;
use protocol::storage as wire;
use storaged::{Client, ClientError};
use tokio::sync::mpsc;
use wire::import_event::Event;

use super::{Device, DeviceRequest, ImportEvent, ImportedImage, Storage, StorageError, StorageStatus};
use crate::{PullProgress, PullRequest};

/// Events of an import that may wait for whoever reads them.
const EVENTS_MAX: usize = 16;

impl From<ClientError> for StorageError {
    fn from(error: ClientError) -> Self {
        let text = error.to_string();
        match error {
            ClientError::Unreachable { .. } | ClientError::Timeout { .. } | ClientError::Unavailable(_) => {
                Self::Unavailable(text)
            }
            ClientError::NotFound(_) => Self::NotFound(text),
            ClientError::Invalid(_) => Self::Invalid(text),
            ClientError::Refused(_) => Self::Denied(text),
            _ => Self::Failed(text),
        }
    }
}

impl From<wire::Device> for Device {
    fn from(device: wire::Device) -> Self {
        let damage = Some(device.damage).filter(|reason| !reason.is_empty());
        Self { id: device.device_id, path: PathBuf::from(device.path), damage }
    }
}

#[async_trait]
impl Storage for Client {
    async fn status(&self) -> Result<StorageStatus, StorageError> {
        let status = Self::status(self).await?;
        Ok(StorageStatus { front_end: status.front_end })
    }

    async fn create_device(&self, request: DeviceRequest) -> Result<Device, StorageError> {
        let upper = Some(request.upper_directory.as_path());
        let size_bytes = request.virtual_size_bytes;
        Ok(Self::create_device(self, &request.id, &request.lower_paths, upper, size_bytes).await?.into())
    }

    async fn list_devices(&self) -> Result<Vec<Device>, StorageError> {
        Ok(Self::list_devices(self).await?.into_iter().map(Device::from).collect())
    }

    async fn close_device(&self, id: &str) -> Result<(), StorageError> {
        Ok(Self::close_device(self, id, true).await?)
    }

    async fn import_image(&self, request: &PullRequest) -> Result<mpsc::Receiver<ImportEvent>, StorageError> {
        let (username, password) = request.credentials.clone().unzip();
        let request = wire::ImportImageRequest {
            source: request.source.clone(),
            virtual_size_bytes: request.virtual_size_bytes,
            username,
            password,
        };
        let mut import = Self::import_image(self, request).await?;
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        tokio::spawn(async move {
            loop {
                let event = tokio::select! {
                    event = import.next() => event,
                    // Dropping the import cancels it.
                    () = events.closed() => return,
                };
                let event = match event {
                    Ok(Event::Progress(progress)) => ImportEvent::Progress(progress_of(progress)),
                    Ok(Event::Done(image)) => ImportEvent::Done(image.into()),
                    Err(error) => ImportEvent::Failed(error.into()),
                };
                let last = !matches!(event, ImportEvent::Progress(_));
                if events.send(event).await.is_err() || last {
                    return;
                }
            }
        });
        Ok(receiver)
    }

    async fn collect_layers(&self, keep: Vec<PathBuf>) -> Result<u32, StorageError> {
        Ok(Self::collect_layers(self, &keep).await?.removed_count)
    }
}

fn progress_of(progress: wire::ImportProgress) -> PullProgress {
    PullProgress {
        phase: progress.phase,
        layer_digest: progress.layer_digest,
        layer_index: progress.layer_index,
        layer_count: progress.layer_count,
        done_bytes: progress.done_bytes,
        total_bytes: progress.total_bytes,
    }
}

impl From<wire::ImportedImage> for ImportedImage {
    fn from(image: wire::ImportedImage) -> Self {
        Self {
            manifest_digest: image.manifest_digest,
            layer_paths: image.layer_paths.into_iter().map(PathBuf::from).collect(),
            virtual_size_bytes: image.virtual_size_bytes,
            config_json: image.config_json,
        }
    }
}
