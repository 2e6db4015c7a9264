//! Owner, mode, extended attributes and times, in the order that keeps them all: `chown` clears setuid bits and file
//! capabilities, so it comes first; times come last.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Stat, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat, fchmod,
    fchown, flistxattr, fremovexattr, fsetxattr, fstat, futimens, lsetxattr, statat, utimensat,
};
use rustix::io::Errno;

use super::Summary;
use super::apply::ApplyError;
use super::tree::{Parent, Tree};
use crate::tar::{Member, Timestamp};

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

/// Kernel's bound on the list of attribute names of one file (XATTR_LIST_MAX).
const XATTR_LIST_BYTES: usize = 65536;

/// Times of a member.
pub(super) struct Times {
    pub accessed: Timestamp,
    pub modified: Timestamp,
}

impl Times {
    pub(super) fn of(member: &Member) -> Self {
        Self { accessed: member.accessed.unwrap_or(member.modified), modified: member.modified }
    }

    fn timestamps(&self) -> Timestamps {
        Timestamps {
            last_access: Timespec::from(self.accessed),
            last_modification: Timespec::from(self.modified),
        }
    }
}

/// Sets everything on a file that was just made with the member's mode.
pub(super) fn set_on_file(
    member: &Member,
    parent: &Parent,
    file: &File,
    summary: &mut Summary,
) -> Result<(), ApplyError> {
    if changes_owner(member, parent) {
        change_owner(file, member)?;
    }
    if parent.has_default_acl {
        remove_xattr(file, ACCESS_ACL)?;
    }
    // `chown` has cleared these bits, and an inherited ACL has masked others.
    if parent.has_default_acl || (changes_owner(member, parent) && member.mode & 0o6000 != 0) {
        change_mode(file, member)?;
    }
    for (name, value) in &member.xattrs {
        set_xattr(name, fsetxattr(file, name.as_slice(), value, XattrFlags::empty()), summary)?;
    }
    futimens(file, &Times::of(member).timestamps())
        .map_err(|error| ApplyError::System("setting times", error))
}

/// Sets everything but the times (they come when the layer is done) on a new or kept directory. Returns a default ACL
/// to be set then too.
pub(super) fn set_on_directory(
    member: &Member,
    parent: &Parent,
    directory: &OwnedFd,
    existed: bool,
    summary: &mut Summary,
) -> Result<Option<Vec<u8>>, ApplyError> {
    if existed {
        remove_other_xattrs(directory, member)?;
    } else if parent.has_default_acl {
        remove_xattr(directory, ACCESS_ACL)?;
        remove_xattr(directory, DEFAULT_ACL)?;
    }
    if existed || changes_owner(member, parent) {
        change_owner(directory, member)?;
    }
    // A directory made in a setgid one has that bit whatever mode was asked for.
    if existed || parent.inherits_group || parent.has_default_acl || member.mode & 0o7000 != 0 {
        change_mode(directory, member)?;
    }
    let mut default_acl = None;
    for (name, value) in &member.xattrs {
        if name == DEFAULT_ACL {
            default_acl = Some(value.clone());
            continue;
        }
        set_xattr(name, fsetxattr(directory, name.as_slice(), value, XattrFlags::empty()), summary)?;
    }
    Ok(default_acl)
}

/// Sets everything on a symbolic link, device node or pipe that was just made.
pub(super) fn set_on_name(
    member: &Member,
    parent: &Parent,
    name: &[u8],
    summary: &mut Summary,
) -> Result<(), ApplyError> {
    let symlink = member.kind == crate::tar::MemberKind::Symlink;
    if changes_owner(member, parent) {
        change_owner_at(parent, name, member)?;
    }
    if !symlink && (changes_owner(member, parent) || parent.has_default_acl) {
        change_mode_at(parent, name, member)?;
    }
    set_xattrs_at(member, parent, name, summary)?;
    set_times_at(member, parent, name)
}

/// A hard link's header repeats the metadata of the file. What already is so is left alone, because even an idle `chown`
/// would drop file capabilities.
pub(super) fn set_on_link(
    member: &Member,
    parent: &Parent,
    name: &[u8],
    summary: &mut Summary,
) -> Result<(), ApplyError> {
    let stat = statat(&parent.fd, name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| ApplyError::System("examining a hard link", error))?;
    let symlink = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let owner_differs = (stat.st_uid, stat.st_gid) != (member.user_id, member.group_id);
    if owner_differs {
        change_owner_at(parent, name, member)?;
    }
    if !symlink && (owner_differs || stat.st_mode & 0o7777 != member.mode) {
        change_mode_at(parent, name, member)?;
    }
    set_xattrs_at(member, parent, name, summary)?;
    if !has_times(&stat, &Times::of(member)) {
        set_times_at(member, parent, name)?;
    }
    Ok(())
}

/// Sets the times and default ACLs of every directory the layer has touched: the member's times, or for a directory
/// without a member the times it had before, so that the result does not depend on when it was made.
pub(super) fn finish_directories(tree: &mut Tree, summary: &mut Summary) -> Result<(), ApplyError> {
    let touched = std::mem::take(&mut tree.touched);
    for (inode, touched) in touched {
        // The directory may have been removed, or its path may lead elsewhere by now.
        let Ok(directory) = tree.open_for_listing(&touched.path) else { continue };
        let stat = fstat(&directory).map_err(|error| ApplyError::System("examining a directory", error))?;
        if stat.st_ino != inode {
            continue;
        }
        let mut finish = || -> Result<(), ApplyError> {
            if let Some(acl) = &touched.default_acl {
                set_xattr(
                    DEFAULT_ACL,
                    fsetxattr(&directory, DEFAULT_ACL, acl, XattrFlags::empty()),
                    summary,
                )?;
            }
            let times = Times { accessed: touched.accessed, modified: touched.modified };
            futimens(&directory, &times.timestamps())
                .map_err(|error| ApplyError::System("setting times", error))
        };
        finish().map_err(|error| error.at(&touched.path))?;
    }
    Ok(())
}

