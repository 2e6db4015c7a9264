//! Imports with real mounts: needs root, loop devices, e2fsprogs, GNU tar, skopeo and docker-registry.

#![expect(clippy::unwrap_used, reason = "this is a test program: a failed unwrap is a failed test")]

mod conversion;
mod golden;
mod hostile;
mod import;
mod registry;
mod sources;
mod support;
