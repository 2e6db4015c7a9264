//! A host without room for a guest's writes. The monitor stops the machine and keeps the write, so nothing is lost; here the
//! machine is resumed until the write succeeds.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use vmm::{Machine, MachineStatus};

/// Resumes the machine whenever it is found paused: a running sandbox is paused by nobody but its monitor.
pub(super) async fn resume(machine: Arc<dyn Machine>, interval: Duration, data_dir: PathBuf) -> Infallible {
    let mut waits = false;
    loop {
        tokio::time::sleep(interval).await;
        let paused = machine.status().await == MachineStatus::Paused;
        if paused && !waits {
            tracing::warn!(
                "the guest waits: the node has no room for its writes; free space in {}, and it goes on by itself",
                data_dir.display()
            );
        } else if waits && !paused {
            tracing::info!("the guest goes on");
        }
        waits = paused;
        // The monitor repeats the write, and stops again when there is still no room.
        if paused && let Err(error) = machine.resume().await {
            tracing::warn!(%error, "the machine could not be resumed; it is tried again");
        }
    }
}
