//! `aenv layer`: layers seen from outside, without any daemon.

use std::io::{self, IsTerminal, Write};

use clap::{Args, Subcommand};

mod inspect;
mod read;

#[cfg(test)]
mod tests;

/// Look into overlaybd layers and read disks made of them.
#[derive(Debug, Args)]
pub(crate) struct LayerArguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Show what a layer is and what it holds, after checking its header, trailer and whole index.
    Inspect(inspect::Arguments),
    /// Write bytes of a disk to standard output. The disk is made of read-only layers and, if wanted, of a writable one on
    /// top. No file is changed.
    Read(read::Arguments),
}

/// Runs the command. An error is the reason to exit with status 1.
pub(crate) fn run(arguments: LayerArguments) -> anyhow::Result<()> {
    let terminal = io::stdout().is_terminal();
    let mut output = io::stdout().lock();
    let done = match arguments.action {
        Action::Inspect(arguments) => inspect::run(&arguments, terminal, &mut output),
        Action::Read(arguments) => read::run(&arguments, &mut output),
    };
    let done = done.and_then(|()| Ok(output.flush()?));
    match done {
        // Whoever reads the output has seen enough, as `head` does.
        Err(error) if is_broken_pipe(&error) => Ok(()),
        done => done,
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}
