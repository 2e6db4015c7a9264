//! `aenv start`: a sandbox, and a shell in it.

use std::time::Duration;

use anyhow::{anyhow, bail};
use protocol::api;
use protocol::envd::ProcessConfig;

use super::exec::terminal_environment;
use crate::cli::StartArguments;
use crate::client::guest::Guest;
use crate::client::{Node, is_not_found};
use crate::config::Config;
use crate::{output, session, terminal};

/// How often the lifetime of a sandbox is renewed while its shell is open.
const RENEWAL: Duration = Duration::from_secs(60);
/// The best shell the image has; the tools disk has one for images without any.
const SHELL: &str = "for shell in /bin/bash /usr/bin/bash /bin/sh; do [ -x $shell ] && exec $shell -il; done; \
                     exec /agentenv/bin/sh -il";

pub(crate) async fn run(
    node: &Node,
    config: &Config,
    arguments: StartArguments,
    json: bool,
) -> anyhow::Result<i32> {
    if !arguments.detach && !terminal::is_interactive() {
        bail!("a shell needs a terminal; `aenv start -d` starts a sandbox without one and prints its id");
    }
    let seconds = arguments.timeout.unwrap_or(config.sandbox.default_timeout_s);
    let labels = arguments.name.map(|name| ("name".to_owned(), name));
    let new = api::NewSandbox {
        template_id: arguments.template.clone(),
        timeout: Some(seconds.into()),
        metadata: Some(arguments.metadata.into_iter().chain(labels).collect()),
        env_vars: Some(arguments.env.into_iter().collect()),
        ..api::NewSandbox::default()
    };
    let sandbox = node.create_sandbox(&new).await.map_err(|error| {
        if is_not_found(&error) {
            return anyhow!(
                "there is no template {}; `aenv template ls` lists those there are, `aenv pull` makes one",
                arguments.template
            );
        }
        error.context(format!("start a sandbox from {}", arguments.template))
    })?;
    let id = &sandbox.sandbox_id;
    if arguments.detach {
        if json {
            output::json(&sandbox)?;
        } else {
            output::line(id)?;
        }
        return Ok(0);
    }
    output::note(&format!("sandbox {id}"));
    // Without a lifetime of the user's own, the sandbox lives as long as the shell.
    let renewal = arguments.timeout.is_none().then(|| tokio::spawn(renew(node.clone(), id.clone(), seconds)));
    let guest = Guest::new(node, id, sandbox.envd_access_token.clone(), arguments.user);
    let shell = ProcessConfig {
        cmd: "/agentenv/bin/sh".into(),
        args: vec!["-c".into(), SHELL.into()],
        envs: terminal_environment(true).into_iter().collect(),
        cwd: None,
    };
    let outcome = session::run(&guest, shell, true).await;
    if let Some(renewal) = renewal {
        renewal.abort();
    }
    if arguments.keep {
        output::note(&format!("sandbox {id} stays for {seconds} s; `aenv rm {id}` kills it"));
        return outcome;
    }
    match node.kill_sandbox(id).await {
        Ok(()) => {}
        // It reached its end by itself.
        Err(error) if is_not_found(&error) => {}
        Err(error) => output::note(&format!("aenv: sandbox {id} could not be killed: {error:#}")),
    }
    outcome
}

async fn renew(node: Node, id: String, seconds: u32) {
    loop {
        tokio::time::sleep(RENEWAL.min(Duration::from_secs(u64::from(seconds) / 3 + 1))).await;
        if let Err(error) = node.set_timeout(&id, seconds).await {
            tracing::debug!(%error, "the lifetime of the sandbox could not be renewed");
        }
    }
}
