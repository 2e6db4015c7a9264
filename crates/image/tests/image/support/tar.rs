//! Tar archives made byte by byte, so that hostile and odd ones can be made too.

/// An archive being written.
#[derive(Default, Clone)]
pub(crate) struct Tar {
    bytes: Vec<u8>,
}

/// A header in the making; [`Tar::add`] finishes it.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) block: [u8; 512],
    pub(crate) data: Vec<u8>,
    /// pax records put before the header.
    pub(crate) pax: Vec<(Vec<u8>, Vec<u8>)>,
}

pub(crate) fn entry(kind: u8, name: &str) -> Entry {
    let mut block = [0; 512];
    let mut entry_name = name.as_bytes().to_vec();
    entry_name.truncate(100);
    block[..entry_name.len()].copy_from_slice(&entry_name);
    block[156] = kind;
    block[257..265].copy_from_slice(b"ustar\x0000");
    let mut entry = Entry { block, data: Vec::new(), pax: Vec::new() };
    if name.len() > 100 {
        entry = entry.pax("path", name);
    }
    entry.number(100..108, if kind == b'5' { 0o755 } else { 0o644 }).owner(0, 0).time(1_700_000_000)
}

pub(crate) fn file(name: &str, data: &[u8]) -> Entry {
    let mut entry = entry(b'0', name);
    entry.data = data.to_vec();
    entry
}

pub(crate) fn directory(name: &str) -> Entry {
    entry(b'5', name)
}

pub(crate) fn symlink(name: &str, target: &str) -> Entry {
    entry(b'2', name).link(target).mode(0o777)
}

pub(crate) fn hard_link(name: &str, target: &str) -> Entry {
    entry(b'1', name).link(target)
}

impl Entry {
    /// Puts an octal number into a field.
    pub(crate) fn number(mut self, field: std::ops::Range<usize>, value: u64) -> Self {
        let digits = field.len() - 1;
        let text = format!("{value:0digits$o}\0");
        self.block[field].copy_from_slice(text.as_bytes());
        self
    }

    pub(crate) fn mode(self, mode: u32) -> Self {
        self.number(100..108, mode.into())
    }

    pub(crate) fn owner(self, user: u64, group: u64) -> Self {
        self.number(108..116, user).number(116..124, group)
    }

    pub(crate) fn time(self, seconds: u64) -> Self {
        self.number(136..148, seconds)
    }

    pub(crate) fn device(self, major: u64, minor: u64) -> Self {
        self.number(329..337, major).number(337..345, minor)
    }

    pub(crate) fn link(mut self, target: &str) -> Self {
        if target.len() > 100 {
            return self.pax("linkpath", target);
        }
        self.block[157..157 + target.len()].copy_from_slice(target.as_bytes());
        self
    }

    pub(crate) fn pax(mut self, key: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax.push((key.as_bytes().to_vec(), value.as_ref().to_vec()));
        self
    }

    pub(crate) fn xattr(self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.pax(&format!("SCHILY.xattr.{name}"), value)
    }

    pub(crate) fn data(mut self, data: &[u8]) -> Self {
        self.data = data.to_vec();
        self
    }

    fn bytes(mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if !self.pax.is_empty() {
            let mut records = Vec::new();
            for (key, value) in std::mem::take(&mut self.pax) {
                records.extend_from_slice(&pax_record(&key, &value));
            }
            bytes = entry(b'x', "pax").data(&records).bytes();
        }
        let size = self.data.len() as u64;
        let mut entry = self.number(124..136, size);
        entry.block[148..156].fill(b' ');
        let sum: u32 = entry.block.iter().map(|&byte| u32::from(byte)).sum();
        entry.block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend_from_slice(&entry.block);
        bytes.extend_from_slice(&entry.data);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
        bytes
    }
}

pub(crate) fn pax_record(key: &[u8], value: &[u8]) -> Vec<u8> {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + rest.to_string().len();
    if length.to_string().len() > rest.to_string().len() {
        length = rest + length.to_string().len();
    }
    [length.to_string().as_bytes(), b" ", key, b"=", value, b"\n"].concat()
}

impl Tar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn add(mut self, entry: Entry) -> Self {
        self.bytes.extend_from_slice(&entry.bytes());
        self
    }

    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The archive with its end mark.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }

    /// The archive without an end mark.
    pub(crate) fn unfinished(self) -> Vec<u8> {
        self.bytes
    }
}
