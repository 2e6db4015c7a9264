//! Requests as bytes, well-formed and hostile, without a kernel.

#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of a test")]

use std::sync::Arc;

use super::*;
use crate::{DeviceSpec, Image, MemoryImage};

const SIZE: u64 = 64 * 1024;

struct Fixture {
    server: Server,
    out: Vec<u8>,
    disk: Arc<MemoryImage>,
}

impl Fixture {
    /// `disk` has inode 16, `readonly` 17, `memory` 18.
    fn new() -> Self {
        let devices = Arc::new(Devices::default());
        let disk = Arc::new(MemoryImage::new(SIZE as usize));
        for (name, inode, kind, image) in [
            ("disk", 16, DeviceKind::Disk, Arc::clone(&disk)),
            ("readonly", 17, DeviceKind::ReadOnlyDisk, Arc::new(MemoryImage::new(SIZE as usize))),
            ("memory", 18, DeviceKind::Memory, Arc::new(MemoryImage::new(SIZE as usize))),
        ] {
            devices.insert(DeviceSpec { name: name.into(), inode, kind }, image).unwrap();
        }
        Self { server: Server::new(devices, (0, 0)), out: vec![0; REQUEST_BYTES_MAX as usize], disk }
    }

    fn ask(&mut self, opcode: u32, inode: u64, body: &[u8]) -> Result<Vec<u8>, i32> {
        let header = Header { opcode, unique: 7, inode };
        match self.server.answer(header, body, &mut self.out) {
            Reply::Body(length) => Ok(self.out[..length].to_vec()),
            Reply::Error(number) => Err(number),
            Reply::None => panic!("no answer"),
        }
    }
}

fn words(values: &[u64]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn write_body(offset: u64, data: &[u8]) -> Vec<u8> {
    let mut body = words(&[0, offset, data.len() as u64, 0, 0]);
    body.extend_from_slice(data);
    body
}

#[test]
fn what_is_written_is_read() {
    let mut fixture = Fixture::new();
    let reply = fixture.ask(opcode::WRITE, 16, &write_body(1000, b"hello")).unwrap();
    assert_eq!(reply, words(&[5]));
    assert_eq!(fixture.ask(opcode::READ, 16, &words(&[0, 999, 7, 0, 0])).unwrap(), b"\0hello\0");
}

#[test]
fn punching_and_zeroing_reach_the_image() {
    for mode in [0x3_u64, 0x10, 0x11] {
        let mut fixture = Fixture::new();
        fixture.disk.write_at(&[9; 4096], 0).unwrap();
        fixture.ask(opcode::FALLOCATE, 16, &words(&[0, 512, 1024, mode])).unwrap();
        let mut bytes = [1; 2048];
        fixture.disk.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes[511..513], [9, 0]);
        assert_eq!(bytes[1535..1537], [0, 9]);
    }
}

#[test]
fn other_allocations_are_not_promised() {
    let mut fixture = Fixture::new();
    for mode in [0_u64, 1, 0x2, 0x8, 0x20, 0x40, 0xffff_ffff] {
        let reply = fixture.ask(opcode::FALLOCATE, 16, &words(&[0, 0, 512, mode]));
        assert_eq!(reply, Err(libc::EOPNOTSUPP), "{mode:#x}");
    }
    assert_eq!(fixture.ask(opcode::FALLOCATE, 16, &words(&[0, SIZE, 512, 0x10])), Err(libc::ENOSPC));
}

#[test]
fn memory_devices_ignore_discards_and_keep_the_cache() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.ask(opcode::FALLOCATE, 18, &words(&[0, 0, SIZE, 3])), Ok(Vec::new()));
    let reply = fixture.ask(opcode::OPEN, 18, &words(&[libc::O_RDWR as u64])).unwrap();
    let flags = u32::from_ne_bytes(reply[8..12].try_into().unwrap());
    assert_eq!(flags, open::KEEP_CACHE | open::NOFLUSH);
    assert_eq!(fixture.ask(opcode::WRITE, 18, &write_body(0, &[1; 512])), Err(libc::EROFS));
}

