//! The life of sandboxes on a host in memory: every way in, every way out, and nothing left behind.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fakes;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fakes::{Step, World, config, create, pull, request, within};
use sandbox::{Node, NodeConfig, SandboxError};
use tempfile::TempDir;

struct Stage {
    world: Arc<World>,
    node: Arc<Node>,
    config: NodeConfig,
    _directory: TempDir,
}

/// A node with the template `base`.
async fn stage(adjust: impl FnOnce(&mut NodeConfig)) -> Stage {
    let directory = tempfile::tempdir().unwrap();
    let mut config = config(directory.path());
    adjust(&mut config);
    let world = World::new();
    let node = Arc::new(world.node(config.clone()).await);
    pull(&node, "image", "base").await.unwrap();
    Stage { world, node, config, _directory: directory }
}

impl Stage {
    fn assert_clean(&self) {
        assert_eq!(self.world.leftovers(&self.config), [""; 0]);
        assert_eq!(self.node.counts(), sandbox::NodeCounts::default());
    }
}

#[tokio::test]
async fn a_sandbox_runs_and_a_kill_leaves_nothing() {
    let stage = stage(|_| {}).await;
    let info = create(&stage.node).await;
    assert!(info.id.as_str().starts_with("tst"));
    assert_eq!(info.template_name, "base");
    assert_eq!(info.access_token.len(), 64);
    assert_eq!(stage.node.get(info.id.as_str()), Some(info.clone()));
    assert_eq!(stage.node.list(), std::slice::from_ref(&info));
    let machine = stage.world.machines.lock().unwrap()[info.id.as_str()].clone();
    assert_eq!(machine.config.kernel_arguments[0], format!("agentenv.hostname={}", info.id));
    assert_eq!(machine.config.kernel_arguments[1], "agentenv.dns=1.1.1.1,8.8.8.8");
    assert!(machine.config.disks[0].read_only && !machine.config.disks[1].read_only);

    stage.node.kill(info.id.as_str()).await.unwrap();
    stage.assert_clean();
    assert_eq!(stage.node.get(info.id.as_str()), None);
    let again = stage.node.kill(info.id.as_str()).await.unwrap_err();
    assert!(matches!(again, SandboxError::NotFound(_)));
}

#[tokio::test]
async fn a_kill_during_each_step_of_a_creation_leaves_nothing() {
    for step in Step::CREATION {
        let stage = stage(|_| {}).await;
        let gate = stage.world.hold(step);
        let creation = tokio::spawn({
            let node = stage.node.clone();
            async move { node.create(request(Duration::from_secs(600))).await }
        });
        gate.entered().await;
        let id = stage.world.last_seen();
        assert_eq!(stage.node.get(&id), None, "{step:?}: it must not be shown before it is ready");
        let kill = tokio::spawn({
            let node = stage.node.clone();
            async move { node.kill(&id).await }
        });
        tokio::time::sleep(Duration::from_millis(20)).await;
        gate.open();
        within("the kill", kill).await.unwrap().unwrap();
        let error = within("the creation", creation).await.unwrap().unwrap_err();
        let killed = matches!(error, SandboxError::KilledWhileCreating(_));
        assert!(killed, "{step:?}: {error}");
        stage.assert_clean();
    }
}

#[tokio::test]
async fn a_failure_of_each_step_of_a_creation_leaves_nothing_and_is_told() {
    for step in [Step::CreateDevice, Step::AcquireSlot, Step::OpenTap, Step::Boot, Step::Init] {
        let stage = stage(|_| {}).await;
        // The guest daemon is asked to set up a second time.
        stage.world.fail(step, 2);
        let error =
            within("the creation", stage.node.create(request(Duration::from_secs(600)))).await.unwrap_err();
        assert!(error.to_string().contains(&format!("{step:?} was made to fail")), "{error}");
        stage.assert_clean();
    }
}

