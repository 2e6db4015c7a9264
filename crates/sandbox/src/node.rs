//! One host's sandboxes and templates.

mod disks;
mod pull;
mod recover;
mod requests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, RwLock, Semaphore, watch};

pub use pull::{PullEvent, PullProgress, PullRequest};
pub use requests::{CreateSandbox, NodeCounts, Route, SandboxInfo};

use crate::actor::{Handle, State};
use crate::store::Store;
use crate::{NodeConfig, NodeError, NodeTag, Parts, SandboxError, SandboxId, TemplateRecord};

/// One host's sandboxes and templates. Dropping it leaves the sandboxes running; see [`Node::stop`].
#[derive(Debug)]
pub struct Node {
    shared: Arc<Shared>,
}

/// What the node and its actors share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: NodeConfig,
    pub(crate) parts: Parts,
    pub(crate) store: Store,
    pub(crate) tag: NodeTag,
    pub(crate) stopping: watch::Sender<bool>,
    /// One for each sandbox the node may have.
    pub(crate) places: Arc<Semaphore>,
    /// Bounds how many sandboxes are made at a time; the waiting ones are bounded by the sandbox limit.
    pub(crate) create_turns: Semaphore,
    sandboxes: Mutex<HashMap<SandboxId, Handle>>,
    pull_turns: Arc<Semaphore>,
    /// Held for reading from the start of an import until its template is recorded: in between its layers are in use,
    /// but nothing says so.
    imports: Arc<RwLock<()>>,
    collection_wanted: Notify,
}

impl Shared {
    pub(crate) fn sandboxes(&self) -> MutexGuard<'_, HashMap<SandboxId, Handle>> {
        // The map is only inserted into and removed from under the lock: a panic elsewhere cannot leave it half changed.
        self.sandboxes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub(crate) fn forget(&self, id: &SandboxId) {
        self.sandboxes().remove(id);
    }

    pub(crate) fn collect_layers_soon(&self) {
        self.collection_wanted.notify_one();
    }
}

impl Node {
    /// Opens the durable state, takes over what an earlier node left, and removes what belongs to nobody.
    pub async fn start(config: NodeConfig, parts: Parts) -> Result<Self, NodeError> {
        recover::start(config, parts).await
    }

    /// The tag with which ids of this node begin.
    #[must_use]
    pub fn tag(&self) -> &NodeTag {
        &self.shared.tag
    }

    /// The settings it was started with.
    #[must_use]
    pub fn config(&self) -> &NodeConfig {
        &self.shared.config
    }

    /// Ends the actors: sandboxes that run are left running, half-made ones are undone. Gives up after `patience`; what is
    /// left then is finished when the node starts again.
    pub async fn stop(&self, patience: Duration) {
        self.shared.stopping.send_replace(true);
        let handles: Vec<Handle> = self.shared.sandboxes().values().cloned().collect();
        let ended = async {
            for mut handle in handles {
                // An actor that ends drops the sender.
                let _ = handle.state.wait_for(|state| *state == State::Ended).await;
            }
        };
        if tokio::time::timeout(patience, ended).await.is_err() {
            tracing::warn!("some sandboxes were still being made or removed when the node stopped");
        }
    }

    /// The template with this id or name; a name may end in `:default`.
    pub async fn template(&self, reference: &str) -> Result<Option<TemplateRecord>, SandboxError> {
        Ok(self.shared.store.template(template_key(reference).to_owned()).await?)
    }

    /// Every template, by name.
    pub async fn templates(&self) -> Result<Vec<TemplateRecord>, SandboxError> {
        Ok(self.shared.store.templates().await?)
    }

    /// Forgets a template and removes the layers that nothing uses any more. Sandboxes made of it live on. False when there
    /// is none.
    pub async fn remove_template(&self, reference: &str) -> Result<bool, SandboxError> {
        let removed = self.shared.store.delete_template(template_key(reference).to_owned()).await?;
        if removed {
            self.shared.collect_layers_soon();
        }
        Ok(removed)
    }
}

/// E2B's clients may write `name:default`, the tag that every build gets.
pub(crate) fn template_key(reference: &str) -> &str {
    reference.strip_suffix(":default").unwrap_or(reference)
}
