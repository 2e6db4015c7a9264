//! From a process' start to the publication of its end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use protocol::connect::{Code, RpcError};
use protocol::envd::EndEvent;
use tokio::sync::watch;

use super::handle::Exit;
use super::pump::{Source, pump};
use super::queue::Queue;
use super::table::{Input, Process};
use crate::daemon::Daemon;

/// Names of signals as the status text has them (those of Go's runtime, which clients were written against).
const SIGNAL_NAMES: [(i32, &str); 12] = [
    (libc::SIGHUP, "hangup"),
    (libc::SIGINT, "interrupt"),
    (libc::SIGQUIT, "quit"),
    (libc::SIGILL, "illegal instruction"),
    (libc::SIGABRT, "aborted"),
    (libc::SIGBUS, "bus error"),
    (libc::SIGFPE, "floating point exception"),
    (libc::SIGKILL, "killed"),
    (libc::SIGSEGV, "segmentation fault"),
    (libc::SIGPIPE, "broken pipe"),
    (libc::SIGALRM, "alarm clock"),
    (libc::SIGTERM, "terminated"),
];

/// A process that has just been started.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) process: Arc<Process>,
    pub(super) sources: Vec<Source>,
    /// The stream of the client that started it.
    pub(super) starter: Arc<Queue>,
    /// How long it may run.
    pub(super) deadline: Option<Duration>,
}

/// Publishes a process' output, enforces its deadline, reaps it and publishes its end, in this order: the end says that
/// all output was sent and that the process has gone.
pub(super) async fn supervise(daemon: Arc<Daemon>, started: Started) {
    let Started { process, sources, starter, deadline } = started;
    let (exited_sender, exited) = watch::channel(false);
    let wait = async {
        let exit = wait_within(&process, &starter, deadline).await;
        close_input(&process);
        exited_sender.send_replace(true);
        exit
    };
    let mut sources = sources.into_iter();
    let pump_next = |source: Option<Source>| {
        let exited = exited.clone();
        let fanout = &process.fanout;
        async move {
            if let Some(source) = source {
                pump(source, fanout, exited).await;
            }
        }
    };
    let (exit, (), ()) = tokio::join!(wait, pump_next(sources.next()), pump_next(sources.next()));
    let end = end_event(exit);
    daemon.processes.retire(&process, &end, Instant::now());
    process.fanout.finish(&end);
}

async fn wait_within(process: &Process, starter: &Arc<Queue>, deadline: Option<Duration>) -> Exit {
    let Some(deadline) = deadline else { return process.handle.wait().await };
    if let Ok(exit) = tokio::time::timeout(deadline, process.handle.wait()).await {
        return exit;
    }
    // Fails when it has just ended by itself.
    let _ = process.handle.signal_group(libc::SIGKILL);
    let message =
        format!("the command was killed: it ran longer than the {} ms given for it", deadline.as_millis());
    process.fanout.cut_off(starter, RpcError::new(Code::DeadlineExceeded, message));
    process.handle.wait().await
}

/// Frees the pipe unless an input is just being written; that one fails by itself.
fn close_input(process: &Process) {
    if let Input::Pipe(pipe) = &process.input
        && let Ok(mut pipe) = pipe.try_lock()
    {
        *pipe = None;
    }
}

fn end_event(exit: Exit) -> EndEvent {
    match exit {
        Exit::Code(exit_code) => EndEvent {
            exit_code,
            exited: true,
            status: format!("exit status {exit_code}"),
            error: error_of(exit_code),
        },
        Exit::Signal(signal) => {
            let name = SIGNAL_NAMES.iter().find(|entry| entry.0 == signal);
            let status = name
                .map_or_else(|| format!("signal: signal {signal}"), |entry| format!("signal: {}", entry.1));
            EndEvent { exit_code: -1, exited: false, error: Some(status.clone()), status }
        }
        Exit::Unknown => {
            let status = "exit status unknown".to_owned();
            EndEvent { exit_code: -1, exited: false, error: Some(status.clone()), status }
        }
    }
}

fn error_of(exit_code: i32) -> Option<String> {
    (exit_code != 0).then(|| format!("exit status {exit_code}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_are_described_as_clients_expect() {
        let zero = end_event(Exit::Code(0));
        assert_eq!(
            (zero.exit_code, zero.exited, zero.status.as_str(), zero.error),
            (0, true, "exit status 0", None)
        );
        let three = end_event(Exit::Code(3));
        assert_eq!((three.exit_code, three.error.as_deref()), (3, Some("exit status 3")));
        let killed = end_event(Exit::Signal(libc::SIGKILL));
        assert_eq!((killed.exit_code, killed.exited, killed.status.as_str()), (-1, false, "signal: killed"));
        assert_eq!(end_event(Exit::Signal(40)).status, "signal: signal 40");
    }
}
