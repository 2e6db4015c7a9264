//! Making a sandbox: storage and network side by side, then the machine, then the daemon inside it.
//!
//! A step that leaves something on the host is never abandoned halfway: a kill or the deadline takes effect between
//! steps, so that it is known what is to be removed. Only waiting for the guest is cut short.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use network::{GUEST_MAC, Slot};
use protocol::envd::InitRequest;
use tokio::time::Instant;
use vmm::{Disk, Machine, MachineConfig, NetworkInterface};

use super::{Actor, EndReason, Live, State, end_wanted, requested};
use crate::DeviceRequest;

/// First and longest limit of one connection attempt while the guest boots.
const PATIENCE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// Pause between two attempts.
const ATTEMPT_INTERVAL: Duration = Duration::from_millis(10);
/// Most bytes of console that an error carries.
const CONSOLE_TAIL_BYTES: usize = 2000;

impl Actor {
    /// Makes the sandbox and publishes it. On failure `resources` holds what is to be removed.
    pub(super) async fn create(&mut self, timeout: Duration, deadline: Instant) -> Result<Live, EndReason> {
        let begun = Instant::now();
        let shared = self.shared.clone();
        let _turn = tokio::select! {
            turn = shared.create_turns.acquire() => turn.map_err(|_| EndReason::NodeStops)?,
            reason = self.cut_short(deadline, EndReason::NoTurn) => return Err(reason),
        };
        let waited = begun.elapsed();

        make_directories(&[&self.paths.data, &self.paths.runtime]).await?;
        let (device, slot) = tokio::join!(self.make_device(), self.make_network());
        // Both are kept before either error is looked at: what exists is to be removed.
        let slot = slot.map(|slot| self.resources.slot.insert(slot).clone());
        let (device, slot) = (device?, slot?);
        shared
            .store
            .set_slot(&self.id, &slot.record())
            .await
            .map_err(|error| failed("recording the network", error))?;
        let prepared = begun.elapsed();

        self.check(deadline, "its disk and network were made")?;
        let machine = self.boot(&device, &slot).await?;
        let machine = self.resources.machine.insert(machine).clone();
        let record = machine.record();
        shared
            .store
            .set_machine(&self.id, record)
            .await
            .map_err(|error| failed("recording the machine", error))?;
        let booted = begun.elapsed();

        self.wait_for_guest(&machine, &slot, deadline).await?;
        self.check(deadline, "its guest daemon was being set up")?;
        self.init_guest(&machine, &slot).await?;
        self.check(deadline, "its guest daemon had just been set up")?;
        let started_at = shared.parts.clock.now();
        let live = Live {
            started_at,
            end_at: started_at.saturating_add(timeout),
            guest: slot.host_side_guest_address,
        };
        let recorded = shared.store.set_running(&self.id, started_at, live.end_at).await;
        recorded.map_err(|error| failed("recording that it runs", error))?;
        self.state.send_replace(State::Running(live));
        tracing::info!(
            template = self.spec.template_name,
            waited_ms = millis(waited),
            prepared_ms = millis(prepared),
            booted_ms = millis(booted),
            ready_ms = millis(begun.elapsed()),
            "running"
        );
        Ok(live)
    }

    async fn make_device(&self) -> Result<crate::Device, EndReason> {
        let request = DeviceRequest {
            id: self.id.to_string(),
            lower_paths: self.spec.layer_paths.clone(),
            upper_directory: self.paths.upper.clone(),
            virtual_size_bytes: self.spec.virtual_size_bytes,
        };
        self.shared.parts.storage.create_device(request).await.map_err(|error| failed("its disk", error))
    }

    async fn make_network(&self) -> Result<Slot, EndReason> {
        self.shared.parts.networks.acquire().await.map_err(|error| failed("its network", error))
    }

    async fn boot(&self, device: &crate::Device, slot: &Slot) -> Result<Arc<dyn Machine>, EndReason> {
        let config = &self.shared.config;
        let files = &config.guest_files;
        let tap = self
            .shared
            .parts
            .networks
            .open_tap(slot)
            .await
            .map_err(|error| failed("its network card", error))?;
        let dns: Vec<String> = config.dns.iter().map(ToString::to_string).collect();
        let machine = MachineConfig {
            id: self.id.to_string(),
            vcpus: self.spec.vcpus,
            memory_mib: self.spec.memory_mib,
            kernel: files.kernel.clone(),
            initramfs: files.initramfs.clone(),
            kernel_arguments: vec![
                format!("agentenv.hostname={}", self.id),
                format!("agentenv.dns={}", dns.join(",")),
            ],
            disks: vec![
                Disk { path: files.tools_disk.clone(), read_only: true },
                Disk { path: device.path.clone(), read_only: false },
            ],
            network: Some(NetworkInterface { tap, guest_mac: GUEST_MAC }),
            runtime_directory: self.paths.runtime.clone(),
            console_log: self.paths.console_log.clone(),
        };
        let machine =
            self.shared.parts.vmm.boot(machine).await.map_err(|error| failed("its machine", error))?;
        Ok(Arc::from(machine))
    }

