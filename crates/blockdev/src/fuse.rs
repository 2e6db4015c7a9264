//! The FUSE front end: one mount for each host, one file for each device.
//!
//! # Why its own loop on `/dev/fuse`
//!
//! Everything a virtual machine reads and writes goes through here, and the session must be one that a successor can take
//! over. Of the libraries, `fuser` insists on reading INIT. `fuse-backend-rs` 0.14 can adopt a descriptor, but its answer
//! to OPEN has no PARALLEL_DIRECT_WRITES (without it, direct writes to a disk are done one after the other: a quarter of
//! the rate measured) and no NOFLUSH, its INIT speaks 7.33 with fixed queue limits, there is no notification that has
//! requests sent again, each request costs two system calls more (epoll on a non-blocking descriptor), and one buffer is
//! aliased for request and answer. What a mount of block devices needs is twenty opcodes, most of them one line; that
//! is less code than working around.
//!
//! # How it works
//!
//! - [`keeper`]: a process that holds the mount and hands its descriptors to whoever serves.
//! - Each channel (a descriptor of the connection) has one thread that reads a request, answers it, and reads the next.
//!   Flushes are handed to threads of their own, because they wait for disks.
//! - File handles are always 0 and inodes come from the owner's records: no answer depends on anything that dies with the
//!   process. A successor opens the same devices and has the kernel send again what was read and never answered.
//! - Disks bypass the page cache, and direct writes to one disk run in parallel. Closing a file sends nothing (a process
//!   that forks while nobody serves would hang in the child's close).
//! - Names are looked up at each open; attributes are cached, as a device's size does not change.

use std::ffi::OsString;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::{DeviceInfo, DeviceKind, DeviceSpec, FrontEnd, FrontEndError, Image};

mod abi;
mod devices;
mod flushers;
pub mod keeper;
mod mount;
mod server;
mod worker;

pub use devices::FIRST_DEVICE_INODE;

use devices::Devices;
use keeper::KeeperConfig;
use keeper::client::Kept;
use server::Server;
use worker::Workers;

/// What the FUSE front end has to know.
#[derive(Debug, Clone)]
pub struct FuseConfig {
    /// Directory on which devices appear; made when it is missing.
    pub mount_point: PathBuf,
    /// Socket of the keeper; its directory is made when it is missing.
    pub keeper_socket: PathBuf,
    /// Command that runs [`keeper::run`] with the arguments that follow, normally this program and a role's name.
    pub keeper_command: Vec<OsString>,
    /// Threads that answer requests, 1 to 64. A keeper that runs already keeps its number.
    pub threads: u16,
    /// As [`KeeperConfig::never_resend`]; for tests.
    pub never_resend: bool,
}

impl FuseConfig {
    /// Threads for a host with this many processors. Each may be busy with a disk operation or an fsync, so there are more
    /// than processors; more than a few dozen bring nothing.
    pub fn threads_for(processors: usize) -> u16 {
        u16::try_from(processors.saturating_mul(2).clamp(4, 32)).unwrap_or(4)
    }

    fn keeper(&self) -> KeeperConfig {
        KeeperConfig {
            mount_point: self.mount_point.clone(),
            socket: self.keeper_socket.clone(),
            channels: self.threads.clamp(1, keeper::CHANNELS_MAX),
            adopt: false,
            never_resend: self.never_resend,
        }
    }
}

/// A mount and the devices on it. Dropping it is [`FrontEnd::detach`].
#[derive(Debug)]
pub struct FuseFrontEnd {
    config: KeeperConfig,
    keeper_command: Vec<OsString>,
    devices: Arc<Devices>,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Adopted(Box<Kept>),
    Serving { kept: Box<Kept>, channels: Vec<Arc<OwnedFd>>, workers: Workers },
    Ended,
}

impl FuseFrontEnd {
    /// Takes the mount over from its keeper, or starts a keeper that makes it.
    ///
    /// # Errors
    /// Another process serves the mount; the keeper does not start or does not answer.
    pub fn attach(config: &FuseConfig) -> Result<Self, FrontEndError> {
        let keeper = config.keeper();
        let kept = Kept::find_or_start(&keeper, &config.keeper_command)?;
        tracing::info!(
            mount_point = %keeper.mount_point.display(),
            taken_over = kept.taken_over,
            threads = kept.channels.len(),
            kernel_minor = kept.session.kernel_minor,
            "FUSE mount attached"
        );
        if !kept.session.resends() {
            tracing::warn!(
                "this kernel cannot send unanswered requests again (Linux 6.9 can): when the storage daemon dies, requests \
                 it was working on fail, and guests may see an I/O error"
            );
        }
        Ok(Self {
            config: keeper,
            keeper_command: config.keeper_command.clone(),
            devices: Arc::new(Devices::default()),
            state: Mutex::new(State::Adopted(Box::new(kept))),
        })
    }

