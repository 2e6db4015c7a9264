//! What slots change on the host itself: one nftables table and IPv4 forwarding.
//!
//! Forwarding is switched on when it was off, and the table then carries a mark. Removing the table switches it off again
//! if the mark is there and no other node's table is left. (When two nodes overlap and the one that switched it on ends
//! first, forwarding stays on.)

use std::fs;

use serde_json::Value;

use crate::config::{NetworkConfig, TABLE_PREFIX};
use crate::{NetworkError, namespace, nft, rules};

const FORWARDING: &str = "net/ipv4/ip_forward";

/// Puts the host's rules in place, replacing those of an earlier process.
pub(crate) fn install(config: &NetworkConfig) -> Result<(), NetworkError> {
    let path = format!("/proc/sys/{FORWARDING}");
    let forwarding =
        fs::read_to_string(&path).map_err(|error| NetworkError::io(format!("read {path}"), error))?;
    let is_off = forwarding.trim() == "0";
    let was_off = is_off || marked(&chains()?, &config.table());
    nft::apply("install the host's rules", &rules::host(config, was_off))?;
    if is_off {
        // The rules come first: there is no moment in which slots are forwarded without them.
        namespace::set_sysctl(FORWARDING, "1")
            .map_err(|error| NetworkError::io("switch IPv4 forwarding on", error))?;
        tracing::info!("IPv4 forwarding was off on this host and is on now (net.ipv4.ip_forward)");
    }
    Ok(())
}

/// Removes the host's rules, and switches forwarding off if installing them had switched it on.
pub(crate) fn uninstall(config: &NetworkConfig) -> Result<(), NetworkError> {
    let chains = chains()?;
    let own = config.table();
    let others = chains.iter().any(|chain| chain.table.starts_with(TABLE_PREFIX) && chain.table != own);
    if marked(&chains, &own) && !others {
        namespace::set_sysctl(FORWARDING, "0")
            .map_err(|error| NetworkError::io("switch IPv4 forwarding off", error))?;
    }
    nft::apply("remove the host's rules", &rules::remove_host(config))
}

/// Chains of other tables that drop forwarded packets by default, and so keep sandboxes from the outside. Each is named
/// with its table. Nothing can be done about them from a table of our own: the operator has to let the slots through.
pub fn forwarding_obstacles() -> Result<Vec<String>, NetworkError> {
    let is_obstacle = |chain: &&Chain| {
        chain.hook.as_deref() == Some("forward")
            && chain.policy.as_deref() == Some("drop")
            && matches!(chain.family.as_str(), "ip" | "inet")
            && !chain.table.starts_with(TABLE_PREFIX)
    };
    Ok(chains()?
        .iter()
        .filter(is_obstacle)
        .map(|chain| format!("{} {} {}", chain.family, chain.table, chain.name))
        .collect())
}

#[derive(Debug)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: Option<String>,
    policy: Option<String>,
}

fn marked(chains: &[Chain], table: &str) -> bool {
    chains.iter().any(|chain| chain.table == table && chain.name == rules::FORWARDING_WAS_OFF)
}

fn chains() -> Result<Vec<Chain>, NetworkError> {
    let text = nft::query("list chains", &["-j", "list", "chains"])?;
    parse_chains(&text).map_err(|error| NetworkError::Operation {
        operation: "nft: list chains".into(),
        reason: format!("its JSON cannot be read: {error}"),
    })
}

/// Reads libnftables-json(5): `{"nftables": [{"chain": {…}}, …]}`.
fn parse_chains(text: &str) -> Result<Vec<Chain>, serde_json::Error> {
    let document: Value = serde_json::from_str(text)?;
    let objects = document["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    Ok(objects
        .iter()
        .filter_map(|object| {
            let chain = object.get("chain")?;
            Some(Chain {
                family: text(&chain["family"])?,
                table: text(&chain["table"])?,
                name: text(&chain["name"])?,
                hook: text(&chain["hook"]),
                policy: text(&chain["policy"]),
            })
        })
        .collect())
}
