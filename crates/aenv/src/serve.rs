//! `aenv serve`: one machine's node. The HTTP interface and the sandboxes' actors live in this process; the storage daemon
//! and the virtual machines outlive it.

mod storage_process;

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use rustix::fs::FlockOperation;
use rustix::io::Errno;
use sandbox::{GuestFiles, NodeConfig, Parts};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::{doctor, key_file, output, role};
use storage_process::StorageProcess;

/// How long actors may take to put their sandboxes into a state the next node finds.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

pub(crate) async fn run(
    config: Config,
    config_file: Option<PathBuf>,
    ready: Option<OwnedFd>,
) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "a node makes network namespaces, mounts and virtual machines, and needs root: run it as root (sudo aenv serve)"
        );
    }
    // Handlers first, so that a signal during a slow start ends it in order.
    let stop = stop_signal()?;
    let assets = assets::Assets::open(&config.assets_directory())?;
    make_directories(&config)?;
    // Before anything is started: a second node must not touch the first one's sandboxes.
    let _lock = lock(&config.data_dir)?;
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!("listen on {}; is another node running, or another program on this port?", config.listen)
    })?;
    let key = key_file::load_or_create(&config.api_key_path())?;
    let key = api::ApiKey::new(&key).with_context(|| config.api_key_path().display().to_string())?;

    let qemu = doctor::qemu_config(&config);
    let qemu = tokio::task::spawn_blocking(move || vmm::qemu::Qemu::new(qemu)).await??;
    let report = qemu.report();
    tracing::info!(
        qemu = report.version,
        accelerator = ?report.accelerator,
        reason = report.accelerator_reason,
        kernel = assets.manifest.kernel_release,
        "virtual machines"
    );
    let slots = Arc::new(network::SlotManager::new(network_config(&config)).await?);
    let command = role::command(config_file.as_deref(), "storaged")?;
    let storage = StorageProcess::start(&config, command).await?;
    let parts = Parts::new(storage.storage(), Arc::new(qemu), Arc::clone(&slots) as _);

    let mut api_config = api::ApiConfig::new(key);
    api_config.domain = Some(domain(&config));
    let node_config = node_config(&config, &assets);
    let front = Front { listener, api_config, ready, url: config.url() };
    let served = serve_node(node_config, parts, front, stop).await;
    let running = match &served {
        Ok(running) => *running,
        // Unknown: the storage daemon refuses to end while sandboxes have disks.
        Err(_) => 0,
    };
    if running > 0 {
        storage.leave();
        output::note(&format!(
            "aenv: left running: {running} {}, with the storage daemon under them; `aenv serve` takes them over again, and \
             `aenv rm --all` then kills them",
            if running == 1 { "sandbox" } else { "sandboxes" }
        ));
    } else if storage.stop().await {
        slots.remove_host_rules().await.context("remove the host's network rules")?;
        remove_runtime_directories(&config);
    }
    served.map(drop)
}

/// What the node is reached by.
struct Front {
    listener: TcpListener,
    api_config: api::ApiConfig,
    ready: Option<OwnedFd>,
    url: String,
}

/// Serves until `stop`. Answers how many sandboxes go on running.
async fn serve_node(
    config: NodeConfig,
    parts: Parts,
    front: Front,
    stop: impl Future<Output = ()> + Send,
) -> anyhow::Result<u32> {
    let node = Arc::new(sandbox::Node::start(config, parts).await?);
    let router = api::router(Arc::clone(&node), front.api_config);
    announce(&front.url, front.ready);
    let served = api::serve(front.listener, router, api::ServerLimits::default(), stop).await;
    // Half-made sandboxes are undone by the stop; running ones are what is left.
    let running = node.counts().running;
    node.stop(STOP_PATIENCE).await;
    served.context("serve HTTP")?;
    Ok(running)
}

