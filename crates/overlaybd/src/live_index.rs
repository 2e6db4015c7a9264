//! The index of a writable upper: an ordered map that a write splits and replaces.

use std::collections::BTreeMap;

use crate::mapping::{self, Mapping};

/// A run of virtual sectors. Unlike an entry on disk it may be of any length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// First sector of the data in the upper's data file; `None` when the run reads as zeros.
    pub(crate) data_sector: Option<u64>,
}

impl Run {
    /// The part inside `[start, end)`, which must not be empty.
    fn clip(self, start: u64, end: u64) -> Run {
        let from = self.start.max(start);
        Run {
            start: from,
            end: self.end.min(end),
            data_sector: self.data_sector.map(|data_sector| data_sector + (from - self.start)),
        }
    }

    /// Whether this run can be joined to the one that ends where it starts.
    pub(crate) fn continues(&self, before: &Run) -> bool {
        before.end == self.start
            && match (before.data_sector, self.data_sector) {
                (None, None) => true,
                (Some(data), Some(next)) => data + (before.end - before.start) == next,
                _ => false,
            }
    }
}

/// Which virtual sectors an upper has, keyed by the first sector of each run.
#[derive(Debug, Default)]
pub(crate) struct LiveIndex {
    runs: BTreeMap<u64, Run>,
}

impl LiveIndex {
    /// Replaces whatever was in the place of `run`, and joins it with a run it continues.
    pub(crate) fn insert(&mut self, mut run: Run) {
        self.remove(run.start, run.end);
        if let Some(before) = self.runs.range(..run.start).next_back().map(|(_, before)| *before)
            && run.continues(&before)
        {
            run = Run { start: before.start, data_sector: before.data_sector, ..run };
        }
        if let Some(after) = self.runs.get(&run.end).copied()
            && after.continues(&run)
        {
            self.runs.remove(&after.start);
            run.end = after.end;
        }
        self.runs.insert(run.start, run);
    }

    /// Forgets `[start, end)`: layers below show there.
    pub(crate) fn remove(&mut self, start: u64, end: u64) {
        if let Some(before) = self.runs.range_mut(..start).next_back().map(|(_, before)| before)
            && before.end > start
        {
            let whole = *before;
            before.end = start;
            if whole.end > end {
                self.runs.insert(end, whole.clip(end, whole.end));
                return;
            }
        }
        while let Some((&key, &run)) = self.runs.range(start..end).next() {
            self.runs.remove(&key);
            if run.end > end {
                self.runs.insert(end, run.clip(end, run.end));
            }
        }
    }

    /// The parts of runs that lie in `[start, end)`, in order.
    pub(crate) fn range(&self, start: u64, end: u64) -> impl Iterator<Item = Run> {
        let before = self.runs.range(..start).next_back().map(|(_, run)| *run).filter(|run| run.end > start);
        before
            .into_iter()
            .chain(self.runs.range(start..end).map(|(_, run)| *run))
            .map(move |run| run.clip(start, end))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Run> {
        self.runs.values().copied()
    }

    /// The entries of a read-only layer with this content.
    pub(crate) fn mappings(&self) -> Vec<Mapping> {
        self.iter().flat_map(|run| mapping::split(run.start, run.end - run.start, run.data_sector)).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_last_write_to_a_sector_is_the_one_found(
            operations in prop::collection::vec((0..3u8, 0..60u64, 1..20u64), 1..60),
        ) {
            let mut index = LiveIndex::default();
            let mut model = [None; 80];
            for (number, &(kind, start, length)) in operations.iter().enumerate() {
                let end = start + length;
                let data_sector = (kind == 0).then_some(100 * (number as u64 + 1));
                if kind == 2 {
                    index.remove(start, end);
                } else {
                    index.insert(Run { start, end, data_sector });
                }
                for sector in start..end {
                    model[usize::try_from(sector).unwrap()] =
                        (kind != 2).then_some(data_sector.map(|data| data + sector - start));
                }
            }
            prop_assert!(index.iter().is_sorted_by(|a, b| a.end <= b.start));
            for (sector, expected) in model.iter().enumerate() {
                let sector = sector as u64;
                let found = index.range(sector, sector + 1).next().map(|run| run.data_sector);
                prop_assert_eq!(&found, expected);
            }
            let all: u64 = index.range(0, 80).map(|run| run.end - run.start).sum();
            prop_assert_eq!(all, model.iter().filter(|sector| sector.is_some()).count() as u64);
        }
    }

    #[test]
    fn sequential_writes_become_one_run() {
        let mut index = LiveIndex::default();
        for i in 0..10 {
            index.insert(Run { start: i * 8, end: i * 8 + 8, data_sector: Some(8 + i * 8) });
        }
        assert_eq!(index.iter().count(), 1);
    }
}
