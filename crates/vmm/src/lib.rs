//! Virtual machine monitors behind one trait: QEMU.

mod error;
mod machine;

pub use error::VmmError;
pub use machine::{
    Disk, Machine, MachineConfig, MachineRecord, MachineStatistics, MachineStatus, NetworkInterface, Vmm,
};
