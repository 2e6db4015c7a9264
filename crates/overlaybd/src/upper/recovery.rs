//! Reading the entries of an append-mode upper, and cutting what a crash left behind.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::{UpperError, UpperFiles};
use crate::SECTOR_BYTES;
use crate::header::SECTION_BYTES;
use crate::layer::MAX_INDEX_ENTRIES;
use crate::live_index::{LiveIndex, Run};
use crate::mapping::{FIRST_DATA_SECTOR, MAPPING_BYTES, MAX_SECTOR, Mapping};
use crate::number::to_usize;

const CHUNK_ENTRIES: u64 = 64 * 1024;

pub(super) struct Recovered {
    pub(super) live: LiveIndex,
    /// Entries the index file holds, padding included, after the cut.
    pub(super) entries: u64,
    /// Where the next data goes.
    pub(super) next_sector: u64,
}

/// Replays the index file.
///
/// A torn entry at the end is cut. An entry that cannot be true (its data is not in the file, or lies in the header, or
/// it is empty because its page never reached the disk) is replaced with padding: only writes that were never flushed
/// can be among them, because a flush makes data durable before entries. With `repair` the cut is made in the file and is
/// durable before anything else is written; otherwise a later write could give the missing data a place and an old entry
/// would point into it.
pub(super) fn recover(
    data: &File,
    index: &File,
    files: &UpperFiles,
    repair: bool,
) -> Result<Recovered, UpperError> {
    let size = |file: &File, path| Ok(file.metadata().map_err(UpperError::file("examine", path))?.len());
    let data_bytes = size(data, &files.data)?;
    let index_bytes = size(index, &files.index)?;
    let entries = index_bytes.saturating_sub(SECTION_BYTES) / MAPPING_BYTES;
    if entries > MAX_INDEX_ENTRIES {
        return Err(UpperError::TooManyEntries { path: files.index.clone(), entries });
    }
    let data_end_sector = data_bytes / SECTOR_BYTES;
    let mut live = LiveIndex::default();
    let mut repaired = false;
    let mut chunk = vec![0; to_usize(entries.min(CHUNK_ENTRIES) * MAPPING_BYTES)];
    let mut position = 0;
    while position < entries {
        let count = (entries - position).min(CHUNK_ENTRIES);
        let bytes = &mut chunk[..to_usize(count * MAPPING_BYTES)];
        let at = SECTION_BYTES + position * MAPPING_BYTES;
        index.read_exact_at(bytes, at).map_err(UpperError::file("read", &files.index))?;
        let mut changed = false;
        for entry in bytes.as_chunks_mut::<16>().0 {
            let mapping = Mapping::from_bytes(*entry);
            if mapping.is_padding() {
                continue;
            }
            if is_possible(&mapping, data_end_sector) {
                let data_sector = (!mapping.is_zeroed()).then_some(mapping.data_sector());
                live.insert(Run { start: mapping.sector(), end: mapping.end_sector(), data_sector });
            } else {
                *entry = Mapping::PADDING.to_bytes();
                changed = true;
            }
        }
        if changed && repair {
            index.write_all_at(bytes, at).map_err(UpperError::file("repair", &files.index))?;
            repaired = true;
        }
        position += count;
    }
    let whole_bytes = SECTION_BYTES + entries * MAPPING_BYTES;
    if repair && index_bytes > whole_bytes {
        index.set_len(whole_bytes).map_err(UpperError::file("repair", &files.index))?;
        repaired = true;
    }
    if repaired {
        index.sync_data().map_err(UpperError::file(super::files::SYNC, &files.index))?;
    }
    let next_sector = data_bytes.div_ceil(SECTOR_BYTES).max(FIRST_DATA_SECTOR);
    Ok(Recovered { live, entries, next_sector })
}

fn is_possible(mapping: &Mapping, data_end_sector: u64) -> bool {
    let data = mapping.data_sector();
    mapping.sectors() > 0
        && mapping.end_sector() <= MAX_SECTOR
        && (mapping.is_zeroed() || data >= FIRST_DATA_SECTOR && data + mapping.sectors() <= data_end_sector)
}
