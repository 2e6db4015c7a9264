//! Drives the real daemon over a loopback port, as root, with a raw HTTP client.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail the test")]

mod client;
mod control;
mod files;
mod filesystem;
mod footprint;
mod processes;
mod server;
mod streams;
mod terminals;
