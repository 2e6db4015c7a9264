//! Credentials for registries, as Docker's command line keeps them.
//!
//! Formats: `config.json` of the Docker CLI (`auths`, `credHelpers`, `credsStore`) and the protocol of its
//! `docker-credential-*` helpers. The file is read again at each use, so that a renewed login is picked up.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

use crate::{ImageError, Reference};

/// Some tools write the value without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

const CONFIG_BYTES: u64 = 1 << 20;
const HELPER_OUTPUT_BYTES: u64 = 256 * 1024;
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);

/// Name under which Docker keeps the login of its own registry.
const DOCKER_IO_KEY: &str = "https://index.docker.io/v1/";

/// User name that marks the secret as an identity token.
const TOKEN_USER: &str = "<token>";

/// What a helper prints when it has nothing for a registry; part of the helper protocol.
const HELPER_NOT_FOUND: &str = "credentials not found in native keychain";

/// A user name and a password or access token.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User name.
    pub username: String,
    /// Password or access token.
    pub password: String,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

impl Credentials {
    /// What Docker's credential file `config`, or the helper it names, has for a reference; nothing when there is no file.
    /// A refresh token has the user name `<token>`, as in the protocol of the helpers.
    pub async fn from_docker_config(
        config: &Path,
        reference: &Reference,
    ) -> Result<Option<Self>, ImageError> {
        Ok(find(config, reference).await?.map(Self::from))
    }
}

impl From<Login> for Credentials {
    fn from(login: Login) -> Self {
        match login {
            Login::Password(credentials) => credentials,
            Login::IdentityToken(token) => Self { username: TOKEN_USER.to_owned(), password: token },
        }
    }
}

impl From<Credentials> for Login {
    fn from(credentials: Credentials) -> Self {
        if credentials.username == TOKEN_USER {
            Self::IdentityToken(credentials.password)
        } else {
            Self::Password(credentials)
        }
    }
}

/// How to log in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Login {
    Password(Credentials),
    /// A refresh token for the registry's token server.
    IdentityToken(String),
}

