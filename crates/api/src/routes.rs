//! Which handler serves what.

use std::sync::Arc;

use axum::extract::DefaultBodyLimit;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use axum::{Router, middleware};
use http::{StatusCode, Uri};

use crate::body::BODY_BYTES_MAX;
use crate::control::{missing, node, sandboxes, templates};
use crate::{Api, ApiError, auth, cors, openapi, proxy};

/// A router that remembers what it serves, so that a test can compare it with the OpenAPI document.
#[derive(Default)]
pub(crate) struct Routes {
    router: Router<Arc<Api>>,
    pub(crate) listed: Vec<(&'static str, &'static str)>,
}

macro_rules! methods {
    ($($name:ident, $text:literal, $filter:ident;)*) => {
        impl Routes {
            $(fn $name<T: 'static, H: Handler<T, Arc<Api>>>(mut self, path: &'static str, handler: H) -> Self {
                self.listed.push(($text, path));
                self.router = self.router.route(path, on(MethodFilter::$filter, handler));
                self
            })*
        }
    };
}

methods! {
    get, "get", GET;
    post, "post", POST;
    put, "put", PUT;
    delete, "delete", DELETE;
}

/// Every route of the control plane.
pub(crate) fn control() -> Routes {
    Routes::default()
        .get("/health", node::health)
        .get("/openapi.json", openapi::document)
        // Sandboxes, in both generations.
        .post("/sandboxes", sandboxes::create_v1)
        .post("/v2/sandboxes", sandboxes::create_v2)
        .get("/sandboxes", sandboxes::list_v1)
        .get("/v2/sandboxes", sandboxes::list_v2)
        .get("/sandboxes/{sandboxID}", sandboxes::get)
        .delete("/sandboxes/{sandboxID}", sandboxes::kill)
        .post("/sandboxes/{sandboxID}/connect", sandboxes::connect_v1)
        .post("/v2/sandboxes/{sandboxID}/connect", sandboxes::connect_v2)
        .post("/sandboxes/{sandboxID}/timeout", sandboxes::set_timeout)
        .post("/sandboxes/{sandboxID}/refreshes", sandboxes::refresh)
        .get("/sandboxes/{sandboxID}/metrics", sandboxes::metrics)
        // What this node does not have.
        .post("/sandboxes/{sandboxID}/pause", missing::pause)
        .post("/sandboxes/{sandboxID}/resume", missing::pause)
        .post("/sandboxes/{sandboxID}/snapshots", missing::snapshot)
        .post("/sandboxes/{sandboxID}/fork", missing::fork)
        .put("/sandboxes/{sandboxID}/network", missing::network)
        .get("/snapshots", missing::snapshots)
        .post("/v3/templates", missing::build)
        // Templates.
        .get("/templates", templates::list)
        .get("/templates/aliases/{alias}", templates::alias)
        .delete("/templates/{templateID}", templates::remove)
        // Our own.
        .post("/aenv/v1/templates/pull", templates::pull)
        .get("/aenv/v1/templates", templates::list_own)
        .get("/aenv/v1/sandboxes/{sandboxID}/console", node::console)
        .get("/aenv/v1/status", node::status)
}

/// Both planes as one service.
pub(crate) fn router(api: Arc<Api>) -> Router {
    control()
        .router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn_with_state(api.clone(), auth::require_key))
        .layer(middleware::from_fn(cors::allow_any_origin))
        // Outermost: what is meant for a sandbox is none of the above's business.
        .layer(middleware::from_fn_with_state(api.clone(), proxy::take_data_plane))
        .with_state(api)
}

async fn no_route(uri: Uri) -> ApiError {
    ApiError::not_found(format!(
        "there is nothing at {}; a request into a sandbox needs the headers E2b-Sandbox-Id and E2b-Sandbox-Port",
        uri.path()
    ))
}

async fn no_method(method: http::Method, uri: Uri) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not possible at {}", uri.path()))
}
