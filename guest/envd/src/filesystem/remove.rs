//! Removing a tree.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

/// Deepest tree that is removed. Each level holds a descriptor; no program works in deeper ones, because their paths
/// are longer than the kernel takes.
const DEPTH_MAX: usize = 4096;

/// A directory whose content is being removed.
struct Level {
    /// In the directory above.
    name: CString,
    directory: OwnedFd,
    entries: Dir,
}

/// Removes the entry at `path` and everything below it. Symbolic links are removed, never followed, also when a
/// directory is exchanged for a link meanwhile. Not recursive: a tree can be deeper than a stack.
pub(super) fn remove_tree(path: &Path) -> io::Result<()> {
    match unlinkat(CWD, path, AtFlags::empty()) {
        Ok(()) => return Ok(()),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    let name = CString::new(path.as_os_str().as_encoded_bytes())?;
    let mut levels = vec![enter(CWD, name)?];
    while let Some(level) = levels.last_mut() {
        let Some(entry) = level.entries.read() else {
            let done = levels.pop();
            let Some(done) = done else { break };
            let result = match levels.last() {
                Some(above) => unlinkat(&above.directory, &done.name, AtFlags::REMOVEDIR),
                None => unlinkat(CWD, &done.name, AtFlags::REMOVEDIR),
            };
            match result {
                Ok(()) | Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            }
        };
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match unlinkat(&level.directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => {
                let below = enter(&level.directory, name.to_owned())?;
                if levels.len() >= DEPTH_MAX {
                    return Err(io::Error::other(format!("the tree is deeper than {DEPTH_MAX} directories")));
                }
                levels.push(below);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn enter(above: impl std::os::fd::AsFd, name: CString) -> io::Result<Level> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(above, &name, flags, Mode::empty())?;
    let entries = Dir::read_from(&directory)?;
    Ok(Level { name, directory, entries })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_goes_and_what_its_links_lead_to_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, outside) = (directory.path().join("tree"), directory.path().join("outside"));
        std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "").unwrap();
        std::fs::write(tree.join("a/b/file"), "").unwrap();
        std::os::unix::fs::symlink(&outside, tree.join("a/link")).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && outside.join("kept").exists());
        std::os::unix::fs::symlink(&outside, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(tree.symlink_metadata().is_err() && outside.join("kept").exists());
    }

    #[test]
    fn a_tree_too_deep_for_any_path_is_removed() {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let mut current: OwnedFd = std::fs::File::open(&top).unwrap().into();
        for _ in 0..900 {
            rustix::fs::mkdirat(&current, "deeper", Mode::RWXU).unwrap();
            current = openat(&current, "deeper", OFlags::RDONLY, Mode::empty()).unwrap();
        }
        drop(current);
        remove_tree(&top).unwrap();
        assert!(!top.exists());
    }

    #[test]
    fn a_missing_entry_is_an_error_of_that_kind() {
        let error = remove_tree(Path::new("/nonexistent/x")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
