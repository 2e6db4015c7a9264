//! Files written by the reference implementation read as they must.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use overlaybd::{Layer, LayerError, Mapping, Stack, StackError, Upper, UpperFiles, UpperMode};

use crate::content::{Model, golden, sha256, table};

/// Stacks with a ZFile in them.
const COMPRESSED: [&str; 8] =
    ["empty-zfile", "main-mixed-zfile", "main-tar", "bigtext", "deep", "deep-half", "ext4-1", "ext4-2"];

fn lowers(list: &str) -> Result<Vec<Arc<Layer>>, LayerError> {
    let names = list.split(',').filter(|name| *name != "-");
    names.map(|name| Layer::open_file(&golden().join(name))).collect()
}

/// A copy that can be written to; the golden set itself is not touched.
fn copy_of_upper(prefix: &str, directory: &Path) -> UpperFiles {
    let files = UpperFiles { data: directory.join("upper.data"), index: directory.join("upper.index") };
    for (from, to) in [("data", &files.data), ("index", &files.index)] {
        // Not fs::copy, which keeps the read-only mode.
        fs::write(to, fs::read(golden().join(format!("{prefix}.{from}"))).unwrap()).unwrap();
    }
    files
}

fn whole_disk(stack: &Stack) -> Vec<u8> {
    let mut disk = vec![0xee; usize::try_from(stack.virtual_size_bytes()).unwrap()];
    stack.read_at(&mut disk, 0).unwrap();
    disk
}

fn open(layers: &str, upper: &str, writable: bool, directory: &Path) -> Stack {
    let upper = (upper != "-").then(|| {
        let files = copy_of_upper(upper, directory);
        if writable { Upper::open(&files, 0).unwrap() } else { Upper::open_read_only(&files).unwrap() }
    });
    Stack::open(lowers(layers).unwrap(), upper).unwrap()
}

#[test]
fn every_plain_stack_has_the_expected_size_and_content() {
    let mut seen = 0;
    for line in table("stacks.tsv") {
        let [label, layers, upper, size, digest] = &line[..] else { panic!("odd line {line:?}") };
        if COMPRESSED.contains(&label.as_str()) {
            continue;
        }
        for writable in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let stack = open(layers, upper, writable, directory.path());
            assert_eq!(stack.virtual_size_bytes().to_string(), *size, "{label}");
            assert_eq!(sha256(&whole_disk(&stack)), *digest, "{label}, writable: {writable}");
        }
        seen += 1;
    }
    assert_eq!(seen, 15, "plain stacks in the golden set");
}

#[test]
fn every_stack_with_a_compressed_layer_is_refused_as_such() {
    for label in COMPRESSED {
        let line = table("stacks.tsv").into_iter().find(|line| line[0] == label).unwrap();
        let error = lowers(&line[1]).unwrap_err();
        assert!(matches!(error.cause(), LayerError::Compressed), "{label}: {error}");
        assert!(error.to_string().contains("not supported yet by this version"), "{error}");
    }
}

#[test]
fn every_range_of_a_plain_stack_has_the_expected_content() {
    let stacks = table("stacks.tsv");
    let directory = tempfile::tempdir().unwrap();
    let mut open_stack: Option<(String, Stack)> = None;
    let mut seen = 0;
    for line in table("reads.tsv") {
        let [label, offset, length, digest] = &line[..] else { panic!("odd line {line:?}") };
        if COMPRESSED.contains(&label.as_str()) {
            continue;
        }
        if open_stack.as_ref().is_none_or(|(open_label, _)| open_label != label) {
            let huge = || vec!["huge".to_owned(), "lsmt/huge.lsmt".to_owned(), "-".to_owned()];
            let of_label = stacks.iter().find(|line| line[0] == *label).cloned().unwrap_or_else(huge);
            drop(open_stack.take());
            open_stack = Some((label.clone(), open(&of_label[1], &of_label[2], true, directory.path())));
        }
        let mut bytes = vec![0xee; length.parse().unwrap()];
        open_stack.as_ref().unwrap().1.read_at(&mut bytes, offset.parse().unwrap()).unwrap();
        assert_eq!(sha256(&bytes), *digest, "{label} {offset} {length}");
        seen += 1;
    }
    assert_eq!(seen, 90, "ranges of plain stacks in the golden set");
}

