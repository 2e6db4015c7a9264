//! Where log lines go and which.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Writes log lines to standard error: those that `AENV_LOG` lets through (`debug`, `warn,sandbox=trace`), or `default`;
/// as JSON when `AENV_LOG_FORMAT=json`.
pub(crate) fn start(default: &str) {
    let wanted = std::env::var("AENV_LOG").ok().filter(|text| !text.is_empty());
    let (filter, complaint) = match wanted.as_deref().map(EnvFilter::try_new) {
        Some(Ok(filter)) => (filter, None),
        Some(Err(error)) => (EnvFilter::new(default), Some(error)),
        None => (EnvFilter::new(default), None),
    };
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let started = if std::env::var("AENV_LOG_FORMAT").is_ok_and(|format| format == "json") {
        lines.json().try_init()
    } else {
        lines.try_init()
    };
    // A second call, in tests, keeps the first one's settings.
    drop(started);
    if let Some(error) = complaint {
        tracing::warn!(%error, "AENV_LOG cannot be read; logging at its default, {default}");
    }
}
