//! Network slots: one namespace, veth pair, tap and nftables policy per sandbox.
//!
//! Every guest has the same address, [`GUEST_ADDRESS`], and the same gateway, so that a guest restored from a snapshot
//! in another slot need not change anything. What differs per slot is the address by which the host reaches it.

mod error;
mod slot;

pub use error::NetworkError;
pub use slot::{NetworkConfig, Slot, SlotManager, SlotRecord};

use std::net::Ipv4Addr;

/// Address of every guest inside its own namespace.
pub const GUEST_ADDRESS: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 21);
/// Gateway of every guest: the tap's address.
pub const GUEST_GATEWAY: Ipv4Addr = Ipv4Addr::new(169, 254, 0, 22);
/// Prefix length of the link between guest and tap.
pub const GUEST_PREFIX_LENGTH: u8 = 30;
/// Hardware address of every guest's card.
pub const GUEST_MAC: [u8; 6] = [0x02, 0x00, 0x00, 0x00, 0x00, 0x01];
/// Hardware address of every tap. It must be the same everywhere: a guest that is restored in another namespace still
/// holds it in its neighbour table, and would be unreachable for seconds otherwise.
pub const TAP_MAC: [u8; 6] = [0x02, 0xaa, 0xaa, 0xaa, 0xaa, 0x01];
