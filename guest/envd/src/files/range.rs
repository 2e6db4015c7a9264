//! The `Range` header (RFC 9110, section 14), as far as one range goes.

/// Which bytes of a file a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    All,
    Part {
        offset: u64,
        bytes: u64,
    },
    /// A range that begins past the end.
    Unsatisfiable,
}

/// Reads a `Range` header for a file of `size` bytes. A header that is malformed, has another unit or names several
/// ranges may be ignored, and is.
pub(super) fn parse(header: Option<&str>, size: u64) -> Wanted {
    header.and_then(|header| parse_bytes(header, size)).unwrap_or(Wanted::All)
}

fn parse_bytes(header: &str, size: u64) -> Option<Wanted> {
    let (first, last) = header.trim().strip_prefix("bytes=")?.split_once('-')?;
    let number = |text: &str| -> Option<u64> {
        (!text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())).then(|| text.parse().ok())?
    };
    let (first, last) = (first.trim(), last.trim());
    let (offset, end) = match (first, last) {
        // The last so many bytes.
        ("", last) => {
            let count = number(last)?;
            if count == 0 {
                return Some(Wanted::Unsatisfiable);
            }
            (size.saturating_sub(count), size)
        }
        (first, "") => (number(first)?, size),
        (first, last) => {
            let (first, last) = (number(first)?, number(last)?);
            if last < first {
                return None;
            }
            (first, last.saturating_add(1).min(size))
        }
    };
    Some(if offset >= size { Wanted::Unsatisfiable } else { Wanted::Part { offset, bytes: end - offset } })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_of_a_file_of_ten_bytes() {
        let part = |offset, bytes| Wanted::Part { offset, bytes };
        for (header, expected) in [
            ("bytes=0-3", part(0, 4)),
            ("bytes=4-", part(4, 6)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-99", part(0, 10)),
            ("bytes=8-99", part(8, 2)),
            ("bytes=9-9", part(9, 1)),
            ("bytes=10-", Wanted::Unsatisfiable),
            ("bytes=-0", Wanted::Unsatisfiable),
            ("bytes=3-2", Wanted::All),
            ("bytes=0-1,3-4", Wanted::All),
            ("lines=0-1", Wanted::All),
            ("bytes=", Wanted::All),
            ("bytes=-", Wanted::All),
            ("bytes=+1-2", Wanted::All),
        ] {
            assert_eq!(parse(Some(header), 10), expected, "{header}");
        }
        assert_eq!(parse(Some("bytes=0-0"), 0), Wanted::Unsatisfiable);
        assert_eq!(parse(None, 10), Wanted::All);
    }

    proptest! {
        #[test]
        fn parts_lie_within_the_file(header in "bytes=[0-9]{0,20}-[0-9]{0,20}", size in any::<u64>()) {
            if let Wanted::Part { offset, bytes } = parse(Some(&header), size) {
                prop_assert!(bytes > 0 && offset.checked_add(bytes).is_some_and(|end| end <= size));
            }
        }
    }
}
