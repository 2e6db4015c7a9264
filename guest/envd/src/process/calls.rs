//! The calls on running processes.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use protocol::connect::{Code, RpcError};
use protocol::envd::{
    CloseStdinRequest, ConnectRequest, Empty, ListRequest, ListResponse, SendInputRequest, SendSignalRequest,
    Signal, UpdateRequest,
};
use tokio::io::unix::AsyncFd;

use super::fanout::{Fanout, end_frames};
use super::subscription::Subscription;
use super::table::Input;
use super::terminal;
use crate::daemon::Daemon;
use crate::request::{self, Request};
use crate::rpc;

/// How long a call that kills waits for the process to have gone, so that the next command does not see it.
const KILL_WAIT: Duration = Duration::from_millis(500);
/// How long an input may wait for a process that does not read, when the client gives no time.
const INPUT_WAIT: Duration = Duration::from_secs(600);

/// Running processes.
pub(super) async fn list(daemon: &Daemon, request: Request) -> Result<ListResponse, RpcError> {
    let _: ListRequest = rpc::unary_message(request).await?;
    Ok(ListResponse { processes: daemon.processes.list() })
}

/// Subscribes to a running process, or to the end of one that ended lately.
pub(super) async fn connect(daemon: &Daemon, request: Request) -> Result<Subscription, RpcError> {
    let deadline = request::deadline(request.headers());
    let keepalive = request::keepalive(request.headers());
    let message: ConnectRequest = rpc::streaming_message(request).await?;
    let missing = match daemon.processes.find(&message.process) {
        Ok(process) => {
            let fanout = Arc::clone(&process.fanout);
            return Ok(Subscription::new(
                fanout.subscribe(process.handle.pid()),
                fanout,
                keepalive,
                deadline,
            ));
        }
        Err(missing) => missing,
    };
    let (pid, end) = daemon.processes.find_ended(&message.process).ok_or(missing)?;
    Ok(Subscription::ended([Fanout::start_frame(pid), end_frames(&end)].concat().into()))
}

/// Signals a process and its group.
pub(super) async fn send_signal(daemon: &Daemon, request: Request) -> Result<Empty, RpcError> {
    let message: SendSignalRequest = rpc::unary_message(request).await?;
    let signal = match message.signal {
        Signal::Terminate => libc::SIGTERM,
        Signal::Kill => libc::SIGKILL,
        Signal::Unspecified => {
            return Err(RpcError::new(
                Code::InvalidArgument,
                "only SIGNAL_SIGTERM and SIGNAL_SIGKILL can be sent",
            ));
        }
    };
    let process = daemon.processes.find(&message.process)?;
    match process.handle.signal_group(signal) {
        Ok(()) => {}
        // Nothing is left of it: as good as not known any more.
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
            return Err(RpcError::new(Code::NotFound, "the process has ended"));
        }
        Err(error) => return Err(RpcError::new(Code::Internal, format!("the signal was not sent: {error}"))),
    }
    if message.signal == Signal::Kill {
        // A process stuck in the kernel takes longer; the signal is sent all the same.
        let _ = tokio::time::timeout(KILL_WAIT, process.handle.gone()).await;
    }
    Ok(Empty {})
}

/// Writes to a process' standard input or terminal.
pub(super) async fn send_input(daemon: &Daemon, request: Request) -> Result<Empty, RpcError> {
    let time = request::deadline(request.headers()).unwrap_or(INPUT_WAIT);
    let message: SendInputRequest = rpc::unary_message(request).await?;
    let process = daemon.processes.find(&message.process)?;
    let input = message.input.unwrap_or_default();
    let write = async {
        match (&process.input, input.stdin, input.pty) {
            (Input::Pipe(pipe), Some(bytes), None) => {
                let pipe = pipe.lock().await;
                let pipe = pipe.as_ref().ok_or_else(stdin_is_closed)?;
                write_all(pipe, &bytes).await
            }
            (Input::Terminal { master, order }, None, Some(bytes)) => {
                let _order = order.lock().await;
                write_all(master, &bytes).await
            }
            (_, None, None) => Err(RpcError::new(Code::InvalidArgument, "no input is given")),
            (Input::Disabled, Some(_), None) => Err(RpcError::new(
                Code::Internal,
                "standard input of this process is disabled; start it with stdin",
            )),
            (Input::Terminal { .. }, ..) => {
                Err(RpcError::new(Code::Internal, "this process runs on a terminal; send its input as pty"))
            }
            _ => Err(RpcError::new(Code::Internal, "this process has no terminal; send its input as stdin")),
        }
    };
    match tokio::time::timeout(time, write).await {
        Ok(written) => written.map(|()| Empty {}),
        Err(_) => Err(RpcError::new(Code::DeadlineExceeded, "the process did not read its input in time")),
    }
}

/// Closes a process' standard input. Doing it again changes nothing.
pub(super) async fn close_stdin(daemon: &Daemon, request: Request) -> Result<Empty, RpcError> {
    let time = request::deadline(request.headers()).unwrap_or(INPUT_WAIT);
    let message: CloseStdinRequest = rpc::unary_message(request).await?;
    let process = daemon.processes.find(&message.process)?;
    match &process.input {
        Input::Pipe(pipe) => match tokio::time::timeout(time, pipe.lock()).await {
            Ok(mut pipe) => *pipe = None,
            Err(_) => {
                let message = "an earlier input is still being written; the process does not read it";
                return Err(RpcError::new(Code::DeadlineExceeded, message));
            }
        },
        Input::Disabled => {
            return Err(RpcError::new(Code::Internal, "standard input of this process is disabled"));
        }
        Input::Terminal { .. } => {
            let message =
                "a terminal's input cannot be closed; send the end-of-file character (Ctrl-D) instead";
            return Err(RpcError::new(Code::Internal, message));
        }
    }
    Ok(Empty {})
}

/// Changes the size of a process' terminal.
pub(super) async fn update(daemon: &Daemon, request: Request) -> Result<Empty, RpcError> {
    let message: UpdateRequest = rpc::unary_message(request).await?;
    let process = daemon.processes.find(&message.process)?;
    let Some(size) = message.pty.and_then(|pty| pty.size) else { return Ok(Empty {}) };
    let Input::Terminal { master, .. } = &process.input else {
        return Err(RpcError::new(Code::Internal, "this process has no terminal"));
    };
    terminal::resize(master.get_ref(), size)
        .map_err(|error| RpcError::new(Code::Internal, format!("the terminal cannot be resized: {error}")))?;
    Ok(Empty {})
}

fn stdin_is_closed() -> RpcError {
    RpcError::new(Code::Internal, "standard input of this process is closed")
}

async fn write_all(descriptor: &AsyncFd<OwnedFd>, mut bytes: &[u8]) -> Result<(), RpcError> {
    while !bytes.is_empty() {
        let failed =
            |error: io::Error| RpcError::new(Code::Internal, format!("input was not written: {error}"));
        let mut ready = descriptor.writable().await.map_err(failed)?;
        match rustix::io::write(descriptor.get_ref(), bytes) {
            Ok(written) => bytes = bytes.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::AGAIN) => ready.clear_ready(),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::PIPE) => {
                return Err(RpcError::new(Code::Internal, "the process has closed its standard input"));
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
    Ok(())
}
