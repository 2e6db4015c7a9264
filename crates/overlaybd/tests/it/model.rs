//! A stack with an upper behaves like a plain array of bytes, whatever happens in between.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use overlaybd::{CommitOptions, Layer, Stack, Upper, UpperFiles, UpperMode, UpperOptions, commit};
use proptest::prelude::*;

use crate::content::{files, options};

const SECTORS: u64 = 256;

#[derive(Debug, Clone)]
enum Step {
    Write {
        sector: u64,
        sectors: u64,
        fill: u8,
    },
    Zero {
        sector: u64,
        sectors: u64,
    },
    Flush,
    /// Close everything and open it again from its files.
    Reopen,
    /// Seal the live upper and continue on a new one.
    Restack,
    /// Replace all layers by one.
    Compact,
}

fn range() -> impl Strategy<Value = (u64, u64)> {
    // Whole blocks as file systems write them, and odd sectors at any place.
    prop_oneof![
        (0..SECTORS / 8, 1..9_u64).prop_map(|(block, blocks)| (block * 8, blocks * 8)),
        (0..SECTORS, 1..30_u64),
    ]
    .prop_map(|(sector, sectors)| (sector, sectors.min(SECTORS - sector)))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (range(), 1..=255_u8).prop_map(|((sector, sectors), fill)| Step::Write { sector, sectors, fill }),
        4 => range().prop_map(|(sector, sectors)| Step::Zero { sector, sectors }),
        2 => Just(Step::Flush),
        2 => Just(Step::Reopen),
        1 => Just(Step::Restack),
        1 => Just(Step::Compact),
    ]
}

/// The disk under test and where its parts are.
struct Disk {
    directory: PathBuf,
    mode: UpperMode,
    group_commit_bytes: u32,
    lowers: Vec<PathBuf>,
    upper: UpperFiles,
    made: usize,
    stack: Stack,
}

impl Disk {
    fn new(directory: &Path, mode: UpperMode, group_commit_bytes: u32) -> Disk {
        let upper = files(directory, "upper-0");
        let created = Upper::create(&upper, &upper_options(mode, group_commit_bytes)).unwrap();
        let stack = Stack::open(Vec::new(), Some(created)).unwrap();
        let directory = directory.to_owned();
        Disk { directory, mode, group_commit_bytes, lowers: Vec::new(), upper, made: 0, stack }
    }

    fn reopen(&mut self) {
        self.reopen_with(|_| {});
    }

    /// Closes the disk, lets `between` change its upper's files, opens it again.
    fn reopen_with(&mut self, between: impl FnOnce(&UpperFiles)) {
        let spare = files(&self.directory, &format!("spare-{}", self.made));
        self.made += 1;
        let spare = Upper::create(&spare, &options(512)).unwrap();
        self.stack = Stack::open(Vec::new(), Some(spare)).unwrap();
        between(&self.upper);
        let lowers = self.lowers.iter().map(|path| Layer::open_file(path).unwrap()).collect();
        let upper = Upper::open(&self.upper, self.group_commit_bytes).unwrap();
        self.stack = Stack::open(lowers, Some(upper)).unwrap();
    }

    fn restack(&mut self) {
        self.made += 1;
        let next = files(&self.directory, &format!("upper-{}", self.made));
        let sealed = self.directory.join(format!("layer-{}", self.made));
        let upper = Upper::create(&next, &upper_options(self.mode, self.group_commit_bytes)).unwrap();
        self.stack.restack(upper, &sealed).unwrap();
        self.upper = next;
        self.lowers.push(sealed);
    }

    fn compact(&mut self) {
        let layers: Vec<Arc<Layer>> = self.stack.lowers();
        if layers.is_empty() {
            return;
        }
        self.made += 1;
        let path = self.directory.join(format!("layer-{}", self.made));
        commit(&layers, &CommitOptions::default(), &mut std::fs::File::create(&path).unwrap()).unwrap();
        self.lowers = vec![path];
        self.reopen();
    }

    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0xee; usize::try_from(SECTORS * 512).unwrap()];
        self.stack.read_at(&mut bytes, 0).unwrap();
        bytes
    }
}

