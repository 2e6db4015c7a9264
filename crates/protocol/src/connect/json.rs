//! The JSON form of protocol buffers, version 3 (<https://protobuf.dev/programming-guides/json/>), for serde.
//!
//! Sent: `lowerCamelCase` names, 64-bit integers as strings, bytes as standard base64, enumerations by name, default
//! values left out. Accepted besides: `snake_case` names, integers as numbers or strings, url-safe or unpadded base64,
//! enumerations by number, `null` for the default, unknown fields.

use base64::Engine as _;
use base64::alphabet::{STANDARD, URL_SAFE};
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

const LENIENT: GeneralPurposeConfig = GeneralPurposeConfig::new()
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);
const STANDARD_ENGINE: GeneralPurpose = GeneralPurpose::new(&STANDARD, LENIENT);
const URL_SAFE_ENGINE: GeneralPurpose = GeneralPurpose::new(&URL_SAFE, LENIENT);

/// Decodes standard or url-safe base64, padded or not.
///
/// # Errors
/// When the text is neither.
pub fn decode_base64(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    if text.contains(['-', '_']) { URL_SAFE_ENGINE.decode(text) } else { STANDARD_ENGINE.decode(text) }
}

/// Appends the standard, padded base64 of `bytes` to `text`.
pub fn append_base64(bytes: &[u8], text: &mut Vec<u8>) {
    let start = text.len();
    let length = bytes.len().div_ceil(3) * 4;
    text.resize(start + length, 0);
    // The space is exactly what the encoding needs.
    let written = STANDARD_ENGINE.encode_slice(bytes, &mut text[start..]).unwrap_or(0);
    text.truncate(start + written);
}

/// Whether a value is its type's default; such fields are not sent.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// For any field: `null` means the default.
///
/// # Errors
/// When the value is present and wrong.
pub fn null_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// `bytes` fields.
pub mod bytes_base64 {
    use super::*;

    /// Writes standard base64.
    ///
    /// # Errors
    /// When the serializer fails.
    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD_ENGINE.encode(bytes))
    }

    /// Reads any base64.
    ///
    /// # Errors
    /// When the text is not base64.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text: String = null_default(deserializer)?;
        decode_base64(&text).map_err(de::Error::custom)
    }
}

/// An integer that may come as a number or as a string, and is sent as a string: 64-bit fields.
pub mod int64_string {
    use super::*;

    /// Writes a decimal string.
    ///
    /// # Errors
    /// When the serializer fails.
    pub fn serialize<S: Serializer>(value: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    /// Reads a number or a string.
    ///
    /// # Errors
    /// When the value is not such an integer.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        Ok(Option::<LenientInteger>::deserialize(deserializer)?.map_or(0, |value| value.0))
    }
}

/// A 32-bit integer that may come as a number or as a string; sent as a number.
pub mod uint32 {
    use super::*;

    /// Writes a number.
    ///
    /// # Errors
    /// When the serializer fails.
    pub fn serialize<S: Serializer>(value: &u32, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(*value)
    }

    /// Reads a number or a string.
    ///
    /// # Errors
    /// When the value is not such an integer.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
        let value = Option::<LenientInteger>::deserialize(deserializer)?.map_or(0, |value| value.0);
        u32::try_from(value)
            .map_err(|_| de::Error::custom(format_args!("{value} is not a 32-bit unsigned integer")))
    }
}

/// A number or a string of one; whole floating-point numbers count, as the mapping demands.
struct LenientInteger(i64);

