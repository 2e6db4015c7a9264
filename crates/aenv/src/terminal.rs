//! The terminal this program runs on.

use std::io::IsTerminal;

use anyhow::Context;
use protocol::envd::PtySize;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// Size of a terminal that does not know its own.
const USUAL_SIZE: PtySize = PtySize { cols: 80, rows: 24 };

/// Puts standard input into raw mode, and back when it goes out of scope.
#[derive(Debug)]
pub(crate) struct RawMode {
    before: Termios,
}

impl RawMode {
    pub(crate) fn enter() -> anyhow::Result<Self> {
        let before = tcgetattr(std::io::stdin()).context("read the terminal's settings")?;
        let mut raw = before.clone();
        raw.make_raw();
        // Not `Flush`: what was typed ahead is meant for the shell.
        tcsetattr(std::io::stdin(), OptionalActions::Now, &raw).context("put the terminal into raw mode")?;
        Ok(Self { before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(std::io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Size of the terminal on standard output.
pub(crate) fn size() -> PtySize {
    match tcgetwinsize(std::io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            PtySize { cols: size.ws_col.into(), rows: size.ws_row.into() }
        }
        _ => USUAL_SIZE,
    }
}

/// Whether a shell can be used here.
pub(crate) fn is_interactive() -> bool {
    std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
}
