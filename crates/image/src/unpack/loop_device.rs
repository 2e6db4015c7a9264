//! Loop devices that clear themselves.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

// From <linux/loop.h>.
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`, Linux 5.8.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const EMPTY_INFO: LoopInfo = LoopInfo {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// An attached loop device. It is detached by [`LoopDevice::detach`], or by the kernel at its last close.
#[derive(Debug)]
pub(super) struct LoopDevice {
    node: File,
    path: PathBuf,
    /// Device and inode number of the backing file as the loop driver tells them.
    backing: (u64, u64),
}

impl LoopDevice {
    /// Attaches `backing` to a free loop device with direct I/O, which keeps the data out of a second page cache (the
    /// kernel falls back to buffered I/O where the backing file cannot do it). Other processes race for the same few
    /// devices, so a lost race is repeated until `timeout`.
    pub(super) fn attach(backing: &File, timeout: Duration) -> Result<Self, String> {
        let control =
            OpenOptions::new().read(true).write(true).open("/dev/loop-control").map_err(|error| {
                format!("/dev/loop-control cannot be opened ({error}); load the `loop` kernel module")
            })?;
        let deadline = Instant::now() + timeout;
        let mut pause = Duration::from_millis(5);
        loop {
            let error = match Self::try_attach(&control, backing) {
                Ok(device) => return Ok(device),
                Err(error) => error,
            };
            if Instant::now() >= deadline {
                return Err(format!(
                    "no loop device could be attached within {} ms ({error}); free one (see `losetup -a`), or load \
                     the `loop` module with a larger max_loop",
                    timeout.as_millis()
                ));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(200));
        }
    }

    fn try_attach(control: &File, backing: &File) -> io::Result<Self> {
        let number = ioctl(control.as_fd(), LOOP_CTL_GET_FREE, 0)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let node = OpenOptions::new().read(true).write(true).open(&path)?;
        let fd = u32::try_from(backing.as_raw_fd()).map_err(io::Error::other)?;
        let mut info = EMPTY_INFO;
        info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
        let config = LoopConfig { fd, block_size: 0, info, reserved: [0; 8] };
        ioctl_with(node.as_fd(), LOOP_CONFIGURE, &config)?;
        ioctl_into(node.as_fd(), LOOP_GET_STATUS64, &mut info)?;
        Ok(Self { node, path, backing: (info.device, info.inode) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes everything written durable in the backing file and waits until the kernel has let go of it.
    pub(super) fn detach(self, timeout: Duration) -> Result<(), String> {
        let describe = |what: &str, error: &io::Error| format!("{what} {}: {error}", self.path.display());
        self.node.sync_all().map_err(|error| describe("flushing", &error))?;
        ioctl(self.node.as_fd(), LOOP_CLR_FD, 0).map_err(|error| describe("detaching", &error))?;
        let deadline = Instant::now() + timeout;
        let Self { node, path, backing } = self;
        drop(node);
        // Another process (a device manager probing new devices) may still hold it open.
        loop {
            let probe = OpenOptions::new()
                .read(true)
                .open(&path)
                .map_err(|error| format!("opening {}: {error}", path.display()))?;
            let mut info = EMPTY_INFO;
            match ioctl_into(probe.as_fd(), LOOP_GET_STATUS64, &mut info) {
                Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
                // Attached again, by somebody else.
                Ok(()) if (info.device, info.inode) != backing => return Ok(()),
                _ => {}
            }
            drop(probe);
            if Instant::now() >= deadline {
                return Err(format!("{} is still in use by another process", path.display()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn ioctl(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: the requests used with this function take an integer or nothing, never a pointer.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) })
}

fn ioctl_with(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &LoopConfig) -> io::Result<i32> {
    // SAFETY: LOOP_CONFIGURE reads one `struct loop_config`, which `argument` is laid out as and outlives the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_ref(argument)) })
}

fn ioctl_into(fd: BorrowedFd<'_>, request: libc::c_ulong, argument: &mut LoopInfo) -> io::Result<()> {
    // SAFETY: LOOP_GET_STATUS64 writes one `struct loop_info64`, which `argument` is laid out as; every bit pattern of
    // its integer fields is valid.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) }).map(drop)
}

fn check(result: libc::c_int) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
