//! The actor that owns one sandbox: the only place that changes it.
//!
//! It makes the sandbox, serves its requests while it runs, and removes it. It belongs to no client: one that goes away
//! while it waits changes nothing. Whatever happens, the actor ends with nothing of the sandbox left on the host, or, when
//! the node stops, with a record that lets the next node go on.

mod create;
mod full_disk;
mod teardown;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use network::Slot;
use protocol::api::Timestamp;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot, watch};
use tokio::time::Instant;
use tracing::Instrument;
use vmm::Machine;

use crate::config::SandboxPaths;
use crate::node::Shared;
use crate::record::{SandboxRecord, SandboxSpec};
use crate::{SandboxError, SandboxId};

/// Requests that may wait for one sandbox.
const COMMANDS_MAX: usize = 32;
/// The end of a sandbox is a time of day, which may be set while an actor sleeps; it looks again this often.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// What others see of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Creating,
    Running(Live),
    Killing,
    /// Nothing of it is left.
    Ended,
}

/// What is known of a sandbox while it runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Live {
    pub(crate) started_at: Timestamp,
    pub(crate) end_at: Timestamp,
    pub(crate) guest: Ipv4Addr,
}

/// How a request changes the end of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extension {
    /// Never shortens what is left.
    AtLeast,
    /// May shorten it.
    Exactly,
}

/// A request about a running sandbox.
#[derive(Debug)]
pub(crate) struct SetEnd {
    pub(crate) timeout: Duration,
    pub(crate) extension: Extension,
    pub(crate) reply: oneshot::Sender<Result<Live, SandboxError>>,
}

/// The way to one actor.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    pub(crate) id: SandboxId,
    pub(crate) spec: Arc<SandboxSpec>,
    pub(crate) state: watch::Receiver<State>,
    pub(crate) commands: mpsc::Sender<SetEnd>,
    end: Arc<watch::Sender<Option<EndReason>>>,
}

impl Handle {
    /// Asks for the removal, in whatever state; asking again changes nothing.
    pub(crate) fn kill(&self) {
        self.end(EndReason::Killed);
    }

    /// Ends a sandbox whose disk is gone.
    pub(crate) fn disk_lost(&self, reason: String) {
        self.end(EndReason::DiskLost(reason));
    }

    /// The first reason stays.
    fn end(&self, reason: EndReason) {
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(reason);
            first
        });
    }

    pub(crate) fn live(&self) -> Option<Live> {
        match *self.state.borrow() {
            State::Running(live) => Some(live),
            _ => None,
        }
    }
}

/// Answer to the request that made a sandbox.
pub(crate) type CreateReply = oneshot::Sender<Result<Live, SandboxError>>;

/// Where an actor begins.
#[derive(Debug)]
pub(crate) enum Start {
    /// A new sandbox.
    Create { timeout: Duration, deadline: Instant, reply: CreateReply },
    /// One that an earlier node left running.
    Run(Live),
    /// One that an earlier node left half made or half removed, or that has broken.
    Remove(EndReason),
}

/// Why a sandbox ends.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EndReason {
    #[error("killed on request")]
    Killed,
    #[error("its timeout was reached")]
    Expired,
    #[error("its disk is lost: {0}")]
    DiskLost(String),
    #[error("its virtual machine ended by itself")]
    MachineEnded,
    #[error("it could not be started: {0}")]
    CreateFailed(String),
    #[error("too many others are being started")]
    NoTurn,
    #[error("the node stopped while it was being made or removed")]
    Interrupted,
    #[error("the node found it broken when it started: {0}")]
    Lost(String),
    /// The sandbox stays; only its actor ends.
    #[error("the node is stopping")]
    NodeStops,
}

/// What a sandbox holds on the host. The device needs no entry: it has the sandbox's id.
#[derive(Debug, Default)]
pub(crate) struct Resources {
    pub(crate) slot: Option<Slot>,
    pub(crate) machine: Option<Arc<dyn Machine>>,
}

struct Actor {
    shared: Arc<Shared>,
    id: SandboxId,
    spec: Arc<SandboxSpec>,
    paths: SandboxPaths,
    resources: Resources,
    state: watch::Sender<State>,
    commands: mpsc::Receiver<SetEnd>,
    /// Why it is to end, as others decided.
    end: watch::Receiver<Option<EndReason>>,
    stopping: watch::Receiver<bool>,
    _place: Option<OwnedSemaphorePermit>,
}

