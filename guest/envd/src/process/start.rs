//! The call `Start`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use protocol::connect::{Code, RpcError};
use protocol::envd::{ProcessConfig, PtySize, StartRequest};
use rustix::fs::{Gid, Uid};
use rustix::pipe::PipeFlags;
use tokio::io::Interest;

use super::descriptor::watch;
use super::environment;
use super::fanout::Fanout;
use super::handle::Handle;
use super::pump::Source;
use super::spawn::{Command, SpawnError, Step, Streams, spawn};
use super::subscription::Subscription;
use super::supervise::{Started, supervise};
use super::table::{Input, Process};
use super::terminal::Terminal;
use crate::accounts::User;
use crate::daemon::Daemon;
use crate::request::{self, Request};
use crate::{paths, rpc};

const TERMINAL_SIZE_DEFAULT: PtySize = PtySize { cols: 80, rows: 24 };

/// Starts a process and answers with the stream of its events.
pub(super) async fn start(daemon: Arc<Daemon>, request: Request) -> Result<Subscription, RpcError> {
    let user = request::basic_user(request.headers());
    let deadline = request::deadline(request.headers());
    let keepalive = request::keepalive(request.headers());
    let message: StartRequest = rpc::streaming_message(request).await?;
    let user = daemon.user(user.as_deref())?;
    // A task of its own: a client that goes away now must not leave a process that nobody reaps.
    let started = tokio::spawn(launch(daemon, message, user, keepalive, deadline)).await;
    started.unwrap_or_else(|error| {
        Err(RpcError::new(Code::Internal, format!("starting the process failed: {error}")))
    })
}

async fn launch(
    daemon: Arc<Daemon>,
    message: StartRequest,
    user: User,
    keepalive: Duration,
    deadline: Option<Duration>,
) -> Result<Subscription, RpcError> {
    let StartRequest { process: Some(config), pty, tag, stdin } = message else {
        return Err(RpcError::new(Code::InvalidArgument, "no process is given"));
    };
    let directory = working_directory(&daemon, &config, &user)?;
    let command = command(&daemon, &config, &user, &directory, pty.is_some())?;
    let failed =
        |error: io::Error| RpcError::new(Code::Internal, format!("cannot prepare the process: {error}"));
    let (handle, ours) = match pty {
        Some(pty) => {
            let size =
                pty.size.filter(|size| size.cols > 0 && size.rows > 0).unwrap_or(TERMINAL_SIZE_DEFAULT);
            let terminal = Terminal::open(size, user.uid).map_err(failed)?;
            spawn_on_terminal(command, terminal).await
        }
        None => {
            let with_input = stdin.unwrap_or(true);
            let null = daemon.null.try_clone().map_err(failed)?;
            let pipes = Pipes::open(with_input, null, &user).map_err(failed)?;
            spawn_with_pipes(command, pipes).await
        }
    }
    .map_err(|error| explain(error, &config, &directory, &user))?;
    // The process runs: from here on nothing may fail without ending it.
    let (input, sources) = match ours.register() {
        Ok(registered) => registered,
        Err(error) => {
            let _ = handle.signal_group(libc::SIGKILL);
            handle.wait().await;
            return Err(failed(error));
        }
    };
    let fanout = Arc::new(Fanout::default());
    let pid = handle.pid();
    let process = Arc::new(Process { handle, tag, config, fanout: Arc::clone(&fanout), input });
    let starter = fanout.subscribe(pid);
    daemon.processes.add(Arc::clone(&process));
    let started = Started { process, sources, starter: Arc::clone(&starter), deadline };
    tokio::spawn(supervise(daemon, started));
    Ok(Subscription::new(starter, fanout, keepalive, None))
}

/// The directory a command runs in, and whether the client chose it.
struct Directory {
    path: PathBuf,
    asked: String,
}

fn working_directory(daemon: &Daemon, config: &ProcessConfig, user: &User) -> Result<Directory, RpcError> {
    let asked =
        config.cwd.clone().filter(|cwd| !cwd.is_empty()).or_else(|| daemon.control().default_workdir.clone());
    if let Some(asked) = asked {
        let path = paths::resolve(&asked, &user.home, &user.home)?;
        return Ok(Directory { path, asked });
    }
    // System users often have a home that was never made.
    let path = if user.home.is_dir() { user.home.clone() } else { PathBuf::from("/") };
    Ok(Directory { asked: path.to_string_lossy().into_owned(), path })
}

fn command(
    daemon: &Daemon,
    config: &ProcessConfig,
    user: &User,
    directory: &Directory,
    on_terminal: bool,
) -> Result<Command, RpcError> {
    let variables = environment::variables(daemon, user, &config.envs, on_terminal);
    let path = variables.get("PATH").map_or("", String::as_str);
    let (candidates, name_is_candidate) = environment::candidates(&config.cmd, path)?;
    let arguments: Result<Vec<CString>, RpcError> = std::iter::once(&config.cmd)
        .chain(&config.args)
        .map(|argument| environment::c_string(argument.clone(), "an argument"))
        .collect();
    Ok(Command {
        candidates,
        name_is_candidate,
        arguments: arguments?,
        environment: environment::to_c_strings(&variables)?,
        directory: path_to_c_string(&directory.path)?,
        uid: user.uid,
        gid: user.gid,
        groups: user.groups.clone(),
        limits: daemon.original_limits,
    })
}

