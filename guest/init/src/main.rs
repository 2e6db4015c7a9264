//! First process of a guest.
//!
//! The kernel starts it from a small initramfs. It loads the kernel modules it finds there, enters the user's disk as
//! the root directory, makes that root look as programs expect (device, process and control-group file systems, host
//! name, name service, network), starts the guest daemon from the tools disk and then stays as the parent of all
//! orphans until the machine ends.
//!
//! It trusts nothing in the user's image: no program and no library of it is needed, and a directory the image lacks
//! is made. Only a missing disk or a missing guest daemon is fatal; then the reason goes to the console and the
//! machine powers off.

mod console;
mod devices;
mod etc;
mod kernel_words;
mod modules;
mod mounts;
mod network;
mod power;
mod root;
mod supervise;
mod sysctl;

use std::path::Path;

use kernel_words::KernelWords;

/// What ends the boot.
#[derive(Debug, thiserror::Error)]
enum BootError {
    #[error(
        "disk {device} did not appear within {waited_ms} ms; is the virtio_blk module in the initramfs and the drive attached?"
    )]
    DiskMissing { device: &'static str, waited_ms: u128 },
    #[error("cannot mount {what} on {target}: {source}")]
    Mount { what: &'static str, target: &'static str, source: rustix::io::Errno },
    #[error("cannot make the directory {path} in the user's image: {source}")]
    Directory { path: &'static str, source: std::io::Error },
    #[error("cannot make the user's disk the root directory ({step}): {source}")]
    SwitchRoot { step: &'static str, source: rustix::io::Errno },
    #[error("the tools disk has no guest daemon at {path}: {source}")]
    DaemonMissing { path: &'static str, source: std::io::Error },
}

fn main() {
    if std::process::id() != 1 {
        eprintln!(
            "aenv-init: this is the first process of a guest; it does nothing when started as any other"
        );
        std::process::exit(2);
    }
    let signals = supervise::Signals::block();
    let booted = boot();
    match booted {
        Ok(()) => supervise::run(&signals),
        Err(error) => {
            console::fatal(&error);
            power::end_machine(power::Ending::PowerOff);
        }
    }
}

/// Everything before the guest daemon starts. The order matters: block devices need the modules, the user's root needs
/// its disk, and all mount points are looked up after entering that root, so that symbolic links in the image mean
/// what the image's author meant.
fn boot() -> Result<(), BootError> {
    mounts::mount_early()?;
    console::attach();
    console::log("started");
    modules::insert_all(Path::new("/modules"));
    root::enter_user_disk()?;
    mounts::mount_in_user_root()?;
    root::mount_tools()?;
    console::log("user disk and tools disk mounted");

    devices::complete_dev();
    let words = KernelWords::read();
    let hostname = words.hostname();
    etc::set_hostname(hostname);
    etc::write_all(Path::new("/"), hostname, &words.dns_servers());
    network::configure();
    sysctl::apply(Path::new("/proc/sys"));
    power::protect_from_out_of_memory();
    supervise::require_daemon()
}
