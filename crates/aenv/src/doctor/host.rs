//! What the machine and its system offer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vmm::qemu::{Accelerator, QemuReport};

use super::Check;
use crate::config::Config;
use crate::units;

/// FUSE requests that a dead server had in hand are sent again since Linux 6.9.
const RESEND_KERNEL: (u32, u32) = (6, 9);
/// Less is no room for images.
const DISK_WANTED_BYTES: u64 = 10 << 30;
const DISK_NEEDED_BYTES: u64 = 1 << 30;

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let mut checks = vec![root(), kernel()];
    checks.extend(virtual_machines(config));
    checks.extend([fuse(), ublk(), loop_devices(), ext4(), namespaces(), tap()]);
    checks.extend(nftables(&config.network.name_prefix));
    checks.extend([io_uring(), memory(config), disk(&config.data_dir)]);
    checks
}

fn root() -> Check {
    if rustix::process::geteuid().is_root() {
        return Check::ok("root", "yes");
    }
    Check::missing(
        "root",
        "no",
        "run `aenv serve` and `aenv doctor` as root; what follows is only half seen without",
    )
}

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let found = format!("Linux {release} {}", std::env::consts::ARCH);
    if std::env::consts::ARCH != "x86_64" {
        return Check::missing("kernel", found, "the guest kernel is x86-64: use such a machine");
    }
    match version(&release) {
        Some(version) if version >= RESEND_KERNEL => Check::ok("kernel", found),
        _ => Check::fallback(
            "kernel",
            found,
            "before Linux 6.9 a crash of the storage daemon fails the disk requests it had in hand; a newer kernel sends \
             them again",
        ),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn virtual_machines(config: &Config) -> Vec<Check> {
    let report = match QemuReport::detect(&super::qemu_config(config)) {
        Ok(report) => report,
        Err(error) => {
            return vec![Check::missing(
                "QEMU",
                error.to_string(),
                "install it (Debian: apt-get install qemu-system-x86), or name it in the configuration: [vmm] qemu",
            )];
        }
    };
    let qemu = Check::ok("QEMU", format!("{} ({})", report.version, report.program.display()));
    let reason = &report.accelerator_reason;
    let accelerator = match report.accelerator {
        Accelerator::Kvm => Check::ok("accelerator", format!("KVM: {reason}")),
        Accelerator::Tcg => Check::fallback(
            "accelerator",
            format!("TCG (software emulation): {reason}"),
            "guests are the same, but run 4 to 15 times slower than with hardware KVM",
        ),
    };
    vec![qemu, accelerator]
}

fn fuse() -> Check {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => Check::ok("FUSE", "/dev/fuse; disks are served through it"),
        Err(error) => Check::missing("FUSE", format!("/dev/fuse: {error}"), "load its module: modprobe fuse"),
    }
}

fn ublk() -> Check {
    let found = if Path::new("/dev/ublk-control").exists() { "there" } else { "not there" };
    Check::info("ublk", format!("{found}; not used yet, FUSE serves the disks"))
}

fn loop_devices() -> Check {
    if !Path::new("/dev/loop-control").exists() {
        return Check::missing("loop devices", "no /dev/loop-control", "load their module: modprobe loop");
    }
    let (used, all) = loop_device_counts();
    let found = format!("{used} of {all} in use; one is needed for each image layer while it is unpacked");
    if all > 0 && used == all {
        return Check::fallback(
            "loop devices",
            found,
            "pulls wait until one is free, or until the kernel makes another",
        );
    }
    Check::ok("loop devices", found)
}

fn loop_device_counts() -> (usize, usize) {
    let names = fs::read_dir("/sys/block").into_iter().flatten().filter_map(Result::ok);
    let loops: Vec<PathBuf> = names
        .map(|entry| entry.path())
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("loop")))
        .collect();
    (loops.iter().filter(|path| path.join("loop/backing_file").exists()).count(), loops.len())
}

fn ext4() -> Check {
    let remedy = "install e2fsprogs, and a kernel with ext4";
    let Some(tools) = first_line("mke2fs", &["-V"]) else {
        return Check::missing("ext4", "no program mke2fs", remedy);
    };
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    if !known.lines().any(|line| line.trim() == "ext4") {
        return Check::fallback(
            "ext4",
            tools,
            "ext4 is not in the kernel now; it has to be there as a module",
        );
    }
    Check::ok("ext4", tools)
}

