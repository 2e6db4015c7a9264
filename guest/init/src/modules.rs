//! Kernel modules from the initramfs.

use std::fs::File;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::console;

/// Inserts every `*.ko` of `directory` in name order (the host numbers them by dependency). A module that does not
/// load is reported and left out: if it was needed, the missing disk or network will say so.
pub(crate) fn insert_all(directory: &Path) {
    for path in in_name_order(directory) {
        if let Err(error) = insert(&path) {
            console::log(format_args!("module {} not loaded: {error}", path.display()));
        }
    }
}

fn in_name_order(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "ko"))
        .collect();
    paths.sort();
    paths
}

fn insert(path: &Path) -> std::io::Result<()> {
    let module = File::open(path)?;
    match rustix::system::finit_module(&module, c"", 0) {
        // Already there: built in, or inserted as another one's dependency.
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_come_in_name_order_and_other_files_are_left_out() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["20-b.ko", "03-a.ko", "README", "10-c.ko"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let names: Vec<_> =
            in_name_order(directory.path()).iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["03-a.ko", "10-c.ko", "20-b.ko"]);
    }

    #[test]
    fn a_missing_directory_means_no_modules() {
        assert!(in_name_order(Path::new("/nonexistent/modules")).is_empty());
    }
}
