//! Why a file is not a readable layer.
//!
//! Messages of this crate are complete by themselves: an error that caused another is part of its text and not offered
//! again as its source.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::EntryProblem;
use crate::header::SectionProblem;
use crate::mapping::Mapping;
use crate::tar::TarError;

/// Why a layer does not open. A layer with any of these is refused as a whole: nothing of it is served.
#[derive(Debug, Error)]
pub enum LayerError {
    /// Another of these, with the file it is about.
    #[error("layer {path}: {error}", path = path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<LayerError>,
    },
    /// The file could not be opened.
    #[error("cannot open it: {0}")]
    Open(io::Error),
    /// A part of the file could not be read.
    #[error("cannot read its {what}: {error}")]
    Read {
        /// Which part.
        what: &'static str,
        /// Why.
        error: io::Error,
    },
    /// Too short to have a header and a trailer.
    #[error(
        "{size_bytes} bytes are too few for a layer (at least 8192): it is empty, truncated or something else"
    )]
    TooShort {
        /// Size of the file.
        size_bytes: u64,
    },
    /// A ZFile.
    #[error("it is a ZFile, and compressed layers are not supported yet by this version: use a plain layer")]
    Compressed,
    /// The first 4096 bytes are not the header of a layer.
    #[error("its first 4096 bytes are not the header of a layer: {0}")]
    Header(SectionProblem),
    /// The last 4096 bytes are not the trailer of a finished layer.
    #[error(
        "its last 4096 bytes are not the trailer of a layer: {0} (the file is truncated, has bytes after its end, or was not sealed)"
    )]
    Trailer(SectionProblem),
    /// The trailer claims more index entries than any layer may have.
    #[error("its trailer claims {entries} index entries, more than the 128000000 allowed: it is damaged")]
    IndexTooLarge {
        /// The claim.
        entries: u64,
    },
    /// The index is not between header and trailer.
    #[error(
        "its index ({entries} entries at byte {offset_bytes}) does not lie between header and trailer (byte {trailer_at_bytes}): it is damaged"
    )]
    IndexOutOfBounds {
        /// Where the index should start.
        offset_bytes: u64,
        /// How many entries it should have.
        entries: u64,
        /// Where the trailer starts.
        trailer_at_bytes: u64,
    },
    /// An index entry is impossible.
    #[error("its index entry {position} ({mapping:?}) is damaged: {problem}")]
    Entry {
        /// Position in the index, from 0.
        position: u64,
        /// The entry.
        mapping: Mapping,
        /// What is wrong with it.
        problem: EntryProblem,
    },
    /// The tar archive around the layer is damaged or something else.
    #[error("{0}")]
    Tar(TarError),
}

impl LayerError {
    /// The error without the file name around it.
    pub fn cause(&self) -> &LayerError {
        match self {
            LayerError::InFile { error, .. } => error.cause(),
            other => other,
        }
    }
}
