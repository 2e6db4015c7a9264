//! Machines that nobody recorded.

use std::path::Path;

use async_trait::async_trait;
use vmm::qemu::Qemu;
use vmm::{MachineRecord, VmmError};

/// Finds machines that were started by a node that died before it could record them.
#[async_trait]
pub trait FindMachine: Send + Sync + std::fmt::Debug {
    /// The machine that runs in this runtime directory. Nothing when none does.
    async fn find(
        &self,
        id: &str,
        runtime_directory: &Path,
        console_log: &Path,
    ) -> Result<Option<MachineRecord>, VmmError>;
}

#[async_trait]
impl FindMachine for Qemu {
    async fn find(
        &self,
        id: &str,
        runtime_directory: &Path,
        console_log: &Path,
    ) -> Result<Option<MachineRecord>, VmmError> {
        // A few reads of small files and of /proc.
        Self::find(self, id, runtime_directory, console_log)
    }
}
