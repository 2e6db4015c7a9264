//! QEMU's command line, and the check of what goes into it.

use std::ffi::{OsStr, OsString};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::accelerator::Accelerator;
use super::program::FIRMWARE;
use crate::{Disk, MachineConfig, VmmError};

/// QEMU runs more, but each is a thread that a guest can keep busy.
const MAX_VCPUS: u32 = 32;
const MIN_MEMORY_MIB: u32 = 64;
const MAX_MEMORY_MIB: u32 = 1 << 20;
/// The machine has 24 virtio slots, shared with the network card and the entropy device.
const MAX_DISKS: usize = 16;
/// COMMAND_LINE_SIZE of x86, its NUL included.
const MAX_KERNEL_COMMAND_LINE_BYTES: usize = 2047;
const MAX_ID_BYTES: usize = 64;

/// Files of a machine in its runtime directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RuntimeFiles {
    /// Socket on which QEMU takes commands.
    pub(super) qmp_socket: PathBuf,
    /// Pipe into which QEMU writes the guest's console.
    pub(super) console_pipe: PathBuf,
    /// Written and locked by QEMU; how a machine is found whose record was never stored.
    pub(super) pid_file: PathBuf,
}

impl RuntimeFiles {
    pub(super) fn of(directory: &Path) -> Self {
        Self {
            qmp_socket: directory.join("qmp.sock"),
            console_pipe: directory.join("console.pipe"),
            pid_file: directory.join("qemu.pid"),
        }
    }

    pub(super) fn all(&self) -> [&Path; 3] {
        [&self.qmp_socket, &self.console_pipe, &self.pid_file]
    }

    /// Removes what is there.
    pub(super) fn remove(&self) {
        for path in self.all() {
            match std::fs::remove_file(path) {
                Ok(()) => {}
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "cannot remove a machine's file");
                }
            }
        }
    }
}

/// Descriptors that QEMU inherits, by the number they have in both processes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inherited {
    /// Listening socket for QMP. QEMU is given it rather than a path, so that this process can connect before QEMU is ready
    /// and need not try again and again.
    pub(super) qmp_listener: RawFd,
    /// The tap, when the machine has a network card.
    pub(super) tap: Option<RawFd>,
}

/// What the host decides, not the machine's configuration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Host {
    pub(super) accelerator: Accelerator,
    /// Counts per millisecond of the time stamp counter; needed under emulation.
    pub(super) tsc_khz: Option<u32>,
}

