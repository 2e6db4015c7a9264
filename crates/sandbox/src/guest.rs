//! The daemon inside a guest, seen from the host.
//!
//! Every call opens a connection of its own. The address of a guest is used by one sandbox after another, and a kept
//! connection would reach into the next one, or stall until TCP gives up when a guest was restored.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::rt::TokioIo;
use protocol::envd::{ENVD_PORT, HEADER_ACCESS_TOKEN, InitRequest, Metrics};
use tokio::net::TcpStream;

/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

/// Why the daemon could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// No connection.
    #[error("no connection to the guest daemon at {address}: {reason}")]
    Connect {
        /// Where it was tried.
        address: SocketAddr,
        /// What happened.
        reason: String,
    },
    /// A connection, but no usable answer.
    #[error("the guest daemon at {address} did not answer {path}: {reason}")]
    Answer {
        /// Where it was asked.
        address: SocketAddr,
        /// What was asked.
        path: &'static str,
        /// What happened.
        reason: String,
    },
}

/// Asks the daemon inside a guest.
#[async_trait]
pub trait GuestDaemon: Send + Sync + std::fmt::Debug {
    /// Whether it answers. `patience` bounds the connection attempt: a guest whose network is not up yet drops packets,
    /// and a new attempt a little later is faster than TCP's own repetition.
    async fn health(&self, guest: Ipv4Addr, patience: Duration) -> Result<(), GuestError>;
    /// Hands over token, environment and time.
    async fn init(&self, guest: Ipv4Addr, init: &InitRequest) -> Result<(), GuestError>;
    /// Reads the guest's use of resources.
    async fn metrics(&self, guest: Ipv4Addr, access_token: &str) -> Result<Metrics, GuestError>;
}

/// The daemon over HTTP.
#[derive(Debug, Clone)]
pub struct HttpGuestDaemon {
    /// Port of the daemon.
    pub port: u16,
    /// Limit of one connection attempt of a request other than `/health`.
    pub connect_timeout: Duration,
    /// Limit from the connection to the whole answer.
    pub answer_timeout: Duration,
}

impl Default for HttpGuestDaemon {
    fn default() -> Self {
        Self {
            port: ENVD_PORT,
            connect_timeout: Duration::from_secs(2),
            // A guest under software emulation that is just booting needs most of a second for its first answer.
            answer_timeout: Duration::from_secs(5),
        }
    }
}

impl HttpGuestDaemon {
    /// One request on a connection of its own; the body of a successful answer.
    async fn call(
        &self,
        guest: Ipv4Addr,
        connect_timeout: Duration,
        call: Call<'_>,
    ) -> Result<Bytes, GuestError> {
        let address = SocketAddr::from((guest, self.port));
        let path = call.path;
        let connect_error = |reason: String| GuestError::Connect { address, reason };
        let stream = tokio::time::timeout(connect_timeout, TcpStream::connect(address))
            .await
            .map_err(|_| connect_error(format!("no answer within {} ms", connect_timeout.as_millis())))?
            .map_err(|error| connect_error(error.to_string()))?;
        // Requests are one small segment each; waiting for more to send would only delay them.
        let _ = stream.set_nodelay(true);
        let seconds = self.answer_timeout.as_secs();
        let answer = tokio::time::timeout(self.answer_timeout, call.converse(stream)).await;
        answer
            .unwrap_or_else(|_| Err(format!("nothing within {seconds} s")))
            .map_err(|reason| GuestError::Answer { address, path, reason })
    }
}

/// One request to the daemon.
struct Call<'a> {
    path: &'static str,
    access_token: Option<&'a str>,
    /// With a body it is a POST, else a GET.
    body: Option<Vec<u8>>,
}

impl Call<'_> {
    fn request(self) -> Result<Request<Full<Bytes>>, http::Error> {
        let method = if self.body.is_some() { Method::POST } else { Method::GET };
        let mut builder = Request::builder()
            .method(method)
            .uri(self.path)
            .header(header::HOST, "sandbox")
            .header(header::CONNECTION, "close");
        if let Some(token) = self.access_token {
            builder = builder.header(HEADER_ACCESS_TOKEN, token);
        }
        if self.body.is_some() {
            builder = builder.header(header::CONTENT_TYPE, "application/json");
        }
        builder.body(Full::from(self.body.unwrap_or_default()))
    }

    async fn converse(self, stream: TcpStream) -> Result<Bytes, String> {
        let request = self.request().map_err(|error| error.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| error.to_string())?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let status = response.status();
            let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
            let body = body.map_err(|error| error.to_string())?.to_bytes();
            if status.is_success() {
                return Ok(body);
            }
            let text = String::from_utf8_lossy(&body[..body.len().min(500)]).into_owned();
            Err(format!("status {status}: {text}"))
        };
        // The connection is driven here and dropped with the answer, so that nothing outlives the call.
        tokio::pin!(exchange);
        tokio::select! {
            biased;
            answer = &mut exchange => answer,
            ended = connection => match ended {
                // It may end right after the last byte of the answer, which is then still to be read.
                Ok(()) => exchange.await,
                Err(error) => Err(error.to_string()),
            },
        }
    }
}

#[async_trait]
impl GuestDaemon for HttpGuestDaemon {
    async fn health(&self, guest: Ipv4Addr, patience: Duration) -> Result<(), GuestError> {
        let call = Call { path: "/health", access_token: None, body: None };
        self.call(guest, patience, call).await.map(drop)
    }

    async fn init(&self, guest: Ipv4Addr, init: &InitRequest) -> Result<(), GuestError> {
        let path = "/init";
        let body = serde_json::to_vec(init).map_err(|error| self.unusable(guest, path, &error))?;
        let call = Call { path, access_token: None, body: Some(body) };
        self.call(guest, self.connect_timeout, call).await.map(drop)
    }

    async fn metrics(&self, guest: Ipv4Addr, access_token: &str) -> Result<Metrics, GuestError> {
        let path = "/metrics";
        let call = Call { path, access_token: Some(access_token), body: None };
        let body = self.call(guest, self.connect_timeout, call).await?;
        serde_json::from_slice(&body).map_err(|error| self.unusable(guest, path, &error))
    }
}

impl HttpGuestDaemon {
    fn unusable(&self, guest: Ipv4Addr, path: &'static str, error: &serde_json::Error) -> GuestError {
        GuestError::Answer { address: SocketAddr::from((guest, self.port)), path, reason: error.to_string() }
    }
}

#[cfg(test)]
#[path = "guest_tests.rs"]
mod tests;
