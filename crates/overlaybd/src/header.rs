//! Header and trailer: the 4096-byte sections at the two ends of a file.

use thiserror::Error;
use uuid::Uuid;

use crate::number::to_usize;

/// Bytes of a header or trailer section. Only the first 390 carry fields, the rest is zero.
pub(crate) const SECTION_BYTES: u64 = 4096;
const SECTION_LENGTH: usize = to_usize(SECTION_BYTES);

/// Longest free text a layer can carry, in bytes.
pub const USER_TAG_BYTES: usize = 256;

const MAGIC0: [u8; 8] = *b"LSMT\0\x01\x02\0";
const MAGIC1: [u8; 16] =
    [0x65, 0x7e, 0x63, 0xd2, 0x94, 0x44, 0x08, 0x4c, 0xa2, 0xd2, 0xc8, 0xec, 0x4f, 0xcf, 0xae, 0x8a];
/// What the `size` field holds: the number of bytes that carry fields.
const FIELDS_BYTES: u32 = 390;
/// First eight bytes of a ZFile, the compressed container a layer may be inside.
const ZFILE_MAGIC0: [u8; 8] = *b"ZFile\0\x01\0";

/// Set in headers, clear in trailers.
pub(crate) const FLAG_HEADER: u32 = 1 << 0;
/// Set in files that hold data, clear in index files.
pub(crate) const FLAG_DATA: u32 = 1 << 1;
/// Set in trailers of files that will not change any more, and in headers of compacted layers.
pub(crate) const FLAG_SEALED: u32 = 1 << 2;
/// The data is an image of the virtual disk with holes. Bit 3 has no use.
pub(crate) const FLAG_SPARSE: u32 = 1 << 4;

const UUID_TEXT_BYTES: usize = 37;
const UUID_AT: usize = 56;
const PARENT_UUID_AT: usize = UUID_AT + UUID_TEXT_BYTES;
const VERSION_AT: usize = 132;
const USER_TAG_AT: usize = 134;

/// The fields of a header or trailer section.
///
/// All integers are little-endian. Byte offsets within the section:
///
/// | offset | bytes | field |
/// | --- | --- | --- |
/// | 0 | 8 | magic `LSMT\0\1\2\0` |
/// | 8 | 16 | second magic |
/// | 24 | 4 | 390, the bytes that carry fields |
/// | 28 | 4 | flags: 0 header, 1 data file, 2 sealed, 4 sparse |
/// | 32 | 8 | index offset in bytes; 0 in data headers, 4096 in index file headers |
/// | 40 | 8 | index size in entries; 0 in headers |
/// | 48 | 8 | virtual size in bytes |
/// | 56 | 37 | uuid, upper-case text with a terminating NUL |
/// | 93 | 37 | parent uuid, all zeros when there is none |
/// | 130 | 2 | reserved |
/// | 132 | 2 | version 1, sub-version 1 |
/// | 134 | 256 | user tag |
///
/// Only a trailer tells where the index of a read-only layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    pub(crate) flags: u32,
    pub(crate) index_offset_bytes: u64,
    pub(crate) index_entries: u64,
    /// Size of the virtual disk in bytes; 0 when the layer leaves it to the others of its stack.
    pub virtual_size_bytes: u64,
    /// Identity of the layer; `None` when the file carries the all-zero uuid or unreadable text.
    pub uuid: Option<Uuid>,
    /// Identity of the layer this one was written over.
    pub parent_uuid: Option<Uuid>,
    /// Free text without its padding.
    pub user_tag: Vec<u8>,
}

/// Why a section is not an overlaybd header or trailer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SectionProblem {
    /// The first eight bytes are not the format's.
    #[error("the first magic number is wrong")]
    FirstMagic,
    /// Bytes 8 to 23 are not the format's.
    #[error("the second magic number is wrong")]
    SecondMagic,
    /// A trailer stands where a header belongs.
    #[error("it is marked as a trailer, not as a header")]
    NotAHeader,
    /// A header stands where a trailer belongs.
    #[error("it is marked as a header, not as a trailer")]
    NotATrailer,
    /// An index file stands where a data file belongs.
    #[error("it is marked as belonging to an index file, not to a data file")]
    NotAData,
    /// A data file stands where an index file belongs.
    #[error("it is marked as belonging to a data file, not to an index file")]
    NotAnIndex,
    /// The file was not sealed.
    #[error("it is not marked as sealed")]
    NotSealed,
    /// The file is sealed and cannot be written any more.
    #[error("it is marked as sealed")]
    Sealed,
}

