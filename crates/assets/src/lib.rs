//! What a guest boots from: kernel, initramfs and tools disk, with a checked manifest.
//!
//! [`prepare`] makes them, once per host and again when something newer is there; [`Assets::open`] finds and checks them
//! each time a node starts. Nothing is installed on the host: packages are read, not unpacked.
//!
//! ```text
//! DIRECTORY/manifest.json           names, versions, sizes and digests; replaced by one rename
//! DIRECTORY/vmlinux-HASH            ELF kernel
//! DIRECTORY/initramfs-HASH.img      /init, /modules/NN-name.ko; padded to 4096 bytes
//! DIRECTORY/tools-HASH.img          read-only ext4: /bin/aenv-envd, /bin/busybox, /bin/sh
//! DIRECTORY/verified.json           which files were hashed in which state; only saves time
//! DIRECTORY/downloads/SHA256.deb    packages, so that a rebuild needs no network
//! ```
//!
//! Files carry part of their digest in their name because a setup that replaced them in place would change the guest of a
//! node that has the old manifest in memory. The files of the manifest that was replaced last stay for that reason.

pub mod cpio;
mod elf;
mod error;
mod hash;
mod initramfs;
mod kernel;
mod manifest;
mod package;
mod prepare;
mod replace_file;
mod run;
mod source;
mod tools_disk;

pub use error::AssetsError;
pub use manifest::{AssetFile, Assets, Manifest, PackageRecord};
pub use prepare::{GuestPrograms, SetupConfig, prepare};
pub use source::{AptSource, PackageUrls, PinnedUrl, Sources};
