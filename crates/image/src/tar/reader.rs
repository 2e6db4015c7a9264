//! Members in the order of the stream.

use std::io::{BufRead, ErrorKind};

use super::header::{Header, until_nul};
use super::pax::{Pax, decimal};
use super::sparse::{gnu_real_size, read_gnu_entries, runs_from_numbers, validate};
use super::{BLOCK_BYTES, Limits, Member, MemberKind, PATH_BYTES, SparseRun, TarError, Timestamp, printable};

/// Most entries of a sparse map.
const SPARSE_RUNS: usize = 1 << 20;

/// Reads members one after another from a stream.
#[derive(Debug)]
pub(crate) struct TarReader<R> {
    input: R,
    limits: Limits,
    members: u64,
    /// Stored bytes of the current member not read yet.
    data_left: u64,
    /// Padding after them.
    padding_left: u64,
    /// Bytes taken from the input so far.
    position: u64,
    ended: bool,
}

/// Extension headers collected before a member.
#[derive(Debug, Default)]
struct Extensions {
    pax: Pax,
    long_path: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
}

impl<R: BufRead> TarReader<R> {
    pub(crate) fn new(input: R, limits: Limits) -> Self {
        Self { input, limits, members: 0, data_left: 0, padding_left: 0, position: 0, ended: false }
    }

    /// Offset in the stream of the current member's first unread stored byte.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    /// The next member, or `None` at the end of the archive. Unread data of the previous member is skipped.
    pub(crate) fn next_member(&mut self) -> Result<Option<Member>, TarError> {
        if self.ended {
            return Ok(None);
        }
        self.skip_data()?;
        let mut extensions = Extensions::default();
        let mut pending = false;
        loop {
            let start = self.position;
            let Some(block) = self.read_header(pending)? else {
                self.ended = true;
                return Ok(None);
            };
            self.members += 1;
            let at = |reason: String| self.malformed(start, Header(&block).path(), reason);
            if self.members > self.limits.members {
                return Err(at(format!("the archive has more than {} members", self.limits.members)));
            }
            let header = Header(&block);
            if !header.checksum_is_right() {
                return Err(at(
                    "its header has a wrong checksum; the archive is damaged or not a tar".to_owned()
                ));
            }
            match header.type_flag() {
                flag @ (b'x' | b'X' | b'g' | b'L' | b'K') => {
                    let size = header.size().map_err(&at)?;
                    let size = u64::try_from(size).ok().filter(|&size| size <= self.limits.extension_bytes);
                    let size = size.ok_or_else(|| {
                        at(format!(
                            "its extension header is negative or above {} bytes",
                            self.limits.extension_bytes
                        ))
                    })?;
                    let content = self.read_extension(start, size)?;
                    let malformed = |reason| TarError::Malformed { member: at_offset(start), reason };
                    match flag {
                        b'L' => extensions.long_path = Some(until_nul(&content).to_vec()),
                        b'K' => extensions.long_link = Some(until_nul(&content).to_vec()),
                        // Global headers (`git archive` writes its commit there) change nothing, as in Docker.
                        b'g' => {}
                        _ => extensions.pax.read(&content).map_err(malformed)?,
                    }
                    pending = flag != b'g' || pending;
                }
                // A volume label, or a continuation of nothing we hold.
                b'V' => {
                    let size = header.size().ok().and_then(|size| u64::try_from(size).ok()).unwrap_or(0);
                    self.set_data(start, size)?;
                    self.skip_data()?;
                }
                _ => return self.member(start, &block, extensions).map(Some),
            }
        }
    }

    /// Stored bytes of the current member that are at hand; empty when all are read. Call [`Self::consume`] after.
    pub(crate) fn data(&mut self) -> Result<&[u8], TarError> {
        if self.data_left == 0 {
            return Ok(&[]);
        }
        let left = usize::try_from(self.data_left).unwrap_or(usize::MAX);
        let available = fill(&mut self.input)?;
        if available.is_empty() {
            return Err(TarError::Io(ErrorKind::UnexpectedEof.into()));
        }
        Ok(&available[..available.len().min(left)])
    }

    /// Marks `bytes` of what [`Self::data`] returned as read.
    pub(crate) fn consume(&mut self, bytes: usize) {
        let taken = bytes as u64;
        debug_assert!(taken <= self.data_left);
        self.input.consume(bytes);
        self.data_left = self.data_left.saturating_sub(taken);
        self.position += taken;
    }

