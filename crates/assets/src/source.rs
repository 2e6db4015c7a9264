//! Where packages come from.

mod apt;
mod download;

use std::path::{Path, PathBuf};

pub use apt::AptSource;

use crate::AssetsError;
use crate::hash;

/// Where setup takes the kernel and busybox from.
#[derive(Debug, Clone)]
pub enum Sources {
    /// The distribution's own package source, which also verifies what it delivers.
    Apt(AptSource),
    /// Fixed addresses, for hosts without apt.
    Urls(PackageUrls),
}

/// Packages at fixed addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackageUrls {
    /// Debian's `linux-image-6.12.*-cloud-amd64-unsigned`.
    pub kernel_package: PinnedUrl,
    /// Debian's `busybox-static`. Without it the host's own `/bin/busybox` is used, which must be static then.
    pub busybox_package: Option<PinnedUrl>,
}

/// A file at an address, with the digest it must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedUrl {
    /// `http://`, `https://` or `file://` (absolute path).
    pub url: String,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// A package that a source can deliver.
#[derive(Debug, Clone)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) sha256: String,
}

/// Packages on disk under their digest, so that a rebuild needs no network.
#[derive(Debug)]
pub(crate) struct PackageCache {
    directory: PathBuf,
}

impl PackageCache {
    pub(crate) fn new(directory: PathBuf) -> Result<Self, AssetsError> {
        std::fs::create_dir_all(&directory)
            .map_err(AssetsError::io(format!("create {}", directory.display())))?;
        Ok(Self { directory })
    }

    /// Where a package with this digest is or would be.
    fn path(&self, sha256: &str) -> PathBuf {
        self.directory.join(format!("{sha256}.deb"))
    }

    /// A package that is here and sound.
    fn find(&self, sha256: &str) -> Option<PathBuf> {
        let path = self.path(sha256);
        (hash::sha256_of_file(&path).ok()? == sha256).then_some(path)
    }

    /// Takes a downloaded file in, if it has the digest it must have.
    fn keep(&self, package: &Package, downloaded: &Path) -> Result<PathBuf, AssetsError> {
        let context = || format!("read {}", downloaded.display());
        let actual = hash::sha256_of_file(downloaded).map_err(AssetsError::io(context()))?;
        if actual != package.sha256 {
            let reason = format!("what was delivered has SHA-256 {actual}, expected {}", package.sha256);
            return Err(AssetsError::Source { package: package.name.clone(), reason });
        }
        let path = self.path(&package.sha256);
        std::fs::rename(downloaded, &path)
            .map_err(AssetsError::io(format!("rename to {}", path.display())))?;
        Ok(path)
    }

    /// Removes every package but these.
    pub(crate) fn keep_only(&self, digests: &[&str]) {
        let wanted: Vec<_> = digests.iter().map(|sha256| self.path(sha256)).collect();
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            // What stays costs space only, and the next setup tries again.
            if !wanted.contains(&path) && path.is_file() {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// A directory for downloads that are not checked yet, on the same file system.
    fn scratch(&self) -> Result<tempfile::TempDir, AssetsError> {
        tempfile::tempdir_in(&self.directory)
            .map_err(AssetsError::io(format!("create a directory in {}", self.directory.display())))
    }
}

impl Sources {
    /// Which kernel package is to be used.
    pub(crate) fn find_kernel(&self, report: &mut dyn FnMut(&str)) -> Result<Package, AssetsError> {
        match self {
            Self::Apt(apt) => apt.find_kernel(report),
            Self::Urls(urls) => urls.kernel_package.package("kernel"),
        }
    }

    /// Which busybox package is to be used, if any.
    pub(crate) fn find_busybox(&self, report: &mut dyn FnMut(&str)) -> Result<Option<Package>, AssetsError> {
        match self {
            Self::Apt(apt) => apt.find_busybox(report),
            Self::Urls(urls) => {
                urls.busybox_package.as_ref().map(|pinned| pinned.package("busybox-static")).transpose()
            }
        }
    }

    /// Path of the package, delivered now unless the cache has it.
    pub(crate) fn fetch(
        &self,
        package: &Package,
        cache: &PackageCache,
        report: &mut dyn FnMut(&str),
    ) -> Result<PathBuf, AssetsError> {
        if let Some(path) = cache.find(&package.sha256) {
            report(&format!("{} {} is here already", package.name, package.version));
            return Ok(path);
        }
        report(&format!("downloading {} {}", package.name, package.version));
        let scratch = cache.scratch()?;
        let downloaded = match self {
            Self::Apt(apt) => apt.download(package, scratch.path())?,
            Self::Urls(urls) => {
                let pinned = [Some(&urls.kernel_package), urls.busybox_package.as_ref()];
                let pinned = pinned.into_iter().flatten().find(|pinned| pinned.sha256 == package.sha256);
                let path = scratch.path().join("package");
                download::download(pinned.map_or("", |pinned| &pinned.url), &path)?;
                path
            }
        };
        cache.keep(package, &downloaded)
    }
}

impl PinnedUrl {
    fn package(&self, name: &str) -> Result<Package, AssetsError> {
        if !hash::is_sha256(&self.sha256) {
            let reason = format!(
                "{:?} is not a SHA-256 in lower-case hexadecimal; correct the configuration",
                self.sha256
            );
            return Err(AssetsError::Source { package: self.url.clone(), reason });
        }
        let file = self.url.rsplit('/').next().unwrap_or_default().trim_end_matches(".deb");
        // Debian's file names are name_version_architecture.
        let (name, version) = match file.split('_').collect::<Vec<_>>()[..] {
            [name, version, _] => (name, version),
            _ => (name, file),
        };
        Ok(Package { name: name.to_owned(), version: version.to_owned(), sha256: self.sha256.clone() })
    }
}
