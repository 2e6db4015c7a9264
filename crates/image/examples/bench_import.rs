//! Import against `tar x`: the same tar onto a loop-mounted ext4 by GNU tar, and as a layer by the importer, on plain
//! sparse files in one directory.
//!
//! `cargo build --release -p image && cargo run --release -p image --example bench_import -- ARCHIVE.tar DIRECTORY [ROUNDS]`

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use image::{ImageError, ImportOptions, Importer, ImporterConfig, ScratchDisk, ScratchDisks};

const VIRTUAL_SIZE_BYTES: u64 = 64 << 30;

/// One plain sparse file for the first layer; more are not needed here.
#[derive(Debug)]
struct PlainDisks;

#[async_trait::async_trait]
impl ScratchDisks for PlainDisks {
    async fn open(&self, _: &[PathBuf], directory: &Path, bytes: u64) -> Result<ScratchDisk, ImageError> {
        let path = directory.join("disk");
        let made = File::create(&path).and_then(|file| file.set_len(bytes));
        made.map_err(|error| failed("open", &error))?;
        Ok(ScratchDisk { id: "disk".to_owned(), path })
    }

    async fn seal(&self, disk: ScratchDisk, sealed_path: &Path) -> Result<(), ImageError> {
        std::fs::rename(&disk.path, sealed_path).map_err(|error| failed("seal", &error))
    }

    async fn discard(&self, _: ScratchDisk) -> Result<(), ImageError> {
        Ok(())
    }
}

fn failed(operation: &'static str, error: &io::Error) -> ImageError {
    ImageError::ScratchDisk { operation, reason: error.to_string() }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(archive), Some(directory)) = (arguments.next(), arguments.next()) else {
        return Err("usage: bench_import ARCHIVE.tar DIRECTORY [ROUNDS]".into());
    };
    let rounds: u32 = arguments.next().and_then(|rounds| rounds.to_str()?.parse().ok()).unwrap_or(3);
    let archive = std::fs::canonicalize(archive)?;
    let megabytes = std::fs::metadata(&archive)?.len() as f64 / 1e6;
    for round in 1..=rounds {
        let directory = Path::new(&directory).join(format!("round-{round}"));
        std::fs::create_dir_all(&directory)?;
        let by_tar = unpack_with_tar(&archive, &directory)?;
        let by_import = import(&archive, &directory).await?;
        std::fs::remove_dir_all(&directory)?;
        println!(
            "tar x {:.0} MB/s, import {:.0} MB/s, ratio {:.2}",
            megabytes / by_tar.as_secs_f64(),
            megabytes / by_import.as_secs_f64(),
            by_tar.as_secs_f64() / by_import.as_secs_f64()
        );
    }
    Ok(())
}

fn unpack_with_tar(archive: &Path, directory: &Path) -> Result<Duration, Box<dyn std::error::Error>> {
    let (disk, mount_point) = (directory.join("tar.disk"), directory.join("mount"));
    File::create(&disk)?.set_len(VIRTUAL_SIZE_BYTES)?;
    std::fs::create_dir(&mount_point)?;
    let start = Instant::now();
    run("mke2fs", &["-q".as_ref(), "-F".as_ref(), "-t".as_ref(), "ext4".as_ref(), disk.as_ref()])?;
    run("mount", &["-o".as_ref(), "loop,noinit_itable".as_ref(), disk.as_ref(), mount_point.as_ref()])?;
    let unpack = ["-x", "--numeric-owner", "--xattrs", "--xattrs-include=*", "-f"];
    let mut arguments: Vec<&Path> = unpack.iter().map(Path::new).collect();
    arguments.extend([archive, Path::new("-C"), &mount_point]);
    let unpacked = run("tar", &arguments);
    // Unmounting writes everything out, as an import does.
    run("umount", &[mount_point.as_ref()])?;
    unpacked?;
    File::open(&disk)?.sync_all()?;
    let elapsed = start.elapsed();
    std::fs::remove_file(&disk)?;
    Ok(elapsed)
}

async fn import(archive: &Path, directory: &Path) -> Result<Duration, Box<dyn std::error::Error>> {
    let child = std::env::current_exe()?.with_file_name("../image-unpack");
    let command = vec![OsString::from(child)];
    let config = ImporterConfig::new(directory.join("layers"), directory.join("scratch"), command);
    let importer = Importer::new(config, Arc::new(PlainDisks))?;
    let (progress, _events) = tokio::sync::mpsc::channel(16);
    let source = format!("rootfs:{}", archive.display()).parse()?;
    let start = Instant::now();
    importer.import(&source, ImportOptions::default(), progress).await?;
    Ok(start.elapsed())
}

fn run(program: &str, arguments: &[&Path]) -> io::Result<()> {
    let status = Command::new(program).args(arguments).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{program} failed: {status}"))) }
}
