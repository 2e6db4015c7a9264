//! The gRPC service: requests checked and translated, work handed to blocking threads.

use std::path::PathBuf;
use std::sync::Arc;

use image::Credentials;
use protocol::storage as wire;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use crate::StorageError;
use crate::devices::{DeviceView, Devices, NewDevice};
use crate::import::{Imports, NewImport};

mod translate;

use translate::status;

/// Operations that may block on disks at the same time; more wait their turn.
const BLOCKING_OPERATIONS_MAX: usize = 64;
/// Events of an import that a slow reader may be behind.
const IMPORT_EVENTS_MAX: usize = 64;

/// The daemon's service.
#[derive(Debug, Clone)]
pub(crate) struct StorageService {
    devices: Arc<Devices>,
    imports: Imports,
    blocking: Arc<Semaphore>,
    /// Set to ask the daemon to end.
    end: Arc<watch::Sender<bool>>,
}

impl StorageService {
    pub(crate) fn new(devices: Arc<Devices>, imports: Imports, end: Arc<watch::Sender<bool>>) -> Self {
        Self { devices, imports, blocking: Arc::new(Semaphore::new(BLOCKING_OPERATIONS_MAX)), end }
    }

    /// Runs `work` on a blocking thread. It is carried through even when the caller goes away.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Devices) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, Status> {
        let gone = |error: &dyn std::fmt::Display| status(&StorageError::Internal(error.to_string()));
        let permit = Arc::clone(&self.blocking).acquire_owned().await.map_err(|error| gone(&error))?;
        let devices = Arc::clone(&self.devices);
        let task = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            work(&devices)
        });
        task.await.map_err(|error| gone(&error))?.map_err(|error| status(&error))
    }

    async fn device(
        &self,
        work: impl FnOnce(&Devices) -> Result<DeviceView, StorageError> + Send + 'static,
    ) -> Result<Response<wire::Device>, Status> {
        Ok(Response::new(translate::device(self.blocking(work).await?)?))
    }
}

#[tonic::async_trait]
impl wire::storage_server::Storage for StorageService {
    async fn status(&self, _: Request<wire::StatusRequest>) -> Result<Response<wire::StatusReply>, Status> {
        let front_end = self.devices.front_end();
        Ok(Response::new(wire::StatusReply {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            process_id: std::process::id(),
            front_end: front_end.name().to_owned(),
            device_count: u32::try_from(self.devices.count()).unwrap_or(u32::MAX),
            mount_point: translate::text(front_end.mount_point())?,
        }))
    }

    async fn create_device(
        &self,
        request: Request<wire::CreateDeviceRequest>,
    ) -> Result<Response<wire::Device>, Status> {
        let request = request.into_inner();
        let new = NewDevice {
            device_id: request.device_id,
            lower_paths: request.lower_paths.into_iter().map(PathBuf::from).collect(),
            upper_directory: request.upper_directory.map(PathBuf::from),
            virtual_size_bytes: request.virtual_size_bytes,
        };
        self.device(move |devices| devices.create(&new)).await
    }

    async fn get_device(
        &self,
        request: Request<wire::GetDeviceRequest>,
    ) -> Result<Response<wire::Device>, Status> {
        let device_id = request.into_inner().device_id;
        self.device(move |devices| devices.get(&device_id)).await
    }

    async fn list_devices(
        &self,
        _: Request<wire::ListDevicesRequest>,
    ) -> Result<Response<wire::ListDevicesReply>, Status> {
        let views = self.blocking(|devices| Ok(devices.list())).await?;
        let devices = views.into_iter().map(translate::device).collect::<Result<_, _>>()?;
        Ok(Response::new(wire::ListDevicesReply { devices }))
    }

    async fn flush_device(
        &self,
        request: Request<wire::FlushDeviceRequest>,
    ) -> Result<Response<wire::FlushDeviceReply>, Status> {
        let device_id = request.into_inner().device_id;
        self.blocking(move |devices| devices.flush(&device_id)).await?;
        Ok(Response::new(wire::FlushDeviceReply {}))
    }

