//! The server's side: find the keeper, or start one.

use std::ffi::OsString;
use std::io::{self, BufRead as _, ErrorKind};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::message::{self, Command, Greeting, Offer};
use super::{KeeperConfig, UNMOUNT_PATIENCE};
use crate::FrontEndError;
use crate::fuse::mount::{self, Session};

/// A keeper answers at once; longer than this and it is stopped or broken.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Mounting takes milliseconds.
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// A predecessor that was killed may need this long to close its files: it finishes the disk operation it is in.
const PREDECESSOR_TIMEOUT: Duration = Duration::from_secs(5);

/// The channels, and the connection that says they are ours.
#[derive(Debug)]
pub(crate) struct Kept {
    connection: OwnedFd,
    /// To be reaped when it ends; none when the keeper is older than this process.
    child: Option<Child>,
    /// For notifications, and for serving where `serve_on_first`.
    pub(crate) channels: Vec<OwnedFd>,
    pub(crate) session: Session,
    pub(crate) serve_on_first: bool,
    /// The mount was there before; its users may be waiting.
    pub(crate) taken_over: bool,
}

impl Kept {
    /// Takes the channels from a running keeper, or starts one with `command`.
    pub(crate) fn find_or_start(config: &KeeperConfig, command: &[OsString]) -> Result<Self, FrontEndError> {
        if let Some(kept) = take(config, None)? {
            if mount::is_mounted(&config.mount_point).map_err(|error| failed(config, &error))? {
                return Ok(kept);
            }
            // Somebody unmounted it by hand: this keeper keeps nothing.
            tracing::warn!(mount_point = %config.mount_point.display(), "the mount is gone; its keeper is replaced");
            kept.unmount(config)?;
        }
        prepare(config)?;
        let child = start(config, command, Stdio::null())?;
        take(config, Some(child))?
            .ok_or_else(|| keeper_error(config, "it ended right after its start; try again"))
    }

    /// Whether the keeper lives.
    pub(crate) fn is_alive(&self) -> bool {
        let mut waiting = [PollFd::new(&self.connection, PollFlags::empty())];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A failure says nothing about the keeper.
        poll(&mut waiting, Some(&now)).is_err() || !waiting[0].revents().contains(PollFlags::HUP)
    }

    /// Starts another keeper in place of one that died, and gives it the channels that this process has.
    pub(crate) fn replace(
        &mut self,
        config: &KeeperConfig,
        command: &[OsString],
        channels: &[BorrowedFd<'_>],
    ) -> Result<(), FrontEndError> {
        if let Some(child) = &mut self.child {
            drop(child.wait());
        }
        remove_socket(config)?;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .map_err(|error| failed(config, &error.into()))?;
        let offer = Offer { session: self.session, serve_on_first: self.serve_on_first };
        // Where a server makes its own further channels, the first is all that is kept.
        let kept = if self.session.resends() { channels } else { &channels[..1] };
        message::send_offer(&ours, offer, kept).map_err(|error| failed(config, &error))?;
        let adopting = KeeperConfig { adopt: true, ..config.clone() };
        let child = start(&adopting, command, theirs.into())?;
        let new = take(config, Some(child))?
            .ok_or_else(|| keeper_error(config, "it ended right after its start; try again"))?;
        // The channels that came along are copies of those in use.
        *self = Self { channels: Vec::new(), taken_over: self.taken_over, ..new };
        Ok(())
    }

    /// Has the keeper unmount and end.
    pub(crate) fn unmount(self, config: &KeeperConfig) -> Result<(), FrontEndError> {
        match self.try_unmount(config) {
            Ok(()) => Ok(()),
            Err((_, error)) => Err(error),
        }
    }

    /// As [`unmount`](Self::unmount); gives itself back when it did not happen.
    pub(crate) fn try_unmount(mut self, config: &KeeperConfig) -> Result<(), (Box<Self>, FrontEndError)> {
        let timeout = Some(UNMOUNT_PATIENCE + ANSWER_TIMEOUT);
        let result = set_receive_timeout(&self.connection, timeout)
            .and_then(|()| message::send_command(&self.connection, Command::Unmount))
            .and_then(|()| message::receive_result(&self.connection));
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.raw_os_error() == Some(libc::EBUSY) => {
                let busy = FrontEndError::MountBusy { mount_point: config.mount_point.clone() };
                return Err((Box::new(self), busy));
            }
            Ok(Err(error)) => {
                let error = FrontEndError::host(format!("unmount {}", config.mount_point.display()), error);
                return Err((Box::new(self), error));
            }
            Err(error) => {
                // The keeper is dead, but we have the channels: the mount can be taken away without it.
                tracing::warn!(%error, "the keeper does not answer; unmounting without it");
                if let Err(error) = mount::unmount(&config.mount_point, UNMOUNT_PATIENCE) {
                    let error =
                        FrontEndError::host(format!("unmount {}", config.mount_point.display()), error);
                    return Err((Box::new(self), error));
                }
            }
        }
        if let Some(child) = &mut self.child {
            reap(child);
        }
        Ok(())
    }
}

/// Waits for a keeper that said it ends.
fn reap(child: &mut Child) {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            Ok(Some(_)) | Err(_) => return,
        }
    }
    tracing::warn!(process_id = child.id(), "the keeper has unmounted but does not end");
}

