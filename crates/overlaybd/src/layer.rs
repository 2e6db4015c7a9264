//! A read-only layer: committed or sealed, plain or wrapped in a tar archive.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use crate::header::{Header, SECTION_BYTES, is_zfile};
use crate::io::{ReadAt, Window};
use crate::mapping::{FIRST_DATA_SECTOR, MAPPING_BYTES, MAX_SECTOR, Mapping};
use crate::number::to_usize;
use crate::{SECTOR_BYTES, tar};

pub use error::LayerError;

mod error;

/// Most entries an index may have. The reference writes and reads at most 1,000,000 in a read-only layer but many
/// more in a writable one; sealing such an upper must give a layer that opens, so one bound serves both. It is not an
/// invitation to hostile files: entries are checked while they are read, and each takes 16 bytes of real file.
pub(crate) const MAX_INDEX_ENTRIES: u64 = 128_000_000;
/// Entries read at a time.
const CHUNK_ENTRIES: u64 = 64 * 1024;

/// A read-only layer, open for reading.
///
/// The file is: header (4096 bytes), data, index, trailer (4096 bytes). The trailer tells where the index is; index
/// entries are sorted and do not overlap. A committed layer pads its index to 4096 bytes with padding entries and counts
/// them, a sealed one pads to 512 and does not.
#[derive(Debug)]
pub struct Layer {
    trailer: Header,
    mappings: Vec<Mapping>,
    source: Arc<dyn ReadAt>,
}

impl Layer {
    /// Opens the layer that `source` holds, directly or as the one member of a tar archive, and checks its whole index.
    ///
    /// Nothing is allocated in proportion to what the file claims, only to what it holds.
    pub fn open(source: Arc<dyn ReadAt>) -> Result<Arc<Layer>, LayerError> {
        let source: Arc<dyn ReadAt> = match tar::locate(source.as_ref())? {
            Some((offset_bytes, length_bytes)) => Arc::new(Window::new(source, offset_bytes, length_bytes)),
            None => source,
        };
        let size_bytes = source.size_bytes().map_err(|error| LayerError::Read { what: "size", error })?;
        let mut magic = [0; 8];
        if size_bytes >= 8 {
            read(source.as_ref(), &mut magic, 0, "header")?;
            if is_zfile(&magic) {
                return Err(LayerError::Compressed);
            }
        }
        if size_bytes < 2 * SECTION_BYTES {
            return Err(LayerError::TooShort { size_bytes });
        }
        let header = read_section(source.as_ref(), 0, "header")?;
        Header::decode(&header)
            .and_then(|header| header.expect_header().and_then(|()| header.expect_data()))
            .map_err(LayerError::Header)?;
        let trailer_at = size_bytes - SECTION_BYTES;
        let trailer = read_section(source.as_ref(), trailer_at, "trailer")?;
        let trailer = Header::decode(&trailer)
            .and_then(|trailer| {
                trailer.expect_trailer()?;
                trailer.expect_data()?;
                trailer.expect_sealed()?;
                Ok(trailer)
            })
            .map_err(LayerError::Trailer)?;
        let mappings = read_index(source.as_ref(), &trailer, trailer_at)?;
        Ok(Arc::new(Layer { trailer, mappings, source }))
    }

    /// Opens the layer in a file; errors name it.
    pub fn open_file(path: &Path) -> Result<Arc<Layer>, LayerError> {
        let in_file = |error| LayerError::InFile { path: path.to_owned(), error: Box::new(error) };
        let file = File::open(path).map_err(|error| in_file(LayerError::Open(error)))?;
        Layer::open(Arc::new(file)).map_err(in_file)
    }

    /// A layer whose parts are known because this process has just written them.
    pub(crate) fn from_parts(trailer: Header, mappings: Vec<Mapping>, source: Arc<dyn ReadAt>) -> Arc<Layer> {
        Arc::new(Layer { trailer, mappings, source })
    }

    /// What the trailer says: sizes, identity, tag.
    pub fn header(&self) -> &Header {
        &self.trailer
    }

    /// The index: sorted, without overlap, padding removed.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Where the index starts in the layer, in bytes.
    pub fn index_offset_bytes(&self) -> u64 {
        self.trailer.index_offset_bytes
    }

    /// How many entries the trailer counts, padding included.
    pub fn index_entries(&self) -> u64 {
        self.trailer.index_entries
    }