/// Resolves at the first SIGTERM or SIGINT. A second one ends the process at once.
fn stop_signal() -> anyhow::Result<impl Future<Output = ()> + Send> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("stopping; a second signal ends the node at once");
        // Nobody waits when the start has failed meanwhile.
        let _ = sender.send(());
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        output::note("aenv: ended at once; the next `aenv serve` puts things in order");
        std::process::exit(1);
    });
    Ok(async move {
        // The sender lives as long as its task, which lives as long as the runtime.
        let _ = receiver.await;
    })
}

/// The descriptor a script gave for the line that says that the node answers.
pub(crate) fn take_descriptor(number: i32) -> anyhow::Result<OwnedFd> {
    // Asked of the kernel first: only then is it known to be open.
    if number <= 2 || !Path::new(&format!("/proc/self/fd/{number}")).exists() {
        bail!("--ready-fd {number}: that descriptor is not open, or is a standard stream");
    }
    // SAFETY: it is open, and whoever started this program opened it for this purpose; `main` does this once, before
    // anything of ours is open that could have got the number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn announce(url: &str, ready: Option<OwnedFd>) {
    let line = format!("aenv: ready on {url}");
    output::note(&line);
    if let Some(descriptor) = ready {
        let number = descriptor.as_raw_fd();
        if let Err(error) = writeln!(File::from(descriptor), "{line}") {
            tracing::warn!(%error, number, "the ready line could not be written");
        }
    }
}

fn make_directories(config: &Config) -> anyhow::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    for directory in [&config.data_dir, &config.runtime_dir] {
        let context = || format!("make {}", directory.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(context)?;
        // Disks and keys lie below.
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o700)).with_context(context)?;
    }
    Ok(())
}

/// Holds the directory for this node until the process ends, however it ends.
fn lock(data_dir: &Path) -> anyhow::Result<File> {
    let path = data_dir.join("node.lock");
    let context = || format!("lock {}", path.display());
    let file = File::options().create(true).append(true).open(&path).with_context(context)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => bail!(
            "another node is already running on {}; stop it, or give this one other directories, another address and \
             another network.name_prefix",
            data_dir.display()
        ),
        Err(error) => Err(error).with_context(context),
    }
}

/// What is empty goes, so that a node that ended leaves nothing.
fn remove_runtime_directories(config: &Config) {
    // The daemon's lock on this directory. It has ended, and its other lock, in the data directory, still keeps two of them
    // from the same disks.
    let _ = std::fs::remove_file(config.runtime_dir.join("storaged.lock"));
    for directory in
        [config.runtime_dir.join("devices"), config.runtime_dir.join("sandboxes"), config.runtime_dir.clone()]
    {
        let _ = std::fs::remove_dir(directory);
    }
}

fn node_config(config: &Config, assets: &assets::Assets) -> NodeConfig {
    let guest_files = GuestFiles {
        kernel: assets.kernel.clone(),
        initramfs: assets.initramfs.clone(),
        tools_disk: assets.tools_disk.clone(),
    };
    let mut node = NodeConfig::new(config.data_dir.clone(), config.runtime_dir.clone(), guest_files);
    node.dns.clone_from(&config.network.dns);
    node.default_vcpus = config.sandbox.default_vcpus;
    node.default_memory_mib = config.sandbox.default_memory_mib;
    node.default_virtual_size_bytes = config.storage.virtual_size_gib << 30;
    node.sandbox_limit = config.sandbox.limit;
    node
}

pub(crate) fn network_config(config: &Config) -> network::NetworkConfig {
    let range = config.network.slot_range;
    network::NetworkConfig {
        name_prefix: config.network.name_prefix.clone(),
        slot_range: (range.0, range.1),
        denied_networks: config.network.denied_networks.iter().map(|denied| (denied.0, denied.1)).collect(),
    }
}

/// Clients are always given a domain: their `get_host(port)` would point at the cloud service otherwise.
fn domain(config: &Config) -> String {
    config.domain.clone().unwrap_or_else(|| format!("localhost:{}", config.listen.port()))
}
