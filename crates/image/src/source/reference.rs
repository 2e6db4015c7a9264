//! References to images in registries, as Docker normalises them.

use std::fmt;
use std::str::FromStr;

use crate::ImageError;
use crate::digest::Digest;

/// Registry of references that name none, and where its API is served.
const DEFAULT_REGISTRY: &str = "docker.io";
const DEFAULT_REGISTRY_HOST: &str = "registry-1.docker.io";

/// A parsed reference: registry, repository, and a tag or digest.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Reference {
    registry: String,
    repository: String,
    tag: Option<String>,
    digest: Option<Digest>,
}

impl Reference {
    /// The registry as named, `docker.io` when none is; with a port if one is given.
    #[must_use]
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// Host and port the registry's API is served at.
    #[must_use]
    pub fn api_host(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { DEFAULT_REGISTRY_HOST } else { &self.registry }
    }

    /// The repository, `library/` included.
    #[must_use]
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// The digest, when the reference is pinned to one.
    #[must_use]
    pub fn digest(&self) -> Option<&Digest> {
        self.digest.as_ref()
    }

    /// What the manifest is asked for by: the digest if there is one, else the tag, `latest` by default.
    pub(crate) fn manifest_name(&self) -> String {
        match (&self.digest, &self.tag) {
            (Some(digest), _) => digest.to_string(),
            (None, Some(tag)) => tag.clone(),
            (None, None) => "latest".to_owned(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.registry, self.repository)?;
        if let Some(tag) = &self.tag {
            write!(formatter, ":{tag}")?;
        }
        match &self.digest {
            Some(digest) => write!(formatter, "@{digest}"),
            None if self.tag.is_none() => write!(formatter, ":latest"),
            None => Ok(()),
        }
    }
}

impl FromStr for Reference {
    type Err = ImageError;

    fn from_str(text: &str) -> Result<Self, ImageError> {
        let invalid = |reason: &str| ImageError::InvalidSource {
            text: text.chars().take(200).collect(),
            reason: reason.to_owned(),
        };
        if text.len() > 1024 {
            return Err(invalid("it is longer than 1024 bytes"));
        }
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest.parse::<Digest>()?)),
            None => (text, None),
        };
        // A colon after the last slash separates a tag; before it, a port.
        let (name, tag) = match name.rsplit_once(':') {
            Some((name, tag)) if !tag.contains('/') => (name, Some(tag.to_owned())),
            _ => (name, None),
        };
        if tag.as_deref().is_some_and(|tag| !is_tag(tag)) {
            return Err(invalid("its tag is not 1 to 128 letters, digits, `_`, `.`, `-`"));
        }
        let (registry, repository) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => (DEFAULT_REGISTRY, name),
        };
        let registry = match registry {
            "index.docker.io" | "registry-1.docker.io" => DEFAULT_REGISTRY,
            other => other,
        };
        if !is_host(registry) {
            return Err(invalid("its registry is not a host name with an optional port"));
        }
        let repository =
            if registry == DEFAULT_REGISTRY && !repository.contains('/') && !repository.is_empty() {
                format!("library/{repository}")
            } else {
                repository.to_owned()
            };
        if repository.len() > 255 || !repository.split('/').all(is_repository_component) {
            return Err(invalid(
                "its name is not lower-case letters and digits, separated by `/`, `.`, `_`, `-`; a local image is \
                 given as oci:DIRECTORY, docker-archive:FILE or rootfs:FILE",
            ));
        }
        Ok(Self { registry: registry.to_owned(), repository, tag, digest })
    }
}

fn is_tag(tag: &str) -> bool {
    let mut bytes = tag.bytes();
    tag.len() <= 128
        && bytes.next().is_some_and(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'))
}

fn is_host(host: &str) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let Some((address, port)) = rest.split_once(']') else { return false };
        return address.parse::<std::net::Ipv6Addr>().is_ok() && (port.is_empty() || is_port(port));
    }
    let (name, port) = match host.find(':') {
        Some(colon) => host.split_at(colon),
        None => (host, ""),
    };
    !name.is_empty()
        && name.len() <= 253
        && name.split('.').all(|label| {
            !label.is_empty()
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
        && (port.is_empty() || is_port(port))
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port != 0))
}

/// Letters and digits, separated by one `.`, one or two `_`, or any number of `-` (OCI distribution specification).
fn is_repository_component(component: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    ends.iter().all(|end| end.is_some_and(|&byte| alphanumeric(byte)))
        && component
            .split(|character: char| character.is_ascii_lowercase() || character.is_ascii_digit())
            .all(|separator| {
                matches!(separator, "" | "." | "_" | "__") || separator.bytes().all(|byte| byte == b'-')
            })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_completed_as_docker_does() {
        for (text, full) in [
            ("debian", "docker.io/library/debian:latest"),
            ("debian:12", "docker.io/library/debian:12"),
            ("team/app", "docker.io/team/app:latest"),
            ("localhost/app", "localhost/app:latest"),
            ("127.0.0.1:5000/app:v1", "127.0.0.1:5000/app:v1"),
            ("registry.example/a/b/c", "registry.example/a/b/c:latest"),
            ("index.docker.io/debian", "docker.io/library/debian:latest"),
            ("[::1]:5000/a", "[::1]:5000/a:latest"),
        ] {
            assert_eq!(text.parse::<Reference>().unwrap().to_string(), full);
        }
        assert_eq!("debian".parse::<Reference>().unwrap().api_host(), "registry-1.docker.io");
    }

    #[test]
    fn a_digest_wins_over_a_tag() {
        let digest = format!("sha256:{}", "0".repeat(64));
        let reference: Reference = format!("r.example/a:v1@{digest}").parse().unwrap();
        assert_eq!(reference.manifest_name(), digest);
        assert_eq!(reference.to_string(), format!("r.example/a:v1@{digest}"));
    }

    #[test]
    fn malformed_references_are_refused() {
        for text in [
            "",
            "UPPER",
            "a//b",
            "a/../b",
            "/etc/passwd",
            "a:",
            "a:-x",
            "a@sha256:12",
            "r.example:99999/a",
            "-r.example/a",
            "a b",
            "a?x=1",
            "a#b",
            "r.example/a%2f",
            "ex_ample.com:1/a/",
            "a/",
            "r.example/",
            "a..b",
            "a___b",
            "user@host/a",
        ] {
            assert!(text.parse::<Reference>().is_err(), "{text:?} was accepted");
        }
    }
}
