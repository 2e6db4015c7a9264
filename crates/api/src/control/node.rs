//! The node itself.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header;
use protocol::api::NodeStatus;
use serde_json::{Value, json};

use super::{PathParameter, sandboxes};
use crate::{Api, ApiError};

/// Says that requests are answered, and nothing else: it is asked often, and without a key.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

pub(crate) async fn status(State(api): State<Arc<Api>>) -> Result<Json<NodeStatus>, ApiError> {
    let counts = api.node.counts();
    // A status that fails because one part does would hide the others.
    let storage = api.node.storage_status().await.unwrap_or_default();
    Ok(Json(NodeStatus {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        node_tag: api.node.tag().as_str().to_owned(),
        vmm: api.node.vmm_name().to_owned(),
        storage_front_end: storage.front_end,
        creating: counts.creating,
        running: counts.running,
        killing: counts.killing,
        sandbox_limit: api.node.config().sandbox_limit,
        templates: api.node.template_count().await?,
    }))
}

pub(crate) async fn console(
    State(api): State<Arc<Api>>,
    PathParameter(id): PathParameter,
) -> Result<Response, ApiError> {
    let console = api.node.console(&id).await?.ok_or_else(|| sandboxes::not_found(&id))?;
    // What a guest writes is its own business; as text/plain nothing in it is interpreted.
    let headers =
        [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    Ok((headers, String::from_utf8_lossy(&console).into_owned()).into_response())
}
