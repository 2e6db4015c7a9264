//! Making and opening the files of an upper.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, RwLock};

use super::journal::Journal;
use super::{Engine, Upper, UpperError, UpperFiles, UpperMode, UpperOptions, recovery, sparse};
use crate::SECTOR_BYTES;
use crate::gate::Gate;
use crate::header::{FLAG_DATA, FLAG_HEADER, FLAG_SPARSE, Header, SECTION_BYTES, SectionProblem};
use crate::live_index::LiveIndex;
use crate::mapping::{FIRST_DATA_SECTOR, MAPPING_BYTES, MAX_SECTOR};
use crate::range_lock::RangeLock;

/// The action of errors after which nothing is known about what is durable.
pub(super) const SYNC: &str = "sync";
const MAX_GROUP_BYTES: u32 = 1 << 20;

impl Upper {
    /// Makes a new, empty upper and makes its files durable. Neither file may exist.
    pub fn create(files: &UpperFiles, options: &UpperOptions) -> Result<Upper, UpperError> {
        check_virtual_size(options.virtual_size_bytes)?;
        check_group(options.group_commit_bytes)?;
        let mode_flag = match options.mode {
            UpperMode::Append => 0,
            UpperMode::Sparse => FLAG_SPARSE,
        };
        let header = Header {
            flags: FLAG_HEADER | FLAG_DATA | mode_flag,
            index_offset_bytes: 0,
            index_entries: 0,
            virtual_size_bytes: options.virtual_size_bytes,
            uuid: Some(options.uuid).filter(|uuid| !uuid.is_nil()),
            parent_uuid: options.parent_uuid,
            user_tag: Vec::new(),
        };
        let data = create_new(&files.data)?;
        let made = create_new(&files.index).and_then(|index| {
            let made = fill_new(files, &header, &data, &index).and_then(|()| sync_directories(files));
            if made.is_err() {
                let _ = fs::remove_file(&files.index);
            }
            made.map(|()| index)
        });
        let index = made.inspect_err(|_| {
            // The first error is the one to report; what cannot be removed is refused by the next attempt, by name.
            let _ = fs::remove_file(&files.data);
        })?;
        lock(&data, &files.data)?;
        let engine = match options.mode {
            UpperMode::Append => Engine::Append {
                journal: Journal::new(index, SECTION_BYTES, options.group_commit_bytes),
                next_sector: AtomicU64::new(FIRST_DATA_SECTOR),
            },
            UpperMode::Sparse => sparse_engine(&data, &files.data)?,
        };
        Ok(Upper::assemble(files, header, data, engine, LiveIndex::default(), 0))
    }

    /// Opens an upper for writing after a clean end or any crash. What a crash left behind is cut: bytes of a torn
    /// entry, entries whose data is not there. `group_commit_bytes` is as in [`UpperOptions`].
    pub fn open(files: &UpperFiles, group_commit_bytes: u32) -> Result<Upper, UpperError> {
        check_group(group_commit_bytes)?;
        let data = open_existing(&files.data, true)?;
        lock(&data, &files.data)?;
        let index = open_existing(&files.index, true)?;
        let header = read_data_header(&data, &files.data)?;
        if header.is_sparse() {
            let live = sparse::scan(&data, &files.data, &header, true)?;
            let engine = sparse_engine(&data, &files.data)?;
            return Ok(Upper::assemble(files, header, data, engine, live, 1));
        }
        check_index_header(&index, files, &header)?;
        let recovered = recovery::recover(&data, &index, files, true)?;
        let index_end = SECTION_BYTES + recovered.entries * MAPPING_BYTES;
        let engine = Engine::Append {
            journal: Journal::new(index, index_end, group_commit_bytes),
            next_sector: AtomicU64::new(recovered.next_sector),
        };
        Ok(Upper::assemble(files, header, data, engine, recovered.live, 1))
    }

    /// Opens an upper to look at it. Nothing is changed and nothing is locked: when it is being written to, what is
    /// seen is some recent state.
    pub fn open_read_only(files: &UpperFiles) -> Result<Upper, UpperError> {
        let data = open_existing(&files.data, false)?;
        let header = read_data_header(&data, &files.data)?;
        let live = if header.is_sparse() {
            sparse::scan(&data, &files.data, &header, false)?
        } else {
            let index = open_existing(&files.index, false)?;
            check_index_header(&index, files, &header)?;
            recovery::recover(&data, &index, files, false)?.live
        };
        Ok(Upper::assemble(files, header, data, Engine::ReadOnly, live, 0))
    }

    fn assemble(
        files: &UpperFiles,
        header: Header,
        data: File,
        engine: Engine,
        live: LiveIndex,
        completed: u64,
    ) -> Upper {
        Upper {
            files: files.clone(),
            header,
            data: Arc::new(data),
            engine,
            live: RwLock::new(live),
            gate: Gate::default(),
            // An opened upper counts one write that is not flushed: the process before may have died with completed
            // writes in the page cache only.
            completed: AtomicU64::new(completed),
            flushed: AtomicU64::new(0),
            failed_flush: Mutex::new(None),
        }
    }