    /// Hands the rest of the current member, padding included, to `skip`, for inputs that can seek.
    pub(crate) fn skip_data_by(
        &mut self,
        skip: impl FnOnce(&mut R, u64) -> std::io::Result<()>,
    ) -> Result<(), TarError> {
        let bytes = self.data_left + self.padding_left;
        skip(&mut self.input, bytes)?;
        self.position += bytes;
        self.data_left = 0;
        self.padding_left = 0;
        Ok(())
    }

    /// Reads everything that follows the end of the archive, at most `limit` bytes of it.
    pub(crate) fn drain(&mut self, limit: u64) -> Result<(), TarError> {
        let mut left = limit;
        loop {
            let available = fill(&mut self.input)?.len();
            if available == 0 {
                return Ok(());
            }
            left = left.checked_sub(available as u64).ok_or_else(|| TarError::Malformed {
                member: "end of archive".to_owned(),
                reason: format!("more than {limit} bytes follow it"),
            })?;
            self.input.consume(available);
            self.position += available as u64;
        }
    }

    fn member(
        &mut self,
        start: u64,
        block: &[u8; BLOCK_BYTES],
        extensions: Extensions,
    ) -> Result<Member, TarError> {
        let header = Header(block);
        let Extensions { pax, long_path, long_link } = extensions;
        let sparse_name = pax.sparse.name.clone();
        let path = sparse_name.or_else(|| pax.path.clone()).or(long_path).unwrap_or_else(|| header.path());
        let named = path.clone();
        let refuse = |reason: String| TarError::Malformed {
            member: if named.is_empty() { at_offset(start) } else { printable(&named) },
            reason,
        };
        let link = pax.link.clone().or(long_link).unwrap_or_else(|| header.link());
        for (what, value) in [("path", &path), ("link target", &link)] {
            if value.contains(&0) {
                return Err(refuse(format!("its {what} contains a NUL byte")));
            }
            if value.len() > PATH_BYTES {
                return Err(refuse(format!("its {what} is longer than {PATH_BYTES} bytes")));
            }
        }
        let flag = header.type_flag();
        let kind = match flag {
            // Old archives mark a directory by its name alone.
            0 if path.ends_with(b"/") => MemberKind::Directory,
            0 | b'0' | b'7' | b'S' => MemberKind::File,
            b'1' => MemberKind::HardLink,
            b'2' => MemberKind::Symlink,
            b'3' => MemberKind::CharacterDevice,
            b'4' => MemberKind::BlockDevice,
            b'5' => MemberKind::Directory,
            b'6' => MemberKind::Fifo,
            other => return Err(refuse(format!("its type `{}` is not supported", other.escape_ascii()))),
        };
        let header_size = || -> Result<u64, TarError> {
            let size = header.size().map_err(&refuse)?;
            u64::try_from(size).map_err(|_| refuse("its size is negative".to_owned()))
        };
        let announced_bytes = match pax.size {
            Some(size) => size,
            None => header_size()?,
        };
        // Only files are followed by data, whatever the size field of other members says (as in Go and so Docker).
        let stored_bytes = if kind == MemberKind::File { announced_bytes } else { 0 };
        self.set_data(start, stored_bytes)?;

        let (sparse_runs, size) = self.sparse_map(block, &pax, kind).map_err(|error| match error {
            TarError::Malformed { reason, .. } => refuse(reason),
            other @ TarError::Io(_) => other,
        })?;
        let stored_bytes = self.data_left;
        let size = size.unwrap_or(stored_bytes);
        if i64::try_from(size).is_err() {
            return Err(refuse("its size is out of range".to_owned()));
        }
        if let Some(runs) = &sparse_runs {
            validate(runs, size, stored_bytes).map_err(&refuse)?;
        }
        let (major, minor) = match kind {
            MemberKind::CharacterDevice | MemberKind::BlockDevice => header.device().map_err(&refuse)?,
            _ => (0, 0),
        };
        let device_number = |value: i64| {
            u32::try_from(value).map_err(|_| refuse("its device number is out of range".to_owned()))
        };
        Ok(Member {
            kind,
            link,
            mode: u32::try_from(header.mode().map_err(&refuse)? & 0o7777).unwrap_or_default(),
            user_id: id(pax.user_id, || header.user_id(), "user id").map_err(&refuse)?,
            group_id: id(pax.group_id, || header.group_id(), "group id").map_err(&refuse)?,
            modified: match pax.modified {
                Some(time) => time,
                None => header.modified().map_err(&refuse)?,
            },
            accessed: pax.accessed,
            size,
            stored_bytes,
            device_major: device_number(major)?,
            device_minor: device_number(minor)?,
            xattrs: pax.xattrs.into_iter().collect(),
            sparse_runs,
            path,
        })
    }