fn namespaces() -> Check {
    // On a thread of its own: it stays in the namespace it makes.
    let made = std::thread::spawn(|| {
        // SAFETY: NEWNET does not concern descriptor tables, which is what can go wrong with `unshare`.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
    });
    match made.join() {
        Ok(Ok(())) => Check::ok("network namespaces", "can be made"),
        Ok(Err(error)) => Check::missing(
            "network namespaces",
            format!("cannot be made: {error}"),
            "run as root, outside of a container or in a privileged one",
        ),
        Err(_) => Check::missing("network namespaces", "the check failed", "report this as a defect"),
    }
}

fn tap() -> Check {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Check::ok("tap devices", "/dev/net/tun"),
        Err(error) => {
            Check::missing("tap devices", format!("/dev/net/tun: {error}"), "load their module: modprobe tun")
        }
    }
}

fn nftables(prefix: &str) -> Vec<Check> {
    let Some(version) = first_line("nft", &["--version"]) else {
        return vec![Check::missing("nftables", "no program nft", "install nftables")];
    };
    match network::forwarding_obstacles() {
        Ok(obstacles) if obstacles.is_empty() => vec![Check::ok("nftables", version)],
        Ok(obstacles) => vec![
            Check::ok("nftables", version),
            Check::fallback(
                "forwarding",
                format!("dropped by default by {}", obstacles.join(", ")),
                format!(
                    "sandboxes do not reach the internet until that firewall lets links named {prefix}-* through; with \
                     Docker: iptables -I DOCKER-USER -i {prefix}-+ -j ACCEPT; iptables -I DOCKER-USER -o {prefix}-+ -j \
                     ACCEPT"
                ),
            ),
        ],
        Err(error) => vec![Check::missing("nftables", format!("{version}: {error}"), "run as root")],
    }
}

fn io_uring() -> Check {
    let setting = fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    let found = match setting.trim() {
        "0" | "" => "not switched off",
        "1" => "for some users only",
        _ => "switched off",
    };
    Check::info("io_uring", format!("{found}; not used yet"))
}

fn memory(config: &Config) -> Check {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let available = text.lines().find_map(|line| {
        line.strip_prefix("MemAvailable:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    });
    let Some(kib) = available else { return Check::info("memory", "unknown") };
    let found = format!("{} available", units::size(kib << 10));
    let one = u64::from(config.sandbox.default_memory_mib) << 10;
    if kib < one {
        return Check::fallback("memory", found, "less than one sandbox of the default size");
    }
    Check::ok("memory", found)
}

fn disk(data_dir: &Path) -> Check {
    let Some(existing) = data_dir.ancestors().find(|path| path.exists()) else {
        return Check::info("disk space", "unknown");
    };
    let Ok(statistics) = rustix::fs::statvfs(existing) else { return Check::info("disk space", "unknown") };
    let free = statistics.f_bavail.saturating_mul(statistics.f_frsize);
    let found = format!("{} free for {}", units::size(free), data_dir.display());
    let remedy = "free some, or move it: data_dir in the configuration";
    match free {
        free if free < DISK_NEEDED_BYTES => Check::missing("disk space", found, remedy),
        free if free < DISK_WANTED_BYTES => Check::fallback("disk space", found, remedy),
        _ => Check::ok("disk space", found),
    }
}

/// First line that a program prints about itself; nothing when it cannot be run.
fn first_line(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    text.lines().map(str::trim).find(|line| !line.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_release_has_a_version() {
        for (release, expected) in
            [("6.18.44-fc-v669", (6, 18)), ("6.9.0", (6, 9)), ("5.10.0-8-amd64", (5, 10))]
        {
            assert_eq!(version(release), Some(expected));
        }
        assert_eq!(version("unknown"), None);
    }

    #[test]
    fn a_program_that_is_not_there_has_no_line() {
        assert_eq!(first_line("no-such-program-here", &[]), None);
    }

    #[test]
    fn disk_space_is_that_of_the_nearest_directory_that_exists() {
        let found = disk(Path::new("/tmp/not/there/yet")).found;
        assert!(found.contains("/tmp/not/there/yet") && found.contains("free"), "{found}");
    }
}
