//! Mounting: the descriptor, the handshake with the kernel, further channels, and what a dead predecessor left.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::abi::{self, Encoder, Fields, Header, OUT_HEADER_BYTES, init, opcode};
use super::server::REQUEST_BYTES_MAX;
use super::worker::encode_head;

/// Type by which our mounts are known in the mount table.
pub(crate) const FILE_SYSTEM_TYPE: &str = "fuse.agentenv";

/// What we ask of the kernel, as far as it offers it.
const WANTED: u64 = init::ASYNC_READ
    | init::BIG_WRITES
    | init::ASYNC_DIO
    | init::PARALLEL_DIROPS
    | init::MAX_PAGES
    | init::EXPLICIT_INVAL_DATA
    | init::INIT_EXT
    | init::HAS_RESEND;

/// What the kernel and we agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Session {
    /// Minor number of the protocol the kernel speaks.
    pub(crate) kernel_minor: u32,
    /// Flags that both sides have.
    pub(crate) flags: u64,
}

impl Session {
    /// The kernel sends unanswered requests again when it is asked to.
    pub(crate) fn resends(self) -> bool {
        self.flags & init::HAS_RESEND != 0
    }
}

/// Mounts at `mount_point`, which must be an existing directory, and answers the kernel's INIT. With `never_resend`, as if
/// the kernel could not send requests again.
pub(crate) fn mount(mount_point: &Path, never_resend: bool) -> io::Result<(OwnedFd, Session)> {
    let descriptor = open_device()?;
    let options = format!(
        "fd={},rootmode=40700,user_id={},group_id={},default_permissions,allow_other,max_read={REQUEST_BYTES_MAX}",
        descriptor.as_raw_fd(),
        rustix::process::geteuid().as_raw(),
        rustix::process::getegid().as_raw(),
    );
    let options = std::ffi::CString::new(options)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    rustix::mount::mount("agentenv", mount_point, FILE_SYSTEM_TYPE, flags, options.as_c_str())?;
    let wanted = if never_resend { WANTED & !init::HAS_RESEND } else { WANTED };
    match shake_hands(descriptor.as_fd(), wanted) {
        Ok(session) => Ok((descriptor, session)),
        Err(error) => {
            // The mount is useless; nobody can have opened anything on it.
            if let Err(unmount_error) = rustix::mount::unmount(mount_point, UnmountFlags::DETACH) {
                tracing::warn!(%unmount_error, "a mount without a handshake stays behind");
            }
            Err(error)
        }
    }
}

fn open_device() -> Result<OwnedFd, Errno> {
    rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Answers INIT, the first request on every connection. The kernel sends it when it mounts.
fn shake_hands(descriptor: BorrowedFd<'_>, wanted: u64) -> io::Result<Session> {
    let mut message = vec![0; 8192];
    let length = loop {
        match rustix::io::read(descriptor, &mut message) {
            Err(Errno::INTR | Errno::NOENT) => {}
            other => break other?,
        }
    };
    let malformed =
        |_| io::Error::new(io::ErrorKind::InvalidData, "the kernel's FUSE handshake is malformed");
    let (header, body) = Header::parse(&message[..length]).map_err(malformed)?;
    let (reply, session) = negotiate(header, body, wanted).map_err(malformed)??;
    let mut head = [0; OUT_HEADER_BYTES];
    encode_head(&mut head, reply.len(), 0, header.unique);
    rustix::io::writev(descriptor, &[io::IoSlice::new(&head), io::IoSlice::new(&reply)])?;
    Ok(session)
}

/// `struct fuse_init_in`: major, minor, max_readahead, flags, flags2 u32, ...;
/// `struct fuse_init_out`: major, minor, max_readahead, flags u32, max_background, congestion_threshold u16, max_write,
/// time_gran u32, max_pages, map_alignment u16, flags2 u32, 7 × u32 unused.
fn negotiate(
    header: Header,
    body: &[u8],
    wanted: u64,
) -> Result<io::Result<([u8; 64], Session)>, abi::Malformed> {
    let mut fields = Fields(body);
    let major = fields.u32()?;
    let kernel_minor = fields.u32()?;
    let max_readahead_bytes = fields.u32()?;
    let mut offered = u64::from(fields.u32()?);
    if offered & init::INIT_EXT != 0 {
        offered |= u64::from(fields.u32()?) << 32;
    }
    if header.opcode != opcode::INIT || major != abi::MAJOR || kernel_minor < abi::MINOR_LOWEST {
        return Ok(Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("the kernel speaks FUSE {major}.{kernel_minor}; Linux 5.4 or newer is needed"),
        )));
    }
    let flags = offered & wanted;
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or(0);
    let mut reply = [0; 64];
    // Requests of 1 MiB, as pages.
    let max_pages: u16 = 256;
    Encoder::new(&mut reply)
        .u32(abi::MAJOR)
        .u32(abi::MINOR.min(kernel_minor))
        .u32(max_readahead_bytes)
        .u32(half(flags))
        .u16(256)
        .u16(192)
        .u32(REQUEST_BYTES_MAX)
        .u32(1)
        .u16(max_pages)
        .u16(0)
        .u32(half(flags >> 32));
    Ok(Ok((reply, Session { kernel_minor, flags })))
}

