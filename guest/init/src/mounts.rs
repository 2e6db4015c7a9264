//! The kernel's own file systems.

use std::ffi::CStr;
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use crate::{BootError, console};

/// One file system to mount.
struct Mount {
    kind: &'static str,
    target: &'static str,
    flags: MountFlags,
    options: Option<&'static CStr>,
    /// Whether a guest without it is of no use.
    required: bool,
}

const SAFE: MountFlags = MountFlags::NOSUID.union(MountFlags::NOEXEC).union(MountFlags::NODEV);

/// In mounting order. The image's own `/run` and `/tmp` stay, as they do in a container: images put files there.
const MOUNTS: &[Mount] = &[
    Mount { kind: "proc", target: "/proc", flags: SAFE, options: None, required: true },
    Mount { kind: "sysfs", target: "/sys", flags: SAFE, options: None, required: true },
    Mount {
        kind: "devtmpfs",
        target: "/dev",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        options: Some(c"mode=755"),
        required: true,
    },
    Mount {
        kind: "devpts",
        target: "/dev/pts",
        flags: MountFlags::NOSUID.union(MountFlags::NOEXEC),
        // 5 is the group `tty` everywhere.
        options: Some(c"gid=5,mode=620,ptmxmode=666"),
        required: false,
    },
    Mount {
        kind: "tmpfs",
        target: "/dev/shm",
        flags: MountFlags::NOSUID.union(MountFlags::NODEV),
        options: Some(c"mode=1777"),
        required: false,
    },
    Mount { kind: "mqueue", target: "/dev/mqueue", flags: SAFE, options: None, required: false },
    Mount {
        kind: "cgroup2",
        target: "/sys/fs/cgroup",
        flags: SAFE,
        options: Some(c"nsdelegate"),
        required: false,
    },
];

/// Mounts the device file system in the initramfs, which is all that is needed to reach the user's disk.
pub(crate) fn mount_early() -> Result<(), BootError> {
    ensure_directory(Path::new("/dev")).map_err(|source| BootError::Directory { path: "/dev", source })?;
    match mount("devtmpfs", "/dev", "devtmpfs", MountFlags::NOSUID, None) {
        // The kernel may have mounted it already (CONFIG_DEVTMPFS_MOUNT).
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(source) => Err(BootError::Mount { what: "the device file system", target: "/dev", source }),
    }
}

/// Mounts everything in the user's root, making mount points the image lacks.
pub(crate) fn mount_in_user_root() -> Result<(), BootError> {
    for entry in MOUNTS {
        let target = Path::new(entry.target);
        let made = ensure_directory(target);
        let mounted = mount(entry.kind, target, entry.kind, entry.flags, entry.options);
        match (made, mounted) {
            (_, Ok(())) => {}
            (Err(source), Err(_)) if entry.required => {
                return Err(BootError::Directory { path: entry.target, source });
            }
            (_, Err(source)) if entry.required => {
                return Err(BootError::Mount { what: entry.kind, target: entry.target, source });
            }
            (_, Err(error)) => console::log(format_args!("{} not mounted: {error}", entry.target)),
        }
    }
    for (path, mode) in [("/run", 0o755), ("/tmp", 0o1777)] {
        if let Err(error) = ensure_directory_with_mode(Path::new(path), mode) {
            console::log(format_args!("{path} is not usable: {error}"));
        }
    }
    Ok(())
}

/// Makes `path` a directory. What stands in the way (a file, a dangling symbolic link) is replaced: a mount point the
/// guest cannot do without is worth more than an entry nothing could use as a directory.
pub(crate) fn ensure_directory(path: &Path) -> io::Result<()> {
    ensure_directory_with_mode(path, 0o755)
}

fn ensure_directory_with_mode(path: &Path, mode: u32) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if path.symlink_metadata().is_ok() {
        std::fs::remove_file(path)?;
    }
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path)?;
    // The mode given at creation goes through the umask.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dangling_link_in_place_of_a_mount_point_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run");
        std::os::unix::fs::symlink("/nowhere/at/all", &path).unwrap();
        ensure_directory(&path).unwrap();
        assert!(path.symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn a_link_to_a_directory_is_kept() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("real")).unwrap();
        let path = root.path().join("run");
        std::os::unix::fs::symlink("real", &path).unwrap();
        ensure_directory(&path).unwrap();
        assert!(path.symlink_metadata().unwrap().is_symlink());
    }

    #[test]
    fn a_missing_tmp_gets_the_sticky_bit_and_an_existing_one_keeps_its_mode() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("tmp");
        ensure_directory_with_mode(&path, 0o1777).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o1777);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        ensure_directory_with_mode(&path, 0o1777).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o700);
    }
}
