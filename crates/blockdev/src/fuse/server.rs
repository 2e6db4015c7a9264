//! What each request means: bytes in, bytes out, no descriptor in sight.

use std::io;
use std::sync::Arc;

use super::abi::{
    Encoder, Fields, Header, Malformed, NAME_BYTES_MAX, ROOT_INODE, SET_OWNERSHIP, SET_SIZE, opcode, open,
};
use super::devices::{Device, Devices};
use crate::DeviceKind;

/// Largest read or write, in bytes: what MAX_PAGES allows without a sysctl.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// The kernel may keep attributes this long: sizes never change.
const ATTRIBUTES_VALID_S: u64 = 3600;
/// Names are asked for at every open. That costs one round trip, and a name can be given to another device without
/// telling the kernel first (which would have to be done from outside the threads that answer it).
const NAMES_VALID_S: u64 = 0;

/// Directory entries for one answer to READDIR; far more than fit into the page the kernel offers.
const LISTING_MAX: usize = 1024;

/// How a request is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reply {
    /// Not at all.
    None,
    /// With this many bytes of the body buffer.
    Body(usize),
    /// With an error number.
    Error(i32),
}

impl From<Malformed> for Reply {
    fn from(_: Malformed) -> Self {
        Self::Error(libc::EINVAL)
    }
}

/// Answers requests out of the table of devices. Without any state of its own: a successor in another process answers
/// the same.
#[derive(Debug)]
pub(crate) struct Server {
    devices: Arc<Devices>,
    owner: (u32, u32),
}

impl Server {
    /// `owner` is the user and group that the files belong to.
    pub(crate) fn new(devices: Arc<Devices>, owner: (u32, u32)) -> Self {
        Self { devices, owner }
    }

    /// Answers the request with `header` and `body`; `out` has room for [`REQUEST_BYTES_MAX`] bytes.
    pub(crate) fn answer(&self, header: Header, body: &[u8], out: &mut [u8]) -> Reply {
        self.dispatch(header, body, out).unwrap_or_else(|reply| reply)
    }

    fn dispatch(&self, header: Header, body: &[u8], out: &mut [u8]) -> Result<Reply, Reply> {
        let inode = header.inode;
        match header.opcode {
            opcode::READ => self.read(inode, body, out),
            opcode::WRITE => self.write(inode, body, out),
            opcode::FSYNC => self.flush(inode),
            opcode::FALLOCATE => self.allocate(inode, body),
            opcode::LOOKUP => self.lookup(inode, body, out),
            opcode::GETATTR => self.attributes(inode, out),
            opcode::SETATTR => self.set_attributes(inode, body, out),
            opcode::OPEN => self.open(inode, body, out),
            opcode::OPENDIR if inode == ROOT_INODE => Ok(opened(0, out)),
            opcode::OPENDIR => Err(Reply::Error(libc::ENOTDIR)),
            opcode::READDIR => self.list(inode, body, out),
            opcode::STATFS => Ok(self.statistics(out)),
            // Nothing hangs on an open file: every answer is derived from the inode, so that a successor, which has seen
            // no OPEN, can answer too.
            opcode::RELEASE | opcode::RELEASEDIR | opcode::FLUSH | opcode::FSYNCDIR | opcode::SYNCFS => {
                Ok(Reply::Body(0))
            }
            // Lookups are not counted, because inodes are never used twice.
            opcode::FORGET | opcode::BATCH_FORGET | opcode::DESTROY => Ok(Reply::None),
            // Requests end by themselves; ENOSYS tells the kernel never to ask again.
            opcode::INTERRUPT => Err(Reply::Error(libc::ENOSYS)),
            opcode::MKNOD
            | opcode::MKDIR
            | opcode::SYMLINK
            | opcode::UNLINK
            | opcode::RMDIR
            | opcode::RENAME
            | opcode::RENAME2
            | opcode::LINK
            | opcode::CREATE
            | opcode::TMPFILE => Err(Reply::Error(libc::EPERM)),
            // Includes extended attributes, locks (the kernel does them for one host), SEEK_HOLE, ioctl and poll.
            _ => Err(Reply::Error(libc::ENOSYS)),
        }
    }