    async fn restack_device(
        &self,
        request: Request<wire::RestackDeviceRequest>,
    ) -> Result<Response<wire::RestackDeviceReply>, Status> {
        let wire::RestackDeviceRequest { device_id, sealed_layer_path } = request.into_inner();
        let view =
            self.blocking(move |devices| devices.restack(&device_id, sealed_layer_path.as_ref())).await?;
        Ok(Response::new(wire::RestackDeviceReply { device: Some(translate::device(view)?) }))
    }

    async fn close_device(
        &self,
        request: Request<wire::CloseDeviceRequest>,
    ) -> Result<Response<wire::CloseDeviceReply>, Status> {
        let wire::CloseDeviceRequest { device_id, delete_upper } = request.into_inner();
        self.blocking(move |devices| devices.close(&device_id, delete_upper)).await?;
        Ok(Response::new(wire::CloseDeviceReply {}))
    }

    type ImportImageStream = ReceiverStream<Result<wire::ImportEvent, Status>>;

    async fn import_image(
        &self,
        request: Request<wire::ImportImageRequest>,
    ) -> Result<Response<Self::ImportImageStream>, Status> {
        self.devices.check_not_ending().map_err(|error| status(&error))?;
        let request = request.into_inner();
        let credentials = match (request.username, request.password) {
            (Some(username), Some(password)) => Some(Credentials { username, password }),
            (None, None) => None,
            _ => return Err(Status::invalid_argument("credentials need both a user name and a password")),
        };
        let new =
            NewImport { source: request.source, virtual_size_bytes: request.virtual_size_bytes, credentials };
        let (events, stream) = mpsc::channel(IMPORT_EVENTS_MAX);
        tokio::spawn(import(self.imports.clone(), new, events, self.end.subscribe()));
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn collect_layers(
        &self,
        request: Request<wire::CollectLayersRequest>,
    ) -> Result<Response<wire::CollectLayersReply>, Status> {
        let keep: Vec<_> = request.into_inner().keep_layer_paths.into_iter().map(PathBuf::from).collect();
        // No device can begin to use a layer between this list and the removal.
        let devices = Arc::clone(&self.devices);
        let hold = devices.hold_creation().await;
        let in_use = self.blocking(|devices| Ok(devices.layers_in_use())).await?;
        let collected = self.imports.collect(&keep, &in_use).await;
        drop(hold);
        let (removed_count, removed_bytes) = collected.map_err(|error| status(&error))?;
        let removed_count = u32::try_from(removed_count).unwrap_or(u32::MAX);
        Ok(Response::new(wire::CollectLayersReply { removed_count, removed_bytes }))
    }

    async fn shutdown(
        &self,
        request: Request<wire::ShutdownRequest>,
    ) -> Result<Response<wire::ShutdownReply>, Status> {
        let count = self.devices.count();
        if count > 0 && !request.into_inner().even_with_devices {
            return Err(Status::failed_precondition(format!(
                "{count} devices are open; close them, or ask to end even with devices: their users then wait for the next \
                 daemon"
            )));
        }
        self.end.send_replace(true);
        Ok(Response::new(wire::ShutdownReply {}))
    }
}

/// Runs an import until it ends, its reader goes away, or the daemon ends.
async fn import(
    imports: Imports,
    new: NewImport,
    events: mpsc::Sender<Result<wire::ImportEvent, Status>>,
    mut end: watch::Receiver<bool>,
) {
    let (progress, mut reports) = mpsc::channel(IMPORT_EVENTS_MAX);
    let importing = imports.import(new, progress);
    tokio::pin!(importing);
    let result = loop {
        tokio::select! {
            Some(report) = reports.recv() => {
                // A reader that is behind misses progress, never the end.
                drop(events.try_send(Ok(translate::progress(&report))));
            }
            result = &mut importing => break result,
            () = events.closed() => return,
            _ = end.wait_for(|end| *end) => break Err(StorageError::ShuttingDown),
        }
    };
    // What was reported before the end comes before the end.
    while let Ok(report) = reports.try_recv() {
        drop(events.try_send(Ok(translate::progress(&report))));
    }
    let last = match result {
        Ok(image) => {
            let event = translate::imported(&image);
            Imports::keep_for_a_while(image);
            event
        }
        Err(error) => Err(status(&error)),
    };
    drop(events.send(last).await);
}
