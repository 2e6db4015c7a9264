//! The user's own Docker credential file, `$DOCKER_CONFIG/config.json` or `~/.docker/config.json`.
//!
//! It is read here, and what it holds for the one registry is handed to the node, which may run as another user.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use image::{Credentials, Reference};

/// What the user's file has for the registry of `reference`; nothing when there is no file or no entry.
pub(super) async fn find(
    reference: &Reference,
    environment: impl Fn(&str) -> Option<OsString>,
) -> anyhow::Result<Option<Credentials>> {
    let Some(path) = file_path(environment) else { return Ok(None) };
    Ok(Credentials::from_docker_config(&path, reference).await?)
}

fn file_path(environment: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    match environment("DOCKER_CONFIG") {
        Some(directory) => Some(Path::new(&directory).join("config.json")),
        None => Some(Path::new(&environment("HOME")?).join(".docker/config.json")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_file_is_the_one_docker_uses() {
        let directory = tempfile::tempdir().unwrap();
        let reference = "r.example:5000/a/b:c".parse().unwrap();
        let home = directory.path().join("home");
        let docker = home.join(".docker");
        std::fs::create_dir_all(&docker).unwrap();
        // me:se:cret
        let file = r#"{"auths":{"r.example:5000":{"auth":"bWU6c2U6Y3JldA=="}}}"#;
        std::fs::write(docker.join("config.json"), file).unwrap();
        for (variable, value) in [("DOCKER_CONFIG", &docker), ("HOME", &home)] {
            let found =
                find(&reference, |name| (name == variable).then(|| value.clone().into())).await.unwrap();
            let expected = Credentials { username: "me".into(), password: "se:cret".into() };
            assert_eq!(found, Some(expected), "{variable}");
        }
        assert_eq!(find(&reference, |_| None).await.unwrap(), None);
    }
}
