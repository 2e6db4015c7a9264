//! TLS with the ring provider, given to the client and not installed for the whole process.

use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use crate::{ImageError, ImporterConfig};

/// Trusts the system's certificates and the configured ones.
pub(super) fn client_config(config: &ImporterConfig) -> Result<ClientConfig, ImageError> {
    let mut roots = RootCertStore::empty();
    let native = rustls_native_certs::load_native_certs();
    if native.certs.is_empty() {
        tracing::warn!(
            "the system has no root certificates; only registries with configured ones can be verified"
        );
    }
    roots.add_parsable_certificates(native.certs);
    for path in &config.extra_root_certificates {
        let invalid = |reason: String| {
            ImageError::InvalidOption(format!(
                "the root certificates in {} cannot be used: {reason}",
                path.display()
            ))
        };
        let certificates = CertificateDer::pem_file_iter(path).map_err(|error| invalid(error.to_string()))?;
        let mut found = false;
        for certificate in certificates {
            let certificate = certificate.map_err(|error| invalid(error.to_string()))?;
            roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
            found = true;
        }
        if !found {
            return Err(invalid("there is no certificate in it".to_owned()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ImageError::InvalidOption(format!("TLS cannot be set up: {error}")))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
