//! The index of all read-only layers of a stack, as one sorted array.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::mapping::{MAX_SECTOR, Mapping};

/// Keys of one search node: two cache lines.
const FANOUT: usize = 16;
const LENGTH_BITS: u32 = 14;

/// Sorted runs without overlap, 16 bytes each, and a tree of separators over them.
///
/// A key is `first sector << 14 | length`: keys sort by sector, and comparing with the key of a sector needs no
/// unpacking. The separators make a static B-tree: level 0 holds the first key of every sixteen, level 1 the first of
/// every sixteen of those, and so on until one node is left. They add a fifteenth to the size and keep a search in few
/// cache lines.
#[derive(Debug, Default)]
pub(crate) struct MergedIndex {
    keys: Vec<u64>,
    targets: Vec<u64>,
    separators: Vec<Vec<u64>>,
}

impl MergedIndex {
    pub(crate) fn new(mappings: impl Iterator<Item = Mapping>) -> Self {
        let (mut keys, mut targets) = (Vec::new(), Vec::new());
        for mapping in mappings {
            keys.push(mapping.sector() << LENGTH_BITS | mapping.sectors());
            targets.push(mapping.target);
        }
        keys.shrink_to_fit();
        targets.shrink_to_fit();
        let mut separators: Vec<Vec<u64>> = Vec::new();
        loop {
            let below = separators.last().unwrap_or(&keys);
            if below.len() <= FANOUT {
                break;
            }
            let level = below.iter().copied().step_by(FANOUT).collect();
            separators.push(level);
        }
        MergedIndex { keys, targets, separators }
    }

    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    fn get(&self, position: usize) -> Mapping {
        let key = self.keys[position];
        let (sector, sectors) = (key >> LENGTH_BITS, key & ((1 << LENGTH_BITS) - 1));
        Mapping { place: sector | sectors << 50, target: self.targets[position] }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Mapping> {
        (0..self.len()).map(|position| self.get(position))
    }

    /// The parts of runs that lie in `[start, end)`, in order.
    pub(crate) fn range(&self, start: u64, end: u64) -> impl Iterator<Item = Mapping> {
        debug_assert!(start < end && end <= MAX_SECTOR);
        let after = self.upper_bound(start);
        let first = match after.checked_sub(1) {
            Some(before) if self.get(before).end_sector() > start => before,
            _ => after,
        };
        (first..self.len())
            .map(|position| self.get(position))
            .take_while(move |mapping| mapping.sector() < end)
            .map(move |mapping| mapping.part(mapping.sector().max(start), mapping.end_sector().min(end)))
    }

    /// How many runs start at or before `sector`.
    fn upper_bound(&self, sector: u64) -> usize {
        let bound = (sector + 1) << LENGTH_BITS;
        let mut node = 0;
        for level in self.separators.iter().rev() {
            // The separators of a node start with a key at or before the one looked for, unless it is before all.
            node = (node + count_below(level, node, bound)).saturating_sub(1) * FANOUT;
        }
        node + count_below(&self.keys, node, bound)
    }
}

/// How many of the node's keys are below `bound`. Without branches: the outcome of a search is not predictable.
fn count_below(level: &[u64], node: usize, bound: u64) -> usize {
    let keys = &level[node..level.len().min(node + FANOUT)];
    keys.iter().map(|&key| usize::from(key < bound)).sum()
}

/// Merges the indexes of layers, the last one on top, in one pass.
///
/// Each layer's entries are sorted. A sweep over the virtual disk keeps the runs that cover its position, ordered by
/// layer; a run of the result ends where the top-most layer of that set changes. The work is proportional to the sum
/// of entries times the logarithm of the number of layers, and nothing but the result grows with the entries.
///
/// Each run of the result comes with the position in `layers` of the layer it is from. Runs of zeros are part of the
/// result: a caller with nothing below may drop them.
pub(crate) struct Merge<'a> {
    layers: Vec<&'a [Mapping]>,
    /// Next entry of each layer that has one: (first sector, layer, position).
    upcoming: BinaryHeap<Reverse<(u64, usize, usize)>>,
    /// Runs that have started: (layer, end sector, position). The top-most one that has not ended is what is visible;
    /// ended ones are removed when they come to the top.
    active: BinaryHeap<(usize, u64, usize)>,
    sector: u64,
}

impl<'a> Merge<'a> {
    pub(crate) fn new(layers: Vec<&'a [Mapping]>) -> Self {
        let upcoming = layers
            .iter()
            .enumerate()
            .filter_map(|(layer, mappings)| mappings.first().map(|first| Reverse((first.sector(), layer, 0))))
            .collect();
        Merge { layers, upcoming, active: BinaryHeap::new(), sector: 0 }
    }

    /// Moves the entry that starts first to the active ones, unless a run above hides it up to `hidden_until`.
    fn start_next(&mut self, hidden_until: u64) {
        let Some(Reverse((_, layer, position))) = self.upcoming.pop() else { return };
        let mappings = self.layers[layer];
        let end = mappings[position].end_sector();
        if end > hidden_until {
            self.active.push((layer, end, position));
        }
        if let Some(next) = mappings.get(position + 1) {
            self.upcoming.push(Reverse((next.sector(), layer, position + 1)));
        }
    }
}

impl Iterator for Merge<'_> {
    type Item = (usize, Mapping);

    fn next(&mut self) -> Option<(usize, Mapping)> {
        // Find what is visible at the current position, moving it over what no layer maps.
        let (layer, end, position) = loop {
            while let Some(&Reverse((start, ..))) = self.upcoming.peek()
                && start <= self.sector
            {
                self.start_next(self.sector);
            }
            match self.active.peek() {
                Some(&(_, end, _)) if end <= self.sector => {
                    self.active.pop();
                }
                Some(&visible) => break visible,
                None => self.sector = self.upcoming.peek()?.0.0,
            }
        };
        let start = self.sector;
        // It stays visible until it ends or a higher layer starts.
        let mut stop = end;
        while let Some(&Reverse((next, next_layer, _))) = self.upcoming.peek()
            && next < stop
        {
            if next_layer > layer {
                stop = next;
            } else {
                self.start_next(end);
            }
        }
        self.sector = stop;
        Some((layer, self.layers[layer][position].part(start, stop)))
    }
}

#[cfg(test)]
mod tests;
