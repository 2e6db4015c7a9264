//! Streams between a client and a guest, which end when the sandbox does.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::http1::Connection;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandbox::Route;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinHandle;

/// Limit for both sides to be ready after they agreed on an upgrade.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(10);

/// The task that moves bytes over one connection into a guest. Dropping it closes the connection.
#[derive(Debug)]
pub(super) struct ConnectionTask(JoinHandle<()>);

impl ConnectionTask {
    pub(super) fn spawn(connection: Connection<TokioIo<TcpStream>, Body>) -> Self {
        Self(tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection into a guest");
            }
        }))
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The sandbox ended in the middle of an answer.
#[derive(Debug)]
struct SandboxEnded;

impl std::fmt::Display for SandboxEnded {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("the sandbox ended")
    }
}

impl std::error::Error for SandboxEnded {}

/// The body of a guest's answer.
///
/// When the sandbox ends first, the body fails: the client's connection is closed without the mark of a complete body. A
/// truncated download must not look whole. Nothing is read ahead: a client that reads slowly slows the guest down.
pub(super) struct GuestBody {
    body: Incoming,
    ended: Pin<Box<dyn Future<Output = ()> + Send>>,
    _connection: ConnectionTask,
    _permit: OwnedSemaphorePermit,
}

impl GuestBody {
    pub(super) fn new(
        body: Incoming,
        connection: ConnectionTask,
        route: Route,
        permit: OwnedSemaphorePermit,
    ) -> Self {
        let ended = Box::pin(async move { route.ended().await });
        Self { body, ended, _connection: connection, _permit: permit }
    }
}

impl http_body::Body for GuestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        // What has arrived is delivered before the end is noticed.
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) {
            return Poll::Ready(frame.map(|frame| frame.map_err(Into::into)));
        }
        match self.ended.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Some(Err(Box::new(SandboxEnded)))),
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Joins the two sides of an upgraded connection until one closes it or the sandbox ends.
pub(super) async fn tunnel(
    client: OnUpgrade,
    guest: OnUpgrade,
    connection: ConnectionTask,
    route: Route,
    permit: OwnedSemaphorePermit,
) {
    let ready = async { tokio::try_join!(client, guest) };
    let (client, guest) = match tokio::time::timeout(UPGRADE_TIMEOUT, ready).await {
        Ok(Ok(sides)) => sides,
        Ok(Err(error)) => return tracing::debug!(%error, "an upgrade did not come about"),
        Err(_) => return tracing::debug!("an upgrade did not come about in time"),
    };
    let (mut client, mut guest) = (TokioIo::new(client), TokioIo::new(guest));
    tokio::select! {
        copied = tokio::io::copy_bidirectional(&mut client, &mut guest) => {
            if let Err(error) = copied {
                tracing::debug!(%error, "an upgraded connection broke");
            }
        }
        () = route.ended() => {
            // Orderly for the client; the guest is gone.
            let _ = tokio::time::timeout(UPGRADE_TIMEOUT, tokio::io::AsyncWriteExt::shutdown(&mut client)).await;
        }
    }
    drop((connection, permit));
}
