//! Whether sandboxes still have their disks. A machine whose disk is lost runs on, but every request to it fails; only the
//! storage daemon knows.

use std::collections::HashMap;
use std::sync::Arc;

use super::Shared;
use crate::actor::Handle;
use crate::{SandboxId, Storage, StorageError};

/// What the storage daemon said about every device at one moment: ids, and what is wrong with them.
#[derive(Debug)]
pub(super) struct Disks(HashMap<String, Option<String>>);

impl Disks {
    pub(super) async fn list(storage: &dyn Storage) -> Result<Self, StorageError> {
        let devices = storage.list_devices().await?;
        Ok(Self(devices.into_iter().map(|device| (device.id, device.damage)).collect()))
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Why the sandbox has no working disk; nothing when it has one.
    pub(super) fn lost(&self, id: &SandboxId) -> Option<&str> {
        match self.0.get(id.as_str()) {
            Some(damage) => damage.as_deref(),
            None => Some("the storage daemon has no such device"),
        }
    }
}

/// Ends running sandboxes whose disk is lost, until the node stops.
pub(super) async fn watch(shared: Arc<Shared>) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        tokio::select! {
            () = tokio::time::sleep(shared.config.disk_check_interval) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        check(&shared).await;
    }
}

async fn check(shared: &Shared) {
    // Only what ran before the question and still runs after the answer is judged: a sandbox that is being made has no
    // device yet, one that is being removed has none any more.
    let running: Vec<Handle> =
        shared.sandboxes().values().filter(|handle| handle.live().is_some()).cloned().collect();
    if running.is_empty() {
        return;
    }
    let disks = match Disks::list(&*shared.parts.storage).await {
        Ok(disks) => disks,
        Err(error) => {
            // No answer says nothing about the disks: their users wait until there is a daemon again.
            tracing::debug!(%error, "the disks could not be checked");
            return;
        }
    };
    for handle in running.iter().filter(|handle| handle.live().is_some()) {
        if let Some(reason) = disks.lost(&handle.id) {
            handle.disk_lost(reason.to_owned());
        }
    }
}
