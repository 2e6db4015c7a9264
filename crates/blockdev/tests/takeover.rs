//! Death and succession: the serving process and the keeper are killed in the middle of work.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small numbers of a test")]

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const ROLE: &str = env!("CARGO_BIN_EXE_blockdev-role");
const MIB: u64 = 1 << 20;

/// Directories and backing files; whatever still runs or is mounted is ended when it is dropped.
struct Site {
    directory: tempfile::TempDir,
    threads: &'static str,
}

impl Site {
    fn new(disk_bytes: u64) -> Self {
        let site = Self { directory: tempfile::tempdir().unwrap(), threads: "4" };
        File::create(site.backing()).unwrap().set_len(disk_bytes).unwrap();
        site
    }

    fn backing(&self) -> PathBuf {
        self.directory.path().join("backing")
    }

    fn mount_point(&self) -> PathBuf {
        self.directory.path().join("devices")
    }

    fn disk(&self) -> PathBuf {
        self.mount_point().join("disk")
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("keeper.sock")
    }

    /// Starts a server without waiting for it.
    fn spawn(&self) -> Child {
        let disk = format!("disk=16={}", self.backing().display());
        Command::new(ROLE)
            .arg("serve")
            .args([self.mount_point(), self.socket()])
            .args([self.threads, &disk])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Starts a server and waits until it serves.
    fn serve(&self) -> Child {
        let mut child = self.spawn();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line.trim(), "serving");
        child
    }

    fn keeper_process(&self) -> Option<i32> {
        let wanted = self.mount_point();
        std::fs::read_dir("/proc").unwrap().find_map(|entry| {
            let path = entry.unwrap().path();
            let words = std::fs::read(path.join("cmdline")).ok()?;
            let words: Vec<_> = words.split(|byte| *byte == 0).collect();
            let is_ours = words.contains(&&b"fuse-keeper"[..])
                && words.contains(&wanted.as_os_str().as_encoded_bytes());
            is_ours.then(|| path.file_name()?.to_str()?.parse().ok()).flatten()
        })
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Some(process) = self.keeper_process() {
            signal_kill(process);
        }
        drop(Command::new("umount").arg("-lq").arg(self.mount_point()).status());
    }
}

fn signal_kill(process: i32) {
    let process = rustix::process::Pid::from_raw(process).unwrap();
    let _ = rustix::process::kill_process(process, rustix::process::Signal::KILL);
}

fn kill(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn read_write(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn block(number: u64, round: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    for (position, word) in bytes.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&(number << 40 ^ round << 20 ^ position as u64).to_ne_bytes());
    }
    bytes
}

#[test]
fn users_of_a_killed_server_see_no_error_and_lose_nothing() {
    const WRITERS: u64 = 4;
    let site = Site::new(64 * MIB);
    let mut server = site.serve();
    let stop = AtomicBool::new(false);
    let rounds: Vec<_> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (writer, progress) in (0..WRITERS).zip(&rounds) {
            let (file, stop) = (read_write(&site.disk()), &stop);
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    for number in (writer..256).step_by(WRITERS as usize) {
                        file.write_all_at(&block(number, round), number * 4096).unwrap();
                        let mut back = [0; 4096];
                        file.read_exact_at(&mut back, number * 4096).unwrap();
                        assert!(back == block(number, round));
                    }
                    file.sync_data().unwrap();
                    progress.store(round, Ordering::SeqCst);
                }
            });
        }
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(150));
            kill(&mut server);
            std::thread::sleep(Duration::from_millis(50));
            server = site.serve();
        }
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
    });
    let backing = File::open(site.backing()).unwrap();
    for number in 0..256 {
        let round = rounds[(number % WRITERS) as usize].load(Ordering::SeqCst);
        assert!(round > 1);
        let mut bytes = [0; 4096];
        backing.read_exact_at(&mut bytes, number * 4096).unwrap();
        assert!(bytes == block(number, round), "block {number}");
    }
    kill(&mut server);
}

