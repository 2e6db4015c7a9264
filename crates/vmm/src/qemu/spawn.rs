//! Starts QEMU with as little as it needs.
//!
//! The process has: its own session; an empty network namespace; no capability, also when it runs as root; no way to gain
//! rights by executing something; an empty environment; no descriptor but those it is given; no core dumps, which would
//! hold guest memory.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::Mode;
use rustix::io::FdFlags;
use rustix::process::{Resource, Rlimit};
use rustix::thread::{CapabilitiesSecureBits, Gid, LinkNameSpaceType, Uid};

/// A user under which monitors run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunAs {
    /// User id.
    pub uid: u32,
    /// Group id. With KVM, the group that may open `/dev/kvm`.
    pub gid: u32,
}

/// What to start, and with what.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<OsString>,
    /// Kept open in the new process under the same numbers.
    pub(super) inherited: Vec<OwnedFd>,
    /// Standard error.
    pub(super) messages: OwnedFd,
    /// Network namespace to run in.
    pub(super) network_namespace: Option<Arc<OwnedFd>>,
    pub(super) run_as: Option<RunAs>,
}

/// Starts the process and returns its id. It is a child of this one, which must reap it.
pub(super) fn spawn(launch: Launch) -> io::Result<u32> {
    let Launch { program, arguments, inherited, messages, network_namespace, run_as } = launch;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::from(messages));
    // SAFETY: the closure runs in the child between fork and exec. It makes system calls only: it neither allocates nor
    // takes a lock that another thread could have held at the fork.
    unsafe {
        command.pre_exec(move || confine(&inherited, network_namespace.as_deref(), run_as));
    }
    command.spawn().map(|child| child.id())
}

/// Runs in the child; see [`spawn`] for what that allows.
fn confine(
    inherited: &[OwnedFd],
    network_namespace: Option<&OwnedFd>,
    run_as: Option<RunAs>,
) -> io::Result<()> {
    // Signals meant for this process' terminal or process group must not reach it: it outlives this process.
    rustix::process::setsid()?;
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    rustix::process::setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    keep_only(inherited)?;
    if let Some(namespace) = network_namespace {
        rustix::thread::move_into_link_name_space(
            std::os::fd::AsFd::as_fd(namespace),
            Some(LinkNameSpaceType::Network),
        )?;
    }
    // Executing a program as root gives no capabilities from here on. Without the right to say so this is not root.
    match rustix::thread::set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT | CapabilitiesSecureBits::NO_ROOT_LOCKED,
    ) {
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    if let Some(RunAs { uid, gid }) = run_as {
        rustix::thread::set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    rustix::thread::set_no_new_privs(true)?;
    Ok(())
}

/// Marks every descriptor from 3 on to be closed by exec, except these.
fn keep_only(inherited: &[OwnedFd]) -> io::Result<()> {
    const FIRST: libc::c_uint = 3;
    // SAFETY: it changes flags of descriptors only, and takes no pointer. Its failure (Linux before 5.11) is harmless:
    // the standard library opens everything close-on-exec, this covers what other code in the process opened.
    let _ =
        unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    for descriptor in inherited {
        rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    }
    Ok(())
}

/// Makes a network namespace without any interface in use. It lasts as long as the descriptor, or a process in it.
pub(super) fn empty_network_namespace() -> io::Result<OwnedFd> {
    // Namespaces belong to threads; this one ends before anything else could run in it.
    let made = std::thread::spawn(|| {
        // SAFETY: of what can be unshared only descriptors and memory of other threads matter for safety; a network
        // namespace is neither.
        unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }?;
        Ok(std::fs::File::open("/proc/thread-self/ns/net")?.into())
    });
    made.join().unwrap_or_else(|_| Err(io::Error::other("the thread that makes the namespace panicked")))
}
