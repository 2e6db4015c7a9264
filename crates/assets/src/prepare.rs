//! Setup: makes the assets when they are missing or when something newer is there.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::elf::Elf;
use crate::kernel::Kernel;
use crate::replace_file::replace_file;
use crate::source::{PackageCache, Sources};
use crate::tools_disk::{self, Tools};
use crate::{AssetFile, Assets, AssetsError, Manifest, PackageRecord, hash, initramfs, package};

/// Changed when this code makes other files from the same input, so that the next setup builds anew.
const RECIPE: &str = "1";
const HOST_BUSYBOX: &str = "/bin/busybox";
/// Enough of a digest to tell apart what one directory ever holds.
const NAME_DIGITS: usize = 16;

/// What to prepare, from what, and where.
#[derive(Debug, Clone)]
pub struct SetupConfig {
    /// Directory of the assets; made when missing.
    pub assets_directory: PathBuf,
    /// Our own programs.
    pub guest_programs: GuestPrograms,
    /// Where kernel and busybox come from.
    pub sources: Sources,
}

/// The programs of ours that run in a guest: static x86-64 executables.
#[derive(Debug, Clone)]
pub struct GuestPrograms {
    /// First process.
    pub init: PathBuf,
    /// Guest daemon.
    pub envd: PathBuf,
}

/// Makes the assets, or finds that they are up to date. `report` receives one line for each step. The old assets stay in
/// use until everything new is on disk; an interrupted setup changes nothing.
///
/// Blocks for as long as downloads take; call it from a thread that may block.
///
/// # Errors
/// Says which step failed, why, and what to do.
pub fn prepare(config: &SetupConfig, report: &mut dyn FnMut(&str)) -> Result<Assets, AssetsError> {
    let directory = &config.assets_directory;
    fs::create_dir_all(directory).map_err(AssetsError::io(format!("create {}", directory.display())))?;
    // Monitors may run as another user, and nothing here is secret.
    fs::set_permissions(directory, Permissions::from_mode(0o755))
        .map_err(AssetsError::io(format!("make {} readable", directory.display())))?;
    let _lock = lock(directory)?;
    let inputs = Inputs::gather(config, report)?;
    let fingerprint = inputs.fingerprint();
    let previous = Manifest::read(directory).ok();
    if previous.as_ref().is_some_and(|manifest| manifest.inputs == fingerprint) {
        match Assets::open(directory) {
            Ok(assets) => {
                report(&format!("assets are up to date (kernel {})", assets.manifest.kernel_release));
                return Ok(assets);
            }
            Err(error) => report(&format!("making the assets again: {error}")),
        }
    }
    let manifest = build(directory, &inputs, fingerprint, report)?;
    manifest.write(directory)?;
    let assets = Assets::open(directory)?;
    remove_unused(directory, [Some(&manifest), previous.as_ref()].into_iter().flatten());
    inputs.cache.keep_only(&[&manifest.kernel_package.sha256, &manifest.busybox_package.sha256]);
    report(&format!("assets are ready (kernel {})", manifest.kernel_release));
    Ok(assets)
}

/// Everything the assets are made from.
struct Inputs {
    cache: PackageCache,
    kernel_package: PathBuf,
    kernel_record: PackageRecord,
    busybox: Vec<u8>,
    busybox_record: PackageRecord,
    init: Vec<u8>,
    envd: Vec<u8>,
}

impl Inputs {
    fn gather(config: &SetupConfig, report: &mut dyn FnMut(&str)) -> Result<Self, AssetsError> {
        // Ours first: a wrong path should not cost a download.
        let init = read_guest_program(&config.guest_programs.init)?;
        let envd = read_guest_program(&config.guest_programs.envd)?;
        let cache = PackageCache::new(config.assets_directory.join("downloads"))?;
        let kernel = config.sources.find_kernel(report)?;
        let kernel_package = config.sources.fetch(&kernel, &cache, report)?;
        let kernel_record =
            PackageRecord { name: kernel.name, version: kernel.version, sha256: kernel.sha256 };
        let (busybox, busybox_record) = busybox(&config.sources, &cache, report)?;
        Ok(Self { cache, kernel_package, kernel_record, busybox, busybox_record, init, envd })
    }

    fn fingerprint(&self) -> String {
        let parts = [
            RECIPE,
            &self.kernel_record.sha256,
            &hash::sha256_of(&self.busybox),
            &hash::sha256_of(&self.init),
            &hash::sha256_of(&self.envd),
        ];
        hash::sha256_of(parts.join("\n").as_bytes())
    }
}