#[test]
fn the_decoded_indexes_are_those_of_the_reference() {
    for name in ["base", "empty", "huge", "merged", "mid", "sparse-committed", "top", "upper-sealed"] {
        let text = fs::read_to_string(golden().join(format!("index/{name}.lsmt.tsv"))).unwrap();
        let first: Vec<&str> = text.lines().next().unwrap().split(' ').collect();
        let layer = Layer::open_file(&golden().join(format!("lsmt/{name}.lsmt"))).unwrap();
        assert_eq!(layer.index_offset_bytes().to_string(), first[2], "{name}");
        assert_eq!(layer.index_entries().to_string(), first[4], "{name}");
        let line = |m: &Mapping| {
            format!("{}\t{}\t{}\t{}", m.sector(), m.sectors(), m.data_sector(), u8::from(m.is_zeroed()))
        };
        let ours: Vec<String> = layer.mappings().iter().map(line).collect();
        // The last column, a layer number, has a meaning in memory only.
        let expected: Vec<&str> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.rsplit_once('\t').unwrap().0)
            .collect();
        assert_eq!(ours, expected, "{name}");
    }
}

#[test]
fn headers_carry_identity_and_tag() {
    let layer = Layer::open_file(&golden().join("lsmt/mid.lsmt")).unwrap();
    let base = Layer::open_file(&golden().join("lsmt/base.lsmt")).unwrap();
    assert!(base.header().uuid.is_some());
    assert_eq!(layer.header().parent_uuid, base.header().uuid);
    assert!(!layer.header().user_tag.is_empty());
}

#[test]
fn a_layer_in_a_plain_tar_reads_as_its_operations_say() {
    let layer = Layer::open_file(&golden().join("tar/top.plain-ustar.tar")).unwrap();
    let stack = Stack::open(vec![layer], None).unwrap();
    assert!(whole_disk(&stack) == Model::replay(&["top.ops"]).bytes);
}

#[test]
fn a_compressed_layer_in_a_pax_tar_is_recognised() {
    let error = Layer::open_file(&golden().join("tar/base.overlaybd.tar")).unwrap_err();
    assert!(matches!(error.cause(), LayerError::Compressed), "{error}");
}

#[test]
fn a_pax_wrapped_plain_layer_reads_as_its_operations_say() {
    // The golden pax archives hold compressed layers; their wrapper around a plain one is as good.
    let layer = fs::read(golden().join("lsmt/top.lsmt")).unwrap();
    let mut archive = fs::read(golden().join("tar/base.overlaybd.tar")).unwrap()[..1536].to_vec();
    let record = format!("15 size={}\n", layer.len());
    assert_eq!(record.len(), 15);
    archive[512..512 + 15].copy_from_slice(record.as_bytes());
    set_tar_size(&mut archive, 15);
    archive.extend_from_slice(&layer);
    archive.extend_from_slice(&[0; 1024]);
    let stack = Stack::open(vec![Layer::open(Arc::new(archive)).unwrap()], None).unwrap();
    assert!(whole_disk(&stack) == Model::replay(&["top.ops"]).bytes);
}

