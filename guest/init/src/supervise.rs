//! Life after the boot: the guest daemon is kept running, orphans are reaped, signals end the machine.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};

use rustix::process::{Pid, WaitOptions, WaitStatus};

use crate::power::{self, Ending};
use crate::{BootError, console};

const DAEMON: &str = "/agentenv/bin/aenv-envd";
const BACKOFF_MIN: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(5);
/// A daemon that ran this long failed for a new reason.
const BACKOFF_RESET: Duration = Duration::from_secs(30);

/// Fails when the tools disk lacks the daemon: then no boot can ever succeed.
pub(crate) fn require_daemon() -> Result<(), BootError> {
    std::fs::metadata(DAEMON).map(drop).map_err(|source| BootError::DaemonMissing { path: DAEMON, source })
}

/// Runs until a signal ends the machine.
pub(crate) fn run(signals: &Signals) -> ! {
    let mut daemon = Daemon { memory: make_memory(), ..Daemon::default() };
    loop {
        daemon.start_when_due(signals);
        if let Some(ending) = signals.wait(daemon.time_until_start()) {
            power::shut_down(ending);
        }
        reap(&mut daemon);
    }
}

/// Collects every ended child. One pass may find many: the kernel merges pending SIGCHLDs.
fn reap(daemon: &mut Daemon) {
    while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
        daemon.note_exit(pid, status);
    }
}

/// The guest daemon, and when to start it again.
#[derive(Debug, Default)]
struct Daemon {
    running: Option<(Pid, Instant)>,
    start_at: Option<Instant>,
    backoff: Duration,
    /// An unnamed file in which the daemon keeps its token and the like for the next one.
    memory: Option<OwnedFd>,
}

impl Daemon {
    fn start_when_due(&mut self, signals: &Signals) {
        if self.running.is_some() || !self.time_until_start().is_none_or(|left| left.is_zero()) {
            return;
        }
        match spawn_daemon(signals, self.memory.as_ref()) {
            Ok(pid) => {
                console::log(format_args!("started {DAEMON}, pid {pid}"));
                self.running = Some((pid, Instant::now()));
                self.start_at = None;
            }
            Err(error) => {
                console::log(format_args!("cannot start {DAEMON}: {error}"));
                self.schedule_restart(Duration::ZERO);
            }
        }
    }

    fn time_until_start(&self) -> Option<Duration> {
        self.start_at.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn note_exit(&mut self, pid: Pid, status: WaitStatus) {
        let Some((daemon, started)) = self.running else { return };
        if daemon != pid {
            return;
        }
        self.running = None;
        self.schedule_restart(started.elapsed());
        console::log(format_args!(
            "guest daemon ended ({}), restarting in {} ms",
            Ended(status),
            self.backoff.as_millis()
        ));
    }

    fn schedule_restart(&mut self, ran_for: Duration) {
        self.backoff = next_backoff(self.backoff, ran_for);
        self.start_at = Some(Instant::now() + self.backoff);
    }
}

fn next_backoff(last: Duration, ran_for: Duration) -> Duration {
    if ran_for >= BACKOFF_RESET { BACKOFF_MIN } else { (last * 2).clamp(BACKOFF_MIN, BACKOFF_MAX) }
}

/// How a process ended, in words.
struct Ended(WaitStatus);

impl fmt::Display for Ended {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.exit_status(), self.0.terminating_signal()) {
            (Some(code), _) => write!(formatter, "exit status {code}"),
            (_, Some(signal)) => write!(formatter, "killed by signal {signal}"),
            _ => formatter.write_str("unknown reason"),
        }
    }
}

/// Not closed on exec: the daemon, the only program started here, opens it through its own descriptor table, which only
/// root may look into.
fn make_memory() -> Option<OwnedFd> {
    rustix::fs::memfd_create(c"aenv-envd", rustix::fs::MemfdFlags::empty())
        .inspect_err(|error| {
            console::log(format_args!("a restarted guest daemon will know no token: {error}"));
        })
        .ok()
}

