//! Virtual machine monitors behind one trait: QEMU.

mod console;
mod error;
mod machine;
mod process;
pub mod qemu;

pub use console::wait_for_console;
pub use error::VmmError;
pub use machine::{
    Disk, Machine, MachineConfig, MachineRecord, MachineStatistics, MachineStatus, NetworkInterface, Vmm,
};
