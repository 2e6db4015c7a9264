//! Converted layers by content, in one directory.
//!
//! | name | what |
//! |---|---|
//! | `<chain>.layer` | a sealed overlaybd layer; `<chain>` is the hexadecimal chain id |
//! | `<chain>.json` | its record; a layer without one is not published |
//! | `<chain>.<uuid>.partial` | a layer or record being written |
//! | `.lock` | locked by the process that owns the directory |
//!
//! Files of other names are never touched.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::ImageError;
use crate::digest::{Digest, Hasher};

/// Changes whenever the same tar would become a different file system.
const FORMAT_VERSION: u32 = 1;

/// Records are a few hundred bytes.
const RECORD_BYTES: u64 = 64 * 1024;

/// Identity of a layer together with everything below it. A converted layer holds changed disk blocks, so it is only
/// valid on the layers it was made on.
///
/// It is the sha256 of the text `agentenv-layer/<format>\n<parent chain or "-">\n<diff digest>\n<virtual size>\n`.
#[must_use]
pub(crate) fn chain_id(parent: Option<&Digest>, diff: &Digest, virtual_size_bytes: u64) -> Digest {
    let parent = parent.map_or_else(|| "-".to_owned(), Digest::to_string);
    let mut hasher = Hasher::sha256();
    hasher.update(
        format!("agentenv-layer/{FORMAT_VERSION}\n{parent}\n{diff}\n{virtual_size_bytes}\n").as_bytes(),
    );
    hasher.finish()
}

/// What is recorded of a converted layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LayerRecord {
    pub format: u32,
    pub chain: Digest,
    pub parent_chain: Option<Digest>,
    pub diff_digest: Digest,
    pub virtual_size_bytes: u64,
    /// Bytes of the layer file.
    pub layer_bytes: u64,
    /// Tells this conversion from another one of the same content: the kernel does not write a file system the same
    /// way twice, so a layer fits the very conversion it was made on and no other.
    pub conversion: Uuid,
    pub parent_conversion: Option<Uuid>,
    pub created_unix_ms: u64,
}

/// The directory of converted layers.
#[derive(Debug)]
pub(crate) struct LayerStore {
    directory: PathBuf,
    state: Mutex<State>,
    /// Held for as long as the store lives.
    _lock: File,
}

#[derive(Debug, Default)]
struct State {
    /// Layers in use by imports, with their number.
    pins: HashMap<Digest, usize>,
    /// One lock for each layer being converted.
    flights: HashMap<Digest, Weak<tokio::sync::Mutex<()>>>,
}

/// Keeps layers from being collected while it lives.
#[derive(Debug)]
pub struct LayerPins {
    store: Arc<LayerStore>,
    chains: Vec<Digest>,
}

impl LayerPins {
    pub(crate) fn new(store: Arc<LayerStore>) -> Self {
        Self { store, chains: Vec::new() }
    }

    pub(crate) fn add(&mut self, chain: &Digest) {
        *self.store.state().pins.entry(chain.clone()).or_default() += 1;
        self.chains.push(chain.clone());
    }
}

impl Drop for LayerPins {
    fn drop(&mut self) {
        let mut state = self.store.state();
        for chain in &self.chains {
            if let Some(count) = state.pins.get_mut(chain) {
                *count -= 1;
                if *count == 0 {
                    state.pins.remove(chain);
                }
            }
        }
    }
}

