//! Repositories, refs, objects and addresses, validated when parsed.

mod refs;
mod url;

pub use refs::{Namespace, Oid, RefName};
pub(crate) use url::UrlParts;
pub use url::{CloneUrl, Host, RelayUrl};

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use nostr::event::Kind;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use crate::kinds;
use crate::text::{ParseError, invalid, parse_pubkey, serde_as_text, validated_text};

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
            _ if text.len() > Self::MAX_BYTES => invalid(format!(
                "the identifier is longer than {} bytes",
                Self::MAX_BYTES
            )),
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

/// The coordinate of a repository: `30617:<owner>:<identifier>`.
///
/// The text is split at its first two colons only, because an identifier may contain colons.
///
/// ```
/// use grasp_core::RepoId;
///
/// let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let repo: RepoId = format!("30617:{owner}:a:b").parse().unwrap();
/// assert_eq!(repo.identifier.as_str(), "a:b");
/// assert_eq!(repo.to_string(), format!("30617:{owner}:a:b"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId {
    /// Author of the announcement.
    pub owner: PublicKey,
    /// Name of the repository.
    pub identifier: Identifier,
}

/// Parses `kind:pubkey:identifier`, and `kind:pubkey` for replaceable kinds.
///
/// Only the canonical spelling is accepted, so that equal coordinates are equal keys: a kind without leading zero or
/// sign, and a key in lower-case hex, as relays index them.
///
/// ```
/// use grasp_core::{ParseError, RepoId, parse_coordinate};
///
/// let key = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
/// let coordinate = parse_coordinate(&format!("30617:{key}:x"))?;
/// assert_eq!(RepoId::try_from(&coordinate)?.identifier.as_str(), "x");
/// let refused: ParseError = parse_coordinate(&format!("030617:{key}:x")).unwrap_err();
/// assert!(refused.to_string().contains("coordinate"));
/// # Ok::<(), ParseError>(())
/// ```
pub fn parse_coordinate(text: &str) -> Result<Coordinate, ParseError> {
    let mut parts = text.splitn(3, ':');
    let kind = parts.next();
    let author = parts.next();
    let identifier = parts.next();
    let Some(kind) = kind.and_then(parse_kind) else {
        return invalid("not a coordinate of a replaceable or addressable kind");
    };
    let Some(public_key) = author.and_then(parse_pubkey) else {
        return invalid("not a coordinate with a public key in lower-case hex");
    };
    match identifier {
        Some(identifier) if kind.is_addressable() => Ok(Coordinate {
            kind,
            public_key,
            identifier: identifier.to_owned(),
        }),
        None | Some("") if kinds::is_replaceable(kind) => Ok(Coordinate::new(kind, public_key)),
        _ => invalid("not a coordinate of the form kind:pubkey:identifier"),
    }
}

/// Parses a replaceable or addressable kind.
fn parse_kind(text: &str) -> Option<Kind> {
    let is_canonical = text == "0" || !text.starts_with(['0', '+']);
    let kind = text
        .parse()
        .ok()
        .filter(|_| is_canonical)
        .map(Kind::from_u16)?;
    (kind.is_addressable() || kinds::is_replaceable(kind)).then_some(kind)
}

impl RepoId {
    /// Combines owner and identifier.
    pub fn new(owner: PublicKey, identifier: Identifier) -> Self {
        Self { owner, identifier }
    }

    /// Returns the coordinate of the announcement.
    pub fn coordinate(&self) -> Coordinate {
        Coordinate {
            kind: kinds::ANNOUNCEMENT,
            public_key: self.owner,
            identifier: self.identifier.to_string(),
        }
    }
}

impl TryFrom<&Coordinate> for RepoId {
    type Error = ParseError;
    fn try_from(coordinate: &Coordinate) -> Result<Self, ParseError> {
        if coordinate.kind != kinds::ANNOUNCEMENT {
            return invalid("not the coordinate of a repository");
        }
        let identifier = Identifier::new(&coordinate.identifier)?;
        Ok(Self {
            owner: coordinate.public_key,
            identifier,
        })
    }
}

impl FromStr for RepoId {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        Self::try_from(&parse_coordinate(text)?)
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "30617:{}:{}", self.owner, self.identifier)
    }
}

serde_as_text!(RepoId);

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
            assert_eq!(
                error.to_string(),
                format!("the identifier {why}"),
                "{text:?}"
            );
        }
    }

    #[test]
    fn length_is_bounded() {
        assert!(Identifier::new(&"x".repeat(Identifier::MAX_BYTES)).is_ok());
        let over = "x".repeat(Identifier::MAX_BYTES + 1);
        let error = Identifier::new(&over).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the identifier is longer than 1024 bytes"
        );
    }

    const KEY: &str = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";

    #[test]
    fn only_the_first_two_colons_split() {
        let coordinate = parse_coordinate(&format!("30617:{KEY}:a:b:")).unwrap();
        assert_eq!(coordinate.identifier, "a:b:");
    }

    #[test]
    fn replaceable_kinds_may_omit_the_last_colon() {
        let short = parse_coordinate(&format!("10317:{KEY}")).unwrap();
        assert_eq!(short, parse_coordinate(&format!("10317:{KEY}:")).unwrap());
        assert!(parse_coordinate(&format!("10317:{KEY}:x")).is_err());
    }

    #[test]
    fn other_spellings_are_refused() {
        let upper = KEY.to_uppercase();
        for text in [
            format!("030617:{KEY}:x"),
            format!("+30617:{KEY}:x"),
            format!("30617:{upper}:x"),
            format!("30617:{KEY}"),
            format!("1:{KEY}:x"),
            String::from("30617"),
            String::new(),
        ] {
            assert!(parse_coordinate(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_state_is_not_a_repository() {
        let text = format!("30618:{KEY}:x");
        assert_eq!(
            text.parse::<RepoId>(),
            invalid("not the coordinate of a repository")
        );
    }
}
