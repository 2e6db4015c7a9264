//! Sandbox lifecycle: one actor per sandbox, durable records, templates, adoption after a restart.
//!
//! A [`Node`] owns everything on one host. It keeps a durable record of each sandbox in SQLite and gives each to one
//! actor, the only place that changes it. A record is written before a step that leaves something on the host and after
//! it, so that a node that starts again knows what to adopt, what to finish and what to undo.
//!
//! ```text
//!            create                     envd answered
//!   (none) ─────────▶ creating ───────────────────────▶ running
//!                        │ failed, killed, deadline        │ killed, timeout, machine ended
//!                        ▼                                 ▼
//!                     killing ◀────────────────────────────┘
//!                        │ machine, device, network slot and directories are gone
//!                        ▼
//!                     (none)
//! ```
//!
//! Only running sandboxes are shown to clients. Kill works in every state and needs no place in a queue.

mod actor;
mod clock;
mod config;
mod console;
mod error;
mod guest;
mod id;
mod machine;
mod network;
mod node;
mod random;
mod record;
mod storage;
mod store;

pub use clock::{Clock, SystemClock};
pub use config::{GuestFiles, NodeConfig, Parts};
pub use error::{NodeError, SandboxError};
pub use guest::{GuestDaemon, GuestError, HttpGuestDaemon};
pub use id::{NodeTag, SandboxId};
pub use machine::FindMachine;
pub use network::Networks;
pub use node::{CreateSandbox, Node, NodeCounts, PullEvent, PullProgress, PullRequest, Route, SandboxInfo};
pub use random::{OsRandomness, Randomness};
pub use record::{ImageDefaults, TemplateRecord};
pub use storage::{Device, DeviceRequest, ImportEvent, ImportedImage, Storage, StorageError, StorageStatus};
pub use store::StoreError;
