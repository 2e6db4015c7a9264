//! Running sandboxes whose disk is lost, on a host in memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fakes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fakes::{Step, World, config, create, pull, request, within};
use sandbox::{Node, NodeConfig};
use tempfile::TempDir;

struct Stage {
    world: Arc<World>,
    node: Arc<Node>,
    config: NodeConfig,
    _directory: TempDir,
}

async fn stage() -> Stage {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let world = World::new();
    let node = Arc::new(world.node(config.clone()).await);
    pull(&node, "image", "base").await.unwrap();
    Stage { world, node, config, _directory: directory }
}

impl Stage {
    async fn console(&self, id: &str) -> String {
        String::from_utf8(self.node.console(id).await.unwrap().unwrap()).unwrap()
    }

    /// Lets several checks pass.
    async fn checks(&self) {
        tokio::time::sleep(self.config.disk_check_interval * 5).await;
    }
}

#[tokio::test]
async fn a_damaged_disk_ends_its_sandbox_and_no_other() {
    let stage = stage().await;
    let (lost, sound) = (create(&stage.node).await, create(&stage.node).await);
    stage.checks().await;
    assert_eq!(stage.node.list().len(), 2);
    let damage = (lost.id.to_string(), "its layer is damaged".to_owned());
    stage.world.damages.lock().unwrap().extend([damage]);
    let ended = async {
        while stage.world.machines.lock().unwrap().len() == 2 || stage.node.counts().killing > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within("the sandbox ends", ended).await;
    let console = stage.console(lost.id.as_str()).await;
    assert!(console.contains("its disk is lost: its layer is damaged"), "{console}");
    stage.checks().await;
    assert_eq!(stage.node.list(), [sound]);
}

#[tokio::test]
async fn a_missing_disk_ends_its_sandbox() {
    let stage = stage().await;
    let info = create(&stage.node).await;
    stage.world.devices.lock().unwrap().remove(info.id.as_str());
    stage.world.settles(&stage.config).await;
    let console = stage.console(info.id.as_str()).await;
    assert!(console.contains("the storage daemon has no such device"), "{console}");
}

#[tokio::test]
async fn a_storage_daemon_that_does_not_answer_ends_nothing() {
    let stage = stage().await;
    let info = create(&stage.node).await;
    stage.world.storage_answers.store(false, Ordering::Relaxed);
    stage.checks().await;
    assert_eq!(stage.node.list(), std::slice::from_ref(&info));
    stage.world.storage_answers.store(true, Ordering::Relaxed);
    stage.checks().await;
    assert_eq!(stage.node.list(), [info]);
}

#[tokio::test]
async fn a_sandbox_that_became_ready_while_the_disks_were_listed_is_not_judged() {
    let stage = stage().await;
    let first = create(&stage.node).await;
    let listing = stage.world.hold(Step::ListDevices);
    listing.entered().await;
    let second = within("it is made", stage.node.create(request(Duration::from_secs(600)))).await.unwrap();
    let device = stage.world.devices.lock().unwrap().remove(second.id.as_str()).unwrap();
    // The answer is of a moment at which the second device was not there.
    let again = stage.world.hold(Step::ListDevices);
    listing.open();
    again.entered().await;
    stage.world.devices.lock().unwrap().insert(second.id.to_string(), device);
    again.open();
    stage.checks().await;
    let mut ids: Vec<_> = stage.node.list().into_iter().map(|info| info.id).collect();
    ids.sort();
    let mut both = [first.id, second.id];
    both.sort();
    assert_eq!(ids, both);
}

#[tokio::test]
async fn a_guest_that_waits_for_room_goes_on_when_there_is_some() {
    let stage = stage().await;
    let info = create(&stage.node).await;
    stage.world.disk_full.store(true, Ordering::Relaxed);
    stage.world.paused.lock().unwrap().insert(info.id.to_string());
    within("it is tried more than once", async {
        while stage.world.resumes.load(Ordering::Relaxed) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(stage.world.paused.lock().unwrap().len(), 1);
    assert_eq!(stage.node.list(), std::slice::from_ref(&info));
    stage.world.disk_full.store(false, Ordering::Relaxed);
    within("it goes on", async {
        while !stage.world.paused.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(stage.node.list(), [info]);
}
