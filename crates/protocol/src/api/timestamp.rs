//! Points in time as RFC 3339 text.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A point in time with microsecond resolution: what the databases and lists on both sides of the wire can hold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(OffsetDateTime);

/// Text or a number that is no point in time between the years 0 and 9999.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimestampError(String);

impl fmt::Display for TimestampError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} is no RFC 3339 time such as 2026-01-31T12:00:00Z", self.0)
    }
}

impl std::error::Error for TimestampError {}

impl Timestamp {
    /// From microseconds since the Unix epoch.
    pub fn from_unix_us(microseconds: i64) -> Result<Self, TimestampError> {
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(microseconds) * 1000)
            .map(Self)
            .map_err(|_| TimestampError(microseconds.to_string()))
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub fn unix_us(self) -> i64 {
        let microseconds = self.0.unix_timestamp_nanos().div_euclid(1000);
        // The years 0 to 9999 in microseconds are far inside 64 bits.
        i64::try_from(microseconds).unwrap_or(i64::MAX)
    }

    /// Whole seconds since the Unix epoch, rounded down.
    #[must_use]
    pub fn unix_s(self) -> i64 {
        self.0.unix_timestamp()
    }

    /// Parses RFC 3339 text, in any offset.
    pub fn parse(text: &str) -> Result<Self, TimestampError> {
        let parsed = OffsetDateTime::parse(text, &Rfc3339).map_err(|_| TimestampError(text.to_owned()))?;
        Self::from_unix_us(
            i64::try_from(parsed.unix_timestamp_nanos().div_euclid(1000))
                .map_err(|_| TimestampError(text.to_owned()))?,
        )
    }

    /// This time later by `duration`; the latest representable time when that would overflow.
    #[must_use]
    pub fn saturating_add(self, duration: Duration) -> Self {
        let microseconds = i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
        Self::from_unix_us(self.unix_us().saturating_add(microseconds)).unwrap_or(Self(LATEST))
    }

    /// How long until `self`, seen from `now`; zero when it has passed.
    #[must_use]
    pub fn saturating_since(self, now: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.unix_us().saturating_sub(now.unix_us())).unwrap_or(0))
    }
}

const LATEST: OffsetDateTime = time::Date::MAX.midnight().assume_utc();

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let epoch = Self(OffsetDateTime::UNIX_EPOCH);
        // A clock before 1970 is a broken clock; the epoch is the nearest honest answer.
        epoch.saturating_add(time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.format(&Rfc3339).map_err(|_| fmt::Error)?;
        formatter.write_str(&text)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_utc_with_microseconds() {
        let time = Timestamp::from_unix_us(1_788_000_000_123_456).unwrap();
        assert_eq!(time.to_string(), "2026-08-29T10:40:00.123456Z");
        assert_eq!(serde_json::to_string(&time).unwrap(), "\"2026-08-29T10:40:00.123456Z\"");
    }

    #[test]
    fn reads_every_offset_and_drops_what_is_below_a_microsecond() {
        let utc = Timestamp::parse("2026-08-29T10:40:00.123456Z").unwrap();
        assert_eq!(Timestamp::parse("2026-08-29T12:40:00.123456789+02:00").unwrap(), utc);
    }

    #[test]
    fn refuses_text_that_is_no_time() {
        for text in ["", "yesterday", "2026-08-29", "2026-13-01T00:00:00Z"] {
            assert!(Timestamp::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn arithmetic_saturates() {
        let time = Timestamp::from_unix_us(0).unwrap();
        assert_eq!(time.saturating_add(Duration::MAX).to_string(), "9999-12-31T00:00:00Z");
        assert_eq!(time.saturating_since(time.saturating_add(Duration::from_secs(1))), Duration::ZERO);
        assert_eq!(
            time.saturating_add(Duration::from_secs(5)).saturating_since(time),
            Duration::from_secs(5)
        );
    }
}
