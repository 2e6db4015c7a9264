//! A monitor's process: found, watched and ended through a pidfd, so that a reused process id never hits a stranger.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::watch;

use crate::MachineStatistics;

/// Unit of processor and start times in `/proc/PID/stat`: USER_HZ, which is part of the x86-64 ABI.
const TICKS_PER_SECOND: u64 = 100;
/// Unit of `/proc/PID/statm` on x86-64.
const PAGE_BYTES: u64 = 4096;

/// How a process ended, as far as this process can know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// It called exit with this code.
    Code(i32),
    /// A signal ended it.
    Signal(i32),
    /// It was another process' child.
    Unknown,
}

impl std::fmt::Display for Ending {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Code(code) => write!(formatter, "it ended with exit code {code}"),
            Self::Signal(signal) => write!(formatter, "signal {signal} ended it"),
            Self::Unknown => formatter.write_str("it ended"),
        }
    }
}

/// A process that is watched until it ends. A task of the current runtime does that and reaps the process if it is a child
/// of this one; it goes on when this handle is dropped, so no zombie stays.
#[derive(Debug)]
pub(crate) struct MonitorProcess {
    id: u32,
    start_ticks: u64,
    pidfd: Arc<OwnedFd>,
    ending: watch::Receiver<Option<Ending>>,
}

impl MonitorProcess {
    /// A process that this one has just started and not reaped, so that the id is its own even if it has ended.
    pub(crate) fn of_child(id: u32) -> io::Result<Self> {
        let gone = || io::Error::from(Errno::SRCH);
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        let pidfd = Arc::new(rustix::process::pidfd_open(pid, PidfdFlags::empty())?);
        let stat = Stat::read(id)?.ok_or_else(gone)?;
        let ending = watch_process(Arc::clone(&pidfd))?;
        Ok(Self { id, start_ticks: stat.start_ticks, pidfd, ending })
    }

    /// A running process. `None` when it has ended, or when the id now belongs to another process than the one that
    /// started at `start_ticks` (unless that is unknown).
    pub(crate) fn find(id: u32, start_ticks: Option<u64>) -> io::Result<Option<Self>> {
        let Some(pid) = i32::try_from(id).ok().and_then(Pid::from_raw) else { return Ok(None) };
        // The pidfd is opened before the start time is read: a process that passes the check is the one held.
        let pidfd = match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Arc::new(pidfd),
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let Some(stat) = Stat::read(id)? else { return Ok(None) };
        if has_ended(&pidfd) || start_ticks.is_some_and(|expected| expected != stat.start_ticks) {
            return Ok(None);
        }
        let ending = watch_process(Arc::clone(&pidfd))?;
        Ok(Some(Self { id, start_ticks: stat.start_ticks, pidfd, ending }))
    }

    pub(crate) fn id(&self) -> u32 {
        self.id
    }

    pub(crate) fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    pub(crate) fn has_ended(&self) -> bool {
        has_ended(&self.pidfd)
    }

    /// Waits for the end.
    pub(crate) async fn ended(&self) -> Ending {
        // The watching task ends without a result only when the whole runtime does.
        let mut ending = self.ending.clone();
        ending.wait_for(Option::is_some).await.ok().and_then(|ending| *ending).unwrap_or(Ending::Unknown)
    }

    /// Sends SIGKILL; succeeds when the process has ended.
    pub(crate) fn kill(&self) -> io::Result<()> {
        match rustix::process::pidfd_send_signal(&*self.pidfd, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Use of host resources, or `None` when the process has ended.
    pub(crate) fn statistics(&self) -> io::Result<Option<MachineStatistics>> {
        let stat = Stat::read(self.id)?;
        let statm = read_process_file(self.id, "statm")?;
        // Checked after reading: until now the id could not have been given to another process.
        let (Some(stat), Some(statm), false) = (stat, statm, self.has_ended()) else { return Ok(None) };
        let resident_pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0);
        Ok(Some(MachineStatistics {
            cpu_time: Duration::from_millis(stat.cpu_ticks * 1000 / TICKS_PER_SECOND),
            resident_bytes: resident_pages * PAGE_BYTES,
        }))
    }
}

/// The fields of `/proc/PID/stat` that are used here (proc(5)).
struct Stat {
    cpu_ticks: u64,
    start_ticks: u64,
}

impl Stat {
    fn read(id: u32) -> io::Result<Option<Self>> {
        let Some(text) = read_process_file(id, "stat")? else { return Ok(None) };
        Self::parse(&text)
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{id}/stat: {text}")))
    }

