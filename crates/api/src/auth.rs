//! The control plane's key.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Method, StatusCode};
use protocol::api::API_KEY_HEADER;
use subtle::ConstantTimeEq;

use crate::{Api, ApiError};

/// The key that control plane requests must show. Not printable.
#[derive(Clone)]
pub struct ApiKey(Arc<str>);

/// Text that cannot be a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ApiKeyError;

impl fmt::Display for ApiKeyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an API key has 16 to 256 visible ASCII characters; `e2b_` and 40 hexadecimal digits suit every client")
    }
}

impl std::error::Error for ApiKeyError {}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKey")
    }
}

impl ApiKey {
    /// Checks that `text` can be sent as a header and is not trivially guessed.
    pub fn new(text: &str) -> Result<Self, ApiKeyError> {
        let fits = (16..=256).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
        if fits { Ok(Self(text.into())) } else { Err(ApiKeyError) }
    }

    /// Whether `offered` is the key, in a time that does not depend on where they differ.
    #[must_use]
    pub fn matches(&self, offered: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(offered).into()
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        headers.get(API_KEY_HEADER).is_some_and(|offered| self.matches(offered.as_bytes()))
    }
}

/// Paths that need no key.
const PUBLIC_PATHS: &[&str] = &["/health", "/openapi.json"];

/// Lets requests with the key through.
pub(crate) async fn require_key(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let public = PUBLIC_PATHS.contains(&request.uri().path()) || request.method() == Method::OPTIONS;
    if public || api.config.key.is_in(request.headers()) {
        return next.run(request).await;
    }
    let message = if request.headers().contains_key(API_KEY_HEADER) {
        "the API key is wrong"
    } else {
        "the header X-API-Key with the node's API key is missing"
    };
    ApiError::new(StatusCode::UNAUTHORIZED, message).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_key_matches() {
        let key = ApiKey::new("e2b_0123456789abcdef").unwrap();
        assert!(key.matches(b"e2b_0123456789abcdef"));
        for wrong in [&b""[..], b"e2b_0123456789abcde", b"e2b_0123456789abcdeg", b"e2b_0123456789abcdef0"] {
            assert!(!key.matches(wrong));
        }
    }

    #[test]
    fn a_key_that_is_no_secret_or_no_header_is_refused() {
        for text in ["", "short", "has spaces in the middle", "newline\n0123456789abcdef", &"a".repeat(257)] {
            assert!(ApiKey::new(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn a_key_is_not_printed() {
        assert_eq!(format!("{:?}", ApiKey::new("e2b_0123456789abcdef").unwrap()), "ApiKey");
    }
}
