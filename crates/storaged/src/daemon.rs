//! The daemon's life from start to end.

use std::fs::Permissions;
use std::future::Future;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use blockdev::FrontEnd as _;
use blockdev::fuse::{FuseConfig, FuseFrontEnd};
use protocol::storage::storage_server::StorageServer;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;

use crate::devices::Devices;
use crate::import::Imports;
use crate::lock::DirectoryLock;
use crate::records::Records;
use crate::scratch::{AsyncScratch, Scratch};
use crate::service::StorageService;
use crate::{Config, StorageError, durable};

/// How long requests in hand may take once the daemon is to end.
const LAST_REQUESTS_TIMEOUT: Duration = Duration::from_secs(10);
/// How often the keeper is looked after.
const KEEPER_INTERVAL: Duration = Duration::from_secs(1);
/// Layer paths and credentials are small; a keep list of many thousand layers still fits.
const MESSAGE_BYTES_MAX: usize = 32 << 20;

/// Runs the daemon until `shutdown` resolves or a client asks for the end.
///
/// When this returns, every device is durable. If no device is left, the mount and its keeper are gone; otherwise they
/// stay, and the devices' users wait for the next daemon. Dropping the future instead is like killing the daemon.
///
/// # Errors
/// Another daemon runs on the same directories; the mount, a directory or the socket cannot be made.
pub async fn run(config: Config, shutdown: impl Future<Output = ()> + Send) -> Result<(), StorageError> {
    let started = blocking(move || Started::new(config)).await?;
    let (end, mut ended) = watch::channel(false);
    let end = Arc::new(end);
    let (socket, listener) = listen(&started.config.socket)?;
    let service =
        StorageService::new(Arc::clone(&started.devices), started.imports.clone(), Arc::clone(&end));
    let service = StorageServer::new(service)
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX);
    let mut ended_too = ended.clone();
    let server = tonic::transport::Server::builder().add_service(service).serve_with_incoming_shutdown(
        UnixListenerStream::new(listener),
        async move {
            drop(ended_too.wait_for(|end| *end).await);
        },
    );
    tracing::info!(socket = %started.config.socket.display(), devices = started.devices.count(), "storage daemon ready");

    let watch = tokio::spawn(watch_keeper(Arc::clone(&started.front_end)));
    tokio::pin!(server, shutdown);
    let served = tokio::select! {
        served = &mut server => served,
        () = &mut shutdown => {
            end.send_replace(true);
            last_requests(server).await
        }
        _ = ended.wait_for(|end| *end) => last_requests(server).await,
    };
    watch.abort();
    drop(socket);
    blocking(move || started.end()).await?;
    served.map_err(|error| StorageError::Internal(format!("the gRPC server failed: {error}")))
}

/// Replaces a keeper that has died.
async fn watch_keeper(front_end: Arc<FuseFrontEnd>) {
    let mut interval = tokio::time::interval(KEEPER_INTERVAL);
    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        interval.tick().await;
        let front_end = Arc::clone(&front_end);
        let result = blocking(move || Ok(front_end.ensure_kept()?)).await;
        if let Err(error) = result {
            tracing::error!(%error, "no keeper: the devices' users would not survive the end of this daemon");
        }
    }
}

async fn last_requests<E>(server: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    match tokio::time::timeout(LAST_REQUESTS_TIMEOUT, server).await {
        Ok(served) => served,
        Err(_) => {
            tracing::warn!("requests that did not end in {} s are cut off", LAST_REQUESTS_TIMEOUT.as_secs());
            Ok(())
        }
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| StorageError::Internal(error.to_string()))?
}

/// Everything that is open while the daemon runs. Fields are dropped in this order.
struct Started {
    config: Config,
    imports: Imports,
    devices: Arc<Devices>,
    front_end: Arc<FuseFrontEnd>,
    _locks: [DirectoryLock; 2],
}

impl Started {
    fn new(config: Config) -> Result<Self, StorageError> {
        let runtime_directory = parent(&config.socket);
        for directory in [&config.state_directory, &config.layers_directory, &runtime_directory] {
            durable::make_directory(directory).map_err(StorageError::io("making", directory))?;
        }
        // Before anything is touched.
        let locks = [
            DirectoryLock::take(&config.state_directory.join("lock"))?,
            DirectoryLock::take(&config.socket.with_extension("lock"))?,
        ];
        remove_scratch(&config.scratch_directory())?;
        let records = Records::open(&config.records_directory())?;
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let front_end = Arc::new(FuseFrontEnd::attach(&FuseConfig {
            mount_point: config.mount_point.clone(),
            keeper_socket: config.keeper_socket.clone(),
            keeper_command: config.keeper_command.clone(),
            threads: config.threads.unwrap_or_else(|| FuseConfig::threads_for(processors)),
            never_resend: false,
        })?);
        let fresh_mount = !front_end.taken_over();
        let devices =
            Devices::open(&config.state_directory, records, Arc::clone(&front_end) as _, fresh_mount)?;
        let devices = Arc::new(devices);
        // Users of the devices have waited long enough: everything else comes after.
        front_end.serve()?;
        let scratch = Arc::new(Scratch::new(Arc::clone(&devices)));
        let imports = Imports::open(&config, Arc::new(AsyncScratch(scratch)))?;
        Ok(Self { config, imports, devices, front_end, _locks: locks })
    }

    fn end(self) -> Result<(), StorageError> {
        self.devices.end();
        if self.devices.count() == 0 {
            match self.front_end.remove() {
                Ok(()) => return Ok(()),
                Err(error) => tracing::warn!(%error, "the mount stays"),
            }
        }
        self.front_end.detach();
        Ok(())
    }
}

fn parent(path: &Path) -> PathBuf {
    path.parent().map_or_else(|| PathBuf::from("/"), Path::to_owned)
}

/// Scratch disks of a daemon that was killed in the middle of an import.
fn remove_scratch(directory: &Path) -> Result<(), StorageError> {
    match std::fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(StorageError::io("removing what an import left in", directory)(error))
        }
        _ => durable::make_directory(directory).map_err(StorageError::io("making", directory)),
    }
}

/// The socket's name; removed when the daemon ends.
struct SocketName(PathBuf);

impl Drop for SocketName {
    fn drop(&mut self) {
        drop(std::fs::remove_file(&self.0));
    }
}

/// Opens the socket under its name at once with the right mode, in place of one that a dead daemon left. We hold the lock:
/// nobody listens on it.
fn listen(path: &Path) -> Result<(SocketName, UnixListener), StorageError> {
    let new = path.with_extension("new");
    durable::remove(&new).map_err(StorageError::io("removing", &new))?;
    let listener = UnixListener::bind(&new).map_err(StorageError::io("listening on", &new))?;
    std::fs::set_permissions(&new, Permissions::from_mode(0o600))
        .and_then(|()| std::fs::rename(&new, path))
        .map_err(StorageError::io("putting into place", path))?;
    Ok((SocketName(path.to_owned()), listener))
}
