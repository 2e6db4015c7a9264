//! Where everything is, and how other roles are started.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// What the daemon has to know. [`Config::new`] gives the usual layout; every field may be changed.
#[derive(Debug, Clone)]
pub struct Config {
    /// Device records, the inode counter and scratch disks.
    pub state_directory: PathBuf,
    /// Converted image layers.
    pub layers_directory: PathBuf,
    /// Directory on which devices appear.
    pub mount_point: PathBuf,
    /// Socket of the gRPC service.
    pub socket: PathBuf,
    /// Socket of the keeper.
    pub keeper_socket: PathBuf,
    /// Command that runs `blockdev::fuse::keeper::run`; its arguments are appended.
    pub keeper_command: Vec<OsString>,
    /// Command that runs `image`'s unpacking child; its arguments are appended.
    pub unpack_command: Vec<OsString>,
    /// Threads that answer requests to devices; `None` chooses by the number of processors.
    pub threads: Option<u16>,
    /// Size of an imported image's file system when the request names none.
    pub default_virtual_size_bytes: u64,
    /// Registries that are spoken to without TLS, as `host:port`.
    pub insecure_registries: Vec<String>,
    /// Docker's credential file, asked when a request brings no credentials.
    pub docker_config: Option<PathBuf>,
}

impl Config {
    /// The usual layout. `program` is the command line of the binary whose roles `fuse-keeper` and `image-unpack` are
    /// started, normally its own path.
    pub fn new(data_directory: &Path, runtime_directory: &Path, program: &[OsString]) -> Self {
        let role = |name: &str| {
            let mut command = program.to_vec();
            command.push(OsStr::new(name).to_owned());
            command
        };
        Self {
            state_directory: data_directory.join("storaged"),
            layers_directory: data_directory.join("layers"),
            mount_point: runtime_directory.join("devices"),
            socket: runtime_directory.join("storaged.sock"),
            keeper_socket: runtime_directory.join("keeper.sock"),
            keeper_command: role("fuse-keeper"),
            unpack_command: role("image-unpack"),
            threads: None,
            default_virtual_size_bytes: 64 << 30,
            insecure_registries: Vec::new(),
            docker_config: None,
        }
    }

    pub(crate) fn records_directory(&self) -> PathBuf {
        self.state_directory.join("devices")
    }

    pub(crate) fn scratch_directory(&self) -> PathBuf {
        self.state_directory.join("scratch")
    }
}
