//! Finds QEMU and its firmware.

use std::ffi::OsStr;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::VmmError;

/// What the rest of the driver was measured with; older ones lack parts of it.
const OLDEST: (u32, u32) = (7, 2);
/// Firmware that the machine starts from. The default, SeaBIOS, overlaps with the initramfs in some QEMU versions and then
/// boots only sometimes.
pub(super) const FIRMWARE: &str = "qboot.rom";
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
const MAX_ANSWER_BYTES: u64 = 64 * 1024;

/// A QEMU that can be used.
#[derive(Debug, Clone)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) version: String,
    pub(super) firmware: PathBuf,
}

impl Program {
    /// Finds the program, asks its version and looks for its firmware.
    pub(super) fn find(program: &Path) -> Result<Self, VmmError> {
        let unusable = |reason: String| VmmError::Program { program: program.to_owned(), reason };
        let path = search(program, std::env::var_os("PATH").as_deref()).ok_or_else(|| {
            unusable("not found; install qemu-system-x86 (Debian, Ubuntu) or configure its path".to_owned())
        })?;
        let answer = ask(&path, &["--version"]).map_err(unusable)?;
        let version =
            version(&answer).ok_or_else(|| unusable(format!("it does not say its version: {answer:?}")))?;
        if numbers(version) < Some(OLDEST) {
            let (major, minor) = OLDEST;
            return Err(unusable(format!("version {version} is too old; install {major}.{minor} or newer")));
        }
        let directories = ask(&path, &["-L", "help"]).map_err(unusable)?;
        let firmware = directories
            .lines()
            .map(|directory| Path::new(directory).join(FIRMWARE))
            .find(|file| file.exists());
        let firmware = firmware.ok_or_else(|| {
            unusable(format!("its firmware {FIRMWARE} is missing; install qemu-system-data"))
        })?;
        Ok(Self { version: version.to_owned(), firmware, path })
    }
}

fn search(program: &Path, search_path: Option<&OsStr>) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    std::env::split_paths(search_path?).map(|directory| directory.join(program)).find(|file| file.is_file())
}

fn ask(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let deadline = Instant::now() + ANSWER_LIMIT;
    // Both answers are shorter than a pipe holds, so it can end before anything is read.
    let status = loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => break status,
            None if Instant::now() >= deadline => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!(
                    "no answer to {} within {} s",
                    arguments.join(" "),
                    ANSWER_LIMIT.as_secs()
                ));
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    };
    let mut answer = Vec::new();
    if let Some(output) = child.stdout.take() {
        output.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).map_err(|error| error.to_string())?;
    }
    match status.success() {
        true => Ok(String::from_utf8_lossy(&answer).into_owned()),
        false => Err(format!("{} fails: {status}", arguments.join(" "))),
    }
}

/// From `QEMU emulator version 7.2.22 (Debian …)`.
fn version(answer: &str) -> Option<&str> {
    answer.lines().next()?.split_once("version ")?.1.split(' ').next()
}

fn numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn refusal(script: &str) -> String {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let program = directory.path().join("qemu");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("made executable");
        Program::find(&program).expect_err("refused").to_string()
    }

    #[test]
    fn the_hosts_program_is_found() {
        let program = Program::find(Path::new("qemu-system-x86_64")).expect("QEMU is installed");
        assert!(program.path.is_absolute() && program.firmware.ends_with(FIRMWARE), "{program:?}");
    }

    #[test]
    fn a_missing_program_says_what_to_install() {
        let error = Program::find(Path::new("qemu-system-none")).expect_err("refused").to_string();
        assert!(error.contains("install qemu-system-x86"), "{error}");
    }

    #[test]
    fn old_versions_and_strangers_are_refused() {
        assert!(refusal("echo QEMU emulator version 6.2.0 '(Debian)'").contains("too old"));
        assert!(refusal("echo QEMU emulator version 10.0.13; ").contains("qemu-system-data"));
        assert!(refusal("echo hello").contains("does not say its version"));
        assert!(refusal("exit 3").contains("exit status: 3"));
    }
}