impl fmt::Debug for Login {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Password(credentials) => credentials.fmt(formatter),
            Self::IdentityToken(_) => formatter.write_str("IdentityToken"),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, StoredLogin>,
    #[serde(default)]
    cred_helpers: BTreeMap<String, String>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
struct StoredLogin {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    identitytoken: String,
}

/// The login for a reference: a helper named for its registry, else the most exact entry of the file, else the common
/// helper. `None` when there is none, or no file.
pub(crate) async fn find(config: &Path, reference: &Reference) -> Result<Option<Login>, ImageError> {
    let registry = reference.registry();
    let failed = |reason: String| ImageError::Credentials { registry: registry.to_owned(), reason };
    let text = match tokio::fs::File::open(config).await {
        Ok(file) => {
            let mut text = Vec::new();
            let read = file.take(CONFIG_BYTES).read_to_end(&mut text).await;
            read.map_err(|error| failed(format!("{}: {error}", config.display())))?;
            text
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(format!("{}: {error}", config.display()))),
    };
    let config: DockerConfig = serde_json::from_slice(&text)
        .map_err(|error| failed(format!("{} is not valid: {error}", config.display())))?;
    let helper = config.cred_helpers.iter().find(|(key, _)| host_and_path(key) == registry);
    if let Some((_, helper)) = helper {
        return ask_helper(helper, registry).await.map_err(failed);
    }
    if let Some(login) = stored(&config, reference).map_err(failed)? {
        return Ok(Some(login));
    }
    match config.creds_store.as_deref().filter(|store| !store.is_empty()) {
        Some(store) => ask_helper(store, registry).await.map_err(failed),
        None => Ok(None),
    }
}

/// The entry whose key is the longest prefix of `registry/repository` at a slash.
fn stored(config: &DockerConfig, reference: &Reference) -> Result<Option<Login>, String> {
    let full = format!("{}/{}", reference.registry(), reference.repository());
    let mut best: Option<(usize, &StoredLogin)> = None;
    for (key, login) in &config.auths {
        let key = host_and_path(key);
        let matches =
            full.strip_prefix(key.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if matches && best.is_none_or(|(length, _)| key.len() > length) {
            best = Some((key.len(), login));
        }
    }
    let Some((_, login)) = best else { return Ok(None) };
    if !login.identitytoken.is_empty() {
        return Ok(Some(Login::IdentityToken(login.identitytoken.clone())));
    }
    if login.auth.is_empty() {
        if login.username.is_empty() {
            return Ok(None);
        }
        let (username, password) = (login.username.clone(), login.password.clone());
        return Ok(Some(Login::Password(Credentials { username, password })));
    }
    let decoded = BASE64.decode(login.auth.trim()).ok().and_then(|decoded| String::from_utf8(decoded).ok());
    // The password may contain colons.
    match decoded.as_deref().and_then(|decoded| decoded.split_once(':')) {
        Some((username, password)) => Ok(Some(Login::Password(Credentials {
            username: username.to_owned(),
            password: password.trim_end_matches('\0').to_owned(),
        }))),
        None => Err("its `auth` entry is not base64 of user:password; log in again".to_owned()),
    }
}

/// A key without scheme and API version; Docker's own registry under the name references use.
fn host_and_path(key: &str) -> String {
    let key = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
    let key = key.trim_end_matches('/');
    let key = key.strip_suffix("/v1").or_else(|| key.strip_suffix("/v2")).unwrap_or(key);
    match key {
        "index.docker.io" | "registry-1.docker.io" => "docker.io".to_owned(),
        key => key.to_owned(),
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

async fn ask_helper(name: &str, registry: &str) -> Result<Option<Login>, String> {
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        return Err(format!("`{name}` is not the name of a credential helper"));
    }
    let program = format!("docker-credential-{name}");
    let server = if registry == "docker.io" { DOCKER_IO_KEY } else { registry };
    let ask = async {
        let mut child = Command::new(&program)
            .arg("get")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A helper may answer without reading.
            let _ = stdin.write_all(format!("{server}\n").as_bytes()).await;
        }
        let mut output = Vec::new();
        if let Some(stdout) = child.stdout.take() {
            stdout.take(HELPER_OUTPUT_BYTES).read_to_end(&mut output).await?;
        }
        Ok::<_, io::Error>((child.wait().await?, output))
    };
    let (status, output) = tokio::time::timeout(HELPER_TIMEOUT, ask)
        .await
        .map_err(|_| format!("{program} did not answer within {} s", HELPER_TIMEOUT.as_secs()))?
        .map_err(|error| format!("{program} cannot be run: {error}"))?;
    if !status.success() {
        let message = String::from_utf8_lossy(&output);
        if message.trim() == HELPER_NOT_FOUND {
            return Ok(None);
        }
        let message: String = message.trim().chars().take(200).collect();
        return Err(format!("{program} failed ({status}): {message}"));
    }
    let answer: HelperAnswer =
        serde_json::from_slice(&output).map_err(|_| format!("{program} gave an answer that is not valid"))?;
    Ok(Some(Credentials { username: answer.username, password: answer.secret }.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(config: &str, reference: &str) -> Result<Option<Login>, ImageError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        std::fs::write(&path, config).unwrap();
        find(&path, &reference.parse().unwrap()).await
    }

    fn password(username: &str, password: &str) -> Option<Login> {
        Some(Login::Password(Credentials { username: username.to_owned(), password: password.to_owned() }))
    }

    #[tokio::test]
    async fn the_most_exact_entry_is_taken() {
        let config = r#"{"auths": {
            "r.example": {"auth": "aG9zdDpwOnE="},
            "r.example/team": {"username": "team", "password": "t"},
            "r.example/team/app": {"identitytoken": "refresh"},
            "https://index.docker.io/v1/": {"auth": "aHViOnB3"}
        }}"#;
        assert_eq!(found(config, "r.example/other").await.unwrap(), password("host", "p:q"));
        assert_eq!(found(config, "r.example/team/x").await.unwrap(), password("team", "t"));
        assert_eq!(found(config, "r.example/teammate/x").await.unwrap(), password("host", "p:q"));
        assert_eq!(
            found(config, "r.example/team/app").await.unwrap(),
            Some(Login::IdentityToken("refresh".to_owned()))
        );
        assert_eq!(found(config, "debian").await.unwrap(), password("hub", "pw"));
        assert_eq!(found(config, "other.example/a").await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_missing_file_means_no_login_and_a_broken_one_is_reported() {
        let reference = "r.example/a".parse().unwrap();
        assert_eq!(find(Path::new("/does/not/exist"), &reference).await.unwrap(), None);
        assert!(found("{", "r.example/a").await.is_err());
        assert!(found(r#"{"auths": {"r.example": {"auth": "!"}}}"#, "r.example/a").await.is_err());
    }

    #[tokio::test]
    async fn helper_names_that_are_paths_are_refused() {
        let config = r#"{"credHelpers": {"r.example": "../../tmp/evil"}}"#;
        let error = found(config, "r.example/a").await.unwrap_err();
        assert!(error.to_string().contains("not the name of a credential helper"), "{error}");
    }

    #[tokio::test]
    async fn a_missing_helper_is_reported() {
        let config = r#"{"credsStore": "does-not-exist"}"#;
        let error = found(config, "r.example/a").await.unwrap_err();
        assert!(error.to_string().contains("docker-credential-does-not-exist cannot be run"), "{error}");
    }

    #[test]
    fn passwords_are_not_shown() {
        let shown = format!("{:?}", password("me", "secret"));
        assert!(!shown.contains("secret"), "{shown}");
    }
}
