//! A stack of read-only layers with at most one writable layer on top: a disk.

use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};

use crate::SECTOR_BYTES;
use crate::io::ReadAt;
use crate::layer::Layer;
use crate::mapping::MAX_SECTOR;
use crate::upper::Upper;

pub use error::StackError;
use state::{Lowers, Source, State};

mod error;
mod restack;
mod state;

/// Most layers a stack may have, the upper included: their numbers have 8 bits, and one is not used.
pub const MAX_LAYERS: usize = 255;

/// An open stack.
///
/// All methods may be called from many threads at once. Reads never wait for writes; writes to disjoint ranges do not
/// wait for each other's I/O. Offsets and lengths are bytes and multiples of 512.
///
/// Where two requests overlap and run at the same time, either may come first, and a read may see a part of the write; a
/// write that has returned is seen by every read that begins later.
#[derive(Debug)]
pub struct Stack {
    virtual_size_bytes: u64,
    /// What requests work on. Replaced as a whole, so a request sees the stack before or after a restack, never half of one.
    current: RwLock<Arc<State>>,
    /// Counts replacements, for those who wait for one.
    replaced: (Mutex<u64>, Condvar),
    restacking: Mutex<()>,
}

/// A part of the disk and where its bytes are.
#[derive(Debug, Clone)]
pub struct Extent {
    /// Where it starts on the disk.
    pub offset_bytes: u64,
    /// Its length.
    pub length_bytes: u64,
    /// Where its bytes are.
    pub source: ExtentSource,
}

/// Where the bytes of an extent are.
#[derive(Debug, Clone)]
pub enum ExtentSource {
    /// It reads as zeros.
    Zeroes,
    /// It is in a file.
    Data {
        /// The file. It stays readable for as long as it is held, whatever becomes of the stack.
        source: Arc<dyn ReadAt>,
        /// Where in the file.
        offset_bytes: u64,
    },
}

impl Stack {
    /// Makes a disk of `lowers`, bottom first, and `upper` on top.
    ///
    /// The disk has the size of the top-most layer that has one. An upper without a size takes it and keeps it.
    pub fn open(lowers: Vec<Arc<Layer>>, upper: Option<Upper>) -> Result<Stack, StackError> {
        let layers = lowers.len() + usize::from(upper.is_some());
        if layers == 0 {
            return Err(StackError::Empty);
        }
        if layers > MAX_LAYERS {
            return Err(StackError::TooManyLayers { layers });
        }
        let of_upper = upper.as_ref().map(Upper::virtual_size_bytes);
        let of_lowers = lowers.iter().rev().map(|layer| layer.virtual_size_bytes());
        let virtual_size_bytes = of_upper
            .into_iter()
            .chain(of_lowers)
            .find(|&bytes| bytes != 0)
            .ok_or(StackError::NoVirtualSize)?;
        if !virtual_size_bytes.is_multiple_of(SECTOR_BYTES) || virtual_size_bytes / SECTOR_BYTES > MAX_SECTOR
        {
            return Err(StackError::VirtualSize { bytes: virtual_size_bytes });
        }
        let upper = match upper {
            Some(mut upper) => {
                if upper.virtual_size_bytes() == 0 {
                    upper.set_virtual_size(virtual_size_bytes)?;
                }
                Some(Arc::new(upper))
            }
            None => None,
        };
        let state = State {
            uppers: upper.into_iter().collect(),
            lowers: Arc::new(Lowers::new(lowers)?),
            broken: None,
        };
        Ok(Stack {
            virtual_size_bytes,
            current: RwLock::new(Arc::new(state)),
            replaced: (Mutex::new(0), Condvar::new()),
            restacking: Mutex::new(()),
        })
    }

