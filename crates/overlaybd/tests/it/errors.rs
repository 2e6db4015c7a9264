//! What goes wrong is said, and harms nothing.

use std::fs;
use std::process::Command;
use std::sync::Arc;

use overlaybd::{Layer, Stack, StackError, Upper, UpperError, UpperMode, UpperOptions};
use uuid::Uuid;

use crate::content::{empty_disk, files, golden, options};

const SIZE: u64 = 1 << 20;

fn small_layer(directory: &std::path::Path) -> Arc<Layer> {
    let path = directory.join("small-layer");
    if !path.exists() {
        let disk = empty_disk(directory, SIZE);
        disk.write_at(&[1; 512], 0).unwrap();
        disk.seal(&path).unwrap();
    }
    Layer::open_file(&path).unwrap()
}

#[test]
fn requests_that_are_not_whole_sectors_or_leave_the_disk_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let stack = empty_disk(directory.path(), SIZE);
    assert!(matches!(stack.read_at(&mut [0; 512], 1), Err(StackError::Unaligned { .. })));
    assert!(matches!(stack.write_at(&[0; 511], 0), Err(StackError::Unaligned { .. })));
    assert!(matches!(stack.read_at(&mut [0; 1024], SIZE - 512), Err(StackError::OutOfBounds { .. })));
    assert!(matches!(stack.write_at(&[0; 512], SIZE), Err(StackError::OutOfBounds { .. })));
    let far = !511_u64;
    assert!(matches!(stack.write_zeroes(far, 1024), Err(StackError::OutOfBounds { .. })));
    assert_eq!(stack.upper_data_bytes(), 4096, "nothing was stored");
    stack.read_at(&mut [], SIZE).unwrap();
}

#[test]
fn two_hundred_fifty_five_layers_open_and_one_more_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let layer = small_layer(directory.path());
    let stack = Stack::open(vec![layer.clone(); 255], None).unwrap();
    let mut sector = [0; 512];
    stack.read_at(&mut sector, 0).unwrap();
    assert_eq!(sector, [1; 512]);
    let error = Stack::open(vec![layer.clone(); 256], None).unwrap_err();
    assert!(matches!(error, StackError::TooManyLayers { layers: 256 }), "{error}");
    let upper = |name: &str| Upper::create(&files(directory.path(), name), &options(SIZE)).unwrap();
    let error = Stack::open(vec![layer.clone(); 255], Some(upper("a"))).unwrap_err();
    assert!(matches!(error, StackError::TooManyLayers { layers: 256 }), "{error}");
    let stack = Stack::open(vec![layer; 254], Some(upper("b"))).unwrap();
    let error = stack.restack(upper("c"), &directory.path().join("sealed")).unwrap_err();
    assert!(matches!(error, StackError::TooManyLayers { layers: 256 }), "{error}");
    stack.write_at(&[2; 512], 0).unwrap();
}

#[test]
fn a_stack_without_layers_or_size_is_refused() {
    assert!(matches!(Stack::open(Vec::new(), None), Err(StackError::Empty)));
    let directory = tempfile::tempdir().unwrap();
    let upper = Upper::create(&files(directory.path(), "upper"), &options(0)).unwrap();
    assert!(matches!(Stack::open(Vec::new(), Some(upper)), Err(StackError::NoVirtualSize)));
}

#[test]
fn an_upper_without_size_takes_that_of_the_layers_and_keeps_it() {
    for mode in [UpperMode::Append, UpperMode::Sparse] {
        let directory = tempfile::tempdir().unwrap();
        let layer = small_layer(directory.path());
        let upper_files = files(directory.path(), "sized");
        let upper = Upper::create(&upper_files, &UpperOptions { mode, ..options(0) }).unwrap();
        let stack = Stack::open(vec![layer], Some(upper)).unwrap();
        stack.write_at(&[9; 512], SIZE - 512).unwrap();
        drop(stack);
        let stack = Stack::open(Vec::new(), Some(Upper::open(&upper_files, 0).unwrap())).unwrap();
        assert_eq!(stack.virtual_size_bytes(), SIZE);
        let mut sector = [0; 512];
        stack.read_at(&mut sector, SIZE - 512).unwrap();
        assert_eq!(sector, [9; 512], "{mode:?}");
    }
}

