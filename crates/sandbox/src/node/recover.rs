//! The start of a node: what an earlier one left is adopted, finished or undone, and what belongs to nobody is removed.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{Notify, RwLock, Semaphore, watch};
use vmm::VmmError;

use super::disks::{self, Disks};
use super::{Node, Shared, pull};
use crate::actor::{self, EndReason, Live, Resources, Start};
use crate::record::{RecordState, SandboxRecord};
use crate::store::Store;
use crate::{NodeConfig, NodeError, NodeTag, Parts, SandboxId};

/// Sandboxes looked at side by side.
const ADOPT_CONCURRENCY: usize = 8;
/// How often a machine that is there but does not answer is asked again.
const ADOPT_ATTEMPTS: u32 = 3;
const ADOPT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) async fn start(config: NodeConfig, parts: Parts) -> Result<Node, NodeError> {
    for directory in [
        config.data_dir.clone(),
        config.runtime_dir.clone(),
        config.sandboxes_directory(),
        config.machines_directory(),
        config.consoles_directory(),
    ] {
        make_directory(directory).await?;
    }
    let store = Store::open(config.database()).await?;
    let tag = node_tag(&config, &parts, &store).await?;
    let shared = Arc::new(Shared {
        places: Arc::new(Semaphore::new(config.sandbox_limit as usize)),
        create_turns: Semaphore::new(config.create_concurrency.max(1) as usize),
        pull_turns: Arc::new(Semaphore::new(pull::PULLS_MAX as usize)),
        sandboxes: Mutex::new(HashMap::new()),
        imports: Arc::new(RwLock::new(())),
        collection_wanted: Notify::new(),
        stopping: watch::channel(false).0,
        config,
        parts,
        store,
        tag,
    });

    let records = shared.store.sandboxes().await?;
    let devices = Disks::list(&*shared.parts.storage).await?;
    let known: HashSet<SandboxId> = records.iter().map(|record| record.id.clone()).collect();
    let adopted: Vec<_> = futures_util::stream::iter(records)
        .map(|record| adopt(&shared, &devices, record))
        .buffer_unordered(ADOPT_CONCURRENCY)
        .collect()
        .await;
    // Only now is it known which slots, devices and directories belong to someone.
    sweep(&shared, &devices, &known).await;
    for (record, resources, start) in adopted {
        let place = shared.places.clone().try_acquire_owned().ok();
        actor::spawn(&shared, record, resources, place, start);
    }
    tokio::spawn(pull::collect_layers(shared.clone()));
    tokio::spawn(disks::watch(shared.clone()));
    shared.collect_layers_soon();
    tracing::info!(tag = shared.tag.as_str(), sandboxes = known.len(), "node started");
    Ok(Node { shared })
}

async fn make_directory(path: PathBuf) -> Result<(), NodeError> {
    let made = tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path).await;
    made.map_err(|source| NodeError::Directory { path, source })
}

async fn node_tag(config: &NodeConfig, parts: &Parts, store: &Store) -> Result<NodeTag, NodeError> {
    let fresh = match &config.node_tag {
        Some(tag) => tag.clone(),
        None => NodeTag::generate(&*parts.randomness).map_err(NodeError::Randomness)?,
    };
    let stored = store.node_tag(fresh.as_str().to_owned()).await?;
    match &config.node_tag {
        Some(configured) if configured.as_str() != stored => {
            Err(NodeError::Tag { configured: configured.as_str().to_owned(), stored })
        }
        _ => NodeTag::parse(&stored)
            .ok_or_else(|| crate::StoreError::Damaged(format!("node tag {stored:?}")).into()),
    }
}

/// Finds what there is of a recorded sandbox, and decides whether it goes on.
async fn adopt(
    shared: &Arc<Shared>,
    devices: &Disks,
    record: SandboxRecord,
) -> (SandboxRecord, Resources, Start) {
    let mut resources = Resources::default();
    let mut lost = None;
    match &record.slot {
        Some(slot) => match shared.parts.networks.adopt(slot).await {
            Ok(slot) => resources.slot = Some(slot),
            Err(error) => lost = Some(format!("its network: {error}")),
        },
        None => lost = Some("it has no network".to_owned()),
    }
    match adopt_machine(shared, &record).await {
        Ok(machine) => resources.machine = Some(machine),
        // Said last, since it is the best explanation when more than one thing is missing.
        Err(reason) => lost = Some(reason),
    }
    if let Some(reason) = devices.lost(&record.id) {
        lost.get_or_insert_with(|| format!("its disk is lost: {reason}"));
    }
    let live = record.started_at.zip(resources.slot.as_ref()).map(|(started_at, slot)| Live {
        started_at,
        end_at: record.end_at,
        guest: slot.host_side_guest_address,
    });
    let start = match (record.state, lost, live) {
        (RecordState::Creating | RecordState::Killing, _, _) => Start::Remove(EndReason::Interrupted),
        (RecordState::Running, None, Some(live)) => Start::Run(live),
        (RecordState::Running, lost, _) => {
            Start::Remove(EndReason::Lost(lost.unwrap_or_else(|| "its record is incomplete".to_owned())))
        }
    };
    (record, resources, start)
}

