//! Sparse members: where the stored bytes of a file with holes belong.
//!
//! Four encodings exist: the old GNU header type `S`, and three pax variants that GNU tar calls 0.0 (one record an
//! entry), 0.1 (`GNU.sparse.map`) and 1.0 (a text map before the data).

use super::header::number;
use super::pax::decimal;
use super::{BLOCK_BYTES, SparseRun};

/// `GNU.sparse.*` records of a pax header.
#[derive(Debug, Default)]
pub(super) struct PaxSparse {
    pub name: Option<Vec<u8>>,
    pub major: Option<u64>,
    pub minor: Option<u64>,
    /// Size of the unpacked file: `GNU.sparse.size` (0.x) or `GNU.sparse.realsize` (1.0).
    pub real_size: Option<u64>,
    /// Offsets and lengths in turn, from variant 0.0 or 0.1.
    numbers: Vec<u64>,
    has_map: bool,
}

impl PaxSparse {
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        match key {
            b"name" => self.name = Some(value.to_vec()),
            b"major" => self.major = Some(decimal("sparse version", value)?),
            b"minor" => self.minor = Some(decimal("sparse version", value)?),
            b"size" | b"realsize" => self.real_size = Some(decimal("sparse size", value)?),
            b"numblocks" => self.has_map = true,
            b"offset" | b"numbytes" => {
                let wants_offset = self.numbers.len().is_multiple_of(2);
                if wants_offset != (key == b"offset") {
                    return Err("the offsets and lengths of its sparse map do not alternate".to_owned());
                }
                self.has_map = true;
                self.numbers.push(decimal("sparse map", value)?);
            }
            b"map" => {
                self.has_map = true;
                self.numbers = value
                    .split(|&byte| byte == b',')
                    .filter(|part| !part.is_empty() || value.contains(&b','))
                    .map(|part| decimal("sparse map", part))
                    .collect::<Result<_, _>>()?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Whether the map is text in front of the data (variant 1.0).
    pub(super) fn map_is_in_data(&self) -> Result<bool, String> {
        match (self.major, self.minor) {
            (None, None) => Ok(false),
            (Some(0), Some(0 | 1) | None) => Ok(false),
            (Some(1), Some(0) | None) => Ok(true),
            (major, minor) => Err(format!(
                "sparse format {}.{} is not known",
                major.unwrap_or_default(),
                minor.unwrap_or_default()
            )),
        }
    }

    /// The map of variants 0.0 and 0.1, when there is one.
    pub(super) fn runs_in_records(&self) -> Result<Option<Vec<SparseRun>>, String> {
        if !self.has_map {
            return Ok(None);
        }
        runs_from_numbers(&self.numbers).map(Some)
    }
}

/// Pairs offsets and lengths.
pub(super) fn runs_from_numbers(numbers: &[u64]) -> Result<Vec<SparseRun>, String> {
    if !numbers.len().is_multiple_of(2) {
        return Err("its sparse map ends in the middle of an entry".to_owned());
    }
    Ok(numbers.chunks_exact(2).map(|pair| SparseRun { offset: pair[0], length: pair[1] }).collect())
}

/// The entries of an old GNU header (4 of them at offset 386) or of one of its extension blocks (21 from offset 0).
/// Returns whether another extension block follows.
pub(super) fn read_gnu_entries(
    block: &[u8; BLOCK_BYTES],
    is_header: bool,
    runs: &mut Vec<SparseRun>,
) -> Result<bool, String> {
    let (start, count, flag) = if is_header { (386, 4, 482) } else { (0, 21, 504) };
    for entry in block[start..start + count * 24].chunks_exact(24) {
        // The list ends at the first empty entry.
        if entry[0] == 0 && entry[12] == 0 {
            break;
        }
        runs.push(SparseRun {
            offset: unsigned("sparse offset", &entry[..12])?,
            length: unsigned("sparse length", &entry[12..])?,
        });
    }
    Ok(block[flag] != 0)
}

/// Size of the unpacked file, from an old GNU header.
pub(super) fn gnu_real_size(block: &[u8; BLOCK_BYTES]) -> Result<u64, String> {
    unsigned("unpacked size", &block[483..495])
}

fn unsigned(what: &str, field: &[u8]) -> Result<u64, String> {
    u64::try_from(number(what, field)?).map_err(|_| format!("its {what} is negative"))
}

/// Checks that the runs are in order, inside the file, and account for every stored byte.
pub(super) fn validate(runs: &[SparseRun], real_size: u64, stored_bytes: u64) -> Result<(), String> {
    let mut end_of_last = 0_u64;
    let mut total = 0_u64;
    for run in runs {
        let end = run.offset.checked_add(run.length).filter(|&end| end <= real_size);
        match end {
            Some(end) if run.offset >= end_of_last => end_of_last = end,
            _ => return Err("its sparse map is out of order or reaches beyond the file".to_owned()),
        }
        // Bounded by the real size, so this cannot overflow.
        total += run.length;
    }
    if total != stored_bytes {
        return Err(format!("its sparse map places {total} bytes, but {stored_bytes} are stored"));
    }
    Ok(())
}
