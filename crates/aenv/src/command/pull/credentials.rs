//! Credentials for a registry from Docker's credential file, `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`.
//!
//! The user's own file is read here and what it holds for the one registry is handed to the node, which may run as another
//! user. The file's format: <https://github.com/docker/cli/blob/master/cli/config/configfile/file.go>, its helpers':
//! <https://github.com/docker/docker-credential-helpers>.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use protocol::connect::json::decode_base64;
use serde::Deserialize;

/// Name under which the file holds Docker Hub.
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";
const MAX_FILE_BYTES: u64 = 1 << 20;

/// What a registry asks for.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credentials {
    pub(super) username: String,
    pub(super) password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct File {
    auths: BTreeMap<String, Entry>,
    creds_store: Option<String>,
    cred_helpers: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct HelperAnswer {
    username: String,
    secret: String,
}

/// What the user's file has for the registry of `reference`; nothing when there is no file or no entry.
pub(super) fn find(
    reference: &str,
    environment: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Option<Credentials>> {
    let Some(path) = file_path(environment) else { return Ok(None) };
    let size = match std::fs::metadata(&path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| format!("look at {}", path.display())),
    };
    if size > MAX_FILE_BYTES {
        bail!("{} has {size} bytes: that is no credential file", path.display());
    }
    let text = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
    let file: File =
        serde_json::from_slice(&text).with_context(|| format!("{} is no credential file", path.display()))?;
    look_up(&file, registry_of(reference), &path)
}

fn file_path(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    match environment("DOCKER_CONFIG") {
        Some(directory) => Some(Path::new(&directory).join("config.json")),
        None => Some(Path::new(&environment("HOME")?).join(".docker/config.json")),
    }
}

/// The first component is a registry when it looks like a host name; otherwise the image is on Docker Hub.
fn registry_of(reference: &str) -> &str {
    match reference.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => host,
        _ => "docker.io",
    }
}

fn look_up(file: &File, registry: &str, path: &Path) -> anyhow::Result<Option<Credentials>> {
    let is_hub = matches!(registry, "docker.io" | "index.docker.io" | "registry-1.docker.io");
    let key = if is_hub { DOCKER_HUB_KEY } else { registry };
    if let Some(helper) = file.cred_helpers.get(registry).or(file.creds_store.as_ref())
        && let Some(found) = ask_helper(helper, key)?
    {
        return Ok(Some(found));
    }
    let entry = file.auths.iter().find(|(name, _)| *name == key || host_of(name) == registry);
    let Some((_, entry)) = entry else { return Ok(None) };
    if let (Some(username), Some(password)) = (&entry.username, &entry.password) {
        return Ok(Some(Credentials { username: username.clone(), password: password.clone() }));
    }
    let Some(auth) = entry.auth.as_ref().filter(|auth| !auth.is_empty()) else { return Ok(None) };
    let bad = || format!("{}: the entry for {registry} is damaged; log in again", path.display());
    let decoded = String::from_utf8(decode_base64(auth).with_context(bad)?).with_context(bad)?;
    let (username, password) = decoded.split_once(':').with_context(bad)?;
    let password = password.trim_end_matches('\0').to_owned();
    Ok(Some(Credentials { username: username.to_owned(), password }))
}

/// Entries may be addresses: `https://host/v2/`.
fn host_of(name: &str) -> &str {
    let rest = name.split_once("://").map_or(name, |(_, rest)| rest);
    rest.split('/').next().unwrap_or(rest)
}

fn ask_helper(helper: &str, key: &str) -> anyhow::Result<Option<Credentials>> {
    if !helper.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)) {
        bail!("Docker's credential file names a helper {helper:?}, which is no program name");
    }
    let program = format!("docker-credential-{helper}");
    let context = || format!("ask {program} for the credentials of {key}");
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .with_context(context)?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(key.as_bytes()).with_context(context)?;
    }
    let output = child.wait_with_output().with_context(context)?;
    if !output.status.success() {
        // That is how helpers say that they have nothing.
        return Ok(None);
    }
    let answer: HelperAnswer = serde_json::from_slice(&output.stdout).with_context(context)?;
    Ok(Some(Credentials { username: answer.username, password: answer.secret }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_file(text: &str, reference: &str) -> anyhow::Result<Option<(String, String)>> {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("config.json"), text).unwrap();
        let home = directory.path().as_os_str().to_owned();
        let found = find(reference, |name| (name == "DOCKER_CONFIG").then(|| home.clone()))?;
        Ok(found.map(|found| (found.username, found.password)))
    }

    #[test]
    fn the_entry_of_the_registry_is_found_in_every_spelling() {
        let pair = Some(("me".to_owned(), "se:cret".to_owned()));
        // me:se:cret
        for name in ["r.example:5000", "https://r.example:5000", "https://r.example:5000/v2/"] {
            let file = format!(r#"{{"auths":{{"{name}":{{"auth":"bWU6c2U6Y3JldA=="}}}},"other":1}}"#);
            assert_eq!(in_file(&file, "r.example:5000/a/b:c").unwrap(), pair, "{name}");
            assert_eq!(in_file(&file, "other.example/a").unwrap(), None);
        }
        let hub = format!(r#"{{"auths":{{"{DOCKER_HUB_KEY}":{{"username":"me","password":"se:cret"}}}}}}"#);
        for reference in ["debian:12", "library/debian", "docker.io/library/debian"] {
            assert_eq!(in_file(&hub, reference).unwrap(), pair, "{reference}");
        }
    }

    #[test]
    fn no_file_and_no_entry_are_no_credentials() {
        assert_eq!(find("a", |_| None).unwrap(), None);
        assert_eq!(find("a", |_| Some("/nonexistent".into())).unwrap(), None);
        assert_eq!(in_file("{}", "a").unwrap(), None);
        assert_eq!(in_file(r#"{"auths":{"r.example":{}}}"#, "r.example/a").unwrap(), None);
    }

    #[test]
    fn damage_is_named_without_the_secret() {
        let error = in_file(r#"{"auths":{"r.example":{"auth":"!!!"}}}"#, "r.example/a").unwrap_err();
        assert!(format!("{error:#}").contains("r.example"), "{error:#}");
        assert!(in_file("not json", "a").is_err());
        assert!(in_file(r#"{"credsStore":"../evil"}"#, "a").is_err());
    }

    #[test]
    fn a_password_is_not_printed() {
        let credentials = Credentials { username: "me".into(), password: "hunter2".into() };
        assert!(!format!("{credentials:?}").contains("hunter2"));
    }
}
