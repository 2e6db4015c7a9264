//! Entering the user's disk.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_move, unmount};

use crate::{BootError, mounts};

/// Read-only disk with the guest daemon and a static shell.
const TOOLS_DISK: &str = "/dev/vda";
/// The user's image, writable.
const USER_DISK: &str = "/dev/vdb";
/// Where the tools appear in the user's root.
const TOOLS_DIRECTORY: &str = "/agentenv";
/// Where the user's disk is first mounted, in the initramfs.
const NEW_ROOT: &str = "/newroot";
/// Devices are probed while their module is inserted, so they are normally there at once; a busy host may take longer.
const DISK_DEADLINE: Duration = Duration::from_secs(15);
const DISK_POLL: Duration = Duration::from_millis(1);

/// Mounts the user's disk and makes it the root directory; the initramfs gives its memory back.
pub(crate) fn enter_user_disk() -> Result<(), BootError> {
    wait_for_disk(USER_DISK)?;
    mounts::ensure_directory(Path::new(NEW_ROOT))
        .map_err(|source| BootError::Directory { path: NEW_ROOT, source })?;
    // A disk that fails stops being written, rather than being carried on with as if nothing had happened.
    mount(USER_DISK, NEW_ROOT, "ext4", MountFlags::empty(), Some(c"errors=remount-ro")).map_err(
        |source| BootError::Mount { what: "the user's disk (/dev/vdb, ext4)", target: "/", source },
    )?;

    let failed = |step| move |source: Errno| BootError::SwitchRoot { step, source };
    // The initramfs cannot be unmounted or pivoted away (it is the kernel's rootfs): empty it, then mount over it.
    unmount("/dev", UnmountFlags::DETACH).map_err(failed("leaving the old /dev"))?;
    free_initramfs();
    rustix::process::chdir(NEW_ROOT).map_err(failed("chdir"))?;
    mount_move(".", "/").map_err(failed("moving the mount"))?;
    rustix::process::chroot(".").map_err(failed("chroot"))?;
    rustix::process::chdir("/").map_err(failed("chdir to the new root"))
}

/// Mounts the tools disk at `/agentenv`, read-only.
pub(crate) fn mount_tools() -> Result<(), BootError> {
    wait_for_disk(TOOLS_DISK)?;
    mounts::ensure_directory(Path::new(TOOLS_DIRECTORY))
        .map_err(|source| BootError::Directory { path: TOOLS_DIRECTORY, source })?;
    let flags = MountFlags::RDONLY | MountFlags::NODEV | MountFlags::NOSUID;
    mount(TOOLS_DISK, TOOLS_DIRECTORY, "ext4", flags, None).map_err(|source| BootError::Mount {
        what: "the tools disk (/dev/vda, ext4, read-only)",
        target: TOOLS_DIRECTORY,
        source,
    })
}

fn wait_for_disk(device: &'static str) -> Result<(), BootError> {
    let start = Instant::now();
    while !Path::new(device).exists() {
        if start.elapsed() >= DISK_DEADLINE {
            return Err(BootError::DiskMissing { device, waited_ms: start.elapsed().as_millis() });
        }
        std::thread::sleep(DISK_POLL);
    }
    Ok(())
}

/// Deletes what the host put into the initramfs: it lives in memory, and nothing can reach it any more.
fn free_initramfs() {
    // Failing costs a little memory and nothing else.
    let _ = std::fs::remove_file("/init");
    let _ = std::fs::remove_dir_all("/modules");
}