fn path_to_c_string(path: &Path) -> Result<CString, RpcError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| RpcError::new(Code::InvalidArgument, "the working directory has a NUL byte"))
}

/// The daemon's ends of a process' streams, not yet known to the event loop.
#[derive(Debug)]
enum Ours {
    Pipes { stdin: Option<OwnedFd>, stdout: OwnedFd, stderr: OwnedFd },
    Terminal(OwnedFd),
}

impl Ours {
    fn register(self) -> io::Result<(Input, Vec<Source>)> {
        match self {
            Self::Pipes { stdin, stdout, stderr } => {
                let input = match stdin {
                    None => Input::Disabled,
                    Some(pipe) => {
                        rustix::io::ioctl_fionbio(&pipe, true)?;
                        let pipe = watch(pipe, Interest::WRITABLE)?;
                        Input::Pipe(tokio::sync::Mutex::new(Some(pipe)))
                    }
                };
                Ok((input, vec![Source::pipe(stdout, "stdout")?, Source::pipe(stderr, "stderr")?]))
            }
            Self::Terminal(master) => {
                let source = Source::terminal(master.try_clone()?)?;
                let master = watch(master, Interest::WRITABLE)?;
                Ok((Input::Terminal { master, order: tokio::sync::Mutex::default() }, vec![source]))
            }
        }
    }
}

/// The process' ends of its pipes, and ours.
struct Pipes {
    stdin: OwnedFd,
    stdout: OwnedFd,
    stderr: OwnedFd,
    ours: Ours,
}

impl Pipes {
    fn open(with_input: bool, null: OwnedFd, user: &User) -> io::Result<Self> {
        let (stdin, our_stdin) = if with_input {
            let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
            (reader, Some(writer))
        } else {
            (null, None)
        };
        let (our_stdout, stdout) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let (our_stderr, stderr) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        // Programs that open /dev/stdout or /dev/stderr by name need the pipe to be theirs.
        let owner = (Some(Uid::from_raw(user.uid)), Some(Gid::from_raw(user.gid)));
        for pipe in [Some(&stdout), Some(&stderr), with_input.then_some(&stdin)].into_iter().flatten() {
            rustix::fs::fchown(pipe, owner.0, owner.1)?;
        }
        let ours = Ours::Pipes { stdin: our_stdin, stdout: our_stdout, stderr: our_stderr };
        Ok(Self { stdin, stdout, stderr, ours })
    }
}

async fn spawn_with_pipes(command: Command, pipes: Pipes) -> Result<(Handle, Ours), SpawnError> {
    on_helper_thread(move || {
        let Pipes { stdin, stdout, stderr, ours } = pipes;
        let streams = Streams::Pipes { stdin: stdin.as_fd(), stdout: stdout.as_fd(), stderr: stderr.as_fd() };
        Ok((spawn(&command, &streams)?, ours))
    })
    .await
}

async fn spawn_on_terminal(command: Command, terminal: Terminal) -> Result<(Handle, Ours), SpawnError> {
    on_helper_thread(move || {
        let Terminal { master, program_side } = terminal;
        let handle = spawn(&command, &Streams::Terminal(program_side.as_fd()))?;
        Ok((handle, Ours::Terminal(master)))
    })
    .await
}

async fn on_helper_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SpawnError> + Send + 'static,
) -> Result<T, SpawnError> {
    let failed = |error| SpawnError { step: Step::Clone, source: io::Error::other(error) };
    tokio::task::spawn_blocking(work).await.map_err(failed)?
}

fn explain(error: SpawnError, config: &ProcessConfig, directory: &Directory, user: &User) -> RpcError {
    let SpawnError { step, source } = error;
    let asked = &directory.asked;
    match (step, source.raw_os_error()) {
        (Step::Directory, Some(libc::ENOENT)) => {
            RpcError::new(Code::InvalidArgument, format!("cwd '{asked}' does not exist"))
        }
        (Step::Directory, Some(libc::ENOTDIR)) => {
            RpcError::new(Code::InvalidArgument, format!("cwd '{asked}' is not a directory"))
        }
        (Step::Directory, _) => {
            let message = format!("cwd '{asked}' cannot be entered by user '{}': {source}", user.name);
            RpcError::new(Code::PermissionDenied, message)
        }
        (Step::Execute, Some(libc::ENOENT)) => {
            RpcError::new(Code::InvalidArgument, format!("command '{}' not found", config.cmd))
        }
        (Step::Execute, Some(libc::E2BIG)) => {
            let message =
                "arguments and environment are longer than the kernel takes; use standard input or a file";
            RpcError::new(Code::InvalidArgument, message)
        }
        (Step::Execute, _) => RpcError::new(
            Code::InvalidArgument,
            format!("command '{}' cannot be executed: {source}", config.cmd),
        ),
        (Step::Clone, Some(libc::EAGAIN | libc::ENOMEM)) => {
            RpcError::new(Code::ResourceExhausted, format!("no more processes can be started: {source}"))
        }
        _ => RpcError::new(Code::Internal, format!("starting '{}' failed at {step:?}: {source}", config.cmd)),
    }
}
