//! What every front end must do, written against the trait alone.
//!
//! Each check takes a serving front end, opens devices of its own and closes them. A front end's test calls
//! [`run_all`], or the checks one by one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of a test")]

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use blockdev::{DeviceKind, DeviceSpec, FrontEnd, FrontEndError, Image, MemoryImage};

const MIB: usize = 1 << 20;

static NEXT_INODE: AtomicU64 = AtomicU64::new(blockdev::fuse::FIRST_DEVICE_INODE);

/// A memory image that counts flushes and can be made to fail, panic or wait.
#[derive(Debug)]
struct Probe {
    inner: MemoryImage,
    flushes: AtomicUsize,
    zeroed_bytes: AtomicU64,
    /// 0: works; positive: fails with this code; -1: panics.
    failure: AtomicI32,
    flush_takes: Duration,
}

impl Probe {
    fn new(size_bytes: usize) -> Self {
        Self {
            inner: MemoryImage::new(size_bytes),
            flushes: AtomicUsize::new(0),
            zeroed_bytes: AtomicU64::new(0),
            failure: AtomicI32::new(0),
            flush_takes: Duration::ZERO,
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.failure.load(Ordering::SeqCst) {
            0 => Ok(()),
            -1 => panic!("asked for"),
            code => Err(io::Error::from_raw_os_error(code)),
        }
    }
}

impl Image for Probe {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.check()?;
        self.inner.read_at(buffer, offset_bytes)
    }
    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.check()?;
        self.inner.write_at(data, offset_bytes)
    }
    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.check()?;
        self.zeroed_bytes.fetch_add(length_bytes, Ordering::SeqCst);
        self.inner.write_zeroes(offset_bytes, length_bytes)
    }
    fn flush(&self) -> io::Result<()> {
        self.check()?;
        std::thread::sleep(self.flush_takes);
        self.flushes.fetch_add(1, Ordering::SeqCst);
        self.inner.flush()
    }
}

/// A device that is closed when the check ends, however it ends.
struct Opened<'a> {
    front_end: &'a dyn FrontEnd,
    name: String,
    path: PathBuf,
    image: Arc<Probe>,
}

impl<'a> Opened<'a> {
    fn new(front_end: &'a dyn FrontEnd, name: &str, kind: DeviceKind, image: Probe) -> Self {
        let image = Arc::new(image);
        let path = front_end.open(spec(name, kind), Arc::clone(&image) as Arc<dyn Image>).unwrap();
        Self { front_end, name: name.to_owned(), path, image }
    }

    fn disk(front_end: &'a dyn FrontEnd, name: &str, size_bytes: usize) -> Self {
        Self::new(front_end, name, DeviceKind::Disk, Probe::new(size_bytes))
    }

    fn open(&self) -> File {
        read_write(&self.path).unwrap()
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        drop(self.front_end.close(&self.name));
    }
}

fn spec(name: &str, kind: DeviceKind) -> DeviceSpec {
    DeviceSpec { name: name.to_owned(), inode: NEXT_INODE.fetch_add(1, Ordering::SeqCst), kind }
}

fn read_write(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

fn pattern(seed: usize, length: usize) -> Vec<u8> {
    (0..length).map(|i| (i.wrapping_mul(131) ^ (i >> 9) ^ seed.wrapping_mul(97)) as u8).collect()
}

fn code<T: std::fmt::Debug>(result: io::Result<T>) -> Option<i32> {
    result.unwrap_err().raw_os_error()
}

/// Every check, one after the other, on one front end.
pub(crate) fn run_all(front_end: &dyn FrontEnd) {
    written_bytes_are_read_back_and_reach_the_image(front_end);
    direct_input_output_works(front_end);
    requests_of_any_alignment_work(front_end);
    a_hole_that_is_punched_reads_as_zeros_and_reaches_the_image(front_end);
    fsync_is_a_flush(front_end);
    parallel_writers_do_not_disturb_each_other(front_end);
    a_private_mapping_reads_the_content(front_end);
    memory_ignores_discards(front_end);
    a_read_only_disk_refuses_changes(front_end);
    the_end_of_the_device_is_respected(front_end);
    failures_of_the_image_reach_the_user_and_pass(front_end);
    a_panic_of_one_image_is_an_error_of_that_device_only(front_end);
    slow_flushes_of_many_devices_do_not_stop_another(front_end);
    swapping_changes_the_content_under_an_open_file(front_end);
    closing_cuts_off_open_files_and_frees_the_name(front_end);
    names_inodes_and_sizes_are_checked(front_end);
    two_hundred_devices_come_and_go(front_end);
}

pub(crate) fn written_bytes_are_read_back_and_reach_the_image(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "read-write", 8 * MIB);
    assert_eq!(std::fs::metadata(&device.path).unwrap().len(), 8 * MIB as u64);
    let file = device.open();
    let data = pattern(1, 3 * MIB);
    file.write_all_at(&data, 4096).unwrap();
    let mut back = vec![0; data.len()];
    device.open().read_exact_at(&mut back, 4096).unwrap();
    assert!(back == data);
    device.image.inner.read_at(&mut back, 4096).unwrap();
    assert!(back == data);
}

