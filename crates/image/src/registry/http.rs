//! Requests: authorization, retries, and answers turned into errors that say what to do.

use std::collections::HashSet;
use std::error::Error;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderName, RETRY_AFTER};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Response, StatusCode, Url};
use serde::Deserialize;

use super::{RemoteImage, backoff, tls};
use crate::{ImageError, ImporterConfig};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const REDIRECTS: usize = 5;
/// Longest wait a registry may ask for.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Part of an error's body that is looked at.
const ERROR_BODY_BYTES: u64 = 16 * 1024;

/// The client all requests go through.
pub(super) fn client(
    config: &ImporterConfig,
    insecure: HashSet<String>,
) -> Result<reqwest::Client, ImageError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls::client_config(config)?)
        .user_agent(concat!("agentenv/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        // Between two reads; a whole blob may take as long as it takes.
        .read_timeout(config.limits.registry_timeout)
        .redirect(Policy::custom(move |attempt| follow(attempt, &insecure)))
        .build()
        .map_err(|error| ImageError::InvalidOption(format!("the HTTP client cannot be set up: {error}")))
}

/// Blobs are often served from elsewhere (the client drops the credentials then), but never less securely.
fn follow(attempt: Attempt<'_>, insecure: &HashSet<String>) -> reqwest::redirect::Action {
    if attempt.previous().len() > REDIRECTS {
        return attempt.error("too many redirects");
    }
    let was_secure = attempt.previous().last().is_some_and(|url| url.scheme() == "https");
    let is_named = host(attempt.url()).is_some_and(|host| insecure.contains(&host));
    if was_secure && attempt.url().scheme() != "https" && !is_named {
        return attempt.error("redirected from HTTPS to plain HTTP");
    }
    attempt.follow()
}

/// Host with its port, when one is given.
pub(super) fn host(url: &Url) -> Option<String> {
    let host = url.host_str()?;
    Some(url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
}

/// One attempt that did not succeed.
pub(super) enum Failure {
    /// Another attempt may succeed, after this long at least.
    Transient { reason: String, wait: Option<Duration> },
    /// It will not.
    Final(ImageError),
}

#[derive(Deserialize)]
struct ErrorBody {
    errors: Vec<ErrorEntry>,
}

#[derive(Deserialize)]
struct ErrorEntry {
    #[serde(default)]
    code: String,
    #[serde(default)]
    message: String,
}

impl RemoteImage {
    /// The URL of something in the repository.
    pub(super) fn url(&self, path: &str) -> Result<Url, ImageError> {
        let scheme = if self.insecure { "http" } else { "https" };
        let (host, repository) = (self.reference.api_host(), self.reference.repository());
        Url::parse(&format!("{scheme}://{host}/v2/{repository}/{path}")).map_err(|error| {
            ImageError::InvalidSource { text: self.reference.to_string(), reason: error.to_string() }
        })
    }

    /// GET with retries; a success (200 or 206) or an error.
    pub(super) async fn get(
        &self,
        url: &Url,
        what: &str,
        headers: &[(HeaderName, &str)],
    ) -> Result<Response, ImageError> {
        let mut failures = 0;
        loop {
            match self.get_once(url, what, headers).await {
                Ok(response) => return Ok(response),
                Err(Failure::Final(error)) => return Err(error),
                Err(Failure::Transient { reason, wait }) => {
                    failures += 1;
                    self.wait_or_fail(failures, reason, wait).await?;
                }
            }
        }
    }

    /// Waits before the next attempt, or gives up.
    pub(super) async fn wait_or_fail(
        &self,
        failures: u32,
        reason: String,
        wait: Option<Duration>,
    ) -> Result<(), ImageError> {
        if failures >= self.settings.attempts {
            let registry = self.reference.registry().to_owned();
            return Err(ImageError::RegistryFailed { registry, attempts: failures, reason });
        }
        tracing::debug!(
            registry = self.reference.registry(),
            failures,
            reason,
            "registry request failed, trying again"
        );
        let wait = wait.unwrap_or_default().min(LONGEST_RETRY_AFTER).max(backoff(failures));
        tokio::time::sleep(wait).await;
        Ok(())
    }

    /// One attempt, with one more when the registry asks for (other) authorization.
    pub(super) async fn get_once(
        &self,
        url: &Url,
        what: &str,
        headers: &[(HeaderName, &str)],
    ) -> Result<Response, Failure> {
        let mut used = self.authorization.lock().await.clone();
        let mut asked = false;
        loop {
            let mut request = self.client.get(url.clone());
            for (name, value) in headers {
                request = request.header(name, *value);
            }
            if let Some(authorization) = &used {
                request = request.header(AUTHORIZATION, authorization.header());
            }
            let response = request.send().await.map_err(|error| self.send_failure(&error))?;
            if response.status() != StatusCode::UNAUTHORIZED {
                return self.judge(response, what).await;
            }
            if asked {
                return Err(Failure::Final(self.unauthorized(used.is_some())));
            }
            asked = true;
            used = Some(self.authorize(response.headers(), used.as_ref()).await?);
        }
    }

    async fn judge(&self, response: Response, what: &str) -> Result<Response, Failure> {
        let status = response.status();
        if status == StatusCode::OK || status == StatusCode::PARTIAL_CONTENT {
            return Ok(response);
        }
        let retry = status.is_server_error()
            || status == StatusCode::TOO_MANY_REQUESTS
            || status == StatusCode::REQUEST_TIMEOUT;
        if retry {
            let wait =
                response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let reason = format!("it answered {status} for {what}");
            return Err(Failure::Transient { reason, wait: wait.map(Duration::from_secs) });
        }
        let registry = self.reference.registry().to_owned();
        let body = self.body(response, what, ERROR_BODY_BYTES).await.unwrap_or_default();
        let errors = serde_json::from_slice::<ErrorBody>(&body).ok().map(|body| body.errors);
        let message = errors.as_ref().and_then(|errors| errors.first()).map(|error| {
            let text = format!("{} {}", error.code, error.message);
            text.trim().chars().take(200).collect::<String>()
        });
        Err(Failure::Final(match status {
            StatusCode::NOT_FOUND if errors.is_some() => ImageError::NotFound {
                image: what.to_owned(),
                reason: format!("{registry} answered {}", message.unwrap_or_else(|| status.to_string())),
            },
            StatusCode::FORBIDDEN => self.unauthorized(self.authorization.lock().await.is_some()),
            StatusCode::BAD_REQUEST if self.insecure && errors.is_none() => ImageError::NotARegistry {
                registry,
                reason:
                    "it refused plain HTTP; if it speaks TLS, take it off the list of insecure registries"
                        .to_owned(),
            },
            _ if errors.is_none() => ImageError::NotARegistry {
                registry,
                reason: format!(
                    "it answered {status} without a registry's error message; check host name and port"
                ),
            },
            _ => ImageError::RegistryFailed {
                registry,
                attempts: 1,
                reason: format!("it answered {status} for {what}: {}", message.unwrap_or_default()),
            },
        }))
    }

    pub(super) fn unauthorized(&self, tried: bool) -> ImageError {
        let registry = self.reference.registry();
        let reason = if tried && self.credentials.is_some() {
            "the given user name and password are not accepted, or lack the right to pull".to_owned()
        } else {
            format!(
                "it does not exist, or needs a login: run `docker login {registry}` and name that config.json in the \
                 configuration (registry.docker_config), or give a user name and password"
            )
        };
        ImageError::Unauthorized {
            registry: registry.to_owned(),
            repository: self.reference.repository().to_owned(),
            reason,
        }
    }

    /// The whole body, if it is within `limit`.
    pub(super) async fn body(
        &self,
        mut response: Response,
        what: &str,
        limit: u64,
    ) -> Result<Vec<u8>, ImageError> {
        let mut content = Vec::new();
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) if (content.len() + chunk.len()) as u64 > limit => {
                    return Err(ImageError::LimitExceeded {
                        what: format!("the size of {what}"),
                        limit: format!("{limit} bytes"),
                    });
                }
                Ok(Some(chunk)) => content.extend_from_slice(&chunk),
                Ok(None) => return Ok(content),
                Err(error) => {
                    let registry = self.reference.registry().to_owned();
                    return Err(ImageError::RegistryFailed {
                        registry,
                        attempts: 1,
                        reason: describe(&error),
                    });
                }
            }
        }
    }

    /// A request that got no answer. A broken TLS handshake stays broken; the rest may pass.
    pub(super) fn send_failure(&self, error: &reqwest::Error) -> Failure {
        let registry = self.reference.registry();
        if error.is_redirect() {
            let (registry, reason) = (registry.to_owned(), describe(error));
            return Failure::Final(ImageError::RegistryFailed { registry, attempts: 1, reason });
        }
        let Some(tls) = tls_error(error) else {
            return Failure::Transient { reason: describe(error), wait: None };
        };
        let reason = match tls {
            rustls::Error::InvalidMessage(_) => format!(
                "it does not speak TLS; if it is meant to be used in plain HTTP, add `{registry}` to registry.insecure \
                 in the configuration"
            ),
            rustls::Error::InvalidCertificate(problem) => format!(
                "its certificate is not trusted ({problem:?}); add the certificate of its authority to the \
                 configured root certificates"
            ),
            other => other.to_string(),
        };
        Failure::Final(ImageError::Tls { registry: registry.to_owned(), reason })
    }
}

/// The TLS error below a request's, wherever the layers between have put it.
fn tls_error(error: &reqwest::Error) -> Option<&rustls::Error> {
    let mut next: Option<&(dyn Error + 'static)> = error.source();
    while let Some(error) = next {
        if let Some(tls) = error.downcast_ref::<rustls::Error>() {
            return Some(tls);
        }
        // `io::Error` hides the error it wraps from `source`.
        next = match error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref) {
            Some(inner) => Some(inner),
            None => error.source(),
        };
    }
    None
}

/// The innermost reason: what wraps it repeats the URL only.
pub(super) fn describe(error: &reqwest::Error) -> String {
    let mut reason = error.to_string();
    let mut next = error.source();
    while let Some(error) = next {
        reason = error.to_string();
        next = error.source();
    }
    reason
}
