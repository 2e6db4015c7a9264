//! The read-only ext4 disk with the programs that run in every guest.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::AssetsError;
use crate::run::run;

/// Fixed, because equal content must give equal bytes. Nothing looks the disk up by it.
const UUID: &str = "7a1b6d0e-3f7d-4a53-9d9c-1c4f0b6f2d11";
const LIMIT: Duration = Duration::from_secs(60);
const MISSING: &str = "install e2fsprogs";
/// Larger blocks would arrive as unaligned requests on a 4096-byte page cache, smaller ones cost time.
const BLOCK_BYTES: u64 = 4096;
/// Room for the file system's own structures beside the files.
const OVERHEAD_BYTES: u64 = 1 << 20;

/// Programs on the disk.
#[derive(Debug)]
pub(crate) struct Tools<'a> {
    pub(crate) envd: &'a [u8],
    pub(crate) busybox: &'a [u8],
}

/// Makes the image. `scratch` is an empty directory on any file system.
pub(crate) fn build(tools: &Tools<'_>, scratch: &Path, image: &Path) -> Result<(), AssetsError> {
    let root = scratch.join("tools");
    lay_out(tools, &root)
        .map_err(AssetsError::io(format!("lay out the tools disk in {}", root.display())))?;
    let size_bytes = (tools.envd.len() + tools.busybox.len()) as u64 + OVERHEAD_BYTES;
    // The size is given in blocks because a number without a unit means kibibytes to mke2fs for small block sizes only.
    let blocks = size_bytes.div_ceil(BLOCK_BYTES);
    let extended = format!("root_owner=0:0,hash_seed={UUID},lazy_itable_init=0");
    run(
        tool("mke2fs")
            .args([
                "-q",
                "-F",
                "-t",
                "ext4",
                "-b",
                &BLOCK_BYTES.to_string(),
                "-O",
                "^has_journal,^resize_inode",
            ])
            .args(["-m", "0", "-N", "64", "-U", UUID, "-E", &extended, "-d"])
            .arg(&root)
            .arg(image)
            .arg(blocks.to_string()),
        LIMIT,
        MISSING,
    )?;
    make_reproducible(scratch, image)
}

fn lay_out(tools: &Tools<'_>, root: &Path) -> std::io::Result<()> {
    let binaries = root.join("bin");
    fs::create_dir_all(&binaries)?;
    for (name, content) in [("aenv-envd", tools.envd), ("busybox", tools.busybox)] {
        let path = binaries.join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, Permissions::from_mode(0o755))?;
    }
    for directory in [root, &binaries] {
        fs::set_permissions(directory, Permissions::from_mode(0o755))?;
    }
    symlink("busybox", binaries.join("sh"))
}

/// mke2fs copies owner and times from the files it is given, and a file's change time cannot be set on the host, so both
/// are overwritten in the image.
fn make_reproducible(scratch: &Path, image: &Path) -> Result<(), AssetsError> {
    let mut script = String::new();
    for path in ["/", "/lost+found", "/bin", "/bin/aenv-envd", "/bin/busybox", "/bin/sh"] {
        for field in ["ctime @1", "atime @1", "mtime @1", "crtime @1", "uid 0", "gid 0"] {
            script.push_str(&format!("set_inode_field {path} {field}\n"));
        }
    }
    let commands = scratch.join("debugfs-commands");
    fs::write(&commands, script).map_err(AssetsError::io(format!("write {}", commands.display())))?;
    run(tool("debugfs").arg("-w").arg("-f").arg(&commands).arg(image), LIMIT, MISSING).map(drop)
}

/// A tool of e2fsprogs, which lives in `/sbin` and so outside of some users' search path.
fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    // Stamps of the file system itself; "now" would change every image.
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("E2FSPROGS_FAKE_TIME", "1");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_made_at_different_times_are_equal_sound_and_complete() {
        let tools = Tools { envd: &[7; 100_000], busybox: &[8; 50_000] };
        let directory = tempfile::tempdir().expect("a temporary directory");
        let make = |name: &str| {
            let scratch = directory.path().join(name);
            fs::create_dir(&scratch).expect("created");
            let image = scratch.join("tools.img");
            build(&tools, &scratch, &image).expect("built");
            image
        };
        let first = make("first");
        // Change times have a resolution of one second in the image's inodes.
        std::thread::sleep(Duration::from_millis(1100));
        let second = make("second");
        assert!(fs::read(&first).expect("read") == fs::read(&second).expect("read"), "the images differ");

        let check = run(tool("e2fsck").arg("-fn").arg(&first), LIMIT, MISSING);
        check.expect("e2fsck accepts the image");
        let listing =
            run(tool("debugfs").args(["-R", "ls -l /bin"]).arg(&first), LIMIT, MISSING).expect("listed");
        for expected in ["100755", "aenv-envd", "busybox", "120777", "sh"] {
            assert!(listing.contains(expected), "{expected} is not in {listing}");
        }
    }
}