#[test]
fn disks_are_opened_for_parallel_direct_writes_without_a_handle() {
    let mut fixture = Fixture::new();
    let reply = fixture.ask(opcode::OPEN, 16, &words(&[libc::O_RDWR as u64])).unwrap();
    assert_eq!(reply[..8], [0; 8]);
    let flags = u32::from_ne_bytes(reply[8..12].try_into().unwrap());
    assert_eq!(flags, open::DIRECT_IO | open::PARALLEL_DIRECT_WRITES | open::NOFLUSH);
}

#[test]
fn read_only_disks_refuse_every_change() {
    let mut fixture = Fixture::new();
    for flags in [libc::O_RDWR, libc::O_WRONLY] {
        assert_eq!(fixture.ask(opcode::OPEN, 17, &words(&[flags as u64])), Err(libc::EROFS));
    }
    assert!(fixture.ask(opcode::OPEN, 17, &words(&[0])).is_ok());
    assert_eq!(fixture.ask(opcode::WRITE, 17, &write_body(0, &[1; 512])), Err(libc::EROFS));
    assert_eq!(fixture.ask(opcode::FALLOCATE, 17, &words(&[0, 0, 512, 3])), Err(libc::EROFS));
    assert_eq!(fixture.ask(opcode::FSYNC, 17, &words(&[0, 0])), Ok(Vec::new()));
}

