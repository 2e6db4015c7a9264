//! Slots with real namespaces, real rules and real packets. Needs root.

#![expect(clippy::unwrap_used, reason = "helpers of a test fail it by panicking")]

mod lab;
mod life;
mod policy;
