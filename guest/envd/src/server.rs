//! Connections and routes.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::header;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use protocol::envd::{FILESYSTEM_SERVICE, PROCESS_SERVICE};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::daemon::Daemon;
use crate::reply::{self, Reply};
use crate::request::{self, Request};
use crate::{control, files, filesystem, process};

/// Longer than any proxy in front keeps an unused connection, so that it never picks one we are just closing.
const IDLE_CONNECTION: Duration = Duration::from_secs(640);
/// Connections at once; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 4096;
/// Pause after a failed accept, which means that descriptors or memory ran out.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Bytes of a request's head and of unread body a connection holds.
const CONNECTION_BUFFER_BYTES: usize = 64 << 10;

/// Serves until the process is ended.
pub(crate) async fn run(daemon: Arc<Daemon>) -> io::Result<()> {
    let address = daemon.options.listen;
    let listener = TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address}: {error}")))?;
    println!("aenv-envd: listening on {}", listener.local_addr()?);
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(slot) = Arc::clone(&slots).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((stream, _)) => {
                let daemon = Arc::clone(&daemon);
                tokio::spawn(async move {
                    serve_connection(stream, move |request| answer(Arc::clone(&daemon), request)).await;
                    drop(slot);
                });
            }
            Err(_) => tokio::time::sleep(ACCEPT_RETRY).await,
        }
    }
}

async fn serve_connection<F, R>(stream: TcpStream, handler: F)
where
    F: Fn(Request) -> R,
    R: Future<Output = Reply>,
{
    // Events are small and must leave at once.
    let _ = stream.set_nodelay(true);
    // A peer that vanished while nothing is sent is found out by the kernel.
    let _ = rustix::net::sockopt::set_socket_keepalive(&stream, true);
    let service = service_fn(|request| {
        let reply = handler(request);
        async { Ok::<_, Infallible>(survive(reply).await) }
    });
    // How a connection ends is the client's business.
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_CONNECTION)
        .max_buf_size(CONNECTION_BUFFER_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// A handler that panics answers 500; nobody else notices.
async fn survive(reply: impl Future<Output = Reply>) -> Reply {
    let mut reply = std::pin::pin!(reply);
    std::future::poll_fn(|context| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| reply.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            let message = "the daemon failed on this request; its console has the reason";
            Poll::Ready(reply::error(StatusCode::INTERNAL_SERVER_ERROR, message))
        })
    })
    .await
}

async fn answer(daemon: Arc<Daemon>, request: Request) -> Reply {
    let from_browser = request.headers().contains_key(header::ORIGIN);
    if request.method() == Method::OPTIONS {
        return reply::preflight(request.headers());
    }
    let mut reply = route(daemon, request).await;
    if from_browser {
        reply::allow_origin(reply.headers_mut());
    }
    reply
}

async fn route(daemon: Arc<Daemon>, request: Request) -> Reply {
    match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/health") => return reply::empty(StatusCode::NO_CONTENT),
        (&Method::POST, "/init") => return control::init(&daemon, request).await,
        _ => {}
    }
    if let Err(refusal) = check_access(&daemon, &request) {
        return refusal;
    }
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/metrics") => reply::json(StatusCode::OK, &daemon.meter.read()),
        (&Method::GET, "/envs") => control::environment(&daemon),
        (&Method::GET | &Method::HEAD, "/files") => files::download(&daemon, &request).await,
        (&Method::POST, "/files") => files::upload(daemon, request).await,
        (&Method::POST, "/files/compose") => {
            reply::error(StatusCode::NOT_IMPLEMENTED, "composing files is not implemented by this daemon yet")
        }
        (&Method::POST, path) if path.starts_with(PROCESS_SERVICE) => process::call(daemon, request).await,
        (&Method::POST, path) if path.starts_with(FILESYSTEM_SERVICE) => {
            filesystem::call(daemon, request).await
        }
        (method, path) if is_known(path) => {
            reply::error(StatusCode::METHOD_NOT_ALLOWED, format!("{path} does not take {method}"))
        }
        (_, path) => reply::error(StatusCode::NOT_FOUND, format!("no such path: {path}")),
    }
}

fn is_known(path: &str) -> bool {
    matches!(path, "/health" | "/init" | "/metrics" | "/envs" | "/files" | "/files/compose")
        || path.starts_with(PROCESS_SERVICE)
        || path.starts_with(FILESYSTEM_SERVICE)
}

/// Everything but `/health` and `/init` needs the token, once there is one, and the node's first word before that.
#[expect(clippy::result_large_err, reason = "made once for a refused request, and sent as it is")]
fn check_access(daemon: &Daemon, request: &Request) -> Result<(), Reply> {
    let control = daemon.control();
    let refused = |message| Err(reply::error(StatusCode::UNAUTHORIZED, message));
    if !control.initialised {
        return refused("the sandbox is not initialised yet");
    }
    let Some(token) = &control.token else { return Ok(()) };
    match request::access_token(request.headers()) {
        Some(given) if request::same_secret(token, given) => Ok(()),
        Some(_) => refused("the access token in the X-Access-Token header is not the one this sandbox has"),
        None => refused("an access token in the X-Access-Token header is needed"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test]
    async fn a_request_that_panics_is_answered_and_the_next_one_is_served() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.unwrap();
            serve_connection(stream, |request: Request| async move {
                assert_ne!(request.uri().path(), "/panic", "asked to");
                reply::empty(StatusCode::NO_CONTENT)
            })
            .await;
        });
        let mut client = TcpStream::connect(address).await.unwrap();
        client
            .write_all(b"GET /panic HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut answers = String::new();
        client.read_to_string(&mut answers).await.unwrap();
        assert!(answers.starts_with("HTTP/1.1 500 "), "{answers}");
        assert!(answers.contains("HTTP/1.1 204 "), "{answers}");
    }
}