/// Changes the size in the first header of an archive, and its checksum.
fn set_tar_size(archive: &mut [u8], size: usize) {
    archive[124..136].copy_from_slice(format!("{size:011o} ").as_bytes());
    archive[148..156].fill(b' ');
    let sum: u32 = archive[..512].iter().map(|&byte| u32::from(byte)).sum();
    archive[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

#[test]
fn the_plain_ones_of_the_deep_layers_stack_as_their_operations_say() {
    let plain: Vec<u32> = (0..20).filter(|number| number % 3 != 2).collect();
    let names: Vec<String> = plain.iter().map(|number| format!("deep/d{number:02}.lsmt")).collect();
    let lists: Vec<String> = plain.iter().map(|number| format!("deep-d{number:02}.ops")).collect();
    let stack = Stack::open(lowers(&names.join(",")).unwrap(), None).unwrap();
    let expected = Model::replay(&lists.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(whole_disk(&stack) == expected.bytes);
}

#[test]
fn a_sparse_upper_shows_lower_layers_through_its_holes() {
    let directory = tempfile::tempdir().unwrap();
    let files = copy_of_upper("rw/sparse", directory.path());
    dig_holes(&files.data);
    let lower = Layer::open_file(&golden().join("deep/d00.lsmt")).unwrap();
    let upper = Upper::open(&files, 0).unwrap();
    assert_eq!(upper.mode(), UpperMode::Sparse);
    let stack = Stack::open(vec![lower], Some(upper)).unwrap();
    let (below, over) = (Model::replay(&["deep-d00.ops"]), Model::replay(&["sparse.ops"]));
    let disk = whole_disk(&stack);
    for (sector, place) in disk.chunks(512).enumerate() {
        // A discard of the reference is a hole in its sparse files: it lasts only as long as its process.
        let written = over.bytes[sector * 512..][..512].iter().any(|&byte| byte != 0);
        let expected = if written { &over.bytes } else { &below.bytes };
        assert!(*place == expected[sector * 512..][..512], "sector {sector}");
    }
}

fn dig_holes(path: &Path) {
    let status = Command::new("fallocate").arg("-d").arg(path).status().unwrap();
    assert!(status.success(), "fallocate -d");
}

#[test]
fn looking_at_an_upper_changes_nothing() {
    for prefix in ["rw/upper", "rw/upper-groupcommit", "rw/upper-tornindex", "rw/fresh", "rw/sparse"] {
        let directory = tempfile::tempdir().unwrap();
        let files = copy_of_upper(prefix, directory.path());
        let stack = Stack::open(Vec::new(), Some(Upper::open_read_only(&files).unwrap())).unwrap();
        assert!(matches!(stack.write_at(&[0; 512], 0), Err(StackError::ReadOnly)));
        stack.flush().unwrap();
        drop(stack);
        for (extension, path) in [("data", &files.data), ("index", &files.index)] {
            let original = fs::read(golden().join(format!("{prefix}.{extension}"))).unwrap();
            assert!(fs::read(path).unwrap() == original, "{prefix}.{extension}");
        }
    }
}

#[test]
fn a_torn_entry_is_cut_before_the_next_one_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let files = copy_of_upper("rw/upper-tornindex", directory.path());
    let stack = Stack::open(Vec::new(), Some(Upper::open(&files, 0).unwrap())).unwrap();
    let before = whole_disk(&stack);
    stack.write_at(&[7; 512], 1 << 20).unwrap();
    drop(stack);
    let stack = Stack::open(Vec::new(), Some(Upper::open(&files, 0).unwrap())).unwrap();
    let mut expected = before;
    expected[1 << 20..][..512].fill(7);
    assert!(whole_disk(&stack) == expected);
}

#[test]
fn sealing_the_golden_upper_gives_the_layer_the_reference_gives() {
    let directory = tempfile::tempdir().unwrap();
    let files = copy_of_upper("rw/upper", directory.path());
    let sealed = directory.path().join("sealed.lsmt");
    let layer = Upper::open(&files, 0).unwrap().seal(&sealed).unwrap();
    let reference = Layer::open_file(&golden().join("lsmt/upper-sealed.lsmt")).unwrap();
    let places = |layer: &Layer| -> Vec<_> {
        let place = |m: &Mapping| (m.sector(), m.sectors(), (!m.is_zeroed()).then_some(m.data_sector()));
        layer.mappings().iter().map(place).collect()
    };
    assert_eq!(places(&layer), places(&reference));
    assert_eq!(layer.header().uuid, reference.header().uuid);
    assert_eq!(layer.header().parent_uuid, reference.header().parent_uuid);
    assert_eq!(layer.index_offset_bytes(), reference.index_offset_bytes());
    // What is on disk opens by itself, too, and differs from the reference's file in entries of zeros only.
    let reopened = Layer::open_file(&sealed).unwrap();
    assert_eq!(places(&reopened), places(&reference));
    let (ours, theirs) =
        (fs::read(&sealed).unwrap(), fs::read(golden().join("lsmt/upper-sealed.lsmt")).unwrap());
    assert_eq!(ours.len(), theirs.len());
    let index = usize::try_from(layer.index_offset_bytes()).unwrap();
    assert!(ours[..index] == theirs[..index]);
    assert!(ours[ours.len() - 4096..] == theirs[theirs.len() - 4096..]);
    assert!(!files.data.exists() && !files.index.exists());
}

#[test]
fn a_fresh_upper_is_what_the_reference_makes() {
    let directory = tempfile::tempdir().unwrap();
    let files = copy_of_upper("rw/fresh", directory.path());
    let reference = Upper::open(&files, 0).unwrap().header().clone();
    let ours =
        UpperFiles { data: directory.path().join("our.data"), index: directory.path().join("our.index") };
    let options = overlaybd::UpperOptions {
        mode: UpperMode::Append,
        virtual_size_bytes: reference.virtual_size_bytes,
        uuid: reference.uuid.unwrap(),
        parent_uuid: reference.parent_uuid,
        group_commit_bytes: 0,
    };
    Upper::create(&ours, &options).unwrap();
    assert!(fs::read(ours.data).unwrap() == fs::read(golden().join("rw/fresh.data")).unwrap());
    assert!(fs::read(ours.index).unwrap() == fs::read(golden().join("rw/fresh.index")).unwrap());
}

#[test]
fn writing_the_operations_again_gives_the_files_the_reference_writes() {
    for (group_commit_bytes, prefix) in [(0, "rw/upper"), (4096, "rw/upper-groupcommit")] {
        let directory = tempfile::tempdir().unwrap();
        let golden_upper = copy_of_upper(prefix, directory.path());
        let header = Upper::open_read_only(&golden_upper).unwrap().header().clone();
        let ours =
            UpperFiles { data: directory.path().join("our.data"), index: directory.path().join("our.index") };
        let options = overlaybd::UpperOptions {
            mode: UpperMode::Append,
            virtual_size_bytes: header.virtual_size_bytes,
            uuid: header.uuid.unwrap(),
            parent_uuid: header.parent_uuid,
            group_commit_bytes,
        };
        let stack = Stack::open(Vec::new(), Some(Upper::create(&ours, &options).unwrap())).unwrap();
        let disk = Model::replay(&["upper.ops"]);
        let text = fs::read_to_string(golden().join("ops/upper.ops")).unwrap();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |from_end: usize| -> u64 { words[words.len() - from_end].parse().unwrap() };
            let (offset, length) = (number(2), number(1));
            if words[0] == "Z" {
                stack.write_zeroes(offset, length).unwrap();
            } else {
                let bytes =
                    &disk.bytes[usize::try_from(offset).unwrap()..][..usize::try_from(length).unwrap()];
                stack.write_at(bytes, offset).unwrap();
            }
        }
        stack.flush().unwrap();
        drop(stack);
        let stack = Stack::open(Vec::new(), Some(Upper::open(&ours, group_commit_bytes).unwrap())).unwrap();
        assert!(whole_disk(&stack) == disk.bytes, "{prefix}");
        let mut head = [0; 4096];
        fs::File::open(&ours.data).unwrap().read_exact_at(&mut head, 0).unwrap();
        assert!(head[..] == fs::read(golden().join(format!("{prefix}.data"))).unwrap()[..4096], "{prefix}");
        if group_commit_bytes > 0 {
            assert_eq!(fs::metadata(&ours.index).unwrap().len(), 8192, "one group, filled with padding");
        }
    }
}