    fn parse(text: &str) -> Option<Self> {
        // The second field is the name in parentheses, which may itself hold spaces and parentheses.
        let fields: Vec<_> = text.get(text.rfind(')')? + 2..)?.split(' ').collect();
        // Numbered from 1 in the manual, of which two are before this list.
        let field = |number: usize| fields.get(number - 3)?.trim().parse::<u64>().ok();
        Some(Self { cpu_ticks: field(14)?.checked_add(field(15)?)?, start_ticks: field(22)? })
    }
}

fn read_process_file(id: u32, name: &str) -> io::Result<Option<String>> {
    match std::fs::read(format!("/proc/{id}/{name}")) {
        Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // The process ended between opening and reading.
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A pidfd is readable once its process has ended, reaped or not.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut descriptors = [PollFd::new(pidfd, PollFlags::IN)];
    matches!(poll(&mut descriptors, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1..))
}

fn watch_process(pidfd: Arc<OwnedFd>) -> io::Result<watch::Receiver<Option<Ending>>> {
    // SAFETY: the shared owner keeps the descriptor open, and nothing replaces it, for as long as it is registered.
    let descriptor = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }?;
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let readable = descriptor.readable().await;
        let ending = readable.map_or(Ending::Unknown, |_| reap(descriptor.get_ref()));
        sender.send_replace(Some(ending));
    });
    Ok(receiver)
}

fn reap(pidfd: &OwnedFd) -> Ending {
    // ECHILD: another process' child, which that one (or init, after it ended) reaps.
    match rustix::process::waitid(WaitId::PidFd(pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
    {
        Ok(Some(status)) => ending_of(&status),
        Ok(None) | Err(_) => Ending::Unknown,
    }
}

fn ending_of(status: &WaitIdStatus) -> Ending {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ending::Code(code),
        (None, Some(signal)) => Ending::Signal(signal),
        (None, None) => Ending::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 4194304 9 0 0 0 11 22 0 0 20 0 1 0 333 4096 5";
        let stat = Stat::parse(text).expect("parsed");
        assert_eq!((stat.cpu_ticks, stat.start_ticks), (33, 333));
    }

    #[test]
    fn damaged_text_is_refused() {
        for text in ["", "7 (a", "7 (a)", "7 (a) S", "7 (a) S 1 2 3"] {
            assert!(Stat::parse(text).is_none(), "{text}");
        }
    }

    fn start(command: &mut Command) -> u32 {
        command.spawn().expect("started").id()
    }

    #[tokio::test]
    async fn a_child_is_killed_reaped_and_its_ending_known() {
        let id = start(Command::new("sleep").arg("100"));
        let process = MonitorProcess::of_child(id).expect("watched");
        assert!(!process.has_ended());
        process.kill().expect("killed");
        assert_eq!(process.ended().await, Ending::Signal(9));
        assert!(!std::path::Path::new(&format!("/proc/{id}")).exists(), "still a zombie");
        process.kill().expect("killing again succeeds");
        assert!(process.statistics().expect("read").is_none());
    }

    #[tokio::test]
    async fn a_child_that_ended_before_it_was_watched_tells_how() {
        let id = start(Command::new("sh").args(["-c", "exit 7"]));
        std::thread::sleep(Duration::from_millis(200));
        let process = MonitorProcess::of_child(id).expect("watched");
        assert_eq!(process.ended().await, Ending::Code(7));
    }

    #[tokio::test]
    async fn another_start_time_means_another_process() {
        let id = std::process::id();
        let process = MonitorProcess::find(id, None).expect("looked up").expect("running");
        let ticks = process.start_ticks();
        assert!(MonitorProcess::find(id, Some(ticks)).expect("looked up").is_some());
        assert!(MonitorProcess::find(id, Some(ticks + 1)).expect("looked up").is_none());
    }

    #[tokio::test]
    async fn statistics_are_those_of_the_process() {
        let process = MonitorProcess::find(std::process::id(), None).expect("looked up").expect("running");
        let statistics = process.statistics().expect("read").expect("running");
        assert!((1 << 20..1 << 32).contains(&statistics.resident_bytes), "{statistics:?}");
    }
}
