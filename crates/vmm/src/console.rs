//! A machine's serial console on the host: a bounded log file, and the task that fills it.
//!
//! The monitor writes to a named pipe, the node reads it. Alternatives were weighed: a log file written by the monitor
//! grows without bound, a ring buffer inside it is lost when it dies, and a helper process for each machine costs memory.
//! With the pipe, whoever reads decides what is kept. While no node reads (it is being restarted), the monitor's writes
//! fail at once and the guest's output is dropped: a guest never waits for a node that is not there. While a node reads,
//! a full pipe slows the guest down, so that one that prints for ever pays for it itself.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FileType, Mode};
use tokio::net::unix::pipe;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::{Machine, VmmError};

/// One read; the pipe's own capacity.
const CHUNK_BYTES: usize = 64 * 1024;
/// Put in place of what was removed.
const DROPPED_LINE: &[u8] = b"[earlier console output was dropped]\n";

/// Waits until a line of the console contains `marker`, and returns how long that took.
///
/// # Errors
/// [`VmmError::Start`] with the last console lines when the monitor ends first or `limit` has passed.
pub async fn wait_for_console(
    machine: &dyn Machine,
    marker: &str,
    limit: Duration,
) -> Result<Duration, VmmError> {
    const POLL: Duration = Duration::from_millis(5);
    const LOOKED_AT_BYTES: usize = 64 * 1024;
    let started = Instant::now();
    let mut ended = false;
    loop {
        if machine.console_tail(LOOKED_AT_BYTES).contains(marker) {
            return Ok(started.elapsed());
        }
        if ended || started.elapsed() >= limit {
            return Err(VmmError::Start {
                id: machine.record().id.clone(),
                reason: match ended {
                    true => format!("its monitor ended before the console said {marker:?}"),
                    false => format!("the console did not say {marker:?} within {} s", limit.as_secs()),
                },
                console: machine.console_tail(VmmError::CONSOLE_BYTES),
            });
        }
        tokio::select! {
            () = machine.wait() => ended = true,
            () = tokio::time::sleep(POLL) => {}
        }
    }
}

/// Last bytes of a log, with invalid text replaced; empty when there is none.
pub(crate) fn tail(path: &Path, max_bytes: usize) -> String {
    let read = || {
        let mut file = File::open(path)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(max_bytes as u64)))?;
        let mut bytes = Vec::new();
        file.take(max_bytes as u64).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).into_owned()
}

/// A log file that never exceeds its limit: when it would, its older half goes.
#[derive(Debug)]
struct ConsoleLog {
    path: PathBuf,
    file: File,
    length_bytes: u64,
    limit_bytes: u64,
}

impl ConsoleLog {
    fn open(path: &Path, limit_bytes: u64) -> io::Result<Self> {
        let file = File::options().create(true).append(true).mode(0o600).open(path)?;
        let length_bytes = file.metadata()?.len();
        Ok(Self { path: path.to_owned(), file, length_bytes, limit_bytes })
    }

    fn append(&mut self, chunk: &[u8]) -> io::Result<()> {
        if self.length_bytes + chunk.len() as u64 > self.limit_bytes {
            self.drop_older_half()?;
        }
        // A chunk may be larger than a small limit.
        let kept = usize::try_from(self.limit_bytes / 2).unwrap_or(usize::MAX).min(chunk.len());
        self.file.write_all(&chunk[chunk.len() - kept..])?;
        self.length_bytes += kept as u64;
        Ok(())
    }

    fn drop_older_half(&mut self) -> io::Result<()> {
        let kept =
            usize::try_from(self.limit_bytes / 2).unwrap_or(usize::MAX).saturating_sub(DROPPED_LINE.len());
        let mut bytes = Vec::with_capacity(kept);
        let mut old = File::open(&self.path)?;
        old.seek(SeekFrom::Start(self.length_bytes.saturating_sub(kept as u64)))?;
        old.take(kept as u64).read_to_end(&mut bytes)?;
        let whole_lines = bytes.iter().position(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
        // Renamed over the old one, so that whoever reads it sees whole content.
        let replacement = self.path.with_extension("log.new");
        let mut file =
            File::options().create(true).write(true).truncate(true).mode(0o600).open(&replacement)?;
        file.write_all(DROPPED_LINE)?;
        file.write_all(&bytes[whole_lines..])?;
        std::fs::rename(&replacement, &self.path)?;
        *self = Self::open(&self.path, self.limit_bytes)?;
        Ok(())
    }
}

/// The reading side of the pipe, and the task that copies it into the log until all writers are gone.
#[derive(Debug)]
pub(crate) struct ConsoleReader {
    task: JoinHandle<()>,
    /// Closed when the task ends.
    copying: watch::Receiver<()>,
}

impl ConsoleReader {
    /// Makes the pipe, which must not exist yet.
    pub(crate) fn create_pipe(path: &Path) -> io::Result<()> {
        Ok(rustix::fs::mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?)
    }

