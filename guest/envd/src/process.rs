//! The service `process.Process`: commands, their streams, input and signals.

mod calls;
mod descriptor;
mod environment;
mod fanout;
mod handle;
mod pump;
mod queue;
mod spawn;
mod start;
mod subscription;
mod supervise;
mod table;
mod terminal;

use std::sync::Arc;

use protocol::envd::PROCESS_SERVICE;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::daemon::Daemon;
use crate::reply::Reply;
use crate::request::Request;
use crate::rpc;

pub(crate) use subscription::Subscription;
pub(crate) use table::ProcessTable;

/// Limits the daemon changes for itself and gives back to commands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessLimits {
    open_files: Rlimit,
}

/// Makes the daemon fit to outlive the user's programs. Returns the limits it was started with.
pub(crate) fn prepare_daemon_process() -> ProcessLimits {
    // Arenas of the allocator multiply with threads, and are never given back.
    // SAFETY: mallopt only sets a parameter of the allocator; no other thread runs yet.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 2) };
    rustix::process::umask(rustix::fs::Mode::WGRP | rustix::fs::Mode::WOTH);
    // Fails without privileges; then the daemon is as likely to be chosen as others.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    stop_ignoring_signals();
    // Whatever descriptors the daemon was started with are none of a command's business.
    // SAFETY: marks descriptors above the standard streams close-on-exec; none is closed here.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    let open_files = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: open_files.maximum, maximum: open_files.maximum });
    ProcessLimits { open_files }
}

/// An ignored signal stays ignored in every command, whoever started the daemon that way (a shell in the background
/// ignores Ctrl-C). The daemon itself needs only SIGPIPE ignored, which each command gets back.
fn stop_ignoring_signals() {
    for signal in (1..=libc::SIGRTMAX()).filter(|signal| *signal != libc::SIGPIPE) {
        // SAFETY: sigaction writes the current action into a value that may be all zeroes, and signal sets the default
        // action; numbers that are not ours to change make both fail.
        unsafe {
            let mut current: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(signal, std::ptr::null(), &raw mut current) == 0
                && current.sa_sigaction == libc::SIG_IGN
            {
                libc::signal(signal, libc::SIG_DFL);
            }
        }
    }
}

/// Answers a call of the service.
pub(crate) async fn call(daemon: Arc<Daemon>, request: Request) -> Reply {
    let method = request.uri().path().strip_prefix(PROCESS_SERVICE).unwrap_or_default().to_owned();
    match method.as_str() {
        "Start" => rpc::streaming_reply(start::start(daemon, request).await),
        "Connect" => rpc::streaming_reply(calls::connect(&daemon, request).await),
        "List" => rpc::unary_reply(calls::list(&daemon, request).await),
        "SendSignal" => rpc::unary_reply(calls::send_signal(&daemon, request).await),
        "SendInput" => rpc::unary_reply(calls::send_input(&daemon, request).await),
        "CloseStdin" => rpc::unary_reply(calls::close_stdin(&daemon, request).await),
        "Update" => rpc::unary_reply(calls::update(&daemon, request).await),
        _ => rpc::unimplemented(&method, method == "StreamInput", request.headers()),
    }
}
