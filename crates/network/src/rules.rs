//! The nftables rules, as text.
//!
//! A `drop` is final in nftables, an `accept` only ends its own chain. Our rules therefore hold whatever other tables say,
//! and never open what another table closes.

use std::fmt::Write;

use crate::config::{NetworkConfig, SlotPlan};
use crate::{GUEST_ADDRESS, GUEST_GATEWAY};

/// Name of the table inside a slot's namespace.
const SLOT_TABLE: &str = "slot";
/// A chain without rules whose presence says that this table's maker switched forwarding on.
pub(crate) const FORWARDING_WAS_OFF: &str = "host_forwarding_was_off";

/// The host's table. Replaces an earlier one in the same transaction, so that there is no moment without rules.
pub(crate) fn host(config: &NetworkConfig, forwarding_was_off: bool) -> String {
    let table = config.table();
    let (range, length) = config.slot_range;
    let slots = format!("\"{}-*\"", config.name_prefix);
    let mut denied = format!("{range}/{length}");
    for (address, length) in &config.denied_networks {
        // Writing to a String cannot fail.
        let _ = write!(denied, ", {address}/{length}");
    }
    let mark = if forwarding_was_off { format!("chain {FORWARDING_WAS_OFF} {{ }}") } else { String::new() };
    format!(
        r#"table inet {table}
delete table inet {table}
table inet {table} {{
  {mark}
  set denied {{ type ipv4_addr; flags interval; auto-merge; elements = {{ {denied} }}; }}

  # Before any address translation of the host, so that a published port of the host is no way around.
  chain arrive {{
    type filter hook prerouting priority -150; policy accept;
    iifname != {slots} return
    meta nfproto != ipv4 drop
    fib saddr . iif oif missing drop
    ct state established,related return
    ct state invalid drop
    fib daddr type != unicast drop
    ip daddr @denied drop
  }}
  chain input {{
    type filter hook input priority -10; policy accept;
    iifname {slots} ct state established,related accept
    iifname {slots} drop
  }}
  chain forward {{
    type filter hook forward priority -10; policy accept;
    iifname {slots} oifname {slots} drop
    iifname {slots} ct state established,related accept
    iifname {slots} ip daddr @denied drop
    oifname {slots} ct state established,related accept
    oifname {slots} drop
  }}
  chain output {{
    type filter hook output priority -10; policy accept;
    oifname {slots} meta nfproto != ipv4 drop
  }}
  chain leave {{
    type nat hook postrouting priority 100; policy accept;
    iifname {slots} oifname != {slots} masquerade
  }}
}}
"#
    )
}

/// Removes the host's table; no error when there is none.
pub(crate) fn remove_host(config: &NetworkConfig) -> String {
    let table = config.table();
    format!("table inet {table}\ndelete table inet {table}\n")
}

/// The table of one slot's namespace. Everything the guest sends must come from its one address; everything that arrives
/// for the slot goes to the guest, which sees its gateway as the sender. Replacing an earlier table costs `nft` a few
/// milliseconds more, so a new namespace does without.
pub(crate) fn slot(plan: &SlotPlan, replace: bool) -> String {
    let address = plan.guest_address;
    let tap = crate::tap::NAME;
    let veth = crate::provision::NAMESPACE_LINK;
    let replace = if replace {
        format!("table inet {SLOT_TABLE}\ndelete table inet {SLOT_TABLE}\n")
    } else {
        String::new()
    };
    format!(
        r#"{replace}table inet {SLOT_TABLE} {{
  chain arrive {{
    type filter hook prerouting priority -300; policy accept;
    meta nfproto != ipv4 drop
    iifname "{tap}" ip saddr != {GUEST_ADDRESS} drop
  }}
  chain translate_arriving {{
    type nat hook prerouting priority -100; policy accept;
    iifname "{veth}" ip daddr {address} dnat ip to {GUEST_ADDRESS}
  }}
  chain input {{ type filter hook input priority 0; policy drop; }}
  chain forward {{
    type filter hook forward priority 0; policy drop;
    ct state invalid drop
    iifname "{tap}" oifname "{veth}" accept
    iifname "{veth}" oifname "{tap}" ct state established,related accept
    iifname "{veth}" oifname "{tap}" ct status dnat accept
  }}
  chain translate_leaving {{
    type nat hook postrouting priority 100; policy accept;
    oifname "{veth}" snat ip to {address}
    oifname "{tap}" snat ip to {GUEST_GATEWAY}
  }}
}}
"#
    )
}
