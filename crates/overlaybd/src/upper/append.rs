//! Writes in append mode.

use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use super::journal::Journal;
use super::{Below, Upper, UpperError};
use crate::SECTOR_BYTES;
use crate::live_index::Run;
use crate::mapping;
use crate::number::to_usize;

/// A write over data the upper already has goes there only if it is in at most this many pieces. More would cost more
/// than appending, and appending once makes it one piece.
const MOST_PIECES: usize = 8;

impl Upper {
    pub(super) fn append(
        &self,
        journal: &Journal,
        next_sector: &AtomicU64,
        data: &[u8],
        sector: u64,
    ) -> Result<(), UpperError> {
        let sectors = data.len() as u64 / SECTOR_BYTES;
        let sequence = match self.owned_pieces(sector, sector + sectors) {
            Some(pieces) => {
                for (piece, data_sector) in pieces {
                    let from = to_usize((piece.start - sector) * SECTOR_BYTES);
                    let to = to_usize((piece.end - sector) * SECTOR_BYTES);
                    self.write_data(&data[from..to], data_sector)?;
                }
                // The entries of these pieces may still be queued, if writing them failed before.
                journal.queued()
            }
            None => {
                let data_sector = next_sector.fetch_add(sectors, Ordering::SeqCst);
                self.write_data(data, data_sector)?;
                // One lock for index and queue, so that both have the same order.
                let mut live = self.live_mut();
                live.insert(Run { start: sector, end: sector + sectors, data_sector: Some(data_sector) });
                journal.queue(mapping::split(sector, sectors, Some(data_sector)))
            }
        };
        journal.after_write(sequence).map_err(UpperError::file("write", &self.files.index))
    }

    pub(super) fn append_zeroes(
        &self,
        journal: &Journal,
        start: u64,
        end: u64,
        below: &dyn Below,
    ) -> Result<(), UpperError> {
        let sequence = {
            let mut live = self.live_mut();
            // Where zeros show already, no entry is needed: a guest that discards its free space again and again must not
            // grow the index each time.
            let mut needed: Option<(u64, u64)> = None;
            let mut need = |from: u64, to: u64| {
                needed = Some((needed.map_or(from, |(first, _)| first), to));
            };
            let mut cursor = start;
            for run in live.range(start, end) {
                if run.start > cursor && below.maps_below(cursor, run.start) {
                    need(cursor, run.start);
                }
                if run.data_sector.is_some() {
                    need(run.start, run.end);
                }
                cursor = run.end;
            }
            if cursor < end && below.maps_below(cursor, end) {
                need(cursor, end);
            }
            let Some((start, end)) = needed else { return Ok(()) };
            live.insert(Run { start, end, data_sector: None });
            journal.queue(mapping::split(start, end - start, None))
        };
        journal.after_write(sequence).map_err(UpperError::file("write", &self.files.index))
    }

    /// The pieces of data this upper has for `[start, end)`, when it has all of it in a few pieces.
    ///
    /// A piece may be superseded by another write before the caller has written over it. Then its place is dead (places
    /// are never used again), and the two writes, being concurrent, have simply happened in this order.
    fn owned_pieces(&self, start: u64, end: u64) -> Option<Vec<(Run, u64)>> {
        let live = self.live();
        let mut pieces = Vec::new();
        let mut cursor = start;
        for run in live.range(start, end) {
            if run.start != cursor || pieces.len() == MOST_PIECES {
                return None;
            }
            pieces.push((run, run.data_sector?));
            cursor = run.end;
        }
        (cursor == end).then_some(pieces)
    }

    fn write_data(&self, data: &[u8], data_sector: u64) -> Result<(), UpperError> {
        self.data
            .write_all_at(data, data_sector * SECTOR_BYTES)
            .map_err(UpperError::file("write", &self.files.data))
    }
}
