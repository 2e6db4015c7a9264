//! What an importer is configured with, asked for, and answers.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::ImageError;
use crate::credentials::Credentials;
use crate::digest::Digest;
use crate::store::LayerPins;
use crate::tar::Limits;

/// Configuration of an importer.
#[derive(Debug, Clone)]
pub struct ImporterConfig {
    /// Where converted layers are kept; used by one process at a time.
    pub layers_directory: PathBuf,
    /// For files of running conversions; on the same file system as `layers_directory`.
    pub scratch_directory: PathBuf,
    /// Size of the ext4 file system when an import names none.
    pub default_virtual_size_bytes: u64,
    /// Registries spoken to in plain HTTP, as `host` or `host:port`.
    pub insecure_registries: Vec<String>,
    /// PEM files with certificates trusted besides the system's.
    pub extra_root_certificates: Vec<PathBuf>,
    /// Docker's `config.json` with credentials; not read when absent.
    pub docker_config: Option<PathBuf>,
    /// Command line prefix of the role whose `main` calls [`crate::unpack::child_main`].
    pub unpack_command: Vec<OsString>,
    /// The mke2fs program, a path or a name on `PATH`.
    pub mke2fs: PathBuf,
    /// Bounds and deadlines.
    pub limits: ImportLimits,
}

impl ImporterConfig {
    /// A configuration with the defaults, 64 GiB of virtual size among them.
    #[must_use]
    pub fn new(layers_directory: PathBuf, scratch_directory: PathBuf, unpack_command: Vec<OsString>) -> Self {
        Self {
            layers_directory,
            scratch_directory,
            default_virtual_size_bytes: 64 << 30,
            insecure_registries: Vec::new(),
            extra_root_certificates: Vec::new(),
            docker_config: None,
            unpack_command,
            mke2fs: PathBuf::from("mke2fs"),
            limits: ImportLimits::default(),
        }
    }
}

/// Bounds and deadlines of an import.
#[derive(Debug, Clone)]
pub struct ImportLimits {
    /// Bytes of one blob in a registry.
    pub blob_bytes: u64,
    /// Bytes of one layer once uncompressed; also of an uncompressed archive.
    pub uncompressed_layer_bytes: u64,
    /// Members of one layer, counting extension headers.
    pub members: u64,
    /// Components of a member's path.
    pub path_components: usize,
    /// Layers fetched ahead of the one being converted, that one included; at least 1.
    pub layers_ahead: usize,
    /// How long to wait for a free loop device.
    pub loop_device_timeout: Duration,
    /// How long the unpacking process may take no data.
    pub stall_timeout: Duration,
    /// How long writing out a finished layer may take.
    pub finish_timeout: Duration,
    /// How long a registry may send nothing.
    pub registry_timeout: Duration,
    /// Attempts at one request, or at one blob without a new byte between them.
    pub registry_attempts: u32,
}

impl Default for ImportLimits {
    fn default() -> Self {
        Self {
            blob_bytes: 64 << 30,
            uncompressed_layer_bytes: 128 << 30,
            members: 8_000_000,
            path_components: 1024,
            layers_ahead: 3,
            loop_device_timeout: Duration::from_secs(30),
            stall_timeout: Duration::from_secs(300),
            finish_timeout: Duration::from_secs(900),
            registry_timeout: Duration::from_secs(30),
            registry_attempts: 5,
        }
    }
}

impl ImportLimits {
    pub(super) fn tar(&self) -> Limits {
        Limits { members: self.members, path_components: self.path_components, ..Limits::default() }
    }
}

/// What one import asks for.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Size of the ext4 file system; the configured default when absent. A multiple of 4096.
    pub virtual_size_bytes: Option<u64>,
    /// Credentials for the registry; without them the configured credential file is asked.
    pub credentials: Option<Credentials>,
}

/// An imported image.
#[derive(Debug)]
pub struct ImportedImage {
    /// Digest of the image manifest; for sources without one (`docker-archive`, `rootfs`) that of the configuration.
    pub manifest_digest: Digest,
    /// Converted layers, bottom first.
    pub layer_paths: Vec<PathBuf>,
    /// Size of the ext4 file system.
    pub virtual_size_bytes: u64,
    /// The image configuration document.
    pub config_json: String,
    /// How many layers had been converted before.
    pub reused_layer_count: usize,
    /// Keeps the layers from being collected until whoever records the image has done so.
    pub pins: LayerPins,
}

/// ext4 of 4 KiB blocks ends at 16 TiB for files and needs some room for itself.
pub(super) fn check_virtual_size(bytes: u64) -> Result<(), ImageError> {
    const MINIMUM: u64 = 16 << 20;
    const MAXIMUM: u64 = 16 << 40;
    if (MINIMUM..=MAXIMUM).contains(&bytes) && bytes.is_multiple_of(4096) {
        return Ok(());
    }
    Err(ImageError::InvalidOption(format!(
        "the virtual size {bytes} is not a multiple of 4096 between {MINIMUM} (16 MiB) and {MAXIMUM} (16 TiB) bytes"
    )))
}
