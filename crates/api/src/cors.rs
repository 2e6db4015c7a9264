//! Browsers on other origins may use the control plane when they have the key: it is sent in a header, never by the browser
//! on its own, so any origin can be allowed.

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};

/// How long a browser may remember the answer to a preflight.
const PREFLIGHT_MAX_AGE_S: &str = "7200";

/// Answers preflights and marks every answer as readable.
pub(crate) async fn allow_any_origin(request: Request, next: Next) -> Response {
    let preflight = request.method() == Method::OPTIONS;
    let mut response =
        if preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    mark_readable(headers);
    if preflight {
        headers.insert(
            header::ACCESS_CONTROL_ALLOW_METHODS,
            HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE"),
        );
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("*, Authorization"));
        headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(PREFLIGHT_MAX_AGE_S));
    }
    response
}

/// Lets scripts of any origin read an answer.
pub(crate) fn mark_readable(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
}
