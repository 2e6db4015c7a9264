//! Mount, confine, apply, unmount.

use std::fs::OpenOptions;
use std::io::{self, BufReader, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, UnshareFlags, set_capabilities, unshare_unsafe};

use super::apply::{Applier, ApplyError};
use super::loop_device::LoopDevice;
use super::{Outcome, Request, Summary};
use crate::tar::TarReader;

/// Large reads: the pipe holds up to 1 MiB.
const INPUT_BUFFER_BYTES: usize = 1 << 20;

/// Removing a deep directory takes a stack frame and a descriptor a level.
const APPLY_STACK_BYTES: usize = 32 << 20;

/// How long another process may keep our loop device open.
const DETACH_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn run() -> ExitCode {
    let outcome = match read_request() {
        Ok(request) => unpack(&request),
        Err(reason) => Outcome::Failed { reason },
    };
    let applied = matches!(outcome, Outcome::Applied(_));
    let report = serde_json::to_string(&outcome).unwrap_or_else(|error| error.to_string());
    // Nobody is left to tell when the parent is gone.
    let _ = writeln!(io::stdout(), "{report}");
    if applied { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn read_request() -> Result<Request, String> {
    let text = std::env::args().next_back().unwrap_or_default();
    serde_json::from_str(&text).map_err(|error| {
        format!("this role is started by an image import only; its request is invalid: {error}")
    })
}

fn unpack(request: &Request) -> Outcome {
    let mounted = match Mounted::new(request) {
        Ok(mounted) => mounted,
        Err(reason) => return Outcome::Failed { reason },
    };
    let applied = apply_confined(request);
    let outcome = match applied {
        Ok(summary) => match sync(&request.mount_point) {
            Ok(()) => Outcome::Applied(summary),
            Err(outcome) => outcome,
        },
        Err(outcome) => outcome,
    };
    match mounted.release() {
        Ok(()) => outcome,
        Err(reason) if matches!(outcome, Outcome::Applied(_)) => Outcome::Failed { reason },
        Err(_) => outcome,
    }
}

/// The scratch disk, mounted where only this process sees it.
struct Mounted<'a> {
    mount_point: &'a Path,
    device: LoopDevice,
}

impl<'a> Mounted<'a> {
    fn new(request: &'a Request) -> Result<Self, String> {
        // SAFETY: only the mount namespace is unshared; no file descriptor becomes invalid.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS) }
            .map_err(|error| format!("a private mount namespace was refused ({error}); run as root"))?;
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(|error| format!("the mounts could not be made private: {error}"))?;
        let backing = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&request.device)
            .map_err(|error| format!("opening {}: {error}", request.device.display()))?;
        let device = LoopDevice::attach(&backing, Duration::from_millis(request.loop_timeout_ms))?;
        // Nothing of the image is ever run or opened as a device here. Without `noinit_itable` a kernel thread could
        // write gigabytes of zeros into the layer. The disk is scratch until `syncfs`, so barriers only cost time.
        let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NOATIME;
        let options = c"noinit_itable,nobarrier,noauto_da_alloc,errors=remount-ro";
        mount(device.path(), &request.mount_point, "ext4", flags, options)
            .map_err(|error| format!("mounting the scratch disk as ext4: {error}"))?;
        Ok(Self { mount_point: &request.mount_point, device })
    }

    fn release(self) -> Result<(), String> {
        unmount(self.mount_point, UnmountFlags::empty())
            .map_err(|error| format!("unmounting the scratch disk: {error}"))?;
        self.device.detach(DETACH_TIMEOUT)
    }
}

/// Applies the archive in a thread of its own, because `chroot` and dropped capabilities cannot be taken back: the main
/// thread stays outside to unmount.
fn apply_confined(request: &Request) -> Result<Summary, Outcome> {
    let applied = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("apply".to_owned())
            .stack_size(APPLY_STACK_BYTES)
            .spawn_scoped(scope, || {
                confine(&request.mount_point).map_err(|reason| Outcome::Failed { reason })?;
                apply(request)
            })
            .map_err(|error| Outcome::Failed { reason: format!("starting a thread: {error}") })?;
        thread.join().unwrap_or_else(|_| {
            Err(Outcome::Failed { reason: "the archive made the unpacker panic; this is a bug".to_owned() })
        })
    })?;
    Ok(applied)
}

fn confine(root: &Path) -> Result<(), String> {
    let describe = |what: &'static str| move |error: rustix::io::Errno| format!("{what}: {error}");
    // SAFETY: only the file-system attributes (root, working directory, umask) are unshared.
    unsafe { unshare_unsafe(UnshareFlags::FS) }.map_err(describe("separating the unpacking thread"))?;
    rustix::process::chdir(root).map_err(describe("entering the mounted disk"))?;
    rustix::process::chroot(".").map_err(describe("locking the unpacking thread into the mounted disk"))?;
    rustix::process::chdir("/").map_err(describe("entering the mounted disk"))?;
    rustix::process::umask(Mode::empty());
    let limit = getrlimit(Resource::Nofile);
    // Fewer descriptors only lower the depth of directories that can be removed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    let needed = CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::DAC_READ_SEARCH
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID
        | CapabilitySet::MKNOD
        | CapabilitySet::SETFCAP
        // For `trusted.*` and `security.*` attributes.
        | CapabilitySet::SYS_ADMIN;
    let sets = CapabilitySets { effective: needed, permitted: needed, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(describe("dropping capabilities"))
}

fn apply(request: &Request) -> Result<Summary, Outcome> {
    let root = openat2(
        CWD,
        "/",
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::empty(),
    )
    .map_err(|error| Outcome::Failed { reason: format!("opening the mounted disk: {error}") })?;
    let input = BufReader::with_capacity(INPUT_BUFFER_BYTES, io::stdin());
    let mut archive = TarReader::new(input, request.limits);
    let mut applier = Applier::new(root, request.limits);
    let applied = applier.apply(&mut archive);
    applied
        .and_then(|()| archive.drain(request.trailer_bytes).map_err(ApplyError::from))
        .map(|()| applier.into_summary())
        .map_err(ApplyError::into_outcome)
}

/// Reports errors of delayed writes, which `umount` would swallow.
fn sync(mount_point: &Path) -> Result<(), Outcome> {
    let root = openat(CWD, mount_point, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    root.and_then(rustix::fs::syncfs).map_err(|error| {
        if error == rustix::io::Errno::NOSPC {
            return Outcome::DiskFull { member: "(delayed writes)".to_owned() };
        }
        Outcome::Failed {
            reason: format!("writing the scratch disk: {error}; the host's own disk may be full"),
        }
    })
}