fn busybox(
    sources: &Sources,
    cache: &PackageCache,
    report: &mut dyn FnMut(&str),
) -> Result<(Vec<u8>, PackageRecord), AssetsError> {
    let Some(found) = sources.find_busybox(report)? else {
        let content = read_guest_program(Path::new(HOST_BUSYBOX))?;
        report(&format!("using the host's {HOST_BUSYBOX}"));
        let sha256 = hash::sha256_of(&content);
        return Ok((
            content,
            PackageRecord { name: HOST_BUSYBOX.to_owned(), version: String::new(), sha256 },
        ));
    };
    let path = sources.fetch(&found, cache, report)?;
    let mut content = None;
    let wanted = |path: &str| matches!(path, "bin/busybox" | "usr/bin/busybox");
    package::read_files(&path, &wanted, &mut |_, bytes| content = Some(bytes))?;
    let content = content.ok_or_else(|| AssetsError::format(&found.name, "it holds no bin/busybox"))?;
    check_guest_program(Path::new("busybox"), &content)?;
    Ok((content, PackageRecord { name: found.name, version: found.version, sha256: found.sha256 }))
}

fn build(
    directory: &Path,
    inputs: &Inputs,
    fingerprint: String,
    report: &mut dyn FnMut(&str),
) -> Result<Manifest, AssetsError> {
    report("unpacking kernel and modules");
    let kernel = Kernel::from_package(&inputs.kernel_package)?;
    report(&format!("building initramfs with {} modules", kernel.modules.len()));
    let initramfs = initramfs::build(&inputs.init, &kernel.modules);
    report("building tools disk");
    let scratch = tempfile::tempdir().map_err(AssetsError::io("create a temporary directory"))?;
    let image = scratch.path().join("tools.img");
    tools_disk::build(&Tools { envd: &inputs.envd, busybox: &inputs.busybox }, scratch.path(), &image)?;
    let tools_disk = fs::read(&image).map_err(AssetsError::io(format!("read {}", image.display())))?;
    Ok(Manifest {
        format: Manifest::CURRENT_FORMAT,
        made_by: env!("CARGO_PKG_VERSION").to_owned(),
        inputs: fingerprint,
        kernel_release: kernel.release,
        kernel_package: inputs.kernel_record.clone(),
        busybox_package: inputs.busybox_record.clone(),
        init_sha256: hash::sha256_of(&inputs.init),
        envd_sha256: hash::sha256_of(&inputs.envd),
        kernel: store(directory, ("vmlinux-", ""), &kernel.vmlinux)?,
        initramfs: store(directory, ("initramfs-", ".img"), &initramfs)?,
        tools_disk: store(directory, ("tools-", ".img"), &tools_disk)?,
    })
}

/// Puts a file under a name that holds its digest. It is on disk when this returns.
fn store(directory: &Path, (prefix, suffix): (&str, &str), content: &[u8]) -> Result<AssetFile, AssetsError> {
    let sha256 = hash::sha256_of(content);
    let name = format!("{prefix}{}{suffix}", &sha256[..NAME_DIGITS]);
    let path = directory.join(&name);
    replace_file(&path, content).map_err(AssetsError::io(format!("write {}", path.display())))?;
    Ok(AssetFile { file: name, bytes: content.len() as u64, sha256 })
}

/// Removes files of setups before the previous one, and what interrupted ones left.
fn remove_unused<'a>(directory: &Path, manifests: impl Iterator<Item = &'a Manifest>) {
    let used: Vec<_> =
        manifests.flat_map(|manifest| manifest.files().map(|(_, file)| file.file.clone())).collect();
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = ["vmlinux-", "initramfs-", "tools-", ".tmp"].iter().any(|prefix| name.starts_with(prefix));
        if ours && !used.contains(&name) {
            // What stays costs space only, and the next setup tries again.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn lock(directory: &Path) -> Result<File, AssetsError> {
    let path = directory.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(AssetsError::io(format!("open {}", path.display())))?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(AssetsError::Busy { directory: directory.to_owned() }),
        Err(error) => Err(AssetsError::io(format!("lock {}", path.display()))(error.into())),
    }
}

fn read_guest_program(path: &Path) -> Result<Vec<u8>, AssetsError> {
    let content = fs::read(path).map_err(|error| AssetsError::GuestProgram {
        path: path.to_owned(),
        reason: format!("{error}; build or install it, or correct its path"),
    })?;
    check_guest_program(path, &content)?;
    Ok(content)
}

fn check_guest_program(path: &Path, content: &[u8]) -> Result<(), AssetsError> {
    let refused =
        |reason: &str| Err(AssetsError::GuestProgram { path: path.to_owned(), reason: reason.to_owned() });
    match Elf::parse(content).map(|elf| elf.needs_interpreter()) {
        Some(Some(false)) => Ok(()),
        Some(Some(true)) => {
            refused("it is linked dynamically, and a guest image may have no loader; build it static")
        }
        Some(None) | None => refused("it is not an x86-64 ELF executable"),
    }
}
