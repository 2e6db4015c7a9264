//! `aenv serve`: one machine's node. The HTTP interface and the sandboxes' actors live in this process; the storage daemon
//! and the virtual machines outlive it.

mod storage_process;

use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use sandbox::{GuestFiles, NodeConfig, Parts};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;
use crate::{doctor, key_file, output, role};
use storage_process::StorageProcess;

/// How long actors may take to put their sandboxes into a state the next node finds.
const STOP_PATIENCE: Duration = Duration::from_secs(15);

pub(crate) async fn run(config: Config, config_file: Option<PathBuf>, ready_fd: Option<i32>) -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!(
            "a node makes network namespaces, mounts and virtual machines, and needs root: run it as root (sudo aenv serve)"
        );
    }
    let ready = ready_fd.map(take_descriptor).transpose()?;
    // Handlers first, so that a signal during a slow start ends it in order.
    let stop = stop_signal()?;
    tokio::pin!(stop);

    let assets = assets::Assets::open(&config.assets_directory())?;
    // Before anything is started: a second node on the same address must not touch the first one's storage.
    let listener = TcpListener::bind(config.listen).await.with_context(|| {
        format!("listen on {}; is another node running, or another program on this port?", config.listen)
    })?;
    make_directories(&config)?;
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
    let node = Arc::new(sandbox::Node::start(node_config(&config, &assets), parts).await?);

    let mut api_config = api::ApiConfig::new(key);
    api_config.domain = Some(domain(&config));
    let router = api::router(Arc::clone(&node), api_config);
    announce(&config, ready);
    let served = api::serve(listener, router, api::ServerLimits::default(), &mut stop).await;

    node.stop(STOP_PATIENCE).await;
    let left = node.counts();
    let left = left.running + left.creating + left.killing;
    drop(node);
    if left > 0 {
        storage.leave();
        output::note(&format!(
            "aenv: {left} sandboxes go on running, with the storage daemon under them; `aenv serve` takes them over \
             again, and `aenv rm --all` then kills them"
        ));
    } else {
        storage.stop().await;
        slots.remove_host_rules().await.context("remove the host's network rules")?;
        remove_runtime_directories(&config);
    }
    served.context("serve HTTP")
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
fn take_descriptor(number: i32) -> anyhow::Result<OwnedFd> {
    // Asked of the kernel first: only then is it known to be open.
    if number <= 2 || !std::path::Path::new(&format!("/proc/self/fd/{number}")).exists() {
        bail!("--ready-fd {number}: that descriptor is not open, or is a standard stream");
    }
    // SAFETY: it is open, was opened by the caller of this program for this purpose, and this is done once, before
    // anything of ours is opened that could have got this number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn announce(config: &Config, ready: Option<OwnedFd>) {
    let line = format!("aenv: ready on {}", config.url());
    output::note(&line);
    if let Some(descriptor) = ready {
        let number = descriptor.as_raw_fd();
        if let Err(error) = writeln!(std::fs::File::from(descriptor), "{line}") {
            tracing::warn!(%error, number, "the ready line could not be written");
        }
    }
}

fn make_directories(config: &Config) -> anyhow::Result<()> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    for directory in [&config.data_dir, &config.runtime_dir] {
        let context = || format!("make {}", directory.display());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(context)?;
        // Disks and keys lie below; machines that run as other users are given what they need by descriptor or owner.
        std::fs::set_permissions(directory, PermissionsExt::from_mode(0o711)).with_context(context)?;
    }
    Ok(())
}

/// What is empty goes, so that a node that ended leaves nothing.
fn remove_runtime_directories(config: &Config) {
    for directory in [config.runtime_dir.join("devices"), config.runtime_dir.join("sandboxes"), config.runtime_dir.clone()]
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
