//! What the tests of this crate share: scratch disks on plain files, an importer, tar archives with any content, and
//! looking into a converted layer.

pub(crate) mod http;
pub(crate) mod layout;
pub(crate) mod mounted;
pub(crate) mod tar;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use image::{
    ImageError, ImportOptions, ImportedImage, Importer, ImporterConfig, Progress, ScratchDisk, ScratchDisks,
};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// Virtual size of the disks in tests.
pub(crate) const VIRTUAL_SIZE_BYTES: u64 = 8 << 30;

/// Scratch disks as plain sparse files. A "layer" is the whole disk as it was when sealed, so the stack is its top.
#[derive(Debug, Default)]
pub(crate) struct PlainDisks {
    pub(crate) opened: AtomicUsize,
    pub(crate) open_now: AtomicUsize,
}

#[async_trait::async_trait]
impl ScratchDisks for PlainDisks {
    async fn open(
        &self,
        lowers: &[PathBuf],
        scratch_directory: &Path,
        virtual_size_bytes: u64,
    ) -> Result<ScratchDisk, ImageError> {
        let path = scratch_directory.join("disk");
        match lowers.last() {
            Some(lower) => copy_sparse(lower, &path),
            None => std::fs::File::create(&path).unwrap().set_len(virtual_size_bytes).unwrap(),
        }
        self.opened.fetch_add(1, Ordering::SeqCst);
        self.open_now.fetch_add(1, Ordering::SeqCst);
        Ok(ScratchDisk { id: path.display().to_string(), path })
    }

    async fn seal(&self, disk: ScratchDisk, sealed_path: &Path) -> Result<(), ImageError> {
        self.open_now.fetch_sub(1, Ordering::SeqCst);
        std::fs::rename(&disk.path, sealed_path).unwrap();
        Ok(())
    }

    async fn discard(&self, disk: ScratchDisk) -> Result<(), ImageError> {
        self.open_now.fetch_sub(1, Ordering::SeqCst);
        let _ = std::fs::remove_file(&disk.path);
        Ok(())
    }
}

fn copy_sparse(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp")
        .args(["--sparse=always", "--reflink=auto"])
        .arg(from)
        .arg(to)
        .status();
    assert!(status.unwrap().success(), "copying {} failed", from.display());
}

/// An importer in a directory of its own.
pub(crate) struct Bench {
    pub(crate) directory: TempDir,
    pub(crate) disks: Arc<PlainDisks>,
    pub(crate) importer: Arc<Importer>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(adjust: impl FnOnce(&mut ImporterConfig)) -> Self {
        let directory = tempfile::Builder::new().prefix("image-test-").tempdir().unwrap();
        let mut config = Self::config(directory.path());
        adjust(&mut config);
        let disks = Arc::new(PlainDisks::default());
        let importer = Arc::new(Importer::new(config, disks.clone()).unwrap());
        Self { directory, disks, importer }
    }

    pub(crate) fn config(directory: &Path) -> ImporterConfig {
        let command = vec![OsString::from(env!("CARGO_BIN_EXE_image-unpack"))];
        let mut config = ImporterConfig::new(directory.join("layers"), directory.join("scratch"), command);
        config.default_virtual_size_bytes = VIRTUAL_SIZE_BYTES;
        config
    }

    pub(crate) async fn import(&self, source: &str) -> Result<ImportedImage, ImageError> {
        let (progress, _events) = mpsc::channel::<Progress>(64);
        self.importer.import(&source.parse().unwrap(), ImportOptions::default(), progress).await
    }

    /// Imports one uncompressed tar as a root file system.
    pub(crate) async fn import_tar(&self, archive: &[u8]) -> Result<ImportedImage, ImageError> {
        let path = self.directory.path().join("rootfs.tar");
        std::fs::write(&path, archive).unwrap();
        self.import(&format!("rootfs:{}", path.display())).await
    }

    /// Imports tars as layers of an image, bottom first.
    pub(crate) async fn import_layers(&self, layers: &[Vec<u8>]) -> Result<ImportedImage, ImageError> {
        let path = self.directory.path().join("layout");
        let _ = std::fs::remove_dir_all(&path);
        layout::write(&path, &layers.iter().map(|layer| layout::Layer::plain(layer)).collect::<Vec<_>>());
        self.import(&format!("oci:{}", path.display())).await
    }

    /// Nothing of a conversion is left: no scratch disk, directory, or loop device on one.
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.disks.open_now.load(Ordering::SeqCst), 0, "a scratch disk is still open");
        let scratch: Vec<_> = std::fs::read_dir(self.directory.path().join("scratch"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        assert!(scratch.is_empty(), "left in the scratch directory: {scratch:?}");
        let mine = self.directory.path().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(mine), "a mount is left");
        for entry in std::fs::read_dir("/sys/block").unwrap() {
            let backing = entry.unwrap().path().join("loop/backing_file");
            let backing = std::fs::read_to_string(backing).unwrap_or_default();
            assert!(!backing.contains(mine), "a loop device is left on {backing}");
        }
    }
}

/// The golden files beside the repository.
pub(crate) fn golden() -> PathBuf {
    let start = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = start.ancestors().map(|directory| directory.join("shared/golden")).find(|path| path.is_dir());
    found.unwrap_or_else(|| panic!("no shared/golden in a directory above {}", start.display()))
}
