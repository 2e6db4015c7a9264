//! Connect calls: reading the request message and writing the answer, unary and streaming.

use bytes::Bytes;
use hyper::header::{self, HeaderMap};
use hyper::{Response, StatusCode};
use protocol::connect::{
    CONTENT_TYPE_STREAM, CONTENT_TYPE_UNARY, Code, EnvelopeDecoder, RpcError, end_stream,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::process::Subscription;
use crate::reply::{self, Reply, ReplyBody};
use crate::request::{self, BodyError, Request};

/// Longest request message. Arguments and environment of a program are at most 2 MiB with the usual stack limit;
/// input for a program may come in larger pieces.
const MESSAGE_BYTES_MAX: u32 = 16 << 20;

/// Reads the message of a unary call.
pub(crate) async fn unary_message<T: DeserializeOwned>(request: Request) -> Result<T, RpcError> {
    check_content(request.headers(), CONTENT_TYPE_UNARY)?;
    let body = read(request).await?;
    parse(&body)
}

/// Reads the one message of a call that is answered by a stream.
pub(crate) async fn streaming_message<T: DeserializeOwned>(request: Request) -> Result<T, RpcError> {
    check_content(request.headers(), CONTENT_TYPE_STREAM)?;
    let body = read(request).await?;
    let mut decoder = EnvelopeDecoder::new(MESSAGE_BYTES_MAX);
    decoder.push(&body);
    match decoder.next_envelope() {
        Ok(Some(envelope)) => parse(&envelope.message),
        Ok(None) => Err(RpcError::new(Code::InvalidArgument, "the request has no whole message")),
        Err(error) => Err(RpcError::new(Code::InvalidArgument, error.to_string())),
    }
}

async fn read(request: Request) -> Result<Bytes, RpcError> {
    request::read_body(request.into_body(), MESSAGE_BYTES_MAX as usize).await.map_err(|error| {
        let code = match error {
            BodyError::TooLong { .. } => Code::ResourceExhausted,
            BodyError::Idle => Code::DeadlineExceeded,
            BodyError::Broken(_) => Code::Canceled,
        };
        RpcError::new(code, error.to_string())
    })
}

fn parse<T: DeserializeOwned>(message: &[u8]) -> Result<T, RpcError> {
    let message = if message.is_empty() { b"{}" } else { message };
    serde_json::from_slice(message).map_err(|error| {
        RpcError::new(Code::InvalidArgument, format!("the request message is not valid: {error}"))
    })
}

/// Only uncompressed JSON is spoken here.
fn check_content(headers: &HeaderMap, expected: &'static str) -> Result<(), RpcError> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let content_type = text(header::CONTENT_TYPE.as_str()).split(';').next().unwrap_or_default().trim();
    if !content_type.eq_ignore_ascii_case(expected) {
        let message = format!("content type {content_type:?} is not supported here; use {expected}");
        return Err(RpcError::new(Code::Unimplemented, message));
    }
    for name in ["content-encoding", "connect-content-encoding"] {
        let encoding = text(name);
        if !encoding.is_empty() && !encoding.eq_ignore_ascii_case("identity") {
            let message = format!("encoding {encoding:?} is not supported; send messages uncompressed");
            return Err(RpcError::new(Code::Unimplemented, message));
        }
    }
    Ok(())
}

/// The answer of a unary call.
pub(crate) fn unary_reply<T: Serialize>(result: Result<T, RpcError>) -> Reply {
    match result {
        Ok(message) => reply::json(StatusCode::OK, &message),
        Err(error) => {
            let status =
                StatusCode::from_u16(error.code.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            reply::json(status, &error)
        }
    }
}

/// The answer of a streaming call: also a failure is a stream, whose only message says why.
pub(crate) fn streaming_reply(result: Result<Subscription, RpcError>) -> Reply {
    match result {
        Ok(events) => {
            let mut reply = Response::new(ReplyBody::Events(Box::new(events)));
            let content_type = header::HeaderValue::from_static(CONTENT_TYPE_STREAM);
            reply.headers_mut().insert(header::CONTENT_TYPE, content_type);
            reply
        }
        Err(error) => reply::whole(StatusCode::OK, CONTENT_TYPE_STREAM, end_stream(Some(error))),
    }
}

/// The answer to a method we do not have, in the form the caller expects. `known` methods are part of the service, only
/// not served yet.
pub(crate) fn unimplemented(method: &str, known: bool, headers: &HeaderMap) -> Reply {
    let reason = if known { "is not implemented by this daemon yet" } else { "does not exist" };
    let error = RpcError::new(Code::Unimplemented, format!("method {method} {reason}"));
    match check_content(headers, CONTENT_TYPE_STREAM) {
        Ok(()) => streaming_reply(Err(error)),
        Err(_) => unary_reply::<()>(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn identity_is_accepted_and_other_encodings_are_refused() {
        let json = ("content-type", "application/json; charset=utf-8");
        for accepted in [&[json][..], &[json, ("content-encoding", "identity")]] {
            check_content(&headers(accepted), CONTENT_TYPE_UNARY).unwrap();
        }
        for refused in
            [&[][..], &[("content-type", "application/proto")], &[json, ("content-encoding", "gzip")]]
        {
            assert_eq!(
                check_content(&headers(refused), CONTENT_TYPE_UNARY).unwrap_err().code,
                Code::Unimplemented
            );
        }
    }
}
