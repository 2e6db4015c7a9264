//! `aenv layer inspect`.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use overlaybd::{Layer, SECTOR_BYTES};
use serde::Serialize;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// The layer: plain or wrapped in a tar archive.
    pub(super) file: PathBuf,
    /// Print JSON even on a terminal. It is the default when standard output is not a terminal.
    #[arg(long)]
    pub(super) json: bool,
    /// List every run of the index, too.
    #[arg(long)]
    pub(super) mappings: bool,
}

/// What is shown; the field names are those of the JSON form.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    file: PathBuf,
    file_bytes: u64,
    /// Smaller than the file when the layer is wrapped in an archive.
    layer_bytes: u64,
    virtual_size_bytes: u64,
    uuid: Option<String>,
    parent_uuid: Option<String>,
    user_tag: String,
    sparse: bool,
    index_offset_bytes: u64,
    index_entries: u64,
    runs: u64,
    data_bytes: u64,
    zeroed_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    mappings: Option<Vec<Run>>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Run {
    offset_bytes: u64,
    length_bytes: u64,
    /// Where the data is in the layer; absent for zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    data_offset_bytes: Option<u64>,
}

pub(super) fn run(arguments: &Arguments, terminal: bool, output: &mut impl Write) -> anyhow::Result<()> {
    let report = examine(arguments)?;
    if arguments.json || !terminal {
        // Into memory first, so that a closed output is an I/O error and not one of the serializer.
        let text = serde_json::to_string_pretty(&report)?;
        writeln!(output, "{text}")?;
        return Ok(());
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
    let size = |bytes: u64| format!("{} ({bytes} bytes)", binary_size(bytes));
    let rows = [
        ("File", report.file.display().to_string()),
        ("File size", size(report.file_bytes)),
        ("Layer size", size(report.layer_bytes)),
        ("Virtual size", size(report.virtual_size_bytes)),
        ("UUID", text(&report.uuid)),
        ("Parent UUID", text(&report.parent_uuid)),
        ("User tag", report.user_tag.escape_debug().to_string()),
        ("Form", if report.sparse { "sparse image" } else { "log" }.to_owned()),
        ("Index", format!("{} entries at byte {}", report.index_entries, report.index_offset_bytes)),
        ("Runs", report.runs.to_string()),
        ("Data", size(report.data_bytes)),
        ("Zeroed", size(report.zeroed_bytes)),
    ];
    for (name, value) in rows {
        writeln!(output, "{name:<13} {value}")?;
    }
    if let Some(mappings) = &report.mappings {
        writeln!(output, "\n{:>18} {:>12} {:>18}", "OFFSET", "LENGTH", "DATA AT")?;
        for run in mappings {
            let data = run.data_offset_bytes.map_or_else(|| "zeros".to_owned(), |offset| offset.to_string());
            writeln!(output, "{:>18} {:>12} {:>18}", run.offset_bytes, run.length_bytes, data)?;
        }
    }
    Ok(())
}

fn examine(arguments: &Arguments) -> anyhow::Result<Report> {
    let layer = Layer::open_file(&arguments.file)?;
    let about = || format!("cannot examine {}", arguments.file.display());
    let (header, mappings) = (layer.header(), layer.mappings());
    let bytes_of = |zeroed: bool| {
        let runs = mappings.iter().filter(|run| run.is_zeroed() == zeroed);
        runs.map(|run| run.sectors() * SECTOR_BYTES).sum()
    };
    Ok(Report {
        file: arguments.file.clone(),
        file_bytes: fs::metadata(&arguments.file).with_context(about)?.len(),
        layer_bytes: layer.source().size_bytes().with_context(about)?,
        virtual_size_bytes: layer.virtual_size_bytes(),
        uuid: header.uuid.map(|uuid| uuid.to_string()),
        parent_uuid: header.parent_uuid.map(|uuid| uuid.to_string()),
        user_tag: String::from_utf8_lossy(&header.user_tag).into_owned(),
        sparse: header.is_sparse(),
        index_offset_bytes: layer.index_offset_bytes(),
        index_entries: layer.index_entries(),
        runs: mappings.len() as u64,
        data_bytes: bytes_of(false),
        zeroed_bytes: bytes_of(true),
        mappings: arguments.mappings.then(|| mappings.iter().map(run_of).collect()),
    })
}

fn run_of(mapping: &overlaybd::Mapping) -> Run {
    Run {
        offset_bytes: mapping.sector() * SECTOR_BYTES,
        length_bytes: mapping.sectors() * SECTOR_BYTES,
        data_offset_bytes: (!mapping.is_zeroed()).then(|| mapping.data_sector() * SECTOR_BYTES),
    }
}

/// The size in the largest unit that leaves at least 1, with one digit after the point.
fn binary_size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (0..units.len()).rev().find(|unit| bytes >> (10 * unit) > 0).unwrap_or(0);
    if unit == 0 {
        return format!("{bytes} B");
    }
    let tenths = (u128::from(bytes) * 10) >> (10 * unit);
    format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
}
