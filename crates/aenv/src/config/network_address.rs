//! Networks written as `10.12.0.0/16`.

use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An IPv4 network: first address and prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetworkAddress(pub(crate) Ipv4Addr, pub(crate) u8);

impl FromStr for NetworkAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("{text:?} is no network such as 10.12.0.0/16");
        let (address, length) = text.split_once('/').ok_or_else(bad)?;
        let (address, length) = (address.parse().map_err(|_| bad())?, length.parse().map_err(|_| bad())?);
        if length > 32 { Err(bad()) } else { Ok(Self(address, length)) }
    }
}

impl fmt::Display for NetworkAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.0, self.1)
    }
}

impl Serialize for NetworkAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NetworkAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