    /// The sparse map of the member whose header was just read, and the unpacked size it gives.
    fn sparse_map(
        &mut self,
        block: &[u8; BLOCK_BYTES],
        pax: &Pax,
        kind: MemberKind,
    ) -> Result<(Option<Vec<SparseRun>>, Option<u64>), TarError> {
        let refuse = |reason: String| TarError::Malformed { member: String::new(), reason };
        if kind != MemberKind::File {
            return Ok((None, None));
        }
        if Header(block).type_flag() == b'S' {
            if !Header(block).is_gnu() {
                return Err(refuse("it is sparse in a way that is not supported".to_owned()));
            }
            let real_size = gnu_real_size(block).map_err(refuse)?;
            let mut runs = Vec::new();
            let mut more = read_gnu_entries(block, true, &mut runs).map_err(refuse)?;
            // The extension blocks lie between header and data and are not part of the size.
            while more {
                if runs.len() > SPARSE_RUNS {
                    return Err(refuse(format!("its sparse map has more than {SPARSE_RUNS} entries")));
                }
                let extension =
                    self.read_block()?.ok_or_else(|| TarError::Io(ErrorKind::UnexpectedEof.into()))?;
                more = read_gnu_entries(&extension, false, &mut runs).map_err(refuse)?;
            }
            return Ok((Some(runs), Some(real_size)));
        }
        if pax.sparse.map_is_in_data().map_err(refuse)? {
            let real_size =
                pax.sparse.real_size.ok_or_else(|| refuse("its unpacked size is missing".to_owned()))?;
            return Ok((Some(self.read_sparse_text()?), Some(real_size)));
        }
        let runs = pax.sparse.runs_in_records().map_err(refuse)?;
        if runs.is_some() && pax.sparse.real_size.is_none() {
            return Err(refuse("its unpacked size is missing".to_owned()));
        }
        Ok((runs, pax.sparse.real_size))
    }

    /// The map of sparse format 1.0: decimal numbers, one a line, the first being the number of entries; padded to a
    /// whole block and counted in the member's stored size.
    fn read_sparse_text(&mut self) -> Result<Vec<SparseRun>, TarError> {
        let refuse = |reason: String| TarError::Malformed { member: String::new(), reason };
        let mut numbers = Vec::new();
        let mut wanted = 1_usize;
        let mut line = Vec::new();
        while numbers.len() < wanted {
            if self.data_left < BLOCK_BYTES as u64 {
                return Err(refuse("its sparse map is cut off".to_owned()));
            }
            let block = self.read_block()?.ok_or_else(|| TarError::Io(ErrorKind::UnexpectedEof.into()))?;
            self.data_left -= BLOCK_BYTES as u64;
            for byte in block {
                if numbers.len() == wanted {
                    break;
                }
                if byte != b'\n' {
                    if line.len() == 20 {
                        return Err(refuse("its sparse map has a number out of range".to_owned()));
                    }
                    line.push(byte);
                    continue;
                }
                let value = decimal("sparse map", &line).map_err(refuse)?;
                line.clear();
                numbers.push(value);
                if numbers.len() == 1 {
                    wanted = usize::try_from(value)
                        .ok()
                        .filter(|&entries| entries <= SPARSE_RUNS)
                        .map(|entries| 1 + entries * 2)
                        .ok_or_else(|| {
                            refuse(format!("its sparse map has more than {SPARSE_RUNS} entries"))
                        })?;
                }
            }
        }
        runs_from_numbers(&numbers[1..]).map_err(refuse)
    }

