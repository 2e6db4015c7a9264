//! The process that holds the mount while the daemon behind it comes and goes.
//!
//! A FUSE connection lives as long as a descriptor of it is open. If the serving process had the only one, its death would
//! end every open file with ENOTCONN and every mapping of guest memory with SIGBUS. So a tiny process, the keeper,
//! opens `/dev/fuse`, mounts, answers the kernel's INIT, makes one further descriptor (channel) for each serving thread,
//! and then does nothing but hand them out over a unix socket. It reads no request after INIT, so that there is no state
//! in it to lose, and nobody who takes the channels ever has to expect INIT.
//!
//! A channel carries its own list of requests that were read and not answered. They fail with ECONNABORTED when the last
//! copy of that descriptor is closed, hence the keeper keeps a copy of each; the next server asks the kernel to send them
//! again. A kernel that cannot do that (before Linux 6.9) would let them wait for ever, so there the keeper keeps
//! the first descriptor only and makes channels anew for each server: what was in hand when a server died fails, and all
//! else waits.
//!
//! A keeper that dies takes nothing with it while a server lives, for the server has the descriptors. The server then
//! starts another one and gives them to it over its standard input (see [`KeeperConfig::adopt`]).
//!
//! The keeper serves one server at a time; a second one is told the first one's process id. It leaves its parent's session
//! and process group, so that a terminal's signals do not reach it. Under systemd the unit needs `KillMode=process`.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::mount::{self, Session};

pub(super) mod client;
mod message;

use message::{Command, Offer};

/// Most channels a keeper makes; one message carries them all.
pub(crate) const CHANNELS_MAX: u16 = 64;

/// How long an unmount waits for files that are being closed.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(3);

/// What a keeper has to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeeperConfig {
    /// Where to mount; an existing directory.
    pub mount_point: PathBuf,
    /// Socket on which descriptors are handed out. Its directory must not be open to other users.
    pub socket: PathBuf,
    /// Channels, which is the number of threads a server answers with; 1 to 64.
    pub channels: u16,
    /// Take the descriptors of an existing mount from standard input, a socket, instead of mounting.
    pub adopt: bool,
    /// Do not have the kernel send requests again, as if it were older than Linux 6.9. For tests of that case.
    pub never_resend: bool,
}

const ADOPT: &str = "adopt";
const NEVER_RESEND: &str = "never-resend";

/// Why a keeper did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// The command line is not one that [`KeeperConfig::to_arguments`] made.
    #[error(
        "usage: fuse-keeper MOUNT_POINT SOCKET CHANNELS (1 to {CHANNELS_MAX}); it is started by the storage daemon"
    )]
    Usage,
    /// A system call failed.
    #[error("cannot {action}: {source}")]
    Host {
        /// What was tried, in words that follow "cannot".
        action: String,
        /// Why it failed.
        source: io::Error,
    },
}

impl KeeperConfig {
    /// The arguments that follow the role's name on the keeper's command line.
    pub fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = vec![
            self.mount_point.clone().into(),
            self.socket.clone().into(),
            self.channels.to_string().into(),
        ];
        arguments.extend(self.adopt.then(|| ADOPT.into()));
        arguments.extend(self.never_resend.then(|| NEVER_RESEND.into()));
        arguments
    }

    /// The reverse of [`to_arguments`](Self::to_arguments).
    ///
    /// # Errors
    /// [`KeeperError::Usage`] for anything else.
    pub fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, KeeperError> {
        let arguments: Vec<_> = arguments.into_iter().collect();
        let [mount_point, socket, channels, options @ ..] = arguments.as_slice() else {
            return Err(KeeperError::Usage);
        };
        let channels = channels.to_str().and_then(|text| text.parse().ok()).ok_or(KeeperError::Usage)?;
        if !(1..=CHANNELS_MAX).contains(&channels) {
            return Err(KeeperError::Usage);
        }
        if options.iter().any(|option| option != ADOPT && option != NEVER_RESEND) {
            return Err(KeeperError::Usage);
        }
        Ok(Self {
            mount_point: mount_point.into(),
            socket: socket.into(),
            channels,
            adopt: options.iter().any(|option| option == ADOPT),
            never_resend: options.iter().any(|option| option == NEVER_RESEND),
        })
    }
}

/// Runs a keeper until it is told to unmount; the role's whole `main`.
///
/// Prints `ready` on standard output when the mount is there and the socket is open, or what went wrong, and then lets
/// go of all standard streams.
///
/// # Errors
/// The mount or the socket could not be made; also printed.
pub fn run(config: &KeeperConfig) -> Result<(), KeeperError> {
    // Fails only when this process leads its group already, which is as good.
    let _ = rustix::process::setsid();
    match Keeper::start(config) {
        Ok(keeper) => {
            report("ready");
            let_go_of_standard_streams();
            keeper.keep()
        }
        Err(error) => {
            report(&error.to_string());
            Err(error)
        }
    }
}

/// One line for whoever started this process; it may be gone.
fn report(line: &str) {
    let mut output = io::stdout().lock();
    drop(writeln!(output, "{line}").and_then(|()| output.flush()));
}

/// Whoever waits for the end of our parent's output must not wait for us.
fn let_go_of_standard_streams() {
    let Ok(null) = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) else {
        return;
    };
    let _ = rustix::stdio::dup2_stdin(&null);
    let _ = rustix::stdio::dup2_stdout(&null);
    let _ = rustix::stdio::dup2_stderr(&null);
}

