//! Random 4 KiB reads of a plain stack of three layers against raw `pread` of a file in the page cache.
//!
//! Both run on one thread, one read at a time, in alternating repetitions on the same data, so that the ratio does not
//! depend on the machine's speed. The data set is written anew each time (about 2.5 GB in passing) below the directory
//! given as argument, or the temporary directory.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use overlaybd::{CommitOptions, Layer, Stack, Upper, UpperFiles, UpperMode, UpperOptions, commit};
use uuid::Uuid;

type Failure = Box<dyn std::error::Error>;

const VIRTUAL_BYTES: u64 = 1 << 30;
const BLOCKS: u64 = VIRTUAL_BYTES / 4096;
const READS: u64 = 500_000;
const REPETITIONS: usize = 9;
const TARGET: f64 = 0.5;
/// Sum of the first word of every read, known from other implementations reading their own copy of this data set.
const CHECK_VALUE: u64 = 5_401_326_286_446_287_361;

fn main() -> Result<(), Failure> {
    let parent = std::env::args_os().nth(1).map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(parent)?;
    eprintln!("writing the data set to {}", directory.path().display());
    let layers = data_set(directory.path())?;
    let base = File::open(directory.path().join("base"))?;
    let stack = Stack::open(layers, None)?;

    let ours =
        |stream, reads| random_reads(stream, reads, |buffer, block| Ok(stack.read_at(buffer, block * 4096)?));
    // The base layer holds every block of the disk in order, behind its header.
    let raw = |stream, reads| {
        random_reads(stream, reads, |buffer, block| Ok(base.read_exact_at(buffer, 4096 + block * 4096)?))
    };
    ours(100, READS / 10)?;
    raw(100, READS / 10)?;
    let (mut of_ours, mut of_raw, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for repetition in 1..=REPETITIONS {
        let (raw_rate, _) = raw(101, READS)?;
        let (our_rate, check) = ours(101, READS)?;
        if check != CHECK_VALUE {
            return Err(format!("wrong data: check value {check}, expected {CHECK_VALUE}").into());
        }
        println!(
            "repetition {repetition}: stack {our_rate:.0} IOPS, pread {raw_rate:.0} IOPS, ratio {:.3}",
            our_rate / raw_rate
        );
        of_ours.push(our_rate);
        of_raw.push(raw_rate);
        ratios.push(our_rate / raw_rate);
    }
    let (ours_iops, pread_iops, ratio) = (median(of_ours), median(of_raw), median(ratios));
    println!(
        "medians: stack {ours_iops:.0} IOPS, pread {pread_iops:.0} IOPS, ratio {ratio:.3} (required {TARGET})"
    );
    println!(
        "bench stack_random_read ratio={ratio:.3} ours_iops={ours_iops:.0} pread_iops={pread_iops:.0} target={TARGET}"
    );
    if ratio < TARGET { Err("below the target".into()) } else { Ok(()) }
}

/// Reads random blocks; gives the rate per second and the sum of the first words.
fn random_reads(
    stream: u64,
    reads: u64,
    read: impl Fn(&mut [u8], u64) -> Result<(), Failure>,
) -> Result<(f64, u64), Failure> {
    let mut buffer = [0; 4096];
    let mut sum = 0_u64;
    let start = Instant::now();
    for i in 0..reads {
        read(&mut buffer, random(stream, i) % BLOCKS)?;
        sum = sum.wrapping_add(u64::from_le_bytes(*buffer.first_chunk().ok_or("no word")?));
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate to a few digits")]
    let rate = reads as f64 / start.elapsed().as_secs_f64();
    Ok((rate, sum))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Three layers: every block once, then 8192 random pieces of 16 KiB, then 8192 of 4 KiB.
fn data_set(directory: &Path) -> Result<Vec<Arc<Layer>>, Failure> {
    let base = layer(directory, "base", 1, 1 << 20, (0..1024).map(|i| i << 20))?;
    let mid = layer(directory, "mid", 2, 16384, (0..8192).map(|i| random(2, i) % 65536 * 16384))?;
    let top = layer(directory, "top", 3, 4096, (0..8192).map(|i| random(3, i) % BLOCKS * 4096))?;
    Ok(vec![base, mid, top])
}

fn layer(
    directory: &Path,
    name: &str,
    seed: u64,
    bytes: usize,
    offsets: impl Iterator<Item = u64>,
) -> Result<Arc<Layer>, Failure> {
    let files = UpperFiles { data: directory.join("upper.data"), index: directory.join("upper.index") };
    let options = UpperOptions {
        mode: UpperMode::Append,
        virtual_size_bytes: VIRTUAL_BYTES,
        uuid: Uuid::from_u128(u128::from(seed)),
        parent_uuid: None,
        group_commit_bytes: 0,
    };
    let stack = Stack::open(Vec::new(), Some(Upper::create(&files, &options)?))?;
    let words: Vec<u64> = (0..128).map(|word| mix(word) & 0x3F3F_3F3F_3F3F_3F3F).collect();
    let mut buffer = vec![0; bytes];
    for offset in offsets {
        for (number, word) in (offset / 8..).zip(buffer.as_chunks_mut::<8>().0) {
            let choice = mix((seed << 40) ^ number) % 128;
            *word = words[usize::try_from(choice)?].to_le_bytes();
        }
        stack.write_at(&buffer, offset)?;
    }
    let sealed_path = directory.join("sealed");
    let sealed = stack.seal(&sealed_path)?;
    let path = directory.join(name);
    let mut output = BufWriter::new(File::create(&path)?);
    commit(&[sealed], &CommitOptions { uuid: Some(options.uuid), ..CommitOptions::default() }, &mut output)?;
    output.flush()?;
    std::fs::remove_file(sealed_path)?;
    Ok(Layer::open_file(&path)?)
}

fn random(stream: u64, i: u64) -> u64 {
    mix((stream << 32).wrapping_add(i))
}

fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
