//! Types that cross processes: the E2B wire formats and the storage daemon's gRPC service.
//!
//! Without the `storage` feature this crate is a few kilobytes of serde types: the guest programs use it.

pub mod connect;
pub mod envd;
pub mod timestamp;

pub mod api;

/// The storage daemon's gRPC messages, client and server, generated from `proto/storage.proto`.
#[cfg(feature = "storage")]
pub mod storage {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, clippy::restriction)]
    tonic::include_proto!("agentenv.storage.v1");
}
