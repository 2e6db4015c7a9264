//! Arbitrarily damaged files are refused or read, but never panic and never make us allocate what they claim.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::sync::Arc;

use overlaybd::{Extent, Layer, Stack, Upper};
use proptest::prelude::*;

use crate::content::{files, golden};

/// Counts what the current thread allocates, so that a test can bound it.
struct Counting;

thread_local! {
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system allocator unchanged; counting touches only a thread-local without destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.with(|allocated| allocated.set(allocated.get().saturating_add(layout.size())));
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes the thread allocates in `work`, whether freed again or not.
fn allocated_by(work: impl FnOnce()) -> usize {
    let before = ALLOCATED.with(Cell::get);
    work();
    ALLOCATED.with(Cell::get) - before
}

#[derive(Debug, Clone)]
enum Damage {
    Flip {
        at: prop::sample::Index,
        bits: u8,
    },
    /// Sets eight bytes, as a size or an offset has.
    Number {
        at: prop::sample::Index,
        value: u64,
    },
    Truncate {
        at: prop::sample::Index,
    },
    Zero {
        at: prop::sample::Index,
        length: usize,
    },
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>();
    prop_oneof![
        6 => (at.clone(), 1..=255_u8).prop_map(|(at, bits)| Damage::Flip { at, bits }),
        4 => (at.clone(), any::<u64>(), 0..64_u32)
            .prop_map(|(at, value, shift)| Damage::Number { at, value: value >> shift }),
        1 => at.clone().prop_map(|at| Damage::Truncate { at }),
        1 => (at, 1..5000_usize).prop_map(|(at, length)| Damage::Zero { at, length }),
    ]
}

/// Most of a file is data, where damage cannot show. Half of it goes where the structure is.
fn place(bytes: &[u8], at: prop::sample::Index) -> usize {
    let whole = at.index(bytes.len() * 2);
    if whole < bytes.len() { whole } else { structure(bytes, whole - bytes.len()) }
}

fn structure(bytes: &[u8], at: usize) -> usize {
    match at % 3 {
        0 => at % 400.min(bytes.len()),
        1 => bytes.len().saturating_sub(4096) + at % 400.min(bytes.len()),
        _ => bytes.len().saturating_sub(4096 + at % 9000),
    }
    .min(bytes.len() - 1)
}

fn apply(bytes: &mut Vec<u8>, damages: &[Damage]) {
    for damage in damages {
        if bytes.is_empty() {
            return;
        }
        match damage {
            Damage::Flip { at, bits } => {
                let at = place(bytes, *at);
                bytes[at] ^= bits;
            }
            Damage::Number { at, value } => {
                let at = place(bytes, *at) & !7;
                let end = (at + 8).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            Damage::Truncate { at } => bytes.truncate(at.index(bytes.len())),
            Damage::Zero { at, length } => {
                let at = place(bytes, *at);
                let end = (at + length).min(bytes.len());
                bytes[at..end].fill(0);
            }
        }
    }
}

/// Reads a little everywhere, as far as the disk reaches.
fn read_around(stack: &Stack, seed: u64) {
    let size = stack.virtual_size_bytes();
    let mut buffer = vec![0; 65536];
    let mut extents: Vec<Extent> = Vec::new();
    for step in 0..8 {
        let offset = (crate::content::mix(seed ^ step) % size) & !511;
        let length = (size - offset).min(65536);
        // Reading may fail, and for good reasons; it must only not do worse.
        let _ = stack.read_at(&mut buffer[..usize::try_from(length).unwrap()], offset);
        let _ = stack.extents(offset, length, &mut extents);
    }
    let _ = stack.extents(0, size, &mut extents);
}

const LAYERS: [&str; 9] = [
    "lsmt/base.lsmt",
    "lsmt/mid.lsmt",
    "lsmt/top.lsmt",
    "lsmt/huge.lsmt",
    "lsmt/empty.lsmt",
    "lsmt/upper-sealed.lsmt",
    "tar/top.plain-ustar.tar",
    "tar/mid.overlaybd.tar",
    "zfile/odd-size.zfile",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_layer_neither_panics_nor_fills_memory(
        layer in 0..LAYERS.len(),
        damages in prop::collection::vec(damage(), 1..6),
        seed in any::<u64>(),
    ) {
        let mut bytes = fs::read(golden().join(LAYERS[layer])).unwrap();
        apply(&mut bytes, &damages);
        let bytes: Arc<Vec<u8>> = Arc::new(bytes);
        let allocated = allocated_by(|| {
            if let Ok(layer) = Layer::open(bytes)
                && let Ok(stack) = Stack::open(vec![layer], None)
            {
                read_around(&stack, seed);
            }
        });
        prop_assert!(allocated < 4 << 20, "{} bytes allocated", allocated);
    }

    #[test]
    fn a_damaged_upper_neither_panics_nor_fills_memory(
        upper in prop::sample::select(vec!["rw/upper", "rw/upper-groupcommit", "rw/upper-tornindex", "rw/fresh"]),
        data_damages in prop::collection::vec(damage(), 0..3),
        index_damages in prop::collection::vec(damage(), 0..4),
        seed in any::<u64>(),
    ) {
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path(), "upper");
        for (path, extension, damages) in [(&files.data, "data", &data_damages), (&files.index, "index", &index_damages)] {
            let mut bytes = fs::read(golden().join(format!("{upper}.{extension}"))).unwrap();
            apply(&mut bytes, damages);
            fs::write(path, bytes).unwrap();
        }
        let allocated = allocated_by(|| {
            if let Ok(upper) = Upper::open(&files, 0)
                && let Ok(stack) = Stack::open(Vec::new(), Some(upper))
            {
                read_around(&stack, seed);
                let _ = stack.write_at(&[7; 512], 0);
                let _ = stack.write_zeroes(0, stack.virtual_size_bytes().min(1 << 20));
                let _ = stack.flush();
            }
        });
        prop_assert!(allocated < 4 << 20, "{} bytes allocated", allocated);
    }

    #[test]
    fn an_upper_with_any_entries_opens(entries in prop::collection::vec(any::<[u8; 16]>(), 0..64), torn in 0..16_usize) {
        // A crash can leave anything behind the flushed entries; none of it may make the upper unopenable.
        let directory = tempfile::tempdir().unwrap();
        let files = files(directory.path(), "upper");
        fs::write(&files.data, fs::read(golden().join("rw/upper.data")).unwrap()).unwrap();
        let mut index = fs::read(golden().join("rw/upper.index")).unwrap();
        index.extend(entries.concat());
        index.extend(&[0xff; 16][..torn]);
        fs::write(&files.index, index).unwrap();
        let stack = Stack::open(Vec::new(), Some(Upper::open(&files, 0).unwrap())).unwrap();
        read_around(&stack, 1);
    }
}
