//! Consoles of guests: the file a machine appends to, and what is kept of it after the machine ended by itself.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Most bytes of a console that are shown or kept.
pub(crate) const CONSOLE_BYTES_MAX: u64 = 1024 * 1024;
/// Most consoles of ended sandboxes that are kept.
const KEPT_COUNT_MAX: usize = 64;

/// The last [`CONSOLE_BYTES_MAX`] bytes of a console; nothing when there is no file.
pub(crate) fn read_tail(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(CONSOLE_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(CONSOLE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Copies the end of a console to where it is kept, with the reason of the end as its last line.
pub(crate) fn keep(from: &Path, to: &Path, reason: &str) -> io::Result<()> {
    let bytes = read_tail(from)?.unwrap_or_default();
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(to)?;
    file.write_all(&bytes)?;
    if bytes.last().is_some_and(|byte| *byte != b'\n') {
        file.write_all(b"\n")?;
    }
    writeln!(file, "aenv: {reason}")
}

/// Removes kept consoles that are too old or too many.
pub(crate) fn prune(directory: &Path, retention: Duration, now: SystemTime) -> io::Result<()> {
    let mut kept = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        kept.push((entry.metadata()?.modified()?, entry.path()));
    }
    kept.sort_by(|left, right| right.cmp(left));
    for (position, (modified, path)) in kept.iter().enumerate() {
        let age = now.duration_since(*modified).unwrap_or_default();
        if position >= KEPT_COUNT_MAX || age > retention {
            std::fs::remove_file(path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_console_ends_with_the_reason() {
        let directory = tempfile::tempdir().unwrap();
        let (from, to) = (directory.path().join("console.log"), directory.path().join("kept.log"));
        std::fs::write(&from, "Kernel panic").unwrap();
        keep(&from, &to, "the machine ended by itself").unwrap();
        assert_eq!(std::fs::read_to_string(to).unwrap(), "Kernel panic\naenv: the machine ended by itself\n");
    }

    #[test]
    fn only_the_end_of_a_long_console_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("console.log");
        let mut text = vec![b'a'; 10];
        text.resize(10 + usize::try_from(CONSOLE_BYTES_MAX).unwrap(), b'b');
        std::fs::write(&path, text).unwrap();
        let tail = read_tail(&path).unwrap().unwrap();
        assert_eq!(tail.len() as u64, CONSOLE_BYTES_MAX);
        assert!(tail.iter().all(|byte| *byte == b'b'));
    }

    #[test]
    fn old_consoles_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("a.log"), "x").unwrap();
        let retention = Duration::from_secs(60);
        prune(directory.path(), retention, SystemTime::now()).unwrap();
        assert!(directory.path().join("a.log").exists());
        prune(directory.path(), retention, SystemTime::now() + Duration::from_secs(120)).unwrap();
        assert!(!directory.path().join("a.log").exists());
    }
}
