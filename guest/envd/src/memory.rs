//! What the daemon remembers across its own death.
//!
//! A daemon that is started again must know the token it had. It would otherwise serve nobody, or believe the first one
//! who sends `/init`, and by then programs of the user run. The first process of the guest keeps an unnamed file in
//! memory for this, which no other user of the guest can open, and which never reaches a disk.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::daemon::Control;

/// More than the longest `/init` can make of it.
const BYTES_MAX: u64 = 16 << 20;

/// An open place to remember things in.
#[derive(Debug)]
pub(crate) struct Memory {
    file: File,
}

impl Memory {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: OpenOptions::new().read(true).write(true).open(path)? })
    }

    /// What was remembered last; nothing when this is the first start.
    pub(crate) fn recall(&self) -> io::Result<Option<Control>> {
        let bytes = self.file.metadata()?.len();
        if bytes == 0 {
            return Ok(None);
        }
        if bytes > BYTES_MAX {
            return Err(io::Error::other("what was remembered is too long"));
        }
        let mut text = vec![0; usize::try_from(bytes).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut text, 0)?;
        Ok(Some(serde_json::from_slice(&text)?))
    }

    pub(crate) fn remember(&self, control: &Control) -> io::Result<()> {
        let text = serde_json::to_vec(control)?;
        // Spaces behind it are no part of it. The file never shrinks to something that is not whole.
        let old_bytes = usize::try_from(self.file.metadata()?.len()).map_err(io::Error::other)?;
        let mut padded = text;
        padded.resize(padded.len().max(old_bytes), b' ');
        self.file.write_all_at(&padded, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_thing_remembered_is_recalled_also_when_it_is_shorter() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let memory = Memory::open(file.path()).unwrap();
        assert!(memory.recall().unwrap().is_none());
        let long = Control { token: Some("a".repeat(200)), ..Control::default() };
        let short = Control { token: Some("b".into()), initialised: true, ..Control::default() };
        for control in [&long, &short] {
            memory.remember(control).unwrap();
            let recalled = Memory::open(file.path()).unwrap().recall().unwrap().unwrap();
            assert_eq!((&recalled.token, recalled.initialised), (&control.token, control.initialised));
        }
    }

    #[test]
    fn damage_is_an_error_and_not_an_empty_memory() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "{").unwrap();
        assert!(Memory::open(file.path()).unwrap().recall().is_err());
    }
}
