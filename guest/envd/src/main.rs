//! Guest daemon that speaks the E2B envd protocol: commands, files and a little control, over plain HTTP/1.1.
//!
//! One thread runs everything that waits for sockets and pipes; what may wait for a disk (opening, listing, writing
//! files, starting programs) runs on short-lived threads beside it, so that a slow disk never delays a running stream.
//! The daemon keeps little memory and bounds all it keeps: a request that panics ends alone.

mod accounts;
mod clock;
mod control;
mod daemon;
mod files;
mod filesystem;
mod memory;
mod metrics;
mod options;
mod paths;
mod process;
mod reply;
mod request;
mod rpc;
mod server;

use std::sync::Arc;
use std::time::Duration;

use daemon::Daemon;
use options::Options;

/// Idle helper threads end soon: their stacks are memory of the guest.
const HELPER_KEEP_ALIVE: Duration = Duration::from_secs(2);
/// Helper threads at once. Each upload and download may hold one while it waits for its client.
const HELPERS_MAX: usize = 512;

fn main() -> std::process::ExitCode {
    let options = match Options::from_arguments(std::env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => return std::process::ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("aenv-envd: {message}");
            return std::process::ExitCode::from(2);
        }
    };
    let original_limits = process::prepare_daemon_process();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(HELPER_KEEP_ALIVE)
        .max_blocking_threads(HELPERS_MAX)
        .build();
    let run = |runtime: tokio::runtime::Runtime| {
        let daemon = Arc::new(Daemon::new(options, original_limits)?);
        runtime.block_on(server::run(daemon))
    };
    match runtime.and_then(run) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("aenv-envd: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