impl LayerStore {
    /// Opens the directory, makes it when missing, and removes what an interrupted import left.
    pub(crate) fn open(directory: &Path) -> Result<Self, ImageError> {
        // Layers hold other people's files.
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory).map_err(ImageError::io("making the layer directory", directory))?;
        let lock_path = directory.join(".lock");
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&lock_path)
            .map_err(ImageError::io("opening the lock of the layer directory", &lock_path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| ImageError::Io {
            action: "another process uses the layer directory, or it cannot be locked:",
            path: lock_path,
            source: error.into(),
        })?;
        let store = Self { directory: directory.to_owned(), state: Mutex::default(), _lock: lock };
        for entry in store.entries()? {
            if matches!(entry, Entry::Partial(_)) {
                store.remove(&entry.path(&store.directory))?;
            }
        }
        Ok(store)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every critical section leaves the maps consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn layer_path(&self, chain: &Digest) -> PathBuf {
        self.directory.join(format!("{}.layer", chain.hex()))
    }

    fn record_path(&self, chain: &Digest) -> PathBuf {
        self.directory.join(format!("{}.json", chain.hex()))
    }

    /// A path for sealing a layer that is not published yet.
    pub(crate) fn partial_path(&self, chain: &Digest) -> PathBuf {
        self.directory.join(format!("{}.{}.partial", chain.hex(), Uuid::new_v4().simple()))
    }

    /// The lock under which the layer is looked up and converted.
    pub(crate) fn flight(&self, chain: &Digest) -> Arc<tokio::sync::Mutex<()>> {
        let mut state = self.state();
        if let Some(flight) = state.flights.get(chain).and_then(Weak::upgrade) {
            return flight;
        }
        state.flights.retain(|_, flight| flight.strong_count() > 0);
        let flight = Arc::new(tokio::sync::Mutex::new(()));
        state.flights.insert(chain.clone(), Arc::downgrade(&flight));
        flight
    }

    /// The record of a published layer that was made on `parent`, and a pin on it.
    pub(crate) fn find(
        &self,
        chain: &Digest,
        parent: Option<&LayerRecord>,
        pins: &mut LayerPins,
    ) -> Result<Option<LayerRecord>, ImageError> {
        pins.add(chain);
        let Some(record) = self.record(chain)? else { return Ok(None) };
        let fits = record.format == FORMAT_VERSION
            && record.chain == *chain
            && record.parent_conversion == parent.map(|parent| parent.conversion);
        let path = self.layer_path(chain);
        let whole = match fs::metadata(&path) {
            Ok(metadata) => metadata.is_file() && metadata.len() == record.layer_bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(ImageError::io("examining", &path)(error)),
        };
        Ok((fits && whole).then_some(record))
    }

    fn record(&self, chain: &Digest) -> Result<Option<LayerRecord>, ImageError> {
        let path = self.record_path(chain);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.len() <= RECORD_BYTES => {}
            Ok(_) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(ImageError::io("examining", &path)(error)),
        }
        let text = fs::read(&path).map_err(ImageError::io("reading", &path))?;
        match serde_json::from_slice(&text) {
            Ok(record) => Ok(Some(record)),
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "unreadable layer record; the layer will be made again");
                Ok(None)
            }
        }
    }

    /// Publishes the sealed layer at `partial`. A crash at any moment leaves either the whole layer or none.
    pub(crate) fn publish(
        &self,
        partial: &Path,
        chain: &Digest,
        parent: Option<&LayerRecord>,
        diff_digest: &Digest,
        virtual_size_bytes: u64,
    ) -> Result<LayerRecord, ImageError> {
        let file = File::open(partial).map_err(ImageError::io("opening the sealed layer", partial))?;
        file.sync_all().map_err(ImageError::io("flushing the sealed layer", partial))?;
        let layer_bytes =
            file.metadata().map_err(ImageError::io("examining the sealed layer", partial))?.len();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let record = LayerRecord {
            format: FORMAT_VERSION,
            chain: chain.clone(),
            parent_chain: parent.map(|parent| parent.chain.clone()),
            diff_digest: diff_digest.clone(),
            virtual_size_bytes,
            layer_bytes,
            conversion: Uuid::new_v4(),
            parent_conversion: parent.map(|parent| parent.conversion),
            created_unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
        };
        let text = serde_json::to_vec_pretty(&record).map_err(|error| ImageError::Io {
            action: "encoding",
            path: self.record_path(chain),
            source: error.into(),
        })?;
        // An old record must not vouch for the new file.
        self.remove(&self.record_path(chain))?;
        self.sync()?;
        let layer_path = self.layer_path(chain);
        fs::rename(partial, &layer_path).map_err(ImageError::io("publishing", &layer_path))?;
        let partial_record = self.partial_path(chain);
        let written = File::create(&partial_record).and_then(|mut file| {
            io::Write::write_all(&mut file, &text)?;
            file.sync_all()
        });
        written.map_err(ImageError::io("writing", &partial_record))?;
        // The layer's name must be durable before the record that promises it.
        self.sync()?;
        let record_path = self.record_path(chain);
        fs::rename(&partial_record, &record_path).map_err(ImageError::io("publishing", &record_path))?;
        self.sync()?;
        Ok(record)
    }

    /// Removes every layer that is not in `kept` (paths as given out by imports), not below one that is, and not in use
    /// by an import. Returns how many and their bytes.
    pub(crate) fn collect(&self, kept: &[PathBuf]) -> Result<(u64, u64), ImageError> {
        let entries = self.entries()?;
        let mut state = self.state();
        let mut reachable: HashSet<Digest> = state.pins.keys().cloned().collect();
        // A layer being converted is pinned by its import, but its lock may outlive a cancelled one.
        reachable.extend(
            state
                .flights
                .iter()
                .filter(|(_, flight)| flight.strong_count() > 0)
                .map(|(chain, _)| chain.clone()),
        );
        reachable.extend(kept.iter().filter_map(|path| match Entry::of(path.file_name()?.to_str()?) {
            Some(Entry::Layer(chain)) if path.parent() == Some(&self.directory) => Some(chain),
            _ => None,
        }));
        let mut todo: Vec<Digest> = reachable.iter().cloned().collect();
        while let Some(chain) = todo.pop() {
            if let Some(parent) = self.record(&chain)?.and_then(|record| record.parent_chain)
                && reachable.insert(parent.clone())
            {
                todo.push(parent);
            }
        }
        let (mut count, mut bytes) = (0, 0);
        // Records first: a layer without a record is not published.
        for entry in &entries {
            if matches!(entry, Entry::Record(chain) if !reachable.contains(chain)) {
                self.remove(&entry.path(&self.directory))?;
            }
        }
        for entry in &entries {
            if matches!(entry, Entry::Layer(chain) if !reachable.contains(chain)) {
                let path = entry.path(&self.directory);
                let size = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                self.remove(&path)?;
                count += 1;
                bytes += size;
            }
        }
        state.flights.retain(|_, flight| flight.strong_count() > 0);
        drop(state);
        self.sync()?;
        Ok((count, bytes))
    }

    fn entries(&self) -> Result<Vec<Entry>, ImageError> {
        let failed = || ImageError::io("listing", &self.directory);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.directory).map_err(failed())? {
            let name = entry.map_err(failed())?.file_name();
            found.extend(name.to_str().and_then(Entry::of));
        }
        Ok(found)
    }

    fn remove(&self, path: &Path) -> Result<(), ImageError> {
        match fs::remove_file(path) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(ImageError::io("removing", path)(error)),
        }
    }

    fn sync(&self) -> Result<(), ImageError> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(ImageError::io("flushing", &self.directory))
    }
}

/// A name in the directory that is ours.
#[derive(Debug, PartialEq, Eq)]
enum Entry {
    Layer(Digest),
    Record(Digest),
    Partial(String),
}

impl Entry {
    fn of(name: &str) -> Option<Self> {
        let (hex, rest) = name.split_once('.')?;
        let chain: Digest = format!("sha256:{hex}").parse().ok()?;
        match rest {
            "layer" => Some(Self::Layer(chain)),
            "json" => Some(Self::Record(chain)),
            _ => rest
                .strip_suffix(".partial")
                .filter(|uuid| uuid.len() == 32 && uuid.bytes().all(|byte| byte.is_ascii_hexdigit()))
                .map(|_| Self::Partial(name.to_owned())),
        }
    }

    fn path(&self, directory: &Path) -> PathBuf {
        match self {
            Self::Layer(chain) => directory.join(format!("{}.layer", chain.hex())),
            Self::Record(chain) => directory.join(format!("{}.json", chain.hex())),
            Self::Partial(name) => directory.join(name),
        }
    }
}

#[cfg(test)]
mod tests;
