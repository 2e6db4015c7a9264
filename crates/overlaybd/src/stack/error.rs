//! What can go wrong with a stack.

use std::io;
use std::path::PathBuf;

use rustix::io::Errno;
use thiserror::Error;

use crate::upper::UpperError;

/// Why a stack cannot be opened, read, written or restacked.
#[derive(Debug, Error)]
pub enum StackError {
    /// Neither a layer nor an upper was given.
    #[error("a stack needs at least one layer")]
    Empty,
    /// More layers than the format's layer number can tell apart.
    #[error(
        "{layers} layers are too many: a stack has at most 255, the writable one included. Compact some of them first"
    )]
    TooManyLayers {
        /// Layers given, the upper included.
        layers: usize,
    },
    /// No layer says how large the disk is.
    #[error("no layer of the stack has a virtual size")]
    NoVirtualSize,
    /// The size of the disk is impossible.
    #[error(
        "the virtual size of {bytes} bytes is not a multiple of 512 below 2^59: the layer that has it is damaged"
    )]
    VirtualSize {
        /// The size found.
        bytes: u64,
    },
    /// The layers have more runs together than an index may hold.
    #[error("the layers have more than 128000000 runs together: compact some of them first")]
    IndexTooLarge,
    /// Requests are made of whole sectors.
    #[error("offset {offset_bytes} and length {length_bytes} are not multiples of 512")]
    Unaligned {
        /// Offset of the request.
        offset_bytes: u64,
        /// Length of the request.
        length_bytes: u64,
    },
    /// The request reaches beyond the disk.
    #[error("{length_bytes} bytes at {offset_bytes} reach beyond the disk's {virtual_size_bytes} bytes")]
    OutOfBounds {
        /// Offset of the request.
        offset_bytes: u64,
        /// Length of the request.
        length_bytes: u64,
        /// Size of the disk.
        virtual_size_bytes: u64,
    },
    /// The stack has no upper that can be written.
    #[error("the stack is read-only")]
    ReadOnly,
    /// A layer could not be read. A layer shorter than its index says is such a case: what is missing is never zeros.
    #[error(
        "cannot read {length_bytes} bytes at byte {offset_bytes} of layer {layer} (0 is the bottom): {error}"
    )]
    Read {
        /// Number of the layer, bottom first.
        layer: usize,
        /// Where in the layer.
        offset_bytes: u64,
        /// How many bytes.
        length_bytes: u64,
        /// Why.
        error: io::Error,
    },
    /// The upper failed.
    #[error("{0}")]
    Upper(UpperError),
    /// The upper to continue on is not a new one.
    #[error("{path} is not empty: a restack continues on a new upper", path = path.display())]
    UpperNotEmpty {
        /// Its data file.
        path: PathBuf,
    },
    /// The upper to continue on describes a disk of another size.
    #[error("the new upper is for a disk of {new_bytes} bytes, the stack's has {virtual_size_bytes}")]
    SizeMismatch {
        /// The new upper's size.
        new_bytes: u64,
        /// The stack's size.
        virtual_size_bytes: u64,
    },
    /// A failed restack could not be undone. Everything can still be read, nothing can be written or flushed.
    #[error(
        "a failed restack could not be undone, the stack is read-only now: {reason}. Open it again from {old}, with {new} on top of it",
        old = old.display(), new = new.display()
    )]
    Broken {
        /// The failure and the failure of undoing it.
        reason: String,
        /// Data file of the upper that was to be sealed.
        old: PathBuf,
        /// Data file of the upper that was to replace it.
        new: PathBuf,
    },
}

impl From<UpperError> for StackError {
    fn from(error: UpperError) -> Self {
        StackError::Upper(error)
    }
}

impl StackError {
    /// What to answer a kernel or a guest: an `errno` number such as `ENOSPC`.
    pub fn errno(&self) -> i32 {
        let error = match self {
            StackError::Read { error, .. } => Some(error),
            StackError::Upper(error) => error.io_error(),
            StackError::ReadOnly | StackError::Broken { .. } => return Errno::ROFS.raw_os_error(),
            StackError::Unaligned { .. } | StackError::OutOfBounds { .. } => {
                return Errno::INVAL.raw_os_error();
            }
            _ => None,
        };
        error.and_then(io::Error::raw_os_error).unwrap_or(Errno::IO.raw_os_error())
    }
}
