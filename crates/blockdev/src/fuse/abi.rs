//! The kernel's FUSE protocol, as far as a mount of block devices needs it.
//!
//! Source: `include/uapi/linux/fuse.h`. All integers are in the host's byte order. Requests are parsed field by field from
//! bytes, replies built field by field into bytes: no struct is laid over memory, so nothing here is unsafe and a short
//! message is an error, not a read past its end.

/// Protocol we speak: 7.40, the one of Linux 6.10. Minor numbers only add things; what we use is asked for by flag.
pub(crate) const MAJOR: u32 = 7;
/// See [`MAJOR`].
pub(crate) const MINOR: u32 = 40;
/// Oldest kernel protocol accepted: 7.31, of Linux 5.4.
pub(crate) const MINOR_LOWEST: u32 = 31;

/// Bytes of `struct fuse_in_header`.
pub(crate) const IN_HEADER_BYTES: usize = 40;
/// Bytes of `struct fuse_out_header`.
pub(crate) const OUT_HEADER_BYTES: usize = 16;
/// Bytes of `struct fuse_write_in`, which stands between the header and the data of a WRITE.
pub(crate) const WRITE_IN_BYTES: usize = 40;
/// Longest name the mount takes.
pub(crate) const NAME_BYTES_MAX: usize = 255;
/// The mount's root directory.
pub(crate) const ROOT_INODE: u64 = 1;

/// `enum fuse_opcode`.
pub(crate) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const FLUSH: u32 = 25;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
}

/// Flags of the INIT handshake; the upper half travels in `flags2`.
pub(crate) mod init {
    /// Many reads of one file at a time.
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    /// Writes above one page.
    pub(crate) const BIG_WRITES: u64 = 1 << 5;
    /// Direct I/O of one request is split and sent without waiting.
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    /// Lookups and listings in parallel.
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    /// Requests above 128 KiB.
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    /// The page cache is dropped only when we say so.
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    /// `flags2` is there.
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    /// The kernel sends unanswered requests again when asked (Linux 6.9).
    pub(crate) const HAS_RESEND: u64 = 1 << 39;
}

/// Flags of the answer to OPEN.
pub(crate) mod open {
    /// The page cache is bypassed.
    pub(crate) const DIRECT_IO: u32 = 1 << 0;
    /// The page cache survives the open.
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    /// Closing sends no FLUSH.
    pub(crate) const NOFLUSH: u32 = 1 << 5;
    /// Direct writes to one file do not wait for each other.
    pub(crate) const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
}

/// `enum fuse_notify_code`.
pub(crate) mod notify {
    /// Drop cached pages of an inode.
    pub(crate) const INVALIDATE_INODE: i32 = 2;
    /// Send unanswered requests again.
    pub(crate) const RESEND: i32 = 7;
}

/// `FATTR_SIZE` of `struct fuse_setattr_in`.
pub(crate) const SET_SIZE: u32 = 1 << 3;
/// `FATTR_MODE | FATTR_UID | FATTR_GID`.
pub(crate) const SET_OWNERSHIP: u32 = 0b111;

/// A message ended before its fields did, or says something about itself that is not so.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads fields off the front of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl<'a> Fields<'a> {
    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_ne_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_ne_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_ne_bytes)
    }

    pub(crate) fn skip(&mut self, bytes: usize) -> Result<(), Malformed> {
        self.0 = self.0.get(bytes..).ok_or(Malformed)?;
        Ok(())
    }

    /// A name that ends in NUL, without it.
    pub(crate) fn name(&mut self) -> Result<&'a [u8], Malformed> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
        let name = &self.0[..end];
        self.skip(end + 1)?;
        Ok(name)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = tail;
        Ok(*head)
    }
}

/// `struct fuse_in_header`: len u32, opcode u32, unique u64, nodeid u64, uid u32, gid u32, pid u32, extension u16, pad.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) opcode: u32,
    /// Identity of the request; bit 63 says that it was sent before. Answers repeat it as it is.
    pub(crate) unique: u64,
    pub(crate) inode: u64,
}

impl Header {
    /// Splits a message into its header and body.
    pub(crate) fn parse(message: &[u8]) -> Result<(Self, &[u8]), Malformed> {
        let mut fields = Fields(message);
        let length = fields.u32()?;
        let opcode = fields.u32()?;
        let unique = fields.u64()?;
        let inode = fields.u64()?;
        fields.skip(12)?;
        let extension_words = fields.u16()?;
        fields.skip(2)?;
        if length as usize != message.len() {
            return Err(Malformed);
        }
        let body = fields.0.len().checked_sub(usize::from(extension_words) * 8).ok_or(Malformed)?;
        Ok((Self { opcode, unique, inode }, &fields.0[..body]))
    }
}

/// Writes fields one after the other into a buffer of fixed size.
#[derive(Debug)]
pub(crate) struct Encoder<'a> {
    buffer: &'a mut [u8],
    used: usize,
}

impl<'a> Encoder<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, used: 0 }
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    pub(crate) fn left(&self) -> usize {
        self.buffer.len() - self.used
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    pub(crate) fn zeros(&mut self, count: usize) -> &mut Self {
        self.buffer[self.used..self.used + count].fill(0);
        self.used += count;
        self
    }

    /// Appends; the caller has made sure by [`left`](Self::left) or by the buffer's size that there is room.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.buffer[self.used..self.used + bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
        self
    }
}
