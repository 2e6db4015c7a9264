//! Errors of the lifecycle.

use std::path::PathBuf;

use crate::{SandboxId, StorageError, StoreError};

/// Why a request about a sandbox or template was not fulfilled.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    /// There is no such running sandbox.
    #[error("sandbox {0} was not found")]
    NotFound(String),
    /// There is no such template.
    #[error("template {0} was not found; pull an image under this name first")]
    TemplateNotFound(String),
    /// The request cannot be fulfilled as it is.
    #[error("{0}")]
    Invalid(String),
    /// The node is full.
    #[error("this node runs its limit of {limit} sandboxes; kill some or try again later")]
    Capacity {
        /// The configured limit.
        limit: u32,
    },
    /// Too many sandboxes are being made; nothing was done for this one.
    #[error(
        "{limit} sandboxes are being started at a time, and this one's turn did not come within {seconds} s; try again later"
    )]
    NoTurn {
        /// How many are made at a time.
        limit: u32,
        /// How long it waited.
        seconds: u64,
    },
    /// Too many images are being pulled.
    #[error("{limit} images are being pulled already; try again when one is done")]
    PullCapacity {
        /// How many may be.
        limit: u32,
    },
    /// The sandbox could not be made; what was made of it is gone.
    #[error("sandbox {id} could not be started: {reason}")]
    Create {
        /// The id it would have had.
        id: SandboxId,
        /// What failed, with the last lines of the guest's console where there are any.
        reason: String,
    },
    /// The sandbox was killed before it was ready.
    #[error("sandbox {0} was killed while it was being started")]
    KilledWhileCreating(SandboxId),
    /// The removal takes longer than requests wait. It goes on.
    #[error("sandbox {id} is being removed, which takes longer than {seconds} s; it will not come back")]
    StillKilling {
        /// The sandbox.
        id: SandboxId,
        /// How long this request waited.
        seconds: u64,
    },
    /// The guest's daemon did not answer.
    #[error("sandbox {id}: {reason}")]
    Guest {
        /// The sandbox.
        id: SandboxId,
        /// What happened.
        reason: String,
    },
    /// Too many requests wait for this sandbox.
    #[error("sandbox {0} has too many requests waiting; try again later")]
    Busy(SandboxId),
    /// The node is going down.
    #[error("the node is stopping; try again when it is back")]
    Stopping,
    /// Durable state could not be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The storage daemon did not do its part.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Input or output failed.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// The cause.
        source: std::io::Error,
    },
}

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// A directory cannot be made or used.
    #[error("directory {path} cannot be used: {source}")]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The configured tag is not the one in the database.
    #[error(
        "the node's tag is configured as {configured}, but its sandboxes were made as {stored}; configure {stored}"
    )]
    Tag {
        /// From the configuration.
        configured: String,
        /// From the database.
        stored: String,
    },
    /// No randomness from the kernel.
    #[error("no random bytes: {0}")]
    Randomness(std::io::Error),
    /// Durable state cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The storage daemon is needed to find out which sandboxes are still whole.
    #[error(transparent)]
    Storage(#[from] StorageError),
}
