//! `aenv exec`: a command in a sandbox, as if it ran here.

use anyhow::bail;
use protocol::envd::ProcessConfig;

use crate::cli::ExecArguments;
use crate::client::Node;
use crate::client::guest::Guest;
use crate::{session, terminal};

pub(crate) async fn run(node: &Node, arguments: ExecArguments) -> anyhow::Result<i32> {
    if arguments.tty && !terminal::is_interactive() {
        bail!(
            "--tty needs a terminal on standard input and output; leave it out to run the command with pipes"
        );
    }
    let guest = Guest::find(node, &arguments.id, arguments.user).await?;
    let mut command = arguments.command.into_iter();
    let process = ProcessConfig {
        // clap has made sure that there is one.
        cmd: command.next().unwrap_or_default(),
        args: command.collect(),
        envs: arguments.env.into_iter().chain(terminal_environment(arguments.tty)).collect(),
        cwd: arguments.cwd,
    };
    session::run(&guest, process, arguments.tty).await
}

/// What a program on a terminal has to know about it.
pub(crate) fn terminal_environment(terminal: bool) -> Option<(String, String)> {
    let kind = std::env::var("TERM").unwrap_or_else(|_| "xterm-256color".to_owned());
    terminal.then(|| ("TERM".to_owned(), kind))
}