#[tokio::test]
async fn a_client_that_goes_away_changes_nothing() {
    let stage = stage(|_| {}).await;
    let gate = stage.world.hold(Step::Boot);
    let node = stage.node.clone();
    let creation = tokio::spawn(async move { node.create(request(Duration::from_secs(600))).await });
    gate.entered().await;
    creation.abort();
    assert!(creation.await.unwrap_err().is_cancelled());
    gate.open();
    within("the sandbox runs", async {
        while stage.node.list().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    stage.node.kill(&stage.world.last_seen()).await.unwrap();
    stage.assert_clean();
}

#[tokio::test]
async fn a_guest_that_never_answers_ends_with_the_deadline_and_its_last_words() {
    let stage = stage(|config| config.create_deadline = Duration::from_millis(300)).await;
    stage.world.guests_answer.store(false, Ordering::Relaxed);
    let error =
        within("the creation", stage.node.create(request(Duration::from_secs(600)))).await.unwrap_err();
    let text = error.to_string();
    assert!(text.contains("not ready within") && text.contains("aenv-init: the last line"), "{text}");
    stage.assert_clean();
}

#[tokio::test]
async fn a_machine_that_ends_while_it_boots_is_noticed_before_the_deadline() {
    let stage = stage(|_| {}).await;
    stage.world.guests_answer.store(false, Ordering::Relaxed);
    let node = stage.node.clone();
    let begun = Instant::now();
    let creation = tokio::spawn(async move { node.create(request(Duration::from_secs(600))).await });
    within("the machine runs", async {
        while stage.world.machines.lock().unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    stage.world.crash_machine(&stage.world.last_seen());
    let text = within("the creation", creation).await.unwrap().unwrap_err().to_string();
    assert!(text.contains("ended while the guest was starting") && text.contains("the last line"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    stage.assert_clean();
}

#[tokio::test]
async fn a_sandbox_whose_time_is_over_leaves_nothing() {
    let stage = stage(|_| {}).await;
    stage.node.create(request(Duration::from_millis(200))).await.unwrap();
    within("it expires", async {
        while stage.node.counts() != sandbox::NodeCounts::default() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    stage.assert_clean();
}

#[tokio::test]
async fn extending_never_shortens_and_setting_does() {
    let stage = stage(|_| {}).await;
    let info = create(&stage.node).await;
    let id = info.id.as_str();
    let same = stage.node.extend(id, Duration::from_secs(10)).await.unwrap();
    assert_eq!(same.end_at, info.end_at);
    let longer = stage.node.extend(id, Duration::from_secs(6000)).await.unwrap();
    assert!(longer.end_at > info.end_at);
    let shorter = stage.node.set_timeout(id, Duration::from_secs(100)).await.unwrap();
    assert!(shorter.end_at < info.end_at);
    assert_eq!(stage.node.get(id).unwrap().end_at, shorter.end_at);
    stage.node.set_timeout(id, Duration::ZERO).await.unwrap();
    stage.world.settles(&stage.config).await;
}

#[tokio::test]
async fn timeouts_that_cannot_be_are_refused() {
    let stage = stage(|_| {}).await;
    let day = Duration::from_secs(24 * 3600 + 1);
    for timeout in [Duration::ZERO, day] {
        let error = stage.node.create(request(timeout)).await.unwrap_err();
        assert!(matches!(error, SandboxError::Invalid(_)), "{error}");
    }
    let info = create(&stage.node).await;
    let error = stage.node.extend(info.id.as_str(), day).await.unwrap_err();
    assert_eq!(error.to_string(), "Timeout cannot be greater than 24 hours");
}

#[tokio::test]
async fn an_extension_at_the_moment_of_the_end_either_holds_or_comes_too_late() {
    let stage = stage(|config| config.create_concurrency = 40).await;
    let mut races = tokio::task::JoinSet::new();
    for offset in 0..40u64 {
        let node = stage.node.clone();
        races.spawn(async move {
            let info = node.create(request(Duration::from_millis(100))).await.unwrap();
            tokio::time::sleep(Duration::from_millis(85) + Duration::from_micros(offset * 700)).await;
            match node.extend(info.id.as_str(), Duration::from_secs(600)).await {
                Ok(extended) => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    assert_eq!(node.get(info.id.as_str()).map(|info| info.end_at), Some(extended.end_at));
                }
                Err(error) => {
                    assert!(matches!(error, SandboxError::NotFound(_)), "{error}");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    assert_eq!(node.get(info.id.as_str()), None);
                }
            }
        });
    }
    while let Some(race) = within("a race", races.join_next()).await {
        race.unwrap();
    }
}

#[tokio::test]
async fn a_machine_that_dies_takes_its_sandbox_along_and_leaves_its_console() {
    let stage = stage(|_| {}).await;
    let info = create(&stage.node).await;
    let route = stage.node.route(info.id.as_str()).unwrap();
    stage.world.crash_machine(info.id.as_str());
    within("streams end", route.ended()).await;
    stage.world.settles(&stage.config).await;
    assert_eq!(stage.node.get(info.id.as_str()), None);
    let console = stage.node.console(info.id.as_str()).await.unwrap().unwrap();
    assert_eq!(
        String::from_utf8(console).unwrap(),
        "aenv-init: hello\naenv: its virtual machine ended by itself\n"
    );
}

#[tokio::test]
async fn the_console_of_a_killed_sandbox_is_gone() {
    let stage = stage(|_| {}).await;
    let info = create(&stage.node).await;
    assert!(stage.node.console(info.id.as_str()).await.unwrap().is_some());
    stage.node.kill(info.id.as_str()).await.unwrap();
    assert_eq!(stage.node.console(info.id.as_str()).await.unwrap(), None);
    assert_eq!(stage.node.console("../../etc/passwd").await.unwrap(), None);
}

#[tokio::test]
async fn fifty_sandboxes_at_a_time_come_and_go() {
    let stage = stage(|config| config.create_concurrency = 3).await;
    let mut clients = tokio::task::JoinSet::new();
    for number in 0..50 {
        let node = stage.node.clone();
        clients.spawn(async move {
            let info = node.create(request(Duration::from_secs(600))).await.unwrap();
            if number % 2 == 0 {
                tokio::task::yield_now().await;
            }
            let (one, other) = tokio::join!(node.kill(info.id.as_str()), node.kill(info.id.as_str()));
            // Both may have asked in time; at least one did.
            assert!(one.is_ok() || other.is_ok());
        });
    }
    while let Some(client) = within("a client", clients.join_next()).await {
        client.unwrap();
    }
    stage.assert_clean();
    assert!(stage.world.most_creating.load(Ordering::Relaxed) <= 3);
}

#[tokio::test]
async fn a_full_node_refuses_until_there_is_room() {
    let stage = stage(|config| config.sandbox_limit = 2).await;
    let first = create(&stage.node).await;
    create(&stage.node).await;
    let error = stage.node.create(request(Duration::from_secs(600))).await.unwrap_err();
    assert!(matches!(error, SandboxError::Capacity { limit: 2 }), "{error}");
    stage.node.kill(first.id.as_str()).await.unwrap();
    create(&stage.node).await;
}

#[tokio::test]
async fn a_sandbox_that_waits_for_its_turn_can_be_killed_and_has_a_deadline() {
    let stage = stage(|config| {
        config.create_concurrency = 1;
        config.create_deadline = Duration::from_millis(500);
    })
    .await;
    let gate = stage.world.hold(Step::CreateDevice);
    let node = stage.node.clone();
    let held = tokio::spawn(async move { node.create(request(Duration::from_secs(600))).await });
    gate.entered().await;
    let error = within("the waiting creation", stage.node.create(request(Duration::from_secs(600))))
        .await
        .unwrap_err();
    assert!(matches!(error, SandboxError::NoTurn { limit: 1, .. }), "{error}");
    gate.open();
    within("the held creation", held).await.unwrap().unwrap_err();
    stage.assert_clean();
}

#[tokio::test]
async fn a_failing_step_of_a_removal_is_tried_again() {
    for step in Step::REMOVAL {
        let stage = stage(|_| {}).await;
        let info = create(&stage.node).await;
        stage.world.fail(step, 2);
        within("the kill", stage.node.kill(info.id.as_str())).await.unwrap();
        stage.assert_clean();
    }
}

#[tokio::test]
async fn a_removal_that_takes_long_is_told_and_goes_on() {
    let stage = stage(|config| config.kill_wait = Duration::from_millis(100)).await;
    let info = create(&stage.node).await;
    let gate = stage.world.hold(Step::CloseDevice);
    let error = stage.node.kill(info.id.as_str()).await.unwrap_err();
    assert!(matches!(error, SandboxError::StillKilling { .. }), "{error}");
    assert_eq!(stage.node.get(info.id.as_str()), None, "it must not be shown any more");
    gate.open();
    stage.world.settles(&stage.config).await;
}

#[tokio::test]
async fn an_unknown_template_is_told_and_takes_no_room() {
    let stage = stage(|config| config.sandbox_limit = 1).await;
    for _ in 0..3 {
        let mut unknown = request(Duration::from_secs(600));
        unknown.template = "unknown".to_owned();
        let error = stage.node.create(unknown).await.unwrap_err();
        assert!(matches!(error, SandboxError::TemplateNotFound(_)), "{error}");
    }
    let mut tagged = request(Duration::from_secs(600));
    tagged.template = "base:default".to_owned();
    stage.node.create(tagged).await.unwrap();
}

#[tokio::test]
async fn environment_that_cannot_be_is_refused() {
    let stage = stage(|_| {}).await;
    for (name, value) in [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "\0"), ("BIG", &"x".repeat(300_000))] {
        let mut bad = request(Duration::from_secs(600));
        bad.env.insert(name.to_owned(), value.to_owned());
        let error = stage.node.create(bad).await.unwrap_err();
        assert!(matches!(error, SandboxError::Invalid(_)), "{error}");
    }
    stage.assert_clean();
}
