//! Paths of members, resolved inside the tree being built.
//!
//! Resolution is the kernel's (`openat2` with `RESOLVE_IN_ROOT`): a symlinked parent directory is followed as a process
//! running inside the image would, `..` and absolute targets stop at the root. Only when a component is missing
//! or in the way, the path is walked here, one component at a time.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, mkdirat, openat, openat2, readlinkat, statat,
};
use rustix::io::Errno;

use super::apply::ApplyError;
use crate::tar::Timestamp;

/// As many symbolic links as one path may go through; containerd's number, more than the kernel's 40.
const SYMLINKS: usize = 255;

/// Open parent directories kept, so that members in one directory need no new resolution.
const CACHED_PARENTS: usize = 128;

/// Directories are opened without read access, only to name entries in them.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory that members are put into.
#[derive(Debug)]
pub(super) struct Parent {
    pub fd: OwnedFd,
    pub inode: u64,
    /// New entries take the directory's group, and new directories this bit too.
    pub inherits_group: bool,
    /// New entries would get an ACL that their member does not have.
    pub has_default_acl: bool,
}

/// What is known about a directory this layer has touched.
#[derive(Debug)]
pub(super) struct Touched {
    /// A path that led to it, for setting its times at the end.
    pub path: Vec<u8>,
    /// Times it must have at the end: those its member gave, else those it had before this layer.
    pub modified: Timestamp,
    pub accessed: Timestamp,
    /// A default ACL would change the mode of entries made later, so it is set last.
    pub default_acl: Option<Vec<u8>>,
    /// Names in it that this layer has put there.
    pub unpacked: HashSet<Box<[u8]>>,
}

/// The tree being built.
#[derive(Debug)]
pub(super) struct Tree {
    pub root: OwnedFd,
    parents: HashMap<Vec<u8>, Rc<Parent>>,
    pub touched: HashMap<u64, Touched>,
    /// Modification time of the member being applied: parents made for it take this time, because they have no
    /// member of their own and the time of the conversion would not be reproducible.
    pub member_time: Timestamp,
}

impl Tree {
    pub(super) fn new(root: OwnedFd) -> Self {
        Self { root, parents: HashMap::new(), touched: HashMap::new(), member_time: Timestamp::default() }
    }

    /// The directory at `path` (cleaned, relative; empty for the root). Missing directories are made with mode 0755,
    /// others in the way are replaced.
    pub(super) fn parent(&mut self, path: &[u8]) -> Result<Rc<Parent>, ApplyError> {
        if let Some(parent) = self.parents.get(path) {
            return Ok(Rc::clone(parent));
        }
        let fd = match self.open_directory(path) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => self.make_directories(path)?,
            Err(error) => return Err(ApplyError::System("opening its parent directory", error)),
        };
        self.remember(path, fd)
    }

    /// The directory at `path` when it exists.
    pub(super) fn existing_parent(&mut self, path: &[u8]) -> Result<Option<Rc<Parent>>, ApplyError> {
        if let Some(parent) = self.parents.get(path) {
            return Ok(Some(Rc::clone(parent)));
        }
        match self.open_directory(path) {
            Ok(fd) => self.remember(path, fd).map(Some),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(ApplyError::System("opening its parent directory", error)),
        }
    }

    /// To be called when a directory or symbolic link has been removed: cached paths may lead elsewhere now.
    pub(super) fn forget_paths(&mut self) {
        self.parents.clear();
    }

    /// To be called when a directory has been removed: its inode number may be used again.
    pub(super) fn forget_directory(&mut self, inode: u64) {
        self.touched.remove(&inode);
    }

    /// Notes that this layer has put `name` into `parent`.
    pub(super) fn mark_unpacked(&mut self, parent: &Parent, name: &[u8]) {
        if let Some(touched) = self.touched.get_mut(&parent.inode) {
            touched.unpacked.insert(name.into());
        }
    }

    /// Whether this layer has put `name` into the directory with this inode number.
    pub(super) fn is_unpacked(&self, directory_inode: u64, name: &[u8]) -> bool {
        self.touched.get(&directory_inode).is_some_and(|touched| touched.unpacked.contains(name))
    }

    /// What is known of a directory; its present times are taken as those to restore when it is new here.
    pub(super) fn touch(&mut self, path: &[u8], stat: &Stat) -> &mut Touched {
        self.touched.entry(stat.st_ino).or_insert_with(|| Touched {
            path: path.to_vec(),
            modified: timestamp(stat.st_mtime, stat.st_mtime_nsec),
            accessed: timestamp(stat.st_atime, stat.st_atime_nsec),
            default_acl: None,
            unpacked: HashSet::new(),
        })
    }

    /// Opens a path for reading a directory, resolved as [`Self::parent`] does, without making anything.
    pub(super) fn open_for_listing(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat2(&self.root, non_empty(path), flags, Mode::empty(), resolve_flags())
    }

    fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        openat2(&self.root, non_empty(path), DIRECTORY, Mode::empty(), resolve_flags())
    }

    pub(super) fn remember(&mut self, path: &[u8], fd: OwnedFd) -> Result<Rc<Parent>, ApplyError> {
        let stat = fstat(&fd).map_err(|error| ApplyError::System("examining its parent directory", error))?;
        self.touch(path, &stat);
        if self.parents.len() >= CACHED_PARENTS {
            self.parents.clear();
        }
        let inherits_group = stat.st_mode & 0o2000 != 0;
        let has_default_acl = has_default_acl(&fd)?;
        let parent = Rc::new(Parent { fd, inode: stat.st_ino, inherits_group, has_default_acl });
        self.parents.insert(path.to_vec(), Rc::clone(&parent));
        Ok(parent)
    }

    /// Walks `path` from the root. Every directory on the way is held open, so that `..` in the target of a symbolic
    /// link is a step back in this list and cannot leave the tree.
    fn make_directories(&mut self, path: &[u8]) -> Result<OwnedFd, ApplyError> {
        let failed = |error| ApplyError::System("making its parent directory", error);
        let mut todo: VecDeque<Vec<u8>> = components(path).map(<[u8]>::to_vec).collect();
        let root = openat(&self.root, ".", DIRECTORY, Mode::empty()).map_err(failed)?;
        let mut walked: Vec<(Vec<u8>, OwnedFd)> = vec![(Vec::new(), root)];
        let mut symlinks = 0;
        while let Some(name) = todo.pop_front() {
            // The root is never popped, so there always is a last one.
            let Some((here_path, here)) = walked.last() else { break };
            if name == b".." {
                if walked.len() > 1 {
                    walked.pop();
                }
                continue;
            }
            let here_stat = fstat(here).map_err(failed)?;
            let found = match statat(here, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
                Err(Errno::NOENT) => None,
                Err(error) => return Err(failed(error)),
            };
            if found == Some(FileType::Symlink) {
                symlinks += 1;
                if symlinks > SYMLINKS {
                    return Err(failed(Errno::LOOP));
                }
                let target = readlinkat(here, name.as_slice(), Vec::new()).map_err(failed)?.into_bytes();
                if target.starts_with(b"/") {
                    walked.truncate(1);
                }
                for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
                    todo.push_front(component.to_vec());
                }
                continue;
            }
            if found != Some(FileType::Directory) {
                self.touch(here_path, &here_stat);
                if found.is_some() {
                    rustix::fs::unlinkat(here, name.as_slice(), AtFlags::empty()).map_err(failed)?;
                }
                mkdirat(here, name.as_slice(), Mode::from_raw_mode(0o755)).map_err(failed)?;
                if let Some(touched) = self.touched.get_mut(&here_stat.st_ino) {
                    touched.unpacked.insert(name.clone().into_boxed_slice());
                }
            }
            let flags = DIRECTORY | OFlags::NOFOLLOW;
            let next = openat(here, name.as_slice(), flags, Mode::empty()).map_err(failed)?;
            let next_path = join(here_path, &name);
            if found != Some(FileType::Directory) {
                let stat = fstat(&next).map_err(failed)?;
                let time = self.member_time;
                let touched = self.touch(&next_path, &stat);
                touched.modified = time;
                touched.accessed = time;
            }
            walked.push((next_path, next));
        }
        walked.pop().map(|(_, fd)| fd).ok_or_else(|| failed(Errno::NOENT))
    }
}

