//! Setup with the host's real apt, real packages and a real web server.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use assets::{Assets, AssetsError, GuestPrograms, PackageUrls, PinnedUrl, SetupConfig, Sources};

/// Stands for both guest programs: what matters here is that it is a static executable.
const STATIC_PROGRAM: &str = "/bin/busybox";

fn config(directory: &Path, sources: Sources) -> SetupConfig {
    SetupConfig {
        assets_directory: directory.to_owned(),
        guest_programs: GuestPrograms { init: STATIC_PROGRAM.into(), envd: STATIC_PROGRAM.into() },
        sources,
    }
}

fn prepare(config: &SetupConfig) -> (Result<Assets, AssetsError>, Vec<String>) {
    let mut lines = Vec::new();
    let result = assets::prepare(config, &mut |line| lines.push(line.to_owned()));
    (result, lines)
}

/// Assets made through apt, once for this file; kept between runs because of the download.
fn from_apt() -> &'static (PathBuf, Assets) {
    static MADE: OnceLock<(PathBuf, Assets)> = OnceLock::new();
    MADE.get_or_init(|| {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("assets");
        let (assets, lines) = prepare(&config(&directory, Sources::Apt(assets::AptSource::default())));
        let assets = assets.unwrap_or_else(|error| panic!("{error}\n{lines:#?}"));
        (directory, assets)
    })
}

/// Another directory with the same assets.
fn copy_of_assets() -> tempfile::TempDir {
    let (source, _) = from_apt();
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(source).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

/// The package files that setup keeps, as a source without network.
fn kept_packages() -> PackageUrls {
    let (directory, assets) = from_apt();
    let pinned = |sha256: &str| PinnedUrl {
        url: format!("file://{}/downloads/{sha256}.deb", directory.display()),
        sha256: sha256.to_owned(),
    };
    PackageUrls {
        kernel_package: pinned(&assets.manifest.kernel_package.sha256),
        busybox_package: Some(pinned(&assets.manifest.busybox_package.sha256)),
    }
}

#[test]
fn a_second_setup_finds_everything_up_to_date() {
    let (directory, first) = from_apt();
    let (second, lines) = prepare(&config(directory, Sources::Apt(assets::AptSource::default())));
    assert_eq!(second.unwrap().manifest, first.manifest);
    assert!(lines.last().unwrap().starts_with("assets are up to date (kernel 6.12."), "{lines:#?}");
}

#[test]
fn the_initramfs_holds_init_and_the_modules_in_load_order() {
    let (_, assets) = from_apt();
    let image = std::fs::read(&assets.initramfs).unwrap();
    assert_eq!(image.len() % 4096, 0);
    let output = std::process::Command::new("busybox")
        .args(["cpio", "-t"])
        .stdin(std::fs::File::open(&assets.initramfs).unwrap())
        .output()
        .unwrap();
    let listing = String::from_utf8(output.stdout).unwrap();
    assert!(listing.lines().any(|name| name == "init"), "{listing}");
    let position = |module: &str| {
        let found = listing.lines().position(|name| name.ends_with(&format!("-{module}.ko")));
        found.unwrap_or_else(|| panic!("{module} is not in\n{listing}"))
    };
    for module in ["virtio_mmio", "virtio_blk", "virtio-rng", "virtio_balloon", "qemu_fw_cfg", "overlay"] {
        position(module);
    }
    assert!(position("failover") < position("net_failover"));
    assert!(position("net_failover") < position("virtio_net"));
}

#[test]
fn the_same_input_gives_the_same_files_from_any_source() {
    let (_, assets) = from_apt();
    let elsewhere = tempfile::tempdir().unwrap();
    let (other, _) = prepare(&config(elsewhere.path(), Sources::Urls(kept_packages())));
    let other = other.unwrap();
    assert_eq!(other.manifest.kernel, assets.manifest.kernel);
    assert_eq!(other.manifest.initramfs, assets.manifest.initramfs);
    assert_eq!(other.manifest.tools_disk, assets.manifest.tools_disk);
}

/// Serves one file to one client.
fn serve_once(content: Vec<u8>, status: &'static str) -> (String, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut request = [0; 4096];
        let _ = stream.read(&mut request).unwrap();
        let head =
            format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", content.len());
        stream.write_all(head.as_bytes()).unwrap();
        // A client that has seen enough closes early.
        let _ = stream.write_all(&content);
    });
    (format!("http://{address}"), server)
}

#[test]
fn packages_come_from_a_web_server_too() {
    let urls = kept_packages();
    let package = std::fs::read(urls.kernel_package.url.strip_prefix("file://").unwrap()).unwrap();
    let (address, server) = serve_once(package, "200 OK");
    let name = "linux-image-6.12.1-cloud-amd64-unsigned_6.12.1-1_amd64.deb";
    let kernel_package = PinnedUrl { url: format!("{address}/{name}"), sha256: urls.kernel_package.sha256 };
    let directory = tempfile::tempdir().unwrap();
    let sources = Sources::Urls(PackageUrls { kernel_package, busybox_package: None });
    let (made, lines) = prepare(&config(directory.path(), sources));
    let made = made.unwrap();
    server.join().unwrap();
    assert_eq!(made.manifest.kernel, from_apt().1.manifest.kernel);
    assert_eq!(made.manifest.kernel_package.version, "6.12.1-1");
    assert!(lines.iter().any(|line| line == "using the host's /bin/busybox"), "{lines:#?}");
}

