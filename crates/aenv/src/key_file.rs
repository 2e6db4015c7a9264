//! The node's API key, in a file only root reads.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context, bail};

/// Random bytes of a key. E2B's clients expect `e2b_` and hexadecimal digits.
const KEY_BYTES: usize = 20;

/// Reads the key, or makes one at the first start.
pub(crate) fn load_or_create(path: &Path) -> anyhow::Result<String> {
    let context = || format!("API key file {}", path.display());
    match fs::read_to_string(path) {
        Ok(text) => {
            let mode = fs::metadata(path).with_context(context)?.permissions().mode();
            if mode & 0o077 != 0 {
                bail!("{} can be read by others (mode {:o}); chmod it to 600", path.display(), mode & 0o777);
            }
            let key = text.trim();
            if key.is_empty() {
                bail!("{} is empty; write a key into it, or remove it to have one made", path.display());
            }
            Ok(key.to_owned())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => create(path).with_context(context),
        Err(error) => Err(error).with_context(context),
    }
}

fn create(path: &Path) -> anyhow::Result<String> {
    let random: [u8; KEY_BYTES] = rand::random();
    let digits: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let key = format!("e2b_{digits}");
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory)?;
    }
    // Whole or not at all: a reader never sees an empty file.
    let partial = path.with_extension(format!("new-{}", std::process::id()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&partial)?;
    writeln!(file, "{key}")?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    Ok(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_secret() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("new/api-key");
        let key = load_or_create(&path).unwrap();
        assert!(
            key.starts_with("e2b_")
                && key.len() == 44
                && key[4..].bytes().all(|byte| byte.is_ascii_hexdigit())
        );
        assert_eq!(load_or_create(&path).unwrap(), key);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn a_key_others_can_read_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("api-key");
        fs::write(&path, "e2b_0123\n").unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(load_or_create(&path).unwrap_err().to_string().contains("600"));
    }
}
