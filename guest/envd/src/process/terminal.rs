//! Pseudo-terminals.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use protocol::envd::PtySize;
use rustix::fs::{Gid, Mode, Uid};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

/// Group `tty`, the same number everywhere.
const TTY_GROUP: u32 = 5;

/// The two sides of a terminal. The master does not block; the program's side does.
#[derive(Debug)]
pub(super) struct Terminal {
    pub(super) master: OwnedFd,
    pub(super) program_side: OwnedFd,
}

impl Terminal {
    /// Opens a terminal that belongs to `uid`.
    pub(super) fn open(size: PtySize, uid: u32) -> io::Result<Self> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags)?;
        rustix::pty::grantpt(&master)?;
        rustix::pty::unlockpt(&master)?;
        // By descriptor, so that no path (and no mount of the image's) is involved.
        let program_side = rustix::pty::ioctl_tiocgptpeer(&master, flags)?;
        rustix::fs::fchown(&program_side, Some(Uid::from_raw(uid)), Some(Gid::from_raw(TTY_GROUP)))?;
        rustix::fs::fchmod(&program_side, Mode::RUSR | Mode::WUSR | Mode::WGRP)?;
        rustix::io::ioctl_fionbio(&master, true)?;
        resize(&master, size)?;
        Ok(Self { master, program_side })
    }
}

/// Sets the size; the kernel tells the programs on the terminal.
pub(super) fn resize(master: impl AsFd, size: PtySize) -> io::Result<()> {
    let cells = |count: u32| u16::try_from(count).unwrap_or(u16::MAX);
    let size = Winsize { ws_row: cells(size.rows), ws_col: cells(size.cols), ws_xpixel: 0, ws_ypixel: 0 };
    Ok(rustix::termios::tcsetwinsize(master, size)?)
}