/// Asks the keeper for the channels; `None` when there is no keeper.
fn take(config: &KeeperConfig, child: Option<Child>) -> Result<Option<Kept>, FrontEndError> {
    let deadline = Instant::now() + PREDECESSOR_TIMEOUT;
    loop {
        let connection = match connect(&config.socket) {
            Ok(connection) => connection,
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ECONNREFUSED)) => {
                return Ok(None);
            }
            Err(error) => return Err(failed(config, &error)),
        };
        match message::receive_greeting(&connection) {
            Ok(Greeting::Offer(offer, channels)) => {
                return Ok(Some(Kept {
                    connection,
                    taken_over: child.is_none(),
                    child,
                    channels,
                    session: offer.session,
                    serve_on_first: offer.serve_on_first,
                }));
            }
            Ok(Greeting::Busy(process_id)) if Instant::now() > deadline => {
                return Err(FrontEndError::ServedElsewhere {
                    mount_point: config.mount_point.clone(),
                    process_id,
                });
            }
            Ok(Greeting::Busy(_)) => std::thread::sleep(Duration::from_millis(20)),
            // It ended between taking the connection and answering; the next try finds nobody.
            Err(error)
                if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset)
                    && Instant::now() < deadline =>
            {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(failed(config, &error)),
        }
    }
}

fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    set_receive_timeout(&socket, Some(ANSWER_TIMEOUT))?;
    Ok(socket)
}

fn set_receive_timeout(socket: &OwnedFd, timeout: Option<Duration>) -> io::Result<()> {
    rustix::net::sockopt::set_socket_timeout(socket, rustix::net::sockopt::Timeout::Recv, timeout)?;
    Ok(())
}

/// Clears away what dead processes left and makes the directories.
fn prepare(config: &KeeperConfig) -> Result<(), FrontEndError> {
    let stale = mount::detach_stale(&config.mount_point).map_err(|error| {
        FrontEndError::host(format!("take away the dead mount at {}", config.mount_point.display()), error)
    })?;
    if stale > 0 {
        tracing::warn!(
            mount_point = %config.mount_point.display(),
            "a mount whose keeper had died was taken away; programs that still have its files open get ENOTCONN"
        );
    }
    let socket_directory = config.socket.parent().unwrap_or_else(|| Path::new("/"));
    for directory in [config.mount_point.as_path(), socket_directory] {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(|error| {
            FrontEndError::host(format!("make the directory {}", directory.display()), error)
        })?;
    }
    remove_socket(config)
}

fn remove_socket(config: &KeeperConfig) -> Result<(), FrontEndError> {
    match std::fs::remove_file(&config.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(FrontEndError::host(format!("remove the old socket {}", config.socket.display()), error))
        }
        _ => Ok(()),
    }
}

/// Starts a keeper and waits until it has mounted.
fn start(config: &KeeperConfig, command: &[OsString], input: Stdio) -> Result<Child, FrontEndError> {
    let Some((program, arguments)) = command.split_first() else {
        return Err(keeper_error(config, "the configuration names no command that starts it"));
    };
    let mut command = std::process::Command::new(program);
    command.args(arguments).args(config.to_arguments());
    command.current_dir("/").stdin(input).stdout(Stdio::piped());
    // SAFETY: between fork and exec only an async-signal-safe system call is made. It marks what we inherited from
    // careless parents, so that the keeper, which outlives everybody, does not hold it open.
    unsafe {
        command.pre_exec(|| {
            // Fails on kernels before 5.11, where nothing is lost but this tidiness.
            libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
            Ok(())
        });
    }
    let mut child = command.spawn().map_err(|error| {
        keeper_error(config, &format!("cannot start {}: {error}", program.to_string_lossy()))
    })?;
    match first_line(&mut child) {
        Ok(line) if line == "ready" => Ok(child),
        other => {
            // Already ending, unless it hangs; it must not come up later.
            drop(child.kill());
            drop(child.wait());
            let reason = match other {
                Ok(line) if line.is_empty() => "it ended without a word; see its standard error".to_owned(),
                Ok(line) => line,
                Err(error) => format!("it did not report within {} s: {error}", START_TIMEOUT.as_secs()),
            };
            Err(keeper_error(config, &reason))
        }
    }
}

fn first_line(child: &mut Child) -> io::Result<String> {
    let Some(output) = child.stdout.take() else { return Ok(String::new()) };
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(|_| io::ErrorKind::InvalidInput)?;
        match poll(&mut [PollFd::from_borrowed_fd(output.as_fd(), PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => break,
        }
    }
    let mut line = String::new();
    // The keeper writes its one line in one piece and of bounded length.
    io::BufReader::new(io::Read::take(output, 4096)).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

fn failed(config: &KeeperConfig, error: &io::Error) -> FrontEndError {
    let socket = config.socket.display();
    keeper_error(
        config,
        &format!("no answer on {socket}: {error}; if it hangs, kill the process that listens there"),
    )
}

fn keeper_error(config: &KeeperConfig, reason: &str) -> FrontEndError {
    FrontEndError::Keeper { mount_point: config.mount_point.clone(), reason: reason.to_owned() }
}
