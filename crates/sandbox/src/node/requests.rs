//! Requests of clients about sandboxes.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use protocol::api::Timestamp;
use protocol::envd::Metrics;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use super::{Node, Shared, template_key};
use crate::actor::{self, Extension, Handle, Live, Resources, SetEnd, Start, State};
use crate::record::{SandboxSpec, TemplateRecord};
use crate::{SandboxError, SandboxId, console, random};

/// Most bytes of metadata, names and values together.
const METADATA_BYTES_MAX: usize = 64 * 1024;
/// Most bytes of environment variables, names and values together; they must fit the guest daemon's request.
const ENV_BYTES_MAX: usize = 256 * 1024;
/// Longest wait for an actor to answer; it may be writing to a slow disk.
const ACTOR_ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// What a client wants a sandbox to be.
#[derive(Clone, PartialEq, Eq)]
pub struct CreateSandbox {
    /// Template id or name.
    pub template: String,
    /// From ready to its end.
    pub timeout: Duration,
    /// The user's own labels.
    pub metadata: BTreeMap<String, String>,
    /// Environment of its processes, over the image's.
    pub env: BTreeMap<String, String>,
}

impl std::fmt::Debug for CreateSandbox {
    /// Leaves out metadata and environment: they are users' secrets.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("CreateSandbox")
            .field("template", &self.template)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A running sandbox.
#[derive(Clone, PartialEq, Eq)]
pub struct SandboxInfo {
    /// Its id.
    pub id: SandboxId,
    /// Template it was made from; may be gone since.
    pub template_id: String,
    /// Name of the template.
    pub template_name: String,
    /// The user's own labels.
    pub metadata: BTreeMap<String, String>,
    /// Virtual processors.
    pub vcpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Size of its disk in bytes.
    pub virtual_size_bytes: u64,
    /// Token for the guest daemon.
    pub access_token: String,
    /// Version of the guest daemon.
    pub envd_version: String,
    /// When it became ready.
    pub started_at: Timestamp,
    /// When it ends.
    pub end_at: Timestamp,
}

impl std::fmt::Debug for SandboxInfo {
    /// Leaves out token and metadata.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("SandboxInfo")
            .field("id", &self.id)
            .field("template_name", &self.template_name)
            .field("started_at", &self.started_at)
            .field("end_at", &self.end_at)
            .finish_non_exhaustive()
    }
}

/// The way into a running sandbox.
#[derive(Debug, Clone)]
pub struct Route {
    /// The sandbox.
    pub id: SandboxId,
    /// Address at which every port of the guest is reached from the host.
    pub guest: Ipv4Addr,
    state: watch::Receiver<State>,
}

impl Route {
    /// Waits until the sandbox no longer runs. Streams into it must end then.
    pub async fn ended(&self) {
        let mut state = self.state.clone();
        // An actor that is gone while its sandbox is left running belongs to a node that stops.
        let _ = state.wait_for(|state| !matches!(state, State::Running(_))).await;
    }
}

/// How many sandboxes a node has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeCounts {
    /// Being made.
    pub creating: u32,
    /// Running.
    pub running: u32,
    /// Being removed.
    pub killing: u32,
}

impl Node {
    /// Makes a sandbox; returns when its guest daemon answers. It is made even if the caller goes away.
    pub async fn create(&self, request: CreateSandbox) -> Result<SandboxInfo, SandboxError> {
        self.check_timeout(request.timeout)?;
        if request.timeout.is_zero() {
            return Err(SandboxError::Invalid("timeout must be at least 1 second".to_owned()));
        }
        check_metadata(&request.metadata)?;
        check_env(&request.env)?;
        // On a task of its own: if the caller went away between the record and the actor, the record would have no owner.
        let shared = self.shared.clone();
        let (handle, reply) = tokio::spawn(async move { begin(&shared, request).await })
            .await
            .map_err(|_| SandboxError::Stopping)??;
        let live = reply.await.map_err(|_| SandboxError::Stopping)??;
        Ok(info(&handle, live))
    }

