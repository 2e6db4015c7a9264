//! What a path is.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::{Duration, SystemTime};

use protocol::envd::{EntryInfo, FileType};
use protocol::timestamp;

use crate::accounts::Names;

/// Permission bits with set-user-ID, set-group-ID and sticky bit.
const MODE_BITS: u32 = 0o7777;
const METADATA_PREFIX: &str = "user.e2b.";
/// Longest list of attribute names, and longest value, the kernel hands out (`XATTR_LIST_MAX`, `XATTR_SIZE_MAX`).
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// Describes the entry at `path` itself. For a symbolic link, type and mode are those of what it leads to.
pub(super) fn describe(path: &Path, names: &Names) -> io::Result<EntryInfo> {
    let own = path.symlink_metadata()?;
    let mut entry = EntryInfo {
        name: path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
        kind: kind(&own),
        path: path.to_string_lossy().into_owned(),
        size: i64::try_from(own.size()).unwrap_or(i64::MAX),
        mode: own.mode() & MODE_BITS,
        permissions: permissions(&own),
        owner: names.user(own.uid()),
        group: names.group(own.gid()),
        modified_time: Some(timestamp::format(modified(&own))),
        symlink_target: None,
        metadata: BTreeMap::new(),
    };
    if own.is_symlink() {
        follow(path, &mut entry);
    } else if own.is_file() {
        entry.metadata = metadata(path);
    }
    Ok(entry)
}

fn follow(path: &Path, entry: &mut EntryInfo) {
    match (path.canonicalize(), path.metadata()) {
        (Ok(target), Ok(meta)) => {
            entry.kind = kind(&meta);
            entry.mode = meta.mode() & MODE_BITS;
            entry.symlink_target = Some(target.to_string_lossy().into_owned());
        }
        // Leads nowhere or in circles: what is written in it is all there is to say.
        _ => {
            entry.symlink_target =
                std::fs::read_link(path).ok().map(|target| target.to_string_lossy().into_owned());
        }
    }
}

fn kind(meta: &Metadata) -> FileType {
    let kind = meta.file_type();
    if kind.is_file() {
        FileType::File
    } else if kind.is_dir() {
        FileType::Directory
    } else if kind.is_symlink() {
        FileType::Symlink
    } else {
        FileType::Unspecified
    }
}

fn modified(meta: &Metadata) -> SystemTime {
    let nanoseconds = Duration::from_nanos(meta.mtime_nsec().unsigned_abs());
    let seconds = Duration::from_secs(meta.mtime().unsigned_abs());
    let whole = if meta.mtime() >= 0 {
        SystemTime::UNIX_EPOCH.checked_add(seconds)
    } else {
        SystemTime::UNIX_EPOCH.checked_sub(seconds)
    };
    whole.and_then(|time| time.checked_add(nanoseconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// As `ls -l` shows them.
fn permissions(meta: &Metadata) -> String {
    let kind = meta.file_type();
    let first = match () {
        () if kind.is_dir() => 'd',
        () if kind.is_symlink() => 'l',
        () if kind.is_fifo() => 'p',
        () if kind.is_socket() => 's',
        () if kind.is_char_device() => 'c',
        () if kind.is_block_device() => 'b',
        () => '-',
    };
    let mode = meta.mode();
    let mut text = String::with_capacity(10);
    text.push(first);
    for (shift, special, special_letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => special_letter,
            (true, false) => special_letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// The client's own attributes of a file. A file system without attributes has none.
fn metadata(path: &Path) -> BTreeMap<String, String> {
    // Almost no file has any, so the first question is how long the list is.
    let mut empty: [u8; 0] = [];
    let length = rustix::fs::llistxattr(path, &mut empty).unwrap_or(0);
    if length == 0 || length > ATTRIBUTE_BYTES_MAX {
        return BTreeMap::new();
    }
    let mut list = vec![0_u8; length];
    let Ok(length) = rustix::fs::llistxattr(path, &mut list[..]) else { return BTreeMap::new() };
    let names = list.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    let value_of = |name: &[u8]| {
        let name = std::str::from_utf8(name).ok()?;
        let key = name.strip_prefix(METADATA_PREFIX)?;
        let mut value = vec![0_u8; ATTRIBUTE_BYTES_MAX];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).ok()?;
        value.truncate(length);
        Some((key.to_owned(), String::from_utf8(value).ok()?))
    };
    names.filter_map(value_of).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn described(path: &Path) -> EntryInfo {
        describe(path, &Names::default()).unwrap()
    }

    #[test]
    fn a_file_has_size_mode_and_permissions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        std::fs::write(&path, "12345").unwrap();
        for (mode, text) in
            [(0o644, "-rw-r--r--"), (0o4755, "-rwsr-xr-x"), (0o2644, "-rw-r-Sr--"), (0o1777, "-rwxrwxrwt")]
        {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let entry = described(&path);
            assert_eq!((entry.mode, entry.permissions.as_str(), entry.size), (mode, text, 5));
            assert_eq!((entry.kind, entry.name.as_str()), (FileType::File, "a"));
        }
    }

    #[test]
    fn a_link_shows_what_it_leads_to_and_a_dangling_one_itself() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().canonicalize().unwrap();
        std::fs::create_dir(root.join("real")).unwrap();
        symlink("real", root.join("one")).unwrap();
        symlink("one", root.join("two")).unwrap();
        symlink("missing", root.join("dangling")).unwrap();
        symlink("circle", root.join("circle")).unwrap();
        let two = described(&root.join("two"));
        assert_eq!(
            (two.kind, two.symlink_target.as_deref()),
            (FileType::Directory, root.join("real").to_str())
        );
        assert!(two.permissions.starts_with('l'));
        for (name, target) in [("dangling", "missing"), ("circle", "circle")] {
            let entry = described(&root.join(name));
            assert_eq!((entry.kind, entry.symlink_target.as_deref()), (FileType::Symlink, Some(target)));
        }
    }

    #[test]
    fn the_root_has_a_name() {
        let entry = described(Path::new("/"));
        assert_eq!((entry.name.as_str(), entry.path.as_str(), entry.kind), ("/", "/", FileType::Directory));
    }
}