impl<'de> Deserialize<'de> for LenientInteger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntegerVisitor;
        impl Visitor<'_> for IntegerVisitor {
            type Value = i64;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("an integer, or a string of one")
            }

            fn visit_i64<E: de::Error>(self, value: i64) -> Result<i64, E> {
                Ok(value)
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<i64, E> {
                i64::try_from(value).map_err(|_| E::custom("integer out of range"))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<i64, E> {
                /// Up to here every whole number has exactly one `f64`.
                const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
                if value.fract() != 0.0 || value.abs() > EXACT_MAX {
                    return Err(E::custom("not an integer"));
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "whole and within 53 bits, checked above"
                )]
                Ok(value as i64)
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<i64, E> {
                value.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(IntegerVisitor).map(Self)
    }
}

/// An enumeration of a protocol buffer.
pub trait ProtoEnum: Copy + Default + 'static {
    /// Each value with its number and its name.
    const VALUES: &'static [(Self, i32, &'static str)];

    /// The value of a number; one we do not know is the default.
    #[must_use]
    fn from_number(number: i32) -> Self {
        Self::VALUES.iter().find(|entry| entry.1 == number).map_or_else(Self::default, |entry| entry.0)
    }

    /// The value of a name.
    #[must_use]
    fn from_name(name: &str) -> Option<Self> {
        Self::VALUES.iter().find(|entry| entry.2 == name).map(|entry| entry.0)
    }
}

/// Enumeration fields.
pub mod enumeration {
    use super::*;

    /// Writes the name.
    ///
    /// # Errors
    /// When the serializer fails.
    pub fn serialize<S: Serializer, T: ProtoEnum + PartialEq>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let name = T::VALUES.iter().find(|entry| entry.0 == *value).map_or("", |entry| entry.2);
        name.serialize(serializer)
    }

    /// Reads a name or a number.
    ///
    /// # Errors
    /// When the name is unknown or the value neither.
    pub fn deserialize<'de, D: Deserializer<'de>, T: ProtoEnum>(deserializer: D) -> Result<T, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum NameOrNumber {
            Name(String),
            Number(i32),
        }
        match Option::<NameOrNumber>::deserialize(deserializer)? {
            None => Ok(T::default()),
            Some(NameOrNumber::Number(number)) => Ok(T::from_number(number)),
            Some(NameOrNumber::Name(name)) => T::from_name(&name)
                .ok_or_else(|| de::Error::custom(format_args!("unknown enumeration value {name:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sample {
        #[serde(default, with = "int64_string")]
        size: i64,
        #[serde(default, with = "uint32")]
        pid: u32,
        #[serde(default, with = "bytes_base64")]
        data: Vec<u8>,
    }

    #[test]
    fn sixty_four_bit_integers_are_strings_and_bytes_standard_base64() {
        let sample = Sample { size: -(1 << 60), pid: 7, data: vec![0xfb, 0xff] };
        assert_eq!(
            serde_json::to_string(&sample).unwrap(),
            r#"{"size":"-1152921504606846976","pid":7,"data":"+/8="}"#
        );
    }

    #[test]
    fn lenient_forms_are_accepted() {
        for text in [
            r#"{"size":"5","pid":"6","data":"-_8"}"#,
            r#"{"size":5,"pid":6.0,"data":"+/8="}"#,
            r#"{"size":5.0,"pid":6,"data":"+/8","unknown":{"a":[1]}}"#,
        ] {
            let sample: Sample = serde_json::from_str(text).unwrap();
            assert_eq!(sample, Sample { size: 5, pid: 6, data: vec![0xfb, 0xff] }, "{text}");
        }
        let empty: Sample = serde_json::from_str(r#"{"size":null,"pid":null,"data":null}"#).unwrap();
        assert_eq!(empty, Sample { size: 0, pid: 0, data: vec![] });
    }

    #[test]
    fn wrong_values_are_errors() {
        for text in
            [r#"{"pid":-1}"#, r#"{"pid":4294967296}"#, r#"{"size":1.5}"#, r#"{"data":"!"}"#, r#"{"size":[]}"#]
        {
            assert!(serde_json::from_str::<Sample>(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn appended_base64_is_read_back(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut text = b"x".to_vec();
            append_base64(&bytes, &mut text);
            prop_assert_eq!(decode_base64(std::str::from_utf8(&text[1..]).unwrap()).unwrap(), bytes);
        }

        #[test]
        fn arbitrary_json_text_never_panics(text in "\\PC{0,200}") {
            let _ = serde_json::from_str::<Sample>(&text);
        }
    }
}
