//! JSON bodies of requests: bounded, and refused with a JSON error.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use http::StatusCode;
use serde::de::DeserializeOwned;

use crate::ApiError;

/// Most bytes of a control plane request's body.
pub(crate) const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A JSON body. The content type is not looked at: clients differ, and nothing else is accepted.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body that may be absent, which is the same as `{}`.
#[derive(Debug)]
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        parse(&read(request, state).await?).map(Self)
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for OptionalJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let bytes = read(request, state).await?;
        parse(if bytes.trim_ascii().is_empty() { b"{}" } else { &bytes }).map(Self)
    }
}

async fn read<S: Send + Sync>(request: Request, state: &S) -> Result<Bytes, ApiError> {
    Bytes::from_request(request, state).await.map_err(|rejection| match rejection {
        BytesRejection::FailedToBufferBody(error) if error.status() == StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                format!("the body is larger than {BODY_BYTES_MAX} bytes"),
            )
        }
        other => ApiError::bad_request(format!("the body cannot be read: {}", other.body_text())),
    })
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(bytes)
        .map_err(|error| ApiError::bad_request(format!("the body is not as expected: {error}")))
}
