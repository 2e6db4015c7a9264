//! `aenv layer read`.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{bail, ensure};
use overlaybd::{Layer, SECTOR_BYTES, Stack, Upper, UpperFiles};

/// Bytes read at a time.
const CHUNK_BYTES: u64 = 1 << 20;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Read-only layers, bottom first.
    #[arg(value_name = "FILE", conflicts_with = "lowers")]
    pub(super) files: Vec<PathBuf>,
    /// A read-only layer; repeat it, bottom first. The same as FILE.
    #[arg(long = "lower", value_name = "FILE")]
    pub(super) lowers: Vec<PathBuf>,
    /// Data file of the writable layer on top.
    #[arg(long, value_name = "FILE", requires = "upper_index")]
    pub(super) upper_data: Option<PathBuf>,
    /// Index file of the writable layer on top.
    #[arg(long, value_name = "FILE", requires = "upper_data")]
    pub(super) upper_index: Option<PathBuf>,
    /// Where on the disk to begin, in bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    pub(super) offset: u64,
    /// How many bytes to write. Default: up to the end of the disk.
    #[arg(long, value_name = "BYTES")]
    pub(super) length: Option<u64>,
}

pub(super) fn run(arguments: &Arguments, output: &mut impl Write) -> anyhow::Result<()> {
    let stack = open(arguments)?;
    let size = stack.virtual_size_bytes();
    ensure!(arguments.offset <= size, "offset {} lies beyond the disk's {size} bytes", arguments.offset);
    let rest = size - arguments.offset;
    let length = arguments.length.unwrap_or(rest);
    ensure!(
        length <= rest,
        "{length} bytes from offset {} reach beyond the disk's {size} bytes: at most {rest} are there",
        arguments.offset
    );
    let end = arguments.offset + length;
    let mut buffer = vec![0; usize::try_from(CHUNK_BYTES)?];
    let mut cursor = arguments.offset;
    while cursor < end {
        // Stacks read whole sectors; what is outside the asked range is dropped here.
        let sector_start = cursor - cursor % SECTOR_BYTES;
        let chunk_end = end.min(sector_start + CHUNK_BYTES);
        let bytes = &mut buffer[..usize::try_from(chunk_end.next_multiple_of(SECTOR_BYTES) - sector_start)?];
        stack.read_at(bytes, sector_start)?;
        let from = usize::try_from(cursor - sector_start)?;
        let to = usize::try_from(chunk_end - sector_start)?;
        output.write_all(&bytes[from..to])?;
        cursor = chunk_end;
    }
    Ok(())
}

fn open(arguments: &Arguments) -> anyhow::Result<Stack> {
    let lowers = arguments.files.iter().chain(&arguments.lowers);
    let lowers = lowers.map(|path| Layer::open_file(path)).collect::<Result<Vec<_>, _>>()?;
    let upper = match (&arguments.upper_data, &arguments.upper_index) {
        (Some(data), Some(index)) => {
            Some(Upper::open_read_only(&UpperFiles { data: data.clone(), index: index.clone() })?)
        }
        (None, None) => None,
        _ => bail!("a writable layer has two files: give --upper-data and --upper-index"),
    };
    ensure!(
        !lowers.is_empty() || upper.is_some(),
        "no layer given: name at least one FILE, --lower or upper"
    );
    Ok(Stack::open(lowers, upper)?)
}