fn refusal_of(content: &[u8], status: &'static str) -> String {
    let (address, server) = serve_once(content.to_vec(), status);
    let kernel_package = PinnedUrl { url: format!("{address}/kernel.deb"), sha256: "0".repeat(64) };
    let directory = tempfile::tempdir().unwrap();
    let sources = Sources::Urls(PackageUrls { kernel_package, busybox_package: None });
    let error = prepare(&config(directory.path(), sources)).0.unwrap_err();
    server.join().unwrap();
    assert!(matches!(Assets::open(directory.path()), Err(AssetsError::NotPrepared { .. })));
    error.to_string()
}

#[test]
fn another_file_than_the_pinned_one_is_refused() {
    let reason = refusal_of(b"something else", "200 OK");
    assert!(reason.contains("SHA-256") && reason.contains("expected 0000"), "{reason}");
}

#[test]
fn a_web_servers_refusal_is_passed_on() {
    let reason = refusal_of(b"", "404 Not Found");
    assert!(reason.contains("404"), "{reason}");
}

#[test]
fn a_directory_without_assets_says_what_to_run() {
    let directory = tempfile::tempdir().unwrap();
    let error = Assets::open(directory.path()).unwrap_err().to_string();
    assert!(error.ends_with("run `aenv setup`"), "{error}");
}

#[test]
fn a_missing_file_is_named_and_made_again() {
    let copy = copy_of_assets();
    let kernel = Assets::open(copy.path()).unwrap().kernel;
    std::fs::remove_file(&kernel).unwrap();
    let error = Assets::open(copy.path()).unwrap_err();
    assert!(matches!(&error, AssetsError::Missing { what: "kernel", path } if *path == kernel), "{error}");

    let (again, _) = prepare(&config(copy.path(), Sources::Urls(kept_packages())));
    assert!(again.unwrap().kernel.exists());
}

#[test]
fn a_changed_byte_is_found_even_after_an_earlier_check() {
    use std::os::unix::fs::FileExt;
    let copy = copy_of_assets();
    let initramfs = Assets::open(copy.path()).unwrap().initramfs;
    std::fs::File::options().write(true).open(&initramfs).unwrap().write_all_at(b"x", 5000).unwrap();
    let error = Assets::open(copy.path()).unwrap_err();
    assert!(matches!(&error, AssetsError::Damaged { what: "initramfs", .. }), "{error}");
}

#[test]
fn a_file_with_unchanged_size_time_and_inode_is_not_read_again() {
    use std::os::unix::fs::FileExt;
    let copy = copy_of_assets();
    let kernel = Assets::open(copy.path()).unwrap().kernel;
    let file = std::fs::File::options().write(true).open(kernel).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    file.write_all_at(b"x", 5000).unwrap();
    file.set_modified(modified).unwrap();
    // Only a check that does not look at the content can succeed.
    Assets::open(copy.path()).unwrap();
}

#[test]
fn a_failed_setup_leaves_the_old_assets_valid() {
    let copy = copy_of_assets();
    let before = Assets::open(copy.path()).unwrap().manifest;
    let (address, server) = serve_once(b"cut short".to_vec(), "200 OK");
    let kernel_package = PinnedUrl { url: format!("{address}/kernel.deb"), sha256: "0".repeat(64) };
    let sources = Sources::Urls(PackageUrls { kernel_package, busybox_package: None });
    prepare(&config(copy.path(), sources)).0.unwrap_err();
    server.join().unwrap();
    assert_eq!(Assets::open(copy.path()).unwrap().manifest, before);
}

#[test]
fn a_replaced_setups_files_stay_until_the_next_replacement() {
    let copy = copy_of_assets();
    let first = Assets::open(copy.path()).unwrap();
    let urls = Sources::Urls(kept_packages());
    let programs = tempfile::tempdir().unwrap();
    let replace = |marker: &[u8]| {
        let init = programs.path().join("init");
        std::fs::write(&init, [&std::fs::read(STATIC_PROGRAM).unwrap()[..], marker].concat()).unwrap();
        let mut config = config(copy.path(), urls.clone());
        config.guest_programs.init = init;
        prepare(&config).0.unwrap()
    };
    let second = replace(b"2");
    assert_ne!(second.initramfs, first.initramfs);
    assert!(first.initramfs.exists(), "a running node may still use it");
    let third = replace(b"3");
    assert!(!first.initramfs.exists() && second.initramfs.exists() && third.initramfs.exists());
}

#[test]
fn programs_that_cannot_run_in_a_guest_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let refusal = |program: &str| {
        let mut config = config(directory.path(), Sources::Urls(kept_packages()));
        config.guest_programs.envd = program.into();
        prepare(&config).0.unwrap_err().to_string()
    };
    assert!(refusal("/bin/cat").contains("build it static"));
    assert!(refusal("/etc/passwd").contains("not an x86-64 ELF"));
    assert!(refusal("/nonexistent").contains("build or install it"));
}

#[test]
fn two_setups_at_once_do_not_mix() {
    let copy = copy_of_assets();
    let lock = std::fs::File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(copy.path().join("lock"))
        .unwrap();
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let error = prepare(&config(copy.path(), Sources::Urls(kept_packages()))).0.unwrap_err();
    assert!(matches!(error, AssetsError::Busy { .. }), "{error}");
}
