//! Errors of network slots.

use std::io;

/// Why a slot could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Every slot of the configured range is in use.
    #[error("all {limit} network slots are in use; kill sandboxes or configure a larger address range")]
    Exhausted {
        /// Size of the range.
        limit: u32,
    },
    /// The configuration cannot work.
    #[error("network configuration: {0}")]
    Config(String),
    /// A kernel interface or a tool refused.
    #[error("{operation}: {reason}")]
    Operation {
        /// What was being done.
        operation: String,
        /// What came back, and what to do about it where that is known.
        reason: String,
    },
    /// Input or output failed.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// The cause.
        source: io::Error,
    },
}

impl NetworkError {
    /// Wraps a failed system call, naming the right that is missing when that is the cause.
    pub(crate) fn io(context: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let (context, source) = (context.into(), source.into());
        if source.kind() == io::ErrorKind::PermissionDenied {
            return Self::Operation {
                operation: context,
                reason: format!("{source}; network slots need root (CAP_NET_ADMIN and CAP_SYS_ADMIN)"),
            };
        }
        Self::Io { context, source }
    }
}
