//! The 512-byte header block.
//!
//! | offset | bytes | field | encoding |
//! |---|---|---|---|
//! | 0 | 100 | name | bytes, NUL-terminated unless full |
//! | 100 | 8 | mode | number |
//! | 108, 116 | 8, 8 | user id, group id | number |
//! | 124 | 12 | size of the data that follows | number |
//! | 136 | 12 | modification time, seconds | number |
//! | 148 | 8 | checksum: sum of all bytes, this field taken as spaces | octal |
//! | 156 | 1 | type | byte |
//! | 157 | 100 | link target | as name |
//! | 257 | 8 | `ustar\0` `00`, or `ustar  \0` of GNU | bytes |
//! | 329, 337 | 8, 8 | device major, minor | number |
//! | 345 | 155 | path prefix (ustar; 131 bytes in star's variant, with `tar\0` at 508) | as name |
//!
//! A number is octal digits in ASCII, or, with the first bit set, a big-endian two's complement integer (GNU).

use super::{BLOCK_BYTES, Timestamp};

/// A header block, not yet interpreted.
pub(super) struct Header<'a>(pub &'a [u8; BLOCK_BYTES]);

impl Header<'_> {
    pub(super) fn is_zero(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// Historic writers summed signed bytes, so both sums are accepted.
    pub(super) fn checksum_is_right(&self) -> bool {
        let Ok(stored) = parse_octal(&self.0[148..156]) else { return false };
        let bytes = || {
            self.0.iter().enumerate().map(
                |(position, &byte)| {
                    if (148..156).contains(&position) { b' ' } else { byte }
                },
            )
        };
        let unsigned: u64 = bytes().map(u64::from).sum();
        let signed: i64 = bytes().map(|byte| i64::from(byte.cast_signed())).sum();
        stored == unsigned || i64::try_from(stored) == Ok(signed)
    }

    pub(super) fn type_flag(&self) -> u8 {
        self.0[156]
    }

    pub(super) fn path(&self) -> Vec<u8> {
        let name = until_nul(&self.0[..100]);
        let prefix = if self.is_star() {
            until_nul(&self.0[345..476])
        } else if self.is_posix() {
            until_nul(&self.0[345..500])
        } else {
            &[]
        };
        if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        until_nul(&self.0[157..257]).to_vec()
    }

    pub(super) fn mode(&self) -> Result<i64, String> {
        number("mode", &self.0[100..108])
    }

    pub(super) fn user_id(&self) -> Result<i64, String> {
        number("user id", &self.0[108..116])
    }

    pub(super) fn group_id(&self) -> Result<i64, String> {
        number("group id", &self.0[116..124])
    }

    pub(super) fn size(&self) -> Result<i64, String> {
        number("size", &self.0[124..136])
    }

    pub(super) fn modified(&self) -> Result<Timestamp, String> {
        Ok(Timestamp { seconds: number("modification time", &self.0[136..148])?, nanoseconds: 0 })
    }

    pub(super) fn device(&self) -> Result<(i64, i64), String> {
        if !self.is_posix() && !self.is_gnu() {
            return Ok((0, 0));
        }
        Ok((number("device major", &self.0[329..337])?, number("device minor", &self.0[337..345])?))
    }

    pub(super) fn is_gnu(&self) -> bool {
        &self.0[257..265] == b"ustar  \0"
    }

    fn is_posix(&self) -> bool {
        &self.0[257..263] == b"ustar\0"
    }

    fn is_star(&self) -> bool {
        self.is_posix() && &self.0[508..512] == b"tar\0"
    }
}

/// Bytes up to the first NUL.
pub(super) fn until_nul(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&byte| byte == 0).unwrap_or(field.len());
    &field[..end]
}

/// A numeric field, octal or base-256.
pub(super) fn number(what: &str, field: &[u8]) -> Result<i64, String> {
    let Some(&first) = field.first() else { return Ok(0) };
    if first & 0x80 == 0 {
        let value = parse_octal(field).map_err(|()| format!("its {what} is not a number"))?;
        return i64::try_from(value).map_err(|_| format!("its {what} is out of range"));
    }
    // The first bit only marks the encoding; the second one is the sign.
    let negative = first & 0x40 != 0;
    let mut value: i128 = if negative { -1 } else { 0 };
    for (position, &byte) in field.iter().enumerate() {
        let byte = if position > 0 {
            byte
        } else if negative {
            byte | 0x80
        } else {
            byte & 0x7f
        };
        // At most 12 bytes: 96 bits never overflow an i128.
        value = (value << 8) | i128::from(byte);
    }
    i64::try_from(value).map_err(|_| format!("its {what} is out of range"))
}

/// Octal digits, padded with spaces or NULs on both sides; an empty field is 0.
fn parse_octal(field: &[u8]) -> Result<u64, ()> {
    let start = field.iter().position(|&byte| byte != b' ' && byte != 0).unwrap_or(field.len());
    let field = &field[start..];
    let end = field.iter().position(|&byte| byte == b' ' || byte == 0).unwrap_or(field.len());
    if field[end..].iter().any(|&byte| byte != b' ' && byte != 0) {
        return Err(());
    }
    field[..end].iter().try_fold(0_u64, |value, &byte| match byte {
        b'0'..=b'7' => value.checked_mul(8).map(|value| value + u64::from(byte - b'0')).ok_or(()),
        _ => Err(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_base_256() {
        assert_eq!(number("n", b"0000644\0"), Ok(0o644));
        assert_eq!(number("n", b"   644 \0"), Ok(0o644));
        assert_eq!(number("n", b"\0\0\0\0\0\0\0\0"), Ok(0));
        assert_eq!(number("n", b"777777777777"), Ok(0o777_777_777_777));
        assert_eq!(number("n", &[0x80, 0, 0, 0, 0, 0x20, 0, 0]), Ok(0x20_0000));
        assert_eq!(number("n", &[0xff; 12]), Ok(-1));
        assert_eq!(number("n", &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe]), Ok(-2));
    }

    #[test]
    fn numbers_out_of_range_or_malformed_are_refused() {
        assert!(number("n", b"0000648\0").is_err());
        assert!(number("n", b"1 2\0\0\0\0\0").is_err());
        assert!(number("n", b"-1\0\0\0\0\0\0").is_err());
        assert!(number("n", &[0x80, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0]).is_err());
    }
}
