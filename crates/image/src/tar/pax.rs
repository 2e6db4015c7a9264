//! pax extended headers: `LENGTH KEY=VALUE\n` records that override fields of the next member.

use std::collections::BTreeMap;

use super::Timestamp;
use super::sparse::PaxSparse;

/// What the pax headers before a member say about it.
#[derive(Debug, Default)]
pub(super) struct Pax {
    pub path: Option<Vec<u8>>,
    pub link: Option<Vec<u8>>,
    pub size: Option<u64>,
    pub user_id: Option<u64>,
    pub group_id: Option<u64>,
    pub modified: Option<Timestamp>,
    pub accessed: Option<Timestamp>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub sparse: PaxSparse,
}

/// Prefix of the records that carry extended attributes; used by star, GNU tar, libarchive and Go.
const XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";

impl Pax {
    /// Takes the records of one extended header; later records win.
    pub(super) fn read(&mut self, mut records: &[u8]) -> Result<(), String> {
        while !records.is_empty() {
            let record = Record::first(records)?;
            self.take(record.key, record.value)?;
            records = &records[record.bytes..];
        }
        Ok(())
    }

    /// An empty value takes back what an earlier record of the same key said (POSIX).
    fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let present = !value.is_empty();
        match key {
            b"path" => self.path = present.then(|| value.to_vec()),
            b"linkpath" => self.link = present.then(|| value.to_vec()),
            b"size" => self.size = optional(present, || decimal("size", value))?,
            b"uid" => self.user_id = optional(present, || decimal("user id", value))?,
            b"gid" => self.group_id = optional(present, || decimal("group id", value))?,
            b"mtime" => self.modified = optional(present, || timestamp(value))?,
            b"atime" => self.accessed = optional(present, || timestamp(value))?,
            _ => {
                if let Some(name) = key.strip_prefix(XATTR_PREFIX) {
                    if name.is_empty() || name.len() > 255 {
                        return Err(
                            "the name of an extended attribute is empty or above 255 bytes".to_owned()
                        );
                    }
                    self.xattrs.insert(name.to_vec(), value.to_vec());
                } else if let Some(name) = key.strip_prefix(b"GNU.sparse.") {
                    self.sparse.take(name, value)?;
                }
            }
        }
        Ok(())
    }
}

fn optional<T>(present: bool, parse: impl FnOnce() -> Result<T, String>) -> Result<Option<T>, String> {
    present.then(parse).transpose()
}

/// One record.
struct Record<'a> {
    key: &'a [u8],
    value: &'a [u8],
    /// Bytes of the whole record.
    bytes: usize,
}

impl<'a> Record<'a> {
    /// The first of `records`.
    fn first(records: &'a [u8]) -> Result<Self, String> {
        let malformed = || "a record of its pax header is malformed".to_owned();
        // The length counts itself; ten digits are more than any header may have.
        let space = records.iter().take(11).position(|&byte| byte == b' ').ok_or_else(malformed)?;
        let bytes = usize::try_from(decimal("record length", &records[..space])?).map_err(|_| malformed())?;
        let record = records.get(space + 1..bytes).ok_or_else(malformed)?;
        let record = record.strip_suffix(b"\n").ok_or_else(malformed)?;
        let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(malformed)?;
        let (key, value) = (&record[..equals], &record[equals + 1..]);
        if key.is_empty() || key.contains(&0) {
            return Err(malformed());
        }
        Ok(Self { key, value, bytes })
    }
}

/// A decimal number without sign.
pub(super) fn decimal(what: &str, text: &[u8]) -> Result<u64, String> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return Err(format!("its pax header has a {what} that is not a number"));
    }
    text.iter()
        .try_fold(0_u64, |value, &byte| value.checked_mul(10)?.checked_add(u64::from(byte - b'0')))
        .ok_or_else(|| format!("its pax header has a {what} out of range"))
}

/// Decimal seconds with an optional sign and fraction; digits below a nanosecond are dropped towards the past.
fn timestamp(text: &[u8]) -> Result<Timestamp, String> {
    let (negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let dot = text.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = match dot {
        Some(dot) => (&text[..dot], &text[dot + 1..]),
        None => (text, &b""[..]),
    };
    let invalid = || "its pax header has a time that is not a number".to_owned();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return Err(invalid());
    }
    let seconds = i64::try_from(decimal("time", whole)?).map_err(|_| invalid())?;
    let mut nanoseconds = 0_u32;
    for position in 0..9 {
        let digit = fraction.get(position).map_or(0, |&byte| u32::from(byte - b'0'));
        nanoseconds = nanoseconds * 10 + digit;
    }
    if !negative {
        return Ok(Timestamp { seconds, nanoseconds });
    }
    if nanoseconds == 0 {
        return Ok(Timestamp { seconds: -seconds, nanoseconds });
    }
    Ok(Timestamp { seconds: -seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_override_and_take_back() {
        let mut pax = Pax::default();
        pax.read(b"11 path=ab\n11 path=cd\n19 linkpath=target\n13 linkpath=\n12 size=123\n").unwrap();
        assert_eq!(pax.path.as_deref(), Some(&b"cd"[..]));
        assert_eq!(pax.link, None);
        assert_eq!(pax.size, Some(123));
    }

    #[test]
    fn xattr_values_may_hold_any_byte() {
        let mut pax = Pax::default();
        pax.read(b"28 SCHILY.xattr.user.a=\0\n=\xff\n").unwrap();
        assert_eq!(pax.xattrs[&b"user.a"[..]], b"\0\n=\xff");
    }

    #[test]
    fn malformed_records_are_refused() {
        for records in [
            &b"path=ab\n"[..],
            b"10 path=ab\n",
            b"12 path=ab\n",
            b"99 path=ab\n",
            b"0 path=ab\n",
            b"3 \n",
            b"7 path\n",
            b"6 =ab\n",
            b"99999999999999999999 path=ab\n",
            b"14 size=-123\n",
            b"12 uid=1e3\n\n",
        ] {
            assert!(Pax::default().read(records).is_err(), "{:?}", records.escape_ascii().to_string());
        }
    }

    #[test]
    fn times_keep_their_fraction() {
        let time = |text: &[u8]| timestamp(text).map(|time| (time.seconds, time.nanoseconds));
        assert_eq!(time(b"1700000000.123456789"), Ok((1_700_000_000, 123_456_789)));
        assert_eq!(time(b"1.5"), Ok((1, 500_000_000)));
        assert_eq!(time(b"-1.25"), Ok((-2, 750_000_000)));
        assert_eq!(time(b"-3"), Ok((-3, 0)));
        assert_eq!(time(b"7.0000000009"), Ok((7, 0)));
        assert!(time(b"1.x").is_err());
        assert!(time(b".5").is_err());
        assert!(time(b"99999999999999999999").is_err());
    }
}
