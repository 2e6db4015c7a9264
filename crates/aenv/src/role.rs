//! The host roles that run as processes of their own.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::Config;

/// This very program, also when its file was replaced since it was started.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// Command line of a role of this program, for a child process.
pub(crate) fn command(config_file: Option<&Path>, role: &str) -> anyhow::Result<Vec<OsString>> {
    let mut command = vec![OWN_PROGRAM.into()];
    if let Some(path) = config_file {
        let path = std::path::absolute(path).with_context(|| format!("resolve {}", path.display()))?;
        command.extend(["--config".into(), path.into()]);
    }
    command.push(role.into());
    Ok(command)
}

/// `aenv fuse-keeper`
pub(crate) fn fuse_keeper(arguments: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let config = blockdev::fuse::keeper::KeeperConfig::from_arguments(arguments)?;
    blockdev::fuse::keeper::run(&config)?;
    Ok(ExitCode::SUCCESS)
}

/// `aenv storaged`
pub(crate) fn storaged(config: &Config) -> anyhow::Result<()> {
    // A terminal's signals are for the node. Fails for a process that leads its group already, as under a supervisor.
    let _ = rustix::process::setsid();
    crate::runtime()?.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for signals")?;
        let stop = async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        storaged::run(storage_config(config), stop).await.context("storage daemon")
    })
}

/// The storage daemon's view of the configuration.
pub(crate) fn storage_config(config: &Config) -> storaged::Config {
    let mut storage = storaged::Config::new(&config.data_dir, &config.runtime_dir, &[OWN_PROGRAM.into()]);
    storage.default_virtual_size_bytes = config.storage.virtual_size_gib << 30;
    storage.insecure_registries.clone_from(&config.registry.insecure);
    storage.docker_config.clone_from(&config.registry.docker_config);
    storage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_gets_the_configuration_of_its_parent() {
        let command = command(Some(Path::new("/etc/x.toml")), "storaged").unwrap();
        assert_eq!(command, ["/proc/self/exe", "--config", "/etc/x.toml", "storaged"]);
        assert_eq!(super::command(None, "storaged").unwrap(), ["/proc/self/exe", "storaged"]);
    }
}