#[test]
fn a_layer_that_shrinks_under_a_stack_gives_errors_and_no_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("layer");
    fs::write(&path, fs::read(golden().join("lsmt/base.lsmt")).unwrap()).unwrap();
    let stack = Stack::open(vec![Layer::open_file(&path).unwrap()], None).unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(6000).unwrap();
    let error = stack.read_at(&mut [0; 4096], 0).unwrap_err();
    assert!(matches!(error, StackError::Read { layer: 0, offset_bytes: 4096, .. }), "{error}");
    assert_eq!(error.errno(), rustix::io::Errno::IO.raw_os_error());
}

#[test]
fn an_upper_opens_for_writing_only_once_and_is_free_again_afterwards() {
    let directory = tempfile::tempdir().unwrap();
    let upper = files(directory.path(), "upper");
    let first = Upper::create(&upper, &options(SIZE)).unwrap();
    let error = Upper::open(&upper, 0).unwrap_err();
    assert!(matches!(error, UpperError::InUse { .. }), "{error}");
    Upper::open_read_only(&upper).unwrap();
    drop(first);
    Upper::open(&upper, 0).unwrap();
}

#[test]
fn creating_over_existing_files_is_refused_and_leaves_them() {
    let directory = tempfile::tempdir().unwrap();
    let upper = files(directory.path(), "upper");
    fs::write(&upper.index, b"precious").unwrap();
    let error = Upper::create(&upper, &options(SIZE)).unwrap_err();
    assert!(error.to_string().contains("upper.index"), "{error}");
    assert_eq!(fs::read(&upper.index).unwrap(), b"precious");
    assert!(!upper.data.exists(), "what the attempt made is removed");
}

#[test]
fn files_of_different_uppers_do_not_open_together() {
    let directory = tempfile::tempdir().unwrap();
    let (one, other) = (files(directory.path(), "one"), files(directory.path(), "other"));
    Upper::create(&one, &options(SIZE)).unwrap();
    Upper::create(&other, &UpperOptions { uuid: Uuid::from_u128(99), ..options(SIZE) }).unwrap();
    let mixed = overlaybd::UpperFiles { data: one.data, index: other.index };
    let error = Upper::open(&mixed, 0).unwrap_err();
    assert!(matches!(error, UpperError::Mismatched { .. }), "{error}");
}

#[test]
fn a_truncated_sparse_upper_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let upper = files(directory.path(), "upper");
    Upper::create(&upper, &UpperOptions { mode: UpperMode::Sparse, ..options(SIZE) }).unwrap();
    fs::OpenOptions::new().write(true).open(&upper.data).unwrap().set_len(SIZE).unwrap();
    let error = Upper::open(&upper, 0).unwrap_err();
    assert!(matches!(error, UpperError::Truncated { .. }), "{error}");
}

#[test]
fn rewriting_a_range_grows_neither_data_nor_index() {
    let directory = tempfile::tempdir().unwrap();
    let stack = empty_disk(directory.path(), SIZE);
    for fill in 0..50 {
        stack.write_at(&[fill; 16384], 8192).unwrap();
        stack.write_at(&[fill; 512], 8192 + 512).unwrap();
    }
    assert_eq!(stack.upper_data_bytes(), 4096 + 16384);
    let index = fs::metadata(directory.path().join("upper.index")).unwrap().len();
    assert_eq!(index, 4096 + 16);
}

#[test]
fn discarding_what_is_empty_already_grows_no_index() {
    let directory = tempfile::tempdir().unwrap();
    let stack = empty_disk(directory.path(), SIZE);
    stack.write_at(&[1; 4096], 0).unwrap();
    for _ in 0..20 {
        stack.write_zeroes(0, SIZE).unwrap();
    }
    assert_eq!(fs::metadata(directory.path().join("upper.index")).unwrap().len(), 4096 + 2 * 16);
}

#[test]
fn sealing_over_an_existing_file_is_refused_and_the_upper_stays_in_use() {
    let directory = tempfile::tempdir().unwrap();
    let stack = empty_disk(directory.path(), SIZE);
    stack.write_at(&[1; 512], 0).unwrap();
    let taken = directory.path().join("taken");
    fs::write(&taken, b"precious").unwrap();
    let error = stack.seal(&taken).unwrap_err();
    assert!(matches!(error, StackError::Upper(UpperError::SealedPathExists { .. })), "{error}");
    assert_eq!(fs::read(&taken).unwrap(), b"precious");
    stack.write_at(&[2; 512], 512).unwrap();
    let layer = stack.seal(&directory.path().join("free")).unwrap();
    assert_eq!(layer.mappings().len(), 1);
    assert!(matches!(stack.write_at(&[3; 512], 0), Err(StackError::ReadOnly)));
    let mut sectors = [0; 1024];
    stack.read_at(&mut sectors, 0).unwrap();
    assert_eq!((sectors[0], sectors[512]), (1, 2));
}

