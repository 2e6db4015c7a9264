//! Registries that speak the distribution API, version 2 (OCI distribution specification 1.1).
//!
//! A client of our own: the requests are few, and what matters (resuming a blob, bounded documents, a TLS provider
//! that is not process-global, errors that say what to do) is what general clients leave out.

mod auth;
mod blob;
mod http;
mod tls;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE};

use crate::digest::Digest;
use crate::manifest::{self, CONFIG_BYTES, Document, MANIFEST_BYTES, Manifest};
use crate::source::{BlobLocation, ResolvedImage, ResolvedLayer, check_content};
use crate::{Credentials, ImageError, ImporterConfig, Reference};
use auth::Authorization;

/// Indexes may refer to indexes; deeper than this nobody nests them.
const INDEX_DEPTH: usize = 4;

/// Every registry, as configured.
#[derive(Debug)]
pub(crate) struct Registry {
    client: reqwest::Client,
    settings: Arc<Settings>,
}

#[derive(Debug)]
struct Settings {
    insecure_registries: HashSet<String>,
    docker_config: Option<PathBuf>,
    attempts: u32,
    blob_bytes: u64,
}

/// One image's repository in a registry, with the authorization found for it.
#[derive(Debug)]
pub(crate) struct RemoteImage {
    client: reqwest::Client,
    settings: Arc<Settings>,
    reference: Reference,
    /// Whether this registry is spoken to in plain HTTP.
    insecure: bool,
    credentials: Option<Credentials>,
    authorization: tokio::sync::Mutex<Option<Authorization>>,
}

impl Registry {
    pub(crate) fn new(config: &ImporterConfig) -> Result<Self, ImageError> {
        let insecure_registries: HashSet<String> = config.insecure_registries.iter().cloned().collect();
        let client = http::client(config, insecure_registries.clone())?;
        let settings = Arc::new(Settings {
            insecure_registries,
            docker_config: config.docker_config.clone(),
            attempts: config.limits.registry_attempts.max(1),
            blob_bytes: config.limits.blob_bytes,
        });
        Ok(Self { client, settings })
    }

    /// Finds the image for this machine and reads its configuration.
    pub(crate) async fn resolve(
        &self,
        reference: &Reference,
        credentials: Option<Credentials>,
    ) -> Result<(ResolvedImage, RemoteImage), ImageError> {
        let remote = RemoteImage {
            client: self.client.clone(),
            settings: Arc::clone(&self.settings),
            reference: reference.clone(),
            insecure: self.settings.insecure_registries.contains(reference.registry()),
            credentials,
            authorization: tokio::sync::Mutex::new(None),
        };
        let (manifest_digest, manifest) = remote.manifest().await?;
        let image = reference.to_string();
        let config = &manifest.config;
        if config.size > CONFIG_BYTES {
            return Err(ImageError::LimitExceeded {
                what: format!("the configuration of {image}"),
                limit: format!("{CONFIG_BYTES} bytes"),
            });
        }
        let config_json = remote.small_blob("the image configuration", &config.digest, CONFIG_BYTES).await?;
        check_content("the image configuration", &config_json, &config.digest, Some(config.size))?;
        let diff_ids = manifest::diff_ids(&image, &config_json, manifest.layers.len())?;
        let limit = self.settings.blob_bytes;
        if let Some(layer) = manifest.layers.iter().find(|layer| layer.size > limit) {
            return Err(ImageError::LimitExceeded {
                what: format!("the layer {} of {image} ({} bytes)", layer.digest, layer.size),
                limit: format!("{limit} bytes"),
            });
        }
        let layers = manifest
            .layers
            .into_iter()
            .zip(diff_ids)
            .map(|(layer, diff_digest)| ResolvedLayer {
                diff_digest,
                blob_digest: Some(layer.digest),
                blob_bytes: Some(layer.size),
                location: BlobLocation::Registry,
            })
            .collect();
        Ok((ResolvedImage { manifest_digest, config_json, layers }, remote))
    }
}

impl RemoteImage {
    /// The manifest for this machine and its digest.
    async fn manifest(&self) -> Result<(Digest, Manifest), ImageError> {
        let image = self.reference.to_string();
        let mut name = self.reference.manifest_name();
        let mut expected = self.reference.digest().cloned();
        for _ in 0..INDEX_DEPTH {
            let content = self.manifest_document(&name, expected.as_ref()).await?;
            match manifest::parse_document(&image, &content)? {
                Document::Manifest(manifest) => {
                    return Ok((expected.unwrap_or_else(|| Digest::of(&content)), manifest));
                }
                Document::Index(manifests) => {
                    let descriptor = manifest::select(&image, &manifests)?;
                    name = descriptor.digest.to_string();
                    expected = Some(descriptor.digest);
                }
            }
        }
        Err(ImageError::Damaged {
            what: image,
            reason: format!("its indexes are nested deeper than {INDEX_DEPTH}"),
        })
    }

    async fn manifest_document(&self, name: &str, expected: Option<&Digest>) -> Result<Vec<u8>, ImageError> {
        let url = self.url(&format!("manifests/{name}"))?;
        let what = format!("the manifest {name} of {}", self.reference);
        let response = self.get(&url, &what, &[(ACCEPT, manifest::ACCEPT)]).await?;
        let is_html = response
            .headers()
            .get(CONTENT_TYPE)
            .is_some_and(|media_type| media_type.as_bytes().starts_with(b"text/html"));
        if is_html {
            return Err(ImageError::NotARegistry {
                registry: self.reference.registry().to_owned(),
                reason: "it answered with a web page; check the host name and port".to_owned(),
            });
        }
        let announced = response
            .headers()
            .get("docker-content-digest")
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.parse::<Digest>().ok());
        let content = self.body(response, &what, MANIFEST_BYTES).await?;
        if let Some(expected) = expected.or(announced.as_ref()) {
            check_content(&what, &content, expected, None)?;
        }
        Ok(content)
    }

    async fn small_blob(&self, what: &str, digest: &Digest, limit: u64) -> Result<Vec<u8>, ImageError> {
        let url = self.url(&format!("blobs/{digest}"))?;
        let response = self.get(&url, what, &[]).await?;
        self.body(response, what, limit).await
    }
}

/// Grows with each failure in a row.
fn backoff(failures: u32) -> Duration {
    const FIRST: Duration = Duration::from_millis(200);
    const LONGEST: Duration = Duration::from_secs(5);
    FIRST.saturating_mul(1 << failures.saturating_sub(1).min(8)).min(LONGEST)
}
