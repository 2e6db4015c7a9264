//! Packages through apt, which checks signatures and digests itself.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::Package;
use crate::run::run;
use crate::{AssetsError, hash};

const KERNEL_PREFIX: &str = "linux-image-6.12.";
const KERNEL_SUFFIX: &str = "-cloud-amd64-unsigned";
const BUSYBOX: &str = "busybox-static";

const QUERY_LIMIT: Duration = Duration::from_secs(60);
const NETWORK_LIMIT: Duration = Duration::from_secs(15 * 60);
const NO_APT: &str = "on a host without apt, configure the kernel package's address and SHA-256 instead";

/// The host's apt.
#[derive(Debug, Clone)]
pub struct AptSource {
    /// Program `apt-get`, by name or path.
    pub apt_get: PathBuf,
    /// Program `apt-cache`, by name or path.
    pub apt_cache: PathBuf,
}

impl Default for AptSource {
    fn default() -> Self {
        Self { apt_get: "apt-get".into(), apt_cache: "apt-cache".into() }
    }
}

impl AptSource {
    /// The newest kernel package. Names roll forward with every security update and old ones vanish, so none is pinned.
    pub(super) fn find_kernel(&self, report: &mut dyn FnMut(&str)) -> Result<Package, AssetsError> {
        if let Some(package) = self.newest_kernel()? {
            return Ok(package);
        }
        self.update(report)?;
        self.newest_kernel()?.ok_or_else(|| AssetsError::Source {
            package: format!("{KERNEL_PREFIX}*{KERNEL_SUFFIX}"),
            reason: format!(
                "apt knows none (it is in Debian 12's security and Debian 13's main archive); {NO_APT}"
            ),
        })
    }

    /// Debian's static busybox, or `None` where the distribution has no such package.
    pub(super) fn find_busybox(&self, report: &mut dyn FnMut(&str)) -> Result<Option<Package>, AssetsError> {
        if let Some(package) = self.show(BUSYBOX)? {
            return Ok(Some(package));
        }
        self.update(report)?;
        self.show(BUSYBOX)
    }

    /// Downloads into an empty directory. A failure may mean that the archive has moved on, so lists are renewed once.
    pub(super) fn download(&self, package: &Package, directory: &Path) -> Result<PathBuf, AssetsError> {
        let wanted = format!("{}={}", package.name, package.version);
        let attempt = || {
            let mut command = Command::new(&self.apt_get);
            run(command.args(["-q", "download", &wanted]).current_dir(directory), NETWORK_LIMIT, NO_APT)
        };
        if attempt().is_err() {
            self.update(&mut |_| {})?;
            attempt()?;
        }
        let entries = std::fs::read_dir(directory).map_err(AssetsError::io("list the downloaded package"))?;
        let mut paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        paths.find(|path| path.extension().is_some_and(|ending| ending == "deb")).ok_or_else(|| {
            AssetsError::Source {
                package: wanted.clone(),
                reason: "apt-get download reported success but left no .deb file".to_owned(),
            }
        })
    }

    fn update(&self, report: &mut dyn FnMut(&str)) -> Result<(), AssetsError> {
        report("renewing the package lists (apt-get update)");
        run(Command::new(&self.apt_get).args(["-q", "update"]), NETWORK_LIMIT, NO_APT).map(drop)
    }

    fn newest_kernel(&self) -> Result<Option<Package>, AssetsError> {
        let names =
            run(Command::new(&self.apt_cache).args(["pkgnames", KERNEL_PREFIX]), QUERY_LIMIT, NO_APT)?;
        let mut names: Vec<_> = names.lines().filter(|name| name.ends_with(KERNEL_SUFFIX)).collect();
        names.sort_by_key(|name| numbers(name));
        // A name apt remembers but can no longer deliver has no record; then the next one is tried.
        for name in names.into_iter().rev() {
            if let Some(package) = self.show(name)? {
                return Ok(Some(package));
            }
        }
        Ok(None)
    }

