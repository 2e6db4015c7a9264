//! Sizes, durations and pairs as people write and read them.

use std::time::Duration;

/// Reads `512M`, `16G`, `1T` or a number of bytes; units are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is no size such as 512M or 16G");
    let upper = text.trim().to_ascii_uppercase();
    let digits = upper.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &upper[digits.len()..] {
        "" | "B" => 0,
        "K" | "KIB" => 10,
        "M" | "MIB" => 20,
        "G" | "GIB" => 30,
        "T" | "TIB" => 40,
        _ => return Err(bad()),
    };
    let number: u64 = digits.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes > 0).ok_or_else(bad)
}

/// Reads `KEY=VALUE`; the value may be empty and may hold further `=`.
pub(crate) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("{text:?} is not of the form KEY=VALUE")),
    }
}

/// `1.5 GiB`
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut unit = 0;
    let mut whole = bytes;
    let mut rest = 0;
    while whole >= 1024 && unit + 1 < UNITS.len() {
        rest = whole % 1024;
        whole /= 1024;
        unit += 1;
    }
    let tenth = rest * 10 / 1024;
    if unit == 0 || tenth == 0 || whole >= 100 {
        format!("{whole} {}", UNITS[unit])
    } else {
        format!("{whole}.{tenth} {}", UNITS[unit])
    }
}

/// `45s`, `12m`, `3h 5m`, `2d 4h`
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match () {
        () if minutes == 0 => format!("{seconds}s"),
        () if hours == 0 => format!("{minutes}m"),
        () if days == 0 => format!("{hours}h {}m", minutes % 60),
        () => format!("{days}d {}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        for (text, bytes) in [("4096", 4096), ("1k", 1024), ("16G", 16 << 30), ("2TiB", 2 << 40), ("7 M", 0)]
        {
            assert_eq!(parse_size(text).unwrap_or(0), bytes, "{text}");
        }
        for text in ["", "G", "-1G", "1.5G", "0", "1X", "99999999T"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_written() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (64 << 30, "64 GiB"),
            (u64::MAX, "16777215 TiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
    }

    #[test]
    fn durations_are_written() {
        for (seconds, text) in [(0, "0s"), (59, "59s"), (61, "1m"), (3900, "1h 5m"), (90000, "1d 1h")] {
            assert_eq!(duration(Duration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn a_pair_needs_a_key() {
        assert_eq!(parse_pair("A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(parse_pair("A=").unwrap(), ("A".into(), String::new()));
        assert!(parse_pair("A").is_err());
        assert!(parse_pair("=b").is_err());
    }
}