    /// Size of the disk in bytes.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.virtual_size_bytes
    }

    /// Whether there is no upper that can be written.
    pub fn is_read_only(&self) -> bool {
        let state = self.state();
        state.broken.is_some() || state.uppers.first().is_none_or(|upper| upper.is_read_only())
    }

    /// The read-only layers, bottom first. While a restack is under way they do not include the layer being sealed.
    pub fn lowers(&self) -> Vec<Arc<Layer>> {
        self.state().lowers.layers().to_vec()
    }

    /// Bytes of the live upper's data file; 0 when there is no upper.
    pub fn upper_data_bytes(&self) -> u64 {
        self.state().uppers.first().map_or(0, |upper| upper.data_bytes())
    }

    /// Fills `buffer` from the disk.
    pub fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> Result<(), StackError> {
        let (start, end) = self.sectors(offset_bytes, buffer.len() as u64)?;
        if start == end {
            return Ok(());
        }
        self.state().read(0, buffer, start)
    }

    /// Appends to `extents` where the bytes of the range are, in order and without gap. No I/O is done.
    ///
    /// Data of the live upper may be written over by later writes, as a read that takes its time would show as well.
    pub fn extents(
        &self,
        offset_bytes: u64,
        length_bytes: u64,
        extents: &mut Vec<Extent>,
    ) -> Result<(), StackError> {
        let (start, end) = self.sectors(offset_bytes, length_bytes)?;
        if start == end {
            return Ok(());
        }
        let state = self.state();
        let visited: ControlFlow<()> = state.resolve(0, start, end, &mut |piece| {
            let source = match piece.source {
                Source::Zeroes => ExtentSource::Zeroes,
                Source::Upper(upper, sector) => ExtentSource::Data {
                    source: upper.data_file().clone(),
                    offset_bytes: sector * SECTOR_BYTES,
                },
                Source::Lower(layer, sector) => ExtentSource::Data {
                    source: state.lowers.layers()[layer].source().clone(),
                    offset_bytes: sector * SECTOR_BYTES,
                },
            };
            extents.push(Extent {
                offset_bytes: piece.start * SECTOR_BYTES,
                length_bytes: (piece.end - piece.start) * SECTOR_BYTES,
                source,
            });
            ControlFlow::Continue(())
        });
        debug_assert!(visited.is_continue());
        Ok(())
    }

    /// Writes `data` to the disk. It is durable after the next [`flush`](Self::flush).
    pub fn write_at(&self, data: &[u8], offset_bytes: u64) -> Result<(), StackError> {
        let (start, end) = self.sectors(offset_bytes, data.len() as u64)?;
        self.change(start, end, |upper, below| upper.write(data, start, below))
    }

    /// Makes a range read as zeros, for discards and explicit zeroing alike.
    pub fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> Result<(), StackError> {
        let (start, end) = self.sectors(offset_bytes, length_bytes)?;
        self.change(start, end, |upper, below| upper.write_zeroes(start, end, below))
    }

    /// Makes every write that has returned durable.
    pub fn flush(&self) -> Result<(), StackError> {
        let state = self.state();
        state.check_not_broken()?;
        // Older first, so that what is durable is never only the newer half.
        for upper in state.uppers.iter().rev() {
            upper.flush()?;
        }
        Ok(())
    }

    fn change(
        &self,
        start: u64,
        end: u64,
        write: impl Fn(&Upper, &state::BelowUpper<'_>) -> Result<(), StackError>,
    ) -> Result<(), StackError> {
        loop {
            let state = self.state();
            state.check_not_broken()?;
            let upper = state.uppers.first().ok_or(StackError::ReadOnly)?;
            if start == end {
                return Ok(());
            }
            if let Some(_pass) = upper.enter() {
                return write(upper, &state.below_upper(0));
            }
            // The upper was closed after the state was taken: a restack has replaced it, or is being undone.
            self.wait_for_replacement(&state);
        }
    }

    fn state(&self) -> Arc<State> {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn replace(&self, state: State) {
        let state = Arc::new(state);
        // Dropped without the lock: giving back a large index takes long enough for readers to notice.
        let old =
            std::mem::replace(&mut *self.current.write().unwrap_or_else(PoisonError::into_inner), state);
        drop(old);
        *self.replaced.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.replaced.1.notify_all();
    }

    fn wait_for_replacement(&self, old: &Arc<State>) {
        let mut count = self.replaced.0.lock().unwrap_or_else(PoisonError::into_inner);
        while Arc::ptr_eq(old, &self.state()) {
            count = self.replaced.1.wait(count).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn sectors(&self, offset_bytes: u64, length_bytes: u64) -> Result<(u64, u64), StackError> {
        if !offset_bytes.is_multiple_of(SECTOR_BYTES) || !length_bytes.is_multiple_of(SECTOR_BYTES) {
            return Err(StackError::Unaligned { offset_bytes, length_bytes });
        }
        match offset_bytes.checked_add(length_bytes) {
            Some(end) if end <= self.virtual_size_bytes => {
                Ok((offset_bytes / SECTOR_BYTES, end / SECTOR_BYTES))
            }
            _ => Err(StackError::OutOfBounds {
                offset_bytes,
                length_bytes,
                virtual_size_bytes: self.virtual_size_bytes,
            }),
        }
    }
}
