//! The identifier of a repository.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::text::serde_as_text;

/// The `d` tag of a repository announcement: any text that cannot be a path.
///
/// Spaces, emoji, colons and a trailing `.git` are valid. It is never used as a file name.
///
/// ```
/// use grasp_core::{Identifier, IdentifierError};
///
/// assert!("my repo: the 2nd 🦀.git".parse::<Identifier>().is_ok());
/// assert_eq!("../etc".parse::<Identifier>(), Err(IdentifierError::Separator));
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identifier(Arc<str>);

/// The reason for which a text is not a valid identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentifierError {
    /// An empty text.
    #[error("the identifier is empty")]
    Empty,
    /// `.` or `..`, which are directories.
    #[error("the identifier is a relative path")]
    Dots,
    /// A slash or backslash.
    #[error("the identifier contains a path separator")]
    Separator,
    /// A NUL, which ends a string in C.
    #[error("the identifier contains a NUL")]
    Nul,
    /// Longer than [`Identifier::MAX_BYTES`].
    #[error("the identifier is longer than {} bytes", Identifier::MAX_BYTES)]
    TooLong,
}

impl Identifier {
    /// Maximum length; percent-encoded it still fits into a URL.
    pub const MAX_BYTES: usize = 1024;

    /// Validates a text.
    pub fn new(text: &str) -> Result<Self, IdentifierError> {
        if text.is_empty() {
            return Err(IdentifierError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(IdentifierError::TooLong);
        }
        if matches!(text, "." | "..") {
            return Err(IdentifierError::Dots);
        }
        if text.contains(['/', '\\']) {
            return Err(IdentifierError::Separator);
        }
        if text.contains('\0') {
            return Err(IdentifierError::Nul);
        }
        Ok(Self(text.into()))
    }

    /// Returns the identifier as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Identifier {
    type Err = IdentifierError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::new(text)
    }
}

impl Borrow<str> for Identifier {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

serde_as_text!(Identifier);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_anything_that_is_not_a_path() {
        for text in ["a", "a.git", "...", "a:b:c", " ", "日本 語", "-rf", "CON"] {
            assert!(Identifier::new(text).is_ok(), "{text:?}");
        }
    }

    #[test]
    fn refuses_paths() {
        let cases = [
            ("", IdentifierError::Empty),
            (".", IdentifierError::Dots),
            ("..", IdentifierError::Dots),
            ("a/b", IdentifierError::Separator),
            ("a\\b", IdentifierError::Separator),
            ("a\0b", IdentifierError::Nul),
        ];
        for (text, why) in cases {
            assert_eq!(Identifier::new(text), Err(why), "{text:?}");
        }
    }

    #[test]
    fn length_is_bounded() {
        assert!(Identifier::new(&"x".repeat(Identifier::MAX_BYTES)).is_ok());
        let over = "x".repeat(Identifier::MAX_BYTES + 1);
        assert_eq!(Identifier::new(&over), Err(IdentifierError::TooLong));
    }
}
