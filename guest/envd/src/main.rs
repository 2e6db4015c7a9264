//! Guest daemon that speaks the E2B envd protocol.

fn main() {}