struct Keeper {
    mount_point: PathBuf,
    socket_path: PathBuf,
    listener: OwnedFd,
    session: Session,
    /// The descriptor that was mounted.
    first: OwnedFd,
    /// The further ones, where the kernel can send requests again.
    kept: Vec<OwnedFd>,
    channels: u16,
}

impl Keeper {
    fn start(config: &KeeperConfig) -> Result<Self, KeeperError> {
        let host = |action: &str, path: &Path| {
            let action = format!("{action} {}", path.display());
            move |source: io::Error| KeeperError::Host { action, source }
        };
        // Nobody else may take descriptors, whatever the directory's mode.
        rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
        survive_memory_shortage();
        let listener = listen(&config.socket).map_err(host("listen on", &config.socket))?;
        let (first, session, kept) = if config.adopt {
            adopt().map_err(host("take over the mount", &config.mount_point))?
        } else {
            let (first, session) = mount::mount(&config.mount_point, config.never_resend)
                .map_err(host("mount", &config.mount_point))?;
            (first, session, Vec::new())
        };
        let mut keeper = Self {
            mount_point: config.mount_point.clone(),
            socket_path: config.socket.clone(),
            listener,
            session,
            first,
            kept,
            channels: config.channels,
        };
        if session.resends() && !config.adopt {
            keeper.kept = keeper.make_channels().map_err(host("add a channel to", &config.mount_point))?;
        }
        Ok(keeper)
    }

    /// All channels but the first.
    fn make_channels(&self) -> io::Result<Vec<OwnedFd>> {
        (1..self.channels).map(|_| mount::add_channel(self.first.as_fd())).collect()
    }

    fn keep(self) -> Result<(), KeeperError> {
        let mut server: Option<(OwnedFd, i32)> = None;
        loop {
            let (knock, word) = wait(&self.listener, server.as_ref().map(|(connection, _)| connection));
            if word && let Some((connection, _)) = &server {
                match message::receive_command(connection) {
                    Ok(Some(Command::Unmount)) => {
                        let result = mount::unmount(&self.mount_point, UNMOUNT_PATIENCE);
                        let ended = result.is_ok();
                        if ended {
                            drop(std::fs::remove_file(&self.socket_path));
                        }
                        // The server may be gone; then its wish still counts.
                        drop(message::send_result(connection, &result));
                        if ended {
                            return Ok(());
                        }
                    }
                    // Closed, or not speaking our language: as good as dead.
                    Ok(None) | Err(_) => server = None,
                }
            }
            if knock && let Some(newcomer) = accept(&self.listener) {
                // A server that ended at the same moment is noticed first, by the order above.
                match &server {
                    Some((_, process_id)) => drop(message::send_busy(&newcomer, *process_id)),
                    None => server = self.offer(newcomer),
                }
            }
        }
    }

    fn offer(&self, connection: OwnedFd) -> Option<(OwnedFd, i32)> {
        let process_id = rustix::net::sockopt::socket_peercred(&connection).ok()?.pid.as_raw_nonzero().get();
        let fresh;
        let others = if self.session.resends() {
            &self.kept
        } else {
            fresh = self.make_channels().ok()?;
            &fresh
        };
        let channels: Vec<_> =
            std::iter::once(&self.first).chain(others).map(|channel| channel.as_fd()).collect();
        // Without resending, the first descriptor is for notifications only: it is never closed.
        let offer =
            Offer { session: self.session, serve_on_first: self.session.resends() || self.channels == 1 };
        message::send_offer(&connection, offer, &channels).ok()?;
        Some((connection, process_id))
    }
}

/// The descriptors of a mount whose keeper died, from the server that has them.
fn adopt() -> io::Result<(OwnedFd, Session, Vec<OwnedFd>)> {
    let connection = rustix::io::dup(rustix::stdio::stdin())?;
    match message::receive_greeting(&connection)? {
        message::Greeting::Offer(offer, mut channels) if !channels.is_empty() => {
            let first = channels.remove(0);
            Ok((first, offer.session, channels))
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The mount of every sandbox hangs on this process, which needs almost no memory.
fn survive_memory_shortage() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", "-1000") {
        tracing::debug!(%error, "the keeper is not protected from the out-of-memory killer");
    }
}

fn listen(path: &Path) -> io::Result<OwnedFd> {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, 8)?;
    Ok(socket)
}

fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    let connection = rustix::net::accept_with(listener, SocketFlags::CLOEXEC).ok()?;
    // A peer that does not read must not stop us.
    let timeout = Some(Duration::from_secs(2));
    rustix::net::sockopt::set_socket_timeout(&connection, rustix::net::sockopt::Timeout::Send, timeout)
        .ok()?;
    Some(connection)
}

/// Waits for a newcomer and for a word (or the end) of the present server.
fn wait(listener: &OwnedFd, server: Option<&OwnedFd>) -> (bool, bool) {
    let mut waiting = vec![PollFd::new(listener, PollFlags::IN)];
    waiting.extend(server.map(|connection| PollFd::new(connection, PollFlags::IN)));
    loop {
        match poll(&mut waiting, None) {
            Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
            Ok(_) => {
                let ready = |entry: &PollFd<'_>| !entry.revents().is_empty();
                return (ready(&waiting[0]), waiting.get(1).is_some_and(ready));
            }
        }
    }
}
