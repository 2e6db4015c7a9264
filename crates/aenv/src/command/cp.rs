//! `aenv cp`: files and directories between this machine and a sandbox.
//!
//! A file travels through the daemon's `/files`. A directory travels as a tar stream to or from the busybox of the tools
//! disk, which keeps modes, times and symbolic links, and needs nothing of the image.

mod directory;
mod file;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::cli::CpArguments;
use crate::client::Node;
use crate::client::guest::Guest;

/// One side of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Place {
    Local(PathBuf),
    Sandbox { id: String, path: String },
}

impl Place {
    /// `ID:PATH` is in a sandbox, unless there is a slash before the colon.
    fn parse(text: &str) -> Self {
        match text.split_once(':') {
            Some((id, path)) if !id.is_empty() && !id.contains('/') => {
                Self::Sandbox { id: id.to_owned(), path: path.to_owned() }
            }
            _ => Self::Local(text.into()),
        }
    }
}

pub(crate) async fn run(node: &Node, arguments: CpArguments) -> anyhow::Result<()> {
    match (Place::parse(&arguments.source), Place::parse(&arguments.destination)) {
        (Place::Local(source), Place::Sandbox { id, path }) => {
            // Before the sandbox is asked: a misspelt local name is found out at once.
            let metadata =
                std::fs::metadata(&source).with_context(|| format!("cannot read {}", source.display()))?;
            let guest = Guest::find(node, &id, arguments.user).await?;
            let path = if path.is_empty() { "." } else { path.as_str() };
            let target = target_in_sandbox(&guest, path, &source).await?;
            if metadata.is_dir() {
                directory::send(&guest, &source, &target).await
            } else {
                file::send(&guest, &source, &target).await
            }
        }
        (Place::Sandbox { id, path }, Place::Local(destination)) => {
            let guest = Guest::find(node, &id, arguments.user).await?;
            let Some(entry) = guest.stat(&path).await? else {
                bail!("there is no {path} in sandbox {id}");
            };
            let target = target_here(&destination, &entry.path);
            if entry.kind == protocol::envd::FileType::Directory {
                directory::fetch(&guest, &entry.path, &target).await
            } else {
                file::fetch(&guest, &entry.path, &target).await
            }
        }
        (Place::Local(_), Place::Local(_)) => {
            bail!("one of the two has to be in a sandbox, written ID:PATH")
        }
        (Place::Sandbox { .. }, Place::Sandbox { .. }) => {
            bail!("a copy between sandboxes goes through this machine: copy out first, then in")
        }
    }
}

/// A copy into an existing directory goes under its own name, otherwise it gets the name of the destination.
async fn target_in_sandbox(guest: &Guest, path: &str, source: &Path) -> anyhow::Result<String> {
    if !path.ends_with('/') && !guest.is_directory(path).await? {
        return Ok(path.to_owned());
    }
    let source = source.canonicalize().with_context(|| format!("cannot resolve {}", source.display()))?;
    let name = source.file_name().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("the name of {} is not UTF-8", source.display()))?;
    Ok(format!("{}/{name}", path.trim_end_matches('/')))
}

fn target_here(destination: &Path, source: &str) -> PathBuf {
    // The name comes from the sandbox: only a last component is taken from it, never `..`.
    match Path::new(source).file_name() {
        Some(name) if destination.is_dir() => destination.join(name),
        _ => destination.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_colon_makes_a_sandbox_path_unless_a_slash_precedes_it() {
        let sandbox = |id: &str, path: &str| Place::Sandbox { id: id.into(), path: path.into() };
        assert_eq!(Place::parse("i1:/etc/passwd"), sandbox("i1", "/etc/passwd"));
        assert_eq!(Place::parse("i1:a:b"), sandbox("i1", "a:b"));
        assert_eq!(Place::parse("i1:"), sandbox("i1", ""));
        for local in ["./a:b", "/a:b", "a", ":a"] {
            assert_eq!(Place::parse(local), Place::Local(local.into()), "{local}");
        }
    }

    #[test]
    fn the_name_from_a_sandbox_stays_inside_the_destination() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(target_here(directory.path(), "/a/b"), directory.path().join("b"));
        assert_eq!(target_here(directory.path(), "/a/.."), directory.path());
        assert_eq!(target_here(&directory.path().join("new"), "/a/b"), directory.path().join("new"));
    }
}
