//! What one request works on: the uppers, the layers, and how a range is found in them.

use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use super::StackError;
use crate::SECTOR_BYTES;
use crate::layer::{Layer, MAX_INDEX_ENTRIES};
use crate::live_index::Run;
use crate::mapping::Mapping;
use crate::merged_index::{Merge, MergedIndex};
use crate::number::to_usize;
use crate::upper::{Below, Upper, UpperError};

/// The read-only layers of a stack, bottom first, and their merged index.
#[derive(Debug)]
pub(super) struct Lowers {
    layers: Vec<Arc<Layer>>,
    index: MergedIndex,
}

impl Lowers {
    pub(super) fn new(layers: Vec<Arc<Layer>>) -> Result<Self, StackError> {
        let merge = Merge::new(layers.iter().map(|layer| layer.mappings()).collect());
        let index = bounded(merge.map(|(layer, mapping)| mapping.with_tag(number(layer))))?;
        Ok(Lowers { layers, index })
    }

    /// These layers with one more on top. The merged index is continued, not built again.
    pub(super) fn with(&self, layer: Arc<Layer>) -> Result<Self, StackError> {
        let below: Vec<_> = self.index.iter().collect();
        let top = number(self.layers.len());
        let merge = Merge::new(vec![&below, layer.mappings()]);
        let index =
            bounded(merge.map(|(input, mapping)| if input == 0 { mapping } else { mapping.with_tag(top) }))?;
        let mut layers = self.layers.clone();
        layers.push(layer);
        Ok(Lowers { layers, index })
    }

    pub(super) fn layers(&self) -> &[Arc<Layer>] {
        &self.layers
    }
}

/// Nothing is below the layers, so their runs of zeros need no place in the index.
fn bounded(merge: impl Iterator<Item = Mapping>) -> Result<MergedIndex, StackError> {
    let limit = to_usize(MAX_INDEX_ENTRIES);
    let index = MergedIndex::new(merge.filter(|mapping| !mapping.is_zeroed()).take(limit + 1));
    if index.len() > limit { Err(StackError::IndexTooLarge) } else { Ok(index) }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a stack has at most 255 layers, checked when it is made"
)]
fn number(layer: usize) -> u8 {
    layer as u8
}

/// A stack at one moment.
#[derive(Debug)]
pub(super) struct State {
    /// Top first. Two while a restack is under way: the new one, and the one being sealed.
    pub(super) uppers: Vec<Arc<Upper>>,
    pub(super) lowers: Arc<Lowers>,
    /// Why nothing can be written any more.
    pub(super) broken: Option<Arc<StackError>>,
}

/// A part of a range and where it is found.
pub(super) struct Piece<'a> {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) source: Source<'a>,
}

/// Where a piece is found; sectors count from the start of the file.
pub(super) enum Source<'a> {
    Zeroes,
    Upper(&'a Upper, u64),
    Lower(usize, u64),
}

impl State {
    /// Visits the pieces of `[start, end)` in order and without gap, looking at uppers from number `level` on (0 is the
    /// top) and then at the layers. No lock is held while a piece is visited.
    pub(super) fn resolve<'a, B>(
        &'a self,
        level: usize,
        start: u64,
        end: u64,
        visit: &mut impl FnMut(Piece<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let Some(upper) = self.uppers.get(level) else { return self.resolve_lowers(start, end, visit) };
        let runs: Vec<Run> = upper.live().range(start, end).collect();
        let mut cursor = start;
        for run in runs {
            if cursor < run.start {
                self.resolve(level + 1, cursor, run.start, visit)?;
            }
            let source = match run.data_sector {
                Some(data_sector) => Source::Upper(upper, data_sector),
                None => Source::Zeroes,
            };
            visit(Piece { start: run.start, end: run.end, source })?;
            cursor = run.end;
        }
        if cursor < end { self.resolve(level + 1, cursor, end, visit) } else { ControlFlow::Continue(()) }
    }

    fn resolve_lowers<'a, B>(
        &'a self,
        start: u64,
        end: u64,
        visit: &mut impl FnMut(Piece<'a>) -> ControlFlow<B>,
    ) -> ControlFlow<B> {
        let mut cursor = start;
        for mapping in self.lowers.index.range(start, end) {
            if cursor < mapping.sector() {
                visit(Piece { start: cursor, end: mapping.sector(), source: Source::Zeroes })?;
            }
            let source = Source::Lower(mapping.tag(), mapping.data_sector());
            visit(Piece { start: mapping.sector(), end: mapping.end_sector(), source })?;
            cursor = mapping.end_sector();
        }
        if cursor < end {
            visit(Piece { start: cursor, end, source: Source::Zeroes })?;
        }
        ControlFlow::Continue(())
    }

    /// Reads whole sectors from `sector` on, as they show at `level`.
    pub(super) fn read(&self, level: usize, buffer: &mut [u8], sector: u64) -> Result<(), StackError> {
        let end = sector + buffer.len() as u64 / SECTOR_BYTES;
        let visited = self.resolve(level, sector, end, &mut |piece| {
            let from = to_usize((piece.start - sector) * SECTOR_BYTES);
            let to = to_usize((piece.end - sector) * SECTOR_BYTES);
            match self.read_piece(&mut buffer[from..to], &piece.source) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => ControlFlow::Break(error),
            }
        });
        match visited {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(error) => Err(error),
        }
    }

    fn read_piece(&self, buffer: &mut [u8], source: &Source<'_>) -> Result<(), StackError> {
        match *source {
            Source::Zeroes => {
                buffer.fill(0);
                Ok(())
            }
            Source::Upper(upper, data_sector) => {
                let read = upper.data_file().read_exact_at(buffer, data_sector * SECTOR_BYTES);
                Ok(read.map_err(UpperError::file("read", upper.data_path()))?)
            }
            Source::Lower(layer, data_sector) => {
                let offset_bytes = data_sector * SECTOR_BYTES;
                let read = self.lowers.layers[layer].source().read_exact_at(buffer, offset_bytes);
                let length_bytes = buffer.len() as u64;
                read.map_err(|error| StackError::Read { layer, offset_bytes, length_bytes, error })
            }
        }
    }

    pub(super) fn below_upper(&self, level: usize) -> BelowUpper<'_> {
        BelowUpper { state: self, level: level + 1 }
    }

    pub(super) fn check_not_broken(&self) -> Result<(), StackError> {
        match self.broken.as_deref() {
            Some(StackError::Broken { reason, old, new }) => {
                Err(StackError::Broken { reason: reason.clone(), old: old.clone(), new: new.clone() })
            }
            _ => Ok(()),
        }
    }
}

/// What shows below an upper.
pub(super) struct BelowUpper<'a> {
    state: &'a State,
    level: usize,
}

impl Below for BelowUpper<'_> {
    fn read_below(&self, buffer: &mut [u8], sector: u64) -> Result<(), StackError> {
        self.state.read(self.level, buffer, sector)
    }

    fn maps_below(&self, start: u64, end: u64) -> bool {
        let visited = self.state.resolve(self.level, start, end, &mut |piece| match piece.source {
            Source::Zeroes => ControlFlow::Continue(()),
            _ => ControlFlow::Break(()),
        });
        visited.is_break()
    }
}
