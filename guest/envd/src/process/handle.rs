//! A child process as the kernel knows it: by descriptor, which never means another process.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::{WaitId, WaitIdOptions, WaitIdStatus};
use tokio::io::Interest;
use tokio::sync::Notify;

use super::descriptor::watch_borrowed;

/// Signal the whole process group of the descriptor's process (Linux 6.9).
const PIDFD_SIGNAL_PROCESS_GROUP: libc::c_uint = 1 << 2;

/// A child, and whether it was reaped.
#[derive(Debug)]
pub(super) struct Handle {
    pid: libc::pid_t,
    descriptor: OwnedFd,
    is_reaped: AtomicBool,
    reaped: Notify,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Exit {
    Code(i32),
    Signal(i32),
    /// Somebody else took the status.
    Unknown,
}

impl Handle {
    pub(super) fn new(pid: libc::pid_t, descriptor: OwnedFd) -> Self {
        Self { pid, descriptor, is_reaped: AtomicBool::new(false), reaped: Notify::new() }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    pub(super) fn is_running(&self) -> bool {
        !self.is_reaped.load(Ordering::Acquire)
    }

    /// Signals the child and everything in its process group, which is also its session's first.
    pub(super) fn signal_group(&self, signal: libc::c_int) -> io::Result<()> {
        let information = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: takes a descriptor, a signal number, a null pointer that is allowed, and flags.
        let result = unsafe {
            libc::syscall(
                libc::SYS_pidfd_send_signal,
                self.descriptor.as_raw_fd(),
                signal,
                information,
                PIDFD_SIGNAL_PROCESS_GROUP,
            )
        };
        if result == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.raw_os_error() != Some(libc::EINVAL) {
            return Err(error);
        }
        // An older kernel. By number a group is only safe to signal while its leader still holds the number.
        if !self.is_running() {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        // SAFETY: kill touches no memory.
        if unsafe { libc::kill(-self.pid, signal) } < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Waits for the child's end and reaps it.
    pub(super) async fn wait(&self) -> Exit {
        let Ok(readable) = watch_borrowed(self.descriptor.as_fd(), Interest::READABLE) else {
            // Out of descriptors or memory for the event loop: ask again and again rather than lose the child.
            loop {
                tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                if let Some(exit) = self.reap() {
                    return exit;
                }
            }
        };
        loop {
            // An error here would mean that the runtime is shutting down.
            let Ok(mut ready) = readable.readable().await else { return Exit::Unknown };
            if let Some(exit) = self.reap() {
                return exit;
            }
            ready.clear_ready();
        }
    }

    /// Waits for a child that is known to end at once.
    pub(super) fn wait_blocking(&self) -> Exit {
        let status = rustix::process::waitid(WaitId::PidFd(self.descriptor.as_fd()), WaitIdOptions::EXITED);
        self.note_reaped();
        status.ok().flatten().map_or(Exit::Unknown, Exit::from)
    }

    /// Waits until somebody has reaped the child.
    pub(super) async fn gone(&self) {
        let reaped = self.reaped.notified();
        tokio::pin!(reaped);
        // Registered before looking, so that the moment in between is not missed.
        reaped.as_mut().enable();
        if self.is_running() {
            reaped.await;
        }
    }

    fn note_reaped(&self) {
        self.is_reaped.store(true, Ordering::Release);
        self.reaped.notify_waiters();
    }

    fn reap(&self) -> Option<Exit> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let exit = match rustix::process::waitid(WaitId::PidFd(self.descriptor.as_fd()), options) {
            Ok(None) => return None,
            Ok(Some(status)) => Exit::from(status),
            Err(_) => Exit::Unknown,
        };
        self.note_reaped();
        Some(exit)
    }
}

impl From<WaitIdStatus> for Exit {
    fn from(status: WaitIdStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Code(code),
            (_, Some(signal)) => Self::Signal(signal),
            _ => Self::Unknown,
        }
    }
}