pub(crate) fn direct_input_output_works(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "direct", 4 * MIB);
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc_o_direct()).open(&device.path).unwrap();
    let mut memory = vec![0; 3 * MIB + 4096];
    let start = memory.as_ptr().align_offset(4096);
    let aligned = &mut memory[start..start + 3 * MIB];
    aligned.copy_from_slice(&pattern(2, 3 * MIB));
    file.write_all_at(aligned, 512).unwrap();
    aligned.fill(0);
    file.read_exact_at(aligned, 512).unwrap();
    assert!(*aligned == pattern(2, 3 * MIB));
}

fn libc_o_direct() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}

pub(crate) fn requests_of_any_alignment_work(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "unaligned", MIB);
    let file = device.open();
    let mut model = pattern(3, MIB);
    file.write_all_at(&model, 0).unwrap();
    for (offset, length) in [(1, 1), (511, 2), (513, 511), (1000, 5000), (4095, 4098), (700_001, 300_000)] {
        let data = pattern(offset, length);
        file.write_all_at(&data, offset as u64).unwrap();
        model[offset..offset + length].copy_from_slice(&data);
        let mut back = vec![0; length + 2];
        file.read_exact_at(&mut back, offset as u64 - 1).unwrap();
        assert!(back == model[offset - 1..=offset + length]);
    }
    let mut all = Vec::new();
    device.open().read_to_end(&mut all).unwrap();
    assert!(all == model);
}

pub(crate) fn a_hole_that_is_punched_reads_as_zeros_and_reaches_the_image(front_end: &dyn FrontEnd) {
    use rustix::fs::FallocateFlags;
    let device = Opened::disk(front_end, "punch", MIB);
    let file = device.open();
    for (flags, seed) in [
        (FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 4),
        (FallocateFlags::ZERO_RANGE, 5),
        (FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE, 6),
    ] {
        let mut model = pattern(seed, MIB);
        file.write_all_at(&model, 0).unwrap();
        device.image.zeroed_bytes.store(0, Ordering::SeqCst);
        rustix::fs::fallocate(&file, flags, 8192, 65536).unwrap();
        assert_eq!(device.image.zeroed_bytes.load(Ordering::SeqCst), 65536);
        rustix::fs::fallocate(&file, flags, 100_001, 3000).unwrap();
        model[8192..8192 + 65536].fill(0);
        model[100_001..103_001].fill(0);
        let mut back = vec![1; MIB];
        file.read_exact_at(&mut back, 0).unwrap();
        assert!(back == model);
    }
}

pub(crate) fn fsync_is_a_flush(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "flush", MIB);
    let file = device.open();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let before = device.image.flushes.load(Ordering::SeqCst);
    file.sync_data().unwrap();
    file.sync_all().unwrap();
    assert_eq!(device.image.flushes.load(Ordering::SeqCst), before + 2);
}

pub(crate) fn parallel_writers_do_not_disturb_each_other(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "parallel", 8 * MIB);
    std::thread::scope(|scope| {
        for writer in 0..8_usize {
            let file = device.open();
            scope.spawn(move || {
                for round in 0..64_usize {
                    let offset = ((round * 8 + writer) * 16384) as u64;
                    file.write_all_at(&pattern(writer * 1000 + round, 16384), offset).unwrap();
                }
            });
        }
    });
    let file = device.open();
    let mut back = vec![0; 16384];
    for slot in 0..512_usize {
        file.read_exact_at(&mut back, (slot * 16384) as u64).unwrap();
        assert!(back == pattern((slot % 8) * 1000 + slot / 8, 16384), "slot {slot}");
    }
}

pub(crate) fn a_private_mapping_reads_the_content(front_end: &dyn FrontEnd) {
    for (name, kind) in [("map-memory", DeviceKind::Memory), ("map-disk", DeviceKind::Disk)] {
        let probe = Probe::new(2 * MIB);
        let content = pattern(7, 2 * MIB);
        probe.inner.write_at(&content, 0).unwrap();
        let device = Opened::new(front_end, name, kind, probe);
        // As QEMU 7.2 opens memory: for writing, though nothing is ever written.
        let file = device.open();
        let map = Mapping::new(&file, 2 * MIB);
        assert!(*map.bytes() == content[..]);
        map.bytes()[5000] ^= 0xff;
        let mut back = [0; 1];
        file.read_exact_at(&mut back, 5000).unwrap();
        assert_eq!(back[0], content[5000], "a private change must stay private");
    }
}

