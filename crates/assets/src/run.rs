//! Runs the host's tools with a deadline and bounded output.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::AssetsError;

/// Output of a tool beyond this is read and dropped.
const MAX_OUTPUT_BYTES: usize = 4 << 20;
/// How often a running tool is looked at.
const POLL: Duration = Duration::from_millis(10);

/// Runs a tool to its end and returns its standard output. `missing` says what to do when it is not installed.
pub(crate) fn run(command: &mut Command, limit: Duration, missing: &str) -> Result<String, AssetsError> {
    let line = format!("{command:?}").replace('"', "");
    let failed = |reason: String| AssetsError::Command { command: line.clone(), reason };
    // Fixed words in messages, and no question that nobody would answer.
    command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => failed(format!("not found; {missing}")),
        _ => failed(error.to_string()),
    })?;
    let output = collect(child.stdout.take());
    let complaints = collect(child.stderr.take());
    let status = wait(&mut child, limit).map_err(|reason| {
        // A tool that hangs is ended; whether that works changes nothing for the caller.
        let _ = child.kill();
        let _ = child.wait();
        failed(reason)
    })?;
    let (output, complaints) = (output.join().unwrap_or_default(), complaints.join().unwrap_or_default());
    if status.success() {
        return Ok(output);
    }
    Err(failed(format!("{status}: {}", last_lines(&complaints, 5))))
}

fn wait(child: &mut Child, limit: Duration) -> Result<std::process::ExitStatus, String> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() >= deadline => {
                return Err(format!("did not end within {} s", limit.as_secs()));
            }
            Ok(None) => thread::sleep(POLL),
            Err(error) => return Err(error.to_string()),
        }
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let (mut kept, mut buffer) = (Vec::new(), [0; 16 * 1024]);
        if let Some(mut pipe) = pipe {
            while let Ok(length @ 1..) = pipe.read(&mut buffer) {
                let room = MAX_OUTPUT_BYTES - kept.len();
                kept.extend_from_slice(&buffer[..length.min(room)]);
            }
        }
        String::from_utf8_lossy(&kept).into_owned()
    })
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_hangs_is_ended_and_named() {
        let started = Instant::now();
        let error =
            run(Command::new("sleep").arg("60"), Duration::from_millis(50), "").expect_err("too long");
        assert!(error.to_string().starts_with("sleep 60: did not end"), "{error}");
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_failure_carries_the_tools_last_words() {
        let error = run(
            Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"]),
            Duration::from_secs(30),
            "",
        );
        assert!(error.expect_err("failed").to_string().ends_with("exit status: 3: no such thing"));
    }

    #[test]
    fn a_missing_tool_says_what_to_do() {
        let error = run(&mut Command::new("/nonexistent/tool"), Duration::from_secs(1), "install it");
        assert!(error.expect_err("failed").to_string().ends_with("not found; install it"));
    }
}
