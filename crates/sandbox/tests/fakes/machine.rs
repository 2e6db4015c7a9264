//! Machines and the daemons in them.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_trait::async_trait;
use protocol::envd::{InitRequest, Metrics};
use sandbox::{FindMachine, GuestDaemon, GuestError};
use tokio::sync::watch;
use vmm::{Machine, MachineConfig, MachineRecord, MachineStatistics, MachineStatus, Vmm, VmmError};

use super::{Step, World};

/// A machine on the host.
#[derive(Debug)]
pub struct Vm {
    pub alive: watch::Sender<bool>,
    pub config: MachineConfig,
}

#[derive(Debug)]
pub struct FakeVmm(pub Arc<World>);

#[derive(Debug)]
struct FakeMachine {
    world: Arc<World>,
    record: MachineRecord,
    alive: watch::Receiver<bool>,
}

#[async_trait]
impl Vmm for FakeVmm {
    fn name(&self) -> &'static str {
        "fake"
    }

    async fn boot(&self, config: MachineConfig) -> Result<Box<dyn Machine>, VmmError> {
        let id = config.id.clone();
        let start_error = |reason: String| VmmError::Start { id: id.clone(), reason, console: String::new() };
        self.0.pass(Step::Boot).await.map_err(start_error)?;
        assert!(config.runtime_directory.is_dir(), "the runtime directory must exist");
        assert!(self.0.devices.lock().unwrap().contains_key(&id), "the disk must exist");
        std::fs::write(&config.console_log, "aenv-init: hello\n").unwrap();
        let record = record(&id, &config.runtime_directory, &config.console_log);
        let vm = Arc::new(Vm { alive: watch::channel(true).0, config });
        let alive = vm.alive.subscribe();
        let previous = self.0.machines.lock().unwrap().insert(id, vm);
        assert!(previous.is_none(), "booted twice");
        let _ = self.0.pass(Step::Booted).await;
        Ok(Box::new(FakeMachine { world: self.0.clone(), record, alive }))
    }

    async fn adopt(&self, record: &MachineRecord) -> Result<Box<dyn Machine>, VmmError> {
        match self.0.machines.lock().unwrap().get(&record.id) {
            Some(vm) => Ok(Box::new(FakeMachine {
                world: self.0.clone(),
                record: record.clone(),
                alive: vm.alive.subscribe(),
            })),
            None => Err(VmmError::Gone { id: record.id.clone() }),
        }
    }
}

#[async_trait]
impl FindMachine for FakeVmm {
    async fn find(
        &self,
        id: &str,
        runtime_directory: &Path,
        console_log: &Path,
    ) -> Result<Option<MachineRecord>, VmmError> {
        let found = self.0.machines.lock().unwrap().contains_key(id);
        Ok(found.then(|| record(id, runtime_directory, console_log)))
    }
}

fn record(id: &str, runtime_directory: &Path, console_log: &Path) -> MachineRecord {
    MachineRecord {
        driver: "fake".to_owned(),
        id: id.to_owned(),
        process_id: u32::MAX,
        process_start_ticks: 0,
        runtime_directory: runtime_directory.to_owned(),
        console_log: console_log.to_owned(),
    }
}

#[async_trait]
impl Machine for FakeMachine {
    fn record(&self) -> &MachineRecord {
        &self.record
    }

    async fn status(&self) -> MachineStatus {
        match *self.alive.borrow() {
            true if self.world.paused.lock().unwrap().contains(&self.record.id) => MachineStatus::Paused,
            true => MachineStatus::Running,
            false => MachineStatus::Exited,
        }
    }

    async fn pause(&self, _timeout: Duration) -> Result<(), VmmError> {
        Ok(())
    }

    async fn resume(&self) -> Result<(), VmmError> {
        self.world.resumes.fetch_add(1, Ordering::Relaxed);
        if !self.world.disk_full.load(Ordering::Relaxed) {
            self.world.paused.lock().unwrap().remove(&self.record.id);
        }
        Ok(())
    }

    fn statistics(&self) -> Result<MachineStatistics, VmmError> {
        Ok(MachineStatistics::default())
    }

    async fn kill(&self) -> Result<(), VmmError> {
        let id = self.record.id.clone();
        self.world.pass(Step::Kill).await.map_err(|reason| VmmError::Refused {
            id: id.clone(),
            operation: "kill".to_owned(),
            reason,
        })?;
        if let Some(vm) = self.world.machines.lock().unwrap().remove(&id) {
            vm.alive.send_replace(false);
        }
        Ok(())
    }

    async fn wait(&self) {
        let _ = self.alive.clone().wait_for(|alive| !alive).await;
    }

    fn console_tail(&self, _max_bytes: usize) -> String {
        "aenv-init: the last line\n".to_owned()
    }
}

#[derive(Debug)]
pub struct FakeGuest(pub Arc<World>);

impl FakeGuest {
    fn error(&self, guest: Ipv4Addr, reason: String) -> GuestError {
        GuestError::Connect { address: (guest, 0).into(), reason }
    }
}

#[async_trait]
impl GuestDaemon for FakeGuest {
    async fn health(&self, guest: Ipv4Addr, _patience: Duration) -> Result<(), GuestError> {
        self.0.pass(Step::Health).await.map_err(|reason| self.error(guest, reason))?;
        if self.0.guests_answer.load(Ordering::Relaxed) {
            return Ok(());
        }
        Err(self.error(guest, "silent".to_owned()))
    }

    async fn init(&self, guest: Ipv4Addr, init: &InitRequest) -> Result<(), GuestError> {
        assert_eq!(init.access_token.as_ref().unwrap().len(), 64);
        self.0.creating.fetch_sub(1, Ordering::Relaxed);
        self.0.pass(Step::Init).await.map_err(|reason| self.error(guest, reason))
    }

    async fn metrics(&self, _guest: Ipv4Addr, _access_token: &str) -> Result<Metrics, GuestError> {
        Ok(Metrics { ts: 1_788_000_000, cpu_count: 2, mem_total: 512 << 20, ..Metrics::default() })
    }
}
