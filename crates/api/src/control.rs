//! Handlers of the control plane.

mod list;
pub(crate) mod missing;
pub(crate) mod node;
pub(crate) mod sandboxes;
pub(crate) mod templates;
mod unsupported;

use axum::extract::FromRequestParts;
use http::request::Parts;

use crate::ApiError;

/// The one parameter of a path, percent-decoded after the path was matched.
#[derive(Debug)]
pub(crate) struct PathParameter(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathParameter {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = axum::extract::Path::<String>::from_request_parts(parts, state).await;
        path.map(|axum::extract::Path(text)| Self(text)).map_err(|rejection| {
            ApiError::bad_request(format!("the path cannot be understood: {}", rejection.body_text()))
        })
    }
}