/// Arguments that start the machine running. All of them are built here: a machine that is to be restored, or that waits
/// in a pool, must have the same devices in the same order, or its saved state does not fit.
pub(super) fn arguments(
    config: &MachineConfig,
    host: Host,
    files: &RuntimeFiles,
    inherited: Inherited,
) -> Result<Vec<OsString>, VmmError> {
    check_bounds(config)?;
    let mut line = CommandLine::default();
    line.flag("-no-user-config");
    line.flag("-nodefaults");
    line.option("-display", "none");
    // A guest that restarts or panics ends its monitor, which is how the node sees it.
    line.flag("-no-reboot");
    line.option("-name", &config.id);
    line.option("-pidfile", path_argument(&files.pid_file)?);
    // No new programs, no changed identity, no changed priorities, no obsolete system calls.
    line.option("-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    machine(&mut line, config, host);
    kernel(&mut line, config, host)?;
    monitor_and_console(&mut line, files, inherited)?;
    for (index, disk) in config.disks.iter().enumerate() {
        disk_arguments(&mut line, index, disk)?;
    }
    network(&mut line, config, inherited)?;
    // Reads the host's random numbers inside QEMU; no descriptor, no device file.
    line.option("-object", "rng-builtin,id=rng0");
    line.option("-device", "virtio-rng-device,rng=rng0");
    Ok(line.arguments)
}

fn machine(line: &mut CommandLine, config: &MachineConfig, host: Host) {
    // ACPI tells the guest of its virtio devices: Debian's kernel takes none from its command line. The description of
    // the machine state is left out because saved device state is later loaded from a stream that has none.
    line.option("-machine", "microvm,acpi=on,suppress-vmdesc=on,memory-backend=ram");
    // Guest memory is private to the process, which is what makes it capturable from outside.
    line.option("-object", format!("memory-backend-ram,id=ram,size={}M,share=off", config.memory_mib));
    line.option("-m", format!("{}M", config.memory_mib));
    line.option("-smp", format!("{}", config.vcpus));
    match host.accelerator {
        Accelerator::Kvm => {
            line.option("-accel", "kvm");
            line.option("-cpu", "host");
        }
        Accelerator::Tcg => {
            line.option("-accel", "tcg,thread=multi");
            // Everything the translator knows, independent of the host's processor, and no slower than older models.
            line.option("-cpu", "max");
        }
    }
    // SeaBIOS and the initramfs both use the end of memory; with some QEMU versions the guest then hangs or says nothing.
    line.option("-bios", FIRMWARE);
    // Saved device state is loaded from a stream without a configuration section.
    line.option("-global", "migration.send-configuration=off");
    // QEMU's default for this transport is the interface of virtio before version 1.0.
    line.option("-global", "virtio-mmio.force-legacy=false");
}

fn kernel(line: &mut CommandLine, config: &MachineConfig, host: Host) -> Result<(), VmmError> {
    line.option("-kernel", path_argument(&config.kernel)?);
    line.option("-initrd", path_argument(&config.initramfs)?);
    line.option("-append", kernel_command_line(config, host)?);
    Ok(())
}

fn kernel_command_line(config: &MachineConfig, host: Host) -> Result<String, VmmError> {
    let mut words = vec![
        "console=ttyS0".to_owned(),
        "quiet".to_owned(),
        "panic=-1".to_owned(),
        // Self tests of the cryptographic code take 0.4 s of every boot under emulation.
        "cryptomgr.notests=1".to_owned(),
        // Without it the first reader of random numbers waits until the guest has gathered some.
        "random.trust_cpu=on".to_owned(),
    ];
    if let (Accelerator::Tcg, Some(khz)) = (host.accelerator, host.tsc_khz) {
        // See `tsc`: without both words about one boot in five hangs.
        words.extend([format!("tsc_early_khz={khz}"), "tsc=reliable".to_owned()]);
    }
    words.extend(config.kernel_arguments.iter().cloned());
    if let Some(word) = config.kernel_arguments.iter().find(|word| !is_kernel_word(word)) {
        return Err(VmmError::Config(format!("kernel argument {word:?} is not one word of printable ASCII")));
    }
    let line = words.join(" ");
    if line.len() > MAX_KERNEL_COMMAND_LINE_BYTES {
        let reason =
            format!("the kernel command line has {} bytes, of {MAX_KERNEL_COMMAND_LINE_BYTES}", line.len());
        return Err(VmmError::Config(reason));
    }
    Ok(line)
}

fn is_kernel_word(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'"')
}

fn monitor_and_console(
    line: &mut CommandLine,
    files: &RuntimeFiles,
    inherited: Inherited,
) -> Result<(), VmmError> {
    line.option("-chardev", format!("socket,id=qmp,fd={},server=on,wait=off", inherited.qmp_listener));
    line.option("-mon", "chardev=qmp,mode=control");
    // The file is a named pipe: see `console`. Appending keeps QEMU from truncating it, which means nothing for a pipe.
    let pipe = path_text(&files.console_pipe)?.replace(',', ",,");
    line.option("-chardev", format!("file,id=console,path={pipe},append=on"));
    line.option("-serial", "chardev:console");
    Ok(())
}

