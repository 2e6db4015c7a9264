//! The golden set: where it is, its operation lists, and what they make of a disk.

use std::fs;
use std::path::{Path, PathBuf};

use overlaybd::{Stack, Upper, UpperFiles, UpperMode, UpperOptions};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// The golden files, from `AENV_GOLDEN` or a directory `shared/golden` beside or above the crate.
pub(crate) fn golden() -> PathBuf {
    let found = match std::env::var_os("AENV_GOLDEN") {
        Some(directory) => Some(PathBuf::from(directory)),
        None => Path::new(env!("CARGO_MANIFEST_DIR"))
            .ancestors()
            .map(|ancestor| ancestor.join("shared/golden"))
            .find(|candidate| candidate.is_dir()),
    };
    let directory = found.unwrap_or_else(|| {
        panic!("golden files missing: put them into shared/golden beside the checkout, or name them with AENV_GOLDEN")
    });
    let overlaybd = directory.join("overlaybd");
    assert!(overlaybd.join("stacks.tsv").is_file(), "no overlaybd golden files in {}", directory.display());
    overlaybd
}

/// Lines of a table of the golden set, split at tabs, comments left out.
pub(crate) fn table(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(golden().join(name)).unwrap();
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a disk reads as after the operation lists of some layers, bottom first.
pub(crate) struct Model {
    pub(crate) bytes: Vec<u8>,
    /// Sectors that some list names.
    pub(crate) touched: Vec<bool>,
}

impl Model {
    pub(crate) fn replay(lists: &[&str]) -> Model {
        let mut model = Model { bytes: Vec::new(), touched: Vec::new() };
        for list in lists {
            let text = fs::read_to_string(golden().join("ops").join(list)).unwrap();
            model.apply(&text);
        }
        model
    }

    fn apply(&mut self, list: &str) {
        let mut lines = list.lines();
        let first = lines.next().unwrap();
        let size: usize = first.rsplit(' ').next().unwrap().parse().unwrap();
        self.bytes.resize(size, 0);
        self.touched.resize(size / 512, false);
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| -> usize { words[at].parse().unwrap() };
            let (offset, length) = (number(words.len() - 2), number(words.len() - 1));
            for sector in offset / 512..(offset + length) / 512 {
                let place = &mut self.bytes[sector * 512..][..512];
                self.touched[sector] = true;
                match (words[0], words[1]) {
                    ("Z", _) => place.fill(0),
                    ("W", "R") => random(number(2) as u64, sector as u64, place),
                    ("W", "T") => text(number(2) as u64, sector as u64, place),
                    _ => panic!("unknown operation {line:?}"),
                }
            }
        }
    }
}

pub(crate) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn random(seed: u64, sector: u64, place: &mut [u8]) {
    for (word, bytes) in place.chunks_mut(8).enumerate() {
        bytes.copy_from_slice(&mix(seed ^ (sector * 64 + word as u64)).to_le_bytes());
    }
}

fn text(seed: u64, sector: u64, place: &mut [u8]) {
    let line = format!("S={seed:08x}  L={sector:016x} \n");
    place.copy_from_slice(line.repeat(16).as_bytes());
}

/// Options of an append-mode upper that takes part in a test.
pub(crate) fn options(virtual_size_bytes: u64) -> UpperOptions {
    UpperOptions {
        mode: UpperMode::Append,
        virtual_size_bytes,
        uuid: Uuid::from_u128(0x1234),
        parent_uuid: None,
        group_commit_bytes: 0,
    }
}

pub(crate) fn files(directory: &Path, name: &str) -> UpperFiles {
    UpperFiles {
        data: directory.join(format!("{name}.data")),
        index: directory.join(format!("{name}.index")),
    }
}

/// A disk without anything on it, kept in `upper.data` and `upper.index`.
pub(crate) fn empty_disk(directory: &Path, virtual_size_bytes: u64) -> Stack {
    let upper = Upper::create(&files(directory, "upper"), &options(virtual_size_bytes)).unwrap();
    Stack::open(Vec::new(), Some(upper)).unwrap()
}
