//! Tests of the crate as a whole: against files of the reference implementation, against models, under failure.
#![cfg(test)]

mod bad;
mod commit;
mod content;
mod golden;
