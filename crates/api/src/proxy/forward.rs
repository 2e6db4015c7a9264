//! Carries one request into a guest and its answer out.

use std::io;
use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use http::{HeaderValue, StatusCode, Uri, Version, header};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use sandbox::Route;
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;

use super::answer::ProxyError;
use super::headers;
use super::stream::{ConnectionTask, GuestBody, tunnel};
use super::target::Target;
use crate::Api;

pub(super) async fn forward(api: &Api, target: Target, mut request: Request) -> Result<Response, ProxyError> {
    let Target { sandbox_id, port, path_and_query } = target;
    let not_found = || ProxyError::NotFound { sandbox_id: sandbox_id.clone() };
    let permit = api.proxied_requests.clone().try_acquire_owned().map_err(|_| ProxyError::TooMany)?;
    let route = api.node.route(&sandbox_id).ok_or_else(not_found)?;

    let client_upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let protocol = headers::prepare_request(request.headers_mut(), &api.config.key);
    *request.version_mut() = Version::HTTP_11;
    if !request.headers().contains_key(header::HOST) {
        let host = request.uri().host().and_then(|host| HeaderValue::from_str(host).ok());
        request
            .headers_mut()
            .insert(header::HOST, host.unwrap_or_else(|| HeaderValue::from_static("sandbox")));
    }
    *request.uri_mut() = Uri::from(path_and_query);

    let exchange = exchange(api, &route, &sandbox_id, port, request);
    let (response, connection) = tokio::select! {
        exchanged = exchange => match exchanged {
            Ok(exchanged) => exchanged,
            // A guest that is going away breaks connections in many ways, and only one answer explains them all.
            Err(_) if api.node.route(&sandbox_id).is_none() => return Err(not_found()),
            Err(error) => return Err(error),
        },
        () = route.ended() => return Err(not_found()),
    };
    let upgrade = protocol.and(client_upgrade);
    Ok(deliver(response, connection, route, permit, upgrade))
}

/// Connects, sends the request and waits for the head of the answer.
async fn exchange(
    api: &Api,
    route: &Route,
    sandbox_id: &str,
    port: u16,
    request: Request,
) -> Result<(http::Response<hyper::body::Incoming>, ConnectionTask), ProxyError> {
    let address = SocketAddr::from((route.guest, port));
    let no_connection =
        |reason: String| ProxyError::NoConnection { sandbox_id: sandbox_id.to_owned(), port, reason };
    let limit = api.config.connect_timeout;
    let stream = tokio::time::timeout(limit, TcpStream::connect(address))
        .await
        .map_err(|_| no_connection(format!("none within {} ms", limit.as_millis())))?
        .map_err(|error| match error.kind() {
            io::ErrorKind::ConnectionRefused => {
                ProxyError::PortClosed { sandbox_id: sandbox_id.to_owned(), port }
            }
            _ => no_connection(error.to_string()),
        })?;
    // Commands and their output are small messages that must not wait for one another.
    let _ = stream.set_nodelay(true);
    let no_answer = |error: hyper::Error| ProxyError::NoAnswer {
        sandbox_id: sandbox_id.to_owned(),
        port,
        reason: error.to_string(),
    };
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(no_answer)?;
    let connection = ConnectionTask::spawn(connection);
    let response = sender.send_request(request).await.map_err(no_answer)?;
    Ok((response, connection))
}

/// Makes the answer for the client of the guest's answer.
fn deliver(
    response: http::Response<hyper::body::Incoming>,
    connection: ConnectionTask,
    route: Route,
    permit: OwnedSemaphorePermit,
    client_upgrade: Option<OnUpgrade>,
) -> Response {
    let (mut head, body) = response.into_parts();
    let guest_upgrade = head.extensions.remove::<OnUpgrade>();
    let protocol = headers::strip(&mut head.headers);
    if head.status == StatusCode::SWITCHING_PROTOCOLS
        && let (Some(client), Some(guest), Some(protocol)) = (client_upgrade, guest_upgrade, protocol)
    {
        headers::set_upgrade(&mut head.headers, protocol);
        tokio::spawn(tunnel(client, guest, connection, route, permit));
        return Response::from_parts(head, Body::empty());
    }
    // Version and extensions are the guest connection's; the client's connection has its own.
    let mut delivered = Response::new(Body::new(GuestBody::new(body, connection, route, permit)));
    *delivered.status_mut() = head.status;
    *delivered.headers_mut() = head.headers;
    delivered
}