async fn adopt_machine(
    shared: &Arc<Shared>,
    record: &SandboxRecord,
) -> Result<Arc<dyn vmm::Machine>, String> {
    let unrecorded;
    let machine = match &record.machine {
        Some(machine) => machine,
        None => {
            let paths = shared.config.paths_of(&record.id);
            let found =
                shared.parts.machines.find(record.id.as_str(), &paths.runtime, &paths.console_log).await;
            unrecorded = found.map_err(|error| error.to_string())?.ok_or("it has no machine")?;
            &unrecorded
        }
    };
    let mut attempt = 1;
    loop {
        match shared.parts.vmm.adopt(machine).await {
            Ok(machine) => return Ok(Arc::from(machine)),
            Err(error @ VmmError::Gone { .. }) => return Err(error.to_string()),
            Err(error) if attempt == ADOPT_ATTEMPTS => return Err(error.to_string()),
            Err(error) => tracing::warn!(id = %record.id, %error, "the machine is asked again"),
        }
        attempt += 1;
        tokio::time::sleep(ADOPT_INTERVAL).await;
    }
}

/// Removes what carries this node's mark and belongs to no record. A failure here costs room, not correctness.
async fn sweep(shared: &Arc<Shared>, devices: &Disks, known: &HashSet<SandboxId>) {
    let orphan =
        |name: &str| SandboxId::parse(name).filter(|id| id.is_of(&shared.tag) && !known.contains(id));
    // Machines first: one that runs without a record still writes to its files.
    for id in names(&shared.config.machines_directory()).await.iter().filter_map(|name| orphan(name)) {
        if let Err(error) = end_orphan_machine(shared, &id).await {
            tracing::warn!(%id, %error, "a machine without a sandbox stays");
        }
    }
    for id in devices.ids().filter_map(orphan) {
        match shared.parts.storage.close_device(id.as_str()).await {
            Ok(()) => tracing::info!(%id, "removed a disk without a sandbox"),
            Err(error) => tracing::warn!(%id, %error, "a disk without a sandbox stays"),
        }
    }
    for directory in [shared.config.sandboxes_directory(), shared.config.machines_directory()] {
        for id in names(&directory).await.iter().filter_map(|name| orphan(name)) {
            match tokio::fs::remove_dir_all(directory.join(id.as_str())).await {
                Ok(()) => {
                    tracing::info!(%id, directory = %directory.display(), "removed files without a sandbox");
                }
                Err(error) => tracing::warn!(%id, %error, "files without a sandbox stay"),
            }
        }
    }
    match shared.parts.networks.sweep().await {
        Ok(0) => {}
        Ok(slots) => tracing::info!(slots, "removed networks without a sandbox"),
        Err(error) => tracing::warn!(%error, "networks without a sandbox stay"),
    }
}

async fn end_orphan_machine(shared: &Arc<Shared>, id: &SandboxId) -> Result<(), VmmError> {
    let paths = shared.config.paths_of(id);
    let Some(machine) = shared.parts.machines.find(id.as_str(), &paths.runtime, &paths.console_log).await?
    else {
        return Ok(());
    };
    shared.parts.vmm.adopt(&machine).await?.kill().await?;
    tracing::info!(%id, "ended a machine without a sandbox");
    Ok(())
}

async fn names(directory: &Path) -> Vec<String> {
    let mut names = Vec::new();
    match tokio::fs::read_dir(directory).await {
        Ok(mut entries) => {
            while let Ok(Some(entry)) = entries.next_entry().await {
                names.extend(entry.file_name().into_string());
            }
        }
        Err(error) => tracing::warn!(directory = %directory.display(), %error, "cannot be searched"),
    }
    names
}