/// Extended attributes cannot be read through an `O_PATH` descriptor; the working directory of this thread can.
fn has_default_acl(directory: &OwnedFd) -> Result<bool, ApplyError> {
    let failed = |error| ApplyError::System("examining its parent directory", error);
    rustix::process::fchdir(directory).map_err(failed)?;
    let mut empty: [u8; 0] = [];
    match rustix::fs::getxattr(".", "system.posix_acl_default", &mut empty) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(failed(error)),
    }
}

fn resolve_flags() -> ResolveFlags {
    ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS
}

fn non_empty(path: &[u8]) -> &[u8] {
    if path.is_empty() { b"." } else { path }
}

/// Names between slashes, without empty ones and `.`.
fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && *name != b".")
}

pub(super) fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

/// The path of a member without a leading slash, `.`, and `..` that stay inside (as Go's `path.Clean`, which containerd
/// and Docker apply); an empty path is the root itself.
pub(super) fn clean(path: &[u8], limit: usize) -> Result<Vec<u8>, String> {
    let mut clean: Vec<&[u8]> = Vec::new();
    for name in components(path) {
        if name == b".." {
            if clean.pop().is_none() {
                return Err("its path leads out of the image".to_owned());
            }
        } else {
            clean.push(name);
        }
    }
    if clean.len() > limit {
        return Err(format!("its path has more than {limit} components"));
    }
    if clean.iter().any(|name| name.len() > 255) {
        return Err("its path has a component longer than 255 bytes".to_owned());
    }
    Ok(clean.join(&b'/'))
}

/// The directory and the last name of a cleaned path that is not empty.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|&byte| byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

pub(super) fn timestamp(seconds: i64, nanoseconds: impl TryInto<u32>) -> Timestamp {
    Timestamp { seconds, nanoseconds: nanoseconds.try_into().unwrap_or_default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_docker_does() {
        let cleaned = |path: &str| clean(path.as_bytes(), 8).map(|path| String::from_utf8(path).unwrap());
        assert_eq!(cleaned("a/b").as_deref(), Ok("a/b"));
        assert_eq!(cleaned("./a//b/./").as_deref(), Ok("a/b"));
        assert_eq!(cleaned("/etc/passwd").as_deref(), Ok("etc/passwd"));
        assert_eq!(cleaned("a/../b").as_deref(), Ok("b"));
        assert_eq!(cleaned("./").as_deref(), Ok(""));
        assert!(cleaned("../a").is_err());
        assert!(cleaned("a/../../b").is_err());
        assert!(cleaned("/../b").is_err());
        assert!(cleaned("1/2/3/4/5/6/7/8/9").is_err());
        assert!(cleaned(&"n".repeat(256)).is_err());
    }
}
