//! Answers.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::files::FileBody;
use crate::process::Subscription;

/// An answer of this daemon.
pub(crate) type Reply = Response<ReplyBody>;

/// Its body.
#[derive(Debug)]
pub(crate) enum ReplyBody {
    /// All of it, or what is left of it.
    Whole(Bytes),
    /// A file, read while it is sent.
    File(FileBody),
    /// The events of a process.
    Events(Box<Subscription>),
}

impl Body for ReplyBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::File(file) => file.poll_chunk(context).map(|chunk| Some(chunk?.map(Frame::data))),
            Self::Events(events) => {
                events.poll_frame(context).map(|frame| frame.map(|bytes| Ok(Frame::data(bytes))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::File(file) => SizeHint::with_exact(file.bytes_left()),
            Self::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer with a body of one type.
pub(crate) fn whole(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(body.into()));
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    reply
}

/// An answer without a body.
pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(ReplyBody::Whole(Bytes::new()));
    *reply.status_mut() = status;
    reply
}

/// A JSON answer.
pub(crate) fn json(status: StatusCode, value: &impl Serialize) -> Reply {
    match serde_json::to_vec(value) {
        Ok(body) => whole(status, "application/json", body),
        Err(error) => {
            self::error(StatusCode::INTERNAL_SERVER_ERROR, format!("answer cannot be written: {error}"))
        }
    }
}

/// The error object of the plain HTTP endpoints.
#[derive(Serialize)]
struct ErrorBody {
    code: u16,
    message: String,
}

/// A failed request to a plain HTTP endpoint: `{"code":<status>,"message":…}`.
pub(crate) fn error(status: StatusCode, message: impl Into<String>) -> Reply {
    let body = ErrorBody { code: status.as_u16(), message: message.into() };
    // Two plain members always serialise.
    whole(status, "application/json", serde_json::to_vec(&body).unwrap_or_default())
}

/// Lets browsers of any origin call us: access is decided by the token, never by the origin.
pub(crate) fn allow_origin(headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(
            "connect-content-encoding, connect-accept-encoding, content-length, content-range, location",
        ),
    );
}

/// Answers a browser's preflight request.
pub(crate) fn preflight(request_headers: &HeaderMap) -> Reply {
    let mut reply = empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    allow_origin(headers);
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"),
    );
    let asked = request_headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.unwrap_or(HeaderValue::from_static("*")));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("7200"));
    headers.insert(header::VARY, HeaderValue::from_static("origin, access-control-request-headers"));
    reply
}
