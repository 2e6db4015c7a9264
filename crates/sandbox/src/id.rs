//! Names of sandboxes and of the node they were born on.

use std::fmt;
use std::io;

use crate::random::{self, Randomness};

/// Characters of a sandbox id.
const SANDBOX_ID_LENGTH: usize = 20;

/// Short name of a node: 2 to 4 characters of `[a-z0-9]`. The ids of its sandboxes begin with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTag(String);

impl NodeTag {
    /// Checks the form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        ((2..=4).contains(&text.len()) && is_lower_alphanumeric(text)).then(|| Self(text.to_owned()))
    }

    /// A random tag of three characters.
    pub(crate) fn generate(randomness: &dyn Randomness) -> io::Result<Self> {
        random::alphanumeric(randomness, 3).map(Self)
    }

    /// The tag as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Name of a sandbox: 20 characters of `[a-z0-9]`, usable in a DNS label, file names and device ids.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxId(String);

impl SandboxId {
    /// Checks the form; says nothing about whether such a sandbox exists.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == SANDBOX_ID_LENGTH && is_lower_alphanumeric(text)).then(|| Self(text.to_owned()))
    }

    pub(crate) fn generate(tag: &NodeTag, randomness: &dyn Randomness) -> io::Result<Self> {
        let rest = random::alphanumeric(randomness, SANDBOX_ID_LENGTH - tag.0.len())?;
        Ok(Self(format!("{}{rest}", tag.0)))
    }

    /// Whether a node with this tag made it.
    #[must_use]
    pub fn is_of(&self, tag: &NodeTag) -> bool {
        self.0.starts_with(&tag.0)
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for SandboxId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn is_lower_alphanumeric(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::OsRandomness;

    #[test]
    fn a_new_id_begins_with_the_tag_of_its_node() {
        let tag = NodeTag::parse("n1").unwrap();
        let id = SandboxId::generate(&tag, &OsRandomness).unwrap();
        assert!(id.as_str().starts_with("n1"));
        assert!(id.is_of(&tag));
        assert!(!id.is_of(&NodeTag::parse("zzzz").unwrap()));
        assert_eq!(SandboxId::parse(id.as_str()), Some(id));
    }

    #[test]
    fn text_that_could_be_a_path_is_no_id() {
        for text in ["", "../../../../etc/passw", "ABCDEFGHIJKLMNOPQRST", "abc", "aaaaaaaaaaaaaaaaaaa-"] {
            assert_eq!(SandboxId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_tag_is_short_and_plain() {
        for text in ["", "a", "abcde", "A1", "a-"] {
            assert_eq!(NodeTag::parse(text), None, "{text}");
        }
    }
}
