//! The unpacking role as a program of its own, for the tests and examples of this crate; in the product it is a role of
//! the one binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    image::unpack::child_main()
}
