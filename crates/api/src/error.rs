//! Errors as clients see them: always JSON `{code, message}`.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use protocol::api::{Error, SHOULD_RETRY_HEADER};
use sandbox::{SandboxError, StorageError};

/// An answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
    retry_after_s: Option<u32>,
    should_retry: Option<bool>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error_code: None, retry_after_s: None, should_retry: None }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// A feature of E2B that this node does not have. 501, because no client repeats it and every client shows its message.
    pub(crate) fn not_available(feature: &str) -> Self {
        let message = format!("{feature} is not available on this node");
        Self { should_retry: Some(false), ..Self::new(StatusCode::NOT_IMPLEMENTED, message) }
    }

    fn code(self, error_code: &'static str) -> Self {
        Self { error_code: Some(error_code), ..self }
    }

    fn retry_after_s(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }

    /// Repeating the request would do something a second time.
    fn never_repeat(self) -> Self {
        Self { should_retry: Some(false), ..self }
    }

    /// The JSON body.
    pub(crate) fn body(&self) -> Error {
        Error {
            code: self.status.as_u16(),
            message: self.message.clone(),
            error_code: self.error_code.map(str::to_owned),
        }
    }
}

impl From<SandboxError> for ApiError {
    fn from(error: SandboxError) -> Self {
        let with = |status| Self::new(status, error.to_string());
        match &error {
            SandboxError::NotFound(_) | SandboxError::TemplateNotFound(_) => with(StatusCode::NOT_FOUND),
            SandboxError::Invalid(_) => with(StatusCode::BAD_REQUEST),
            SandboxError::Capacity { .. } => {
                with(StatusCode::TOO_MANY_REQUESTS).code("sandbox_capacity_unavailable").retry_after_s(2)
            }
            SandboxError::NoTurn { .. } => {
                with(StatusCode::TOO_MANY_REQUESTS).code("sandbox_placement_timeout").retry_after_s(5)
            }
            SandboxError::PullCapacity { .. } => with(StatusCode::TOO_MANY_REQUESTS).retry_after_s(10),
            SandboxError::Busy(_) => with(StatusCode::TOO_MANY_REQUESTS).retry_after_s(1),
            // Everything about it is gone, but a client that repeats this on its own makes a struggling node worse.
            SandboxError::Create { .. } => {
                with(StatusCode::INTERNAL_SERVER_ERROR).code("sandbox_create_failed").never_repeat()
            }
            SandboxError::KilledWhileCreating(_) => with(StatusCode::CONFLICT).never_repeat(),
            SandboxError::StillKilling { .. } => with(StatusCode::GATEWAY_TIMEOUT),
            SandboxError::Guest { .. } => with(StatusCode::BAD_GATEWAY),
            SandboxError::Stopping => with(StatusCode::SERVICE_UNAVAILABLE).retry_after_s(2),
            SandboxError::Storage(storage) => match storage {
                StorageError::Invalid(_) => with(StatusCode::BAD_REQUEST),
                StorageError::NotFound(_) => with(StatusCode::NOT_FOUND),
                // Not 401: that is about this node's key.
                StorageError::Denied(_) => with(StatusCode::FORBIDDEN),
                StorageError::Unavailable(_) => with(StatusCode::SERVICE_UNAVAILABLE).retry_after_s(2),
                StorageError::Failed(_) => with(StatusCode::INTERNAL_SERVER_ERROR),
            },
            SandboxError::Store(_) | SandboxError::Io { .. } => {
                with(StatusCode::INTERNAL_SERVER_ERROR).code("internal_server_error")
            }
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() {
            tracing::warn!(status = self.status.as_u16(), message = self.message, "request failed");
        }
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(should_retry) = self.should_retry {
            let value = HeaderValue::from_static(if should_retry { "true" } else { "false" });
            response.headers_mut().insert(SHOULD_RETRY_HEADER, value);
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_repeats_the_status() {
        let error = ApiError::from(SandboxError::NotFound("abc".to_owned()));
        assert_eq!(error.body().code, 404);
        assert!(error.body().message.contains("abc"));
    }

    #[test]
    fn a_full_node_tells_when_to_come_back() {
        let response = ApiError::from(SandboxError::Capacity { limit: 3 }).into_response();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[header::RETRY_AFTER], "2");
    }

    #[test]
    fn a_failed_create_is_not_to_be_repeated() {
        let id = sandbox::SandboxId::parse("aaaaaaaaaaaaaaaaaaaa").unwrap();
        let response = ApiError::from(SandboxError::Create { id, reason: "x".to_owned() }).into_response();
        assert_eq!(response.headers()[SHOULD_RETRY_HEADER], "false");
    }
}