/// Makes the sandbox of `record` known to the node and starts its actor, which keeps `place` until nothing of the sandbox
/// is left.
pub(crate) fn spawn(
    shared: &Arc<Shared>,
    record: SandboxRecord,
    resources: Resources,
    place: Option<OwnedSemaphorePermit>,
    start: Start,
) -> Handle {
    let (state, state_seen) = watch::channel(match &start {
        Start::Create { .. } => State::Creating,
        Start::Run(live) => State::Running(*live),
        Start::Remove(_) => State::Killing,
    });
    let (commands_sent, commands) = mpsc::channel(COMMANDS_MAX);
    let (end_sent, end) = watch::channel(None);
    let spec = Arc::new(record.spec);
    let handle = Handle {
        id: record.id.clone(),
        spec: spec.clone(),
        state: state_seen,
        commands: commands_sent,
        end: Arc::new(end_sent),
    };
    shared.sandboxes().insert(record.id.clone(), handle.clone());
    let span = tracing::info_span!("sandbox", id = %record.id);
    let actor = Actor {
        paths: shared.config.paths_of(&record.id),
        stopping: shared.stopping.subscribe(),
        shared: shared.clone(),
        id: record.id,
        spec,
        resources,
        state,
        commands,
        end,
        _place: place,
    };
    tokio::spawn(actor.run(start).instrument(span));
    handle
}

impl Actor {
    async fn run(mut self, start: Start) {
        match start {
            Start::Create { timeout, deadline, reply } => match self.create(timeout, deadline).await {
                Ok(live) => {
                    // Nobody may be waiting any more; the sandbox is there all the same, until its timeout.
                    let _ = reply.send(Ok(live));
                    let reason = self.serve(live).await;
                    self.end(reason).await;
                }
                Err(reason) => {
                    let error = self.create_error(&reason);
                    self.end(reason).await;
                    let _ = reply.send(Err(error));
                }
            },
            Start::Run(live) => {
                let reason = self.serve(live).await;
                self.end(reason).await;
            }
            Start::Remove(reason) => self.end(reason).await,
        }
    }

    fn create_error(&self, reason: &EndReason) -> SandboxError {
        match reason {
            EndReason::Killed => SandboxError::KilledWhileCreating(self.id.clone()),
            EndReason::NodeStops => SandboxError::Stopping,
            EndReason::NoTurn => SandboxError::NoTurn {
                limit: self.shared.config.create_concurrency,
                seconds: self.shared.config.create_deadline.as_secs(),
            },
            EndReason::CreateFailed(reason) => {
                SandboxError::Create { id: self.id.clone(), reason: reason.clone() }
            }
            other => SandboxError::Create { id: self.id.clone(), reason: other.to_string() },
        }
    }

    /// Serves requests until the sandbox has a reason to end.
    async fn serve(&mut self, mut live: Live) -> EndReason {
        let Some(machine) = self.resources.machine.clone() else { return EndReason::MachineEnded };
        let config = &self.shared.config;
        let resuming =
            full_disk::resume(machine.clone(), config.disk_check_interval, config.data_dir.clone());
        tokio::pin!(resuming);
        loop {
            let left = live.end_at.saturating_since(self.shared.parts.clock.now());
            if left.is_zero() {
                return EndReason::Expired;
            }
            // The order decides ties: a kill beats an extension, and an extension that arrived in time beats the end.
            tokio::select! {
                biased;
                reason = end_wanted(&mut self.end) => return reason,
                () = requested(&mut self.stopping) => return EndReason::NodeStops,
                () = machine.wait() => return EndReason::MachineEnded,
                never = &mut resuming => match never {},
                Some(command) = self.commands.recv() => self.set_end(&mut live, command).await,
                () = tokio::time::sleep(left.min(CLOCK_CHECK_INTERVAL)) => {}
            }
        }
    }

    async fn set_end(&self, live: &mut Live, command: SetEnd) {
        let now = self.shared.parts.clock.now();
        let asked = now.saturating_add(command.timeout);
        let end_at = match command.extension {
            Extension::Exactly => asked,
            Extension::AtLeast => asked.max(live.end_at),
        };
        let result = if live.end_at <= now {
            Err(SandboxError::NotFound(self.id.to_string()))
        } else if end_at == live.end_at {
            Ok(*live)
        } else {
            match self.shared.store.set_end(&self.id, end_at).await {
                Ok(()) => {
                    live.end_at = end_at;
                    self.state.send_replace(State::Running(*live));
                    Ok(*live)
                }
                Err(error) => Err(error.into()),
            }
        };
        let _ = command.reply.send(result);
    }
}

/// Waits until others want the sandbox to end.
async fn end_wanted(end: &mut watch::Receiver<Option<EndReason>>) -> EndReason {
    let wanted = end.wait_for(Option::is_some).await.ok().and_then(|reason| reason.clone());
    match wanted {
        Some(reason) => reason,
        // Whoever could want it is gone.
        None => std::future::pending().await,
    }
}

/// Waits until the flag is set. A flag whose owner is gone will never be set.
async fn requested(flag: &mut watch::Receiver<bool>) {
    if flag.wait_for(|set| *set).await.is_err() {
        std::future::pending::<()>().await;
    }
}
