//! Machines that nobody recorded.

use std::path::Path;

use async_trait::async_trait;
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
