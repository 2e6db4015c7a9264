//! The daemon as others use it.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::time::Duration;

use protocol::storage as wire;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};
use wire::storage_client::StorageClient;

/// Connecting to a socket on the same host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Looking things up.
const QUERY_TIMEOUT: Duration = Duration::from_secs(10);
/// Operations that write and sync files. A disk under load may take long over a sync.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(120);
/// An import reports progress; longer silence than this is the converter's own deadlines gone wrong.
const IMPORT_SILENCE: Duration = Duration::from_secs(1800);

const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// Why a call failed, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// No daemon answers.
    #[error("no storage daemon answers on {}: {reason}; start it with `aenv storaged` or `aenv serve`", socket.display())]
    Unreachable {
        /// Its socket.
        socket: PathBuf,
        /// Why.
        reason: String,
    },
    /// No answer in time. The operation may still be carried through; repeating it is safe.
    #[error("the storage daemon did not finish {operation} within {timeout_s} s")]
    Timeout {
        /// What was asked.
        operation: &'static str,
        /// How long it was waited for.
        timeout_s: u64,
    },
    /// No such device or image.
    #[error("{0}")]
    NotFound(String),
    /// The id is taken by something else.
    #[error("{0}")]
    AlreadyExists(String),
    /// The request can never succeed.
    #[error("{0}")]
    Invalid(String),
    /// The request fits, but not now or not this device.
    #[error("{0}")]
    Unsuitable(String),
    /// The host's disk is full.
    #[error("{0}")]
    NoSpace(String),
    /// What is stored is damaged.
    #[error("{0}")]
    Damaged(String),
    /// The registry refused the credentials.
    #[error("{0}")]
    Refused(String),
    /// The daemon is ending: try again later.
    #[error("{0}")]
    Unavailable(String),
    /// A defect.
    #[error("storage daemon: {0}")]
    Internal(String),
}

/// A connection to the storage daemon. Clones share it; it connects again by itself after a restart of the daemon.
#[derive(Debug, Clone)]
pub struct Client {
    socket: PathBuf,
    inner: StorageClient<Channel>,
}

impl Client {
    /// Connects to the daemon's socket.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] when nobody listens there.
    pub async fn connect(socket: &Path) -> Result<Self, ClientError> {
        let unreachable = |reason: String| ClientError::Unreachable { socket: socket.to_owned(), reason };
        let address = socket.to_str().filter(|path| path.starts_with('/'));
        let address =
            address.ok_or_else(|| unreachable("its path is not absolute or not UTF-8".to_owned()))?;
        let channel = Endpoint::from_shared(format!("unix:{address}"))
            .map_err(|error| unreachable(error.to_string()))?
            .connect_timeout(CONNECT_TIMEOUT)
            .connect()
            .await
            .map_err(|error| unreachable(root_cause(&error)))?;
        let inner = StorageClient::new(channel)
            .max_decoding_message_size(MESSAGE_BYTES_MAX)
            .max_encoding_message_size(MESSAGE_BYTES_MAX);
        Ok(Self { socket: socket.to_owned(), inner })
    }

    /// Who answers, and what it serves.
    ///
    /// # Errors
    /// See [`ClientError`]; so for all methods.
    pub async fn status(&self) -> Result<wire::StatusReply, ClientError> {
        let mut inner = self.inner.clone();
        self.call("the status", QUERY_TIMEOUT, inner.status(wire::StatusRequest {})).await
    }

    /// Makes a device, or answers the one made by the same request. With `upper_directory` it is writable.
    /// `virtual_size_bytes` 0 takes the layers' size.
    pub async fn create_device(
        &self,
        device_id: &str,
        lower_paths: &[PathBuf],
        upper_directory: Option<&Path>,
        virtual_size_bytes: u64,
    ) -> Result<wire::Device, ClientError> {
        let request = wire::CreateDeviceRequest {
            device_id: device_id.to_owned(),
            lower_paths: lower_paths.iter().map(|path| text(path)).collect::<Result<_, _>>()?,
            upper_directory: upper_directory.map(text).transpose()?,
            virtual_size_bytes,
        };
        let mut inner = self.inner.clone();
        self.call("making a device", OPERATION_TIMEOUT, inner.create_device(request)).await
    }

    /// One device.
    pub async fn get_device(&self, device_id: &str) -> Result<wire::Device, ClientError> {
        let request = wire::GetDeviceRequest { device_id: device_id.to_owned() };
        let mut inner = self.inner.clone();
        self.call("looking up a device", QUERY_TIMEOUT, inner.get_device(request)).await
    }

    /// Every device, by id.
    pub async fn list_devices(&self) -> Result<Vec<wire::Device>, ClientError> {
        let mut inner = self.inner.clone();
        let reply = self
            .call("listing devices", QUERY_TIMEOUT, inner.list_devices(wire::ListDevicesRequest {}))
            .await?;
        Ok(reply.devices)
    }

