//! Starting a program.
//!
//! Forking copies the daemon's page tables, and afterwards every page the daemon writes is copied: in an emulated guest
//! that costs more than the program's own start. So the child borrows the daemon's memory until it executes the
//! program, as `posix_spawn` does; that function itself cannot switch users, start sessions on a terminal or say which
//! step failed. The child runs on a stack of its own and uses nothing but system calls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

use super::ProcessLimits;
use super::handle::Handle;

/// Bytes of the child's stack until it executes the program; it uses a few hundred.
const STACK_BYTES: usize = 32 << 10;
/// Commands are the first to go when memory runs out, never the daemon.
const OUT_OF_MEMORY_SCORE: &CStr = c"100";

/// What to start. Everything the child needs is prepared here, because it cannot allocate.
#[derive(Debug)]
pub(super) struct Command {
    /// Paths to try, in order.
    pub(super) candidates: Vec<CString>,
    /// Whether the program sees the path that was found as its name, rather than the one that was asked for.
    pub(super) name_is_candidate: bool,
    pub(super) arguments: Vec<CString>,
    pub(super) environment: Vec<CString>,
    pub(super) directory: CString,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) groups: Vec<u32>,
    pub(super) limits: ProcessLimits,
}

/// The child's standard streams.
#[derive(Debug)]
pub(super) enum Streams<'a> {
    Pipes {
        stdin: BorrowedFd<'a>,
        stdout: BorrowedFd<'a>,
        stderr: BorrowedFd<'a>,
    },
    /// One terminal for all three, which also becomes the session's controlling terminal.
    Terminal(BorrowedFd<'a>),
}

/// The step at which a start failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Clone,
    Session,
    Terminal,
    Streams,
    Limits,
    User,
    Directory,
    Execute,
}

const STEPS: [Step; 8] = [
    Step::Clone,
    Step::Session,
    Step::Terminal,
    Step::Streams,
    Step::Limits,
    Step::User,
    Step::Directory,
    Step::Execute,
];

/// Why a program was not started.
#[derive(Debug)]
pub(super) struct SpawnError {
    pub(super) step: Step,
    pub(super) source: io::Error,
}

/// What the child reads and, on failure, writes: it lives on the parent's stack, which waits.
struct Shared {
    candidates: *const *const c_char,
    arguments: *mut *const c_char,
    name_is_candidate: bool,
    environment: *const *const c_char,
    directory: *const c_char,
    uid: u32,
    gid: u32,
    groups: *const u32,
    groups_count: usize,
    open_files: libc::rlimit,
    streams: [RawFd; 3],
    is_terminal: bool,
    failed_step: usize,
    failed_errno: c_int,
}

/// Starts the program in a session of its own. Blocks until it executes, so it belongs on a helper thread: the
/// program's file may have to be read from a slow disk.
pub(super) fn spawn(command: &Command, streams: &Streams<'_>) -> Result<Handle, SpawnError> {
    let candidates = pointers(&command.candidates);
    let mut arguments = pointers(&command.arguments);
    let environment = pointers(&command.environment);
    let limit = |value: Option<u64>| value.unwrap_or(libc::RLIM_INFINITY);
    let (streams, is_terminal) = match streams {
        Streams::Pipes { stdin, stdout, stderr } => ([stdin, stdout, stderr].map(AsRawFd::as_raw_fd), false),
        Streams::Terminal(terminal) => ([terminal.as_raw_fd(); 3], true),
    };
    let mut shared = Shared {
        candidates: candidates.as_ptr(),
        arguments: arguments.as_mut_ptr(),
        name_is_candidate: command.name_is_candidate,
        environment: environment.as_ptr(),
        directory: command.directory.as_ptr(),
        uid: command.uid,
        gid: command.gid,
        groups: command.groups.as_ptr(),
        groups_count: command.groups.len(),
        open_files: libc::rlimit {
            rlim_cur: limit(command.limits.open_files.current),
            rlim_max: limit(command.limits.open_files.maximum),
        },
        streams,
        is_terminal,
        failed_step: 0,
        failed_errno: 0,
    };
    let mut stack: Vec<u128> = Vec::with_capacity(STACK_BYTES / size_of::<u128>());
    let mut pidfd: RawFd = -1;
    // SAFETY: `child` runs on its own stack, whose top is 16-byte aligned because its elements are, and gets a pointer
    // to `shared`. CLONE_VFORK stops this thread until the child has executed a program or ended, so `shared`, what it
    // points to and `stack` outlive the child's use of them and are never touched by both at once. Signal handlers
    // are not shared (no CLONE_SIGHAND). With CLONE_PIDFD the fifth argument receives the descriptor.
    let pid = unsafe {
        libc::clone(
            child,
            stack.as_mut_ptr().add(STACK_BYTES / size_of::<u128>()).cast::<c_void>(),
            libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD | libc::SIGCHLD,
            (&raw mut shared).cast::<c_void>(),
            &raw mut pidfd,
        )
    };
    if pid < 0 {
        return Err(SpawnError { step: Step::Clone, source: io::Error::last_os_error() });
    }
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    let handle = Handle::new(pid, unsafe { OwnedFd::from_raw_fd(pidfd) });
    // SAFETY: the child wrote these through a raw pointer; a volatile read keeps the compiler from assuming that
    // nobody did.
    let (step, errno) = unsafe {
        (
            ptr::read_volatile(&raw const shared.failed_step),
            ptr::read_volatile(&raw const shared.failed_errno),
        )
    };
    if errno != 0 {
        // The child has ended or is just about to.
        let _ = handle.wait_blocking();
        let step = STEPS.get(step).copied().unwrap_or(Step::Execute);
        return Err(SpawnError { step, source: io::Error::from_raw_os_error(errno) });
    }
    Ok(handle)
}

