//! Templates: pulled, replaced, removed, and the layers that are kept for them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fakes;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fakes::{Step, World, config, create, pull, within};
use sandbox::{Node, PullRequest};

async fn node(directory: &tempfile::TempDir) -> (Arc<World>, Arc<Node>) {
    let world = World::new();
    let node = Arc::new(world.node(config(directory.path())).await);
    (world, node)
}

fn layers(names: &[&str]) -> Vec<PathBuf> {
    names.iter().map(|name| PathBuf::from(format!("/layers/{name}"))).collect()
}

/// Waits until a collection was told to keep exactly these.
async fn keeps(world: &World, names: &[&str]) {
    let expected = layers(names);
    within(&format!("a collection keeps {names:?}"), async {
        while world.kept_layers.lock().unwrap().last() != Some(&expected) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_pulled_template_has_what_the_image_says() {
    let directory = tempfile::tempdir().unwrap();
    let (_world, node) = node(&directory).await;
    let template = pull(&node, "a", "base").await.unwrap();
    assert_eq!(template.name, "base");
    assert_eq!(template.content.layer_paths, layers(&["a-1", "a-2"]));
    assert_eq!((template.content.vcpus, template.content.memory_mib), (2, 512));
    assert_eq!(template.content.image.user.as_deref(), Some("user:group"));
    assert_eq!(node.template("base").await.unwrap(), Some(template.clone()));
    assert_eq!(node.template("base:default").await.unwrap(), Some(template.clone()));
    assert_eq!(node.template(&template.id).await.unwrap(), Some(template));
}

#[tokio::test]
async fn a_second_pull_replaces_the_content_and_keeps_the_id() {
    let directory = tempfile::tempdir().unwrap();
    let (world, node) = node(&directory).await;
    let first = pull(&node, "a", "base").await.unwrap();
    let info = create(&node).await;
    let second = pull(&node, "b", "base").await.unwrap();
    assert_eq!(second.id, first.id);
    assert_ne!(second.build_id, first.build_id);
    assert_eq!(second.build_count, 2);
    assert_eq!(second.spawn_count, 1);
    keeps(&world, &["a-1", "a-2", "b-1", "b-2"]).await;
    node.kill(info.id.as_str()).await.unwrap();
    keeps(&world, &["b-1", "b-2"]).await;
}

#[tokio::test]
async fn a_removed_template_keeps_its_layers_while_a_sandbox_uses_them() {
    let directory = tempfile::tempdir().unwrap();
    let (world, node) = node(&directory).await;
    pull(&node, "a", "base").await.unwrap();
    let info = create(&node).await;
    assert!(node.remove_template("base").await.unwrap());
    assert!(!node.remove_template("base").await.unwrap());
    keeps(&world, &["a-1", "a-2"]).await;
    assert!(node.get(info.id.as_str()).is_some());
    node.kill(info.id.as_str()).await.unwrap();
    keeps(&world, &[]).await;
}

#[tokio::test]
async fn a_failed_pull_leaves_the_old_content() {
    let directory = tempfile::tempdir().unwrap();
    let (world, node) = node(&directory).await;
    let before = pull(&node, "a", "base").await.unwrap();
    world.fail(Step::Import, 1);
    let error = pull(&node, "b", "base").await.unwrap_err();
    assert!(error.contains("Import was made to fail"), "{error}");
    assert_eq!(node.template("base").await.unwrap(), Some(before));
}

#[tokio::test]
async fn nothing_is_collected_while_an_import_runs() {
    let directory = tempfile::tempdir().unwrap();
    let (world, node) = node(&directory).await;
    pull(&node, "a", "base").await.unwrap();
    keeps(&world, &["a-1", "a-2"]).await;
    let gate = world.hold(Step::Import);
    let import = tokio::spawn({
        let node = node.clone();
        async move { pull(&node, "b", "other").await }
    });
    gate.entered().await;
    let before = world.kept_layers.lock().unwrap().len();
    node.remove_template("base").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(world.kept_layers.lock().unwrap().len(), before);
    gate.open();
    import.await.unwrap().unwrap();
    keeps(&world, &["b-1", "b-2"]).await;
}

#[tokio::test]
async fn pulls_are_bounded_and_a_client_that_goes_away_makes_room() {
    let directory = tempfile::tempdir().unwrap();
    let (world, node) = node(&directory).await;
    let gate = world.hold(Step::Import);
    let request = |name: &str| PullRequest {
        source: "a".to_owned(),
        name: name.to_owned(),
        virtual_size_bytes: 0,
        vcpus: None,
        memory_mib: None,
        credentials: None,
    };
    let first = node.pull_template(request("one")).unwrap();
    let _second = node.pull_template(request("two")).unwrap();
    assert!(node.pull_template(request("three")).is_err());
    drop(first);
    within("there is room", async {
        while node.pull_template(request("three")).is_err() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    gate.open();
    assert_eq!(node.template("one").await.unwrap(), None);
}

#[tokio::test]
async fn requests_that_cannot_be_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let (_world, node) = node(&directory).await;
    for (source, name) in [("", "base"), ("a", "Base"), ("a", ""), ("a\n", "base"), ("a", "a/b")] {
        assert!(pull(&node, source, name).await.is_err(), "{source:?} {name:?}");
    }
}
