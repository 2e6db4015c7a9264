//! Headers that belong to one connection and are not passed on (RFC 9110, section 7.6.1).

use http::{HeaderMap, HeaderName, HeaderValue, header};
use protocol::api::API_KEY_HEADER;

use crate::ApiKey;

const HOP_BY_HOP: [HeaderName; 7] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
];

/// Removes them, and what `Connection` names. Returns the protocol that an upgrade was asked for or agreed to.
pub(super) fn strip(headers: &mut HeaderMap) -> Option<HeaderValue> {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let upgrade = named.contains(&header::UPGRADE).then(|| headers.get(header::UPGRADE).cloned()).flatten();
    for name in named.iter().chain(&HOP_BY_HOP) {
        // A client must not be able to take away what frames the body or names the host.
        if *name != header::CONTENT_LENGTH && *name != header::HOST {
            headers.remove(name);
        }
    }
    headers.remove("proxy-connection");
    upgrade
}

/// Prepares a client's headers for the guest.
pub(super) fn prepare_request(headers: &mut HeaderMap, key: &ApiKey) -> Option<HeaderValue> {
    let upgrade = strip(headers);
    // The server has answered it already.
    headers.remove(header::EXPECT);
    // A client that sends its key everywhere must not give the node away to what runs in a sandbox. Another key under that
    // name is the guest's own.
    if headers.get(API_KEY_HEADER).is_some_and(|value| key.matches(value.as_bytes())) {
        headers.remove(API_KEY_HEADER);
    }
    if let Some(protocol) = &upgrade {
        set_upgrade(headers, protocol.clone());
    }
    upgrade
}

/// Marks a message as part of an upgrade.
pub(super) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(headers: &[(&'static str, &'static str)]) -> HeaderMap {
        headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn what_belongs_to_the_connection_stays_behind() {
        let mut headers = map(&[
            ("connection", "keep-alive, X-Mine"),
            ("keep-alive", "timeout=5"),
            ("x-mine", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("proxy-connection", "keep-alive"),
            ("accept", "*/*"),
        ]);
        assert_eq!(strip(&mut headers), None);
        assert_eq!(headers, map(&[("accept", "*/*")]));
    }

    #[test]
    fn connection_cannot_take_away_framing_or_host() {
        let mut headers =
            map(&[("connection", "content-length, host"), ("content-length", "3"), ("host", "a")]);
        strip(&mut headers);
        assert_eq!(headers, map(&[("content-length", "3"), ("host", "a")]));
    }

    #[test]
    fn an_upgrade_is_kept() {
        let key = ApiKey::new("e2b_0123456789abcdef").unwrap();
        let mut headers = map(&[("connection", "Upgrade, keep-alive"), ("upgrade", "websocket")]);
        assert_eq!(prepare_request(&mut headers, &key).unwrap(), "websocket");
        assert_eq!(headers, map(&[("connection", "upgrade"), ("upgrade", "websocket")]));
        let mut without_connection = map(&[("upgrade", "h2c")]);
        assert_eq!(prepare_request(&mut without_connection, &key), None);
        assert!(without_connection.is_empty());
    }

    #[test]
    fn only_the_nodes_own_key_is_taken_out() {
        let key = ApiKey::new("e2b_0123456789abcdef").unwrap();
        let mut headers = map(&[("x-api-key", "e2b_0123456789abcdef")]);
        prepare_request(&mut headers, &key);
        assert!(headers.is_empty());
        let mut headers = map(&[("x-api-key", "the guest's own")]);
        prepare_request(&mut headers, &key);
        assert_eq!(headers.len(), 1);
    }
}
