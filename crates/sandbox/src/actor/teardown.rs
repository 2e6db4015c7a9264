//! Removing a sandbox: whatever there is of it, in the order in which nothing can be left behind.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use super::{Actor, EndReason, State, requested};
use crate::console;

/// First and longest pause before a step of a removal is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The node stops; the next one finishes the removal.
struct Stopping;

impl Actor {
    pub(super) async fn end(&mut self, reason: EndReason) {
        let was_shown = matches!(*self.state.borrow(), State::Running(_));
        if was_shown && reason == EndReason::NodeStops {
            tracing::debug!("left running");
            return;
        }
        match reason {
            EndReason::Killed | EndReason::Expired => tracing::info!(%reason, "ending"),
            _ => tracing::warn!(%reason, "ending"),
        }
        // From here on nobody is led to the sandbox, and proxied streams end.
        self.state.send_replace(State::Killing);
        if self.remove(&reason).await.is_err() {
            tracing::info!("the removal will be finished when the node starts again");
            return;
        }
        self.shared.forget(&self.id);
        self.state.send_replace(State::Ended);
        tracing::info!("ended");
    }

    async fn remove(&mut self, reason: &EndReason) -> Result<(), Stopping> {
        // Without this record a restart finds a sandbox that should run but does not, and removes it just the same.
        if let Err(error) = self.shared.store.set_killing(&self.id).await {
            tracing::warn!(%error, "the removal could not be recorded");
        }
        if let Some(machine) = self.resources.machine.clone() {
            // The machine goes first: it writes to the disk and uses the network.
            self.until_done("ending the machine", || machine.kill()).await?;
        }
        let (device, network) = tokio::join!(self.close_device(), self.release_network());
        device?;
        network?;
        self.remove_files(reason).await?;
        let unused = self
            .until_done("forgetting the record", || {
                self.shared.store.delete_sandbox(&self.id, &self.spec.build_id)
            })
            .await?;
        if unused {
            self.shared.collect_layers_soon();
        }
        Ok(())
    }

    async fn close_device(&self) -> Result<(), Stopping> {
        self.until_done("closing the disk", || self.shared.parts.storage.close_device(self.id.as_str())).await
    }

    async fn release_network(&self) -> Result<(), Stopping> {
        let Some(slot) = &self.resources.slot else { return Ok(()) };
        self.until_done("releasing the network", || self.shared.parts.networks.release(slot)).await
    }

    async fn remove_files(&self, reason: &EndReason) -> Result<(), Stopping> {
        // After any other reason the client knows what happened, or has the console's end in its error.
        let untold = matches!(reason, EndReason::MachineEnded | EndReason::DiskLost(_) | EndReason::Lost(_));
        let keep = untold.then(|| reason.to_string());
        let (paths, retention) = (self.paths.clone(), self.shared.config.console_retention);
        let consoles = self.shared.config.consoles_directory();
        let kept = tokio::task::spawn_blocking(move || {
            if let Some(reason) = keep {
                console::keep(&paths.console_log, &paths.kept_console, &reason)?;
            }
            console::prune(&consoles, retention, std::time::SystemTime::now())
        });
        match kept.await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "the console could not be kept"),
            Err(error) => tracing::warn!(%error, "the console could not be kept"),
        }
        for directory in [&self.paths.data, &self.paths.runtime] {
            self.until_done("removing its files", || remove_directory(directory.clone())).await?;
        }
        Ok(())
    }

    /// Repeats a step of a removal until it succeeds: the removal is complete or it goes on.
    async fn until_done<T, E, F>(
        &self,
        step: &'static str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Stopping>
    where
        E: Display,
        F: Future<Output = Result<T, E>>,
    {
        let mut pause = RETRY.0;
        let mut stopping = self.stopping.clone();
        loop {
            match attempt().await {
                Ok(value) => return Ok(value),
                Err(error) => tracing::warn!(step, %error, "a step of the removal failed and is tried again"),
            }
            tokio::select! {
                () = requested(&mut stopping) => return Err(Stopping),
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY.1),
            }
        }
    }
}

async fn remove_directory(path: PathBuf) -> io::Result<()> {
    match tokio::fs::remove_dir_all(&path).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(io::Error::new(error.kind(), format!("{}: {error}", path.display())))
        }
        _ => Ok(()),
    }
}
