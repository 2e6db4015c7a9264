//! Device nodes and links that programs expect and the device file system alone does not have (no udev runs here).

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};

const LINKS: [(&str, &str); 4] = [
    ("/proc/self/fd", "/dev/fd"),
    ("/proc/self/fd/0", "/dev/stdin"),
    ("/proc/self/fd/1", "/dev/stdout"),
    ("/proc/self/fd/2", "/dev/stderr"),
];

/// Character devices of the `misc` driver (major 10) that unprivileged programs may open; opening one asks the kernel
/// for its module.
const OPEN_TO_ALL: [(&str, u32); 2] = [("/dev/fuse", 229), ("/dev/net/tun", 200)];
const MISC_MAJOR: u32 = 10;

/// Completes `/dev`. Nothing here is needed to go on, so failures are passed over.
pub(crate) fn complete_dev() {
    for (target, link) in LINKS {
        let _ = symlink(target, link);
    }
    let _ = std::fs::create_dir_all("/dev/net");
    for (path, minor) in OPEN_TO_ALL {
        if !Path::new(path).exists() {
            let _ = mknodat(CWD, path, FileType::CharacterDevice, Mode::empty(), makedev(MISC_MAJOR, minor));
        }
        let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666));
    }
}