/// We are root, so new entries are root's, unless the parent gives them its group.
fn changes_owner(member: &Member, parent: &Parent) -> bool {
    member.user_id != 0 || member.group_id != 0 || parent.inherits_group
}

fn owner(member: &Member) -> (Option<Uid>, Option<Gid>) {
    (Some(Uid::from_raw(member.user_id)), Some(Gid::from_raw(member.group_id)))
}

fn change_owner(file: impl AsFd, member: &Member) -> Result<(), ApplyError> {
    let (user, group) = owner(member);
    fchown(file, user, group).map_err(|error| ApplyError::System("setting the owner", error))
}

fn change_owner_at(parent: &Parent, name: &[u8], member: &Member) -> Result<(), ApplyError> {
    let (user, group) = owner(member);
    chownat(&parent.fd, name, user, group, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| ApplyError::System("setting the owner", error))
}

fn change_mode(file: impl AsFd, member: &Member) -> Result<(), ApplyError> {
    fchmod(file, Mode::from_raw_mode(member.mode))
        .map_err(|error| ApplyError::System("setting the mode", error))
}

/// Only for names known not to be symbolic links, which `fchmodat` would follow.
fn change_mode_at(parent: &Parent, name: &[u8], member: &Member) -> Result<(), ApplyError> {
    chmodat(&parent.fd, name, Mode::from_raw_mode(member.mode), AtFlags::empty())
        .map_err(|error| ApplyError::System("setting the mode", error))
}

fn set_times_at(member: &Member, parent: &Parent, name: &[u8]) -> Result<(), ApplyError> {
    utimensat(&parent.fd, name, &Times::of(member).timestamps(), AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|error| ApplyError::System("setting times", error))
}

/// There is no `lsetxattrat` before Linux 6.13; the working directory of this thread stands in for it.
fn set_xattrs_at(
    member: &Member,
    parent: &Parent,
    name: &[u8],
    summary: &mut Summary,
) -> Result<(), ApplyError> {
    if member.xattrs.is_empty() {
        return Ok(());
    }
    rustix::process::fchdir(&parent.fd)
        .map_err(|error| ApplyError::System("entering its directory", error))?;
    for (attribute, value) in &member.xattrs {
        let result = lsetxattr(name, attribute.as_slice(), value, XattrFlags::empty());
        set_xattr(attribute, result, summary)?;
    }
    Ok(())
}

/// Judges the result of setting an attribute. What ext4 cannot have on this kind of file (`user.*` on a link, unknown
/// namespaces) is counted and passed over, as containerd does.
fn set_xattr(name: &[u8], result: Result<(), Errno>, summary: &mut Summary) -> Result<(), ApplyError> {
    let refused = |reason: String| {
        Err(ApplyError::Refused(format!("its extended attribute `{}` {reason}", crate::tar::printable(name))))
    };
    match result {
        Ok(()) => Ok(()),
        Err(error @ (Errno::NOTSUP | Errno::PERM)) if name != CAPABILITY => {
            let _ = error;
            summary.skipped_xattrs += 1;
            Ok(())
        }
        // All attributes of a file share one 4 KiB block beside the inode.
        Err(Errno::NOSPC | Errno::RANGE | Errno::TOOBIG) => refused("does not fit into ext4".to_owned()),
        Err(error @ (Errno::INVAL | Errno::NOTSUP | Errno::PERM)) => refused(format!("is invalid: {error}")),
        Err(error) => Err(ApplyError::System("setting an extended attribute", error)),
    }
}

fn remove_xattr(file: impl AsFd, name: &[u8]) -> Result<(), ApplyError> {
    match fremovexattr(file, name) {
        Ok(()) | Err(Errno::NODATA | Errno::NOTSUP) => Ok(()),
        Err(error) => Err(ApplyError::System("removing an inherited ACL", error)),
    }
}

/// A directory listed again has the attributes of its new entry only, as on overlayfs.
fn remove_other_xattrs(directory: &OwnedFd, member: &Member) -> Result<(), ApplyError> {
    let failed = |error| ApplyError::System("removing a replaced extended attribute", error);
    let mut empty: [u8; 0] = [];
    if flistxattr(directory, &mut empty).map_err(failed)? == 0 {
        return Ok(());
    }
    let mut names = vec![0; XATTR_LIST_BYTES];
    let length = flistxattr(directory, &mut names).map_err(failed)?;
    for name in names[..length].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        if !member.xattrs.iter().any(|(kept, _)| kept == name) {
            match fremovexattr(directory, name) {
                Ok(()) | Err(Errno::NODATA | Errno::PERM | Errno::NOTSUP) => {}
                Err(error) => return Err(failed(error)),
            }
        }
    }
    Ok(())
}

fn has_times(stat: &Stat, times: &Times) -> bool {
    super::tree::timestamp(stat.st_mtime, stat.st_mtime_nsec) == times.modified
        && super::tree::timestamp(stat.st_atime, stat.st_atime_nsec) == times.accessed
}
