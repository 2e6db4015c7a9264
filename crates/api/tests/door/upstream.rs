//! A server in a guest: it tells what it was asked, streams, and upgrades.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use sandbox::{Node, SandboxInfo};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

type Body = BoxBody<Bytes, std::io::Error>;

/// Serves on a port of a sandbox.
pub(crate) async fn serve(node: &Node, info: &SandboxInfo, port: u16) {
    let guest = node.route(info.id.as_str()).unwrap().guest;
    let listener = TcpListener::bind(SocketAddr::from((guest, port))).await.unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service_fn(answer))
                    .with_upgrades(),
            );
        }
    });
}

async fn answer(request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    match request.uri().path() {
        "/stream" => Ok(Response::new(ticks().boxed())),
        "/upgrade" => Ok(upgrade(request)),
        "/count" => {
            let mut body = request.into_body();
            let mut bytes = 0;
            while let Some(frame) = body.frame().await {
                bytes += frame.map_err(std::io::Error::other)?.data_ref().map_or(0, Bytes::len);
            }
            Ok(Response::new(full(bytes.to_string())))
        }
        _ => echo(request).await,
    }
}

fn full(text: String) -> Body {
    Full::from(text).map_err(|never| match never {}).boxed()
}

/// A line every 20 ms, without end.
fn ticks() -> impl http_body::Body<Data = Bytes, Error = std::io::Error> {
    StreamBody::new(futures_util::stream::unfold(0, |number| async move {
        if number > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some((Ok(Frame::data(Bytes::from(format!("tick {number}\n")))), number + 1))
    }))
}

async fn echo(request: Request<Incoming>) -> Result<Response<Body>, std::io::Error> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    let headers: serde_json::Map<String, serde_json::Value> = head
        .headers
        .iter()
        .map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()))
        .collect();
    let text = json!({"method": head.method.as_str(), "path": head.uri.to_string(), "headers": headers,
        "body": String::from_utf8_lossy(&body)});
    let mut response = Response::new(full(text.to_string()));
    response.headers_mut().insert("x-echo", "yes".parse().map_err(std::io::Error::other)?);
    if head.uri.path() == "/teapot" {
        *response.status_mut() = StatusCode::IM_A_TEAPOT;
    }
    Ok(response)
}

/// Becomes a line echo.
fn upgrade(mut request: Request<Incoming>) -> Response<Body> {
    let upgraded = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let mut stream = TokioIo::new(upgraded.await.unwrap());
        let mut buffer = [0; 1024];
        while let Ok(length @ 1..) = stream.read(&mut buffer).await {
            stream.write_all(&buffer[..length]).await.unwrap();
        }
    });
    let mut response = Response::new(full(String::new()));
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert("connection", http::HeaderValue::from_static("upgrade"));
    response.headers_mut().insert("upgrade", http::HeaderValue::from_static("echo"));
    response
}
