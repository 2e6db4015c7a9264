//! Imports with real mounts: needs root, loop devices, e2fsprogs, GNU tar, skopeo and docker-registry.

mod conversion;
mod golden;
mod hostile;
mod import;
mod registry;
mod sources;
mod support;
