//! The writable layer on top of a stack.
//!
//! # Append mode
//!
//! A write appends its data to the data file, then its entry to the index file. A write that falls wholly into ranges
//! whose data this upper already has is written over that data instead, so that rewriting a file grows nothing. A
//! range of zeros is an entry without data.
//!
//! # Sparse mode
//!
//! The data file is an image of the virtual disk behind a header: virtual byte X is file byte 4096+X, and what the
//! upper has is what the file system reports as data. Two consequences need care:
//!
//! - A file system reports data by the block. A write that begins or ends inside a block the upper does not have yet
//!   takes the rest of the block from the layers below first, so that it does not hide them with zeros.
//! - A hole means "look below", so it cannot mean "zeros". Discarded ranges become holes only where nothing below
//!   shows; elsewhere real zeros are written. Every reader of the format sees the zeros, and they survive a reopen. The
//!   price is their space. A file system that turns written zeros into holes by itself (ZFS with compression) cannot
//!   hold a sparse upper over other layers.
//!
//! # What survives what
//!
//! | event | append, `group_commit_bytes` 0 | append, groups | sparse |
//! | --- | --- | --- | --- |
//! | this process is killed | every completed write | writes up to the last full group | every completed write |
//! | power loss, crash of the kernel | every flushed write | every flushed write | every flushed write |
//!
//! A flush makes data durable before the entries that point to it. After a power loss, sectors written since the last
//! flush are old or new; a single write may have reached the disk in part, sector by sector, as on any disk. That
//! includes a write over flushed data: its sectors may be torn between old and new, but nothing else is touched. Without
//! groups the kernel may write an entry to disk before its data. Entries whose data is not in the file are cut on
//! open; data that a file system gave a place without content cannot be told from real data, because the format has no
//! checksum for it. File systems that order data before size (ext4 and xfs by default) do not do this.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use uuid::Uuid;

use crate::gate::{Gate, Pass};
use crate::header::Header;
use crate::live_index::LiveIndex;
use crate::range_lock::RangeLock;
use crate::stack::StackError;

pub use error::UpperError;
use journal::Journal;
pub(crate) use seal::DRAIN_TIMEOUT;

mod append;
mod error;
mod files;
mod journal;
mod recovery;
mod seal;
mod sparse;

/// The two files of an upper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UpperFiles {
    /// Header and data.
    pub data: PathBuf,
    /// Header and entries in append mode, empty in sparse mode.
    pub index: PathBuf,
}

/// How an upper keeps its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpperMode {
    /// A log of writes with an index. The default choice.
    Append,
    /// An image of the disk with holes.
    Sparse,
}

/// What a new upper is made with.
#[derive(Debug, Clone)]
pub struct UpperOptions {
    /// How it keeps its data.
    pub mode: UpperMode,
    /// Size of the virtual disk, a multiple of 512. 0 takes the size of the layers below when it is stacked on them.
    pub virtual_size_bytes: u64,
    /// Its identity; also that of the sealed layer it becomes.
    pub uuid: Uuid,
    /// Identity of the layer below.
    pub parent_uuid: Option<Uuid>,
    /// Append mode: 0 writes each index entry at once, so that a write survives the death of this process. Otherwise
    /// entries are collected into groups of this many bytes, a multiple of 16 up to 1 MiB.
    pub group_commit_bytes: u32,
}

/// A writable layer, open. Reading and writing go through the [`Stack`](crate::Stack) it is put into.
///
/// The data file is locked (`flock`) while it is open for writing.
#[derive(Debug)]
pub struct Upper {
    files: UpperFiles,
    header: Header,
    data: Arc<File>,
    engine: Engine,
    live: RwLock<LiveIndex>,
    gate: Gate,
    /// Writes completed, and how many of those were when the last flush began. Equal when there is nothing to flush.
    completed: AtomicU64,
    flushed: AtomicU64,
    failed_flush: Mutex<Option<String>>,
}

#[derive(Debug)]
enum Engine {
    Append {
        journal: Journal,
        /// Where the next data goes, in sectors of the data file.
        next_sector: AtomicU64,
    },
    Sparse {
        /// Held by whoever writes blocks, because taking the rest of a block from below writes more than was asked for.
        blocks: RangeLock,
        /// What the file system reports data by.
        block_sectors: u64,
    },
    ReadOnly,
}

/// What an upper needs to know about the layers below it.
pub(crate) trait Below {
    /// Reads what shows below the upper.
    fn read_below(&self, buffer: &mut [u8], sector: u64) -> Result<(), StackError>;
    /// Whether anything below maps a sector of the range.
    fn maps_below(&self, start: u64, end: u64) -> bool;
}

