//! Templates from images, and the removal of layers that nothing uses.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use tokio::sync::mpsc;
use tracing::Instrument;

use super::{Node, Shared};
use crate::record::{ImageDefaults, TemplateContent};
use crate::store::TemplateBuild;
use crate::{ImportEvent, ImportedImage, SandboxError, StorageError, TemplateRecord, random};

/// Images pulled at a time.
pub(super) const PULLS_MAX: u32 = 2;
/// Events that may wait for a slow client.
const EVENTS_MAX: usize = 64;
/// Fewest and most virtual processors and MiB of memory that a template may ask for.
const VCPUS: std::ops::RangeInclusive<u32> = 1..=64;
const MEMORY_MIB: std::ops::RangeInclusive<u32> = 64..=262_144;

/// An image to become a template.
#[derive(Clone, PartialEq, Eq)]
pub struct PullRequest {
    /// Registry reference, or `oci:DIRECTORY`, `docker-archive:FILE`, `rootfs:FILE.tar`.
    pub source: String,
    /// Name of the template; an existing one gets new content.
    pub name: String,
    /// Size of the disk; 0 takes the default.
    pub virtual_size_bytes: u64,
    /// Virtual processors; the node's default when absent.
    pub vcpus: Option<u32>,
    /// Memory; the node's default when absent.
    pub memory_mib: Option<u32>,
    /// User and password at the registry.
    pub credentials: Option<(String, String)>,
}

impl std::fmt::Debug for PullRequest {
    /// Leaves the credentials out.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("PullRequest")
            .field("source", &self.source)
            .field("name", &self.name)
            .field("virtual_size_bytes", &self.virtual_size_bytes)
            .finish_non_exhaustive()
    }
}

/// What a pull says while it runs; the last event is `Done` or `Failed`.
#[derive(Debug)]
pub enum PullEvent {
    /// Where it stands.
    Progress(PullProgress),
    /// The template is there.
    Done(Box<TemplateRecord>),
    /// There is no new template; an older one of that name is unchanged.
    Failed(SandboxError),
}

pub use protocol::api::PullProgress;

impl Node {
    /// Pulls an image. Dropping the receiver cancels it.
    pub fn pull_template(&self, mut request: PullRequest) -> Result<mpsc::Receiver<PullEvent>, SandboxError> {
        check(&request)?;
        let shared = self.shared.clone();
        let turn = shared.pull_turns.clone().try_acquire_owned();
        let turn = turn.map_err(|_| SandboxError::PullCapacity { limit: PULLS_MAX })?;
        if request.virtual_size_bytes == 0 {
            request.virtual_size_bytes = shared.config.default_virtual_size_bytes;
        }
        let (events, receiver) = mpsc::channel(EVENTS_MAX);
        let span = tracing::info_span!("pull", name = request.name);
        let pull = async move {
            let _turn = turn;
            let event = match pull(&shared, &request, &events).await {
                Ok(template) => {
                    tracing::info!(id = template.id, layers = template.content.layer_paths.len(), "pulled");
                    PullEvent::Done(Box::new(template))
                }
                Err(error) => {
                    tracing::warn!(%error, source = request.source, "pull failed");
                    PullEvent::Failed(error)
                }
            };
            // A failed import leaves converted layers for the next try; a collection removes what an earlier build had.
            shared.collect_layers_soon();
            let _ = events.send(event).await;
        };
        tokio::spawn(pull.instrument(span));
        Ok(receiver)
    }
}

async fn pull(
    shared: &Arc<Shared>,
    request: &PullRequest,
    events: &mpsc::Sender<PullEvent>,
) -> Result<TemplateRecord, SandboxError> {
    let _import = shared.imports.read().await;
    let mut import = shared.parts.storage.import_image(request).await?;
    let image = loop {
        let event = tokio::select! {
            event = import.recv() => event,
            () = events.closed() => {
                return Err(SandboxError::Invalid("the client went away; what was converted is kept".to_owned()));
            }
        };
        match event {
            // A slow client slows its import down, which is bounded by the channel.
            Some(ImportEvent::Progress(progress)) => drop(events.send(PullEvent::Progress(progress)).await),
            Some(ImportEvent::Done(image)) => break image,
            Some(ImportEvent::Failed(error)) => return Err(error.into()),
            None => {
                return Err(StorageError::Unavailable("the import ended without a result".to_owned()).into());
            }
        }
    };
    let random_error =
        |source| SandboxError::Io { context: "random bytes for a template".to_owned(), source };
    let build = TemplateBuild {
        fresh_id: random::alphanumeric(&*shared.parts.randomness, 20).map_err(random_error)?,
        build_id: random::uuid(&*shared.parts.randomness).map_err(random_error)?,
        name: request.name.clone(),
        built_at: shared.parts.clock.now(),
        content: content(shared, request, image)?,
    };
    Ok(shared.store.put_template(build).await?)
}

fn content(
    shared: &Shared,
    request: &PullRequest,
    image: ImportedImage,
) -> Result<TemplateContent, SandboxError> {
    Ok(TemplateContent {
        source: request.source.clone(),
        manifest_digest: image.manifest_digest,
        layer_paths: image.layer_paths,
        virtual_size_bytes: image.virtual_size_bytes,
        vcpus: request.vcpus.unwrap_or(shared.config.default_vcpus),
        memory_mib: request.memory_mib.unwrap_or(shared.config.default_memory_mib),
        image: image_defaults(&image.config_json)?,
    })
}

