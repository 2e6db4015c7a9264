//! Randomness for ids and tokens, passed in so that tests decide it.

use std::io;

use rand::TryRngCore;

/// A source of unpredictable bytes.
pub trait Randomness: Send + Sync + std::fmt::Debug {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()>;
}

/// The kernel's generator.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsRandomness;

impl Randomness for OsRandomness {
    fn fill(&self, bytes: &mut [u8]) -> io::Result<()> {
        rand::rngs::OsRng.try_fill_bytes(bytes).map_err(io::Error::other)
    }
}

/// `length` characters of `[a-z0-9]`, each with the same probability.
pub(crate) fn alphanumeric(randomness: &dyn Randomness, length: usize) -> io::Result<String> {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    // The largest multiple of 36 that fits a byte; bytes above it would make some characters likelier.
    const FAIR: u8 = 252;
    let mut text = String::with_capacity(length);
    let mut bytes = [0u8; 32];
    while text.len() < length {
        randomness.fill(&mut bytes)?;
        for byte in bytes.iter().filter(|byte| **byte < FAIR).take(length - text.len()) {
            text.push(char::from(ALPHABET[usize::from(*byte % 36)]));
        }
    }
    Ok(text)
}

/// 32 random bytes as 64 hexadecimal digits.
pub(crate) fn token(randomness: &dyn Randomness) -> io::Result<String> {
    let mut bytes = [0u8; 32];
    randomness.fill(&mut bytes)?;
    Ok(hex(&bytes))
}

/// A random UUID (version 4), which is what clients expect of a build id.
pub(crate) fn uuid(randomness: &dyn Randomness) -> io::Result<String> {
    let mut bytes = [0u8; 16];
    randomness.fill(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let digits = hex(&bytes);
    Ok(format!(
        "{}-{}-{}-{}-{}",
        &digits[..8],
        &digits[8..12],
        &digits[12..16],
        &digits[16..20],
        &digits[20..]
    ))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alphanumeric_text_has_the_length_and_alphabet_asked_for() {
        for length in [0, 1, 17, 100] {
            let text = alphanumeric(&OsRandomness, length).unwrap();
            assert_eq!(text.len(), length);
            assert!(text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()));
        }
    }

    #[test]
    fn every_character_occurs_about_equally_often() {
        let text = alphanumeric(&OsRandomness, 36 * 1000).unwrap();
        let mut counts = std::collections::BTreeMap::new();
        for character in text.chars() {
            *counts.entry(character).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 36);
        // Eight standard deviations: a fair source misses this about once in 10^14 runs.
        assert!(counts.values().all(|count| (750..1250).contains(count)), "{counts:?}");
    }

    #[test]
    fn a_build_id_is_a_version_4_uuid() {
        let text = uuid(&OsRandomness).unwrap();
        assert_eq!(text.len(), 36);
        assert_eq!(&text[14..15], "4");
        assert!("89ab".contains(&text[19..20]));
    }
}