impl Header {
    pub(crate) fn decode(section: &[u8; SECTION_LENGTH]) -> Result<Self, SectionProblem> {
        if section[..8] != MAGIC0 {
            return Err(SectionProblem::FirstMagic);
        }
        if section[8..24] != MAGIC1 {
            return Err(SectionProblem::SecondMagic);
        }
        let tag = &section[USER_TAG_AT..USER_TAG_AT + USER_TAG_BYTES];
        let tag_length = tag.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        Ok(Header {
            flags: u32::from_le_bytes(array(section, 28)),
            index_offset_bytes: u64::from_le_bytes(array(section, 32)),
            index_entries: u64::from_le_bytes(array(section, 40)),
            virtual_size_bytes: u64::from_le_bytes(array(section, 48)),
            uuid: decode_uuid(&array::<UUID_TEXT_BYTES>(section, UUID_AT)),
            parent_uuid: decode_uuid(&array::<UUID_TEXT_BYTES>(section, PARENT_UUID_AT)),
            user_tag: tag[..tag_length].to_vec(),
        })
    }

    pub(crate) fn encode(&self) -> [u8; SECTION_LENGTH] {
        let mut section = [0; SECTION_LENGTH];
        section[..8].copy_from_slice(&MAGIC0);
        section[8..24].copy_from_slice(&MAGIC1);
        section[24..28].copy_from_slice(&FIELDS_BYTES.to_le_bytes());
        section[28..32].copy_from_slice(&self.flags.to_le_bytes());
        section[32..40].copy_from_slice(&self.index_offset_bytes.to_le_bytes());
        section[40..48].copy_from_slice(&self.index_entries.to_le_bytes());
        section[48..56].copy_from_slice(&self.virtual_size_bytes.to_le_bytes());
        encode_uuid(self.uuid, &mut section[UUID_AT..UUID_AT + UUID_TEXT_BYTES]);
        encode_uuid(self.parent_uuid, &mut section[PARENT_UUID_AT..PARENT_UUID_AT + UUID_TEXT_BYTES]);
        section[VERSION_AT] = 1;
        section[VERSION_AT + 1] = 1;
        let tag_length = self.user_tag.len().min(USER_TAG_BYTES);
        section[USER_TAG_AT..USER_TAG_AT + tag_length].copy_from_slice(&self.user_tag[..tag_length]);
        section
    }

    /// Whether the file is an image of the virtual disk with holes.
    pub fn is_sparse(&self) -> bool {
        self.flags & FLAG_SPARSE != 0
    }

    pub(crate) fn expect_header(&self) -> Result<(), SectionProblem> {
        if self.flags & FLAG_HEADER == 0 { Err(SectionProblem::NotAHeader) } else { Ok(()) }
    }

    pub(crate) fn expect_trailer(&self) -> Result<(), SectionProblem> {
        if self.flags & FLAG_HEADER != 0 { Err(SectionProblem::NotATrailer) } else { Ok(()) }
    }

    pub(crate) fn expect_data(&self) -> Result<(), SectionProblem> {
        if self.flags & FLAG_DATA == 0 { Err(SectionProblem::NotAData) } else { Ok(()) }
    }

    pub(crate) fn expect_index(&self) -> Result<(), SectionProblem> {
        if self.flags & FLAG_DATA != 0 { Err(SectionProblem::NotAnIndex) } else { Ok(()) }
    }

    pub(crate) fn expect_sealed(&self) -> Result<(), SectionProblem> {
        if self.flags & FLAG_SEALED == 0 { Err(SectionProblem::NotSealed) } else { Ok(()) }
    }

    pub(crate) fn expect_unsealed(&self) -> Result<(), SectionProblem> {
        if self.flags & FLAG_SEALED != 0 { Err(SectionProblem::Sealed) } else { Ok(()) }
    }
}

/// Whether a file that starts with `bytes` is a ZFile.
pub(crate) fn is_zfile(bytes: &[u8]) -> bool {
    bytes.starts_with(&ZFILE_MAGIC0)
}

fn array<const N: usize>(section: &[u8; SECTION_LENGTH], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&section[at..at + N]);
    bytes
}

fn decode_uuid(text: &[u8; UUID_TEXT_BYTES]) -> Option<Uuid> {
    let length = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    Uuid::try_parse_ascii(&text[..length]).ok().filter(|uuid| !uuid.is_nil())
}

fn encode_uuid(uuid: Option<Uuid>, text: &mut [u8]) {
    uuid.unwrap_or(Uuid::nil()).hyphenated().encode_upper(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Header {
        Header {
            flags: FLAG_DATA | FLAG_SEALED,
            index_offset_bytes: 0x1_0000_2000,
            index_entries: 77,
            virtual_size_bytes: 1 << 42,
            uuid: Some(Uuid::from_u128(0xabc_def0)),
            parent_uuid: None,
            user_tag: b"a tag".to_vec(),
        }
    }

    #[test]
    fn decoding_gives_back_what_was_encoded() {
        assert_eq!(Header::decode(&example().encode()), Ok(example()));
    }

    #[test]
    fn uuid_text_is_upper_case_and_terminated() {
        let section = example().encode();
        assert_eq!(&section[UUID_AT..PARENT_UUID_AT], b"00000000-0000-0000-0000-00000ABCDEF0\0");
    }

    #[test]
    fn a_user_tag_may_fill_its_field() {
        let header = Header { user_tag: vec![b'x'; USER_TAG_BYTES], ..example() };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
    }
}