/// Another descriptor for the same connection, with its own list of unanswered requests: a thread that has its own does
/// not contend with the others.
pub(crate) fn add_channel(descriptor: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // `FUSE_DEV_IOC_CLONE`, _IOR(229, 0, uint32_t): takes a pointer to the descriptor that is mounted.
    const CLONE: rustix::ioctl::Opcode = rustix::ioctl::opcode::read::<u32>(229, 0);
    let channel = open_device()?;
    // SAFETY: the ioctl of /dev/fuse reads one u32 through the pointer and changes nothing else in this process.
    unsafe {
        let clone = rustix::ioctl::Setter::<CLONE, u32>::new(descriptor.as_raw_fd().cast_unsigned());
        rustix::ioctl::ioctl(&channel, clone)?;
    }
    Ok(channel)
}

/// Whether one of our mounts is on `mount_point`. Asks the mount table, because touching a mount that nobody serves
/// would block.
pub(crate) fn is_mounted(mount_point: &Path) -> io::Result<bool> {
    let table = std::fs::read_to_string("/proc/self/mountinfo")?;
    let wanted = mount_point.to_string_lossy();
    Ok(table.lines().any(|line| {
        // "36 35 98:0 /root /mount/point options ... - type source options"; blanks in paths are octal.
        let mut halves = line.splitn(2, " - ");
        let path = halves.next().and_then(|left| left.split(' ').nth(4)).unwrap_or_default();
        let kind = halves.next().and_then(|right| right.split(' ').next()).unwrap_or_default();
        kind == FILE_SYSTEM_TYPE && unescape(path) == wanted
    }))
}

/// `\040` and the like in the mount table.
fn unescape(path: &str) -> String {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        let code = match tail.get(..3) {
            Some(digits) if *byte == b'\\' => {
                std::str::from_utf8(digits).ok().and_then(|digits| u8::from_str_radix(digits, 8).ok())
            }
            _ => None,
        };
        bytes.push(code.unwrap_or(*byte));
        rest = if code.is_some() { &tail[3..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Takes away mounts of ours that nobody serves any more. Files still open on them go on answering ENOTCONN.
pub(crate) fn detach_stale(mount_point: &Path) -> io::Result<u32> {
    let mut detached = 0;
    while detached < 64 && is_mounted(mount_point)? {
        rustix::mount::unmount(mount_point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)?;
        detached += 1;
    }
    Ok(detached)
}

/// Unmounts, trying for up to `patience` while files are open: a process that was just killed closes them late.
pub(crate) fn unmount(mount_point: &Path, patience: Duration) -> io::Result<()> {
    let deadline = Instant::now() + patience;
    loop {
        match rustix::mount::unmount(mount_point, UnmountFlags::NOFOLLOW) {
            Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
            // Not mounted: somebody did it for us.
            Ok(()) | Err(Errno::INVAL) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
#[path = "mount_tests.rs"]
mod tests;
