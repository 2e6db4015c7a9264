//! The data plane: requests that go into a sandbox.
//!
//! Each request gets a connection of its own into the guest. The address of a guest serves one sandbox after another, so a
//! connection kept for later could reach into the next one, or hang in one that was restored.

mod answer;
mod forward;
mod headers;
mod stream;
mod target;

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::Api;
use answer::{Audience, ProxyError};

/// Serves requests that name a sandbox, and passes on all others.
pub(crate) async fn take_data_plane(State(api): State<Arc<Api>>, request: Request, next: Next) -> Response {
    let audience = Audience::of(request.headers());
    let target = match target::of(&request, api.config.domain.as_deref()) {
        None => return next.run(request).await,
        Some(Ok(target)) => target,
        Some(Err(error)) => return error.answer(audience),
    };
    let sandbox_id = target.sandbox_id.clone();
    let response = forward::forward(&api, target, request).await;
    response.unwrap_or_else(|error: ProxyError| {
        tracing::debug!(sandbox_id, %error, "not forwarded");
        error.answer(audience)
    })
}
