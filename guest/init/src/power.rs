//! The end of the machine, and what protects its first processes before that.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, mount_remount};
use rustix::process::{Resource, Rlimit, Signal, setrlimit};
use rustix::system::{RebootCommand, reboot};

use crate::console;

/// How the machine ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    PowerOff,
    Restart,
}

/// How long processes may take after SIGTERM before SIGKILL.
const TERMINATION_GRACE: Duration = Duration::from_millis(1500);
/// After SIGKILL only a process stuck in the kernel remains; the sync must not wait for it.
const KILL_GRACE: Duration = Duration::from_millis(500);

/// The guest daemon inherits this: when memory runs out, the user's programs go first.
pub(crate) fn protect_from_out_of_memory() {
    let _ = std::fs::write("/proc/self/oom_score_adj", "-1000");
    // The kernel's limit of 4096 open files is less than servers and build tools are used to.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum: Some(524_288) });
}

/// Ends every process, brings the disks to rest and ends the machine.
pub(crate) fn shut_down(ending: Ending) -> ! {
    console::log(match ending {
        Ending::PowerOff => "powering off",
        Ending::Restart => "restarting",
    });
    end_processes(Signal::TERM, TERMINATION_GRACE);
    end_processes(Signal::KILL, KILL_GRACE);
    end_machine(ending)
}

fn end_processes(signal: Signal, grace: Duration) {
    // SAFETY: kill touches no memory. As the first process, -1 means every process but this one; it fails when there
    // is none.
    if unsafe { libc::kill(-1, signal.as_raw()) } < 0 {
        return;
    }
    let start = Instant::now();
    while start.elapsed() < grace && !reap_until_none_left() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Collects ended children; true when there are no children at all.
fn reap_until_none_left() -> bool {
    loop {
        match rustix::process::wait(rustix::process::WaitOptions::NOHANG) {
            Ok(Some(_)) => {}
            Ok(None) => return false,
            Err(_) => return true,
        }
    }
}

/// Writes everything back and ends the machine without asking processes.
pub(crate) fn end_machine(ending: Ending) -> ! {
    rustix::fs::sync();
    // Marks the file system clean. Busy writers make it fail; what was synced is safe all the same.
    let _ = mount_remount("/", MountFlags::RDONLY, "");
    console::drain();
    // Without ACPI "power off" only halts the processor, and the VMM would run for ever; every VMM ends on a reset.
    let has_power_switch = Path::new("/sys/firmware/acpi").exists();
    let command = match ending {
        Ending::PowerOff if has_power_switch => RebootCommand::PowerOff,
        Ending::PowerOff | Ending::Restart => RebootCommand::Restart,
    };
    let _ = reboot(command);
    // Only reached when the kernel refused; the first process must not return.
    loop {
        std::thread::park();
    }
}
