use std::io;
use std::path::Path;

use clap::Parser;
use overlaybd::{Stack, Upper, UpperFiles, UpperMode, UpperOptions};
use uuid::Uuid;

use super::*;

#[derive(Debug, Parser)]
struct CommandLine {
    #[command(flatten)]
    layer: LayerArguments,
}

/// Runs a command line as a pipe sees it.
fn output_of(words: &[&str]) -> anyhow::Result<Vec<u8>> {
    let mut output = Vec::new();
    match CommandLine::try_parse_from([&["aenv"], words].concat())?.layer.action {
        Action::Inspect(arguments) => inspect::run(&arguments, false, &mut output)?,
        Action::Read(arguments) => read::run(&arguments, &mut output)?,
    }
    Ok(output)
}

/// A disk of 1 MiB with a sealed layer `lower`, and an upper over it in `data` and `index`.
fn make_disk(directory: &Path) -> Vec<u8> {
    let upper = |name: &str| {
        let files = UpperFiles { data: directory.join(name), index: directory.join(format!("{name}-index")) };
        let options = UpperOptions {
            mode: UpperMode::Append,
            virtual_size_bytes: 1 << 20,
            uuid: Uuid::from_u128(1),
            parent_uuid: None,
            group_commit_bytes: 0,
        };
        Upper::create(&files, &options).unwrap()
    };
    let stack = Stack::open(Vec::new(), Some(upper("first"))).unwrap();
    stack.write_at(&[1; 8192], 4096).unwrap();
    stack.write_zeroes(8192, 512).unwrap();
    stack.restack(upper("data"), &directory.join("lower")).unwrap();
    stack.write_at(&[2; 512], 4608).unwrap();
    let mut disk = vec![0; 1 << 20];
    stack.read_at(&mut disk, 0).unwrap();
    disk
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_disk_is_read_whole_and_in_odd_parts() {
    let directory = tempfile::tempdir().unwrap();
    let disk = make_disk(directory.path());
    let [lower, data, index] = ["lower", "data", "data-index"].map(|name| path(directory.path(), name));
    let stack = ["read", "--lower", &lower, "--upper-data", &data, "--upper-index", &index];
    assert!(output_of(&stack).unwrap() == disk);
    for (offset, length) in [(0, 1), (4095, 514), (4607, 1), (1_048_575, 1), (1_048_576, 0), (77, 1_048_499)]
    {
        let (from, count) = (offset.to_string(), length.to_string());
        let part = output_of(&[&stack[..], &["--offset", &from, "--length", &count]].concat()).unwrap();
        assert!(part == disk[offset..offset + length], "{offset} {length}");
    }
}

#[test]
fn reading_beyond_the_disk_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    make_disk(directory.path());
    let lower = path(directory.path(), "lower");
    let error = output_of(&["read", &lower, "--offset", "1048570", "--length", "7"]).unwrap_err();
    assert!(error.to_string().contains("at most 6 are there"), "{error}");
}

#[test]
fn a_truncated_layer_is_refused_with_the_reason() {
    let directory = tempfile::tempdir().unwrap();
    make_disk(directory.path());
    let lower = path(directory.path(), "lower");
    let bytes = std::fs::read(&lower).unwrap();
    std::fs::write(&lower, &bytes[..bytes.len() - 1]).unwrap();
    for words in [["read", lower.as_str()], ["inspect", lower.as_str()]] {
        let error = output_of(&words).unwrap_err().to_string();
        assert!(error.contains(&lower) && error.contains("trailer"), "{error}");
    }
}

#[test]
fn an_upper_needs_both_of_its_files() {
    assert!(output_of(&["read", "--upper-data", "x"]).is_err());
    assert!(output_of(&["read"]).unwrap_err().to_string().contains("no layer given"));
}

#[test]
fn inspect_prints_json_into_a_pipe_and_a_table_on_a_terminal() {
    let directory = tempfile::tempdir().unwrap();
    make_disk(directory.path());
    let lower = path(directory.path(), "lower");
    let json: serde_json::Value =
        serde_json::from_slice(&output_of(&["inspect", &lower, "--mappings"]).unwrap()).unwrap();
    assert_eq!(json["virtualSizeBytes"], 1 << 20);
    assert_eq!(json["dataBytes"], 8192 - 512);
    assert_eq!(json["zeroedBytes"], 512);
    assert_eq!(json["mappings"][0]["offsetBytes"], 4096);
    let arguments = inspect::Arguments { file: lower.into(), json: false, mappings: false };
    let mut table = Vec::new();
    inspect::run(&arguments, true, &mut table).unwrap();
    assert!(String::from_utf8(table).unwrap().contains("Virtual size  1.0 MiB (1048576 bytes)"));
}

#[test]
fn a_closed_output_is_recognised() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let directory = tempfile::tempdir().unwrap();
    make_disk(directory.path());
    let lower = directory.path().join("lower");
    let arguments = inspect::Arguments { file: lower, json: true, mappings: false };
    assert!(is_broken_pipe(&inspect::run(&arguments, false, &mut Closed).unwrap_err()));
}