    fn device(&self, inode: u64, otherwise: i32) -> Result<Arc<Device>, Reply> {
        if inode == ROOT_INODE {
            return Err(Reply::Error(libc::EISDIR));
        }
        self.devices.by_inode(inode).ok_or(Reply::Error(otherwise))
    }

    /// `struct fuse_read_in`: fh u64, offset u64, size u32, ...
    fn read(&self, inode: u64, body: &[u8], out: &mut [u8]) -> Result<Reply, Reply> {
        let mut fields = Fields(body);
        fields.skip(8)?;
        let offset = fields.u64()?;
        let size = fields.u32()? as usize;
        let buffer = out.get_mut(..size).ok_or(Reply::Error(libc::EINVAL))?;
        let device = self.device(inode, libc::EIO)?;
        device.slot.read(buffer, offset).map(Reply::Body).map_err(|error| errno(&error))
    }

    /// `struct fuse_write_in`: fh u64, offset u64, size u32, write_flags u32, lock_owner u64, flags u32, pad; then data.
    fn write(&self, inode: u64, body: &[u8], out: &mut [u8]) -> Result<Reply, Reply> {
        let mut fields = Fields(body);
        fields.skip(8)?;
        let offset = fields.u64()?;
        let size = fields.u32()?;
        fields.skip(20)?;
        if fields.0.len() != size as usize {
            return Err(Reply::Error(libc::EINVAL));
        }
        let device = self.device(inode, libc::EIO)?;
        if device.spec.kind != DeviceKind::Disk {
            return Err(Reply::Error(libc::EROFS));
        }
        let written = device.slot.write(fields.0, offset).map_err(|error| errno(&error))?;
        let mut reply = Encoder::new(out);
        // Never more than the `size` that came as a u32.
        reply.u32(u32::try_from(written).unwrap_or(u32::MAX)).u32(0);
        Ok(Reply::Body(reply.used()))
    }

    fn flush(&self, inode: u64) -> Result<Reply, Reply> {
        if inode == ROOT_INODE {
            return Ok(Reply::Body(0));
        }
        let device = self.device(inode, libc::EIO)?;
        if device.spec.kind == DeviceKind::Disk {
            device.slot.flush().map_err(|error| errno(&error))?;
        }
        Ok(Reply::Body(0))
    }

    /// `struct fuse_fallocate_in`: fh u64, offset u64, length u64, mode u32, pad.
    fn allocate(&self, inode: u64, body: &[u8]) -> Result<Reply, Reply> {
        const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE.cast_unsigned();
        const PUNCH: u32 = libc::FALLOC_FL_PUNCH_HOLE.cast_unsigned() | KEEP_SIZE;
        const ZERO: u32 = libc::FALLOC_FL_ZERO_RANGE.cast_unsigned();
        const ZERO_KEEP: u32 = ZERO | KEEP_SIZE;
        let mut fields = Fields(body);
        fields.skip(8)?;
        let offset = fields.u64()?;
        let length = fields.u64()?;
        let mode = fields.u32()?;
        let device = self.device(inode, libc::EIO)?;
        match device.spec.kind {
            // QEMU gives free pages back by punching the file behind the memory, private mapping or not. The image is
            // shared and must stay as it is; the private pages are dropped by the kernel without us.
            DeviceKind::Memory => return Ok(Reply::Body(0)),
            DeviceKind::ReadOnlyDisk => return Err(Reply::Error(libc::EROFS)),
            DeviceKind::Disk => {}
        }
        let past_end = offset.checked_add(length).is_none_or(|end| end > device.slot.size_bytes());
        match mode {
            PUNCH | ZERO_KEEP => {}
            ZERO if past_end => return Err(Reply::Error(libc::ENOSPC)),
            ZERO => {}
            // Space for later writes cannot be promised.
            _ => return Err(Reply::Error(libc::EOPNOTSUPP)),
        }
        device.slot.zero(offset, length).map_err(|error| errno(&error))?;
        Ok(Reply::Body(0))
    }

