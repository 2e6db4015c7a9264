//! A guest's network card on a tap that the caller opened.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use common::{BOOT_LIMIT, Place, qemu};
use vmm::{NetworkInterface, Vmm, wait_for_console};

const MAC: [u8; 6] = [0x02, 0, 0, 0, 0, 1];

/// A thread in a network namespace of its own, which ends with it.
struct Namespace {
    thread: JoinHandle<String>,
    go: mpsc::Sender<()>,
}

impl Namespace {
    /// Makes the namespace and a tap in it with the gateway's address.
    fn with_tap() -> (Self, OwnedFd) {
        let (tap_sender, tap) = mpsc::channel();
        let (go, wait) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            // SAFETY: a network namespace holds neither descriptors nor memory of other threads.
            unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }.unwrap();
            tap_sender.send(open_tap()).unwrap();
            for arguments in ["address add 169.254.0.22/30 dev tap0", "link set tap0 up"] {
                assert!(
                    Command::new("ip").args(arguments.split(' ')).status().unwrap().success(),
                    "ip {arguments}"
                );
            }
            wait.recv().unwrap();
            let mut stream = connect();
            stream.set_read_timeout(Some(BOOT_LIMIT)).unwrap();
            let mut said = String::new();
            stream.read_to_string(&mut said).unwrap();
            said
        });
        (Self { thread, go }, tap.recv_timeout(Duration::from_secs(10)).unwrap())
    }

    fn ask_guest(self) -> String {
        self.go.send(()).unwrap();
        self.thread.join().unwrap()
    }
}

/// The guest says that it listens just before it does.
fn connect() -> TcpStream {
    let started = Instant::now();
    loop {
        match TcpStream::connect_timeout(&"169.254.0.21:80".parse().unwrap(), BOOT_LIMIT) {
            Ok(stream) => return stream,
            Err(error) if error.kind() == ErrorKind::ConnectionRefused && started.elapsed() < BOOT_LIMIT => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

fn open_tap() -> OwnedFd {
    let file = File::options().read(true).write(true).open("/dev/net/tun").unwrap();
    // SAFETY: all fields of the structure are integers, for which zero is a value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (target, byte) in request.ifr_name.iter_mut().zip(b"tap0") {
        *target = byte.cast_signed();
    }
    request.ifr_ifru.ifru_flags =
        i16::try_from(libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR).unwrap();
    // SAFETY: the call reads and writes the structure it is given, which lives until after it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    file.into()
}

#[tokio::test]
async fn a_guest_is_reached_through_a_tap_of_another_namespace() {
    let (namespace, tap) = Namespace::with_tap();
    let place = Place::new();
    let mut config = place.config("network");
    config.network = Some(NetworkInterface { tap, guest_mac: MAC });
    let machine = qemu().boot(config).await.unwrap();
    let listening = wait_for_console(&*machine, "test-init: listening", BOOT_LIMIT).await;
    let console = machine.console_tail(100_000);
    // The guest is ended before anything is judged, so that a failure leaves nothing running.
    let said = match listening {
        Ok(_) => Some(tokio::task::spawn_blocking(|| namespace.ask_guest()).await),
        Err(_) => None,
    };
    machine.kill().await.unwrap();
    listening.unwrap();
    assert_eq!(said.unwrap().unwrap(), "hello from the guest\n");
    assert!(console.contains("test-init: card eth0 02:00:00:00:00:01"), "{console}");
    place.assert_nothing_left();
}
