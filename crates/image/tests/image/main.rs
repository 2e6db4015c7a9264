//! Imports with real mounts: needs root, loop devices and e2fsprogs.

mod golden;
mod support;
