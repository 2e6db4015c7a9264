//! Runs `nft`, with a deadline.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::NetworkError;

/// A transaction takes milliseconds; a held lock can make it wait.
const DEADLINE: Duration = Duration::from_secs(20);
/// What is shown of a complaint.
const MAX_COMPLAINT_BYTES: u64 = 2000;

/// Applies a script as one transaction, in the calling thread's network namespace (a child inherits it).
pub(crate) fn apply(what: &str, script: &str) -> Result<(), NetworkError> {
    run(what, &["-f", "-"], script).map(drop)
}

/// Runs a query and returns what it printed.
pub(crate) fn query(what: &str, arguments: &[&str]) -> Result<String, NetworkError> {
    run(what, arguments, "")
}

fn run(what: &str, arguments: &[&str], input: &str) -> Result<String, NetworkError> {
    let failed = |reason: String| NetworkError::Operation { operation: format!("nft: {what}"), reason };
    let mut child = Command::new("nft")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                failed("the program `nft` is missing; install the package nftables".into())
            }
            _ => failed(error.to_string()),
        })?;
    let outcome = converse(&mut child, input);
    if outcome.is_err() {
        // It may have ended by itself meanwhile; either way the next line reaps it.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    let (output, complaint) = outcome.map_err(|error| failed(error.to_string()))?;
    if status.success() {
        return Ok(output);
    }
    let hint = if complaint.contains("Operation not permitted") { " (root is needed)" } else { "" };
    Err(failed(format!("{status}: {}{hint}", complaint.trim())))
}

/// Feeds `input` and reads both outputs until the child closes them.
fn converse(child: &mut Child, input: &str) -> std::io::Result<(String, String)> {
    let deadline = Instant::now() + DEADLINE;
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that stops reading early says why on stderr, which tells more than the broken pipe.
        let _ = stdin.write_all(input.as_bytes());
    }
    let reader = child.stdout.take().map(|mut stdout| {
        std::thread::spawn(move || {
            let mut text = String::new();
            stdout.read_to_string(&mut text).map(|_| text)
        })
    });
    let left = deadline.saturating_duration_since(Instant::now());
    let left = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX), tv_nsec: 0 };
    if poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&left))? == 0 {
        return Err(std::io::Error::new(
            std::io::ErrorKind::TimedOut,
            format!("no end after {} s", DEADLINE.as_secs()),
        ));
    }
    let mut complaint = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        stderr.take(MAX_COMPLAINT_BYTES).read_to_end(&mut complaint)?;
    }
    let output = match reader.map(std::thread::JoinHandle::join) {
        Some(Ok(text)) => text?,
        Some(Err(_)) | None => String::new(),
    };
    Ok((output, String::from_utf8_lossy(&complaint).into_owned()))
}
