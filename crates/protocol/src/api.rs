//! JSON types of the node's HTTP interface: the E2B control plane, and the endpoints of our own under `/aenv/v1`.
//!
//! Names on the wire are E2B's (`sandboxID`, `memoryMB`, `allow_internet_access`), including its inconsistencies. Types
//! that travel from the server to a client can be read back, so that the command line and tests use the same ones.

mod node;
mod sandbox;
mod template;
mod timestamp;

pub use node::{NodeStatus, PullProgress, PullTemplate, PullTemplateEvent};
pub use sandbox::{
    ConnectSandbox, Lifecycle, ListedSandbox, NewSandbox, OnTimeout, RefreshSandbox, Sandbox, SandboxDetail,
    SandboxMetric, SandboxState, SetTimeout,
};
pub use template::{ImageDefaults, ListedTemplate, Template, TemplateAlias};
pub use timestamp::{Timestamp, TimestampError};

use serde::{Deserialize, Serialize};

/// Header that carries the API key.
pub const API_KEY_HEADER: &str = "x-api-key";
/// Header that names the sandbox of a data plane request.
pub const SANDBOX_ID_HEADER: &str = "e2b-sandbox-id";
/// Header that names the guest port of a data plane request.
pub const SANDBOX_PORT_HEADER: &str = "e2b-sandbox-port";
/// Response header with the token of the next page of a list; absent on the last page.
pub const NEXT_TOKEN_HEADER: &str = "x-next-token";
/// Response header that tells E2B's Python client whether repeating a failed request is harmless.
pub const SHOULD_RETRY_HEADER: &str = "should-retry";
/// Timeout in seconds of a sandbox made by `POST /sandboxes` without one.
pub const DEFAULT_TIMEOUT_V1_S: i64 = 15;
/// Timeout in seconds of a sandbox made by `POST /v2/sandboxes` without one.
pub const DEFAULT_TIMEOUT_V2_S: i64 = 300;

/// Body of every answer that is not a success.
///
/// E2B's JavaScript client decides by `code`, not by the HTTP status, so both are always the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Error {
    /// The HTTP status.
    pub code: u16,
    /// What failed, why, and what to do.
    pub message: String,
    /// Machine-readable reason, for some errors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}