/// A private writable mapping.
struct Mapping {
    address: *mut std::ffi::c_void,
    length: usize,
}

impl Mapping {
    fn new(file: &File, length: usize) -> Self {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new private mapping at an address of the kernel's choice aliases nothing.
        let address = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE, file, 0)
        }
        .unwrap();
        Self { address, length }
    }

    #[expect(clippy::mut_from_ref, reason = "one caller, one reference at a time")]
    fn bytes(&self) -> &mut [u8] {
        // SAFETY: the mapping has `length` bytes and lives as long as self.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.length) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, not used after this.
        unsafe { rustix::mm::munmap(self.address, self.length) }.unwrap();
    }
}

pub(crate) fn memory_ignores_discards(front_end: &dyn FrontEnd) {
    let probe = Probe::new(MIB);
    probe.inner.write_at(&pattern(8, MIB), 0).unwrap();
    let device = Opened::new(front_end, "memory-discard", DeviceKind::Memory, probe);
    let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(device.open(), flags, 0, MIB as u64).unwrap();
    assert_eq!(device.image.zeroed_bytes.load(Ordering::SeqCst), 0);
    assert!(std::fs::read(&device.path).unwrap() == pattern(8, MIB));
}

pub(crate) fn a_read_only_disk_refuses_changes(front_end: &dyn FrontEnd) {
    let device = Opened::new(front_end, "read-only", DeviceKind::ReadOnlyDisk, Probe::new(MIB));
    assert_eq!(code(read_write(&device.path)), Some(libc_erofs()));
    let mut all = Vec::new();
    File::open(&device.path).unwrap().read_to_end(&mut all).unwrap();
    assert!(all == vec![0; MIB]);
}

fn libc_erofs() -> i32 {
    rustix::io::Errno::ROFS.raw_os_error()
}

pub(crate) fn the_end_of_the_device_is_respected(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "end", MIB);
    let file = device.open();
    let enospc = Some(rustix::io::Errno::NOSPC.raw_os_error());
    assert_eq!(code(file.write_all_at(&[1; 512], MIB as u64)), enospc);
    assert_eq!(file.read_at(&mut [0; 512], MIB as u64).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 4096], MIB as u64 - 512).unwrap(), 512);
    assert!(file.set_len(0).is_err());
    assert!(file.set_len(2 * MIB as u64).is_err());
    assert_eq!(file.metadata().unwrap().len(), MIB as u64);
}

pub(crate) fn failures_of_the_image_reach_the_user_and_pass(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "failing", MIB);
    let file = device.open();
    for (errno, seen) in [
        (rustix::io::Errno::NOSPC, rustix::io::Errno::NOSPC),
        (rustix::io::Errno::IO, rustix::io::Errno::IO),
        (rustix::io::Errno::BADF, rustix::io::Errno::IO),
    ] {
        let seen = Some(seen.raw_os_error());
        device.image.failure.store(errno.raw_os_error(), Ordering::SeqCst);
        assert_eq!(code(file.write_all_at(&[1; 512], 0)), seen);
        assert_eq!(code(file.read_exact_at(&mut [1; 512], 0)), seen);
        assert_eq!(code(file.sync_all()), seen);
        device.image.failure.store(0, Ordering::SeqCst);
        file.write_all_at(&[1; 512], 0).unwrap();
        file.sync_all().unwrap();
    }
}

pub(crate) fn a_panic_of_one_image_is_an_error_of_that_device_only(front_end: &dyn FrontEnd) {
    let bad = Opened::disk(front_end, "panics", MIB);
    let good = Opened::disk(front_end, "does-not", MIB);
    let (bad_file, good_file) = (bad.open(), good.open());
    bad.image.failure.store(-1, Ordering::SeqCst);
    for _ in 0..40 {
        assert_eq!(code(bad_file.write_all_at(&[1; 4096], 0)), Some(rustix::io::Errno::IO.raw_os_error()));
        assert_eq!(code(bad_file.write_all_at(&[1; 5], 0)), Some(rustix::io::Errno::IO.raw_os_error()));
        good_file.write_all_at(&[1; 4096], 0).unwrap();
    }
    bad.image.failure.store(0, Ordering::SeqCst);
    bad_file.write_all_at(&[1; 4096], 0).unwrap();
}