    /// A running sandbox.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<SandboxInfo> {
        let handle = self.handle(id)?;
        Some(info(&handle, handle.live()?))
    }

    /// Every running sandbox, newest first.
    #[must_use]
    pub fn list(&self) -> Vec<SandboxInfo> {
        let handles: Vec<Handle> = self.shared.sandboxes().values().cloned().collect();
        let mut list: Vec<_> =
            handles.iter().filter_map(|handle| Some(info(handle, handle.live()?))).collect();
        list.sort_by(|left, right| (right.started_at, &right.id).cmp(&(left.started_at, &left.id)));
        list
    }

    /// Lets a sandbox live at least `timeout` from now.
    pub async fn extend(&self, id: &str, timeout: Duration) -> Result<SandboxInfo, SandboxError> {
        self.set_end(id, timeout, Extension::AtLeast).await
    }

    /// Lets a sandbox end `timeout` from now; at once when that is zero.
    pub async fn set_timeout(&self, id: &str, timeout: Duration) -> Result<SandboxInfo, SandboxError> {
        self.set_end(id, timeout, Extension::Exactly).await
    }

    /// Removes a sandbox in whatever state it is. Returns when nothing of it is left.
    pub async fn kill(&self, id: &str) -> Result<(), SandboxError> {
        let mut handle = self.handle(id).ok_or_else(|| SandboxError::NotFound(id.to_owned()))?;
        handle.kill();
        let wait = self.shared.config.kill_wait;
        match tokio::time::timeout(wait, handle.state.wait_for(|state| *state == State::Ended)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(SandboxError::Stopping),
            Err(_) => Err(SandboxError::StillKilling { id: handle.id, seconds: wait.as_secs() }),
        }
    }

    /// The way into a running sandbox.
    #[must_use]
    pub fn route(&self, id: &str) -> Option<Route> {
        let handle = self.handle(id)?;
        let live = handle.live()?;
        Some(Route { id: handle.id, guest: live.guest, state: handle.state })
    }

    /// The guest's use of resources, now.
    pub async fn metrics(&self, id: &str) -> Result<Metrics, SandboxError> {
        let handle = self.handle(id).ok_or_else(|| SandboxError::NotFound(id.to_owned()))?;
        let live = handle.live().ok_or_else(|| SandboxError::NotFound(id.to_owned()))?;
        let metrics = self.shared.parts.guest.metrics(live.guest, &handle.spec.access_token).await;
        metrics.map_err(|error| SandboxError::Guest { id: handle.id, reason: error.to_string() })
    }

    /// The end of a sandbox's console; also for a while after the machine ended by itself. Nothing when there is none.
    pub async fn console(&self, id: &str) -> Result<Option<Vec<u8>>, SandboxError> {
        let Some(id) = SandboxId::parse(id) else { return Ok(None) };
        let paths = self.shared.config.paths_of(&id);
        let read = tokio::task::spawn_blocking(move || match console::read_tail(&paths.console_log)? {
            Some(bytes) => Ok(Some(bytes)),
            None => console::read_tail(&paths.kept_console),
        });
        let context = || format!("reading the console of sandbox {id}");
        read.await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
            .map_err(|source| SandboxError::Io { context: context(), source })
    }

    /// How many sandboxes there are.
    #[must_use]
    pub fn counts(&self) -> NodeCounts {
        let mut counts = NodeCounts::default();
        for handle in self.shared.sandboxes().values() {
            match *handle.state.borrow() {
                State::Creating => counts.creating += 1,
                State::Running(_) => counts.running += 1,
                State::Killing => counts.killing += 1,
                State::Ended => {}
            }
        }
        counts
    }

    /// How many templates there are.
    pub async fn template_count(&self) -> Result<u32, SandboxError> {
        Ok(self.shared.store.template_count().await?)
    }

    /// The storage daemon's word on itself.
    pub async fn storage_status(&self) -> Result<crate::StorageStatus, SandboxError> {
        Ok(self.shared.parts.storage.status().await?)
    }

    /// The driver that starts machines.
    #[must_use]
    pub fn vmm_name(&self) -> &'static str {
        self.shared.parts.vmm.name()
    }

    async fn set_end(
        &self,
        id: &str,
        timeout: Duration,
        extension: Extension,
    ) -> Result<SandboxInfo, SandboxError> {
        self.check_timeout(timeout)?;
        let not_found = || SandboxError::NotFound(id.to_owned());
        let handle = self.handle(id).ok_or_else(not_found)?;
        handle.live().ok_or_else(not_found)?;
        let (reply, answer) = oneshot::channel();
        handle.commands.try_send(SetEnd { timeout, extension, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => SandboxError::Busy(handle.id.clone()),
            mpsc::error::TrySendError::Closed(_) => not_found(),
        })?;
        // An actor that ends, because the sandbox does, drops the request.
        let answer = tokio::time::timeout(ACTOR_ANSWER_TIMEOUT, answer).await;
        let live = answer.map_err(|_| SandboxError::Busy(handle.id.clone()))?.map_err(|_| not_found())??;
        Ok(info(&handle, live))
    }

    fn check_timeout(&self, timeout: Duration) -> Result<(), SandboxError> {
        let limit = self.shared.config.timeout_max;
        if timeout <= limit {
            return Ok(());
        }
        let hours = limit.as_secs() / 3600;
        Err(SandboxError::Invalid(format!("Timeout cannot be greater than {hours} hours")))
    }

    fn handle(&self, id: &str) -> Option<Handle> {
        self.shared.sandboxes().get(&SandboxId::parse(id)?).cloned()
    }
}

