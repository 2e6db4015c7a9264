//! Writer of "newc" cpio archives, the format of an initramfs.
//!
//! Format: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`. A member is a 110-byte header of
//! hexadecimal text, the name with its NUL, the content; name and content are each padded to 4 bytes. The member
//! `TRAILER!!!` ends an archive. The kernel reads several archives one after the other, a later member replacing an earlier one.
//!
//! Owners are root, times are zero and inode numbers count up, so equal input gives equal bytes.

/// Initramfs images are padded to this. A loader that puts the image at the end of memory rounds down to a page, and
/// what firmware places right after an unpadded image has been seen to be overwritten.
pub const IMAGE_ALIGNMENT_BYTES: usize = 4096;

const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_CHARACTER_DEVICE: u32 = 0o020_000;
const TYPE_FILE: u32 = 0o100_000;
const TYPE_LINK: u32 = 0o120_000;

/// An archive being written in memory. Parents must be added before what is in them; names have no leading `/`.
#[derive(Debug, Default)]
pub struct Archive {
    bytes: Vec<u8>,
    members: u32,
}

impl Archive {
    /// An archive without members.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory with mode 0755.
    pub fn directory(&mut self, name: &str) {
        self.member(name, TYPE_DIRECTORY | 0o755, (0, 0), &[]);
    }

    /// Adds a regular file. `mode` holds permission bits only.
    ///
    /// # Panics
    /// If the content is 4 GiB or larger, which the format cannot express.
    pub fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.member(name, TYPE_FILE | (mode & 0o7777), (0, 0), content);
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, name: &str, target: &str) {
        self.member(name, TYPE_LINK | 0o777, (0, 0), target.as_bytes());
    }

    /// Adds a character device with mode 0600.
    pub fn character_device(&mut self, name: &str, major: u32, minor: u32) {
        self.member(name, TYPE_CHARACTER_DEVICE | 0o600, (major, minor), &[]);
    }

    /// Ends the archive and pads it to [`IMAGE_ALIGNMENT_BYTES`].
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.member("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes.resize(self.bytes.len().next_multiple_of(IMAGE_ALIGNMENT_BYTES), 0);
        self.bytes
    }

    fn member(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), content: &[u8]) {
        let size =
            u32::try_from(content.len()).unwrap_or_else(|_| panic!("{name} is too large for a cpio archive"));
        self.members += 1;
        let inode = self.members;
        let links = if mode & 0o170_000 == TYPE_DIRECTORY { 2 } else { 1 };
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // In order: inode, mode, uid, gid, links, mtime, size, device of the file system (2), device (2), name, checksum.
        let fields = [inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_size, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn sample() -> Vec<u8> {
        let mut archive = Archive::new();
        archive.directory("bin");
        archive.file("bin/tool", 0o755, b"hello");
        archive.link("bin/sh", "tool");
        archive.character_device("console", 5, 1);
        archive.finish()
    }

    #[test]
    fn equal_input_gives_equal_bytes_in_whole_pages() {
        assert_eq!(sample(), sample());
        assert_eq!(sample().len() % IMAGE_ALIGNMENT_BYTES, 0);
    }

    #[test]
    fn busybox_lists_every_member() {
        let mut child = Command::new("busybox")
            .args(["cpio", "-tv"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("busybox is installed");
        child.stdin.take().expect("piped").write_all(&sample()).expect("cpio reads its input");
        let output = child.wait_with_output().expect("cpio ends");
        let listing = String::from_utf8_lossy(&output.stdout);
        let lines: Vec<_> = listing.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(lines.len(), 4, "{listing}");
        assert_eq!(lines[0][0], "drwxr-xr-x");
        assert_eq!((lines[1][0], lines[1][2]), ("-rwxr-xr-x", "5"));
        assert!(listing.contains("bin/sh -> tool"), "{listing}");
        assert!(lines[3][0].starts_with("crw-------") && listing.contains("console"), "{listing}");
    }
}
