//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// Sandboxes for agents: real virtual machines, ready in moments, driven by the E2B SDKs.
#[derive(Debug, Parser)]
#[command(name = "aenv", version, propagate_version = false, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// Configuration file [default: /etc/agentenv/config.toml]
    #[arg(long, global = true, env = "AENV_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print JSON even on a terminal
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a node: the HTTP interface, the storage daemon and the sandboxes of this machine
    Serve(ServeArguments),
    /// Make what guests boot from: kernel, initramfs and tools disk
    Setup,
    /// Say what this machine offers, what is used of it, and what is missing
    Doctor,
    /// Print the API key and the variables that point the E2B SDKs at this node
    Auth,
    /// Fetch an image and make a template of it
    Pull(PullArguments),
    /// List or remove templates
    Template {
        #[command(subcommand)]
        command: TemplateCommand,
    },
    /// Start a sandbox and open a shell in it
    Start(StartArguments),
    /// Run a command in a sandbox
    Exec(ExecArguments),
    /// Copy files between this machine and a sandbox
    Cp(CpArguments),
    /// List sandboxes
    Ls,
    /// Kill sandboxes
    Rm(RmArguments),
    /// Print the console of a sandbox
    Logs(LogsArguments),
    /// Look into overlaybd layers, and read disks made of them
    Layer(crate::command::layer::LayerArguments),
    /// Print the completion script for a shell
    Completion {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// The storage daemon; `aenv serve` starts it
    #[command(hide = true)]
    Storaged,
    /// Holds the FUSE mount of the storage daemon, which starts it
    #[command(hide = true)]
    FuseKeeper {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Unpacks one image layer; started by an import
    #[command(hide = true)]
    ImageUnpack {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Write a line to this descriptor when the node answers, and close it
    #[arg(long, value_name = "N")]
    pub(crate) ready_fd: Option<i32>,
}

#[derive(Debug, Args)]
pub(crate) struct PullArguments {
    /// REGISTRY/NAME:TAG, oci:DIRECTORY, docker-archive:FILE or rootfs:FILE.tar
    pub(crate) reference: String,
    /// Name of the template
    #[arg(long)]
    pub(crate) name: String,
    /// Size of the disk, such as 16G [default: the node's, 64G]
    #[arg(long, value_name = "SIZE", value_parser = crate::units::parse_size)]
    pub(crate) size: Option<u64>,
    /// Virtual processors of its sandboxes [default: the node's]
    #[arg(long, value_name = "N")]
    pub(crate) vcpus: Option<u32>,
    /// Memory of its sandboxes in MiB [default: the node's]
    #[arg(long, value_name = "MIB")]
    pub(crate) memory: Option<u32>,
    /// User at the registry; the password is read from standard input [default: Docker's credential file]
    #[arg(long)]
    pub(crate) username: Option<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TemplateCommand {
    /// List templates
    Ls,
    /// Remove templates; sandboxes made of them live on
    Rm {
        /// Name or id
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub(crate) struct StartArguments {
    /// Name or id of a template
    pub(crate) template: String,
    /// Print the sandbox's id and leave it running
    #[arg(short, long)]
    pub(crate) detach: bool,
    /// Seconds until the sandbox is killed [default: 300, and as long as the shell is open]
    #[arg(long, value_name = "SECONDS")]
    pub(crate) timeout: Option<u32>,
    /// Environment of every process in the sandbox
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = crate::units::parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Label of the sandbox
    #[arg(long, value_name = "KEY=VALUE", value_parser = crate::units::parse_pair)]
    pub(crate) metadata: Vec<(String, String)>,
    /// Short for --metadata name=NAME
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// User of the shell
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Do not kill the sandbox when the shell ends
    #[arg(long)]
    pub(crate) keep: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExecArguments {
    /// The sandbox
    pub(crate) id: String,
    /// User [default: the sandbox's]
    #[arg(short, long)]
    pub(crate) user: Option<String>,
    /// Working directory
    #[arg(short = 'w', long)]
    pub(crate) cwd: Option<String>,
    /// Environment
    #[arg(short, long, value_name = "KEY=VALUE", value_parser = crate::units::parse_pair)]
    pub(crate) env: Vec<(String, String)>,
    /// Give the command a terminal
    #[arg(short, long)]
    pub(crate) tty: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CpArguments {
    /// ID:PATH in a sandbox, or a local path (write ./a:b for one with a colon)
    pub(crate) source: String,
    /// ID:PATH in a sandbox, or a local path
    pub(crate) destination: String,
    /// User in the sandbox [default: the sandbox's]
    #[arg(short, long)]
    pub(crate) user: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RmArguments {
    /// The sandboxes
    #[arg(value_name = "ID", required_unless_present = "all", conflicts_with = "all")]
    pub(crate) ids: Vec<String>,
    /// Kill every sandbox of the node
    #[arg(long)]
    pub(crate) all: bool,
}

#[derive(Debug, Args)]
pub(crate) struct LogsArguments {
    /// The sandbox
    pub(crate) id: String,
    /// Go on until the sandbox ends
    #[arg(short, long)]
    pub(crate) follow: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn what_follows_the_command_of_exec_belongs_to_it() {
        let cli = Cli::try_parse_from(["aenv", "exec", "i1", "--user", "root", "--", "ls", "-l", "--json"])
            .unwrap();
        let Command::Exec(exec) = cli.command else { panic!("{cli:?}") };
        assert_eq!(exec.command, ["ls", "-l", "--json"]);
        assert_eq!(exec.user.as_deref(), Some("root"));
        assert!(!cli.json);
        let cli = Cli::try_parse_from(["aenv", "exec", "i1", "ls", "-l"]).unwrap();
        let Command::Exec(exec) = cli.command else { panic!("{cli:?}") };
        assert_eq!(exec.command, ["ls", "-l"]);
    }

    #[test]
    fn rm_wants_either_ids_or_all() {
        for wrong in [&["aenv", "rm"][..], &["aenv", "rm", "--all", "i1"]] {
            assert!(Cli::try_parse_from(wrong).is_err(), "{wrong:?}");
        }
        assert!(Cli::try_parse_from(["aenv", "rm", "--all"]).is_ok());
    }
}
