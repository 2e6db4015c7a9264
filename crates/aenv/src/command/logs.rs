//! `aenv logs`: the console of a sandbox.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, anyhow};

use crate::cli::LogsArguments;
use crate::client::{Node, is_not_found};

/// How often a followed console is asked for.
const INTERVAL: Duration = Duration::from_secs(1);

pub(crate) async fn run(node: &Node, arguments: LogsArguments) -> anyhow::Result<()> {
    let id = &arguments.id;
    let mut shown = node.console(id).await.map_err(|error| {
        if is_not_found(&error) {
            return anyhow!("there is no sandbox {id}, and no console of one is kept");
        }
        error.context(format!("console of sandbox {id}"))
    })?;
    write(&shown)?;
    while arguments.follow && node.sandbox(id).await.is_ok() {
        tokio::time::sleep(INTERVAL).await;
        let Ok(now) = node.console(id).await else { break };
        write(news(&shown, &now))?;
        shown = now;
    }
    Ok(())
}

/// What `now` has and `shown` had not. A node may give only the end of a long console.
fn news<'a>(shown: &[u8], now: &'a [u8]) -> &'a [u8] {
    if now.starts_with(shown) {
        return &now[shown.len()..];
    }
    // The window moved: go on after the last line that was shown, if it is still there.
    let tail = &shown[shown.len().saturating_sub(200)..];
    let place = now.windows(tail.len().max(1)).rposition(|window| window == tail);
    place.map_or(now, |place| &now[place + tail.len()..])
}

fn write(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).context("write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_new_is_shown() {
        assert_eq!(news(b"a\nb\n", b"a\nb\nc\n"), b"c\n");
        assert_eq!(news(b"a\n", b"a\n"), b"");
        assert_eq!(news(b"", b"a\n"), b"a\n");
    }

    #[test]
    fn a_window_that_moved_on_is_joined() {
        let long: Vec<u8> = (0..200).flat_map(|number| format!("line {number}\n").into_bytes()).collect();
        let later: Vec<u8> = (100..210).flat_map(|number| format!("line {number}\n").into_bytes()).collect();
        assert_eq!(
            news(&long, &later),
            (200..210).flat_map(|n| format!("line {n}\n").into_bytes()).collect::<Vec<_>>()
        );
        assert_eq!(news(b"something else\n", b"new\n"), b"new\n");
    }
}
