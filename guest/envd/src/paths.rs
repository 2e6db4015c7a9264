//! Paths as clients write them.

use std::path::{Component, Path, PathBuf};

use protocol::connect::{Code, RpcError};

/// Longest path that is looked at (`PATH_MAX`).
const PATH_BYTES_MAX: usize = 4096;

/// Turns a client's path into an absolute one without `.`, `..` and doubled slashes: `~` is `home`, a relative path is
/// below `base`. Symbolic links are not resolved.
pub(crate) fn resolve(path: &str, home: &Path, base: &Path) -> Result<PathBuf, RpcError> {
    let wrong = |reason: &str| Err(RpcError::new(Code::InvalidArgument, format!("path {path:?} {reason}")));
    if path.contains('\0') {
        return wrong("has a NUL byte");
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(RpcError::new(Code::InvalidArgument, "path is longer than 4096 bytes"));
    }
    match path.strip_prefix('~') {
        Some("") => Ok(home.to_owned()),
        Some(rest) if rest.starts_with('/') => Ok(clean(&home.join(rest.trim_start_matches('/')))),
        Some(_) => wrong("names another user's home; only ~ and ~/ are supported"),
        None => Ok(clean(&base.join(path))),
    }
}

fn clean(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => cleaned.push(name),
            // The parent of the root is the root.
            Component::ParentDir => drop(cleaned.pop()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(path: &str) -> Option<String> {
        let path = resolve(path, Path::new("/home/user"), Path::new("/work")).ok()?;
        Some(path.to_str().unwrap().to_owned())
    }

    #[test]
    fn absolute_relative_and_home_paths() {
        for (path, expected) in [
            ("/a/b", "/a/b"),
            ("/a//b/./../c/", "/a/c"),
            ("/../..", "/"),
            ("a", "/work/a"),
            ("", "/work"),
            ("../x", "/x"),
            ("~", "/home/user"),
            ("~/x y", "/home/user/x y"),
            ("~//x", "/home/user/x"),
            ("a~", "/work/a~"),
        ] {
            assert_eq!(resolved(path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn paths_nobody_can_mean_are_refused() {
        assert_eq!(resolved("~root/x"), None);
        assert_eq!(resolved("/a\0b"), None);
        assert_eq!(resolved(&"/a".repeat(3000)), None);
    }
}
