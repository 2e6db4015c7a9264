//! Errors of setup and of the check at start.

use std::path::PathBuf;

/// Why the assets could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum AssetsError {
    /// There is no manifest: setup has never finished here.
    #[error("no guest assets in {directory}: run `aenv setup`")]
    NotPrepared {
        /// The assets directory.
        directory: PathBuf,
    },
    /// The manifest cannot be read as one.
    #[error("the manifest {path} is not usable ({reason}): run `aenv setup`")]
    BadManifest {
        /// The manifest.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// A file the manifest names is gone.
    #[error("the {what} {path} is missing: run `aenv setup`")]
    Missing {
        /// Kernel, initramfs or tools disk.
        what: &'static str,
        /// Where it should be.
        path: PathBuf,
    },
    /// A file is not the one that was made.
    #[error("the {what} {path} is damaged ({reason}): run `aenv setup`")]
    Damaged {
        /// Kernel, initramfs or tools disk.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// How it differs.
        reason: String,
    },
    /// A guest program cannot run in a guest.
    #[error("guest program {path} cannot be used: {reason}")]
    GuestProgram {
        /// The program.
        path: PathBuf,
        /// What is wrong and what to do.
        reason: String,
    },
    /// No source has the package.
    #[error("package {package}: {reason}")]
    Source {
        /// What was looked for.
        package: String,
        /// What happened and what to do.
        reason: String,
    },
    /// A package or a file in it is not what it should be.
    #[error("{what} is not as expected: {reason}")]
    Format {
        /// Which one.
        what: String,
        /// How it differs.
        reason: String,
    },
    /// A tool of the host is missing, failed or did not end.
    #[error("{command}: {reason}")]
    Command {
        /// The command line.
        command: String,
        /// What happened and what to do.
        reason: String,
    },
    /// Another setup works on the same directory.
    #[error("another setup is working in {directory}: wait for it to end")]
    Busy {
        /// The assets directory.
        directory: PathBuf,
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

impl AssetsError {
    /// For `map_err`: adds what was being done to an I/O error.
    pub(crate) fn io(context: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let context = context.into();
        move |source| Self::Io { context, source }
    }

    /// For bytes from outside that are not as their format says.
    pub(crate) fn format(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Format { what: what.into(), reason: reason.into() }
    }
}