/// A null-terminated array of pointers to the strings.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain(std::iter::once(ptr::null())).collect()
}

/// The child. It shares the memory of a stopped thread: system calls only, no allocation, no panic, no return of
/// ownership.
extern "C" fn child(argument: *mut c_void) -> c_int {
    let shared = argument.cast::<Shared>();
    // SAFETY: the parent passed a pointer to a Shared that lives until this process has gone, and does not use it
    // meanwhile.
    let shared = unsafe { &mut *shared };
    let step = become_program(shared);
    // SAFETY: the errno of the thread whose thread-local storage we borrow.
    let errno = unsafe { *libc::__errno_location() };
    shared.failed_step = STEPS.iter().position(|candidate| *candidate == step).unwrap_or(0);
    shared.failed_errno = if errno == 0 { libc::EIO } else { errno };
    // SAFETY: ends this process without running anything of the daemon's.
    unsafe { libc::_exit(127) }
}

/// Returns only when a step failed, with its errno left in place.
fn become_program(shared: &mut Shared) -> Step {
    let no_signals = [0_u64; 1];
    // SAFETY: system calls with numbers, descriptors of this process, and pointers into `shared` and the array above,
    // all valid as the parent prepared them. The raw calls are used where the C library's wrapper would also act on
    // the parent's other threads (user and group ids) or keep state in memory that is not ours.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            no_signals.as_ptr(),
            0_usize,
            size_of_val(&no_signals),
        );
        // The daemon ignores SIGPIPE, and an ignored signal would stay ignored.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        if libc::setsid() < 0 {
            return Step::Session;
        }
        if shared.is_terminal && libc::ioctl(shared.streams[0], libc::TIOCSCTTY, 0) < 0 {
            return Step::Terminal;
        }
        for (target, source) in (0..).zip(shared.streams) {
            // The daemon's own standard streams are open, so a source is never its target and dup2 clears
            // close-on-exec.
            if libc::dup2(source, target) < 0 {
                return Step::Streams;
            }
        }
        let score = libc::open(c"/proc/self/oom_score_adj".as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        if score >= 0 {
            // Not possible everywhere, and no reason to fail.
            libc::write(score, OUT_OF_MEMORY_SCORE.as_ptr().cast(), OUT_OF_MEMORY_SCORE.count_bytes());
            libc::close(score);
        }
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raw const shared.open_files) < 0 {
            return Step::Limits;
        }
        if libc::syscall(libc::SYS_setgroups, shared.groups_count, shared.groups) < 0
            || libc::syscall(libc::SYS_setresgid, shared.gid, shared.gid, shared.gid) < 0
            || libc::syscall(libc::SYS_setresuid, shared.uid, shared.uid, shared.uid) < 0
        {
            return Step::User;
        }
        // As the user, so that nobody works in a directory that is closed to them.
        if libc::chdir(shared.directory) < 0 {
            return Step::Directory;
        }
    }
    execute(shared);
    Step::Execute
}

/// Tries the candidates. A name that is not there is no failure as long as another one is; a program that may not be
/// executed is the better reason to give than one that does not exist.
fn execute(shared: &mut Shared) {
    let mut reason = libc::ENOENT;
    let mut next = shared.candidates;
    // SAFETY: `candidates`, `arguments` and `environment` are null-terminated arrays of C strings, `arguments` has at
    // least one entry and may be written; all outlive this process' use of them.
    unsafe {
        while !(*next).is_null() {
            if shared.name_is_candidate {
                *shared.arguments = *next;
            }
            libc::execve(*next, shared.arguments, shared.environment);
            match *libc::__errno_location() {
                libc::ENOENT | libc::ENOTDIR => {}
                libc::EACCES => reason = libc::EACCES,
                other => {
                    reason = other;
                    break;
                }
            }
            next = next.add(1);
        }
        *libc::__errno_location() = reason;
    }
}
