//! Downloads from fixed addresses. Their digest is checked by the caller, so the transport need not be trusted.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use crate::AssetsError;

const CONNECT_LIMIT: Duration = Duration::from_secs(30);
/// A server that sends nothing for this long has failed.
const STALL_LIMIT: Duration = Duration::from_secs(60);
const TOTAL_LIMIT: Duration = Duration::from_secs(30 * 60);
/// Kernel packages are about 35 MB; what is much larger is something else.
const MAX_BYTES: u64 = 512 << 20;

/// Writes what is at `url` to `path`.
pub(super) fn download(url: &str, path: &Path) -> Result<(), AssetsError> {
    let failed = |reason: String| AssetsError::Source { package: url.to_owned(), reason };
    match url.split_once("://") {
        Some(("file", source)) => std::fs::copy(source, path)
            .map(drop)
            .map_err(|error| failed(format!("cannot be copied: {error}"))),
        Some(("http" | "https", _)) => {
            // A thread of its own, because the caller may already be inside a runtime.
            std::thread::scope(|scope| match scope.spawn(|| fetch(url, path)).join() {
                Ok(result) => result.map_err(failed),
                Err(_) => Err(failed("the download ended unexpectedly".to_owned())),
            })
        }
        _ => Err(failed("not an http://, https:// or file:// address; correct the configuration".to_owned())),
    }
}

fn fetch(url: &str, path: &Path) -> Result<(), String> {
    // The only provider compiled in; an error means that the program has already chosen it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    runtime.block_on(async {
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(STALL_LIMIT)
            .timeout(TOTAL_LIMIT)
            .build()
            .map_err(describe)?;
        let mut response =
            client.get(url).send().await.map_err(describe)?.error_for_status().map_err(describe)?;
        let mut file = File::create(path).map_err(|error| error.to_string())?;
        let mut written = 0;
        while let Some(chunk) = response.chunk().await.map_err(describe)? {
            written += chunk.len() as u64;
            if written > MAX_BYTES {
                return Err(format!("larger than {MAX_BYTES} bytes, which no kernel package is"));
            }
            file.write_all(&chunk).map_err(|error| error.to_string())?;
        }
        Ok(())
    })
}

/// The error with its causes: reqwest's own text names only the outermost one.
fn describe(error: reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(inner) = cause {
        text.push_str(": ");
        text.push_str(&inner.to_string());
        cause = inner.source();
    }
    text
}
