//! Connects this program's standard streams, terminal and signals with a process in a sandbox.

use std::io::Write;

use anyhow::Context;
use protocol::connect::Code;
use protocol::envd::{EndEvent, ProcessConfig, ProcessEvent, Pty, Signal, StartRequest};
use tokio::io::AsyncReadExt;
use tokio::signal::unix::{SignalKind, signal};

use crate::client::guest::{Guest, code_of};
use crate::client::process::Events;
use crate::terminal::{self, RawMode};

/// Bytes of input sent at a time.
const INPUT_BYTES: usize = 32 * 1024;
/// What a shell answers for a program that cannot be started.
const EXIT_NOT_STARTED: i32 = 127;
/// What a shell answers for a process ended by signal N is this plus N.
const EXIT_SIGNAL: i32 = 128;

/// Runs a process with this program's standard streams as its own. Answers the exit code to end with.
pub(crate) async fn run(guest: &Guest, process: ProcessConfig, terminal: bool) -> anyhow::Result<i32> {
    let name = process.cmd.clone();
    let pty = terminal.then(|| Pty { size: Some(terminal::size()) });
    let stdin = if terminal { None } else { Some(true) };
    let start = StartRequest { process: Some(process), pty, tag: None, stdin };
    // Handlers first: a signal that comes while the process starts must not end only this side.
    let signals = Signals::listen()?;
    let (pid, events) = match guest.start(&start).await {
        Ok(started) => started,
        Err(error) => {
            let hint = format!("start {name} in sandbox {}", guest.id());
            if matches!(
                code_of(&error),
                Some(Code::NotFound | Code::InvalidArgument | Code::PermissionDenied)
            ) {
                crate::output::note(&format!("aenv: {hint}: {error:#}"));
                return Ok(EXIT_NOT_STARTED);
            }
            return Err(error.context(hint));
        }
    };
    let raw = if terminal { Some(RawMode::enter()?) } else { None };
    let input = tokio::spawn(forward_input(guest.clone(), pid, terminal));
    let end = follow(guest, pid, events, signals, terminal).await;
    input.abort();
    drop(raw);
    Ok(exit_code(&end?))
}

/// Writes output and passes signals on until the process ends.
async fn follow(
    guest: &Guest,
    pid: u32,
    mut events: Events,
    mut signals: Signals,
    terminal: bool,
) -> anyhow::Result<EndEvent> {
    let mut signals_seen = 0_u32;
    loop {
        tokio::select! {
            event = events.next() => {
                let event = event?.context("the sandbox did not say how the process ended")?;
                if let Some(end) = event.end {
                    return Ok(end);
                }
                if let Err(error) = write(&event) {
                    // Nobody reads the output any more: end the process, as a broken pipe would.
                    let _ = guest.signal(pid, Signal::Terminate).await;
                    return Err(error);
                }
            }
            seen = signals.next() => {
                if seen == Seen::Resize {
                    if terminal {
                        // A size that could not be set is a matter of looks.
                        let _ = guest.resize(pid, terminal::size()).await;
                    }
                    continue;
                }
                signals_seen += 1;
                let wanted = if signals_seen == 1 { Signal::Terminate } else { Signal::Kill };
                if let Err(error) = guest.signal(pid, wanted).await && code_of(&error) != Some(Code::NotFound) {
                    return Err(error.context("pass the signal on"));
                }
            }
        }
    }
}

fn write(event: &ProcessEvent) -> anyhow::Result<()> {
    let Some(output) = &event.data else { return Ok(()) };
    for bytes in [&output.stdout, &output.pty].into_iter().flatten() {
        let mut stdout = std::io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).context("write to standard output")?;
    }
    if let Some(bytes) = &output.stderr {
        std::io::stderr().lock().write_all(bytes).context("write to standard error")?;
    }
    Ok(())
}

/// Sends standard input until it ends or nobody wants it.
async fn forward_input(guest: Guest, pid: u32, terminal: bool) {
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0_u8; INPUT_BYTES];
    loop {
        let outcome = match stdin.read(&mut buffer).await {
            // A process that is not there any more, or has closed its input, is no error: its end says all.
            Ok(0) | Err(_) if terminal => return,
            Ok(0) | Err(_) => {
                let _ = guest.close_input(pid).await;
                return;
            }
            Ok(length) => guest.send_input(pid, buffer[..length].to_vec(), terminal).await,
        };
        if outcome.is_err() {
            return;
        }
    }
}

fn exit_code(end: &EndEvent) -> i32 {
    if end.exited {
        return end.exit_code;
    }
    // The daemon words signals as Go does: "signal: killed".
    let number = match end.status.strip_prefix("signal: ") {
        Some("hangup") => 1,
        Some("interrupt") => 2,
        Some("quit") => 3,
        Some("aborted") => 6,
        Some("killed") => 9,
        Some("segmentation fault") => 11,
        Some("broken pipe") => 13,
        Some("terminated") => 15,
        _ => return if end.exit_code == 0 { 0 } else { end.exit_code.clamp(1, 255) },
    };
    EXIT_SIGNAL + number
}

/// Signals that concern the process on the other side.
#[derive(Debug)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
    window: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            window: listen(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> Seen {
        tokio::select! {
            _ = self.interrupt.recv() => Seen::End,
            _ = self.terminate.recv() => Seen::End,
            _ = self.hangup.recv() => Seen::End,
            _ = self.window.recv() => Seen::Resize,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    End,
    Resize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(exited: bool, exit_code: i32, status: &str) -> EndEvent {
        EndEvent { exited, exit_code, status: status.into(), error: None }
    }

    #[test]
    fn the_exit_code_is_the_process_own() {
        assert_eq!(exit_code(&end(true, 0, "exit status 0")), 0);
        assert_eq!(exit_code(&end(true, 7, "exit status 7")), 7);
    }

    #[test]
    fn a_signal_becomes_what_a_shell_makes_of_it() {
        assert_eq!(exit_code(&end(false, -1, "signal: killed")), 137);
        assert_eq!(exit_code(&end(false, -1, "signal: terminated")), 143);
        assert_eq!(exit_code(&end(false, -1, "signal: something new")), 1);
    }
}
