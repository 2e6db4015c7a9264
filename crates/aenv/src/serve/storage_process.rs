//! The storage daemon as a process beside the node: found when it runs already, started when not, and started again when
//! it dies. Sandboxes wait meanwhile; they do not fail.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::unix::AsyncFd;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::config::Config;

/// From its start until it answers; it may have many devices to open.
const START_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);
/// Between a death and the next start, growing while it dies young.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// A daemon that lived this long did not die of its start.
const HEALTHY_LIFE: Duration = Duration::from_secs(60);
/// From being asked to end until it has: devices are made durable.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// What is shown of its log when it does not start.
const LOG_TAIL_BYTES: u64 = 2000;

/// The daemon and the task that watches it.
#[derive(Debug)]
pub(super) struct StorageProcess {
    socket: PathBuf,
    storage: Arc<dyn sandbox::Storage>,
    stopping: watch::Sender<bool>,
    supervisor: JoinHandle<()>,
}

/// How a daemon is started.
#[derive(Debug, Clone)]
struct Launch {
    command: Vec<OsString>,
    socket: PathBuf,
    log: PathBuf,
}

/// A daemon that answered.
#[derive(Debug)]
enum Running {
    Child(Child),
    /// Started by an earlier node.
    Adopted(AsyncFd<OwnedFd>),
}

impl Running {
    async fn ended(&mut self) -> String {
        match self {
            Self::Child(child) => match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            },
            Self::Adopted(process) => match process.readable().await {
                Ok(_) => "ended".to_owned(),
                Err(error) => error.to_string(),
            },
        }
    }
}

impl StorageProcess {
    /// Finds or starts the daemon, and returns when it answers.
    pub(super) async fn start(config: &Config, command: Vec<OsString>) -> anyhow::Result<Self> {
        let directory = config.data_dir.join("storaged");
        std::fs::create_dir_all(&directory).with_context(|| format!("make {}", directory.display()))?;
        let socket = config.runtime_dir.join("storaged.sock");
        let launch = Launch { command, socket: socket.clone(), log: directory.join("storaged.log") };
        let running = launch.find_or_start().await?;
        let storage = Arc::new(storaged::Client::connect(&socket).await?);
        let (stopping, stop) = watch::channel(false);
        let supervisor = tokio::spawn(supervise(launch, running, stop));
        Ok(Self { socket, storage, stopping, supervisor })
    }

    pub(super) fn storage(&self) -> Arc<dyn sandbox::Storage> {
        Arc::clone(&self.storage)
    }

    /// Lets the daemon run on, for the sandboxes that use it.
    pub(super) fn leave(self) {
        self.supervisor.abort();
    }

    /// Ends the daemon, its mount and its keeper. A daemon that still has devices stays, and false is answered.
    pub(super) async fn stop(mut self) -> bool {
        self.stopping.send_replace(true);
        let asked = async { storaged::Client::connect(&self.socket).await?.shutdown(false).await };
        if let Err(error) = asked.await {
            tracing::warn!(%error, "the storage daemon does not end");
            self.supervisor.abort();
            return false;
        }
        let ended = tokio::time::timeout(STOP_TIMEOUT, &mut self.supervisor).await.is_ok();
        if !ended {
            tracing::warn!(
                "the storage daemon has not ended after {} s and is left alone",
                STOP_TIMEOUT.as_secs()
            );
            self.supervisor.abort();
        }
        ended
    }
}

/// Starts the daemon again whenever it ends, until the node stops.
async fn supervise(launch: Launch, mut running: Running, stop: watch::Receiver<bool>) {
    let mut backoff = BACKOFF_MIN;
    loop {
        let begin = Instant::now();
        let how = running.ended().await;
        if *stop.borrow() {
            return;
        }
        if begin.elapsed() > HEALTHY_LIFE {
            backoff = BACKOFF_MIN;
        }
        tracing::error!(how, "the storage daemon died; sandboxes wait until the next one has taken over");
        running = loop {
            tokio::time::sleep(backoff).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
            match launch.find_or_start().await {
                Ok(running) => break running,
                Err(error) => tracing::error!("the storage daemon cannot be started again: {error:#}"),
            }
        };
        tracing::info!("the storage daemon is back");
    }
}

impl Launch {
    async fn find_or_start(&self) -> anyhow::Result<Running> {
        if let Some(process_id) = process_that_answers(&self.socket).await {
            tracing::info!(process_id, "took over the storage daemon that runs already");
            return Ok(Running::Adopted(watch_process(process_id)?));
        }
        let mut child = self.spawn()?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if process_that_answers(&self.socket).await.is_some() {
                return Ok(Running::Child(child));
            }
            if let Some(status) = child.try_wait().context("watch the storage daemon")? {
                bail!("the storage daemon ended at its start ({status}):\n{}", self.log_tail());
            }
            if Instant::now() > deadline {
                // It would come up later and hold what the next try needs.
                let _ = child.kill().await;
                bail!(
                    "the storage daemon does not answer after {} s:\n{}",
                    START_TIMEOUT.as_secs(),
                    self.log_tail()
                );
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn spawn(&self) -> anyhow::Result<Child> {
        let context = || format!("start the storage daemon ({:?})", self.command);
        let (program, arguments) = self.command.split_first().with_context(context)?;
        let log = open_log(&self.log)?;
        Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(log.try_clone().with_context(context)?)
            .stderr(log)
            // It outlives the node on purpose.
            .kill_on_drop(false)
            .spawn()
            .with_context(context)
    }

    fn log_tail(&self) -> String {
        let read = || -> std::io::Result<String> {
            use std::io::{Read, Seek, SeekFrom};
            let mut file = File::open(&self.log)?;
            let start = file.metadata()?.len().saturating_sub(LOG_TAIL_BYTES);
            file.seek(SeekFrom::Start(start))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|error| format!("(its log {} cannot be read: {error})", self.log.display()))
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("open the log {}", path.display()))
}

async fn process_that_answers(socket: &Path) -> Option<u32> {
    let client = storaged::Client::connect(socket).await.ok()?;
    Some(client.status().await.ok()?.process_id)
}

fn watch_process(process_id: u32) -> anyhow::Result<AsyncFd<OwnedFd>> {
    let context = || format!("watch the storage daemon (process {process_id})");
    let process = i32::try_from(process_id).ok().and_then(Pid::from_raw).with_context(context)?;
    let descriptor = pidfd_open(process, PidfdFlags::NONBLOCK).with_context(context)?;
    // SAFETY: the descriptor is this `OwnedFd`'s own, is never replaced, and stays open inside the `AsyncFd`.
    unsafe { AsyncFd::register(descriptor) }.map_err(std::io::Error::from).with_context(context)
}
