//! The front door before a node on a host in memory. Guests have loopback addresses, so that real servers can stand behind
//! the proxy.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod control;
#[path = "../../../sandbox/tests/fakes/mod.rs"]
mod fakes;
mod proxy;
mod upstream;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{ApiConfig, ApiKey, ServerLimits};
use bytes::Bytes;
use fakes::{World, within};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use sandbox::{Node, NodeConfig, SandboxInfo};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};

const KEY: &str = "e2b_0123456789abcdef0123456789abcdef01234567";
const DOMAIN: &str = "sandbox.test:3000";

/// A listening front door with the template `base`.
struct Door {
    address: SocketAddr,
    node: Arc<Node>,
    world: Arc<World>,
    _directory: TempDir,
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {:?}", self.body))
    }

    /// The message of an error that is as every error must be.
    fn error(&self, status: u16) -> String {
        assert_eq!(self.status.as_u16(), status, "{:?}", self.body);
        assert_eq!(self.headers["content-type"], "application/json");
        let body = self.json();
        assert_eq!(body["code"], status);
        body["message"].as_str().unwrap().to_owned()
    }
}

async fn door_with(adjust: impl FnOnce(&mut NodeConfig)) -> Door {
    let directory = tempfile::tempdir().unwrap();
    let mut node_config = fakes::config(directory.path());
    adjust(&mut node_config);
    let world = World::new();
    let node = Arc::new(world.node(node_config).await);
    fakes::pull(&node, "image", "base").await.unwrap();
    let mut config = ApiConfig::new(ApiKey::new(KEY).unwrap());
    config.domain = Some(DOMAIN.to_owned());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let router = api::router(node.clone(), config);
    tokio::spawn(api::serve(listener, router, ServerLimits::default(), std::future::pending()));
    Door { address, node, world, _directory: directory }
}

async fn door() -> Door {
    door_with(|_| {}).await
}

impl Door {
    async fn sandbox(&self) -> SandboxInfo {
        fakes::create(&self.node).await
    }

    /// Sends one request as it is and returns the head of the answer.
    async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection.with_upgrades());
        within("an answer", sender.send_request(request)).await.unwrap()
    }

    async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let mut request = Request::builder().method(method).uri(path);
        if !headers.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", self.address.to_string());
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = self.send(request.body(Full::new(body.into())).unwrap()).await;
        let (head, body) = response.into_parts();
        let body = within("a body", body.collect()).await.unwrap().to_bytes();
        Answer { status: head.status, headers: head.headers, body }
    }

    /// A control plane request with the key.
    async fn control(&self, method: &str, path: &str, body: &str) -> Answer {
        self.request(method, path, &[("x-api-key", KEY)], body.to_owned()).await
    }
}

/// Waits until a condition holds.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    within(what, async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}
