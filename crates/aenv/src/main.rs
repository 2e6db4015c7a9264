//! The aenv binary: command line, host roles, configuration, doctor.

fn main() {}