fn upper_options(mode: UpperMode, group_commit_bytes: u32) -> UpperOptions {
    UpperOptions { mode, group_commit_bytes, ..options(SECTORS * 512) }
}

fn bytes(sector: u64, sectors: u64) -> std::ops::Range<usize> {
    usize::try_from(sector * 512).unwrap()..usize::try_from((sector + sectors) * 512).unwrap()
}

/// Content that differs in every sector, so that data read from the wrong place shows.
fn pattern(sector: u64, sectors: u64, fill: u8) -> Vec<u8> {
    (sector..sector + sectors)
        .flat_map(|sector| {
            let mut content = [fill; 512];
            content[..8].copy_from_slice(&sector.to_le_bytes());
            content
        })
        .collect()
}

fn run(mode: UpperMode, group_commit_bytes: u32, steps: &[Step]) -> Result<(), TestCaseError> {
    let directory = tempfile::tempdir().unwrap();
    let mut disk = Disk::new(directory.path(), mode, group_commit_bytes);
    let mut model = vec![0; usize::try_from(SECTORS * 512).unwrap()];
    for step in steps {
        match *step {
            Step::Write { sector, sectors, fill } => {
                let content = pattern(sector, sectors, fill);
                disk.stack.write_at(&content, sector * 512).unwrap();
                model[bytes(sector, sectors)].copy_from_slice(&content);
            }
            Step::Zero { sector, sectors } => {
                disk.stack.write_zeroes(sector * 512, sectors * 512).unwrap();
                model[bytes(sector, sectors)].fill(0);
            }
            Step::Flush => disk.stack.flush().unwrap(),
            Step::Reopen => {
                // Only a flush carries groups of entries that are not full over the end of the process.
                if group_commit_bytes > 0 {
                    disk.stack.flush().unwrap();
                }
                disk.reopen();
            }
            Step::Restack => disk.restack(),
            Step::Compact => {
                disk.stack.flush().unwrap();
                disk.compact();
            }
        }
        prop_assert!(disk.content() == model, "after {:?}", step);
    }
    // Extents say the same as reads.
    let mut extents = Vec::new();
    disk.stack.extents(0, SECTORS * 512, &mut extents).unwrap();
    let mut through_extents = Vec::new();
    for extent in extents {
        prop_assert_eq!(extent.offset_bytes, through_extents.len() as u64);
        let mut part = vec![0; usize::try_from(extent.length_bytes).unwrap()];
        if let overlaybd::ExtentSource::Data { source, offset_bytes } = extent.source {
            source.read_exact_at(&mut part, offset_bytes).unwrap();
        }
        through_extents.extend(part);
    }
    prop_assert!(through_extents == model);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn append_mode_behaves_like_an_array(steps in prop::collection::vec(step(), 1..40)) {
        run(UpperMode::Append, 0, &steps)?;
    }

    #[test]
    fn append_mode_with_groups_behaves_like_an_array(steps in prop::collection::vec(step(), 1..40)) {
        run(UpperMode::Append, 64, &steps)?;
    }

    #[test]
    fn sparse_mode_behaves_like_an_array(steps in prop::collection::vec(step(), 1..40)) {
        run(UpperMode::Sparse, 0, &steps)?;
    }
}

/// What a crash may leave of the bytes written after the last flush: files cut anywhere behind what was flushed.
#[derive(Debug, Clone, Copy)]
struct Cut {
    data: f64,
    index: f64,
}

fn cut() -> impl Strategy<Value = Cut> {
    (0.0..=1.0, 0.0..=1.0).prop_map(|(data, index)| Cut { data, index })
}

