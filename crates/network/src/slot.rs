//! What a caller holds of one sandbox's network.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

/// What is needed to find a slot again after a restart. Durable, so fields are only added.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// Position in the range.
    pub index: u32,
}

/// A ready network for one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// Position in the range.
    pub index: u32,
    /// Name of the network namespace, as in `ip netns`.
    pub namespace: String,
    /// Address by which the host reaches the guest; every port is forwarded.
    pub host_side_guest_address: Ipv4Addr,
}

impl Slot {
    /// What to store so that [`SlotManager::adopt`](crate::SlotManager::adopt) finds this slot.
    #[must_use]
    pub fn record(&self) -> SlotRecord {
        SlotRecord { index: self.index }
    }
}
