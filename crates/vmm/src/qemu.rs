//! Driver of QEMU's `microvm` machine.
//!
//! QEMU is a process of its own session that outlives the node. Everything needed to find it again is its
//! [`MachineRecord`]; commands go over a QMP socket in its runtime directory, and its process is watched by a pidfd.

mod accelerator;
mod boot;
mod command_line;
mod machine;
mod program;
mod qmp;
mod spawn;
mod tsc;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

pub use accelerator::{Accelerator, AcceleratorChoice, KvmProbe};
pub use spawn::RunAs;

use command_line::{Host, RuntimeFiles};
use machine::QemuMachine;
use program::Program;

use crate::console::ConsoleReader;
use crate::process::MonitorProcess;
use crate::{Machine, MachineConfig, MachineRecord, Vmm, VmmError};

const DRIVER: &str = "qemu";

/// Settings of the driver.
#[derive(Debug, Clone)]
pub struct QemuConfig {
    /// QEMU's program: a path, or a name that is looked for in `PATH`.
    pub program: PathBuf,
    /// Hardware virtualization or emulation.
    pub accelerator: AcceleratorChoice,
    /// Where to look for KVM.
    pub kvm_probe: KvmProbe,
    /// Frequency of the time stamp counter in kHz; measured when not given. Only emulated guests are told it.
    pub tsc_khz: Option<u32>,
    /// User to run monitors as; `None` is the node's own user, without its capabilities. That user needs access to kernel,
    /// initramfs and disks; the machine's runtime directory is given to it.
    pub run_as: Option<RunAs>,
    /// Runs monitors in a network namespace without network. Turning it off is for hosts where the node may not make one.
    pub isolate_network: bool,
    /// The console log of a machine is kept below this.
    pub console_limit_bytes: u64,
    /// Time from starting the process until guest processors run. It takes about 40 ms; the default is for busy hosts.
    pub start_timeout: Duration,
}

impl Default for QemuConfig {
    fn default() -> Self {
        Self {
            program: "qemu-system-x86_64".into(),
            accelerator: AcceleratorChoice::Auto,
            kvm_probe: KvmProbe::default(),
            tsc_khz: None,
            run_as: None,
            isolate_network: true,
            console_limit_bytes: 1 << 20,
            start_timeout: Duration::from_secs(30),
        }
    }
}

/// What this host offers and what was chosen.
#[derive(Debug, Clone)]
pub struct QemuReport {
    /// QEMU's program.
    pub program: PathBuf,
    /// Its version, as it says it.
    pub version: String,
    /// The firmware guests start from.
    pub firmware: PathBuf,
    /// How guest code is run.
    pub accelerator: Accelerator,
    /// Why.
    pub accelerator_reason: String,
    /// Frequency of the time stamp counter, where it is needed.
    pub tsc_khz: Option<u32>,
}

impl QemuReport {
    /// Looks at the host. Takes about 0.1 s: QEMU is asked for its version, and the time stamp counter is measured.
    ///
    /// # Errors
    /// [`VmmError::Program`] when there is no QEMU that can be used, [`VmmError::Config`] when what was asked for by name
    /// is not there.
    pub fn detect(config: &QemuConfig) -> Result<Self, VmmError> {
        let Program { path, version, firmware } = Program::find(&config.program)?;
        let (accelerator, accelerator_reason) = accelerator::choose(config.accelerator, &config.kvm_probe)?;
        let tsc_khz = match accelerator {
            Accelerator::Kvm => None,
            Accelerator::Tcg => config.tsc_khz.or_else(tsc::measure_khz),
        };
        if accelerator == Accelerator::Tcg && tsc_khz.is_none() {
            // Without the option some boots would hang; that must not be left to chance.
            return Err(VmmError::Config(
                "this host's time stamp counter does not advance evenly, so its frequency cannot be measured; configure it"
                    .to_owned(),
            ));
        }
        Ok(Self { program: path, version, firmware, accelerator, accelerator_reason, tsc_khz })
    }
}

/// The driver.
#[derive(Debug)]
pub struct Qemu {
    config: QemuConfig,
    report: QemuReport,
    network_namespace: Option<Arc<OwnedFd>>,
}

impl Qemu {
    /// Looks at the host and prepares what all machines share. Blocks for about 0.1 s.
    ///
    /// # Errors
    /// Those of [`QemuReport::detect`], and [`VmmError::Io`] when no network namespace can be made.
    pub fn new(config: QemuConfig) -> Result<Self, VmmError> {
        let report = QemuReport::detect(&config)?;
        let network_namespace = match config.isolate_network {
            true => Some(spawn::empty_network_namespace().map_err(VmmError::io(
                "make an empty network namespace for monitors (run as root, or turn their isolation off)",
            ))?),
            false => None,
        };
        Ok(Self { config, report, network_namespace: network_namespace.map(Arc::new) })
    }

    /// What was found and chosen.
    #[must_use]
    pub fn report(&self) -> &QemuReport {
        &self.report
    }

    /// Finds a running machine by its runtime directory alone: for machines that were started by a process that ended
    /// before it had stored their record. `None` when none runs there.
    ///
    /// # Errors
    /// [`VmmError::Io`] when the directory or `/proc` cannot be read.
    pub fn find(
        &self,
        id: &str,
        runtime_directory: &Path,
        console_log: &Path,
    ) -> Result<Option<MachineRecord>, VmmError> {
        let files = RuntimeFiles::of(runtime_directory);
        let Some(process) = boot::find_by_pid_file(&files)? else { return Ok(None) };
        Ok(Some(self.record(id, &process, runtime_directory, console_log)))
    }

    fn record(
        &self,
        id: &str,
        process: &MonitorProcess,
        runtime: &Path,
        console_log: &Path,
    ) -> MachineRecord {
        MachineRecord {
            driver: DRIVER.to_owned(),
            id: id.to_owned(),
            process_id: process.id(),
            process_start_ticks: process.start_ticks(),
            runtime_directory: runtime.to_owned(),
            console_log: console_log.to_owned(),
        }
    }

    fn host(&self) -> Host {
        Host { accelerator: self.report.accelerator, tsc_khz: self.report.tsc_khz }
    }
}

#[async_trait]
impl Vmm for Qemu {
    fn name(&self) -> &'static str {
        DRIVER
    }

    async fn boot(&self, config: MachineConfig) -> Result<Box<dyn Machine>, VmmError> {
        Ok(Box::new(self.start(config).await?))
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Box<dyn Machine>, VmmError> {
        if record.driver != DRIVER {
            return Err(VmmError::Config(format!(
                "machine {} belongs to the driver {:?}",
                record.id, record.driver
            )));
        }
        let files = RuntimeFiles::of(&record.runtime_directory);
        let found = MonitorProcess::find(record.process_id, Some(record.process_start_ticks));
        let Some(process) = found.map_err(VmmError::io(format!("look for machine {}", record.id)))? else {
            files.remove();
            return Err(VmmError::Gone { id: record.id.clone() });
        };
        let limit = self.config.console_limit_bytes;
        let console = ConsoleReader::start(&files.console_pipe, &record.console_log, limit);
        let console = console.inspect_err(|error| {
            // The machine can still be used and ended.
            tracing::warn!(machine = record.id, %error, "the console of an adopted machine cannot be read");
        });
        Ok(Box::new(QemuMachine::new(record.clone(), process, console.ok())))
    }
}