/// Records the sandbox and starts its actor.
async fn begin(
    shared: &Arc<Shared>,
    request: CreateSandbox,
) -> Result<(Handle, oneshot::Receiver<Result<Live, SandboxError>>), SandboxError> {
    if *shared.stopping.borrow() {
        return Err(SandboxError::Stopping);
    }
    let limit = shared.config.sandbox_limit;
    let place = shared.places.clone().try_acquire_owned().map_err(|_| SandboxError::Capacity { limit })?;
    let random_error = |source| SandboxError::Io { context: "random bytes for a sandbox".to_owned(), source };
    let id = SandboxId::generate(&shared.tag, &*shared.parts.randomness).map_err(random_error)?;
    let access_token = random::token(&*shared.parts.randomness).map_err(random_error)?;
    let deadline = Instant::now() + shared.config.create_deadline;
    let now = shared.parts.clock.now();
    let end_at = now.saturating_add(shared.config.create_deadline + request.timeout);
    let CreateSandbox { template, timeout, metadata, env } = request;
    let key = template_key(&template).to_owned();
    let spec = move |template: &TemplateRecord| spec(template, metadata, env, access_token);
    let record = shared.store.begin_sandbox(id, key, now, end_at, spec).await?;
    let record = record.ok_or(SandboxError::TemplateNotFound(template))?;
    let (reply, answer) = oneshot::channel();
    let start = Start::Create { timeout, deadline, reply };
    Ok((actor::spawn(shared, record, Resources::default(), Some(place), start), answer))
}

fn spec(
    template: &TemplateRecord,
    metadata: BTreeMap<String, String>,
    env: BTreeMap<String, String>,
    access_token: String,
) -> SandboxSpec {
    let content = &template.content;
    let mut merged = content.image.env.clone();
    merged.extend(env);
    SandboxSpec {
        template_id: template.id.clone(),
        template_name: template.name.clone(),
        build_id: template.build_id.clone(),
        layer_paths: content.layer_paths.clone(),
        virtual_size_bytes: content.virtual_size_bytes,
        vcpus: content.vcpus,
        memory_mib: content.memory_mib,
        metadata,
        env: merged,
        default_user: content.image.user.as_deref().and_then(user_name).map(str::to_owned),
        default_workdir: content.image.working_dir.clone().filter(|path| !path.is_empty()),
        access_token,
        envd_version: protocol::envd::ENVD_VERSION.to_owned(),
    }
}

/// The user of an image's `USER`, which may name a group too. The guest daemon knows users by name; of a number only the
/// name of user 0 is certain, and for others the daemon's own default is used.
fn user_name(user: &str) -> Option<&str> {
    match user.split(':').next() {
        Some("0") => Some("root"),
        Some(name) if !name.is_empty() && !name.bytes().all(|byte| byte.is_ascii_digit()) => Some(name),
        _ => None,
    }
}

fn info(handle: &Handle, live: Live) -> SandboxInfo {
    let spec = &handle.spec;
    SandboxInfo {
        id: handle.id.clone(),
        template_id: spec.template_id.clone(),
        template_name: spec.template_name.clone(),
        metadata: spec.metadata.clone(),
        vcpus: spec.vcpus,
        memory_mib: spec.memory_mib,
        virtual_size_bytes: spec.virtual_size_bytes,
        access_token: spec.access_token.clone(),
        envd_version: spec.envd_version.clone(),
        started_at: live.started_at,
        end_at: live.end_at,
    }
}

fn bytes_of(map: &BTreeMap<String, String>) -> usize {
    map.iter().map(|(name, value)| name.len() + value.len()).sum()
}

fn check_metadata(metadata: &BTreeMap<String, String>) -> Result<(), SandboxError> {
    if bytes_of(metadata) > METADATA_BYTES_MAX {
        return Err(SandboxError::Invalid(format!("metadata is larger than {METADATA_BYTES_MAX} bytes")));
    }
    Ok(())
}

fn check_env(env: &BTreeMap<String, String>) -> Result<(), SandboxError> {
    if bytes_of(env) > ENV_BYTES_MAX {
        return Err(SandboxError::Invalid(format!("envVars is larger than {ENV_BYTES_MAX} bytes")));
    }
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(SandboxError::Invalid(format!(
                "envVars: {name:?} cannot be an environment variable: a name is not empty and has no '=', and neither name \
                 nor value has a zero byte"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_of_an_image_is_a_name_or_left_to_the_guest() {
        assert_eq!(user_name("user"), Some("user"));
        assert_eq!(user_name("user:group"), Some("user"));
        assert_eq!(user_name("0:0"), Some("root"));
        assert_eq!(user_name("1000"), None);
        assert_eq!(user_name(":group"), None);
    }
}