fn spawn_daemon(signals: &Signals, memory: Option<&OwnedFd>) -> io::Result<Pid> {
    let original = signals.original;
    let mut command = Command::new(DAEMON);
    command
        .env_clear()
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .current_dir("/");
    if let Some(memory) = memory {
        command.arg("--memory").arg(format!("/proc/self/fd/{}", memory.as_raw_fd()));
    }
    // SAFETY: sigprocmask is async-signal-safe and reads a mask owned by the closure.
    unsafe {
        command.pre_exec(move || {
            if libc::sigprocmask(libc::SIG_SETMASK, &raw const original, ptr::null_mut()) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
    let child = command.spawn()?;
    // The handle is dropped on purpose: this process reaps all children in one place.
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| io::Error::other("pid out of range"))
}

/// The signals the first process waits for instead of being interrupted by them.
pub(crate) struct Signals {
    waited_for: libc::sigset_t,
    original: libc::sigset_t,
}

impl Signals {
    /// Blocks them for this process; children get the original mask back.
    pub(crate) fn block() -> Self {
        let mut waited_for = MaybeUninit::<libc::sigset_t>::zeroed();
        let mut original = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: sigemptyset initialises the set, sigaddset takes an initialised set and a valid signal number, and
        // sigprocmask reads the one and writes the other. An all-zero set is a valid value, so both are initialised
        // even if a call should fail.
        unsafe {
            libc::sigemptyset(waited_for.as_mut_ptr());
            for signal in std::iter::once(libc::SIGCHLD).chain(ending_signals().map(|(signal, _)| signal)) {
                libc::sigaddset(waited_for.as_mut_ptr(), signal);
            }
            libc::sigprocmask(libc::SIG_BLOCK, waited_for.as_ptr(), original.as_mut_ptr());
            Self { waited_for: waited_for.assume_init(), original: original.assume_init() }
        }
    }

    /// Waits for one signal, at most `timeout` when given. Says how to end the machine when it was such a signal.
    fn wait(&self, timeout: Option<Duration>) -> Option<Ending> {
        // Longer than any useful wait, so that one call serves both cases.
        let timeout = timeout.unwrap_or(Duration::from_secs(3600));
        let timeout = libc::timespec {
            tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
            tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
        };
        // SAFETY: both pointers are to initialised values that live across the call; the information pointer may be
        // null.
        let signal =
            unsafe { libc::sigtimedwait(&raw const self.waited_for, ptr::null_mut(), &raw const timeout) };
        ending_signals().find(|(number, _)| *number == signal).map(|(_, ending)| ending)
    }
}

/// What `poweroff`, `halt`, `reboot` of the common init programs and a VMM's power button send to the first process.
fn ending_signals() -> impl Iterator<Item = (libc::c_int, Ending)> {
    let realtime = libc::SIGRTMIN();
    [
        (libc::SIGTERM, Ending::PowerOff),
        (libc::SIGUSR1, Ending::PowerOff),
        (libc::SIGUSR2, Ending::PowerOff),
        (libc::SIGPWR, Ending::PowerOff),
        (libc::SIGINT, Ending::Restart),
        (realtime + 3, Ending::PowerOff),
        (realtime + 4, Ending::PowerOff),
        (realtime + 5, Ending::Restart),
    ]
    .into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_back_off_up_to_a_bound_and_start_over_after_a_long_run() {
        let mut backoff = Duration::ZERO;
        let mut seen = Vec::new();
        for _ in 0..9 {
            backoff = next_backoff(backoff, Duration::ZERO);
            seen.push(backoff.as_millis());
        }
        assert_eq!(seen, [50, 100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(next_backoff(backoff, BACKOFF_RESET), BACKOFF_MIN);
    }

    #[test]
    fn the_reason_of_an_exit_is_put_in_words() {
        #[expect(clippy::zombie_processes, reason = "waited for by process id, as the supervisor does")]
        let ran = |script: &str| {
            let child = Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
            let pid = Pid::from_raw(child.id().try_into().unwrap());
            let (_, status) = rustix::process::waitpid(pid, WaitOptions::empty()).unwrap().unwrap();
            Ended(status).to_string()
        };
        assert_eq!(ran("exit 3"), "exit status 3");
        assert_eq!(ran("kill -9 $$"), "killed by signal 9");
    }
}
