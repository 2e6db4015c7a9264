//! The tar wrapper of layer blobs.
//!
//! Registries carry layers as tar archives with one member, `overlaybd.commit`. Two writers exist: one puts the true
//! size into a pax record of its own member before it and leaves the size field 0, the other writes a plain ustar
//! member. A blob above 8 GiB has its size only in the pax record or in the base-256 form of the field.

use std::io;

use thiserror::Error;

use crate::io::ReadAt;

const BLOCK_BYTES: u64 = 512;
/// The known writer needs one block. More is refused, so that a hostile archive cannot make us read much.
const MAX_PAX_BYTES: u64 = 64 * 1024;
const MEMBER_NAME: &str = "overlaybd.commit";

/// Why a tar archive does not hold a layer.
#[derive(Debug, Error)]
pub enum TarError {
    /// A header block's own checksum or a number in it is wrong.
    #[error("the tar header at byte {offset_bytes} is damaged: {what}")]
    Damaged {
        /// Where the header block starts.
        offset_bytes: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Not the archive of a layer but another one, such as an ordinary image layer.
    #[error(
        "the first member of the tar archive is {name:?}, not overlaybd.commit: this is not a layer blob"
    )]
    OtherMember {
        /// Name of the member found.
        name: String,
    },
    /// The archive ends before its member does.
    #[error(
        "the tar member is {member_bytes} bytes long but only {present_bytes} are there: the file is truncated"
    )]
    Truncated {
        /// What the archive promises.
        member_bytes: u64,
        /// What the file holds.
        present_bytes: u64,
    },
    /// The archive could not be read.
    #[error("cannot read the tar header: {0}")]
    Read(io::Error),
}

/// Where the layer lies in `source`: offset and length in bytes. `None` when it is no tar archive.
pub(crate) fn locate(source: &dyn ReadAt) -> Result<Option<(u64, u64)>, TarError> {
    let size_bytes = source.size_bytes().map_err(TarError::Read)?;
    if size_bytes < BLOCK_BYTES {
        return Ok(None);
    }
    let first = read_block(source, 0)?;
    if first[257..263] != *b"ustar\0" || first[263..265] != *b"00" {
        return Ok(None);
    }
    let first = Block::parse(first, 0)?;
    let (member, member_at, pax_size) = if first.kind() == b'x' {
        let pax_bytes = first.size()?;
        if pax_bytes > MAX_PAX_BYTES {
            return Err(first.damaged("its pax records are too long"));
        }
        let member_at = BLOCK_BYTES + pax_bytes.next_multiple_of(BLOCK_BYTES);
        if member_at + BLOCK_BYTES > size_bytes {
            return Err(TarError::Truncated {
                member_bytes: pax_bytes,
                present_bytes: size_bytes - BLOCK_BYTES,
            });
        }
        let mut records = vec![0; crate::number::to_usize(pax_bytes)];
        source.read_exact_at(&mut records, BLOCK_BYTES).map_err(TarError::Read)?;
        let pax_size = pax_size(&records).map_err(|what| first.damaged(what))?;
        (Block::parse(read_block(source, member_at)?, member_at)?, member_at, pax_size)
    } else {
        (first, 0, None)
    };
    if member.name() != MEMBER_NAME || !matches!(member.kind(), b'0' | 0) {
        return Err(TarError::OtherMember { name: member.name() });
    }
    let member_bytes = match pax_size {
        Some(size) => size,
        None => member.size()?,
    };
    let data_at = member_at + BLOCK_BYTES;
    let present_bytes = size_bytes - data_at;
    if member_bytes > present_bytes {
        return Err(TarError::Truncated { member_bytes, present_bytes });
    }
    Ok(Some((data_at, member_bytes)))
}

fn read_block(source: &dyn ReadAt, offset_bytes: u64) -> Result<[u8; 512], TarError> {
    let mut block = [0; 512];
    source.read_exact_at(&mut block, offset_bytes).map_err(TarError::Read)?;
    Ok(block)
}

