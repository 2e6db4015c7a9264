//! The HTTP front door: E2B endpoints, node endpoints and the proxy into sandboxes.
//!
//! One listener serves both planes. A request that names a sandbox and a port, by the headers `E2b-Sandbox-Id` and
//! `E2b-Sandbox-Port`, by the path `/proxy/{sandboxID}/{port}/…` or by the host name `<port>-<sandboxID>.<domain>`, goes into
//! that sandbox and needs no key: what listens there decides who may use it. Everything else is the control plane and
//! needs the node's key, except `/health` and `/openapi.json`.

mod auth;
mod body;
mod control;
mod cors;
mod error;
mod openapi;
mod proxy;
mod routes;
mod server;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use sandbox::Node;
use tokio::sync::Semaphore;

pub use auth::{ApiKey, ApiKeyError};
pub use error::ApiError;
pub use server::{ServerLimits, serve};

/// Settings of the front door.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// The key of the control plane.
    pub key: ApiKey,
    /// Domain of host names `<port>-<sandboxID>.<domain>`, told to clients; may end in `:port`. Without it such host names
    /// are not served.
    pub domain: Option<String>,
    /// Most requests that are inside sandboxes at a time, upgraded connections included.
    pub proxied_requests_max: usize,
    /// Limit of a connection attempt into a guest.
    pub connect_timeout: Duration,
}

impl ApiConfig {
    /// Defaults for everything but the key.
    #[must_use]
    pub fn new(key: ApiKey) -> Self {
        Self { key, domain: None, proxied_requests_max: 4096, connect_timeout: Duration::from_secs(3) }
    }
}

/// What every handler sees.
#[derive(Debug)]
struct Api {
    node: Arc<Node>,
    config: ApiConfig,
    proxied_requests: Arc<Semaphore>,
}

/// Both planes of `node` as one service.
pub fn router(node: Arc<Node>, config: ApiConfig) -> Router {
    let proxied_requests = Arc::new(Semaphore::new(config.proxied_requests_max));
    routes::router(Arc::new(Api { node, config, proxied_requests }))
}
