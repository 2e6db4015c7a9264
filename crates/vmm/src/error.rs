//! Errors of the drivers.

use std::path::PathBuf;

/// Why a machine could not be started, found or driven.
#[derive(Debug, thiserror::Error)]
pub enum VmmError {
    /// The monitor's program is missing or too old.
    #[error("{program} cannot be used: {reason}")]
    Program {
        /// Name or path of the program.
        program: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The configuration cannot work.
    #[error("machine configuration: {0}")]
    Config(String),
    /// The monitor ended or did not get ready. `console` holds what the guest and the monitor said last.
    #[error("machine {id} did not start: {reason}; last console lines:\n{console}")]
    Start {
        /// Machine id.
        id: String,
        /// What happened.
        reason: String,
        /// Last console and monitor output.
        console: String,
    },
    /// The monitor's process has ended.
    #[error("machine {id} is gone: its process has ended")]
    Gone {
        /// Machine id.
        id: String,
    },
    /// The monitor did not answer in time.
    #[error("machine {id}: {operation} took longer than {seconds} s")]
    Timeout {
        /// Machine id.
        id: String,
        /// What was asked.
        operation: &'static str,
        /// The limit.
        seconds: u64,
    },
    /// The monitor refused a command.
    #[error("machine {id}: {operation} refused: {reason}")]
    Refused {
        /// Machine id.
        id: String,
        /// What was asked.
        operation: String,
        /// The monitor's own words.
        reason: String,
    },
    /// Input or output with the host failed.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// The cause.
        source: std::io::Error,
    },
}

impl VmmError {
    /// How much of the console an error shows.
    pub(crate) const CONSOLE_BYTES: usize = 4096;

    /// For `map_err`: adds what was being done to an I/O error.
    pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let context = context.into();
        move |source| Self::Io { context, source }
    }
}
