//! Tests of the crate as a whole: against files of the reference implementation, against models, under failure.
#![cfg(test)]

mod bad;
mod commit;
mod concurrency;
mod content;
mod errors;
mod golden;
mod hostile;
mod model;
