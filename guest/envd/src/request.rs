//! What requests carry beside their messages.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{self, HeaderMap};
use protocol::connect::{HEADER_KEEPALIVE_S, HEADER_TIMEOUT_MS, json};
use protocol::envd::HEADER_ACCESS_TOKEN;

use crate::reply::{self, Reply};

/// A request to this daemon.
pub(crate) type Request = hyper::Request<Incoming>;

/// How long a client may be silent in the middle of a body.
pub(crate) const BODY_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_DEFAULT: Duration = Duration::from_secs(90);
const KEEPALIVE_MAX: Duration = Duration::from_secs(24 * 3600);
/// Longest deadline that is kept as one; ten years are as good as none.
const DEADLINE_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// Why a body was not read.
#[derive(Debug)]
pub(crate) enum BodyError {
    TooLong { bytes_max: usize },
    Idle,
    Broken(hyper::Error),
}

impl BodyError {
    fn status(&self) -> StatusCode {
        match self {
            Self::TooLong { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Idle => StatusCode::REQUEST_TIMEOUT,
            Self::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLong { bytes_max } => {
                write!(formatter, "the request body is longer than {bytes_max} bytes")
            }
            Self::Idle => write!(formatter, "the request body did not go on for {} s", BODY_IDLE.as_secs()),
            Self::Broken(error) => write!(formatter, "the request body broke off: {error}"),
        }
    }
}

impl From<BodyError> for Reply {
    fn from(error: BodyError) -> Self {
        reply::error(error.status(), error.to_string())
    }
}

/// The next piece of a body; `None` at its end.
pub(crate) async fn next_chunk(body: &mut Incoming) -> Result<Option<Bytes>, BodyError> {
    loop {
        match tokio::time::timeout(BODY_IDLE, body.frame()).await {
            Err(_) => return Err(BodyError::Idle),
            Ok(None) => return Ok(None),
            Ok(Some(Err(error))) => return Err(BodyError::Broken(error)),
            // Trailers carry nothing for us.
            Ok(Some(Ok(frame))) => {
                if let Ok(bytes) = frame.into_data() {
                    return Ok(Some(bytes));
                }
            }
        }
    }
}

/// A whole body of at most `bytes_max` bytes.
pub(crate) async fn read_body(mut body: Incoming, bytes_max: usize) -> Result<Bytes, BodyError> {
    if body.size_hint().lower() > bytes_max as u64 {
        return Err(BodyError::TooLong { bytes_max });
    }
    let Some(first) = next_chunk(&mut body).await? else { return Ok(Bytes::new()) };
    // Most messages come in one piece, which then is not copied.
    let Some(second) = next_chunk(&mut body).await? else {
        return if first.len() <= bytes_max { Ok(first) } else { Err(BodyError::TooLong { bytes_max }) };
    };
    let mut all = Vec::from(first);
    let mut next = Some(second);
    while let Some(chunk) = next {
        if all.len() + chunk.len() > bytes_max {
            return Err(BodyError::TooLong { bytes_max });
        }
        all.extend_from_slice(&chunk);
        next = next_chunk(&mut body).await?;
    }
    Ok(all.into())
}

/// The sandbox' token, as a request gives it.
pub(crate) fn access_token(headers: &HeaderMap) -> Option<&str> {
    headers.get(HEADER_ACCESS_TOKEN)?.to_str().ok()
}

/// Compares secrets in a time that does not depend on where they differ.
pub(crate) fn same_secret(left: &str, right: &str) -> bool {
    let difference = left.bytes().zip(right.bytes()).fold(0, |sum, (left, right)| sum | (left ^ right));
    left.len() == right.len() && std::hint::black_box(difference) == 0
}

/// The user named by `Authorization: Basic base64("user:")`.
pub(crate) fn basic_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credentials) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(json::decode_base64(credentials.trim()).ok()?).ok()?;
    let name = decoded.split(':').next().unwrap_or_default();
    (!name.is_empty()).then(|| name.to_owned())
}

