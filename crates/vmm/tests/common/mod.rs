//! Guests for the tests: the kernel and modules that setup makes, and an init of their own.

#![allow(dead_code, reason = "each test program uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use assets::cpio::Archive;
use assets::{AptSource, Assets, AssetsError, GuestPrograms, SetupConfig, Sources};
use tempfile::TempDir;
use vmm::qemu::{Qemu, QemuConfig};
use vmm::{Disk, MachineConfig};

/// Far more than a boot takes, also when several run at once on a busy host.
pub(crate) const BOOT_LIMIT: Duration = Duration::from_secs(60);

const BUSYBOX: &str = "/bin/busybox";

/// Assets in the build directory, made once and kept because of the download.
fn assets() -> &'static Assets {
    static MADE: OnceLock<Assets> = OnceLock::new();
    MADE.get_or_init(|| {
        let config = SetupConfig {
            assets_directory: Path::new(env!("CARGO_TARGET_TMPDIR")).join("assets"),
            guest_programs: GuestPrograms { init: BUSYBOX.into(), envd: BUSYBOX.into() },
            sources: Sources::Apt(AptSource::default()),
        };
        for _ in 0..600 {
            match assets::prepare(&config, &mut |line| println!("{line}")) {
                Ok(assets) => return assets,
                Err(AssetsError::Busy { .. }) => std::thread::sleep(Duration::from_millis(100)),
                Err(error) => panic!("{error}"),
            }
        }
        panic!("another test's setup did not end");
    })
}

/// What guests start from: the prepared initramfs, followed by an archive that replaces its init.
pub(crate) struct Guest {
    pub(crate) kernel: PathBuf,
    pub(crate) initramfs: PathBuf,
}

pub(crate) fn guest() -> &'static Guest {
    static MADE: OnceLock<(Guest, TempDir)> = OnceLock::new();
    let (guest, _) = MADE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap();
        let mut archive = Archive::new();
        archive.directory("bin");
        archive.file("bin/busybox", 0o755, &std::fs::read(BUSYBOX).unwrap());
        archive.file("init", 0o755, include_bytes!("../guest/init.sh"));
        let mut image = std::fs::read(&assets().initramfs).unwrap();
        image.extend(archive.finish());
        let initramfs = directory.path().join("initramfs.img");
        std::fs::write(&initramfs, image).unwrap();
        (Guest { kernel: assets().kernel.clone(), initramfs }, directory)
    });
    guest
}

/// A driver as it is configured by default.
pub(crate) fn qemu() -> Qemu {
    Qemu::new(QemuConfig::default()).unwrap()
}

/// Directories and disks of one machine.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("vmm-test-").tempdir().unwrap();
        std::fs::create_dir(directory.path().join("run")).unwrap();
        for (name, bytes) in [("tools.img", 1 << 20), ("user.img", 2 << 20)] {
            std::fs::File::create(directory.path().join(name)).unwrap().set_len(bytes).unwrap();
        }
        Self { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn runtime(&self) -> PathBuf {
        self.path("run")
    }

    pub(crate) fn console_log(&self) -> PathBuf {
        self.path("console.log")
    }

    /// A machine with both disks, without network.
    pub(crate) fn config(&self, mode: &str) -> MachineConfig {
        MachineConfig {
            id: "test".to_owned(),
            vcpus: 1,
            memory_mib: 256,
            kernel: guest().kernel.clone(),
            initramfs: guest().initramfs.clone(),
            kernel_arguments: vec![format!("test.mode={mode}")],
            disks: vec![
                Disk { path: self.path("tools.img"), read_only: true },
                Disk { path: self.path("user.img"), read_only: false },
            ],
            network: None,
            runtime_directory: self.runtime(),
            console_log: self.console_log(),
        }
    }

    /// Fails when a file of the machine or a process that names its directory is left.
    pub(crate) fn assert_nothing_left(&self) {
        let files: Vec<_> =
            std::fs::read_dir(self.runtime()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(files.is_empty(), "left: {files:?}");
        // A process that was just killed shows for as long as the kernel needs to take its memory down.
        for _ in 0..500 {
            if self.processes().is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("processes left: {:?}", self.processes());
    }

    /// Processes that have the machine's directory on their command line, zombies excluded.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let directory = self.runtime().into_os_string().into_encoded_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Ok(id) = entry.file_name().to_string_lossy().parse() else { continue };
            let command_line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            if command_line.windows(directory.len()).any(|window| window == directory) {
                found.push(id);
            }
        }
        found
    }
}

/// Children of this process that ended and were not reaped.
pub(crate) fn zombies() -> Vec<String> {
    let own = std::process::id().to_string();
    let output = Command::new("ps").args(["--ppid", &own, "-o", "stat=,pid=,comm="]).output().unwrap();
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.starts_with('Z'))
        .map(str::to_owned)
        .collect()
}
