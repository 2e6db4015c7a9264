//! The manifest, and the check of everything it names.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::replace_file::replace_file;
use crate::{AssetsError, hash};

/// Raised when an older node could not use what a newer setup made.
const FORMAT: u32 = 1;
const MANIFEST: &str = "manifest.json";
const VERIFIED: &str = "verified.json";
/// A manifest is under 3 KiB; a file much larger is no manifest.
const MAX_MANIFEST_BYTES: u64 = 64 * 1024;

/// What setup made, and from what. Durable, so fields are only added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of this structure.
    pub format: u32,
    /// Version of AgentENV whose setup made it.
    pub made_by: String,
    /// Digest over everything the files were made from.
    pub inputs: String,
    /// The guest kernel's release, as `uname -r` shows it in a guest.
    pub kernel_release: String,
    /// Package the kernel and its modules come from.
    pub kernel_package: PackageRecord,
    /// Package busybox comes from.
    pub busybox_package: PackageRecord,
    /// SHA-256 of the guest's first process.
    pub init_sha256: String,
    /// SHA-256 of the guest daemon.
    pub envd_sha256: String,
    /// ELF kernel.
    pub kernel: AssetFile,
    /// Initramfs image.
    pub initramfs: AssetFile,
    /// Tools disk image.
    pub tools_disk: AssetFile,
}

/// A package something was taken from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackageRecord {
    /// Package name, or the path of a host's own file.
    pub name: String,
    /// Its version; empty for a host's own file.
    pub version: String,
    /// SHA-256 of the package or file.
    pub sha256: String,
}

/// One file that setup made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssetFile {
    /// Name in the assets directory.
    pub file: String,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

/// Checked assets, ready to boot guests from.
#[derive(Debug, Clone)]
pub struct Assets {
    /// ELF kernel.
    pub kernel: PathBuf,
    /// Initramfs, padded to a multiple of 4096 bytes.
    pub initramfs: PathBuf,
    /// Read-only ext4 image with the guest daemon and busybox.
    pub tools_disk: PathBuf,
    /// Where everything comes from.
    pub manifest: Manifest,
}

/// The state in which a file was found sound. A file that changes gets another one of these.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct VerifiedState {
    sha256: String,
    bytes: u64,
    modified_ns: i128,
    inode: u64,
}

impl Assets {
    /// Finds the assets and checks size and digest of each file. A file that was hashed before and has kept size,
    /// modification time and inode is not hashed again, so a second start takes microseconds.
    ///
    /// # Errors
    /// Says which file is missing or damaged; `aenv setup` makes it again.
    pub fn open(directory: &Path) -> Result<Self, AssetsError> {
        let manifest = Manifest::read(directory)?;
        let known = read_verified(directory);
        let mut verified = BTreeMap::new();
        for (what, file) in manifest.files() {
            verified.insert(file.file.clone(), check(what, directory, file, known.get(&file.file))?);
        }
        if verified != known {
            // Without it the next start only hashes again.
            if let Err(error) = replace_file(&directory.join(VERIFIED), &to_json(&verified)) {
                tracing::debug!(%error, "the record of checked assets cannot be written");
            }
        }
        Ok(Self {
            kernel: directory.join(&manifest.kernel.file),
            initramfs: directory.join(&manifest.initramfs.file),
            tools_disk: directory.join(&manifest.tools_disk.file),
            manifest,
        })
    }
}

impl Manifest {
    pub(crate) const CURRENT_FORMAT: u32 = FORMAT;

    pub(crate) fn read(directory: &Path) -> Result<Self, AssetsError> {
        let path = directory.join(MANIFEST);
        let bad = |reason: String| AssetsError::BadManifest { path: path.clone(), reason };
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err(AssetsError::NotPrepared { directory: directory.to_owned() });
            }
            Err(error) => return Err(AssetsError::io(format!("read {}", path.display()))(error)),
        };
        if metadata.len() > MAX_MANIFEST_BYTES {
            return Err(bad(format!("it has {} bytes", metadata.len())));
        }
        let text = fs::read(&path).map_err(AssetsError::io(format!("read {}", path.display())))?;
        let manifest: Self = serde_json::from_slice(&text).map_err(|error| bad(error.to_string()))?;
        if manifest.format != FORMAT {
            return Err(bad(format!("it has format {}, this version reads {FORMAT}", manifest.format)));
        }
        if let Some((what, file)) = manifest.files().into_iter().find(|(_, file)| !is_plain_name(&file.file))
        {
            return Err(bad(format!("the {what} is at {:?}, outside the directory", file.file)));
        }
        Ok(manifest)
    }

    /// Makes this the manifest; from then on the new files are in use.
    pub(crate) fn write(&self, directory: &Path) -> Result<(), AssetsError> {
        let path = directory.join(MANIFEST);
        replace_file(&path, &to_json(self)).map_err(AssetsError::io(format!("write {}", path.display())))
    }

    pub(crate) fn files(&self) -> [(&'static str, &AssetFile); 3] {
        [("kernel", &self.kernel), ("initramfs", &self.initramfs), ("tools disk", &self.tools_disk)]
    }
}

fn is_plain_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains('/')
}

fn check(
    what: &'static str,
    directory: &Path,
    file: &AssetFile,
    known: Option<&VerifiedState>,
) -> Result<VerifiedState, AssetsError> {
    let path = directory.join(&file.file);
    let metadata = match fs::metadata(&path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(AssetsError::Missing { what, path });
        }
        Err(error) => return Err(AssetsError::io(format!("read {}", path.display()))(error)),
    };
    if metadata.len() != file.bytes {
        let reason = format!("it has {} bytes instead of {}", metadata.len(), file.bytes);
        return Err(AssetsError::Damaged { what, path, reason });
    }
    let state = VerifiedState {
        sha256: file.sha256.clone(),
        bytes: metadata.len(),
        modified_ns: i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec()),
        inode: metadata.ino(),
    };
    if known == Some(&state) {
        return Ok(state);
    }
    let actual = hash::sha256_of_file(&path).map_err(AssetsError::io(format!("read {}", path.display())))?;
    if actual != file.sha256 {
        return Err(AssetsError::Damaged { what, path, reason: format!("its SHA-256 is {actual}") });
    }
    Ok(state)
}

fn read_verified(directory: &Path) -> BTreeMap<String, VerifiedState> {
    // Unreadable or from another version: everything is hashed again.
    let text = fs::read(directory.join(VERIFIED)).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    // These types have string keys and no failing serializer.
    let mut text = serde_json::to_vec_pretty(value).unwrap_or_default();
    text.push(b'\n');
    text
}
