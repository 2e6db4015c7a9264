//! Error codes and the error object.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Why a call failed. The set is that of gRPC; the HTTP status is the Connect protocol's for unary calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The caller gave up.
    Canceled,
    /// Anything that fits nothing else.
    Unknown,
    /// The request itself is wrong.
    InvalidArgument,
    /// The time the caller gave is over.
    DeadlineExceeded,
    /// What the request names does not exist.
    NotFound,
    /// What the request would create exists.
    AlreadyExists,
    /// The caller is known and may not do this.
    PermissionDenied,
    /// A limit or quota is reached.
    ResourceExhausted,
    /// The state does not allow the request.
    FailedPrecondition,
    /// A conflict with another operation.
    Aborted,
    /// Past the valid range.
    OutOfRange,
    /// The server has no such method.
    Unimplemented,
    /// The server failed.
    Internal,
    /// Not now; trying again may help.
    Unavailable,
    /// Data is lost or damaged.
    DataLoss,
    /// The caller is not known.
    Unauthenticated,
}

/// Code, name on the wire, HTTP status of a unary answer.
const CODES: [(Code, &str, u16); 16] = [
    (Code::Canceled, "canceled", 499),
    (Code::Unknown, "unknown", 500),
    (Code::InvalidArgument, "invalid_argument", 400),
    (Code::DeadlineExceeded, "deadline_exceeded", 504),
    (Code::NotFound, "not_found", 404),
    (Code::AlreadyExists, "already_exists", 409),
    (Code::PermissionDenied, "permission_denied", 403),
    (Code::ResourceExhausted, "resource_exhausted", 429),
    (Code::FailedPrecondition, "failed_precondition", 400),
    (Code::Aborted, "aborted", 409),
    (Code::OutOfRange, "out_of_range", 400),
    (Code::Unimplemented, "unimplemented", 501),
    (Code::Internal, "internal", 500),
    (Code::Unavailable, "unavailable", 503),
    (Code::DataLoss, "data_loss", 500),
    (Code::Unauthenticated, "unauthenticated", 401),
];

impl Code {
    /// The name on the wire, `snake_case`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        CODES.iter().find(|entry| entry.0 == self).map_or("unknown", |entry| entry.1)
    }

    /// The HTTP status of a unary answer with this code.
    #[must_use]
    pub fn http_status(self) -> u16 {
        CODES.iter().find(|entry| entry.0 == self).map_or(500, |entry| entry.2)
    }

    /// The code of a name on the wire; an unknown name is [`Code::Unknown`].
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        CODES.iter().find(|entry| entry.1 == name).map_or(Self::Unknown, |entry| entry.0)
    }

    /// The code a client infers from the status of an answer that carries no error object, for example from a proxy.
    #[must_use]
    pub fn from_http_status(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502..=504 => Self::Unavailable,
            _ => Self::Unknown,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|name| Self::from_name(&name))
    }
}

/// The error object: body of a failed unary call, `error` member of a failed stream's last message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// What kind of failure.
    pub code: Code,
    /// What failed and why, for people.
    #[serde(default)]
    pub message: String,
}

impl RpcError {
    /// An error with a code and a text.
    #[must_use]
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.code, self.message)
    }
}

impl std::error::Error for RpcError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_survives_its_name() {
        for (code, name, status) in CODES {
            assert_eq!(Code::from_name(name), code);
            assert_eq!((code.as_str(), code.http_status()), (name, status));
        }
        assert_eq!(Code::from_name("new_in_the_future"), Code::Unknown);
    }

    #[test]
    fn the_error_object_has_code_and_message() {
        let error = RpcError::new(Code::NotFound, "no such file");
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(text, r#"{"code":"not_found","message":"no such file"}"#);
        let read: RpcError = serde_json::from_str(r#"{"code":"aborted","details":[]}"#).unwrap();
        assert_eq!(read, RpcError::new(Code::Aborted, ""));
    }
}
