//! What a virtual machine monitor is to the rest of the system.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::VmmError;

/// Everything a monitor needs to boot one guest.
#[derive(Debug)]
pub struct MachineConfig {
    /// Names the machine in logs and process lists; the sandbox id. Letters, digits, `-`, `_` and `.`, at most 64.
    pub id: String,
    /// Number of virtual processors, at least 1.
    pub vcpus: u32,
    /// Guest memory in MiB, at least 64.
    pub memory_mib: u32,
    /// Uncompressed kernel (ELF `vmlinux`).
    pub kernel: PathBuf,
    /// Initramfs, padded to a multiple of 4096 bytes.
    pub initramfs: PathBuf,
    /// Words added to the driver's own kernel command line.
    pub kernel_arguments: Vec<String>,
    /// Disks in order: the first appears as `/dev/vda`.
    pub disks: Vec<Disk>,
    /// The guest's network card, if it has one.
    pub network: Option<NetworkInterface>,
    /// Directory for sockets and records of this machine; exists, and belongs to this machine alone.
    pub runtime_directory: PathBuf,
    /// File that receives the guest's serial console and the monitor's own messages; created when missing, appended to.
    /// Its size is bounded: the oldest output goes first. It is filled while a [`Machine`] handle exists.
    pub console_log: PathBuf,
}

/// A block device given to the guest.
#[derive(Debug, Clone)]
pub struct Disk {
    /// Raw image or block device, opened by the monitor.
    pub path: PathBuf,
    /// A read-only disk is opened read-only by the monitor too, not only by the guest.
    pub read_only: bool,
}

/// A tap device opened by the caller, so that the monitor itself needs no network rights.
#[derive(Debug)]
pub struct NetworkInterface {
    /// Descriptor of a tap with `IFF_TAP | IFF_NO_PI | IFF_VNET_HDR`.
    pub tap: OwnedFd,
    /// The guest's address, fixed across all machines so that a restored guest stays reachable.
    pub guest_mac: [u8; 6],
}

/// What is needed to find a running machine again after this process was restarted. Durable, so fields are only added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineRecord {
    /// Driver that made it: `qemu`.
    pub driver: String,
    /// Id given at boot.
    pub id: String,
    /// Process id of the monitor.
    pub process_id: u32,
    /// Start time of that process in clock ticks since boot (`/proc/PID/stat` field 22): a reused process id differs.
    pub process_start_ticks: u64,
    /// The machine's runtime directory.
    pub runtime_directory: PathBuf,
    /// The machine's console log.
    pub console_log: PathBuf,
}

/// State of the monitor as it reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineStatus {
    /// Guest processors run.
    Running,
    /// Guest processors are stopped, memory is kept.
    Paused,
    /// The monitor process is gone.
    Exited,
}

/// Use of host resources by one machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineStatistics {
    /// Processor time of the monitor since its start.
    pub cpu_time: Duration,
    /// Resident memory of the monitor in bytes, shared pages included.
    pub resident_bytes: u64,
}

/// A driver: starts machines, and finds them again.
#[async_trait]
pub trait Vmm: Send + Sync + std::fmt::Debug {
    /// The driver's name as it stands in [`MachineRecord::driver`].
    fn name(&self) -> &'static str;

    /// Starts a monitor and lets the guest run. Returns once the guest's processors run; the guest itself still boots.
    /// On failure, and when the returned future is dropped, nothing but the console log is left behind; the error holds
    /// the last lines of the console.
    async fn boot(&self, config: MachineConfig) -> Result<Box<dyn Machine>, VmmError>;

    /// Takes over a machine started by an earlier process, or whose handle was dropped. Fails with [`VmmError::Gone`] when
    /// its process has ended; its sockets are removed then.
    async fn adopt(&self, record: &MachineRecord) -> Result<Box<dyn Machine>, VmmError>;
}

/// One machine. Dropping the handle does not end the machine: monitors outlive the process that started them. A machine
/// has one handle at a time: it alone reads the console.
#[async_trait]
pub trait Machine: Send + Sync + std::fmt::Debug {
    /// What to store so that [`Vmm::adopt`] finds this machine.
    fn record(&self) -> &MachineRecord;

    /// Asks the monitor. Never fails: a monitor that does not answer and has no process is [`MachineStatus::Exited`].
    async fn status(&self) -> MachineStatus;

    /// Stops the guest's processors; block requests in flight are finished first. Bounded by `timeout`, since a stuck
    /// storage back end would hold it for ever.
    async fn pause(&self, timeout: Duration) -> Result<(), VmmError>;

    /// Lets a paused guest run on.
    async fn resume(&self) -> Result<(), VmmError>;

    /// Reads use of host resources.
    fn statistics(&self) -> Result<MachineStatistics, VmmError>;

    /// Ends the monitor at once and removes its sockets. Succeeds when it has already ended.
    async fn kill(&self) -> Result<(), VmmError>;

    /// Waits until the monitor process ends, for whatever reason. What the console said last is in its log then.
    async fn wait(&self);

    /// Last lines of the serial console, at most `max_bytes`, with invalid text replaced.
    fn console_tail(&self, max_bytes: usize) -> String;
}