#[test]
fn a_read_sent_while_nobody_serves_is_answered_by_the_next_server() {
    let site = Site::new(4 * MIB);
    File::options().write(true).open(site.backing()).unwrap().write_all_at(&block(1, 1), MIB).unwrap();
    let mut server = site.serve();
    let file = read_write(&site.disk());
    kill(&mut server);
    // The read is sent while nobody serves, and answered by the next server.
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, MIB).unwrap();
        bytes
    });
    std::thread::sleep(Duration::from_millis(200));
    assert!(!reader.is_finished());
    let mut server = site.serve();
    assert!(reader.join().unwrap() == block(1, 1));
    kill(&mut server);
}

#[test]
fn a_server_that_detaches_leaves_its_users_waiting() {
    let site = Site::new(4 * MIB);
    let mut server = site.serve();
    let file = read_write(&site.disk());
    file.write_all_at(&block(2, 1), 0).unwrap();
    drop(server.stdin.take());
    assert!(server.wait().unwrap().success());
    let writer = std::thread::spawn(move || file.write_all_at(&block(2, 2), 0).unwrap());
    std::thread::sleep(Duration::from_millis(200));
    assert!(!writer.is_finished());
    let mut server = site.serve();
    writer.join().unwrap();
    kill(&mut server);
}

#[test]
fn a_second_server_is_refused_and_told_who_serves() {
    let site = Site::new(MIB);
    let mut server = site.serve();
    let process_id = server.id().to_string();
    let refused =
        Command::new(ROLE).arg("serve").args([site.mount_point(), site.socket()]).arg("4").output().unwrap();
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success());
    assert!(message.contains(&process_id), "{message}");
    // The first one was not disturbed.
    read_write(&site.disk()).write_all_at(&block(3, 1), 0).unwrap();
    kill(&mut server);
}

#[test]
fn a_dead_mount_is_replaced() {
    let site = Site::new(MIB);
    for _ in 0..2 {
        let mut server = site.serve();
        let file = read_write(&site.disk());
        let keeper = site.keeper_process().unwrap();
        kill(&mut server);
        signal_kill(keeper);
        let deadline = Instant::now() + Duration::from_secs(5);
        while file.read_exact_at(&mut [0; 512], 0).is_ok() {
            assert!(Instant::now() < deadline);
        }
    }
    let mut server = site.serve();
    read_write(&site.disk()).write_all_at(&block(4, 1), 0).unwrap();
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(table.lines().filter(|line| line.contains(site.mount_point().to_str().unwrap())).count(), 1);
    kill(&mut server);
}

#[test]
fn a_mount_taken_away_by_hand_is_made_again() {
    let site = Site::new(MIB);
    kill(&mut site.serve());
    assert!(Command::new("umount").arg("-l").arg(site.mount_point()).status().unwrap().success());
    let mut server = site.serve();
    read_write(&site.disk()).write_all_at(&block(5, 1), 0).unwrap();
    kill(&mut server);
}

#[test]
fn a_keeper_that_dies_is_replaced_and_users_notice_nothing() {
    let site = Site::new(MIB);
    let mut server = site.serve();
    let file = read_write(&site.disk());
    for round in 0..3 {
        let keeper = site.keeper_process().unwrap();
        signal_kill(keeper);
        file.write_all_at(&block(6, round), 0).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        while site.keeper_process().is_none_or(|process| process == keeper) || !site.socket().exists() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(10));
        }
        // It may have just begun: it is a keeper once it offers the descriptors to the next server.
        std::thread::sleep(Duration::from_millis(300));
        kill(&mut server);
        server = site.serve();
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes == block(6, round));
    }
    kill(&mut server);
}

#[test]
fn without_resending_a_killed_server_fails_at_most_what_it_had_in_hand() {
    let mut site = Site::new(64 * MIB);
    site.threads = "-4";
    let mut server = site.serve();
    let stop = AtomicBool::new(false);
    let failures = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (file, stop, failures) = (read_write(&site.disk()), &stop, &failures);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for number in (writer..256).step_by(4) {
                        if file.write_all_at(&block(number, 1), number * 4096).is_err() {
                            failures.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(100));
            kill(&mut server);
            server = site.serve();
        }
        std::thread::sleep(Duration::from_millis(100));
        stop.store(true, Ordering::Relaxed);
    });
    assert!(failures.load(Ordering::SeqCst) <= 5 * 4, "{failures:?}");
    kill(&mut server);
}
