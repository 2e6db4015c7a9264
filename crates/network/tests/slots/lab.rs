//! A host, an internet and guests, each a network namespace without a name, so that nothing outside the test is touched
//! and every packet is real.
//!
//! ```text
//!  guest (a Linux network stack) ═ tap pump ═ slot ─ host 203.0.113.1 ─ internet 203.0.113.2, 198.51.100.7, private ones
//! ```

use std::fs::File;
use std::future::Future;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use network::{DEFAULT_DENIED_NETWORKS, NetworkConfig, SlotManager};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};

pub(crate) const HOST: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 1);
pub(crate) const INTERNET: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);
/// Addresses the internet's machine also has, so that only our rules keep a guest from them.
pub(crate) const PRIVATE: [Ipv4Addr; 5] = [
    Ipv4Addr::new(10, 99, 0, 1),
    Ipv4Addr::new(100, 64, 0, 1),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(172, 16, 0, 1),
    Ipv4Addr::new(192, 168, 77, 1),
];
/// How long a connection may take that should succeed, and how long one is waited for that should not.
const PATIENCE: Duration = Duration::from_secs(5);
const IMPATIENCE: Duration = Duration::from_millis(400);

/// A network namespace that exists as long as this value, or a thread in it.
#[derive(Clone)]
pub(crate) struct Namespace(Arc<File>);

impl Namespace {
    pub(crate) fn new() -> Self {
        let file = thread::spawn(|| {
            // SAFETY: NEWNET does not touch the descriptor table.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            File::open("/proc/thread-self/ns/net").unwrap()
        });
        let namespace = Self(Arc::new(file.join().unwrap()));
        namespace.ip("link set lo up");
        namespace
    }

    pub(crate) fn named(name: &str) -> Self {
        Self(Arc::new(File::open(format!("/run/netns/{name}")).unwrap()))
    }

    /// Runs `work` on a thread inside.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            scope
                .spawn(|| {
                    move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
                    work()
                })
                .join()
                .unwrap()
        })
    }

    pub(crate) fn command(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.run(|| Command::new(program).args(arguments).output().unwrap());
        assert!(
            output.status.success(),
            "{program} {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn ip(&self, arguments: &str) -> String {
        self.command("ip", &arguments.split(' ').collect::<Vec<_>>())
    }

    pub(crate) fn sysctl(&self, name: &str) -> String {
        self.run(|| std::fs::read_to_string(format!("/proc/sys/{name}")).unwrap()).trim().to_owned()
    }

    pub(crate) fn connect(&self, address: Ipv4Addr, port: u16) -> Option<TcpStream> {
        self.run(|| TcpStream::connect_timeout(&SocketAddr::from((address, port)), PATIENCE).ok())
    }

    /// Whether a TCP connection comes about. Only for addresses where it must not: it does not wait long.
    pub(crate) fn reaches(&self, address: Ipv4Addr, port: u16) -> bool {
        self.run(|| TcpStream::connect_timeout(&SocketAddr::from((address, port)), IMPATIENCE).is_ok())
    }

    /// Accepts TCP connections on `port` of every address and tells each who it is.
    pub(crate) fn serve(&self, port: u16) -> Server {
        let listener = self.run(|| TcpListener::bind(("0.0.0.0", port)).unwrap());
        listener.set_nonblocking(true).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((mut stream, peer)) => drop(stream.write_all(peer.ip().to_string().as_bytes())),
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        });
        Server { stop, thread: Some(thread) }
    }

    pub(crate) fn udp(&self, address: Ipv4Addr, port: u16) -> UdpSocket {
        let socket = self.run(|| UdpSocket::bind((address, port)).unwrap());
        socket.set_read_timeout(Some(IMPATIENCE)).unwrap();
        socket
    }
}