    /// Starts reading. A pipe has one reader; a second one would get a part of the output.
    pub(crate) fn start(pipe_path: &Path, log_path: &Path, limit_bytes: u64) -> io::Result<Self> {
        let receiver = pipe::OpenOptions::new().open_receiver(pipe_path)?;
        let log = ConsoleLog::open(log_path, limit_bytes)?;
        let (sender, copying) = watch::channel(());
        let task = tokio::spawn(async move {
            copy(receiver, log).await;
            drop(sender);
        });
        Ok(Self { task, copying })
    }

    /// A descriptor for the monitor's own messages. They are dropped rather than waited for when the pipe is full.
    pub(crate) fn open_writer(pipe_path: &Path) -> io::Result<OwnedFd> {
        let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
        Ok(File::options().write(true).custom_flags(flags).open(pipe_path)?.into())
    }

    /// Waits until everything written before the last writer ended is in the log.
    pub(crate) async fn finished(&self, limit: Duration) {
        // Not finished in time: the log lacks its last lines, which is no reason to fail.
        let _ = tokio::time::timeout(limit, self.copying.clone().changed()).await;
    }
}

impl Drop for ConsoleReader {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn copy(receiver: pipe::Receiver, mut log: ConsoleLog) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        if receiver.readable().await.is_err() {
            return;
        }
        match receiver.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => {
                let chunk = buffer[..length].to_vec();
                // File writes may block on a busy disk.
                let written = tokio::task::spawn_blocking(move || {
                    let result = log.append(&chunk);
                    (log, result)
                });
                let Ok((returned, result)) = written.await else { return };
                log = returned;
                if let Err(error) = result {
                    // Read on: a full host disk must not stop the guest.
                    tracing::debug!(path = %log.path.display(), %error, "console output lost");
                }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_never_exceeds_its_limit_and_keeps_the_newest_lines() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("console.log");
        let mut log = ConsoleLog::open(&path, 4096).expect("opened");
        for number in 0..10_000 {
            log.append(format!("line {number}\n").as_bytes()).expect("appended");
            if number % 97 == 0 {
                assert!(path.metadata().expect("there").len() <= 4096);
            }
        }
        let text = tail(&path, 10_000);
        assert!(text.starts_with("[earlier console output was dropped]\nline "), "{text}");
        assert!(text.ends_with("line 9998\nline 9999\n"), "{text}");
    }

    #[test]
    fn one_chunk_larger_than_the_limit_is_cut() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("console.log");
        let mut log = ConsoleLog::open(&path, 1000).expect("opened");
        log.append(&[b'a'; 5000]).expect("appended");
        log.append(b"end").expect("appended");
        assert!(path.metadata().expect("there").len() <= 1000);
        assert!(tail(&path, 100).ends_with("aaend"));
    }

    #[test]
    fn a_log_is_continued_and_its_tail_is_text() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("console.log");
        for word in [&b"one "[..], b"two \xff"] {
            ConsoleLog::open(&path, 1000).expect("opened").append(word).expect("appended");
        }
        assert_eq!(tail(&path, 5), "two \u{fffd}");
        assert_eq!(tail(&directory.path().join("none"), 5), "");
    }

    #[tokio::test]
    async fn everything_written_before_the_last_writer_left_is_kept() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (pipe, log) = (directory.path().join("pipe"), directory.path().join("log"));
        ConsoleReader::create_pipe(&pipe).expect("made");
        let reader = ConsoleReader::start(&pipe, &log, 1 << 20).expect("started");
        let mut writer = File::from(ConsoleReader::open_writer(&pipe).expect("opened"));
        writer.write_all(b"last words").expect("written");
        drop(writer);
        reader.finished(Duration::from_secs(10)).await;
        assert_eq!(tail(&log, 100), "last words");
    }
}
