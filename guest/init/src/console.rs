//! Progress lines on the console.
//!
//! Every line starts with `aenv-init: `, so that the host can show the last ones when a guest does not come up.

use std::fmt::Display;
use std::io::Write as _;
use std::os::fd::AsRawFd as _;

use rustix::time::{ClockId, clock_gettime};

/// Makes `/dev/console` the standard streams. The kernel does so itself, but only when the initramfs has that node.
pub(crate) fn attach() {
    let Ok(console) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/console") else { return };
    // Failing leaves a machine without a console, which still works.
    let _ = rustix::stdio::dup2_stdin(&console);
    let _ = rustix::stdio::dup2_stdout(&console);
    let _ = rustix::stdio::dup2_stderr(&console);
}

/// Prints one progress line with the time since the kernel started.
pub(crate) fn log(message: impl Display) {
    let uptime = clock_gettime(ClockId::Boottime);
    write_line(&format!("aenv-init: {message} [{}.{:03} s]\n", uptime.tv_sec, uptime.tv_nsec / 1_000_000));
}

/// Prints why the machine cannot go on, and waits until the console has taken the line.
pub(crate) fn fatal(reason: &impl Display) {
    write_line(&format!("aenv-init: fatal: {reason}\n"));
    drain();
}

/// Waits until what was written has left the serial port: a power-off would cut it.
pub(crate) fn drain() {
    // SAFETY: tcdrain takes a descriptor number and touches no memory of ours.
    unsafe { libc::tcdrain(std::io::stderr().as_raw_fd()) };
}

/// One write per line keeps lines whole beside kernel messages. A machine without a console works all the same.
fn write_line(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}
