//! What the guest daemon speaks: the messages of the E2B services `process.Process` and `filesystem.Filesystem`, and
//! the bodies of its plain HTTP endpoints. Field names and numbers are those of E2B's published clients.

mod control;
mod filesystem;
mod process;

pub use control::{InitRequest, Metrics, WrittenFile};
pub use filesystem::{
    EntryInfo, FileType, ListDirRequest, ListDirResponse, MakeDirRequest, MakeDirResponse, MoveRequest,
    MoveResponse, RemoveRequest, RemoveResponse, StatRequest, StatResponse,
};
pub use process::{
    CloseStdinRequest, ConnectRequest, Empty, EndEvent, EventMessage, ListRequest, ListResponse, Output,
    ProcessConfig, ProcessEvent, ProcessInfo, ProcessInput, ProcessSelector, Pty, PtySize, SendInputRequest,
    SendSignalRequest, Signal, StartEvent, StartRequest, UpdateRequest, append_output_event,
};

/// The version the daemon reports. Clients compare it and turn features on by it; `0.6.13` is the E2B daemon whose
/// behaviour we follow.
pub const ENVD_VERSION: &str = "0.6.13";

/// TCP port of the daemon in every guest.
pub const ENVD_PORT: u16 = 49983;

/// Path prefix of the process service.
pub const PROCESS_SERVICE: &str = "/process.Process/";
/// Path prefix of the file system service.
pub const FILESYSTEM_SERVICE: &str = "/filesystem.Filesystem/";
/// Request header with the sandbox' token.
pub const HEADER_ACCESS_TOKEN: &str = "x-access-token";