/// Removes unused layers whenever that is wanted and no import is running.
pub(super) async fn collect_layers(shared: Arc<Shared>) {
    let mut stopping = shared.stopping.subscribe();
    loop {
        tokio::select! {
            () = shared.collection_wanted.notified() => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        // Waiting for the lock would make new imports wait behind this; the end of the running one asks again.
        let Ok(_imports) = shared.imports.try_write() else { continue };
        let collected = async {
            let keep = shared.store.layers_in_use().await?;
            Ok::<_, SandboxError>(shared.parts.storage.collect_layers(keep).await?)
        };
        match collected.await {
            Ok(0) => {}
            Ok(layers) => tracing::info!(layers, "unused layers removed"),
            Err(error) => tracing::warn!(%error, "unused layers stay until the next collection"),
        }
    }
}

fn check(request: &PullRequest) -> Result<(), SandboxError> {
    let invalid = |message: String| Err(SandboxError::Invalid(message));
    if !is_template_name(&request.name) {
        return invalid(format!(
            "name {:?} is no template name: 1 to 128 characters of [a-z0-9._-], the first a letter or digit",
            request.name
        ));
    }
    if request.source.is_empty() || request.source.len() > 4096 || request.source.contains(char::is_control) {
        return invalid(
            "source is no image: give a registry reference, oci:, docker-archive: or rootfs:".to_owned(),
        );
    }
    if !request.virtual_size_bytes.is_multiple_of(4096) {
        return invalid("virtualSizeBytes must be a multiple of 4096".to_owned());
    }
    if request.vcpus.is_some_and(|vcpus| !VCPUS.contains(&vcpus)) {
        return invalid(format!("cpuCount must be between {} and {}", VCPUS.start(), VCPUS.end()));
    }
    if request.memory_mib.is_some_and(|memory| !MEMORY_MIB.contains(&memory)) {
        return invalid(format!("memoryMB must be between {} and {}", MEMORY_MIB.start(), MEMORY_MIB.end()));
    }
    Ok(())
}

fn is_template_name(name: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 128
        && name.as_bytes().first().is_some_and(plain)
        && name.bytes().all(|byte| plain(&byte) || b"._-".contains(&byte))
}

/// Reads the parts of an OCI image configuration that concern processes.
/// <https://github.com/opencontainers/image-spec/blob/main/config.md>
fn image_defaults(config_json: &[u8]) -> Result<ImageDefaults, SandboxError> {
    #[derive(Deserialize, Default)]
    #[serde(default)]
    struct Image {
        config: Option<Config>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "PascalCase", default)]
    struct Config {
        env: Option<Vec<String>>,
        user: Option<String>,
        working_dir: Option<String>,
        entrypoint: Option<Vec<String>>,
        cmd: Option<Vec<String>>,
    }
    if config_json.is_empty() {
        return Ok(ImageDefaults::default());
    }
    let image: Image = serde_json::from_slice(config_json).map_err(|error| {
        SandboxError::Invalid(format!("the image's configuration cannot be read: {error}"))
    })?;
    let config = image.config.unwrap_or_default();
    let env: BTreeMap<String, String> = config
        .env
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| entry.split_once('='))
        .filter(|(name, _)| !name.is_empty())
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
    Ok(ImageDefaults {
        env,
        user: filled(config.user),
        working_dir: filled(config.working_dir),
        entrypoint: config.entrypoint.unwrap_or_default(),
        cmd: config.cmd.unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_configuration_is_read() {
        let json =
            br#"{"architecture":"amd64","config":{"Env":["PATH=/bin","A=b=c","BROKEN"],"User":"1000:1000",
            "WorkingDir":"/srv","Cmd":["bash"],"Entrypoint":null},"rootfs":{}}"#;
        let image = image_defaults(json).unwrap();
        assert_eq!(image.env, BTreeMap::from([("PATH".into(), "/bin".into()), ("A".into(), "b=c".into())]));
        assert_eq!(image.user.as_deref(), Some("1000:1000"));
        assert_eq!(image.working_dir.as_deref(), Some("/srv"));
        assert_eq!(image.cmd, ["bash"]);
        assert!(image.entrypoint.is_empty());
    }

    #[test]
    fn an_image_without_a_configuration_has_no_defaults() {
        for json in [&b""[..], b"{}", br#"{"config":null}"#, br#"{"config":{"Env":null,"User":""}}"#] {
            assert_eq!(image_defaults(json).unwrap(), ImageDefaults::default());
        }
        assert!(image_defaults(b"[1]").is_err());
    }

    #[test]
    fn template_names_are_plain() {
        for name in ["base", "a", "code-interpreter-v1", "debian12.5_x"] {
            assert!(is_template_name(name), "{name}");
        }
        for name in ["", "-a", ".hidden", "a/b", "a:b", "Base", "é", &"a".repeat(129)] {
            assert!(!is_template_name(name), "{name}");
        }
    }
}
