//! Copies of one file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use reqwest::{Body, Response};
use tokio::fs::File;
use tokio::io::AsyncWriteExt;

use super::directory;
use crate::client::SILENCE_TIMEOUT;
use crate::client::guest::Guest;

pub(super) async fn send(guest: &Guest, source: &Path, target: &str) -> anyhow::Result<()> {
    let context = || format!("cannot read {}", source.display());
    let file = File::open(source).await.with_context(context)?;
    let metadata = file.metadata().await.with_context(context)?;
    if metadata.is_file() {
        guest.write_file(target, metadata.len(), Body::from(file)).await?;
    } else {
        // A pipe's length is only known at its end.
        let content = tokio::fs::read(source).await.with_context(context)?;
        guest.write_file(target, content.len() as u64, Body::from(content)).await?;
    }
    let mode = metadata.permissions().mode() & 0o777;
    if mode & 0o111 == 0 {
        return Ok(());
    }
    // `/files` makes every file 0644; a program has to stay one.
    let mode = format!("{mode:o}");
    directory::busybox(guest, &["chmod", &mode, target]).await
}

pub(super) async fn fetch(guest: &Guest, source: &str, target: &Path) -> anyhow::Result<()> {
    let response = guest.read_file(source).await?;
    if target == Path::new("-") {
        return receive(response, &mut tokio::io::stdout(), "standard output").await;
    }
    let shown = target.display().to_string();
    // Neither a device nor a pipe can be replaced by a file of the same name.
    if target.exists() && !target.is_file() {
        let mut file = File::options()
            .write(true)
            .open(target)
            .await
            .with_context(|| format!("cannot write to {shown}"))?;
        return receive(response, &mut file, &shown).await;
    }
    // An interrupted copy must not look like a whole one.
    let partial = PathBuf::from(format!("{shown}.aenv-{}", std::process::id()));
    let mut file = File::create(&partial).await.with_context(|| format!("cannot create {shown}"))?;
    let outcome = receive(response, &mut file, &shown).await;
    drop(file);
    let outcome = match outcome {
        Ok(()) => std::fs::rename(&partial, target).with_context(|| format!("cannot create {shown}")),
        Err(error) => Err(error),
    };
    if outcome.is_err() {
        let _ = std::fs::remove_file(&partial);
    }
    outcome
}

async fn receive(
    mut response: Response,
    target: &mut (impl AsyncWriteExt + Unpin),
    name: &str,
) -> anyhow::Result<()> {
    let write = || format!("cannot write to {name}");
    loop {
        let chunk = tokio::time::timeout(SILENCE_TIMEOUT, response.chunk())
            .await
            .map_err(|_| anyhow!("nothing came from the sandbox for {} s", SILENCE_TIMEOUT.as_secs()))?
            .context("the connection to the sandbox broke")?;
        let Some(chunk) = chunk else { break };
        target.write_all(&chunk).await.with_context(write)?;
    }
    target.flush().await.with_context(write)
}
