//! What a node finds of an earlier one that was killed at any moment: adopted, finished or undone.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fakes;

use std::sync::Arc;
use std::time::Duration;

use fakes::{Step, World, config, create, pull, request, within};
use sandbox::{Node, NodeConfig, SandboxError, SandboxInfo};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A host on which nodes come and go. Each node lives on a runtime of its own, whose end is its sudden death.
struct Host {
    world: Arc<World>,
    config: NodeConfig,
    _directory: TempDir,
}

fn host() -> Host {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    Host { world: World::new(), config, _directory: directory }
}

impl Host {
    /// Starts a node, lets `life` use it and kills it when `life` is over.
    fn lives<T, F: Future<Output = T>>(&self, life: impl FnOnce(Arc<Node>) -> F) -> T {
        let runtime = Runtime::new().unwrap();
        let value = runtime.block_on(async {
            let node = Arc::new(self.world.node(self.config.clone()).await);
            life(node).await
        });
        runtime.shutdown_timeout(Duration::from_secs(5));
        value
    }

    fn with_running(&self) -> SandboxInfo {
        self.lives(|node| async move {
            pull(&node, "image", "base").await.unwrap();
            create(&node).await
        })
    }

    fn settles(&self) {
        self.lives(|_node| self.world.settles(&self.config));
    }
}

#[test]
fn a_running_sandbox_is_adopted_as_it_was() {
    let host = &host();
    let before = host.with_running();
    host.lives(|node| async move {
        assert_eq!(node.list(), std::slice::from_ref(&before));
        let id = before.id.as_str();
        node.set_timeout(id, Duration::from_secs(1000)).await.unwrap();
        assert!(node.route(id).is_some());
    });
    host.lives(|node| async move {
        let id = node.list()[0].id.clone();
        node.kill(id.as_str()).await.unwrap();
        assert_eq!(host.world.leftovers(&host.config), [""; 0]);
    });
}

#[test]
fn a_new_end_survives() {
    let host = host();
    let info = host.with_running();
    let extended = host
        .lives(|node| async move { node.extend(info.id.as_str(), Duration::from_secs(9000)).await.unwrap() });
    host.lives(|node| async move { assert_eq!(node.list(), [extended]) });
}

#[test]
fn death_at_each_step_of_a_creation_is_undone() {
    for step in Step::CREATION {
        let host = host();
        host.lives(|node| async move { pull(&node, "image", "base").await.unwrap() });
        let gate = host.world.hold(step);
        host.lives(|node| async move {
            tokio::spawn(async move { node.create(request(Duration::from_secs(600))).await });
            gate.entered().await;
        });
        host.world.release_all();
        host.settles();
        host.lives(|node| async move { assert_eq!(node.list(), [], "{step:?}") });
    }
}

#[test]
fn death_at_each_step_of_a_removal_is_finished() {
    for step in Step::REMOVAL {
        let host = host();
        let info = host.with_running();
        let gate = host.world.hold(step);
        host.lives(|node| async move {
            tokio::spawn(async move { node.kill(info.id.as_str()).await });
            gate.entered().await;
        });
        host.world.release_all();
        host.settles();
    }
}

#[test]
fn a_machine_that_died_with_the_node_takes_its_sandbox_along() {
    let host = host();
    let info = host.with_running();
    host.world.crash_machine(info.id.as_str());
    host.settles();
    host.lives(|node| async move {
        assert_eq!(node.list(), []);
        let console = String::from_utf8(node.console(info.id.as_str()).await.unwrap().unwrap()).unwrap();
        assert!(console.contains("its process has ended"), "{console}");
    });
}

#[test]
fn a_sandbox_without_its_disk_is_removed() {
    let host = host();
    let info = host.with_running();
    host.world.devices.lock().unwrap().remove(info.id.as_str());
    host.settles();
}

#[test]
fn a_sandbox_whose_disk_is_damaged_is_removed_and_its_console_tells_why() {
    let host = host();
    let info = host.with_running();
    let damage = (info.id.to_string(), "its mount was made anew".to_owned());
    host.world.damages.lock().unwrap().extend([damage]);
    host.settles();
    host.lives(|node| async move {
        let console = String::from_utf8(node.console(info.id.as_str()).await.unwrap().unwrap()).unwrap();
        assert!(console.contains("its disk is lost: its mount was made anew"), "{console}");
    });
}

#[test]
fn a_sandbox_that_expired_meanwhile_is_removed() {
    let host = host();
    host.lives(|node| async move {
        pull(&node, "image", "base").await.unwrap();
        node.create(request(Duration::from_millis(300))).await.unwrap();
    });
    std::thread::sleep(Duration::from_millis(400));
    host.settles();
}

#[test]
fn what_belongs_to_nobody_is_removed_and_what_belongs_to_others_is_not() {
    let host = host();
    host.lives(|_node| async {});
    let (orphan, foreign) = ("tst00000000000000000", "zzz00000000000000000");
    for id in [orphan, foreign, "base-layer"] {
        host.world.devices.lock().unwrap().insert(id.to_owned(), Vec::new());
        for directory in [&host.config.data_dir, &host.config.runtime_dir] {
            std::fs::create_dir_all(directory.join("sandboxes").join(id)).unwrap();
        }
    }
    host.lives(|_node| async {});
    let left = host.world.leftovers(&host.config);
    assert_eq!(left.len(), 6, "{left:?}");
    assert!(left.iter().all(|line| !line.contains(orphan)), "{left:?}");
}

#[test]
fn a_node_that_stops_leaves_running_sandboxes_and_undoes_half_made_ones() {
    let host = host();
    let info = host.with_running();
    let gate = host.world.hold(Step::Health);
    host.lives(|node| async move {
        let creation = tokio::spawn({
            let node = node.clone();
            async move { node.create(request(Duration::from_secs(600))).await }
        });
        gate.entered().await;
        within("the stop", node.stop(Duration::from_secs(10))).await;
        let error = creation.await.unwrap().unwrap_err();
        assert!(matches!(error, SandboxError::Stopping), "{error}");
    });
    host.world.release_all();
    assert_eq!(host.world.machines.lock().unwrap().keys().collect::<Vec<_>>(), [info.id.as_str()]);
    host.lives(|node| async move { assert_eq!(node.list(), [info]) });
}

#[test]
fn a_second_node_on_the_same_state_is_refused() {
    let host = host();
    host.lives(|_first| async {
        let error = Node::start(host.config.clone(), host.world.parts()).await.unwrap_err();
        assert!(error.to_string().contains("another node uses it already"), "{error}");
    });
}

#[test]
fn the_tag_of_a_node_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    config.node_tag = None;
    let mut host = Host { world: World::new(), config, _directory: directory };
    let tag = host.lives(|node| async move { node.tag().clone() });
    assert_eq!(host.lives(|node| async move { node.tag().clone() }), tag);
    host.config.node_tag = sandbox::NodeTag::parse("zz");
    let runtime = Runtime::new().unwrap();
    let error = runtime.block_on(Node::start(host.config.clone(), host.world.parts())).unwrap_err();
    assert!(error.to_string().contains(tag.as_str()), "{error}");
}
