//! Network slots: one namespace, veth pair, tap and nftables policy per sandbox.
//!
//! Every guest has the same address, [`GUEST_ADDRESS`], and the same gateway, so that a guest restored from a snapshot
//! in another slot need not change anything. What differs per slot is the address by which the host reaches it.
//!
//! ```text
//!  guest 169.254.0.21 ── tap0 169.254.0.22 │ namespace │ veth0 odd address ── PREFIX-N even address │ host ── uplink
//!                            source is checked, addresses are translated        denied networks, host, other slots
//! ```
//!
//! The policy is ours alone: one nftables table on the host, one in each namespace, both of them dropping by their own
//! rules, whatever the host's default policies are. A host that itself drops forwarded packets (as Docker makes it do)
//! cannot be overruled from another table; [`SlotManager::forwarding_obstacles`] tells.

mod config;
mod error;
mod host;
mod manager;
mod namespace;
mod netlink;
mod nft;
mod provision;
mod rules;
mod slot;
mod tap;

pub use config::{DEFAULT_DENIED_NETWORKS, NetworkConfig};
pub use error::NetworkError;
pub use host::forwarding_obstacles;
pub use manager::SlotManager;
pub use slot::{Slot, SlotRecord};

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
