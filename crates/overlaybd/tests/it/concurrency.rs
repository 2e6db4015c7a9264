//! Many threads on one stack.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use overlaybd::{Layer, Stack, Upper, UpperMode, UpperOptions};

use crate::content::{empty_disk, files, mix, options};

const BLOCK: usize = 4096;
const THREADS: u64 = 4;
const BLOCKS: u64 = 256;

/// A block that says where it belongs and which write it is from.
fn block(number: u64, version: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    for words in bytes.as_chunks_mut::<16>().0 {
        words[..8].copy_from_slice(&number.to_le_bytes());
        words[8..].copy_from_slice(&version.to_le_bytes());
    }
    bytes
}

fn version(stack: &Stack, number: u64) -> u64 {
    let mut bytes = [0; BLOCK];
    stack.read_at(&mut bytes, number * BLOCK as u64).unwrap();
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    assert!(
        bytes == block(if version == 0 { 0 } else { number }, version),
        "block {number} is torn or misplaced"
    );
    version
}

/// Reads a block that another thread may be writing. As on any disk, such a read may see part of the write; but every
/// word must be zero or belong to this block.
fn check_place(stack: &Stack, number: u64) {
    let mut bytes = [0; BLOCK];
    stack.read_at(&mut bytes, number * BLOCK as u64).unwrap();
    for words in bytes.as_chunks::<16>().0 {
        let place = u64::from_le_bytes(words[..8].try_into().unwrap());
        assert!(place == 0 || place == number, "block {number} shows data of block {place}");
    }
}

/// Each thread owns every fourth block and writes growing versions; what it has written it must read, always. Meanwhile
/// the main thread flushes and restacks.
fn writers_and_restacks(mode: UpperMode, group_commit_bytes: u32) {
    let directory = tempfile::tempdir().unwrap();
    let upper = |name: &str| {
        let options = UpperOptions { mode, group_commit_bytes, ..options(BLOCKS * BLOCK as u64) };
        Upper::create(&files(directory.path(), name), &options).unwrap()
    };
    let stack = Stack::open(Vec::new(), Some(upper("upper-0"))).unwrap();
    let stop = AtomicBool::new(false);
    let writes = AtomicU64::new(0);
    let start = Barrier::new(usize::try_from(THREADS).unwrap() + 1);
    let restacks = 12;
    let versions: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (stack, stop, start, writes) = (&stack, &stop, &start, &writes);
                scope.spawn(move || {
                    let mut versions = vec![0; usize::try_from(BLOCKS / THREADS).unwrap()];
                    start.wait();
                    let mut step = 0;
                    while !stop.load(Ordering::SeqCst) {
                        step += 1;
                        let own = mix(step ^ thread << 40) % (BLOCKS / THREADS);
                        let number = own * THREADS + thread;
                        let current = &mut versions[usize::try_from(own).unwrap()];
                        if step % 11 == 0 {
                            stack.write_zeroes(number * BLOCK as u64, BLOCK as u64).unwrap();
                            *current = 0;
                        } else {
                            stack.write_at(&block(number, step), number * BLOCK as u64).unwrap();
                            *current = step;
                        }
                        assert_eq!(version(stack, number), *current, "thread {thread} reads what it wrote");
                        check_place(stack, mix(step) % BLOCKS);
                        writes.fetch_add(1, Ordering::SeqCst);
                    }
                    versions
                })
            })
            .collect();
        start.wait();
        for round in 1..=restacks {
            let before = writes.load(Ordering::SeqCst);
            while writes.load(Ordering::SeqCst) < before + 200 {
                std::thread::sleep(Duration::from_millis(1));
            }
            stack.flush().unwrap();
            let sealed = directory.path().join(format!("layer-{round}"));
            stack.restack(upper(&format!("upper-{round}")), &sealed).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let check = |stack: &Stack| {
        for number in 0..BLOCKS {
            let thread = usize::try_from(number % THREADS).unwrap();
            let own = usize::try_from(number / THREADS).unwrap();
            assert_eq!(version(stack, number), versions[thread][own], "block {number}");
        }
    };
    check(&stack);
    stack.flush().unwrap();
    drop(stack);
    let lowers = (1..=restacks)
        .map(|round| Layer::open_file(&directory.path().join(format!("layer-{round}"))).unwrap())
        .collect();
    let upper =
        Upper::open(&files(directory.path(), &format!("upper-{restacks}")), group_commit_bytes).unwrap();
    check(&Stack::open(lowers, Some(upper)).unwrap());
}

#[test]
fn writers_keep_their_writes_over_restacks_in_append_mode() {
    writers_and_restacks(UpperMode::Append, 0);
}

#[test]
fn writers_keep_their_writes_over_restacks_with_groups() {
    writers_and_restacks(UpperMode::Append, 4096);
}

#[test]
fn writers_keep_their_writes_over_restacks_in_sparse_mode() {
    writers_and_restacks(UpperMode::Sparse, 0);
}

#[test]
fn neighbours_within_a_block_do_not_lose_each_others_sectors_in_sparse_mode() {
    for round in 0..50_u8 {
        let directory = tempfile::tempdir().unwrap();
        let below = empty_disk(directory.path(), 64 * 1024);
        below.write_at(&[0xbb; 64 * 1024], 0).unwrap();
        let below = below.seal(&directory.path().join("below")).unwrap();
        let sparse = UpperOptions { mode: UpperMode::Sparse, ..options(64 * 1024) };
        let upper = Upper::create(&files(directory.path(), "sparse"), &sparse).unwrap();
        let stack = Stack::open(vec![below], Some(upper)).unwrap();
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for sector in 0..4_u64 {
                let (stack, start) = (&stack, &start);
                scope.spawn(move || {
                    start.wait();
                    for block in 0..16 {
                        stack.write_at(&[round; 512], block * 4096 + sector * 1024).unwrap();
                    }
                });
            }
        });
        let mut disk = vec![0; 64 * 1024];
        stack.read_at(&mut disk, 0).unwrap();
        for (sector, bytes) in disk.chunks(512).enumerate() {
            let expected = if sector % 2 == 0 { round } else { 0xbb };
            assert!(bytes.iter().all(|&byte| byte == expected), "round {round}, sector {sector}");
        }
    }
}

#[test]
fn concurrent_flushes_and_overlapping_writes_leave_one_of_the_writes() {
    let directory = tempfile::tempdir().unwrap();
    let stack = empty_disk(directory.path(), 1 << 20);
    std::thread::scope(|scope| {
        for thread in 1..=4_u64 {
            let stack = &stack;
            scope.spawn(move || {
                for step in 0..200 {
                    stack.write_at(&block(3, thread << 32 | step), 3 * BLOCK as u64).unwrap();
                    if step % 20 == 0 {
                        stack.flush().unwrap();
                    }
                }
            });
        }
    });
    let last = version(&stack, 3);
    assert_eq!(last & 0xffff_ffff, 199, "the last write of some thread");
    drop(stack);
    let upper = Upper::open(&files(directory.path(), "upper"), 0).unwrap();
    assert_eq!(version(&Stack::open(Vec::new(), Some(upper)).unwrap(), 3), last, "the same after a reopen");
}
