//! Which sandbox and port a request is for.

use axum::extract::Request;
use http::uri::PathAndQuery;
use http::{HeaderMap, header};
use percent_encoding::percent_decode_str;
use protocol::api::{SANDBOX_ID_HEADER, SANDBOX_PORT_HEADER};

use super::answer::ProxyError;

/// Paths of the guest daemon that only the node may use. They change who may enter, or stop the guest.
const INTERNAL_ENVD_PATHS: &[&str] =
    &["/init", "/freeze", "/unfreeze", "/collapse", "/fsfreeze", "/fsthaw", "/upgrade"];

const PROXY_PREFIX: &str = "/proxy/";

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) sandbox_id: String,
    pub(super) port: u16,
    /// As it stood in the request, not normalised: what it means is the guest's decision.
    pub(super) path_and_query: PathAndQuery,
}

/// The target of a request; nothing when it is for the control plane.
///
/// The host name decides first, since it is what a browser was led to; then the headers; then the path.
pub(super) fn of(request: &Request, domain: Option<&str>) -> Option<Result<Target, ProxyError>> {
    let uri = request.uri();
    let path_and_query = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let host = uri.host().or_else(|| request.headers().get(header::HOST)?.to_str().ok());
    let named = from_host(host, domain)
        .or_else(|| from_headers(request.headers()))
        .map(|named| named.map(|(sandbox_id, port)| (sandbox_id, port, path_and_query.clone())))
        .or_else(|| from_path(&path_and_query))?;
    Some(named.and_then(|(sandbox_id, port, path_and_query)| {
        let target = Target { sandbox_id, port: parse_port(&port)?, path_and_query };
        if target.port == protocol::envd::ENVD_PORT && is_internal(target.path_and_query.path()) {
            return Err(ProxyError::Internal);
        }
        Ok(target)
    }))
}

type Named = Result<(String, String), ProxyError>;

/// `<port>-<sandboxID>.<domain>`. Only the first hyphen separates: ids of other systems contain more.
fn from_host(host: Option<&str>, domain: Option<&str>) -> Option<Named> {
    let domain = without_port(domain?);
    let host = without_port(host?);
    let label_end = host.len().checked_sub(domain.len())?;
    let (label, suffix) = host.split_at_checked(label_end)?;
    if !suffix.eq_ignore_ascii_case(domain) {
        return None;
    }
    let (port, sandbox_id) = label.strip_suffix('.')?.split_once('-')?;
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    is_port.then(|| Ok((sandbox_id.to_ascii_lowercase(), port.to_owned())))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn from_headers(headers: &HeaderMap) -> Option<Named> {
    let sandbox_id = headers.get(SANDBOX_ID_HEADER);
    let port = headers.get(SANDBOX_PORT_HEADER);
    let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    match (sandbox_id, port) {
        (None, None) => None,
        (Some(sandbox_id), Some(port)) => Some(Ok((text(sandbox_id), text(port)))),
        (Some(_), None) => Some(Err(ProxyError::HeaderMissing("E2b-Sandbox-Port"))),
        (None, Some(_)) => Some(Err(ProxyError::HeaderMissing("E2b-Sandbox-Id"))),
    }
}

/// `/proxy/{sandboxID}/{port}` and whatever follows.
fn from_path(path_and_query: &PathAndQuery) -> Option<Result<(String, String, PathAndQuery), ProxyError>> {
    let rest = path_and_query.as_str().strip_prefix(PROXY_PREFIX)?;
    let (sandbox_id, rest) = rest.split_once('/').unwrap_or((rest, ""));
    let port_end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (port, rest) = rest.split_at(port_end);
    let rest = if rest.starts_with('/') { rest.to_owned() } else { format!("/{rest}") };
    let rest = PathAndQuery::try_from(rest).map_err(|_| ProxyError::Path);
    Some(rest.map(|rest| (sandbox_id.to_owned(), port.to_owned(), rest)))
}

fn parse_port(text: &str) -> Result<u16, ProxyError> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let port = text.parse().ok().filter(|port| digits && *port != 0);
    port.ok_or_else(|| ProxyError::Port(text.chars().take(20).collect()))
}

/// Whether the guest daemon could take the path for an internal one, however it is written.
fn is_internal(path: &str) -> bool {
    let decoded = percent_decode_str(path).decode_utf8_lossy();
    let mut segments: Vec<&str> = Vec::new();
    for segment in decoded.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    matches!(segments.as_slice(), [name] if INTERNAL_ENVD_PATHS.iter().any(|path| path[1..].eq_ignore_ascii_case(name)))
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
