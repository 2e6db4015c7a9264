//! Compaction: one or more layers become one, with only the data that shows.

use std::io::{self, Write};
use std::sync::Arc;

use thiserror::Error;
use uuid::Uuid;

use crate::SECTOR_BYTES;
use crate::header::{FLAG_DATA, FLAG_HEADER, FLAG_SEALED, Header, SECTION_BYTES, USER_TAG_BYTES};
use crate::layer::Layer;
use crate::live_index::Run;
use crate::mapping::{self, FIRST_DATA_SECTOR, MAPPING_BYTES, Mapping};
use crate::merged_index::Merge;
use crate::number::to_usize;

/// Data read at a time.
const CHUNK_BYTES: u64 = 1 << 20;
/// Zeros are recognised in blocks of this many sectors of the disk: file systems write whole blocks.
const BLOCK_SECTORS: u64 = 8;
const ZERO_BLOCK: &[u8] = &[0; to_usize(BLOCK_SECTORS * SECTOR_BYTES)];

/// What a compacted layer is labelled with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitOptions {
    /// Its identity; without one it carries the all-zero uuid.
    pub uuid: Option<Uuid>,
    /// Identity of the layer below it; without one, what the lowest of the given layers says.
    pub parent_uuid: Option<Uuid>,
    /// Free text of at most [`USER_TAG_BYTES`] bytes.
    pub user_tag: Vec<u8>,
}

/// What a compaction has written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Committed {
    /// Size of the whole layer.
    pub size_bytes: u64,
    /// Size of the data in it.
    pub data_bytes: u64,
    /// Runs in its index, padding not counted.
    pub mappings: u64,
}

/// Why layers cannot be compacted.
#[derive(Debug, Error)]
pub enum CommitError {
    /// There is nothing to compact.
    #[error("no layer was given to compact")]
    Empty,
    /// The tag does not fit.
    #[error("a user tag of {bytes} bytes is too long: at most 256 fit")]
    UserTag {
        /// Its length.
        bytes: usize,
    },
    /// A layer could not be read; a truncated layer is such a case.
    #[error("cannot read byte {offset_bytes} of layer {layer} (0 is the bottom): {error}")]
    Read {
        /// Number of the layer, bottom first.
        layer: usize,
        /// Where in the layer.
        offset_bytes: u64,
        /// Why.
        error: io::Error,
    },
    /// The output could not be written.
    #[error("cannot write the compacted layer: {0}")]
    Write(io::Error),
}

/// Compacts `layers`, bottom first, into one layer that takes their place in any stack.
///
/// The output is written once from start to end: header, data in the order of the disk, index padded to 4096 bytes,
/// trailer. Blocks of 4 KiB that hold only zeros are not copied but become runs of zeros, which still hide what lies below.
/// The caller makes the output durable.
pub fn commit(
    layers: &[Arc<Layer>],
    options: &CommitOptions,
    output: &mut impl Write,
) -> Result<Committed, CommitError> {
    let bottom = layers.first().ok_or(CommitError::Empty)?;
    if options.user_tag.len() > USER_TAG_BYTES {
        return Err(CommitError::UserTag { bytes: options.user_tag.len() });
    }
    let virtual_size_bytes =
        layers.iter().rev().map(|layer| layer.virtual_size_bytes()).find(|&bytes| bytes != 0).unwrap_or(0);
    let header = Header {
        flags: FLAG_HEADER | FLAG_DATA | FLAG_SEALED,
        index_offset_bytes: 0,
        index_entries: 0,
        virtual_size_bytes,
        uuid: options.uuid,
        parent_uuid: options.parent_uuid.or_else(|| bottom.header().parent_uuid),
        user_tag: options.user_tag.clone(),
    };
    output.write_all(&header.encode()).map_err(CommitError::Write)?;
    let mut compaction = Compaction { output, runs: Vec::new(), next_sector: FIRST_DATA_SECTOR };
    let mut chunk = vec![0; to_usize(CHUNK_BYTES)];
    for (number, mapping) in Merge::new(layers.iter().map(|layer| layer.mappings()).collect()) {
        if mapping.is_zeroed() {
            compaction.push(mapping.sector(), mapping.end_sector(), None);
            continue;
        }
        let mut sector = mapping.sector();
        while sector < mapping.end_sector() {
            let end = mapping.end_sector().min(sector + CHUNK_BYTES / SECTOR_BYTES);
            let bytes = &mut chunk[..to_usize((end - sector) * SECTOR_BYTES)];
            let offset_bytes = mapping.part(sector, end).data_sector() * SECTOR_BYTES;
            let read = layers[number].source().read_exact_at(bytes, offset_bytes);
            read.map_err(|error| CommitError::Read { layer: number, offset_bytes, error })?;
            compaction.copy(bytes, sector).map_err(CommitError::Write)?;
            sector = end;
        }
    }
    compaction.finish(header)
}

struct Compaction<'a, W> {
    output: &'a mut W,
    runs: Vec<Run>,
    next_sector: u64,
}

impl<W: Write> Compaction<'_, W> {
    /// Copies what is not zero.
    fn copy(&mut self, bytes: &[u8], sector: u64) -> io::Result<()> {
        let end = sector + bytes.len() as u64 / SECTOR_BYTES;
        let place = |at: u64| to_usize((at - sector) * SECTOR_BYTES);
        let mut copied_to = sector;
        let mut cursor = sector;
        while cursor < end {
            let block_end = (cursor + 1).next_multiple_of(BLOCK_SECTORS).min(end);
            let block = &bytes[place(cursor)..place(block_end)];
            if *block == ZERO_BLOCK[..block.len()] {
                self.copy_run(&bytes[place(copied_to)..place(cursor)], copied_to)?;
                self.push(cursor, block_end, None);
                copied_to = block_end;
            }
            cursor = block_end;
        }
        self.copy_run(&bytes[place(copied_to)..], copied_to)
    }

    fn copy_run(&mut self, bytes: &[u8], sector: u64) -> io::Result<()> {
        let sectors = bytes.len() as u64 / SECTOR_BYTES;
        if sectors > 0 {
            self.output.write_all(bytes)?;
            self.push(sector, sector + sectors, Some(self.next_sector));
            self.next_sector += sectors;
        }
        Ok(())
    }

    fn push(&mut self, start: u64, end: u64, data_sector: Option<u64>) {
        let run = Run { start, end, data_sector };
        match self.runs.last_mut() {
            Some(last) if run.continues(last) => last.end = end,
            _ => self.runs.push(run),
        }
    }

    fn finish(self, header: Header) -> Result<Committed, CommitError> {
        let mut index: Vec<Mapping> = Vec::new();
        for run in &self.runs {
            index.extend(mapping::split(run.start, run.end - run.start, run.data_sector));
        }
        let mappings = index.len() as u64;
        index.resize(index.len().next_multiple_of(to_usize(SECTION_BYTES / MAPPING_BYTES)), Mapping::PADDING);
        let bytes: Vec<u8> = index.iter().flat_map(|mapping| mapping.to_bytes()).collect();
        let index_offset_bytes = self.next_sector * SECTOR_BYTES;
        let trailer = Header {
            flags: FLAG_DATA | FLAG_SEALED,
            index_offset_bytes,
            index_entries: index.len() as u64,
            ..header
        };
        let written = self.output.write_all(&bytes).and_then(|()| self.output.write_all(&trailer.encode()));
        written.map_err(CommitError::Write)?;
        Ok(Committed {
            size_bytes: index_offset_bytes + bytes.len() as u64 + SECTION_BYTES,
            data_bytes: index_offset_bytes - SECTION_BYTES,
            mappings,
        })
    }
}