pub(crate) fn slow_flushes_of_many_devices_do_not_stop_another(front_end: &dyn FrontEnd) {
    let slow: Vec<_> = (0..6)
        .map(|number| {
            let mut slow = Probe::new(MIB);
            slow.flush_takes = Duration::from_millis(1500);
            Opened::new(front_end, &format!("slow-{number}"), DeviceKind::Disk, slow)
        })
        .collect();
    let quick = Opened::disk(front_end, "quick", MIB);
    let quick_file = quick.open();
    std::thread::scope(|scope| {
        let flushes: Vec<_> =
            slow.iter().map(|device| scope.spawn(|| device.open().sync_all().unwrap())).collect();
        std::thread::sleep(Duration::from_millis(100));
        let start = Instant::now();
        for _ in 0..100 {
            quick_file.write_all_at(&[1; 4096], 0).unwrap();
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        assert!(flushes.iter().all(|flush| !flush.is_finished()));
    });
}

pub(crate) fn swapping_changes_the_content_under_an_open_file(front_end: &dyn FrontEnd) {
    let device = Opened::disk(front_end, "swap", MIB);
    let file = device.open();
    file.write_all_at(&[1; 4096], 0).unwrap();
    let other = Arc::new(MemoryImage::new(MIB));
    other.write_at(&[2; 4096], 0).unwrap();
    let old = front_end.swap("swap", other).unwrap();
    let mut back = [0; 4096];
    file.read_exact_at(&mut back, 0).unwrap();
    assert_eq!(back, [2; 4096]);
    old.read_at(&mut back, 0).unwrap();
    assert_eq!(back, [1; 4096]);
    let wrong_size = front_end.swap("swap", Arc::new(MemoryImage::new(2 * MIB)));
    assert!(matches!(wrong_size, Err(FrontEndError::SizeChanged { .. })));
    let unknown = front_end.swap("nobody", Arc::new(MemoryImage::new(MIB)));
    assert!(matches!(unknown, Err(FrontEndError::NotFound(_))));
}

pub(crate) fn closing_cuts_off_open_files_and_frees_the_name(front_end: &dyn FrontEnd) {
    let first = Opened::disk(front_end, "again", MIB);
    let file = first.open();
    file.write_all_at(&[1; 512], 0).unwrap();
    front_end.close("again").unwrap();
    assert!(matches!(front_end.close("again"), Err(FrontEndError::NotFound(_))));
    assert_eq!(code(file.write_all_at(&[1; 512], 0)), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(code(file.read_exact_at(&mut [1; 512], 0)), Some(rustix::io::Errno::IO.raw_os_error()));
    assert_eq!(read_write(&first.path).unwrap_err().kind(), ErrorKind::NotFound);
    let second = Opened::disk(front_end, "again", 2 * MIB);
    let mut new_file = second.open();
    assert_eq!(new_file.metadata().unwrap().len(), 2 * MIB as u64);
    new_file.write_all(&[3; 512]).unwrap();
    assert_eq!(code(file.sync_all()), Some(rustix::io::Errno::IO.raw_os_error()));
    std::mem::forget(first);
}

pub(crate) fn names_inodes_and_sizes_are_checked(front_end: &dyn FrontEnd) {
    let image = || Arc::new(MemoryImage::new(512)) as Arc<dyn Image>;
    for name in ["", ".", "..", "a/b", "nul\0", &"x".repeat(256)] {
        let result = front_end.open(spec(name, DeviceKind::Disk), image());
        assert!(matches!(result, Err(FrontEndError::InvalidName { .. })), "{name:?}");
    }
    let device = Opened::disk(front_end, "taken", 512);
    let taken = front_end.open(spec("taken", DeviceKind::Disk), image());
    assert!(matches!(taken, Err(FrontEndError::NameInUse(_))));
    let inode = std::fs::metadata(&device.path).unwrap().ino();
    let reuse = |inode| DeviceSpec { name: "other".into(), inode, kind: DeviceKind::Disk };
    assert!(matches!(front_end.open(reuse(inode), image()), Err(FrontEndError::InodeInUse(_))));
    drop(device);
    assert!(matches!(front_end.open(reuse(inode), image()), Err(FrontEndError::InodeInUse(_))));
    assert!(matches!(front_end.open(reuse(1), image()), Err(FrontEndError::InvalidInode { .. })));
}

pub(crate) fn two_hundred_devices_come_and_go(front_end: &dyn FrontEnd) {
    let names = |directory: &Path| {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    };
    let before = front_end.list().len();
    let open_here = || {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
        let targets = descriptors.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
        targets.filter(|target| target.starts_with(front_end.mount_point())).count()
    };
    let devices: Vec<_> = (0..200).map(|i| Opened::disk(front_end, &format!("many-{i:03}"), 65536)).collect();
    for device in &devices {
        device.open().write_all_at(&[1; 4096], 0).unwrap();
    }
    let listed: Vec<_> = front_end.list().into_iter().map(|info| info.spec.name).collect();
    assert_eq!(listed.len(), before + 200);
    assert_eq!(names(front_end.mount_point()), listed);
    drop(devices);
    assert_eq!(front_end.list().len(), before);
    assert_eq!(names(front_end.mount_point()).len(), before);
    assert_eq!(open_here(), 0);
}