    /// Makes every write acknowledged so far durable.
    pub async fn flush_device(&self, device_id: &str) -> Result<(), ClientError> {
        let request = wire::FlushDeviceRequest { device_id: device_id.to_owned() };
        let mut inner = self.inner.clone();
        self.call("flushing a device", OPERATION_TIMEOUT, inner.flush_device(request)).await.map(drop)
    }

    /// Seals the live upper into `sealed_layer_path` and goes on upon a new one.
    pub async fn restack_device(
        &self,
        device_id: &str,
        sealed_layer_path: &Path,
    ) -> Result<wire::Device, ClientError> {
        let sealed_layer_path = text(sealed_layer_path)?;
        let request = wire::RestackDeviceRequest { device_id: device_id.to_owned(), sealed_layer_path };
        let mut inner = self.inner.clone();
        let reply =
            self.call("restacking a device", OPERATION_TIMEOUT, inner.restack_device(request)).await?;
        reply.device.ok_or_else(|| ClientError::Internal("it answered a restack without a device".to_owned()))
    }

    /// Closes and forgets a device; an unknown one is fine. With `delete_upper` its writes are thrown away.
    pub async fn close_device(&self, device_id: &str, delete_upper: bool) -> Result<(), ClientError> {
        let request = wire::CloseDeviceRequest { device_id: device_id.to_owned(), delete_upper };
        let mut inner = self.inner.clone();
        self.call("closing a device", OPERATION_TIMEOUT, inner.close_device(request)).await.map(drop)
    }

    /// Begins an import. Dropping the result cancels it.
    pub async fn import_image(&self, request: wire::ImportImageRequest) -> Result<Import, ClientError> {
        let mut inner = self.inner.clone();
        let events = self.call("beginning an import", QUERY_TIMEOUT, inner.import_image(request)).await?;
        Ok(Import { client: self.clone(), events })
    }

    /// Removes converted layers that `keep` does not name and no device uses.
    pub async fn collect_layers(&self, keep: &[PathBuf]) -> Result<wire::CollectLayersReply, ClientError> {
        let keep_layer_paths = keep.iter().map(|path| text(path)).collect::<Result<_, _>>()?;
        let mut inner = self.inner.clone();
        let call = inner.collect_layers(wire::CollectLayersRequest { keep_layer_paths });
        self.call("collecting layers", OPERATION_TIMEOUT, call).await
    }

    /// Ends the daemon. With `even_with_devices` their users wait for the next one.
    pub async fn shutdown(&self, even_with_devices: bool) -> Result<(), ClientError> {
        let mut inner = self.inner.clone();
        let call = inner.shutdown(wire::ShutdownRequest { even_with_devices });
        self.call("ending", QUERY_TIMEOUT, call).await.map(drop)
    }

    async fn call<T>(
        &self,
        operation: &'static str,
        timeout: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, ClientError> {
        match tokio::time::timeout(timeout, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(self.error(&status)),
            Err(_) => Err(ClientError::Timeout { operation, timeout_s: timeout.as_secs() }),
        }
    }

    fn error(&self, status: &Status) -> ClientError {
        // A status that did not come over the wire has the transport's failure as its source.
        if let Some(source) = std::error::Error::source(status) {
            return ClientError::Unreachable { socket: self.socket.clone(), reason: root_cause(source) };
        }
        let message = status.message().to_owned();
        match status.code() {
            Code::NotFound => ClientError::NotFound(message),
            Code::AlreadyExists => ClientError::AlreadyExists(message),
            Code::InvalidArgument => ClientError::Invalid(message),
            Code::FailedPrecondition => ClientError::Unsuitable(message),
            Code::ResourceExhausted => ClientError::NoSpace(message),
            Code::DataLoss => ClientError::Damaged(message),
            Code::PermissionDenied => ClientError::Refused(message),
            Code::Unavailable | Code::Cancelled => ClientError::Unavailable(message),
            _ => ClientError::Internal(message),
        }
    }
}

/// An import under way.
#[derive(Debug)]
pub struct Import {
    client: Client,
    events: Streaming<wire::ImportEvent>,
}

impl Import {
    /// The next event; the last one is `done`.
    ///
    /// # Errors
    /// The import failed, or the daemon fell silent.
    pub async fn next(&mut self) -> Result<wire::import_event::Event, ClientError> {
        loop {
            match tokio::time::timeout(IMPORT_SILENCE, self.events.message()).await {
                Ok(Ok(Some(wire::ImportEvent { event: Some(event) }))) => return Ok(event),
                // From a newer daemon: an event we do not know.
                Ok(Ok(Some(wire::ImportEvent { event: None }))) => {}
                Ok(Ok(None)) => {
                    return Err(ClientError::Internal("the import ended without a result".to_owned()));
                }
                Ok(Err(status)) => return Err(self.client.error(&status)),
                Err(_) => {
                    let timeout_s = IMPORT_SILENCE.as_secs();
                    return Err(ClientError::Timeout { operation: "a step of an import", timeout_s });
                }
            }
        }
    }
}

fn text(path: &Path) -> Result<String, ClientError> {
    path.to_str().map(str::to_owned).ok_or_else(|| ClientError::Invalid(format!("{path:?} is not UTF-8")))
}

fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
