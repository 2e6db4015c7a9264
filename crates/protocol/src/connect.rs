//! The Connect protocol with JSON messages (<https://connectrpc.com/docs/protocol>), as far as E2B clients use it.
//!
//! Unary calls carry plain JSON both ways. Streams carry *envelopes*: one flag byte, a big-endian 32-bit length, a JSON
//! message; the last envelope of an answer has [`FLAG_END_STREAM`] and says whether the call failed.

mod code;
mod envelope;
pub mod json;

pub use code::{Code, RpcError};
pub use envelope::{
    Envelope, EnvelopeDecoder, EnvelopeError, FLAG_COMPRESSED, FLAG_END_STREAM, HEADER_BYTES, encode,
    end_stream,
};

/// Content type of unary requests and answers.
pub const CONTENT_TYPE_UNARY: &str = "application/json";
/// Content type of streaming requests and answers.
pub const CONTENT_TYPE_STREAM: &str = "application/connect+json";
/// Request header: how long the client waits, in milliseconds; on streams the server enforces it.
pub const HEADER_TIMEOUT_MS: &str = "connect-timeout-ms";
/// Request header of E2B streams: after how many seconds of silence the server sends a keep-alive event.
pub const HEADER_KEEPALIVE_S: &str = "keepalive-ping-interval";
