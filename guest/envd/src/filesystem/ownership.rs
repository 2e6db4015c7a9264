//! Making directories for a user.

use std::io;
use std::os::unix::fs::{DirBuilderExt as _, chown};
use std::path::Path;

use crate::accounts::User;

const DIRECTORY_MODE: u32 = 0o755;

/// Makes `path` and every missing parent, and gives those that were made to `user`. Several may do so at the same time.
pub(crate) fn make_directories(path: &Path, user: &User) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|ancestor| !ancestor.is_dir()).collect();
    for directory in missing.into_iter().rev() {
        match std::fs::DirBuilder::new().mode(DIRECTORY_MODE).create(directory) {
            Ok(()) => chown(directory, Some(user.uid), Some(user.gid))?,
            // Another request was faster.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => {}
            // A file stands where a directory is needed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(io::ErrorKind::NotADirectory.into());
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes the missing parents of `path`.
pub(crate) fn make_parents(path: &Path, user: &User) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| make_directories(parent, user))
}
