//! Points in time as RFC 3339 text.

use std::time::{Duration, SystemTime};

/// Formats a time as `2026-01-02T03:04:05.678Z`, with three, six or nine digits of fraction as needed, none for zero.
#[must_use]
pub fn format(time: SystemTime) -> String {
    let nanoseconds = nanoseconds_since_epoch(time);
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let fraction = nanoseconds.rem_euclid(1_000_000_000);
    let (year, month, day) = civil_from_days(seconds.div_euclid(86_400));
    let second_of_day = seconds.rem_euclid(86_400);
    let (hour, minute, second) = (second_of_day / 3600, second_of_day / 60 % 60, second_of_day % 60);
    let fraction = match fraction {
        0 => String::new(),
        _ if fraction % 1_000_000 == 0 => format!(".{:03}", fraction / 1_000_000),
        _ if fraction % 1_000 == 0 => format!(".{:06}", fraction / 1_000),
        _ => format!(".{fraction:09}"),
    };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Reads RFC 3339 text with any offset. `None` when it is not such text or not in the years 1–9999.
#[must_use]
pub fn parse(text: &str) -> Option<SystemTime> {
    let bytes = text.as_bytes();
    let digits = |range: std::ops::Range<usize>| -> Option<i64> {
        let part = bytes.get(range)?;
        part.iter()
            .all(u8::is_ascii_digit)
            .then(|| part.iter().fold(0, |sum, digit| sum * 10 + i64::from(digit - b'0')))
    };
    let byte_is =
        |index: usize, accepted: &[u8]| bytes.get(index).is_some_and(|byte| accepted.contains(byte));
    let punctuation =
        byte_is(4, b"-") && byte_is(7, b"-") && byte_is(10, b"Tt ") && byte_is(13, b":") && byte_is(16, b":");
    let (year, month, day) = (digits(0..4)?, digits(5..7)?, digits(8..10)?);
    let (hour, minute, second) = (digits(11..13)?, digits(14..16)?, digits(17..19)?);
    // 60 is a leap second; it is taken as the second after.
    if !punctuation
        || year < 1
        || !(1..=12).contains(&month)
        || day < 1
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let days = days_from_civil(year, month, day);
    // A day the month does not have comes back as one of the next month.
    if civil_from_days(days) != (year, month, day) {
        return None;
    }
    let rest = bytes.get(19..)?;
    let (nanoseconds, rest) = parse_fraction(rest)?;
    let offset_seconds = parse_offset(rest)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second - offset_seconds;
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let time = if seconds >= 0 {
        SystemTime::UNIX_EPOCH.checked_add(whole)?
    } else {
        SystemTime::UNIX_EPOCH.checked_sub(whole)?
    };
    time.checked_add(Duration::from_nanos(nanoseconds))
}

/// `.123…` → nanoseconds (further digits are cut), and what follows.
fn parse_fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let Some(digits_and_rest) = text.strip_prefix(b".") else { return Some((0, text)) };
    let count = digits_and_rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if count == 0 {
        return None;
    }
    let digits = digits_and_rest[..count].iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanoseconds = digits.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
    Some((nanoseconds, &digits_and_rest[count..]))
}

/// `Z` or `+hh:mm` → seconds east of Greenwich.
fn parse_offset(text: &[u8]) -> Option<i64> {
    match text {
        b"Z" | b"z" => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let two = |high: u8, low: u8| {
                (high.is_ascii_digit() && low.is_ascii_digit())
                    .then(|| i64::from(high - b'0') * 10 + i64::from(low - b'0'))
            };
            let (hours, minutes) = (two(*h1, *h2)?, two(*m1, *m2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let seconds = hours * 3600 + minutes * 60;
            Some(if *sign == b'-' { -seconds } else { seconds })
        }
        _ => None,
    }
}

fn nanoseconds_since_epoch(time: SystemTime) -> i128 {
    let signed = |duration: Duration| i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX);
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(after) => signed(after),
        Err(before) => -signed(before.duration()),
    }
}

/// Days from 1970-01-01 to a date of the proleptic Gregorian calendar. Years are counted from March, so that the leap
/// day is the last of a year, in eras of 400 years.
fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

/// The inverse of [`days_from_civil`]: year, month, day.
fn civil_from_days<N: Into<i128>>(days: N) -> (i64, i64, i64) {
    let days = days.into() + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i128::from(month <= 2);
    let narrow = |value: i128| i64::try_from(value).unwrap_or(i64::MAX);
    (narrow(year), narrow(month), narrow(day))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: u64, nanoseconds: u32) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::new(seconds, nanoseconds)
    }

    #[test]
    fn known_times() {
        assert_eq!(format(at(0, 0)), "1970-01-01T00:00:00Z");
        assert_eq!(format(at(951_782_400, 500_000_000)), "2000-02-29T00:00:00.500Z");
        assert_eq!(parse("2000-02-29T00:00:00.5Z"), Some(at(951_782_400, 500_000_000)));
        assert_eq!(parse("1996-12-19T16:39:57-08:00"), Some(at(851_042_397, 0)));
        assert_eq!(
            parse("1969-12-31T23:59:59.25Z"),
            Some(SystemTime::UNIX_EPOCH - Duration::from_millis(750))
        );
        assert_eq!(format(SystemTime::UNIX_EPOCH - Duration::from_millis(750)), "1969-12-31T23:59:59.250Z");
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "2026-01-01",
            "2026-01-01T00:00:00",
            "2026-02-30T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+1:00",
            "2026-01-01T00:00:00Zx",
            "0000-01-01T00:00:00Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn formatted_times_are_read_back(seconds in 0u64..200_000_000_000, nanoseconds in 0u32..1_000_000_000) {
            let time = at(seconds, nanoseconds);
            prop_assert_eq!(parse(&format(time)), Some(time));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[0-9TZ:.+\\-\u{e9} ]{0,40}") {
            let _ = parse(&text);
        }
    }
}
