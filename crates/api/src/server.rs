//! Accepts connections. HTTP/1.1 only: it is what every client speaks without TLS, which belongs in front of the node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Bounds of the listener.
#[derive(Debug, Clone)]
pub struct ServerLimits {
    /// Most connections at a time; more wait in the kernel's queue.
    pub connections_max: usize,
    /// Limit for the head of a request, also of the next one on a kept connection.
    pub header_timeout: Duration,
    /// How long running requests may go on when the server stops.
    pub stop_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections_max: 8192,
            header_timeout: Duration::from_secs(60),
            stop_timeout: Duration::from_secs(5),
        }
    }
}

/// A client that vanished without closing is noticed after about two minutes: nobody else ends a silent stream.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(15));
/// Pause after a failure to accept, which is nearly always a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` on `listener` until `stop` ends, then lets running requests finish for a while.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: ServerLimits,
    stop: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(limits.connections_max));
    let (stopping, _) = watch::channel(false);
    tokio::pin!(stop);
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((listener.accept().await?.0, place))
        };
        let (stream, place) = tokio::select! {
            accepted = accepted => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
            () = &mut stop => break,
        };
        let (router, limits, stopping) = (router.clone(), limits.clone(), stopping.subscribe());
        tokio::spawn(async move {
            serve_connection(stream, router, &limits, stopping).await;
            drop(place);
        });
    }
    drop(listener);
    stopping.send_replace(true);
    // Every connection holds a receiver.
    if tokio::time::timeout(limits.stop_timeout, stopping.closed()).await.is_err() {
        tracing::info!(connections = stopping.receiver_count(), "connections are cut because the node stops");
    }
    Ok(())
}

async fn serve_connection(
    stream: TcpStream,
    router: Router,
    limits: &ServerLimits,
    mut stopping: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE.0).with_interval(KEEPALIVE.1);
    if let Err(error) = SockRef::from(&stream).set_tcp_keepalive(&keepalive) {
        tracing::debug!(%error, "keepalive could not be set");
    }
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_timeout)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
        .with_upgrades();
    tokio::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = async { drop(stopping.wait_for(|stopping| *stopping).await) } => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection of a client");
    }
}
