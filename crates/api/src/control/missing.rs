//! Endpoints of E2B whose feature this node does not have: an error that clients show, instead of a missing route.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use protocol::api::Error;

use super::PathParameter;
use crate::{Api, ApiError};

fn of_sandbox(api: &Api, id: &str, feature: &str) -> ApiError {
    match api.node.get(id) {
        Some(_) => ApiError::not_available(feature),
        None => ApiError::new(StatusCode::NOT_FOUND, format!("sandbox {id} was not found")),
    }
}

pub(crate) async fn pause(State(api): State<Arc<Api>>, PathParameter(id): PathParameter) -> ApiError {
    of_sandbox(&api, &id, "pausing and resuming a sandbox")
}

pub(crate) async fn snapshot(State(api): State<Arc<Api>>, PathParameter(id): PathParameter) -> ApiError {
    of_sandbox(&api, &id, "a snapshot of a sandbox")
}

pub(crate) async fn fork(State(api): State<Arc<Api>>, PathParameter(id): PathParameter) -> ApiError {
    of_sandbox(&api, &id, "forking a sandbox")
}

pub(crate) async fn network(State(api): State<Arc<Api>>, PathParameter(id): PathParameter) -> ApiError {
    of_sandbox(&api, &id, "changing the network rules of a sandbox")
}

/// There are none, which is the truth and no error.
pub(crate) async fn snapshots() -> Json<[Error; 0]> {
    Json([])
}

pub(crate) async fn build() -> ApiError {
    ApiError::not_available(
        "building a template (an image can be pulled instead: POST /aenv/v1/templates/pull)",
    )
}