    fn lookup(&self, parent: u64, body: &[u8], out: &mut [u8]) -> Result<Reply, Reply> {
        let name = Fields(body).name()?;
        if parent != ROOT_INODE {
            return Err(Reply::Error(libc::ENOTDIR));
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Reply::Error(libc::ENAMETOOLONG));
        }
        let device = self.devices.by_name(name).ok_or(Reply::Error(libc::ENOENT))?;
        // `struct fuse_entry_out`: nodeid, generation, entry_valid, attr_valid u64, their nanoseconds u32, attr.
        let mut reply = Encoder::new(out);
        reply.u64(device.spec.inode).u64(0).u64(NAMES_VALID_S).u64(ATTRIBUTES_VALID_S).u32(0).u32(0);
        self.encode_device(&device, &mut reply);
        Ok(Reply::Body(reply.used()))
    }

    fn attributes(&self, inode: u64, out: &mut [u8]) -> Result<Reply, Reply> {
        // `struct fuse_attr_out`: attr_valid u64, its nanoseconds u32, dummy u32, attr.
        let mut reply = Encoder::new(out);
        reply.u64(ATTRIBUTES_VALID_S).u32(0).u32(0);
        if inode == ROOT_INODE {
            self.encode_attributes(ROOT_INODE, 0, libc::S_IFDIR | 0o700, 2, &mut reply);
        } else {
            self.encode_device(&*self.device(inode, libc::ESTALE)?, &mut reply);
        }
        Ok(Reply::Body(reply.used()))
    }

    /// `struct fuse_setattr_in`: valid u32, pad, fh u64, size u64, ... Times are not kept, everything else is fixed.
    fn set_attributes(&self, inode: u64, body: &[u8], out: &mut [u8]) -> Result<Reply, Reply> {
        let mut fields = Fields(body);
        let valid = fields.u32()?;
        fields.skip(12)?;
        let size = fields.u64()?;
        if valid & SET_OWNERSHIP != 0 {
            return Err(Reply::Error(libc::EPERM));
        }
        if valid & SET_SIZE != 0 && self.device(inode, libc::ESTALE)?.slot.size_bytes() != size {
            return Err(Reply::Error(libc::EPERM));
        }
        self.attributes(inode, out)
    }

    /// `struct fuse_open_in`: flags u32, open_flags u32.
    fn open(&self, inode: u64, body: &[u8], out: &mut [u8]) -> Result<Reply, Reply> {
        let flags = Fields(body).u32()?;
        // ESTALE makes the kernel look the name up again: a device that was closed and made again has another inode.
        let device = self.device(inode, libc::ESTALE)?;
        let writes = flags & libc::O_ACCMODE.cast_unsigned() != libc::O_RDONLY.cast_unsigned();
        match device.spec.kind {
            DeviceKind::Disk => {
                Ok(opened(open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES | open::NOFLUSH, out))
            }
            DeviceKind::ReadOnlyDisk if writes => Err(Reply::Error(libc::EROFS)),
            DeviceKind::ReadOnlyDisk => Ok(opened(open::DIRECT_IO | open::NOFLUSH, out)),
            // QEMU before 8.2 opens memory for writing even when it maps it privately.
            DeviceKind::Memory => Ok(opened(open::KEEP_CACHE | open::NOFLUSH, out)),
        }
    }

    /// `struct fuse_read_in` again. An entry's offset is the inode before which to go on; `.` and `..` have 1 and 2.
    fn list(&self, inode: u64, body: &[u8], out: &mut [u8]) -> Result<Reply, Reply> {
        if inode != ROOT_INODE {
            return Err(Reply::Error(libc::ENOTDIR));
        }
        let mut fields = Fields(body);
        fields.skip(8)?;
        let offset = fields.u64()?;
        let size = fields.u32()? as usize;
        let mut reply = Encoder::new(out.get_mut(..size).ok_or(Reply::Error(libc::EINVAL))?);
        for (position, name) in [(1, "."), (2, "..")] {
            if offset < position && !encode_entry(ROOT_INODE, position, libc::DT_DIR, name, &mut reply) {
                return Ok(Reply::Body(reply.used()));
            }
        }
        for device in self.devices.after(offset, LISTING_MAX) {
            let inode = device.spec.inode;
            if !encode_entry(inode, inode, libc::DT_REG, &device.spec.name, &mut reply) {
                break;
            }
        }
        Ok(Reply::Body(reply.used()))
    }

    /// `struct fuse_kstatfs`: blocks, bfree, bavail, files, ffree u64, bsize, namelen, frsize, pad u32, spare 6 × u32.
    fn statistics(&self, out: &mut [u8]) -> Reply {
        let mut reply = Encoder::new(out);
        reply.u64(0).u64(0).u64(0).u64(self.devices.count() as u64).u64(0);
        reply.u32(4096).u32(255).u32(4096).zeros(28);
        Reply::Body(reply.used())
    }

    fn encode_device(&self, device: &Device, reply: &mut Encoder<'_>) {
        let mode = match device.spec.kind {
            DeviceKind::ReadOnlyDisk => 0o400,
            DeviceKind::Disk | DeviceKind::Memory => 0o600,
        };
        self.encode_attributes(device.spec.inode, device.slot.size_bytes(), libc::S_IFREG | mode, 1, reply);
    }

    /// `struct fuse_attr`: ino, size, blocks, atime, mtime, ctime u64, their nanoseconds, mode, nlink, uid, gid, rdev,
    /// blksize, flags u32.
    fn encode_attributes(&self, inode: u64, size: u64, mode: u32, links: u32, reply: &mut Encoder<'_>) {
        reply.u64(inode).u64(size).u64(size / 512).zeros(24).zeros(12);
        reply.u32(mode).u32(links).u32(self.owner.0).u32(self.owner.1).u32(0).u32(4096).u32(0);
    }
}

