//! Tests of the crate as a whole: against files of the reference implementation, against models, under failure.

mod bad;
mod content;
mod golden;
