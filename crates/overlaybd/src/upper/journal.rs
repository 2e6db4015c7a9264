//! The index file of an append-mode upper: entries in the order of the writes.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::mapping::{MAPPING_BYTES, Mapping};
use crate::number::to_usize;

/// Appends entries to the index file, strictly in order, without a lock held during I/O.
///
/// Entries are queued together with the change of the in-memory index, so both have the same order. One thread at a time
/// writes what is queued; the others wait for it and find their entries written. An entry whose writing failed stays
/// queued, so that the file never has a gap: a later entry becomes durable only after it.
#[derive(Debug)]
pub(crate) struct Journal {
    file: File,
    /// Entries go out in groups of this many bytes, filled up with padding at a flush. 0: each goes out at once.
    group_bytes: u64,
    state: Mutex<State>,
    written: Condvar,
    /// Whether the file has changed since it was last synced.
    dirty: AtomicBool,
}

#[derive(Debug)]
struct State {
    queue: Vec<u8>,
    /// Bytes of entries ever queued, and how many of those are in the file. Padding is not counted.
    queued: u64,
    written: u64,
    file_end: u64,
    writing: bool,
}

/// Position in the order of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sequence(u64);

impl Journal {
    /// A journal that continues at `file_end`. What the file holds is taken to be not durable yet: a killed process may
    /// have left it in the page cache.
    pub(crate) fn new(file: File, file_end: u64, group_bytes: u32) -> Self {
        Journal {
            file,
            group_bytes: u64::from(group_bytes),
            state: Mutex::new(State { queue: Vec::new(), queued: 0, written: 0, file_end, writing: false }),
            written: Condvar::new(),
            dirty: AtomicBool::new(true),
        }
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Queues entries without I/O. The caller holds the lock that orders them.
    pub(crate) fn queue(&self, entries: impl Iterator<Item = Mapping>) -> Sequence {
        let mut state = self.lock();
        for entry in entries {
            state.queue.extend_from_slice(&entry.to_bytes());
            state.queued += MAPPING_BYTES;
        }
        Sequence(state.queued)
    }

    pub(crate) fn queued(&self) -> Sequence {
        Sequence(self.lock().queued)
    }

    /// After a write was queued: brings out what has to be out before the write is acknowledged.
    pub(crate) fn after_write(&self, sequence: Sequence) -> io::Result<()> {
        if self.group_bytes == 0 {
            return self.write_until(|state| state.written >= sequence.0, |state| state.queue.len() as u64);
        }
        let groups = |state: &State| state.queue.len() as u64 / self.group_bytes * self.group_bytes;
        self.write_until(|state| groups(state) == 0, groups)
    }

    /// Brings out all entries up to `sequence`, the last group filled with padding. Later ones stay queued, because
    /// their data may not be durable yet.
    pub(crate) fn flush(&self, sequence: Sequence) -> io::Result<()> {
        self.write_until(|state| state.written >= sequence.0, |state| sequence.0 - state.written)
    }

    /// Makes what was brought out durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        if self.dirty.swap(false, Ordering::SeqCst) {
            self.file.sync_data().inspect_err(|_| self.dirty.store(true, Ordering::SeqCst))?;
        }
        Ok(())
    }

    fn write_until(&self, done: impl Fn(&State) -> bool, amount: impl Fn(&State) -> u64) -> io::Result<()> {
        let mut state = self.lock();
        loop {
            if done(&state) {
                return Ok(());
            }
            // A batch that another thread has taken out of the queue is not out yet.
            if state.writing {
                state = self.written.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let amount = amount(&state);
            let rest = state.queue.split_off(to_usize(amount));
            let mut batch = std::mem::replace(&mut state.queue, rest);
            if self.group_bytes > 0 {
                while !(batch.len() as u64).is_multiple_of(self.group_bytes) {
                    batch.extend_from_slice(&Mapping::PADDING.to_bytes());
                }
            }
            state.writing = true;
            let file_end = state.file_end;
            drop(state);
            let result = self.file.write_all_at(&batch, file_end);
            self.dirty.store(true, Ordering::SeqCst);
            state = self.lock();
            state.writing = false;
            if result.is_ok() {
                state.file_end += batch.len() as u64;
                state.written += amount;
            } else {
                batch.truncate(to_usize(amount));
                batch.append(&mut state.queue);
                state.queue = batch;
            }
            self.written.notify_all();
            result?;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
