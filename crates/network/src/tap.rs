//! The tap device, driven by ioctls (Documentation/networking/tuntap.rst): netlink cannot make one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

/// Name of the tap in every namespace.
pub(crate) const NAME: &str = "tap0";

/// `IFNAMSIZ` of linux/if.h.
const NAME_BYTES: usize = 16;
const IFF_TAP: u16 = 0x0002;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;
const TUNSETIFF: libc::Ioctl = 0x4004_54ca;
const TUNSETPERSIST: libc::Ioctl = 0x4004_54cb;

/// `struct ifreq` as TUNSETIFF reads it: the name, the flags, and the rest of the union.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; NAME_BYTES],
    flags: u16,
    rest: [u8; 22],
}

/// Makes the tap in the calling thread's namespace, to stay when the descriptor closes, so that its address, its route and
/// its neighbour outlive each machine that uses it.
pub(crate) fn create() -> io::Result<()> {
    let file = attach()?;
    // SAFETY: TUNSETPERSIST takes an integer, and the descriptor is an attached tap.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETPERSIST, 1) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Attaches to the tap of the calling thread's namespace. One machine can at a time: a second one gets `ResourceBusy`.
pub(crate) fn open() -> io::Result<OwnedFd> {
    attach().map(OwnedFd::from)
}

fn attach() -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request =
        InterfaceRequest { name: [0; NAME_BYTES], flags: IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, rest: [0; 22] };
    request.name[..NAME.len()].copy_from_slice(NAME.as_bytes());
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq` (40 bytes), which `InterfaceRequest` is, and keeps no pointer.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

const _: () = assert!(size_of::<InterfaceRequest>() == 40);