#[test]
fn attributes_can_be_touched_but_not_changed() {
    let mut fixture = Fixture::new();
    let set = |valid: u64, size: u64| words(&[valid, 0, size, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(fixture.ask(opcode::SETATTR, 16, &set(1 << 3, SIZE)).unwrap().len(), 104);
    assert_eq!(fixture.ask(opcode::SETATTR, 16, &set(1 << 5, 0)).unwrap().len(), 104);
    for (valid, size) in [(1 << 3, 0), (1 << 3, SIZE + 512), (1, SIZE), (2, SIZE), (4, SIZE)] {
        assert_eq!(fixture.ask(opcode::SETATTR, 16, &set(valid, size)), Err(libc::EPERM));
    }
}

#[test]
fn a_listing_in_small_pieces_has_every_entry_once() {
    let mut fixture = Fixture::new();
    let (mut names, mut offset) = (Vec::new(), 0);
    loop {
        let reply = fixture.ask(opcode::READDIR, 1, &words(&[0, offset, 40])).unwrap();
        if reply.is_empty() {
            break;
        }
        offset = u64::from_ne_bytes(reply[8..16].try_into().unwrap());
        let length = u32::from_ne_bytes(reply[16..20].try_into().unwrap()) as usize;
        names.push(String::from_utf8(reply[24..24 + length].to_vec()).unwrap());
    }
    assert_eq!(names, [".", "..", "disk", "readonly", "memory"]);
}

#[test]
fn lookups_answer_the_inode_on_record() {
    let mut fixture = Fixture::new();
    let reply = fixture.ask(opcode::LOOKUP, 1, b"disk\0").unwrap();
    assert_eq!(reply.len(), 128);
    assert_eq!(reply[..8], 16_u64.to_ne_bytes());
    assert_eq!(fixture.ask(opcode::LOOKUP, 1, b"other\0"), Err(libc::ENOENT));
    assert_eq!(fixture.ask(opcode::LOOKUP, 1, b"\xff\xfe\0"), Err(libc::ENOENT));
    assert_eq!(fixture.ask(opcode::LOOKUP, 16, b"disk\0"), Err(libc::ENOTDIR));
    assert_eq!(fixture.ask(opcode::LOOKUP, 1, b"no end"), Err(libc::EINVAL));
    assert_eq!(fixture.ask(opcode::LOOKUP, 1, &[&[b'x'; 256][..], b"\0"].concat()), Err(libc::ENAMETOOLONG));
}

#[test]
fn unknown_inodes_are_stale_or_failed() {
    let mut fixture = Fixture::new();
    for inode in [0, 2, 15, 19, u64::MAX] {
        assert_eq!(fixture.ask(opcode::OPEN, inode, &words(&[0])), Err(libc::ESTALE));
        assert_eq!(fixture.ask(opcode::GETATTR, inode, &words(&[0, 0])), Err(libc::ESTALE));
        assert_eq!(fixture.ask(opcode::READ, inode, &words(&[0, 0, 512, 0, 0])), Err(libc::EIO));
        assert_eq!(fixture.ask(opcode::WRITE, inode, &write_body(0, &[0; 512])), Err(libc::EIO));
        assert_eq!(fixture.ask(opcode::FSYNC, inode, &words(&[0, 0])), Err(libc::EIO));
    }
}

#[test]
fn names_cannot_be_made_moved_or_removed() {
    let mut fixture = Fixture::new();
    for opcode in [
        opcode::CREATE,
        opcode::MKNOD,
        opcode::MKDIR,
        opcode::UNLINK,
        opcode::RMDIR,
        opcode::RENAME,
        opcode::RENAME2,
        opcode::LINK,
        opcode::SYMLINK,
        opcode::TMPFILE,
    ] {
        assert_eq!(fixture.ask(opcode, 1, b"name\0"), Err(libc::EPERM));
    }
}

#[test]
fn lengths_that_lie_are_refused() {
    let mut fixture = Fixture::new();
    let too_much = u64::from(REQUEST_BYTES_MAX) + 1;
    assert_eq!(fixture.ask(opcode::READ, 16, &words(&[0, 0, too_much, 0, 0])), Err(libc::EINVAL));
    assert_eq!(fixture.ask(opcode::READDIR, 1, &words(&[0, 0, too_much, 0, 0])), Err(libc::EINVAL));
    let mut short = write_body(0, &[1; 512]);
    short.pop();
    assert_eq!(fixture.ask(opcode::WRITE, 16, &short), Err(libc::EINVAL));
    assert_eq!(fixture.ask(opcode::READ, 16, &words(&[0, u64::MAX, 512, 0, 0])), Ok(Vec::new()));
    assert_eq!(fixture.ask(opcode::WRITE, 16, &write_body(u64::MAX, &[1; 512])), Err(libc::ENOSPC));
    assert_eq!(fixture.ask(opcode::FALLOCATE, 16, &words(&[0, u64::MAX, u64::MAX, 3])), Ok(Vec::new()));
}

#[test]
fn no_opcode_and_no_body_makes_the_server_panic() {
    let mut fixture = Fixture::new();
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..200_000 {
        let body: Vec<u8> = match random() % 3 {
            0 => (0..random() % 120).map(|_| random() as u8).collect(),
            1 => words(&[random(), random() % (2 * SIZE), random() % 4096, random() % 32, random()]),
            _ => words(&[0, random(), random() >> (random() % 64), random() % 64]),
        };
        let header = Header { opcode: (random() % 60) as u32, unique: random(), inode: random() % 20 };
        fixture.server.answer(header, &body, &mut fixture.out);
    }
}

#[test]
fn headers_that_contradict_the_message_are_malformed() {
    let mut message = vec![0_u8; 48];
    for length in [0_u32, 40, 47, 49, u32::MAX] {
        message[..4].copy_from_slice(&length.to_ne_bytes());
        assert!(Header::parse(&message).is_err());
    }
    message[..4].copy_from_slice(&48_u32.to_ne_bytes());
    assert_eq!(Header::parse(&message).unwrap().1.len(), 8);
    message[36..38].copy_from_slice(&1_u16.to_ne_bytes());
    assert_eq!(Header::parse(&message).unwrap().1.len(), 0);
    message[36..38].copy_from_slice(&2_u16.to_ne_bytes());
    assert!(Header::parse(&message).is_err());
    assert!(Header::parse(&message[..39]).is_err());
    assert!(Header::parse(&[]).is_err());
}
