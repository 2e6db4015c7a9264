//! Drives the real daemon over a loopback port, as root, with a raw HTTP client.

mod client;
mod control;
mod files;
mod filesystem;
mod footprint;
mod processes;
mod server;
mod streams;
mod terminals;
