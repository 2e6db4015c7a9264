//! Looking into a converted layer through the kernel's ext4.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

/// A disk mounted read-only.
pub(crate) struct Mounted {
    directory: TempDir,
}

impl Mounted {
    pub(crate) fn new(disk: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("image-test-mount-").tempdir().unwrap();
        let status = Command::new("mount")
            .args(["-t", "ext4", "-o", "loop,ro"])
            .arg(disk)
            .arg(directory.path())
            .status();
        assert!(status.unwrap().success(), "mounting {} failed", disk.display());
        Self { directory }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.directory.path().join(path)
    }

    /// Every entry in the columns of the golden trees: path, type, mode, owner, size, names, content, attributes.
    pub(crate) fn tree(&self) -> Vec<String> {
        let output = Command::new("python3")
            .arg("-c")
            .arg(TREE)
            .arg(self.directory.path())
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let status = Command::new("umount").arg(self.directory.path()).status();
        assert!(std::thread::panicking() || status.unwrap().success(), "unmounting failed");
    }
}

/// The file system is what `e2fsck` accepts without a remark.
pub(crate) fn assert_sound(disk: &Path) {
    let output = Command::new("e2fsck").arg("-fn").arg(disk).output().unwrap();
    assert!(
        output.status.success(),
        "e2fsck -fn {}: {}{}",
        disk.display(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

const TREE: &str = r#"
import hashlib, os, stat, sys
root = sys.argv[1].encode()
found = []
for directory, names, files in os.walk(root):
    for name in names + files:
        found.append(os.path.join(directory, name))
for path in sorted(found, key=lambda path: path[len(root) + 1:]):
    status = os.lstat(path)
    kind, links, content, size = "file", status.st_nlink, "-", status.st_size
    if stat.S_ISDIR(status.st_mode):
        kind, links, size = "dir", 0, 0
    elif stat.S_ISLNK(status.st_mode):
        kind, content, size = "symlink", os.readlink(path).decode(), 0
    elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        kind = "char" if stat.S_ISCHR(status.st_mode) else "block"
        content = "%d:%d" % (os.major(status.st_rdev), os.minor(status.st_rdev))
    elif stat.S_ISFIFO(status.st_mode):
        kind = "fifo"
    else:
        content = hashlib.sha256(open(path, "rb").read()).hexdigest()
    attributes = []
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        attributes.append("%s=%s" % (name, os.getxattr(path, name, follow_symlinks=False).hex()))
    columns = [path[len(root) + 1:].decode(), kind, "%o" % stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid,
               size, links, content, ";".join(attributes) or "-"]
    print("\t".join(map(str, columns)))
"#;
