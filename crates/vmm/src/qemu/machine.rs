//! A running QEMU.

use std::time::Duration;

use async_trait::async_trait;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::boot::RunState;
use super::command_line::RuntimeFiles;
use super::qmp::{Qmp, QmpError};
use crate::console::{self, ConsoleReader};
use crate::process::MonitorProcess;
use crate::{Machine, MachineRecord, MachineStatistics, MachineStatus, VmmError};

/// Commands that only change or ask state are answered in under a millisecond; this is for busy hosts.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const STATUS_LIMIT: Duration = Duration::from_secs(2);
/// A killed process ends at once, unless it waits inside the kernel for a storage back end that does not answer.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// How long the last output may take to reach the log.
const CONSOLE_LIMIT: Duration = Duration::from_secs(1);

/// A machine of this driver.
#[derive(Debug)]
pub(super) struct QemuMachine {
    record: MachineRecord,
    files: RuntimeFiles,
    process: MonitorProcess,
    /// `None` when the pipe of an adopted machine is gone.
    console: Option<ConsoleReader>,
}

impl QemuMachine {
    pub(super) fn new(
        record: MachineRecord,
        process: MonitorProcess,
        console: Option<ConsoleReader>,
    ) -> Self {
        Self { files: RuntimeFiles::of(&record.runtime_directory), record, process, console }
    }

    /// Runs one command on a connection of its own.
    async fn command<T: DeserializeOwned>(&self, name: &'static str, limit: Duration) -> Result<T, VmmError> {
        let id = || self.record.id.clone();
        let run = async { Qmp::connect(&self.files.qmp_socket).await?.execute::<T>(name, None).await };
        let result = tokio::select! {
            result = tokio::time::timeout(limit, run) => result,
            _ = self.process.ended() => return Err(VmmError::Gone { id: id() }),
        };
        match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(QmpError::Closed | QmpError::Connection(_))) if self.process.has_ended() => {
                Err(VmmError::Gone { id: id() })
            }
            Ok(Err(error)) => {
                Err(VmmError::Refused { id: id(), operation: name.to_owned(), reason: error.to_string() })
            }
            Err(_) => Err(VmmError::Timeout { id: id(), operation: name, seconds: limit.as_secs() }),
        }
    }

    async fn console_finished(&self) {
        if let Some(console) = &self.console {
            console.finished(CONSOLE_LIMIT).await;
        }
    }
}

#[async_trait]
impl Machine for QemuMachine {
    fn record(&self) -> &MachineRecord {
        &self.record
    }

    async fn status(&self) -> MachineStatus {
        match self.command::<RunState>("query-status", STATUS_LIMIT).await {
            Ok(state) if state.status == "running" => MachineStatus::Running,
            Ok(_) => MachineStatus::Paused,
            Err(_) if self.process.has_ended() => MachineStatus::Exited,
            // It holds its guest and will be asked again.
            Err(_) => MachineStatus::Running,
        }
    }

    async fn pause(&self, timeout: Duration) -> Result<(), VmmError> {
        self.command::<Value>("stop", timeout).await.map(drop)
    }

    async fn resume(&self) -> Result<(), VmmError> {
        self.command::<Value>("cont", ANSWER_LIMIT).await.map(drop)
    }

    fn statistics(&self) -> Result<MachineStatistics, VmmError> {
        let read = self.process.statistics();
        let read = read.map_err(VmmError::io(format!("read statistics of machine {}", self.record.id)))?;
        read.ok_or_else(|| VmmError::Gone { id: self.record.id.clone() })
    }

    async fn kill(&self) -> Result<(), VmmError> {
        self.process.kill().map_err(VmmError::io(format!("end machine {}", self.record.id)))?;
        if tokio::time::timeout(KILL_LIMIT, self.process.ended()).await.is_err() {
            let id = self.record.id.clone();
            return Err(VmmError::Timeout { id, operation: "kill", seconds: KILL_LIMIT.as_secs() });
        }
        self.console_finished().await;
        self.files.remove();
        Ok(())
    }

    async fn wait(&self) {
        self.process.ended().await;
        self.console_finished().await;
    }

    fn console_tail(&self, max_bytes: usize) -> String {
        console::tail(&self.record.console_log, max_bytes)
    }
}