/// `struct fuse_open_out`: fh u64, open_flags u32, backing u32.
fn opened(flags: u32, out: &mut [u8]) -> Reply {
    let mut reply = Encoder::new(out);
    reply.u64(0).u32(flags).u32(0);
    Reply::Body(reply.used())
}

/// `struct fuse_dirent`: ino u64, off u64, namelen u32, type u32, name, padding to 8. False when there is no room.
fn encode_entry(inode: u64, offset: u64, kind: u8, name: &str, reply: &mut Encoder<'_>) -> bool {
    let padding = name.len().next_multiple_of(8) - name.len();
    if reply.left() < 24 + name.len() + padding {
        return false;
    }
    // Names have at most 255 bytes.
    let length = u32::try_from(name.len()).unwrap_or(u32::MAX);
    reply.u64(inode).u64(offset).u32(length).u32(kind.into()).bytes(name.as_bytes()).zeros(padding);
    true
}

/// What the user of a device is told about a failure of its image.
fn errno(error: &io::Error) -> Reply {
    let number = match error.raw_os_error() {
        // Codes that have a meaning for the user of a disk; any other (EBADF, say) is about us.
        Some(number @ (libc::ENOSPC | libc::EDQUOT | libc::EROFS | libc::ENOMEM | libc::EIO)) => number,
        _ if error.kind() == io::ErrorKind::StorageFull => libc::ENOSPC,
        _ => libc::EIO,
    };
    Reply::Error(number)
}

#[cfg(test)]
#[path = "server_tests.rs"]
mod tests;