    /// Whether the mount was there before, so that programs may have devices open.
    pub fn taken_over(&self) -> bool {
        match &*self.state() {
            State::Adopted(kept) | State::Serving { kept, .. } => kept.taken_over,
            State::Ended => false,
        }
    }

    /// Starts another keeper when the present one has died. To be called now and then while serving: without a keeper,
    /// the devices' users would not survive this process.
    ///
    /// # Errors
    /// The new keeper does not start; everything goes on without one.
    pub fn ensure_kept(&self) -> Result<(), FrontEndError> {
        let State::Serving { kept, channels, .. } = &mut *self.state() else { return Ok(()) };
        if kept.is_alive() {
            return Ok(());
        }
        tracing::warn!(mount_point = %self.config.mount_point.display(), "the keeper has died; starting another one");
        let channels: Vec<_> = channels.iter().map(|channel| channel.as_fd()).collect();
        kept.replace(&self.config, &self.keeper_command, &channels)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_serving(&self, mut kept: Box<Kept>) -> Result<State, FrontEndError> {
        let channels: Vec<_> = kept.channels.drain(..).map(Arc::new).collect();
        if kept.session.resends() {
            worker::ask_to_resend(channels[0].as_fd())?;
        }
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let server = Arc::new(Server::new(Arc::clone(&self.devices), owner));
        let served = if kept.serve_on_first { &channels[..] } else { &channels[1..] };
        let workers = Workers::start(served, &server)?;
        Ok(State::Serving { kept, channels, workers })
    }
}

impl FrontEnd for FuseFrontEnd {
    fn name(&self) -> &'static str {
        "fuse"
    }

    fn mount_point(&self) -> &Path {
        &self.config.mount_point
    }

    fn open(&self, spec: DeviceSpec, image: Arc<dyn Image>) -> Result<PathBuf, FrontEndError> {
        let path = self.config.mount_point.join(&spec.name);
        self.devices.insert(spec, image)?;
        Ok(path)
    }

    fn swap(&self, name: &str, image: Arc<dyn Image>) -> Result<Arc<dyn Image>, FrontEndError> {
        let not_found = || FrontEndError::NotFound(name.to_owned());
        let device = self.devices.by_name(name.as_bytes()).ok_or_else(not_found)?;
        let (device_bytes, image_bytes) = (device.slot.size_bytes(), image.size_bytes());
        if device_bytes != image_bytes {
            return Err(FrontEndError::SizeChanged { name: name.to_owned(), device_bytes, image_bytes });
        }
        device.slot.swap(image).ok_or_else(not_found)
    }

    fn close(&self, name: &str) -> Result<Arc<dyn Image>, FrontEndError> {
        let not_found = || FrontEndError::NotFound(name.to_owned());
        let device = self.devices.remove(name).ok_or_else(not_found)?;
        let image = device.slot.close().ok_or_else(not_found)?;
        if device.spec.kind == DeviceKind::Memory
            && let State::Serving { channels, .. } = &*self.state()
            && let Err(error) = worker::drop_pages(channels[0].as_fd(), device.spec.inode)
        {
            tracing::warn!(%error, name, "cached pages of a closed memory device were not given back");
        }
        Ok(image)
    }

    fn list(&self) -> Vec<DeviceInfo> {
        self.devices.list(&self.config.mount_point)
    }

    fn serve(&self) -> Result<(), FrontEndError> {
        let mut state = self.state();
        match std::mem::replace(&mut *state, State::Ended) {
            State::Adopted(kept) => {
                *state = self.start_serving(kept)?;
                Ok(())
            }
            other => {
                *state = other;
                Ok(())
            }
        }
    }

    fn detach(&self) {
        if let State::Serving { workers, .. } = std::mem::replace(&mut *self.state(), State::Ended) {
            workers.stop();
        }
    }

    fn remove(&self) -> Result<(), FrontEndError> {
        let mut state = self.state();
        // Requests must be answered while the kernel unmounts, so the threads go last; they end by themselves.
        match std::mem::replace(&mut *state, State::Ended) {
            State::Adopted(kept) => kept.try_unmount(&self.config).map_err(|(kept, error)| {
                *state = State::Adopted(kept);
                error
            }),
            State::Serving { kept, channels, workers } => match kept.try_unmount(&self.config) {
                Ok(()) => {
                    workers.stop();
                    Ok(())
                }
                Err((kept, error)) => {
                    *state = State::Serving { kept, channels, workers };
                    Err(error)
                }
            },
            State::Ended => Ok(()),
        }
    }
}

impl Drop for FuseFrontEnd {
    fn drop(&mut self) {
        self.detach();
    }
}
