//! Settings of the slots of one node, and the addresses that follow from them.

use std::net::Ipv4Addr;

use crate::NetworkError;

/// Networks that no sandbox reaches unless the operator says otherwise: everything that is not the public internet
/// (IANA's special-purpose address registry, without the documentation networks, which nobody routes).
pub const DEFAULT_DENIED_NETWORKS: &[(Ipv4Addr, u8)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8),
    (Ipv4Addr::new(10, 0, 0, 0), 8),
    (Ipv4Addr::new(100, 64, 0, 0), 10),
    (Ipv4Addr::new(127, 0, 0, 0), 8),
    (Ipv4Addr::new(169, 254, 0, 0), 16),
    (Ipv4Addr::new(172, 16, 0, 0), 12),
    (Ipv4Addr::new(192, 0, 0, 0), 24),
    (Ipv4Addr::new(192, 168, 0, 0), 16),
    (Ipv4Addr::new(198, 18, 0, 0), 15),
    (Ipv4Addr::new(224, 0, 0, 0), 4),
    (Ipv4Addr::new(240, 0, 0, 0), 4),
];

/// Longest name prefix: link names hold 15 characters, of which an index takes up to 7 and a dash 1.
const MAX_PREFIX_CHARACTERS: usize = 4;
/// Upper bound of the slots of one node, whatever the range would hold.
const MAX_SLOTS: u32 = 1 << 16;

/// Settings of the slots of one node.
#[derive(Debug, Clone)]
pub struct NetworkConfig {
    /// Start of names of namespaces and links, at most 4 characters of `[a-z0-9]`, the first a letter: two nodes on one
    /// host use different ones. They may share one address range.
    pub name_prefix: String,
    /// First address of the range from which each slot takes a /31, and the range's prefix length.
    pub slot_range: (Ipv4Addr, u8),
    /// Networks that no sandbox may reach, as (address, prefix length). The host's own addresses, the slot range and
    /// everything that is not unicast are always denied.
    pub denied_networks: Vec<(Ipv4Addr, u8)>,
}

impl NetworkConfig {
    pub(crate) fn validate(&self) -> Result<(), NetworkError> {
        let prefix = self.name_prefix.as_bytes();
        let well_formed = prefix.first().is_some_and(u8::is_ascii_lowercase)
            && prefix.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        if !well_formed || prefix.len() > MAX_PREFIX_CHARACTERS {
            return Err(NetworkError::Config(format!(
                "name prefix {:?}: use 1 to {MAX_PREFIX_CHARACTERS} characters of [a-z0-9], the first a letter",
                self.name_prefix
            )));
        }
        check_network("slot range", self.slot_range)?;
        if !(8..=30).contains(&self.slot_range.1) {
            return Err(NetworkError::Config(format!(
                "slot range {}/{}: the prefix length must be between 8 and 30",
                self.slot_range.0, self.slot_range.1
            )));
        }
        self.denied_networks.iter().try_for_each(|network| check_network("denied network", *network))
    }

    /// How many slots there can be.
    pub(crate) fn limit(&self) -> u32 {
        (1_u32 << (31 - u32::from(self.slot_range.1))).min(MAX_SLOTS)
    }

    pub(crate) fn table(&self) -> String {
        format!("{TABLE_PREFIX}{}", self.name_prefix)
    }

    /// The slot at `index`, which must be below [`Self::limit`].
    pub(crate) fn plan(&self, index: u32) -> SlotPlan {
        let first = u32::from(self.slot_range.0) + index * 2;
        SlotPlan {
            index,
            name: format!("{}-{index}", self.name_prefix),
            host_address: Ipv4Addr::from(first),
            guest_address: Ipv4Addr::from(first + 1),
        }
    }

    /// The index in a name this node would give, or nothing for a name that is not one of its own.
    pub(crate) fn index_of(&self, name: &str) -> Option<u32> {
        let digits = name.strip_prefix(self.name_prefix.as_str())?.strip_prefix('-')?;
        let index: u32 = digits.parse().ok()?;
        (index < self.limit() && digits == index.to_string()).then_some(index)
    }
}

/// Start of the names of the host tables of all nodes.
pub(crate) const TABLE_PREFIX: &str = "agentenv_";

/// Names and addresses of one slot.
#[derive(Debug, Clone)]
pub(crate) struct SlotPlan {
    pub(crate) index: u32,
    /// Name of the namespace and of the host's end of the veth pair.
    pub(crate) name: String,
    /// The host's end.
    pub(crate) host_address: Ipv4Addr,
    /// The namespace's end, by which the host reaches the guest.
    pub(crate) guest_address: Ipv4Addr,
}

fn check_network(what: &str, (address, length): (Ipv4Addr, u8)) -> Result<(), NetworkError> {
    let host_bits = u32::MAX.checked_shr(length.into()).unwrap_or(0);
    if length > 32 || u32::from(address) & host_bits != 0 {
        return Err(NetworkError::Config(format!(
            "{what} {address}/{length} is not a network: the address must be the first of its range"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(prefix: &str, range: (Ipv4Addr, u8)) -> NetworkConfig {
        NetworkConfig {
            name_prefix: prefix.into(),
            slot_range: range,
            denied_networks: DEFAULT_DENIED_NETWORKS.to_vec(),
        }
    }

    const RANGE: (Ipv4Addr, u8) = (Ipv4Addr::new(10, 12, 0, 0), 16);

    #[test]
    fn the_default_settings_are_valid() {
        config("aenv", RANGE).validate().unwrap();
    }

    #[test]
    fn a_prefix_that_would_not_fit_or_not_be_a_name_is_refused() {
        for prefix in ["", "abcde", "1ab", "Ab", "a-b", "a*", "a/b", "a\""] {
            assert!(config(prefix, RANGE).validate().is_err(), "{prefix:?}");
        }
    }

    #[test]
    fn a_range_with_host_bits_or_an_impossible_length_is_refused() {
        for range in [(Ipv4Addr::new(10, 12, 0, 1), 16), (Ipv4Addr::new(10, 12, 0, 0), 31), (RANGE.0, 33)] {
            assert!(config("aenv", range).validate().is_err(), "{range:?}");
        }
        let mut denied = config("aenv", RANGE);
        denied.denied_networks.push((Ipv4Addr::new(192, 168, 1, 0), 16));
        assert!(denied.validate().is_err());
    }

    #[test]
    fn slots_take_disjoint_pairs_of_the_range() {
        let config = config("aenv", (Ipv4Addr::new(10, 12, 0, 0), 30));
        assert_eq!(config.limit(), 2);
        let plan = config.plan(1);
        assert_eq!(plan.host_address, Ipv4Addr::new(10, 12, 0, 2));
        assert_eq!(plan.guest_address, Ipv4Addr::new(10, 12, 0, 3));
        assert_eq!(plan.name, "aenv-1");
    }

    #[test]
    fn only_own_names_are_recognised() {
        let config = config("ab", RANGE);
        assert_eq!(config.index_of("ab-17"), Some(17));
        for foreign in ["abc-17", "a-17", "ab-017", "ab-", "ab-99999", "ab-1x", "ab17", "ab-+1"] {
            assert_eq!(config.index_of(foreign), None, "{foreign}");
        }
    }
}
