//! Registries that speak the distribution API, version 2.

use crate::progress::Reporter;
use crate::source::{ResolvedImage, ResolvedLayer};
use crate::spool::SpoolWriter;
use crate::{Credentials, ImageError, ImporterConfig, Reference};

/// Every registry, as configured.
#[derive(Debug)]
pub(crate) struct Registry;

/// One image in a registry.
#[derive(Debug)]
pub(crate) struct RemoteImage;

impl Registry {
    pub(crate) fn new(_: &ImporterConfig) -> Result<Self, ImageError> {
        Ok(Self)
    }

    pub(crate) async fn resolve(
        &self,
        reference: &Reference,
        _: Option<Credentials>,
    ) -> Result<(ResolvedImage, RemoteImage), ImageError> {
        Err(ImageError::Unsupported {
            image: reference.to_string(),
            reason: "registries are not reachable yet; use oci:, docker-archive: or rootfs:".to_owned(),
        })
    }
}

impl RemoteImage {
    pub(crate) async fn fetch(&self, _: &ResolvedLayer, _: SpoolWriter, _: Reporter) {}
}
