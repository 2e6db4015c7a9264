//! The storage daemon: devices by id, recovery, image import; its gRPC service and client.
//!
//! One daemon a host owns every block device. [`run`] is the daemon, [`Client`] is how others talk to it.
//!
//! - [`Config`]: directories, sockets and the command lines of the processes it starts.
//! - `devices`: what exists. A device is a durable record, a stack of layers, and a file of the front end.
//! - `service`: the gRPC service over a unix socket. Work on disks runs on blocking threads, never on the reactor's.
//!
//! The daemon may be killed at any moment. Its successor takes over the mount from the keeper (see `blockdev::fuse`), opens
//! every device on record, and answers what was left unanswered; users of the devices wait and see no error.
//!
//! It never opens or examines a path under its own mount: a thread that did would wait for another thread of the same
//! process, and at the end of the process for nobody.

mod client;
mod config;
mod daemon;
mod devices;
mod durable;
mod error;
mod import;
mod layers;
mod lock;
mod records;
mod scratch;
mod service;

pub use client::{Client, ClientError};
pub use config::Config;
pub use daemon::run;
pub use error::StorageError;