    fn set_data(&mut self, start: u64, bytes: u64) -> Result<(), TarError> {
        // A size near 2^64 would wrap when padded; no stream is that long.
        if i64::try_from(bytes).is_err() {
            let reason = "its size is out of range".to_owned();
            return Err(TarError::Malformed { member: at_offset(start), reason });
        }
        self.data_left = bytes;
        self.padding_left = bytes.next_multiple_of(BLOCK_BYTES as u64) - bytes;
        Ok(())
    }

    fn skip_data(&mut self) -> Result<(), TarError> {
        while self.data_left > 0 {
            let length = self.data()?.len();
            self.consume(length);
        }
        // The padding of the last member may be missing when the writer ended without a trailer.
        while self.padding_left > 0 {
            let available = fill(&mut self.input)?.len();
            if available == 0 {
                self.padding_left = 0;
                return Ok(());
            }
            let left = usize::try_from(self.padding_left).unwrap_or(usize::MAX);
            let length = available.min(left);
            self.input.consume(length);
            self.position += length as u64;
            self.padding_left -= length as u64;
        }
        Ok(())
    }

    /// The next header block; `None` at the end mark (two zero blocks, or one and the end of the stream) or at a clean
    /// end of the stream without one, which some writers leave.
    fn read_header(&mut self, pending: bool) -> Result<Option<[u8; BLOCK_BYTES]>, TarError> {
        let start = self.position;
        let refuse =
            |reason: &str| TarError::Malformed { member: at_offset(start), reason: reason.to_owned() };
        let block = self.read_block()?;
        let block = match block {
            Some(block) if !Header(&block).is_zero() => return Ok(Some(block)),
            block => block,
        };
        if pending {
            return Err(refuse("the archive ends after an extension header"));
        }
        if block.is_some()
            && let Some(second) = self.read_block()?
            && !Header(&second).is_zero()
        {
            return Err(refuse("a zero block is followed by data"));
        }
        Ok(None)
    }

    /// One block; `None` at the end of the stream.
    fn read_block(&mut self) -> Result<Option<[u8; BLOCK_BYTES]>, TarError> {
        let mut block = [0; BLOCK_BYTES];
        let mut filled = 0;
        while filled < BLOCK_BYTES {
            let available = fill(&mut self.input)?;
            if available.is_empty() {
                break;
            }
            let length = available.len().min(BLOCK_BYTES - filled);
            block[filled..filled + length].copy_from_slice(&available[..length]);
            self.input.consume(length);
            self.position += length as u64;
            filled += length;
        }
        match filled {
            0 => Ok(None),
            BLOCK_BYTES => Ok(Some(block)),
            _ => Err(TarError::Io(ErrorKind::UnexpectedEof.into())),
        }
    }

    /// The content of an extension header; grows only with bytes that have arrived.
    fn read_extension(&mut self, start: u64, size: u64) -> Result<Vec<u8>, TarError> {
        self.set_data(start, size)?;
        let mut content = Vec::new();
        while self.data_left > 0 {
            let chunk = self.data()?;
            content.extend_from_slice(chunk);
            let length = chunk.len();
            self.consume(length);
        }
        self.skip_data()?;
        Ok(content)
    }

    fn malformed(&self, start: u64, path: Vec<u8>, reason: String) -> TarError {
        let plausible = !path.is_empty() && path.iter().all(|byte| !byte.is_ascii_control());
        TarError::Malformed { member: if plausible { printable(&path) } else { at_offset(start) }, reason }
    }
}

fn at_offset(start: u64) -> String {
    format!("at byte {start}")
}

fn fill(input: &mut impl BufRead) -> Result<&[u8], TarError> {
    // The borrow checker does not see that the slice of an interrupted read is dropped, hence the two steps.
    loop {
        match input.fill_buf() {
            Ok(_) => break,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(input.fill_buf()?)
}

/// A user or group id: pax wins. 2^32-1 is refused because `chown` takes it as "leave unchanged".
fn id(pax: Option<u64>, header: impl FnOnce() -> Result<i64, String>, what: &str) -> Result<u32, String> {
    let value = match pax {
        Some(value) => value,
        None => u64::try_from(header()?).map_err(|_| format!("its {what} is negative"))?,
    };
    u32::try_from(value)
        .ok()
        .filter(|&value| value != u32::MAX)
        .ok_or_else(|| format!("its {what} {value} is out of range"))
}

impl From<Timestamp> for rustix::fs::Timespec {
    fn from(time: Timestamp) -> Self {
        Self { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() }
    }
}
