//! Host name and name service in the user's root.
//!
//! Container images leave these files to the runtime: they are missing, empty, left over from the build, or symbolic
//! links to a daemon's file that does not exist. They are made regular files; when the image's `/etc` cannot be
//! written, a file on a temporary directory is bound over the existing one.

use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::console;
use crate::mounts::ensure_directory;

/// Largest `/etc/hosts` of an image that is read to see whether it is usable.
const HOSTS_BYTES_MAX: u64 = 1 << 20;

/// Sets the kernel's host name.
pub(crate) fn set_hostname(hostname: &str) {
    if let Err(error) = rustix::system::sethostname(hostname.as_bytes()) {
        console::log(format_args!("host name {hostname} not set: {error}"));
    }
}

/// Writes `etc/hostname`, `etc/hosts`, `etc/resolv.conf` (when name servers are given) and `etc/mtab` below `root`.
pub(crate) fn write_all(root: &Path, hostname: &str, dns_servers: &[IpAddr]) {
    let etc = root.join("etc");
    if let Err(error) = ensure_directory(&etc) {
        console::log(format_args!("/etc is not usable: {error}"));
        return;
    }
    put(&etc, "hostname", &format!("{hostname}\n"));
    put(&etc, "hosts", &hosts(&read_hosts(&etc), hostname));
    if !dns_servers.is_empty() {
        let lines: String = dns_servers.iter().map(|address| format!("nameserver {address}\n")).collect();
        put(&etc, "resolv.conf", &lines);
    }
    if etc.join("mtab").symlink_metadata().is_err() {
        let _ = std::os::unix::fs::symlink("../proc/self/mounts", etc.join("mtab"));
    }
}

fn read_hosts(etc: &Path) -> String {
    let path = etc.join("hosts");
    let small_file = path.metadata().is_ok_and(|meta| meta.is_file() && meta.len() <= HOSTS_BYTES_MAX);
    if small_file { std::fs::read_to_string(path).unwrap_or_default() } else { String::new() }
}

/// The image's own lines stay; what every program relies on is added when it is missing.
fn hosts(existing: &str, hostname: &str) -> String {
    let names = |line: &str| -> Vec<String> {
        let content = line.split('#').next().unwrap_or_default();
        content.split_ascii_whitespace().skip(1).map(str::to_owned).collect()
    };
    let known: Vec<String> = existing.lines().flat_map(names).collect();
    let knows = |name: &str| known.iter().any(|known| known == name);

    let mut text = existing.to_owned();
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    if !knows("localhost") {
        text.push_str("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n");
    }
    if !knows(hostname) {
        text.push_str("127.0.1.1\t");
        text.push_str(hostname);
        text.push('\n');
    }
    text
}

fn put(etc: &Path, name: &str, text: &str) {
    let Err(direct) = replace(etc, name, text) else { return };
    if let Err(bound) = bind_over(etc, name, text) {
        console::log(format_args!("/etc/{name} not written: {direct}; nor bound: {bound}"));
    }
}

/// Replaces the entry itself, never what a symbolic link points at: the target may be outside `/etc` and gone
/// tomorrow.
fn replace(etc: &Path, name: &str, text: &str) -> io::Result<()> {
    let target = etc.join(name);
    if target.is_dir() && !target.is_symlink() {
        std::fs::remove_dir(&target)?;
    }
    let temporary = etc.join(format!(".{name}.aenv"));
    let _ = std::fs::remove_file(&temporary);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))?;
    std::fs::rename(&temporary, &target)
}

fn bind_over(etc: &Path, name: &str, text: &str) -> io::Result<()> {
    let directory = Path::new("/dev/shm/.agentenv");
    std::fs::create_dir_all(directory)?;
    let file = directory.join(name);
    std::fs::write(&file, text)?;
    rustix::mount::mount_bind(&file, etc.join(name))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers() -> Vec<IpAddr> {
        vec!["1.1.1.1".parse().unwrap(), "8.8.8.8".parse().unwrap()]
    }

    #[test]
    fn an_image_without_etc_gets_every_file() {
        let root = tempfile::tempdir().unwrap();
        write_all(root.path(), "box", &servers());
        let read = |name: &str| std::fs::read_to_string(root.path().join("etc").join(name)).unwrap();
        assert_eq!(read("hostname"), "box\n");
        assert_eq!(read("resolv.conf"), "nameserver 1.1.1.1\nnameserver 8.8.8.8\n");
        assert_eq!(
            read("hosts"),
            "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox\n"
        );
        assert!(root.path().join("etc/mtab").is_symlink());
    }

    #[test]
    fn a_dangling_resolv_conf_link_becomes_a_file_and_its_target_is_not_made() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("../run/stub-resolv.conf", root.path().join("etc/resolv.conf")).unwrap();
        std::fs::create_dir(root.path().join("run")).unwrap();
        write_all(root.path(), "box", &servers());
        assert!(root.path().join("etc/resolv.conf").symlink_metadata().unwrap().is_file());
        assert!(!root.path().join("run/stub-resolv.conf").exists());
    }

    #[test]
    fn without_name_servers_the_image_keeps_its_resolv_conf() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/resolv.conf"), "nameserver 9.9.9.9\n").unwrap();
        write_all(root.path(), "box", &[]);
        assert_eq!(std::fs::read(root.path().join("etc/resolv.conf")).unwrap(), b"nameserver 9.9.9.9\n");
    }

    #[test]
    fn lines_of_the_image_stay_and_nothing_is_added_twice() {
        let once = hosts("10.0.0.1 db # localhost", "box");
        assert_eq!(
            once,
            "10.0.0.1 db # localhost\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\tbox\n"
        );
        assert_eq!(hosts(&once, "box"), once);
    }
}
