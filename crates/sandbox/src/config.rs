//! What a node is told when it starts.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use vmm::Vmm;

use crate::{
    Clock, FindMachine, GuestDaemon, Networks, NodeTag, Randomness, SandboxId, Storage, SystemClock,
};
use crate::{HttpGuestDaemon, OsRandomness};

/// A creation also waits for the disk and for its guest, so that more of them than processors get along.
const CREATE_CONCURRENCY_MIN: u32 = 4;

/// Settings of one node.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// Holds `node.db`, `sandboxes/<id>/` and `consoles/`.
    pub data_dir: PathBuf,
    /// Holds `sandboxes/<id>/` with the sockets of the machines.
    pub runtime_dir: PathBuf,
    /// What guests boot from.
    pub guest_files: GuestFiles,
    /// Name servers for guests.
    pub dns: Vec<Ipv4Addr>,
    /// Fixed tag of the node; without one a random tag is made at the first start and kept.
    pub node_tag: Option<NodeTag>,
    /// Virtual processors of a template that does not say.
    pub default_vcpus: u32,
    /// Memory of a template that does not say, in MiB.
    pub default_memory_mib: u32,
    /// Disk size of an image that is pulled without one, in bytes; 0 leaves it to the storage daemon.
    pub default_virtual_size_bytes: u64,
    /// Most sandboxes at a time, those being made and removed included.
    pub sandbox_limit: u32,
    /// How many sandboxes are made at a time; the others wait.
    pub create_concurrency: u32,
    /// From the request until the guest daemon answers, waiting included.
    pub create_deadline: Duration,
    /// Longest time that a client may ask a sandbox to live.
    pub timeout_max: Duration,
    /// How long a request to kill waits for the removal to finish. The removal goes on after it.
    pub kill_wait: Duration,
    /// How often it is looked whether running sandboxes still have a working disk.
    pub disk_check_interval: Duration,
    /// How long the console of a sandbox that ended by itself is kept.
    pub console_retention: Duration,
}

impl NodeConfig {
    /// Defaults for everything that has one.
    #[must_use]
    pub fn new(data_dir: PathBuf, runtime_dir: PathBuf, guest_files: GuestFiles) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let processors = u32::try_from(processors).unwrap_or(u32::MAX);
        Self {
            data_dir,
            runtime_dir,
            guest_files,
            dns: vec![Ipv4Addr::new(1, 1, 1, 1), Ipv4Addr::new(8, 8, 8, 8)],
            node_tag: None,
            default_vcpus: 2,
            default_memory_mib: 512,
            default_virtual_size_bytes: 0,
            sandbox_limit: 64,
            create_concurrency: CREATE_CONCURRENCY_MIN.max(processors),
            create_deadline: Duration::from_secs(60),
            timeout_max: Duration::from_secs(24 * 3600),
            kill_wait: Duration::from_secs(30),
            disk_check_interval: Duration::from_secs(3),
            console_retention: Duration::from_secs(3600),
        }
    }

    pub(crate) fn sandboxes_directory(&self) -> PathBuf {
        self.data_dir.join("sandboxes")
    }

    pub(crate) fn machines_directory(&self) -> PathBuf {
        self.runtime_dir.join("sandboxes")
    }

    pub(crate) fn paths_of(&self, id: &SandboxId) -> SandboxPaths {
        let data = self.sandboxes_directory().join(id.as_str());
        SandboxPaths {
            upper: data.join("upper"),
            console_log: data.join("console.log"),
            data,
            runtime: self.machines_directory().join(id.as_str()),
            kept_console: self.consoles_directory().join(format!("{id}.log")),
        }
    }

    pub(crate) fn consoles_directory(&self) -> PathBuf {
        self.data_dir.join("consoles")
    }

    pub(crate) fn database(&self) -> PathBuf {
        self.data_dir.join("node.db")
    }
}

/// What guests boot from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestFiles {
    /// Uncompressed kernel.
    pub kernel: PathBuf,
    /// Initial file system with modules and the first process.
    pub initramfs: PathBuf,
    /// Read-only disk with the guest daemon.
    pub tools_disk: PathBuf,
}

impl GuestFiles {
    /// The names that `aenv setup` gives them in one directory.
    #[must_use]
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            kernel: directory.join("vmlinux"),
            initramfs: directory.join("initramfs.img"),
            tools_disk: directory.join("tools.img"),
        }
    }
}

/// Where the parts of one sandbox are.
#[derive(Debug, Clone)]
pub(crate) struct SandboxPaths {
    pub(crate) data: PathBuf,
    pub(crate) upper: PathBuf,
    pub(crate) console_log: PathBuf,
    pub(crate) runtime: PathBuf,
    pub(crate) kept_console: PathBuf,
}

/// What a node works with.
#[derive(Debug, Clone)]
pub struct Parts {
    /// The storage daemon.
    pub storage: Arc<dyn Storage>,
    /// Starts machines.
    pub vmm: Arc<dyn Vmm>,
    /// Finds machines that were not recorded.
    pub machines: Arc<dyn FindMachine>,
    /// Makes network slots.
    pub networks: Arc<dyn Networks>,
    /// Talks to the daemon inside a guest.
    pub guest: Arc<dyn GuestDaemon>,
    /// Wall clock.
    pub clock: Arc<dyn Clock>,
    /// Source of ids and tokens.
    pub randomness: Arc<dyn Randomness>,
}

impl Parts {
    /// The parts of a real node: the host's clock and randomness, and the guest daemon over HTTP.
    #[must_use]
    pub fn new<V: Vmm + FindMachine + 'static>(
        storage: Arc<dyn Storage>,
        vmm: Arc<V>,
        networks: Arc<dyn Networks>,
    ) -> Self {
        Self {
            storage,
            machines: vmm.clone(),
            vmm,
            networks,
            guest: Arc::new(HttpGuestDaemon::default()),
            clock: Arc::new(SystemClock),
            randomness: Arc::new(OsRandomness),
        }
    }
}
