//! One sandbox's network, and the manager that hands them out.

use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};

use crate::NetworkError;

/// Settings of the slots of one node.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Start of names of namespaces and links, at most 4 characters: two nodes on one host use different ones.
    pub name_prefix: String,
    /// First address of the range from which each slot takes a /31, and the range's prefix length.
    pub slot_range: (Ipv4Addr, u8),
    /// Networks that no sandbox may reach, as (address, prefix length). The host's own addresses are always denied.
    pub denied_networks: Vec<(Ipv4Addr, u8)>,
}

/// What is needed to find a slot again after a restart. Durable, so fields are only added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// Position in the range.
    pub index: u32,
}

/// A ready network for one sandbox.
#[derive(Debug, Clone)]
pub struct Slot {
    /// Position in the range.
    pub index: u32,
    /// Name of the network namespace, as in `ip netns`.
    pub namespace: String,
    /// Address by which the host reaches the guest; every port is forwarded.
    pub host_side_guest_address: Ipv4Addr,
}

/// Makes and removes slots.
#[derive(Debug)]
pub struct SlotManager {
    config: NetworkConfig,
}

impl SlotManager {
    /// Checks the configuration and prepares the host's own rules (forwarding and the deny list).
    pub async fn new(config: NetworkConfig) -> Result<Self, NetworkError> {
        Ok(Self { config })
    }
    /// Makes a new slot. On failure nothing of it is left.
    pub async fn acquire(&self) -> Result<Slot, NetworkError> {
        Err(NetworkError::Config(format!("{:?}", self.config)))
    }
    /// Takes a slot of an earlier process into use again, making what is missing of it.
    pub async fn adopt(&self, _record: &SlotRecord) -> Result<Slot, NetworkError> {
        Err(NetworkError::Config(String::new()))
    }
    /// Opens the slot's tap, for one machine. Needs no further right once open.
    pub async fn open_tap(&self, _slot: &Slot) -> Result<OwnedFd, NetworkError> {
        Err(NetworkError::Config(String::new()))
    }
    /// Removes a slot; succeeds when it is already gone.
    pub async fn release(&self, _slot: &Slot) -> Result<(), NetworkError> {
        Ok(())
    }
    /// Removes every slot with this manager's prefix that it neither made nor adopted. Returns how many.
    pub async fn sweep(&self) -> Result<u32, NetworkError> {
        Ok(0)
    }
    /// Removes the host's own rules too; for the end of the last process that uses this prefix.
    pub async fn remove_host_rules(&self) -> Result<(), NetworkError> {
        Ok(())
    }
}
