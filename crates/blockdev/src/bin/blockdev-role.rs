//! Processes that this crate's tests start and kill; not part of any product.
//!
//! `fuse-keeper ...`: the keeper. `serve MOUNT SOCKET THREADS NAME=INODE=FILE...`: serves plain files as disks until it is
//! killed, or detaches when its standard input ends; prints `serving`. THREADS with a minus: as on a kernel that cannot send
//! requests again.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::process::ExitCode;
use std::sync::Arc;

use blockdev::fuse::keeper::{self, KeeperConfig};
use blockdev::fuse::{FuseConfig, FuseFrontEnd};
use blockdev::{DeviceKind, DeviceSpec, FrontEnd as _, Image};

/// A plain file as an image.
#[derive(Debug)]
struct FileImage {
    file: File,
    size_bytes: u64,
}

impl Image for FileImage {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read_at(&self, buffer: &mut [u8], offset_bytes: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, offset_bytes)
    }

    fn write_at(&self, data: &[u8], offset_bytes: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset_bytes)
    }

    fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset_bytes, length_bytes)?)
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("blockdev-role: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    match arguments.next().as_ref().and_then(|role| role.to_str()) {
        Some("fuse-keeper") => Ok(keeper::run(&KeeperConfig::from_arguments(arguments)?)?),
        Some("serve") => {
            let arguments: Vec<String> = arguments
                .map(|word| word.into_string().map_err(|_| "not UTF-8"))
                .collect::<Result<_, _>>()?;
            serve(&arguments)
        }
        _ => Err("usage: blockdev-role fuse-keeper|serve ...".into()),
    }
}

fn serve(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let [mount_point, socket, threads, devices @ ..] = arguments else {
        return Err("too few arguments".into());
    };
    let front_end = FuseFrontEnd::attach(&FuseConfig {
        mount_point: mount_point.into(),
        keeper_socket: socket.into(),
        keeper_command: vec![std::env::current_exe()?.into(), "fuse-keeper".into()],
        threads: threads.trim_start_matches('-').parse()?,
        never_resend: threads.starts_with('-'),
    })?;
    for device in devices {
        let mut words = device.split('=');
        let (Some(name), Some(inode), Some(path)) = (words.next(), words.next(), words.next()) else {
            return Err("a device is NAME=INODE=FILE".into());
        };
        let file = File::options().read(true).write(true).open(path)?;
        let size_bytes = file.metadata()?.len();
        let spec = DeviceSpec { name: name.into(), inode: inode.parse()?, kind: DeviceKind::Disk };
        front_end.open(spec, Arc::new(FileImage { file, size_bytes }))?;
    }
    front_end.serve()?;
    println!("serving");
    let ended = std::thread::spawn(|| io::stdin().read_to_end(&mut Vec::new()));
    while !ended.is_finished() {
        front_end.ensure_kept()?;
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    front_end.detach();
    Ok(())
}