fn disk_arguments(line: &mut CommandLine, index: usize, disk: &Disk) -> Result<(), VmmError> {
    line.option("-blockdev", block_device(index, disk)?.to_string());
    // Discarded blocks are given back to the layer stack; zeroes are written as a mapping there. A write for which the host
    // has no room stops the machine, and is tried again when it is resumed; the guest sees every other error.
    let abilities =
        if disk.read_only { "" } else { ",discard=on,write-zeroes=on,werror=enospc,rerror=report" };
    line.option("-device", format!("virtio-blk-device,drive=disk{index}{abilities}"));
    Ok(())
}

/// The block node in the form that `blockdev-add` takes too, so that a waiting machine can be given its disks later.
fn block_device(index: usize, disk: &Disk) -> Result<Value, VmmError> {
    // A writable disk goes around the host's page cache, which would keep everything twice and delay what a flush must
    // reach. A read-only disk is shared by all guests of a host, so there the page cache is what saves memory.
    // QEMU locks what it opens: a second monitor on a writable image is refused.
    let discard = if disk.read_only { "ignore" } else { "unmap" };
    Ok(json!({
        "driver": "raw",
        "node-name": format!("disk{index}"),
        "read-only": disk.read_only,
        "discard": discard,
        "file": {
            "driver": "file",
            "filename": path_text(&disk.path)?,
            "aio": "threads",
            "cache": { "direct": !disk.read_only, "no-flush": false },
            "discard": discard,
        },
    }))
}

fn network(line: &mut CommandLine, config: &MachineConfig, inherited: Inherited) -> Result<(), VmmError> {
    match (&config.network, inherited.tap) {
        (None, None) => Ok(()),
        (Some(network), Some(tap)) => {
            let mac = network.guest_mac.map(|byte| format!("{byte:02x}")).join(":");
            line.option("-netdev", format!("tap,id=net0,fd={tap},vhost=off"));
            line.option("-device", format!("virtio-net-device,netdev=net0,mac={mac}"));
            Ok(())
        }
        _ => Err(VmmError::Config("a network card and its tap must be given together".to_owned())),
    }
}

fn check_bounds(config: &MachineConfig) -> Result<(), VmmError> {
    let refused = |reason: String| Err(VmmError::Config(reason));
    let id_fits = (1..=MAX_ID_BYTES).contains(&config.id.len());
    let id_is_plain = config.id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    if !id_fits || !id_is_plain {
        return refused(format!(
            "id {:?} is not 1 to {MAX_ID_BYTES} letters, digits, '-', '_' or '.'",
            config.id
        ));
    }
    if !(1..=MAX_VCPUS).contains(&config.vcpus) {
        return refused(format!("{} virtual processors; choose 1 to {MAX_VCPUS}", config.vcpus));
    }
    if !(MIN_MEMORY_MIB..=MAX_MEMORY_MIB).contains(&config.memory_mib) {
        return refused(format!(
            "{} MiB of memory; choose {MIN_MEMORY_MIB} to {MAX_MEMORY_MIB}",
            config.memory_mib
        ));
    }
    if config.disks.len() > MAX_DISKS {
        return refused(format!("{} disks; at most {MAX_DISKS}", config.disks.len()));
    }
    Ok(())
}

fn path_argument(path: &Path) -> Result<&OsStr, VmmError> {
    path_text(path).map(OsStr::new)
}

/// QEMU is started in `/`, so a relative path would name another file.
fn path_text(path: &Path) -> Result<&str, VmmError> {
    match path.to_str() {
        Some(text) if path.is_absolute() => Ok(text),
        Some(_) => Err(VmmError::Config(format!("{} is not an absolute path", path.display()))),
        None => Err(VmmError::Config(format!("{} is not UTF-8, which QEMU needs", path.display()))),
    }
}

#[derive(Debug, Default)]
struct CommandLine {
    arguments: Vec<OsString>,
}

impl CommandLine {
    fn flag(&mut self, name: &str) {
        self.arguments.push(name.into());
    }

    fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.arguments.push(name.into());
        self.arguments.push(value.as_ref().to_owned());
    }
}

#[cfg(test)]
#[path = "command_line_tests.rs"]
mod tests;
