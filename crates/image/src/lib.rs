//! OCI images: references, pull, and the conversion of tar layers into overlaybd layers on ext4.
//!
//! [`Importer::import`] resolves a [`Source`] to an ordered list of tar layers and makes each into one sealed overlaybd
//! layer: a scratch disk is opened on the layers made so far ([`ScratchDisks`]), a confined child process
//! ([`unpack`]) mounts it and applies the tar with the kernel's ext4, and the disk is sealed into the layer store. What is
//! in the store is named by content and made once, however many imports ask for it.

mod convert;
mod credentials;
mod digest;
mod error;
mod import;
mod manifest;
mod progress;
mod registry;
mod scratch;
mod source;
mod spool;
mod store;
mod stream;
mod tar;
pub mod unpack;

pub use credentials::Credentials;
pub use digest::Digest;
pub use error::ImageError;
pub use import::{ImportLimits, ImportOptions, ImportedImage, Importer, ImporterConfig};
pub use progress::{Phase, Progress};
pub use scratch::{ScratchDisk, ScratchDisks};
pub use source::{Reference, Source};
pub use store::LayerPins;
