//! The processes that were started here.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::connect::{Code, RpcError};
use protocol::envd::{EndEvent, ProcessConfig, ProcessInfo, ProcessSelector};
use tokio::io::unix::AsyncFd;

use super::fanout::Fanout;
use super::handle::Handle;
use crate::daemon::lock;

/// How long a client that comes back finds the end of its process.
const ENDED_KEPT: Duration = Duration::from_secs(30);
/// Ends kept at most; each is about a hundred bytes.
const ENDED_MAX: usize = 4096;

/// A process whose end was not published yet.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) handle: Handle,
    pub(super) tag: Option<String>,
    pub(super) config: ProcessConfig,
    pub(super) fanout: Arc<Fanout>,
    pub(super) input: Input,
}

/// Where a client's input goes. The lock keeps the order of inputs; it is held while a write waits for the process.
#[derive(Debug)]
pub(super) enum Input {
    /// Standard input is `/dev/null`.
    Disabled,
    /// A pipe, until it is closed.
    Pipe(tokio::sync::Mutex<Option<AsyncFd<OwnedFd>>>),
    /// The terminal, for input and size. It needs no lock against closing, only for the order.
    Terminal { master: AsyncFd<OwnedFd>, order: tokio::sync::Mutex<()> },
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct ProcessTable {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// In the order of their start.
    live: Vec<Arc<Process>>,
    /// In the order of their end.
    ended: VecDeque<Ended>,
}

#[derive(Debug)]
struct Ended {
    pid: u32,
    tag: Option<String>,
    end: EndEvent,
    at: Instant,
}

impl ProcessTable {
    pub(super) fn add(&self, process: Arc<Process>) {
        lock(&self.state).live.push(process);
    }

    /// Running processes, in the order of their start.
    pub(super) fn list(&self) -> Vec<ProcessInfo> {
        let state = lock(&self.state);
        let running = state.live.iter().filter(|process| process.handle.is_running());
        running
            .map(|process| ProcessInfo {
                config: Some(process.config.clone()),
                pid: process.handle.pid(),
                tag: process.tag.clone(),
            })
            .collect()
    }

    /// The process a client means. Numbers and tags are used again, so the latest one is meant.
    pub(super) fn find(&self, selector: &ProcessSelector) -> Result<Arc<Process>, RpcError> {
        let state = lock(&self.state);
        let is_meant =
            |process: &&Arc<Process>| matches(selector, process.handle.pid(), process.tag.as_deref());
        state.live.iter().rev().find(is_meant).cloned().ok_or_else(|| not_found(selector))
    }

    /// The end of a process that ended lately, and its process id.
    pub(super) fn find_ended(&self, selector: &ProcessSelector) -> Option<(u32, EndEvent)> {
        let state = lock(&self.state);
        let is_meant = |ended: &&Ended| {
            matches(selector, ended.pid, ended.tag.as_deref()) && ended.at.elapsed() < ENDED_KEPT
        };
        state.ended.iter().rev().find(is_meant).map(|ended| (ended.pid, ended.end.clone()))
    }

    /// Replaces a process by its end.
    pub(super) fn retire(&self, process: &Arc<Process>, end: &EndEvent, now: Instant) {
        let mut state = lock(&self.state);
        state.live.retain(|candidate| !Arc::ptr_eq(candidate, process));
        while state.ended.front().is_some_and(|ended| now.duration_since(ended.at) >= ENDED_KEPT)
            || state.ended.len() >= ENDED_MAX
        {
            state.ended.pop_front();
        }
        let (pid, tag) = (process.handle.pid(), process.tag.clone());
        state.ended.push_back(Ended { pid, tag, end: end.clone(), at: now });
    }
}

fn matches(selector: &ProcessSelector, pid: u32, tag: Option<&str>) -> bool {
    match selector {
        ProcessSelector::Pid(wanted) => *wanted == pid,
        ProcessSelector::Tag(wanted) => Some(wanted.as_str()) == tag,
    }
}

fn not_found(selector: &ProcessSelector) -> RpcError {
    let message = match selector {
        ProcessSelector::Pid(pid) => format!("process with pid {pid} not found"),
        ProcessSelector::Tag(tag) => format!("process with tag {tag:?} not found"),
    };
    RpcError::new(Code::NotFound, message)
}