/// How long the client gives us. `None` when it waits for ever.
pub(crate) fn deadline(headers: &HeaderMap) -> Option<Duration> {
    let milliseconds: u64 = headers.get(HEADER_TIMEOUT_MS)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_millis(milliseconds).min(DEADLINE_MAX))
}

/// After how long a silence the client wants to hear from us.
pub(crate) fn keepalive(headers: &HeaderMap) -> Duration {
    let asked = headers.get(HEADER_KEEPALIVE_S).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    asked.filter(|seconds| *seconds > 0).map_or(KEEPALIVE_DEFAULT, Duration::from_secs).min(KEEPALIVE_MAX)
}

/// The pairs of a query or form: `+` and `%20` are spaces.
pub(crate) fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> + '_ {
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (form_decode(key), form_decode(value))
    })
}

/// A value of the query.
pub(crate) fn query_value(query: &str, key: &str) -> Option<String> {
    query_pairs(query).find(|pair| pair.0 == key).map(|pair| pair.1)
}

fn form_decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while let Some(&byte) = bytes.get(index) {
        let escaped = || {
            let digits = std::str::from_utf8(bytes.get(index + 1..index + 3)?).ok()?;
            digits
                .bytes()
                .all(|digit| digit.is_ascii_hexdigit())
                .then(|| u8::from_str_radix(digits, 16).ok())?
        };
        match (byte, escaped()) {
            (b'%', Some(value)) => {
                decoded.push(value);
                index += 2;
            }
            (b'+', _) => decoded.push(b' '),
            _ => decoded.push(byte),
        }
        index += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(name, value.parse().unwrap());
        headers
    }

    #[test]
    fn a_query_is_decoded_as_both_clients_encode_it() {
        let query = "path=%2Ftmp%2Fa+%E4%B8%AD%20b.txt&username=&x&percent=100%&half=%4&plus=%2B";
        let value = |key| query_value(query, key);
        assert_eq!(value("path").as_deref(), Some("/tmp/a 中 b.txt"));
        assert_eq!(value("username").as_deref(), Some(""));
        assert_eq!(value("percent").as_deref(), Some("100%"));
        assert_eq!(value("half").as_deref(), Some("%4"));
        assert_eq!(value("plus").as_deref(), Some("+"));
        assert_eq!(value("y"), None);
    }

    #[test]
    fn the_basic_user_is_the_part_before_the_colon() {
        // "user:" and "root:secret"
        assert_eq!(basic_user(&headers("authorization", "Basic dXNlcjo=")).as_deref(), Some("user"));
        assert_eq!(basic_user(&headers("authorization", "basic cm9vdDpzZWNyZXQ")).as_deref(), Some("root"));
        for wrong in ["Basic", "Bearer dXNlcjo=", "Basic !", "Basic Og=="] {
            assert_eq!(basic_user(&headers("authorization", wrong)), None, "{wrong}");
        }
    }

    #[test]
    fn secrets_are_compared_whole() {
        assert!(same_secret("abc", "abc"));
        assert!(!same_secret("abc", "abd") && !same_secret("abc", "ab") && !same_secret("", "a"));
    }

    #[test]
    fn times_in_headers_have_defaults_and_bounds() {
        assert_eq!(deadline(&headers("connect-timeout-ms", "1500")), Some(Duration::from_millis(1500)));
        assert_eq!(deadline(&headers("connect-timeout-ms", "x")), None);
        assert_eq!(deadline(&headers("connect-timeout-ms", "18446744073709551615")), Some(DEADLINE_MAX));
        assert_eq!(keepalive(&headers("keepalive-ping-interval", "50")), Duration::from_secs(50));
        assert_eq!(keepalive(&headers("keepalive-ping-interval", "0")), KEEPALIVE_DEFAULT);
        assert_eq!(keepalive(&HeaderMap::new()), KEEPALIVE_DEFAULT);
    }

    proptest! {
        #[test]
        fn arbitrary_queries_never_panic(query in "\\PC{0,200}") {
            let _ = query_pairs(&query).count();
        }
    }
}
