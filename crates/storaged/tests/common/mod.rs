//! A daemon in its own process, on directories of its own, for tests that kill it.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use storaged::Client;

pub(crate) const ROLE: &str = env!("CARGO_BIN_EXE_storaged-role");
pub(crate) const MIB: u64 = 1 << 20;

/// Directories of one daemon. What still runs or is mounted is ended when it is dropped.
pub(crate) struct Site {
    pub(crate) directory: tempfile::TempDir,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::Builder::new().prefix("storaged-test-").tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("run/storaged.sock")
    }

    pub(crate) fn mount_point(&self) -> PathBuf {
        self.path("run/devices")
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(ROLE);
        command.arg("storaged").args([self.path("data"), self.path("run")]);
        command.stdin(Stdio::piped());
        command
    }

    /// Starts a daemon and waits until it answers.
    pub(crate) async fn start(&self) -> Daemon {
        let mut child = self.command().spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            // A socket of a dead predecessor refuses.
            match Client::connect(&self.socket()).await {
                Ok(client) => return Daemon { child, client },
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            if let Some(status) = child.try_wait().unwrap() {
                panic!("the daemon ended at its start: {status}");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn mounts(&self) -> usize {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        table.lines().filter(|line| line.contains(self.directory.path().to_str().unwrap())).count()
    }

    /// Processes with our directory on their command line, by the word that says what they are.
    pub(crate) fn processes(&self, role: &str) -> Vec<i32> {
        let ours = self.directory.path().to_str().unwrap().to_owned();
        let list = std::fs::read_dir("/proc").unwrap();
        list.filter_map(|entry| {
            let path = entry.unwrap().path();
            let words = String::from_utf8_lossy(&std::fs::read(path.join("cmdline")).ok()?).into_owned();
            let matches = words.split('\0').any(|word| word == role) && words.contains(&ours);
            matches.then(|| path.file_name()?.to_str()?.parse().ok()).flatten()
        })
        .collect()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for role in ["storaged", "fuse-keeper"] {
            for process in self.processes(role) {
                kill_process(process);
            }
        }
        drop(Command::new("umount").arg("-lq").arg(self.mount_point()).status());
    }
}

pub(crate) fn kill_process(process: i32) {
    let process = rustix::process::Pid::from_raw(process).unwrap();
    let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
}

/// A running daemon.
pub(crate) struct Daemon {
    pub(crate) child: Child,
    pub(crate) client: Client,
}

impl Daemon {
    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// The way a service manager ends it.
    pub(crate) fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }

    /// Makes a disk of zeros with an upper beside the daemon's directories.
    pub(crate) async fn disk(&self, site: &Site, name: &str, size_bytes: u64) -> PathBuf {
        self.disk_on(site, name, &[], size_bytes).await
    }

    pub(crate) async fn disk_on(
        &self,
        site: &Site,
        name: &str,
        lowers: &[PathBuf],
        size_bytes: u64,
    ) -> PathBuf {
        let upper = site.path("uppers").join(name);
        let device = self.client.create_device(name, lowers, Some(&upper), size_bytes).await.unwrap();
        device.path.into()
    }
}

pub(crate) fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Content that tells its place and a seed.
pub(crate) fn block(number: u64, seed: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    for (position, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number << 40 ^ seed << 12 ^ position as u64).to_ne_bytes());
    }
    bytes
}

/// A file system on a device, mounted through a loop device until it is dropped.
pub(crate) struct Mounted {
    pub(crate) path: PathBuf,
    loop_device: String,
}

impl Mounted {
    pub(crate) fn new(disk: &Path, mount_point: &Path) -> Self {
        std::fs::create_dir_all(mount_point).unwrap();
        let loop_device = attach(disk);
        run(Command::new("mount").arg(&loop_device).arg(mount_point));
        Self { path: mount_point.to_owned(), loop_device }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(&self.path).status());
        drop(Command::new("losetup").args(["-d", &self.loop_device]).status());
    }
}

/// Loop devices are few on some hosts and shared by all tests: waits for one.
fn attach(disk: &Path) -> String {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        let output =
            Command::new("losetup").args(["-f", "--show", "--direct-io=on"]).arg(disk).output().unwrap();
        if output.status.success() {
            return String::from_utf8(output.stdout).unwrap().trim().to_owned();
        }
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(Instant::now() < deadline, "losetup: {message}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

pub(crate) fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(
        output.status.success(),
        "{command:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn make_file_system(disk: &Path) {
    run(Command::new("mke2fs").args(["-q", "-F", "-t", "ext4", "-b", "4096"]).arg(disk));
}

/// Fails unless the file system needs no repair at all.
pub(crate) fn check_file_system(disk: &Path) {
    run(Command::new("e2fsck").args(["-fn"]).arg(disk));
}

/// A writer in its own process: makes files `0`, `1`, ... of known content under a directory and syncs each before it
/// reports its number. Ends when it is told to; any error ends it at once, without success.
pub(crate) struct Writer {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Writer {
    pub(crate) fn start(directory: &Path) -> Self {
        let script = r#"
import os, sys, select
directory = sys.argv[1]
number = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    path = os.path.join(directory, str(number))
    with open(path, "wb") as file:
        file.write((b"%d\n" % number) * 2000)
        file.flush()
        os.fsync(file.fileno())
    print(number, flush=True)
    number += 1
"#;
        let mut child = Command::new("python3")
            .args(["-c", script])
            .arg(directory)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// Waits until this many more files are written.
    pub(crate) fn wait_for(&mut self, count: usize) {
        for _ in 0..count {
            self.lines.next().expect("the writer ended early").unwrap();
        }
    }

    /// Stops it and answers how many files it wrote.
    pub(crate) fn stop(mut self) -> usize {
        drop(self.child.stdin.take());
        let last = self.lines.by_ref().map(|line| line.unwrap()).last();
        assert!(self.child.wait().unwrap().success(), "the writer saw an error");
        last.map_or(0, |line| line.parse::<usize>().unwrap() + 1)
    }
}

pub(crate) fn check_written_files(directory: &Path, count: usize) {
    for number in 0..count {
        let content = std::fs::read_to_string(directory.join(number.to_string())).unwrap();
        assert!(content == format!("{number}\n").repeat(2000), "file {number}");
    }
}