#[test]
fn a_restack_whose_directory_is_missing_leaves_the_old_upper_in_use() {
    for mode in [UpperMode::Append, UpperMode::Sparse] {
        let directory = tempfile::tempdir().unwrap();
        let old = files(directory.path(), "old");
        let stack_options = UpperOptions { mode, ..options(SIZE) };
        let stack = Stack::open(Vec::new(), Some(Upper::create(&old, &stack_options).unwrap())).unwrap();
        stack.write_at(&[1; 4096], 0).unwrap();
        let new = Upper::create(&files(directory.path(), "new"), &stack_options).unwrap();
        let error = stack.restack(new, &directory.path().join("missing/sealed")).unwrap_err();
        assert!(error.to_string().contains("missing/sealed"), "{error}");
        stack.write_at(&[2; 4096], 4096).unwrap();
        stack.flush().unwrap();
        drop(stack);
        let stack = Stack::open(Vec::new(), Some(Upper::open(&old, 0).unwrap())).unwrap();
        let mut blocks = [0; 8192];
        stack.read_at(&mut blocks, 0).unwrap();
        assert_eq!((blocks[0], blocks[4096]), (1, 2), "{mode:?}");
        // And the next restack works.
        let new = Upper::create(&files(directory.path(), "next"), &stack_options).unwrap();
        stack.restack(new, &directory.path().join("sealed")).unwrap();
        stack.read_at(&mut blocks, 0).unwrap();
        assert_eq!((blocks[0], blocks[4096]), (1, 2), "{mode:?}");
    }
}

#[test]
fn writes_during_a_failing_restack_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let stack = empty_disk(directory.path(), SIZE);
    let stop = std::sync::atomic::AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut step = 0_u64;
            while !stop.load(std::sync::atomic::Ordering::SeqCst) {
                step += 1;
                let mut sector = [0; 512];
                sector[..8].copy_from_slice(&step.to_le_bytes());
                stack.write_at(&sector, step % 128 * 512).unwrap();
                let mut again = [0; 512];
                stack.read_at(&mut again, step % 128 * 512).unwrap();
                assert_eq!(sector, again);
            }
            step
        });
        for attempt in 0..40 {
            let new_files = files(directory.path(), &format!("new-{attempt}"));
            let new = Upper::create(&new_files, &options(SIZE)).unwrap();
            stack.restack(new, &directory.path().join("missing/sealed")).unwrap_err();
            assert!(!new_files.data.exists(), "a restart would put it on top of what is written from now on");
        }
        stop.store(true, std::sync::atomic::Ordering::SeqCst);
        writer.join().unwrap()
    });
    assert!(written > 128, "only {written} writes");
    stack.flush().unwrap();
    drop(stack);
    let upper = Upper::open(&files(directory.path(), "upper"), 0).unwrap();
    let stack = Stack::open(Vec::new(), Some(upper)).unwrap();
    for step in written - 127..=written {
        let mut sector = [0; 512];
        stack.read_at(&mut sector, step % 128 * 512).unwrap();
        assert_eq!(u64::from_le_bytes(*sector.first_chunk().unwrap()), step);
    }
}

#[test]
fn an_upper_to_continue_on_must_be_new_and_of_the_same_size() {
    let directory = tempfile::tempdir().unwrap();
    let stack = empty_disk(directory.path(), SIZE);
    let small = Upper::create(&files(directory.path(), "small"), &options(SIZE / 2)).unwrap();
    let sealed = directory.path().join("sealed");
    assert!(matches!(stack.restack(small, &sealed), Err(StackError::SizeMismatch { .. })));
    let used_files = files(directory.path(), "used");
    let used = Stack::open(Vec::new(), Some(Upper::create(&used_files, &options(SIZE)).unwrap())).unwrap();
    used.write_at(&[1; 512], 0).unwrap();
    drop(used);
    let used = Upper::open(&used_files, 0).unwrap();
    assert!(matches!(stack.restack(used, &sealed), Err(StackError::UpperNotEmpty { .. })));
    stack.write_at(&[1; 512], 0).unwrap();
}

