//! The aenv binary: command line, host roles, configuration, doctor.

mod cli;
mod client;
mod command;
mod config;
mod doctor;
mod key_file;
mod logging;
mod output;
mod role;
mod serve;
mod session;
mod terminal;
mod units;

use std::io::ErrorKind;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::{CommandFactory, Parser};

use cli::{Cli, Command, TemplateCommand};
use client::Node;
use config::Config;
use output::Format;

/// What a shell answers for a program ended by SIGPIPE.
const EXIT_BROKEN_PIPE: u8 = 141;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::from(EXIT_BROKEN_PIPE),
        Err(error) => {
            output::note(&format!("aenv: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        // Roles first: they get everything by their arguments, and must have no second thread.
        Command::FuseKeeper { arguments } => return role::fuse_keeper(arguments),
        Command::ImageUnpack { .. } => return Ok(image::unpack::child_main()),
        Command::Completion { shell } => return completion(shell),
        Command::Layer(arguments) => return command::layer::run(arguments).map(|()| ExitCode::SUCCESS),
        _ => {}
    }
    let config = Config::load(cli.config.as_deref(), |name| std::env::var(name).ok())?;
    let done = |()| ExitCode::SUCCESS;
    match cli.command {
        Command::Serve(arguments) => {
            // Before this process opens anything that stays open.
            let ready = arguments.ready_fd.map(serve::take_descriptor).transpose()?;
            logging::start("info");
            runtime()?.block_on(serve::run(config, cli.config, ready)).map(done)
        }
        Command::Storaged => {
            logging::start("info");
            role::storaged(&config).map(done)
        }
        command => {
            logging::start("warn");
            match command {
                Command::Setup => command::setup::run(&config).map(done),
                Command::Auth => command::auth::run(&config, cli.json).map(done),
                Command::Doctor => doctor::run(&config, &runtime()?, Format::choose(cli.json)),
                command => client_command(command, &config, cli.json),
            }
        }
    }
}

/// Everything that asks a node.
fn client_command(command: Command, config: &Config, json: bool) -> anyhow::Result<ExitCode> {
    let format = Format::choose(json);
    let node = Node::from_environment(config, |name| std::env::var(name).ok())?;
    let runtime = runtime()?;
    let outcome = runtime.block_on(async {
        match command {
            Command::Pull(arguments) => command::pull::run(&node, arguments, format).await.map(|()| 0),
            Command::Template { command: TemplateCommand::Ls } => {
                command::template::list(&node, format).await.map(|()| 0)
            }
            Command::Template { command: TemplateCommand::Rm { names } } => {
                command::template::remove(&node, names).await.map(|()| 0)
            }
            Command::Start(arguments) => command::start::run(&node, config, arguments, json).await,
            Command::Exec(arguments) => command::exec::run(&node, arguments).await,
            Command::Cp(arguments) => command::cp::run(&node, arguments).await.map(|()| 0),
            Command::Ls => command::ls::run(&node, format).await.map(|()| 0),
            Command::Rm(arguments) => command::rm::run(&node, arguments).await.map(|()| 0),
            Command::Logs(arguments) => command::logs::run(&node, arguments).await.map(|()| 0),
            // `run` has taken the others.
            _ => Ok(0),
        }
    });
    // A thread that reads standard input cannot be stopped, and must not be waited for.
    runtime.shutdown_timeout(Duration::ZERO);
    let code = outcome?;
    Ok(ExitCode::from(u8::try_from(code.clamp(0, 255)).unwrap_or(u8::MAX)))
}

fn completion(shell: clap_complete::Shell) -> anyhow::Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "aenv", &mut script);
    std::io::Write::write_all(&mut std::io::stdout(), &script).context("write to standard output")?;
    Ok(ExitCode::SUCCESS)
}

/// Whoever speaks TLS (registries, a node behind a proxy) takes the provider of the process.
pub(crate) fn use_tls_provider() {
    // Fails when there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    use_tls_provider();
    tokio::runtime::Runtime::new().context("start the asynchronous runtime")
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|cause| cause.kind() == ErrorKind::BrokenPipe)
}