    /// The candidate version's record.
    fn show(&self, name: &str) -> Result<Option<Package>, AssetsError> {
        let query =
            run(Command::new(&self.apt_cache).args(["show", "--no-all-versions", name]), QUERY_LIMIT, NO_APT);
        let record = match query {
            Ok(record) => record,
            // apt-cache fails for a name it has no record of; anything else that fails shows in pkgnames too.
            Err(AssetsError::Command { reason, .. }) if reason.starts_with("exit status") => return Ok(None),
            Err(error) => return Err(error),
        };
        let field = |key: &str| record.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
        let (Some(version), Some(sha256)) = (field("Version"), field("SHA256")) else { return Ok(None) };
        let sound = hash::is_sha256(sha256);
        Ok(sound.then(|| Package {
            name: name.to_owned(),
            version: version.to_owned(),
            sha256: sha256.to_owned(),
        }))
    }
}

/// All numbers in a name, for ordering `6.12.9` before `6.12.10`.
fn numbers(name: &str) -> Vec<u64> {
    name.split(|character: char| !character.is_ascii_digit())
        .filter_map(|digits| digits.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// An apt made of shell scripts; `update` makes the kernel known.
    fn scripted(directory: &Path, known: &str, download: &str) -> AptSource {
        let state = directory.join("lists");
        std::fs::write(&state, known).expect("written");
        let digest = "0".repeat(64);
        let program = |name: &str, body: String| {
            let path = directory.join(name);
            std::fs::write(&path, format!("#!/bin/sh\nset -e\n{body}")).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
            path
        };
        let lists = state.display();
        AptSource {
            apt_cache: program(
                "apt-cache",
                format!(
                    "case $1 in pkgnames) cat {lists};; show) grep -qx \"$3\" {lists} || exit 100
                     printf 'Package: x\\nVersion: 1:2-3\\nSHA256: {digest}\\n';; esac\n"
                ),
            ),
            apt_get: program(
                "apt-get",
                format!(
                    "case $2 in update) echo linux-image-6.12.3+deb12-cloud-amd64-unsigned >> {lists};; download) {download};; esac\n"
                ),
            ),
        }
    }

    #[test]
    fn the_newest_kernel_is_found_by_number() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let known = "linux-image-6.12.9+deb12-cloud-amd64-unsigned\nlinux-image-6.12.101+deb12-cloud-amd64-unsigned\n\
                     linux-image-6.12.101+deb12-cloud-amd64\nlinux-image-6.12.200+deb12-cloud-amd64-dbg\n";
        let package = scripted(directory.path(), known, "exit 1").find_kernel(&mut |_| {}).expect("found");
        assert_eq!(package.name, "linux-image-6.12.101+deb12-cloud-amd64-unsigned");
        assert_eq!(package.version, "1:2-3");
    }

    #[test]
    fn empty_lists_are_renewed() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut said = Vec::new();
        let apt = scripted(directory.path(), "", "exit 1");
        let package = apt.find_kernel(&mut |line| said.push(line.to_owned())).expect("found after update");
        assert_eq!(package.name, "linux-image-6.12.3+deb12-cloud-amd64-unsigned");
        assert_eq!(said.len(), 1);
    }

    #[test]
    fn a_download_that_fails_once_is_repeated_with_new_lists() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let known = "linux-image-6.12.1+deb12-cloud-amd64-unsigned\n";
        let download = format!("grep -q 6.12.3 {}/lists && touch a.deb", directory.path().display());
        let apt = scripted(directory.path(), known, &download);
        let package = apt.find_kernel(&mut |_| {}).expect("found");
        let into = tempfile::tempdir().expect("a temporary directory");
        assert!(apt.download(&package, into.path()).expect("downloaded").ends_with("a.deb"));
    }

    #[test]
    fn a_host_without_apt_is_told_the_other_way() {
        let apt =
            AptSource { apt_get: "/nonexistent/apt-get".into(), apt_cache: "/nonexistent/apt-cache".into() };
        let reason = apt.find_kernel(&mut |_| {}).expect_err("no apt").to_string();
        assert!(reason.contains("configure the kernel package's address"), "{reason}");
    }
}
