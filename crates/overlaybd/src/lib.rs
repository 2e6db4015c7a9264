//! The overlaybd layer format: layers, merged index, writable upper, seal and restack.
//!
//! A disk is a [`Stack`] of read-only [`Layer`]s with at most one writable [`Upper`] on top. Layers map runs of virtual
//! sectors to runs of sectors in their own file; the top-most layer that maps a sector wins, and what no layer maps reads as
//! zeros. Sealing turns an upper into a layer without copying its data, and [`Stack::restack`] does so while the
//! disk is in use.
//!
//! The files are those of the reference implementation (containerd/overlaybd, its LSMT format): each can read what the
//! other writes. All numbers on disk are little-endian; a sector is 512 bytes; addresses are 64 bits wide throughout.
//!
//! The crate does file I/O with positional reads and writes on the caller's thread. It has no runtime, no threads of its
//! own, no network and no global state. Finding the bytes of a range ([`Stack::extents`]) is pure, for callers with their
//! own way to do I/O.

pub use commit::{CommitError, CommitOptions, Committed, commit};
pub use header::{Header, SectionProblem, USER_TAG_BYTES};
pub use io::ReadAt;
pub use layer::{EntryProblem, Layer, LayerError};
pub use mapping::Mapping;
pub use stack::{Extent, ExtentSource, MAX_LAYERS, Stack, StackError};
pub use tar::TarError;
pub use upper::{Upper, UpperError, UpperFiles, UpperMode, UpperOptions};

mod commit;
mod gate;
mod header;
mod io;
mod layer;
mod live_index;
mod mapping;
mod merged_index;
mod number;
mod range_lock;
mod stack;
mod tar;
mod upper;

/// Bytes of a sector, the unit of all mappings.
pub const SECTOR_BYTES: u64 = 512;
