//! Sparse mode: the data file is an image of the disk with holes.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use super::{Below, Upper, UpperError};
use crate::SECTOR_BYTES;
use crate::header::{Header, SECTION_BYTES};
use crate::live_index::{LiveIndex, Run};
use crate::mapping::FIRST_DATA_SECTOR;
use crate::number::to_usize;
use crate::range_lock::RangeLock;
use crate::stack::StackError;

/// Zeros are written in pieces of this size.
const ZEROES: &[u8] = &[0; 64 * 1024];

impl Upper {
    pub(super) fn write_blocks(
        &self,
        blocks: &RangeLock,
        block_sectors: u64,
        data: &[u8],
        sector: u64,
        below: &dyn Below,
    ) -> Result<(), StackError> {
        let end = sector + data.len() as u64 / SECTOR_BYTES;
        let _held = blocks.lock(self.whole_blocks(sector..end, block_sectors));
        self.write_held(block_sectors, data, sector, below)
    }

    /// Writes `data`; the caller holds its blocks.
    fn write_held(
        &self,
        block_sectors: u64,
        data: &[u8],
        sector: u64,
        below: &dyn Below,
    ) -> Result<(), StackError> {
        let end = sector + data.len() as u64 / SECTOR_BYTES;
        let bytes = |range: &Range<u64>| {
            &data[to_usize((range.start - sector) * SECTOR_BYTES)
                ..to_usize((range.end - sector) * SECTOR_BYTES)]
        };
        // A first block written in part, whole blocks, a last block written in part; each of them may be missing.
        let aligned_start = sector.next_multiple_of(block_sectors).min(end);
        let head = sector..aligned_start;
        let tail_start = (end - end % block_sectors).max(aligned_start);
        let tail = tail_start..end;
        let whole = aligned_start..tail_start;
        for part in [head, tail] {
            if !part.is_empty() {
                self.write_part_of_block(block_sectors, bytes(&part), part, below)?;
            }
        }
        if !whole.is_empty() {
            self.write_image(bytes(&whole), whole.start)?;
            self.live_mut().insert(image_run(whole));
        }
        Ok(())
    }

    fn write_part_of_block(
        &self,
        block_sectors: u64,
        data: &[u8],
        part: Range<u64>,
        below: &dyn Below,
    ) -> Result<(), StackError> {
        let block = self.whole_blocks(part.clone(), block_sectors);
        let owned: u64 = self.live().range(block.start, block.end).map(|run| run.end - run.start).sum();
        if owned == block.end - block.start {
            self.write_image(data, part.start)?;
            self.live_mut().insert(image_run(part));
            return Ok(());
        }
        // One write for the whole block: a crash leaves the block as a hole or complete, never with zeros in between.
        let mut content = vec![0; to_usize((block.end - block.start) * SECTOR_BYTES)];
        self.read_over(&mut content, block.clone(), below)?;
        let from = to_usize((part.start - block.start) * SECTOR_BYTES);
        content[from..from + data.len()].copy_from_slice(data);
        self.write_image(&content, block.start)?;
        self.live_mut().insert(image_run(block));
        Ok(())
    }

    /// What shows in `range`, this upper included.
    fn read_over(&self, buffer: &mut [u8], range: Range<u64>, below: &dyn Below) -> Result<(), StackError> {
        below.read_below(buffer, range.start)?;
        let runs: Vec<Run> = self.live().range(range.start, range.end).collect();
        for run in runs {
            let from = to_usize((run.start - range.start) * SECTOR_BYTES);
            let to = to_usize((run.end - range.start) * SECTOR_BYTES);
            self.data
                .read_exact_at(&mut buffer[from..to], SECTION_BYTES + run.start * SECTOR_BYTES)
                .map_err(UpperError::file("read", &self.files.data))?;
        }
        Ok(())
    }

