//! Coordinates of replaceable events, and those of repositories.

use std::fmt;
use std::str::FromStr;

use nostr::event::Kind;
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;

use super::{Identifier, IdentifierError};
use crate::kinds;
use crate::text::{is_lower_hex, serde_as_text};

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
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RepoId {
    /// Author of the announcement.
    pub owner: PublicKey,
    /// Name of the repository.
    pub identifier: Identifier,
}

/// The reason for which a text is not a coordinate, or not that of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinateError {
    /// Not `kind:pubkey` or `kind:pubkey:identifier`.
    #[error("not of the form kind:pubkey:identifier")]
    Shape,
    /// The first part is not a replaceable or addressable kind.
    #[error("not a replaceable or addressable kind")]
    Kind,
    /// The second part is not 64 lower-case hex digits.
    #[error("not a public key in lower-case hex")]
    Author,
    /// The coordinate of another kind of event.
    #[error("not a repository announcement")]
    NotARepository,
    /// The third part is not a valid identifier.
    #[error(transparent)]
    Identifier(#[from] IdentifierError),
}

/// Parses `kind:pubkey:identifier`, and `kind:pubkey` for replaceable kinds.
///
/// Only the canonical spelling is accepted, so that equal coordinates are equal keys: a kind without leading zero or
/// sign, and a key in lower-case hex, as relays index them.
pub fn parse_coordinate(text: &str) -> Result<Coordinate, CoordinateError> {
    let mut parts = text.splitn(3, ':');
    let (Some(kind), Some(author)) = (parts.next(), parts.next()) else {
        return Err(CoordinateError::Shape);
    };
    let identifier = parts.next();
    let kind = parse_kind(kind).ok_or(CoordinateError::Kind)?;
    let public_key = parse_pubkey(author).ok_or(CoordinateError::Author)?;
    match identifier {
        Some(identifier) if kind.is_addressable() => {
            Ok(Coordinate { kind, public_key, identifier: identifier.to_owned() })
        }
        None | Some("") if kinds::is_replaceable(kind) => Ok(Coordinate::new(kind, public_key)),
        _ if kind.is_addressable() || kinds::is_replaceable(kind) => Err(CoordinateError::Shape),
        _ => Err(CoordinateError::Kind),
    }
}

fn parse_kind(text: &str) -> Option<Kind> {
    let is_canonical = text == "0" || !text.starts_with(['0', '+']);
    if is_canonical { text.parse().ok().map(Kind::from_u16) } else { None }
}

/// Parses a public key in lower-case hex, the spelling that tags and filters use.
pub(crate) fn parse_pubkey(text: &str) -> Option<PublicKey> {
    if is_lower_hex(text) { PublicKey::from_hex(text).ok() } else { None }
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
    type Error = CoordinateError;
    fn try_from(coordinate: &Coordinate) -> Result<Self, CoordinateError> {
        if coordinate.kind != kinds::ANNOUNCEMENT {
            return Err(CoordinateError::NotARepository);
        }
        let identifier = Identifier::new(&coordinate.identifier)?;
        Ok(Self { owner: coordinate.public_key, identifier })
    }
}

impl FromStr for RepoId {
    type Err = CoordinateError;
    fn from_str(text: &str) -> Result<Self, CoordinateError> {
        Self::try_from(&parse_coordinate(text)?)
    }
}

impl fmt::Display for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "30617:{}:{}", self.owner, self.identifier)
    }
}

impl fmt::Debug for RepoId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RepoId({self})")
    }
}

serde_as_text!(RepoId);

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(parse_coordinate(&format!("10317:{KEY}:x")), Err(CoordinateError::Shape));
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
        assert_eq!(text.parse::<RepoId>(), Err(CoordinateError::NotARepository));
    }
}
