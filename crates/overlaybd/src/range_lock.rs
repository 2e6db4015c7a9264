//! Exclusive access to ranges: overlapping holders wait for each other, others do not.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The ranges held. There are as many as threads write at once, so a list is enough.
#[derive(Debug, Default)]
pub(crate) struct RangeLock {
    held: Mutex<Vec<Range<u64>>>,
    released: Condvar,
}

impl RangeLock {
    /// Waits until nobody holds any part of `range`, then holds it until the result is dropped.
    pub(crate) fn lock(&self, range: Range<u64>) -> HeldRange<'_> {
        let mut held = self.held();
        while held.iter().any(|other| other.start < range.end && range.start < other.end) {
            held = self.released.wait(held).unwrap_or_else(PoisonError::into_inner);
        }
        held.push(range.clone());
        HeldRange { lock: self, range }
    }

    fn held(&self) -> MutexGuard<'_, Vec<Range<u64>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct HeldRange<'a> {
    lock: &'a RangeLock,
    range: Range<u64>,
}

impl Drop for HeldRange<'_> {
    fn drop(&mut self) {
        let mut held = self.lock.held();
        if let Some(position) = held.iter().position(|range| *range == self.range) {
            held.swap_remove(position);
        }
        self.lock.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn disjoint_ranges_are_held_at_once() {
        let lock = RangeLock::default();
        let _first = lock.lock(0..8);
        let _second = lock.lock(8..16);
    }

    #[test]
    fn overlapping_ranges_exclude_each_other() {
        let (lock, inside) = (RangeLock::default(), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (lock, inside) = (&lock, &inside);
                scope.spawn(move || {
                    for _ in 0..500 {
                        let _held = lock.lock(thread..8);
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
