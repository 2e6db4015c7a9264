//! A layer being fetched into an unnamed file while it is read from there, so that fetching runs ahead of conversion and
//! a slow conversion does not hold a connection open.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};

use crate::ImageError;

/// A reader waits no longer than this for the next byte; the writer has shorter deadlines of its own.
const WAIT_TIMEOUT: Duration = Duration::from_secs(900);

#[derive(Debug)]
struct Shared {
    file: File,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    written: u64,
    end: Option<Result<(), ImageError>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The writing side. Dropped without [`SpoolWriter::finish`], it fails the reader.
#[derive(Debug)]
pub(crate) struct SpoolWriter {
    shared: Arc<Shared>,
}

/// The reading side; blocking.
#[derive(Debug)]
pub(crate) struct SpoolReader {
    shared: Arc<Shared>,
    position: u64,
}

/// Makes a spool on the file system of `directory`.
pub(crate) fn spool(directory: &Path) -> Result<(SpoolWriter, SpoolReader), ImageError> {
    let flags = OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC;
    let file = rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)
        .map_err(|error| ImageError::io("making a file in", directory)(error.into()))?;
    let shared =
        Arc::new(Shared { file: File::from(file), state: Mutex::default(), changed: Condvar::new() });
    Ok((SpoolWriter { shared: Arc::clone(&shared) }, SpoolReader { shared, position: 0 }))
}

impl SpoolWriter {
    /// Bytes written so far.
    pub(crate) fn written(&self) -> u64 {
        self.shared.state().written
    }

    /// Appends; blocking.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let position = self.written();
        self.shared.file.write_all_at(bytes, position)?;
        self.shared.state().written += bytes.len() as u64;
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Ends the spool; an error reaches the reader after the bytes written.
    pub(crate) fn finish(self, result: Result<(), ImageError>) {
        self.shared.state().end.get_or_insert(result);
        self.shared.changed.notify_all();
    }
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        self.shared.state().end.get_or_insert(Err(ImageError::Cancelled));
        self.shared.changed.notify_all();
    }
}

impl Read for SpoolReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let deadline = Instant::now() + WAIT_TIMEOUT;
        let mut state = self.shared.state();
        let available = loop {
            if state.written > self.position {
                break state.written - self.position;
            }
            match state.end.take() {
                Some(Ok(())) => {
                    state.end = Some(Ok(()));
                    return Ok(0);
                }
                Some(Err(error)) => {
                    state.end = Some(Err(ImageError::Cancelled));
                    return Err(io::Error::other(error));
                }
                None => {}
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            state = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        let wanted = buffer.len().min(usize::try_from(available).unwrap_or(usize::MAX));
        let length = self.shared.file.read_at(&mut buffer[..wanted], self.position)?;
        self.position += length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_sees_what_is_written_while_it_waits() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, mut reader) = spool(directory.path()).unwrap();
        let thread = std::thread::spawn(move || {
            let mut content = Vec::new();
            reader.read_to_end(&mut content).map(|_| content)
        });
        for part in [&b"one "[..], b"two ", b"three"] {
            std::thread::sleep(Duration::from_millis(10));
            writer.write(part).unwrap();
        }
        writer.finish(Ok(()));
        assert_eq!(thread.join().unwrap().unwrap(), b"one two three");
    }

    #[test]
    fn a_dropped_writer_fails_the_reader() {
        let directory = tempfile::tempdir().unwrap();
        let (mut writer, mut reader) = spool(directory.path()).unwrap();
        writer.write(b"some").unwrap();
        drop(writer);
        let mut content = Vec::new();
        assert!(reader.read_to_end(&mut content).is_err());
        assert_eq!(content, b"some");
    }
}