#[test]
fn a_seal_interrupted_by_a_crash_can_be_repeated() {
    for mode in [UpperMode::Append, UpperMode::Sparse] {
        let directory = tempfile::tempdir().unwrap();
        let upper = files(directory.path(), "upper");
        let options = UpperOptions { mode, ..options(SIZE) };
        let stack = Stack::open(Vec::new(), Some(Upper::create(&upper, &options).unwrap())).unwrap();
        stack.write_at(&[1; 4096], 8192).unwrap();
        drop(stack);
        let index_before = fs::read(&upper.index).unwrap();
        // The crash comes after index and trailer were written and before the rename.
        let sealed = directory.path().join("sealed");
        Upper::open(&upper, 0).unwrap().seal(&sealed).unwrap();
        fs::rename(&sealed, &upper.data).unwrap();
        fs::write(&upper.index, index_before).unwrap();
        let layer = Upper::open(&upper, 0).unwrap().seal(&sealed).unwrap();
        for layer in [layer, Layer::open_file(&sealed).unwrap()] {
            let stack = Stack::open(vec![layer], None).unwrap();
            let mut disk = vec![0; usize::try_from(SIZE).unwrap()];
            stack.read_at(&mut disk, 0).unwrap();
            assert_eq!(disk.iter().map(|&byte| usize::from(byte)).sum::<usize>(), 4096, "{mode:?}");
            assert_eq!(disk[8192], 1, "{mode:?}");
        }
    }
}

/// A small file system that is full quickly.
struct SmallFileSystem(tempfile::TempDir);

impl SmallFileSystem {
    fn mount(bytes: u64) -> SmallFileSystem {
        let directory = tempfile::tempdir().unwrap();
        let size = format!("size={bytes}");
        let status =
            Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(directory.path()).status();
        assert!(status.unwrap().success(), "mounting a tmpfs needs root");
        SmallFileSystem(directory)
    }
}

impl Drop for SmallFileSystem {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_file_system_fails_writes_with_its_reason_and_loses_nothing_older() {
    let small = SmallFileSystem::mount(256 * 1024);
    let directory = small.0.path();
    let stack = empty_disk(directory, SIZE);
    let mut written = 0;
    let error = loop {
        match stack.write_at(&[7; 4096], written * 4096) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC.raw_os_error(), "{error}");
    assert!(written > 50, "{written} blocks fitted");
    // Rewriting in place needs no space.
    stack.write_at(&[8; 4096], 0).unwrap();
    stack.flush().unwrap();
    // Sealing needs space for index and trailer. The old upper stays in use.
    let error = stack.seal(&directory.join("sealed")).unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC.raw_os_error(), "{error}");
    stack.write_at(&[9; 4096], 4096).unwrap();
    drop(stack);
    let stack = Stack::open(Vec::new(), Some(Upper::open(&files(directory, "upper"), 0).unwrap())).unwrap();
    let mut disk = vec![0; usize::try_from(SIZE).unwrap()];
    stack.read_at(&mut disk, 0).unwrap();
    for (number, block) in (0..written).zip(disk.chunks(4096)) {
        let expected = match number {
            0 => 8,
            1 => 9,
            _ => 7,
        };
        assert!(block.iter().all(|&byte| byte == expected), "block {number}");
    }
}

#[test]
fn entries_that_found_no_space_are_written_when_there_is_some_again() {
    let small = SmallFileSystem::mount(64 * 1024);
    let upper = overlaybd::UpperFiles {
        data: tempfile::tempdir().unwrap().keep().join("data"),
        index: small.0.path().join("index"),
    };
    let stack = Stack::open(Vec::new(), Some(Upper::create(&upper, &options(SIZE)).unwrap())).unwrap();
    let filler = small.0.path().join("filler");
    // The index file gets its next page only when there is room.
    let mut sector = 0;
    while sector < 256 {
        stack.write_at(&[1; 512], sector * 2 % 2048 * 512).unwrap();
        sector += 1;
    }
    let mut bytes = 60 * 1024;
    while fs::write(&filler, vec![1; bytes]).is_err() {
        bytes -= 4096;
    }
    let mut failed = Vec::new();
    for sector in 256..1024 {
        if stack.write_at(&[2; 512], sector * 2 * 512 % SIZE).is_err() {
            failed.push(sector);
        }
    }
    assert!(!failed.is_empty(), "the index file never ran out of space");
    stack.flush().unwrap_err();
    fs::remove_file(&filler).unwrap();
    stack.flush().unwrap();
    let mut before = vec![0; usize::try_from(SIZE).unwrap()];
    stack.read_at(&mut before, 0).unwrap();
    drop(stack);
    let stack = Stack::open(Vec::new(), Some(Upper::open(&upper, 0).unwrap())).unwrap();
    let mut after = vec![0; usize::try_from(SIZE).unwrap()];
    stack.read_at(&mut after, 0).unwrap();
    assert!(before == after, "what was flushed is what is found");
    fs::remove_dir_all(upper.data.parent().unwrap()).unwrap();
}
