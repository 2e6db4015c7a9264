//! Named network namespaces, kept the way `ip netns` keeps them: `/run/netns/NAME` is a bind mount of the namespace.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::{
    MountPropagationFlags, UnmountFlags, mount_bind, mount_bind_recursive, mount_change, unmount,
};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

/// Where `ip netns` looks.
const DIRECTORY: &str = "/run/netns";
/// The calling thread's own namespace. `/proc/self` would be the first thread's.
const OWN: &str = "/proc/thread-self/ns/net";

/// The calling thread's namespace.
pub(crate) fn current() -> io::Result<File> {
    File::open(OWN)
}

/// Moves the calling thread. Only ever done on threads that end afterwards: a pooled thread would carry the namespace
/// into unrelated work.
pub(crate) fn enter(namespace: BorrowedFd<'_>) -> io::Result<()> {
    Ok(move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?)
}

/// Makes the directory of named namespaces a shared mount, as `ip netns add` does the first time it runs. Without that, a
/// later `ip netns add` would mount the directory over itself and our names under it could not be removed any more.
pub(crate) fn prepare_directory() -> io::Result<()> {
    fs::create_dir_all(DIRECTORY)?;
    let share = || mount_change(DIRECTORY, MountPropagationFlags::SHARED | MountPropagationFlags::REC);
    match share() {
        // Not a mount point yet.
        Err(Errno::INVAL) => {
            mount_bind_recursive(DIRECTORY, DIRECTORY)?;
            Ok(share()?)
        }
        other => Ok(other?),
    }
}

/// Claims `name`. Fails with `AlreadyExists` when another slot, finished or half made, has it.
pub(crate) fn claim(name: &str) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).open(path(name)).map(drop)
}

/// Opens the namespace called `name`; nothing when there is none, or only a name without a namespace.
pub(crate) fn open(name: &str) -> io::Result<Option<File>> {
    let file = match File::open(path(name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    // A claimed name without a mount is an ordinary file on another file system than the namespaces.
    let is_namespace = rustix::fs::fstatfs(&file)?.f_type == rustix::fs::FsWord::from(NAMESPACE_FILE_SYSTEM);
    Ok(is_namespace.then_some(file))
}
/// `NSFS_MAGIC` of linux/magic.h.
const NAMESPACE_FILE_SYSTEM: u32 = 0x6e73_6673;

/// Moves the calling thread into a new namespace and gives that the claimed `name`.
pub(crate) fn create(name: &str) -> io::Result<File> {
    // SAFETY: only CLONE_FILES makes unshare unsafe (threads with different descriptor tables); it is not among the flags.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
    mount_bind(OWN, path(name))?;
    current()
}

/// Removes the name; the namespace goes when nobody is in it any more. Succeeds when it is gone already.
pub(crate) fn remove(name: &str) -> io::Result<()> {
    let path = path(name);
    loop {
        match unmount(&path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Not mounted, or not there.
            Err(Errno::INVAL | Errno::NOENT) => break,
            Err(error) => return Err(error.into()),
        }
    }
    match fs::remove_file(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// All names, whoever made them.
pub(crate) fn names() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(DIRECTORY)? {
        names.extend(entry?.file_name().into_string());
    }
    Ok(names)
}

/// Sets a sysctl of the calling thread's namespace. A sysctl that does not exist (no IPv6 in the kernel) is left out.
pub(crate) fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    match fs::write(Path::new("/proc/sys").join(name), value) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Runs `work` in `namespace` and comes back to `home`.
pub(crate) fn within<T>(
    namespace: &impl AsFd,
    home: BorrowedFd<'_>,
    work: impl FnOnce() -> io::Result<T>,
) -> io::Result<T> {
    enter(namespace.as_fd())?;
    let outcome = work();
    enter(home)?;
    outcome
}

fn path(name: &str) -> PathBuf {
    Path::new(DIRECTORY).join(name)
}