    pub(super) fn zero_blocks(
        &self,
        blocks: &RangeLock,
        block_sectors: u64,
        start: u64,
        end: u64,
        below: &dyn Below,
    ) -> Result<(), StackError> {
        let _held = blocks.lock(self.whole_blocks(start..end, block_sectors));
        let mut cursor = start;
        while cursor < end {
            let piece_end = (cursor + ZEROES.len() as u64 / SECTOR_BYTES).min(end);
            let piece_end = if piece_end < end { piece_end - piece_end % block_sectors } else { end };
            let aligned = self.whole_blocks(cursor..piece_end, block_sectors) == (cursor..piece_end);
            if aligned && !below.maps_below(cursor, piece_end) {
                // As far as nothing shows from below, one hole will do.
                let mut hole_end = piece_end;
                while hole_end < end {
                    let next = (hole_end + ZEROES.len() as u64 / SECTOR_BYTES).min(end);
                    if !next.is_multiple_of(block_sectors) && next != self.end_sector()
                        || below.maps_below(hole_end, next)
                    {
                        break;
                    }
                    hole_end = next;
                }
                self.punch(cursor..hole_end)?;
                cursor = hole_end;
                continue;
            }
            let shown_as_zeros = self
                .live()
                .range(cursor, piece_end)
                .filter(|run| run.data_sector.is_none())
                .map(|run| run.end - run.start)
                .sum::<u64>()
                == piece_end - cursor;
            if !shown_as_zeros {
                let bytes = to_usize((piece_end - cursor) * SECTOR_BYTES);
                self.write_held(block_sectors, &ZEROES[..bytes], cursor, below)?;
                self.live_mut().insert(Run { start: cursor, end: piece_end, data_sector: None });
            }
            cursor = piece_end;
        }
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> Result<(), UpperError> {
        if self.live().range(range.start, range.end).next().is_none() {
            return Ok(());
        }
        // Forgotten first: a read in between shows zeros from below, which is what the range will show.
        self.live_mut().remove(range.start, range.end);
        fallocate(
            &self.data,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            SECTION_BYTES + range.start * SECTOR_BYTES,
            (range.end - range.start) * SECTOR_BYTES,
        )
        .map_err(|error| UpperError::file("punch a hole into", &self.files.data)(error.into()))
    }

    fn write_image(&self, data: &[u8], sector: u64) -> Result<(), UpperError> {
        self.data
            .write_all_at(data, SECTION_BYTES + sector * SECTOR_BYTES)
            .map_err(UpperError::file("write", &self.files.data))
    }

    fn end_sector(&self) -> u64 {
        self.header.virtual_size_bytes / SECTOR_BYTES
    }

    /// The blocks that `range` touches; the last one ends with the disk.
    fn whole_blocks(&self, range: Range<u64>, block_sectors: u64) -> Range<u64> {
        let start = range.start - range.start % block_sectors;
        start..range.end.next_multiple_of(block_sectors).min(self.end_sector()).max(range.end)
    }
}

fn image_run(range: Range<u64>) -> Run {
    Run { start: range.start, end: range.end, data_sector: Some(FIRST_DATA_SECTOR + range.start) }
}

/// Finds out what the file has, from what the file system reports as data. With `repair`, bytes behind the image (an
/// interrupted seal leaves them) are cut.
pub(super) fn scan(data: &File, path: &Path, header: &Header, repair: bool) -> Result<LiveIndex, UpperError> {
    let size_bytes = data.metadata().map_err(UpperError::file("examine", path))?.len();
    let image_end = SECTION_BYTES + header.virtual_size_bytes;
    if size_bytes < image_end {
        return Err(UpperError::Truncated { path: path.to_owned(), size_bytes, least_bytes: image_end });
    }
    if repair && size_bytes > image_end {
        data.set_len(image_end).map_err(UpperError::file("repair", path))?;
    }
    let mut live = LiveIndex::default();
    let mut at = SECTION_BYTES;
    while at < image_end {
        let Some(start) = next_data(data, path, at)?.filter(|&start| start < image_end) else { break };
        let end = seek(data, SeekFrom::Hole(start))
            .map_err(|error| UpperError::file("find holes in", path)(error.into()))?
            .min(image_end);
        let first = start / SECTOR_BYTES - FIRST_DATA_SECTOR;
        let last = end.div_ceil(SECTOR_BYTES) - FIRST_DATA_SECTOR;
        live.insert(image_run(first..last));
        at = end;
    }
    Ok(live)
}

/// Refuses a file system that reports a fresh file as data: everything below would be hidden after a reopen.
pub(super) fn check_holes(data: &File, path: &Path, end: u64) -> Result<(), UpperError> {
    match next_data(data, path, SECTION_BYTES)? {
        Some(start) if start < end => Err(UpperError::NoHoles { path: path.to_owned() }),
        _ => Ok(()),
    }
}

fn next_data(data: &File, path: &Path, at: u64) -> Result<Option<u64>, UpperError> {
    match seek(data, SeekFrom::Data(at)) {
        Ok(start) => Ok(Some(start)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(UpperError::file("find data in", path)(error.into())),
    }
}
