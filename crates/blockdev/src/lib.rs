//! A stack of layers as something a program can open by path.
//!
//! An [`Image`] is what a device serves: sectors that can be read, written, zeroed and flushed. A [`FrontEnd`] turns
//! images into paths that a virtual machine monitor, `losetup` or any other program opens. The front end in this crate
//! is [`fuse`]: one mount for each host, one file for each device. A `ublk` front end stands behind the same trait.
//!
//! Nothing here knows layers' formats or keeps durable state: the caller (the storage daemon) records which device has
//! which image, name and inode, and opens them again after a restart.

mod access;
mod error;
mod front_end;
pub mod fuse;
mod image;

pub use error::FrontEndError;
pub use front_end::{DeviceInfo, DeviceKind, DeviceSpec, FrontEnd};
pub use image::{Image, MemoryImage, UnreadableImage};

/// Unit of every image: offsets and lengths handed to an [`Image`] are multiples of it.
pub const SECTOR_BYTES: u64 = 512;