/// A ustar header block whose checksum is right.
struct Block {
    bytes: [u8; 512],
    offset_bytes: u64,
}

impl Block {
    fn parse(bytes: [u8; 512], offset_bytes: u64) -> Result<Self, TarError> {
        let block = Block { bytes, offset_bytes };
        let sum: u64 = bytes
            .iter()
            .enumerate()
            .map(|(at, &byte)| if (148..156).contains(&at) { u64::from(b' ') } else { u64::from(byte) })
            .sum();
        if octal(&bytes[148..156]) != Some(sum) {
            return Err(block.damaged("its checksum is wrong"));
        }
        Ok(block)
    }

    fn kind(&self) -> u8 {
        self.bytes[156]
    }

    fn name(&self) -> String {
        let name = &self.bytes[..100];
        let length = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..length]).into_owned()
    }

    fn size(&self) -> Result<u64, TarError> {
        let field = &self.bytes[124..136];
        let size = if field[0] & 0x80 != 0 { base256(field) } else { octal(field) };
        size.ok_or_else(|| self.damaged("its size is not a number"))
    }

    fn damaged(&self, what: &'static str) -> TarError {
        TarError::Damaged { offset_bytes: self.offset_bytes, what }
    }
}

/// A number field: octal digits, padded with spaces in front and ended by a space or NUL.
fn octal(field: &[u8]) -> Option<u64> {
    let digits = field.trim_ascii_start();
    let length = digits.iter().position(|byte| !(b'0'..=b'7').contains(byte)).unwrap_or(digits.len());
    if digits[length..].iter().any(|&byte| byte != 0 && byte != b' ') {
        return None;
    }
    let digits = std::str::from_utf8(&digits[..length]).ok()?;
    if digits.is_empty() { Some(0) } else { u64::from_str_radix(digits, 8).ok() }
}

/// The form for numbers too large for octal digits: big-endian, marked by the top bit.
fn base256(field: &[u8]) -> Option<u64> {
    if field[0] != 0x80 || field[1..4].iter().any(|&byte| byte != 0) {
        return None;
    }
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&field[4..12]);
    Some(u64::from_be_bytes(bytes))
}

/// The `size` record among pax records, each `<length> <key>=<value>\n` with the length counting itself.
fn pax_size(mut records: &[u8]) -> Result<Option<u64>, &'static str> {
    let mut size = None;
    while !records.is_empty() && records[0] != 0 {
        let space = records.iter().position(|&byte| byte == b' ').ok_or("a pax record has no length")?;
        let length: usize = std::str::from_utf8(&records[..space])
            .ok()
            .and_then(|digits| digits.parse().ok())
            .ok_or("the length of a pax record is not a number")?;
        if length <= space + 1 || length > records.len() || records[length - 1] != b'\n' {
            return Err("a pax record does not end where it says");
        }
        if let Some(value) = records[space + 1..length - 1].strip_prefix(b"size=") {
            let value = std::str::from_utf8(value).ok().and_then(|digits| digits.parse().ok());
            size = Some(value.ok_or("the size in a pax record is not a number")?);
        }
        records = &records[length..];
    }
    Ok(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_padded_with_spaces_or_zeros_are_read() {
        assert_eq!(octal(b"         16 "), Some(14));
        assert_eq!(octal(b"00000421000\0"), Some(0o421_000));
        assert_eq!(octal(b"0000042x000\0"), None);
    }

    #[test]
    fn sizes_above_eight_gibibytes_are_read() {
        let mut field = [0; 12];
        field[0] = 0x80;
        field[7] = 2;
        assert_eq!(base256(&field), Some(2 << 32));
        assert_eq!(pax_size(b"20 size=17179869184\n"), Ok(Some(16 << 30)));
    }

    #[test]
    fn a_pax_record_that_overruns_is_refused() {
        assert!(pax_size(b"99 size=1\n").is_err());
        assert!(pax_size(b"3 size=1\n").is_err());
    }
}