impl Upper {
    /// The files it is kept in.
    pub fn files(&self) -> &UpperFiles {
        &self.files
    }

    /// How it keeps its data.
    pub fn mode(&self) -> UpperMode {
        if self.header.is_sparse() { UpperMode::Sparse } else { UpperMode::Append }
    }

    /// Sizes, identity and tag, from the header of the data file.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Size of the virtual disk in bytes; 0 when it takes that of the layers below.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.header.virtual_size_bytes
    }

    /// Whether nothing was written to it.
    pub fn is_empty(&self) -> bool {
        self.live().is_empty()
    }

    /// Bytes of the data file. In append mode this includes data that was overwritten elsewhere or discarded since.
    pub fn data_bytes(&self) -> u64 {
        match &self.engine {
            Engine::Append { next_sector, .. } => next_sector.load(Ordering::SeqCst) * crate::SECTOR_BYTES,
            Engine::Sparse { .. } | Engine::ReadOnly => {
                self.live().iter().map(|run| (run.end - run.start) * crate::SECTOR_BYTES).sum()
            }
        }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        matches!(self.engine, Engine::ReadOnly)
    }

    pub(crate) fn data_file(&self) -> &Arc<File> {
        &self.data
    }

    pub(crate) fn data_path(&self) -> &Path {
        &self.files.data
    }

    pub(crate) fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Begins a write. `None` when the upper is being sealed.
    pub(crate) fn enter(&self) -> Option<Pass<'_>> {
        self.gate.enter()
    }

    pub(crate) fn live(&self) -> RwLockReadGuard<'_, LiveIndex> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn live_mut(&self) -> RwLockWriteGuard<'_, LiveIndex> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes whole sectors. The caller holds a pass of the gate.
    pub(crate) fn write(&self, data: &[u8], sector: u64, below: &dyn Below) -> Result<(), StackError> {
        match &self.engine {
            Engine::Append { journal, next_sector } => self.append(journal, next_sector, data, sector)?,
            Engine::Sparse { blocks, block_sectors } => {
                self.write_blocks(blocks, *block_sectors, data, sector, below)?;
            }
            Engine::ReadOnly => return Err(StackError::ReadOnly),
        }
        self.completed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Makes `[start, end)` read as zeros. The caller holds a pass of the gate.
    pub(crate) fn write_zeroes(&self, start: u64, end: u64, below: &dyn Below) -> Result<(), StackError> {
        match &self.engine {
            Engine::Append { journal, .. } => self.append_zeroes(journal, start, end, below)?,
            Engine::Sparse { blocks, block_sectors } => {
                self.zero_blocks(blocks, *block_sectors, start, end, below)?;
            }
            Engine::ReadOnly => return Err(StackError::ReadOnly),
        }
        self.completed.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Makes every write completed so far durable.
    pub(crate) fn flush(&self) -> Result<(), UpperError> {
        self.check_flushable()?;
        let target = self.completed.load(Ordering::SeqCst);
        if self.flushed.load(Ordering::SeqCst) < target {
            self.flush_files().inspect_err(|error| self.remember_failed_flush(error))?;
            self.flushed.fetch_max(target, Ordering::SeqCst);
        }
        Ok(())
    }

    fn check_flushable(&self) -> Result<(), UpperError> {
        match &*self.failed_flush.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => {
                Err(UpperError::FlushFailedBefore { path: self.files.data.clone(), reason: reason.clone() })
            }
            None => Ok(()),
        }
    }

    /// Only a failed sync is final. Entries that could not be written stay queued and can be tried again.
    fn remember_failed_flush(&self, error: &UpperError) {
        if let UpperError::File { action: files::SYNC, .. } = error {
            let mut first = self.failed_flush.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert_with(|| error.to_string());
        }
    }

    fn flush_files(&self) -> Result<(), UpperError> {
        let sync_data = || self.data.sync_data().map_err(UpperError::file(files::SYNC, &self.files.data));
        match &self.engine {
            Engine::Append { journal, .. } => {
                // Taken before the data is synced: the data of entries queued later may not be covered.
                let sequence = journal.queued();
                sync_data()?;
                journal.flush(sequence).map_err(UpperError::file("write", &self.files.index))?;
                journal.sync().map_err(UpperError::file(files::SYNC, &self.files.index))
            }
            Engine::Sparse { .. } => sync_data(),
            Engine::ReadOnly => Ok(()),
        }
    }
}
