//! The identifier of a repository.

use std::borrow::Borrow;
use std::sync::Arc;

use crate::text::{ParseError, invalid, validated_text};

/// The `d` tag of a repository announcement: any text that cannot be a path.
///
/// Spaces, emoji, colons and a trailing `.git` are valid. It is never used as a file name.
///
/// ```
/// use grasp_core::Identifier;
///
/// assert!("my repo: the 2nd 🦀.git".parse::<Identifier>().is_ok());
/// assert!("../etc".parse::<Identifier>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identifier(Arc<str>);

impl Identifier {
    /// Maximum length; percent-encoded it still fits into a URL.
    pub const MAX_BYTES: usize = 1024;

    /// Validates a text.
    pub fn new(text: &str) -> Result<Self, ParseError> {
        match text {
            "" => invalid("the identifier is empty"),
            "." | ".." => invalid("the identifier is a relative path"),
            _ if text.len() > Self::MAX_BYTES => {
                invalid(format!("the identifier is longer than {} bytes", Self::MAX_BYTES))
            }
            _ if text.contains(['/', '\\']) => invalid("the identifier contains a path separator"),
            // It ends a string in C.
            _ if text.contains('\0') => invalid("the identifier contains a NUL"),
            _ => Ok(Self(text.into())),
        }
    }
}

validated_text!(Identifier);

impl Borrow<str> for Identifier {
    fn borrow(&self) -> &str {
        &self.0
    }
}

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
            ("", "is empty"),
            (".", "is a relative path"),
            ("..", "is a relative path"),
            ("a/b", "contains a path separator"),
            ("a\\b", "contains a path separator"),
            ("a\0b", "contains a NUL"),
        ];
        for (text, why) in cases {
            let error = Identifier::new(text).unwrap_err();
            assert_eq!(error.to_string(), format!("the identifier {why}"), "{text:?}");
        }
    }

    #[test]
    fn length_is_bounded() {
        assert!(Identifier::new(&"x".repeat(Identifier::MAX_BYTES)).is_ok());
        let over = "x".repeat(Identifier::MAX_BYTES + 1);
        let error = Identifier::new(&over).unwrap_err();
        assert_eq!(error.to_string(), "the identifier is longer than 1024 bytes");
    }
}