    /// Asks the daemon until it answers. A machine that ends meanwhile is noticed at once.
    async fn wait_for_guest(
        &mut self,
        machine: &Arc<dyn Machine>,
        slot: &Slot,
        deadline: Instant,
    ) -> Result<(), EndReason> {
        let too_late = self.too_late("the guest was starting");
        let guest = self.shared.parts.guest.clone();
        let address = slot.host_side_guest_address;
        let answered = async {
            let mut patience = PATIENCE.0;
            while let Err(error) = guest.health(address, patience).await {
                tracing::trace!(%error, "the guest daemon does not answer yet");
                tokio::time::sleep(ATTEMPT_INTERVAL).await;
                patience = (patience * 3 / 2).min(PATIENCE.1);
            }
        };
        tokio::select! {
            () = answered => Ok(()),
            () = machine.wait() => Err(console_failure(machine, "its machine ended while the guest was starting")),
            reason = self.cut_short(deadline, too_late) => Err(match reason {
                EndReason::CreateFailed(reason) => console_failure(machine, &reason),
                other => other,
            }),
        }
    }

    async fn init_guest(&self, machine: &Arc<dyn Machine>, slot: &Slot) -> Result<(), EndReason> {
        let mut init = InitRequest {
            env_vars: Some(self.spec.env.clone()),
            access_token: Some(self.spec.access_token.clone()),
            timestamp: Some(self.shared.parts.clock.now().to_string()),
            default_user: self.spec.default_user.clone(),
            default_workdir: self.spec.default_workdir.clone(),
            sandbox_id: Some(self.id.to_string()),
            template_id: Some(self.spec.template_id.clone()),
        };
        let first = self.shared.parts.guest.init(slot.host_side_guest_address, &init).await;
        let Err(error) = first else { return Ok(()) };
        tracing::debug!(%error, "the guest daemon is asked to set up once more");
        init.timestamp = Some(self.shared.parts.clock.now().to_string());
        let second = self.shared.parts.guest.init(slot.host_side_guest_address, &init).await;
        second
            .map_err(|error| console_failure(machine, &format!("the guest daemon cannot be set up: {error}")))
    }

    /// Whether there is a reason to stop, asked between two steps.
    fn check(&self, deadline: Instant, step: &str) -> Result<(), EndReason> {
        if let Some(reason) = &*self.end.borrow() {
            return Err(reason.clone());
        }
        if *self.stopping.borrow() {
            return Err(EndReason::NodeStops);
        }
        if Instant::now() >= deadline { Err(self.too_late(step)) } else { Ok(()) }
    }

    /// Waits for a reason to stop; `too_late` is the one when the deadline comes.
    async fn cut_short(&mut self, deadline: Instant, too_late: EndReason) -> EndReason {
        tokio::select! {
            biased;
            reason = end_wanted(&mut self.end) => reason,
            () = requested(&mut self.stopping) => EndReason::NodeStops,
            () = tokio::time::sleep_until(deadline) => too_late,
        }
    }

    fn too_late(&self, step: &str) -> EndReason {
        let seconds = self.shared.config.create_deadline.as_secs();
        EndReason::CreateFailed(format!("it was not ready within {seconds} s; at that time {step}"))
    }
}

fn failed(step: &str, error: impl std::fmt::Display) -> EndReason {
    EndReason::CreateFailed(format!("{step}: {error}"))
}

fn console_failure(machine: &Arc<dyn Machine>, reason: &str) -> EndReason {
    let console = machine.console_tail(CONSOLE_TAIL_BYTES);
    let console = console.trim_end();
    if console.is_empty() {
        return EndReason::CreateFailed(format!("{reason}; the guest's console is empty"));
    }
    EndReason::CreateFailed(format!("{reason}; last lines of the guest's console:\n{console}"))
}

async fn make_directories(paths: &[&Path]) -> Result<(), EndReason> {
    for path in paths {
        let made = tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).await;
        made.map_err(|error| failed("its directory", format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
