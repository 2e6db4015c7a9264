//! Whiteouts and replacement: what a layer takes away from the layers below it.
//!
//! The rules are those of the OCI image specification: a member named `.wh.NAME`, whatever its type, hides NAME of
//! the lower layers; `.wh..wh..opq` hides everything the lower layers have in its directory. What this layer itself
//! has put there stays, whichever came first in the archive.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, fstat, openat, statat, unlinkat};
use rustix::io::Errno;

use super::apply::{ApplyError, unlink};
use super::tree::{Parent, Tree};

const PREFIX: &[u8] = b".wh.";
/// Names of AUFS's own bookkeeping begin so; only the opaque marker means anything.
const META_PREFIX: &[u8] = b".wh..wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Deepest directory that can be removed: each level takes a descriptor and a stack frame.
const REMOVE_DEPTH: usize = 4096;

/// mke2fs makes `/lost+found` as the first inode after the reserved ones; e2fsck wants it to stay.
const LOST_AND_FOUND_INODE: u64 = 11;

/// Whether a cleaned member path is a marker and not a file.
pub(super) fn is_marker(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    name.starts_with(PREFIX) || path.starts_with(META_PREFIX)
}

/// Applies a marker.
pub(super) fn apply(tree: &mut Tree, directory: &[u8], name: &[u8]) -> Result<(), ApplyError> {
    if name != OPAQUE && (name.starts_with(META_PREFIX) || directory.starts_with(META_PREFIX)) {
        return Ok(());
    }
    // A marker in a directory that does not exist hides nothing.
    let Some(parent) = tree.existing_parent(directory)? else { return Ok(()) };
    if name == OPAQUE {
        let listing = tree
            .open_for_listing(directory)
            .map_err(|error| ApplyError::System("listing an opaque directory", error))?;
        purge_entries(tree, &listing, parent.inode, 0)?;
        return Ok(());
    }
    let hidden = name.strip_prefix(PREFIX).unwrap_or(name);
    if hidden.is_empty() || hidden == b"." || hidden == b".." {
        return Err(ApplyError::Refused("it is a whiteout of no name".to_owned()));
    }
    purge(tree, &parent.fd, parent.inode, hidden, 0)?;
    Ok(())
}

/// Removes `name` and everything below it, to make room for a member.
pub(super) fn remove(tree: &mut Tree, parent: &Parent, name: &[u8]) -> Result<(), ApplyError> {
    let stat = statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW).map_err(removing)?;
    if stat.st_ino == LOST_AND_FOUND_INODE {
        return Err(ApplyError::Refused("`/lost+found` belongs to the file system".to_owned()));
    }
    remove_entry(tree, &parent.fd, name, FileType::from_raw_mode(stat.st_mode), 0)
}

fn remove_entry(
    tree: &mut Tree,
    parent: &OwnedFd,
    name: &[u8],
    kind: FileType,
    depth: usize,
) -> Result<(), ApplyError> {
    if kind != FileType::Directory {
        if kind == FileType::Symlink {
            tree.forget_paths();
        }
        return unlink(parent, name).map_err(removing);
    }
    tree.forget_paths();
    let directory = open(parent, name, depth)?;
    for (name, kind) in entries(&directory)? {
        remove_entry(tree, &directory, &name, kind, depth + 1)?;
    }
    forget(tree, &directory)?;
    unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(removing)
}

/// Removes what lower layers have under `name`. Returns whether nothing is left of it.
fn purge(
    tree: &mut Tree,
    parent: &OwnedFd,
    parent_inode: u64,
    name: &[u8],
    depth: usize,
) -> Result<bool, ApplyError> {
    let stat = match statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => stat,
        Err(Errno::NOENT) => return Ok(true),
        Err(error) => return Err(removing(error)),
    };
    if stat.st_ino == LOST_AND_FOUND_INODE {
        return Ok(false);
    }
    let unpacked = tree.is_unpacked(parent_inode, name);
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::Directory {
        if !unpacked {
            remove_entry(tree, parent, name, kind, depth)?;
        }
        return Ok(!unpacked);
    }
    // A lower directory that this layer has put something into remains as the way to it.
    let directory = open(parent, name, depth)?;
    let emptied = purge_entries(tree, &directory, stat.st_ino, depth + 1)?;
    if unpacked || !emptied {
        return Ok(false);
    }
    tree.forget_paths();
    forget(tree, &directory)?;
    unlinkat(parent, name, AtFlags::REMOVEDIR).map_err(removing)?;
    Ok(true)
}

/// Removes what lower layers have in a directory. Returns whether it is empty now.
fn purge_entries(
    tree: &mut Tree,
    directory: &OwnedFd,
    directory_inode: u64,
    depth: usize,
) -> Result<bool, ApplyError> {
    let mut emptied = true;
    for (name, _) in entries(directory)? {
        emptied &= purge(tree, directory, directory_inode, &name, depth)?;
    }
    Ok(emptied)
}

fn open(parent: &OwnedFd, name: &[u8], depth: usize) -> Result<OwnedFd, ApplyError> {
    if depth >= REMOVE_DEPTH {
        let reason = format!("what it replaces or hides is nested deeper than {REMOVE_DEPTH} directories");
        return Err(ApplyError::Refused(reason));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty()).map_err(removing)
}

fn forget(tree: &mut Tree, directory: &OwnedFd) -> Result<(), ApplyError> {
    let stat = fstat(directory).map_err(removing)?;
    tree.forget_directory(stat.st_ino);
    Ok(())
}

/// Names and types in a directory. Read as a whole, because removing while listing may skip entries.
fn entries(directory: &OwnedFd) -> Result<Vec<(Vec<u8>, FileType)>, ApplyError> {
    let mut found = Vec::new();
    for entry in Dir::read_from(directory.as_fd()).map_err(removing)? {
        let entry = entry.map_err(removing)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            found.push((name.to_vec(), entry.file_type()));
        }
    }
    Ok(found)
}

fn removing(error: Errno) -> ApplyError {
    ApplyError::System("removing what it replaces or hides", error)
}