    /// Takes a virtual size that was left open when the upper was made, and makes it durable.
    pub(crate) fn set_virtual_size(&mut self, virtual_size_bytes: u64) -> Result<(), UpperError> {
        self.header.virtual_size_bytes = virtual_size_bytes;
        let data_path = &self.files.data;
        match &self.engine {
            Engine::ReadOnly => return Ok(()),
            Engine::Sparse { .. } => {
                let file_bytes = SECTION_BYTES + virtual_size_bytes;
                self.data.set_len(file_bytes).map_err(UpperError::file("extend", data_path))?;
                sparse::check_holes(&self.data, data_path, file_bytes)?;
            }
            Engine::Append { journal, .. } => {
                let header = index_header(&self.header).encode();
                let index_path = &self.files.index;
                journal.file().write_all_at(&header, 0).map_err(UpperError::file("write", index_path))?;
                journal.file().sync_data().map_err(UpperError::file(SYNC, index_path))?;
            }
        }
        self.data.write_all_at(&self.header.encode(), 0).map_err(UpperError::file("write", data_path))?;
        self.data.sync_data().map_err(UpperError::file(SYNC, data_path))
    }
}

fn check_virtual_size(bytes: u64) -> Result<(), UpperError> {
    if !bytes.is_multiple_of(SECTOR_BYTES) {
        return Err(UpperError::Option("the virtual size must be a multiple of 512 bytes"));
    }
    if bytes / SECTOR_BYTES > MAX_SECTOR {
        return Err(UpperError::Option("the virtual size must be below 2^59 bytes"));
    }
    Ok(())
}

fn check_group(bytes: u32) -> Result<(), UpperError> {
    if bytes > MAX_GROUP_BYTES || !bytes.is_multiple_of(16) {
        return Err(UpperError::Option("a commit group must be a multiple of 16 bytes, at most 1 MiB"));
    }
    Ok(())
}

/// Disks hold secrets: only the owner may read them.
fn create_new(path: &Path) -> Result<File, UpperError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create_new(true).mode(0o600);
    options.open(path).map_err(UpperError::file("create", path))
}

fn open_existing(path: &Path, writable: bool) -> Result<File, UpperError> {
    OpenOptions::new().read(true).write(writable).open(path).map_err(UpperError::file("open", path))
}

fn lock(data: &File, path: &Path) -> Result<(), UpperError> {
    data.try_lock().map_err(|error| match error {
        TryLockError::WouldBlock => UpperError::InUse { path: path.to_owned() },
        TryLockError::Error(error) => UpperError::file("lock", path)(error),
    })
}

fn fill_new(files: &UpperFiles, header: &Header, data: &File, index: &File) -> Result<(), UpperError> {
    data.write_all_at(&header.encode(), 0).map_err(UpperError::file("write", &files.data))?;
    if header.is_sparse() {
        let file_bytes = SECTION_BYTES + header.virtual_size_bytes;
        data.set_len(file_bytes).map_err(UpperError::file("extend", &files.data))?;
        if header.virtual_size_bytes > 0 {
            sparse::check_holes(data, &files.data, file_bytes)?;
        }
    } else {
        let header = index_header(header).encode();
        index.write_all_at(&header, 0).map_err(UpperError::file("write", &files.index))?;
    }
    data.sync_all().map_err(UpperError::file(SYNC, &files.data))?;
    index.sync_all().map_err(UpperError::file(SYNC, &files.index))
}

fn sync_directories(files: &UpperFiles) -> Result<(), UpperError> {
    sync_directory_of(&files.data)?;
    sync_directory_of(&files.index)
}

/// Makes the name of a file durable.
pub(super) fn sync_directory_of(path: &Path) -> Result<(), UpperError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(UpperError::file(SYNC, directory))
}

fn index_header(data_header: &Header) -> Header {
    Header { flags: FLAG_HEADER, index_offset_bytes: SECTION_BYTES, ..data_header.clone() }
}

fn sparse_engine(data: &File, path: &Path) -> Result<Engine, UpperError> {
    let block_bytes = data.metadata().map_err(UpperError::file("examine", path))?.blksize();
    // Never smaller than a page, because the page cache, too, knows data by the page; and bounded, because network file
    // systems report their preferred transfer size here.
    let block_sectors = (block_bytes.next_power_of_two() / SECTOR_BYTES).clamp(8, 128);
    Ok(Engine::Sparse { blocks: RangeLock::default(), block_sectors })
}

fn read_header(file: &File, path: &Path, role: &'static str) -> Result<Header, UpperError> {
    let mut section = [0; 4096];
    match file.read_exact_at(&mut section, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            let size_bytes = file.metadata().map_err(UpperError::file("examine", path))?.len();
            return Err(UpperError::Truncated {
                path: path.to_owned(),
                size_bytes,
                least_bytes: SECTION_BYTES,
            });
        }
        Err(error) => return Err(UpperError::file("read", path)(error)),
    }
    Header::decode(&section)
        .and_then(|header| {
            header.expect_header()?;
            header.expect_unsealed()?;
            Ok(header)
        })
        .map_err(|problem| header_error(path, role, problem))
}

fn header_error(path: &Path, role: &'static str, problem: SectionProblem) -> UpperError {
    UpperError::Header { path: path.to_owned(), role, problem }
}

fn read_data_header(data: &File, path: &Path) -> Result<Header, UpperError> {
    let header = read_header(data, path, "data")?;
    header.expect_data().map_err(|problem| header_error(path, "data", problem))?;
    check_virtual_size(header.virtual_size_bytes)?;
    Ok(header)
}

fn check_index_header(index: &File, files: &UpperFiles, data_header: &Header) -> Result<(), UpperError> {
    let header = read_header(index, &files.index, "index")?;
    header.expect_index().map_err(|problem| header_error(&files.index, "index", problem))?;
    if header.uuid != data_header.uuid {
        return Err(UpperError::Mismatched { data: files.data.clone(), index: files.index.clone() });
    }
    Ok(())
}