    /// Size of the virtual disk in bytes; 0 when the layer leaves it to the others of its stack.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.trailer.virtual_size_bytes
    }

    /// The bytes that [`Mapping::data_sector`] counts in: the layer itself, whatever it is wrapped in.
    pub fn source(&self) -> &Arc<dyn ReadAt> {
        &self.source
    }
}

fn read(
    source: &dyn ReadAt,
    buffer: &mut [u8],
    offset_bytes: u64,
    what: &'static str,
) -> Result<(), LayerError> {
    source.read_exact_at(buffer, offset_bytes).map_err(|error| LayerError::Read { what, error })
}

fn read_section(
    source: &dyn ReadAt,
    offset_bytes: u64,
    what: &'static str,
) -> Result<[u8; 4096], LayerError> {
    let mut section = [0; 4096];
    read(source, &mut section, offset_bytes, what)?;
    Ok(section)
}

fn read_index(source: &dyn ReadAt, trailer: &Header, trailer_at: u64) -> Result<Vec<Mapping>, LayerError> {
    let (offset_bytes, entries) = (trailer.index_offset_bytes, trailer.index_entries);
    if entries > MAX_INDEX_ENTRIES {
        return Err(LayerError::IndexTooLarge { entries });
    }
    let end = offset_bytes.checked_add(entries * MAPPING_BYTES);
    if offset_bytes < SECTION_BYTES || end.is_none_or(|end| end > trailer_at) {
        return Err(LayerError::IndexOutOfBounds { offset_bytes, entries, trailer_at_bytes: trailer_at });
    }
    let data_end_sector = offset_bytes / SECTOR_BYTES;
    let mut mappings = Vec::new();
    let mut chunk = vec![0; to_usize(entries.min(CHUNK_ENTRIES) * MAPPING_BYTES)];
    let mut previous_end = 0;
    let mut position = 0;
    while position < entries {
        let count = (entries - position).min(CHUNK_ENTRIES);
        let bytes = &mut chunk[..to_usize(count * MAPPING_BYTES)];
        read(source, bytes, offset_bytes + position * MAPPING_BYTES, "index")?;
        let (entries_of_chunk, _) = bytes.as_chunks::<16>();
        for (in_chunk, entry) in entries_of_chunk.iter().enumerate() {
            let mapping = Mapping::from_bytes(*entry);
            if mapping.is_padding() {
                continue;
            }
            check(&mapping, previous_end, data_end_sector).map_err(|problem| LayerError::Entry {
                position: position + in_chunk as u64,
                mapping,
                problem,
            })?;
            previous_end = mapping.end_sector();
            mappings.push(mapping);
        }
        position += count;
    }
    mappings.shrink_to_fit();
    Ok(mappings)
}

fn check(mapping: &Mapping, previous_end: u64, data_end_sector: u64) -> Result<(), EntryProblem> {
    if mapping.sectors() == 0 {
        return Err(EntryProblem::Empty);
    }
    if mapping.end_sector() > MAX_SECTOR {
        return Err(EntryProblem::BeyondAddresses);
    }
    if mapping.sector() < previous_end {
        return Err(EntryProblem::NotAfterPrevious { previous_end_sector: previous_end });
    }
    let data = mapping.data_sector();
    if data < FIRST_DATA_SECTOR {
        return Err(EntryProblem::DataInHeader);
    }
    let data_end = if mapping.is_zeroed() { data } else { data + mapping.sectors() };
    if data_end > data_end_sector {
        return Err(EntryProblem::DataBeyondEnd { data_end_sector });
    }
    Ok(())
}

/// What is wrong with an index entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EntryProblem {
    /// Its length is 0 and it is not padding.
    #[error("it is empty")]
    Empty,
    /// Its end does not fit into the 50 bits of a sector number.
    #[error("it reaches beyond the largest sector number")]
    BeyondAddresses,
    /// Entries must be sorted and must not overlap.
    #[error("it starts before sector {previous_end_sector}, where the entry before it ends")]
    NotAfterPrevious {
        /// First sector after the entry before.
        previous_end_sector: u64,
    },
    /// Its data would be part of the header.
    #[error("its data lies inside the header")]
    DataInHeader,
    /// Its data would be part of the index or beyond the file.
    #[error("its data reaches beyond sector {data_end_sector}, where the data of the file ends")]
    DataBeyondEnd {
        /// First sector of the file that is not data.
        data_end_sector: u64,
    },
}

impl From<tar::TarError> for LayerError {
    fn from(error: tar::TarError) -> Self {
        match error {
            tar::TarError::Read(error) => LayerError::Read { what: "tar header", error },
            error => LayerError::Tar(error),
        }
    }
}
