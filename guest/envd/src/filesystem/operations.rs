//! What the calls do.

use std::io;
use std::path::Path;

use protocol::connect::{Code, RpcError};
use protocol::envd::EntryInfo;

use super::entry::describe;
use super::ownership::{make_directories, make_parents};
use super::remove::remove_tree;
use crate::accounts::{Names, User};

/// Most entries of one listing: about 30 MiB of answer.
const ENTRIES_MAX: usize = 100_000;

/// Lists `depth` levels below `path`, parents before children and by name. A link at `path` itself is followed; links
/// below are listed and not entered.
pub(super) fn list(path: &Path, depth: u32, names: &Names) -> Result<Vec<EntryInfo>, RpcError> {
    let meta = path.metadata().map_err(|error| explain(&error, path))?;
    if !meta.is_dir() {
        return Err(RpcError::new(
            Code::InvalidArgument,
            format!("path is not a directory: {}", path.display()),
        ));
    }
    let mut entries = Vec::new();
    // What is still to be listed, the next one last. Not recursive: a tree can be deeper than a stack.
    let mut waiting = children(path, 1).map_err(|error| explain(&error, path))?;
    while let Some((path, level)) = waiting.pop() {
        let entry = match describe(&path, names) {
            Ok(entry) => entry,
            // Removed since its directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(explain(&error, &path)),
        };
        if entries.len() + waiting.len() >= ENTRIES_MAX {
            let message = format!("the listing has more than {ENTRIES_MAX} entries; ask for less depth");
            return Err(RpcError::new(Code::ResourceExhausted, message));
        }
        entries.push(entry);
        let is_directory = path.symlink_metadata().is_ok_and(|meta| meta.is_dir());
        if is_directory && level < depth {
            match children(&path, level + 1) {
                Ok(below) => waiting.extend(below),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(explain(&error, &path)),
            }
        }
    }
    Ok(entries)
}

/// The entries of a directory, the first by name last.
fn children(path: &Path, level: u32) -> io::Result<Vec<(std::path::PathBuf, u32)>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(path)?.take(ENTRIES_MAX + 1) {
        names.push(entry?.file_name());
    }
    names.sort_unstable_by(|left, right| right.cmp(left));
    Ok(names.into_iter().map(|name| (path.join(name), level)).collect())
}

/// Makes a directory and its parents.
pub(super) fn make_directory(path: &Path, user: &User) -> Result<(), RpcError> {
    match path.metadata() {
        Ok(meta) if meta.is_dir() => {
            Err(RpcError::new(Code::AlreadyExists, format!("directory already exists: {}", path.display())))
        }
        Ok(_) => {
            let message = format!("path already exists but it is not a directory: {}", path.display());
            Err(RpcError::new(Code::InvalidArgument, message))
        }
        Err(_) => make_directories(path, user).map_err(|error| explain(&error, path)),
    }
}

/// Renames an entry, making the parents of its new path and overwriting a file there.
pub(super) fn rename(source: &Path, destination: &Path, user: &User) -> Result<(), RpcError> {
    source.symlink_metadata().map_err(|error| explain(&error, source))?;
    make_parents(destination, user).map_err(|error| explain(&error, destination))?;
    std::fs::rename(source, destination).map_err(|error| match error.kind() {
        io::ErrorKind::CrossesDevices => RpcError::new(
            Code::FailedPrecondition,
            format!(
                "{} and {} are on different file systems; copy instead",
                source.display(),
                destination.display()
            ),
        ),
        _ => explain(&error, destination),
    })
}

/// Removes an entry and everything below it; a missing one is as good as removed.
pub(super) fn remove(path: &Path) -> Result<(), RpcError> {
    if path.parent().is_none() {
        return Err(RpcError::new(Code::InvalidArgument, "the root directory cannot be removed"));
    }
    match remove_tree(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(explain(&error, path)),
        _ => Ok(()),
    }
}

/// Says what went wrong with a path.
pub(super) fn explain(error: &io::Error, path: &Path) -> RpcError {
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::AlreadyExists => Code::AlreadyExists,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Code::PermissionDenied,
        io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::DirectoryNotEmpty
        | io::ErrorKind::InvalidInput
        | io::ErrorKind::InvalidFilename => Code::InvalidArgument,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Code::ResourceExhausted,
        _ => Code::Internal,
    };
    let reason = match error.kind() {
        io::ErrorKind::NotFound => "file not found".to_owned(),
        _ => error.to_string(),
    };
    RpcError::new(code, format!("{}: {reason}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> User {
        User {
            name: "me".into(),
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            home: "/".into(),
            shell: "/bin/sh".into(),
            groups: vec![],
        }
    }

    fn listed(path: &Path, depth: u32) -> Vec<String> {
        let entries = list(path, depth, &Names::default()).unwrap();
        entries
            .into_iter()
            .map(|entry| entry.path.strip_prefix(path.to_str().unwrap()).unwrap().to_owned())
            .collect()
    }

    #[test]
    fn listings_walk_by_name_with_parents_first_and_do_not_enter_links() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::create_dir_all(root.join("b/d/e")).unwrap();
        std::fs::write(root.join("b/c"), "").unwrap();
        std::fs::write(root.join("a"), "").unwrap();
        std::fs::write(root.join("b!"), "").unwrap();
        std::os::unix::fs::symlink("b", root.join("link")).unwrap();
        assert_eq!(listed(root, 1), ["/a", "/b", "/b!", "/link"]);
        assert_eq!(listed(root, 2), ["/a", "/b", "/b/c", "/b/d", "/b!", "/link"]);
        assert_eq!(listed(root, 9), ["/a", "/b", "/b/c", "/b/d", "/b/d/e", "/b!", "/link"]);
        assert_eq!(listed(&root.join("link"), 1), ["/c", "/d"]);
    }

    #[test]
    fn directories_are_made_with_parents_and_only_once() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("x/y/z");
        make_directory(&path, &me()).unwrap();
        assert_eq!(make_directory(&path, &me()).unwrap_err().code, Code::AlreadyExists);
        std::fs::write(path.join("file"), "").unwrap();
        assert_eq!(make_directory(&path.join("file"), &me()).unwrap_err().code, Code::InvalidArgument);
        assert_eq!(make_directory(&path.join("file/below"), &me()).unwrap_err().code, Code::InvalidArgument);
    }

    #[test]
    fn a_move_makes_parents_overwrites_files_and_needs_a_source() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path();
        std::fs::write(root.join("a"), "new").unwrap();
        std::fs::create_dir(root.join("p")).unwrap();
        std::fs::write(root.join("p/b"), "old").unwrap();
        rename(&root.join("a"), &root.join("p/b"), &me()).unwrap();
        assert_eq!(std::fs::read(root.join("p/b")).unwrap(), b"new");
        rename(&root.join("p"), &root.join("q/r/s"), &me()).unwrap();
        assert!(root.join("q/r/s/b").exists());
        assert_eq!(rename(&root.join("a"), &root.join("c"), &me()).unwrap_err().code, Code::NotFound);
    }

    #[test]
    fn removing_what_is_not_there_succeeds_and_the_root_stays() {
        let directory = tempfile::tempdir().unwrap();
        remove(&directory.path().join("missing")).unwrap();
        assert_eq!(remove(Path::new("/")).unwrap_err().code, Code::InvalidArgument);
    }
}
