//! Conversions between the file's 64-bit numbers and memory sizes.

const _: () = assert!(usize::BITS == 64, "addresses of a layer are 64 bits wide");

/// A count that is known to fit into memory.
#[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits, asserted above")]
pub(crate) const fn to_usize(value: u64) -> usize {
    value as usize
}
