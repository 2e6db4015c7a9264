//! A streaming reader of tar archives as container images use them: ustar, GNU and pax headers, long names, sparse
//! members of all four kinds, extended attributes, numbers beyond octal.
//!
//! Sources: POSIX.1-2008 `pax` ("ustar Interchange Format", "pax Interchange Format"), the GNU tar manual ("Basic Tar
//! Format", "Sparse Formats"), and star(4) for `SCHILY.xattr`. Archives are hostile input: every size is bounded
//! by [`Limits`], and nothing is allocated for more bytes than have arrived.

mod header;
mod pax;
mod reader;
mod sparse;

pub(crate) use reader::TarReader;

use std::fmt;
use std::io;

/// Bytes of a tar block; headers and member data are padded to it.
pub(crate) const BLOCK_BYTES: usize = 512;

/// Bounds on what an archive may ask for.
#[derive(Debug, Clone, Copy, serde::Serialize, serde::Deserialize)]
pub(crate) struct Limits {
    /// Members, counting extension headers, that one archive may have.
    pub members: u64,
    /// Bytes of one extension header (long name, pax records) or sparse map.
    pub extension_bytes: u64,
    /// Components of a member's path.
    pub path_components: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { members: 8_000_000, extension_bytes: 1 << 20, path_components: 1024 }
    }
}

/// Longest path of a member or link target: Linux takes 4096 bytes including the final NUL.
const PATH_BYTES: usize = 4095;

/// Why an archive cannot be read on.
#[derive(Debug)]
pub(crate) enum TarError {
    /// The archive is damaged, beyond a limit, or of a kind that is not supported.
    Malformed {
        /// Name of the member as far as it is known, else its position.
        member: String,
        reason: String,
    },
    /// The bytes could not be read.
    Io(io::Error),
}

impl From<io::Error> for TarError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl fmt::Display for TarError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed { member, reason } => write!(formatter, "member `{member}`: {reason}"),
            Self::Io(error) => error.fmt(formatter),
        }
    }
}

/// A moment with sub-second precision, relative to 1970-01-01 UTC; `nanoseconds` always counts forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Timestamp {
    pub seconds: i64,
    pub nanoseconds: u32,
}

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemberKind {
    File,
    HardLink,
    Symlink,
    CharacterDevice,
    BlockDevice,
    Directory,
    Fifo,
}

/// A piece of a sparse file that holds data; everything between the pieces is a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SparseRun {
    pub offset: u64,
    pub length: u64,
}

/// One member: its final metadata after all extension headers.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// Path as the archive has it, without NUL bytes; may be absolute or contain `..`.
    pub path: Vec<u8>,
    pub kind: MemberKind,
    /// Target of a hard or symbolic link, verbatim.
    pub link: Vec<u8>,
    /// Permission bits including setuid, setgid and sticky (0o7777).
    pub mode: u32,
    pub user_id: u32,
    pub group_id: u32,
    pub modified: Timestamp,
    pub accessed: Option<Timestamp>,
    /// Bytes of the file when unpacked, holes included.
    pub size: u64,
    /// Bytes stored in the archive; less than `size` for a sparse file.
    pub stored_bytes: u64,
    pub device_major: u32,
    pub device_minor: u32,
    /// Extended attributes, names without the `SCHILY.xattr.` prefix.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// For a sparse file, where the stored bytes go: in order, without overlap, adding up to `stored_bytes`.
    pub sparse_runs: Option<Vec<SparseRun>>,
}

/// A name for messages: printable, bounded.
pub(crate) fn printable(name: &[u8]) -> String {
    const SHOWN_BYTES: usize = 200;
    let shown = name.get(..SHOWN_BYTES).unwrap_or(name);
    let mut text = shown.escape_ascii().to_string();
    if let Ok(utf8) = std::str::from_utf8(shown)
        && !utf8.chars().any(char::is_control)
    {
        utf8.clone_into(&mut text);
    }
    if shown.len() < name.len() {
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests;