pub(crate) struct Server {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Who the server at the other end says we are.
pub(crate) fn seen_as(stream: Option<TcpStream>) -> IpAddr {
    let mut text = String::new();
    stream.expect("no connection").read_to_string(&mut text).unwrap();
    text.parse().unwrap()
}

pub(crate) struct Lab {
    pub(crate) host: Namespace,
    pub(crate) internet: Namespace,
    runtime: tokio::runtime::Runtime,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let (host, internet) = (Namespace::new(), Namespace::new());
        host.ip("link add up0 type veth peer name down0");
        let there = format!("/proc/{}/fd/{}", std::process::id(), internet.0.as_raw_fd());
        host.ip(&format!("link set down0 netns {there}"));
        host.ip("addr add 203.0.113.1/24 dev up0");
        host.ip("link set up0 up");
        internet.ip("addr add 203.0.113.2/24 dev down0");
        internet.ip("link set down0 up");
        for address in PRIVATE.iter().chain([&INTERNET]) {
            internet.ip(&format!("addr add {address}/32 dev down0"));
        }
        host.ip("route add default via 203.0.113.2");
        // What a new namespace starts with depends on the machine.
        host.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { host, internet, runtime }
    }

    pub(crate) fn manager(&self, prefix: &str) -> Arc<SlotManager> {
        let manager = self.host.run(|| self.runtime.block_on(SlotManager::new(config(prefix))));
        Arc::new(manager.unwrap())
    }

    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }
}

pub(crate) fn config(prefix: &str) -> NetworkConfig {
    NetworkConfig {
        name_prefix: prefix.into(),
        slot_range: (Ipv4Addr::new(10, 12, 0, 0), 16),
        denied_networks: DEFAULT_DENIED_NETWORKS.to_vec(),
    }
}

/// A name prefix no other test, in this process or another, uses at the same time.
pub(crate) fn prefix() -> String {
    let digits = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let digit = || char::from(digits[rand::random_range(0..digits.len())]);
    format!("t{}{}{}", digit(), digit(), digit())
}

/// A Linux network stack behind a slot's tap, configured as our init configures a guest.
pub(crate) struct Guest {
    pub(crate) namespace: Namespace,
    stop: Arc<AtomicBool>,
    pump: Option<JoinHandle<()>>,
}

impl Guest {
    pub(crate) fn start(tap: OwnedFd) -> Self {
        let namespace = Namespace::new();
        let card = namespace.run(open_card);
        namespace.ip("link set eth0 address 02:00:00:00:00:01");
        namespace.ip("addr add 169.254.0.21/30 dev eth0");
        namespace.ip("link set eth0 up");
        namespace.ip("route add default via 169.254.0.22");
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let pump = thread::spawn(move || pump(&File::from(tap), &card, &stopped));
        Self { namespace, stop, pump: Some(pump) }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.pump.take().unwrap().join().unwrap();
    }
}

/// A tap of the calling thread's namespace called `eth0`; with the same header as the slot's, frames pass unchanged.
fn open_card() -> File {
    let card = std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun").unwrap();
    rustix::fs::fcntl_setfl(&card, rustix::fs::OFlags::NONBLOCK).unwrap();
    let mut request = [0_u8; 40];
    request[..4].copy_from_slice(b"eth0");
    request[16..18].copy_from_slice(&0x5002_u16.to_ne_bytes());
    // SAFETY: TUNSETIFF reads and writes a `struct ifreq` of 40 bytes.
    let outcome = unsafe { libc::ioctl(card.as_raw_fd(), 0x4004_54ca, request.as_mut_ptr()) };
    assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    card
}

fn pump(one: &File, other: &File, stop: &AtomicBool) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut frame = vec![0_u8; 70_000];
    let tick = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    while !stop.load(Ordering::Relaxed) {
        let mut wanted = [PollFd::new(one, PollFlags::IN), PollFd::new(other, PollFlags::IN)];
        poll(&mut wanted, Some(&tick)).unwrap();
        for (mut from, mut to) in [(one, other), (other, one)] {
            match from.read(&mut frame) {
                // A link that is down refuses frames, and one whose device was removed is dead: as on a real card.
                Ok(length) => drop(to.write(&frame[..length])),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}