/// Runs the steps, cuts both files somewhere behind their flushed length, and checks every sector: one that was not
/// written since the flush is exact, any other shows a value it has had since.
fn crash(group_commit_bytes: u32, steps: &[Step], cuts: &[Cut]) -> Result<(), TestCaseError> {
    let directory = tempfile::tempdir().unwrap();
    let mut disk = Disk::new(directory.path(), UpperMode::Append, group_commit_bytes);
    // A lower layer, so that a lost write has something to uncover.
    disk.stack.write_at(&pattern(0, SECTORS, 0xaa), 0).unwrap();
    disk.restack();
    let mut allowed: Vec<Vec<Vec<u8>>> =
        disk.content().chunks(512).map(|sector| vec![sector.to_vec()]).collect();
    let lengths = |upper: &UpperFiles| {
        let length = |path: &Path| std::fs::metadata(path).unwrap().len();
        (length(&upper.data), length(&upper.index))
    };
    let mut flushed = lengths(&disk.upper);
    let mut cuts = cuts.iter();
    for step in steps {
        match *step {
            Step::Write { sector, sectors, fill } => {
                let content = pattern(sector, sectors, fill);
                disk.stack.write_at(&content, sector * 512).unwrap();
                for (place, content) in (sector..).zip(content.chunks(512)) {
                    allowed[usize::try_from(place).unwrap()].push(content.to_vec());
                }
            }
            Step::Zero { sector, sectors } => {
                disk.stack.write_zeroes(sector * 512, sectors * 512).unwrap();
                for place in sector..sector + sectors {
                    allowed[usize::try_from(place).unwrap()].push(vec![0; 512]);
                }
            }
            Step::Flush | Step::Compact => {
                disk.stack.flush().unwrap();
                flushed = lengths(&disk.upper);
                for values in &mut allowed {
                    values.drain(..values.len() - 1);
                }
            }
            Step::Restack => {
                disk.restack();
                flushed = lengths(&disk.upper);
                for values in &mut allowed {
                    values.drain(..values.len() - 1);
                }
            }
            Step::Reopen => {
                let Some(cut) = cuts.next() else { continue };
                disk.reopen_with(|upper| {
                    let end = lengths(upper);
                    shorten(&upper.data, flushed.0, end.0, cut.data);
                    shorten(&upper.index, flushed.1, end.1, cut.index);
                });
                let content = disk.content();
                for (number, (sector, values)) in content.chunks(512).zip(&mut allowed).enumerate() {
                    prop_assert!(
                        values.iter().any(|value| value == sector),
                        "sector {} has a value that it should not have; {} are possible",
                        number,
                        values.len()
                    );
                    *values = vec![sector.to_vec()];
                }
                // What was found is there to stay once it is flushed.
                disk.stack.flush().unwrap();
                flushed = lengths(&disk.upper);
            }
        }
    }
    Ok(())
}

fn shorten(path: &Path, flushed: u64, end: u64, part: f64) {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "any place will do"
    )]
    let keep = flushed + ((end - flushed) as f64 * part) as u64;
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(keep.min(end)).unwrap();
}

fn crash_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        12 => (range(), 1..=255_u8).prop_map(|((sector, sectors), fill)| Step::Write { sector, sectors, fill }),
        3 => range().prop_map(|(sector, sectors)| Step::Zero { sector, sectors }),
        2 => Just(Step::Flush),
        2 => Just(Step::Reopen),
        1 => Just(Step::Restack),
    ];
    (prop::collection::vec(step, 1..40), Just(Step::Reopen)).prop_map(|(mut steps, last)| {
        steps.push(last);
        steps
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_cut_of_the_files_loses_nothing_flushed(
        steps in crash_steps(),
        cuts in prop::collection::vec(cut(), 12),
    ) {
        crash(0, &steps, &cuts)?;
    }

    #[test]
    fn a_cut_of_the_files_loses_nothing_flushed_with_groups(
        steps in crash_steps(),
        cuts in prop::collection::vec(cut(), 12),
    ) {
        crash(64, &steps, &cuts)?;
    }
}
