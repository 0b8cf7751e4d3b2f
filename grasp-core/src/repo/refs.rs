//! Ids of git objects, and names of refs by git's rules.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use nostr::event::EventId;

use crate::text::{ParseError, hex_bytes, invalid, parse_event_id, serde_as_text, validated_text};

/// The id of a git object: 40 hex digits (SHA-1) or 64 (SHA-256).
///
/// Upper-case digits are accepted and written in lower case, as git does. `{:.8}` writes the first eight digits.
///
/// ```
/// use grasp_core::Oid;
///
/// let oid: Oid = "DEADBEEFdeadbeefdeadbeefdeadbeefdeadbeef".parse().unwrap();
/// assert_eq!(oid.to_string(), "deadbeefdeadbeefdeadbeefdeadbeefdeadbeef");
/// assert!("abc123".parse::<Oid>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Oid {
    /// An object of a SHA-1 repository.
    Sha1([u8; 20]),
    /// An object of a SHA-256 repository.
    Sha256([u8; 32]),
}

impl Oid {
    /// The id that git writes for "no object".
    pub const ZERO: Self = Self::Sha1([0; 20]);

    /// Returns whether this is the id for "no object".
    pub fn is_zero(&self) -> bool {
        self.as_bytes().iter().all(|byte| *byte == 0)
    }

    /// Returns the bytes of the hash.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Sha1(bytes) => bytes,
            Self::Sha256(bytes) => bytes,
        }
    }
}

impl FromStr for Oid {
    type Err = ParseError;
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let oid = hex_bytes(text)
            .map(Self::Sha1)
            .or_else(|| hex_bytes(text).map(Self::Sha256));
        oid.map_or_else(|| invalid("not an object id of 40 or 64 hex digits"), Ok)
    }
}

impl fmt::Display for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&faster_hex::hex_string(self.as_bytes()))
    }
}

impl fmt::Debug for Oid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Oid({self})")
    }
}

serde_as_text!(Oid);

/// A full ref name such as `refs/heads/main`, valid for git and as a path.
///
/// ```
/// use grasp_core::{Namespace, RefName};
///
/// let main: RefName = "refs/heads/main".parse().unwrap();
/// assert_eq!(main.namespace(), Namespace::Branch("main"));
/// assert!("refs/heads/../../config".parse::<RefName>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefName(Arc<str>);

/// The namespace of a ref.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace<'a> {
    /// `refs/heads/…`, controlled by signed states.
    Branch(&'a str),
    /// `refs/tags/…`, controlled by signed states.
    Tag(&'a str),
    /// `refs/nostr/<event id>`, controlled by the pull request with that id.
    Nostr(EventId),
    /// `refs/nostr/` followed by anything but an event id.
    NostrIllegal,
    /// Any other namespace; pushes to it are refused.
    Other,
}

impl RefName {
    /// Maximum length of the name.
    pub const MAX_BYTES: usize = 1024;
    /// Maximum length of a component: file systems allow 255 bytes, and git's lock file adds five.
    pub const MAX_COMPONENT_BYTES: usize = 250;

    /// Validates a name by the rules of `git check-ref-format`.
    pub fn new(name: &str) -> Result<Self, ParseError> {
        let Some(rest) = name.strip_prefix("refs/") else {
            return invalid("a ref name does not begin with refs/");
        };
        let is_long = |component: &str| component.len() > Self::MAX_COMPONENT_BYTES;
        let components = || rest.split('/');
        if name.len() > Self::MAX_BYTES || components().any(is_long) {
            invalid("a ref name is too long")
        } else if components().any(str::is_empty) {
            invalid("a ref name has an empty component")
        } else if name.contains("/.") || name.contains("..") || name.ends_with('.') {
            invalid("a ref name has a dot where git allows none")
        } else if components().any(|component| component.ends_with(".lock")) {
            invalid("a ref name has a component that ends in .lock")
        } else if name.contains("@{") {
            // Git reads it as a reflog lookup.
            invalid("a ref name contains @{")
        } else if name.chars().any(is_forbidden) {
            invalid("a ref name contains a character that git allows in no ref")
        } else {
            Ok(Self(name.into()))
        }
    }

    /// Returns the namespace that the ref is in.
    pub fn namespace(&self) -> Namespace<'_> {
        if let Some(branch) = self.0.strip_prefix("refs/heads/") {
            return Namespace::Branch(branch);
        }
        if let Some(tag) = self.0.strip_prefix("refs/tags/") {
            return Namespace::Tag(tag);
        }
        let Some(id) = self.0.strip_prefix("refs/nostr/") else {
            return Namespace::Other;
        };
        parse_event_id(id).map_or(Namespace::NostrIllegal, Namespace::Nostr)
    }

    /// Returns whether the ref is controlled by signed states.
    pub fn is_branch_or_tag(&self) -> bool {
        matches!(self.namespace(), Namespace::Branch(_) | Namespace::Tag(_))
    }

    /// Returns whether one of the names is a directory of the other, so that both cannot exist.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let below = |long: &str, short: &str| {
            long.strip_prefix(short)
                .is_some_and(|rest| rest.starts_with('/'))
        };
        below(&self.0, &other.0) || below(&other.0, &self.0)
    }

    /// Returns the ref for the tip of a pull request.
    pub fn nostr(event: EventId) -> Self {
        Self(format!("refs/nostr/{event}").into())
    }

    /// Returns the id of the pull request whose tip this ref is.
    pub fn event(&self) -> Option<EventId> {
        match self.namespace() {
            Namespace::Nostr(event) => Some(event),
            _ => None,
        }
    }
}

fn is_forbidden(c: char) -> bool {
    c.is_ascii_control() || matches!(c, ' ' | '~' | '^' | ':' | '?' | '*' | '[' | '\\')
}

validated_text!(RefName);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_ids_of_both_hashes_only() {
        assert!(matches!("0".repeat(40).parse(), Ok(Oid::Sha1(_))));
        assert!(matches!("f".repeat(64).parse(), Ok(Oid::Sha256(_))));
        for text in [
            "",
            "abc123",
            &"0".repeat(41),
            &"g".repeat(40),
            &"é".repeat(20),
        ] {
            assert!(text.parse::<Oid>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_first_digits_are_written_by_precision() {
        let oid: Oid = "0123456789abcdef0123456789abcdef01234567".parse().unwrap();
        assert_eq!(format!("{oid:.8}"), "01234567");
    }

    #[test]
    fn zero_of_either_length_is_no_object() {
        assert!(Oid::ZERO.is_zero());
        assert!("0".repeat(64).parse::<Oid>().unwrap().is_zero());
        assert!(!"1".repeat(40).parse::<Oid>().unwrap().is_zero());
    }

    #[test]
    fn accepts_names_that_git_accepts() {
        for name in [
            "refs/heads/main",
            "refs/heads/feature/a-b_c",
            "refs/tags/v1.0",
            "refs/heads/@",
            "refs/heads/ü",
        ] {
            assert!(RefName::new(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn refuses_names_that_git_refuses() {
        let cases = [
            ("main", "does not begin with refs/"),
            ("HEAD", "does not begin with refs/"),
            ("refs/", "has an empty component"),
            ("refs//main", "has an empty component"),
            ("refs/heads/", "has an empty component"),
            ("refs/heads/.a", "has a dot where git allows none"),
            ("refs/heads/a.", "has a dot where git allows none"),
            ("refs/heads/a..b", "has a dot where git allows none"),
            ("refs/heads/a.lock", "has a component that ends in .lock"),
            ("refs/heads/a.lock/b", "has a component that ends in .lock"),
            (
                "refs/heads/a b",
                "contains a character that git allows in no ref",
            ),
            (
                "refs/heads/a\tb",
                "contains a character that git allows in no ref",
            ),
            (
                "refs/heads/a\u{7f}",
                "contains a character that git allows in no ref",
            ),
            (
                "refs/tags/v1^{}",
                "contains a character that git allows in no ref",
            ),
            ("refs/heads/a@{1}", "contains @{"),
        ];
        for (name, why) in cases {
            assert_eq!(
                RefName::new(name),
                invalid(format!("a ref name {why}")),
                "{name}"
            );
        }
    }

    #[test]
    fn a_component_leaves_room_for_the_lock_file() {
        let longest = format!("refs/heads/{}", "x".repeat(RefName::MAX_COMPONENT_BYTES));
        assert!(RefName::new(&longest).is_ok());
        assert_eq!(
            RefName::new(&format!("{longest}x")),
            invalid("a ref name is too long")
        );
    }

    #[test]
    fn a_pull_request_ref_needs_a_lower_case_event_id() {
        let id = "ab".repeat(32);
        let event = EventId::from_hex(&id).unwrap();
        assert_eq!(RefName::nostr(event).namespace(), Namespace::Nostr(event));
        for bad in ["123", &id.to_uppercase(), &format!("{id}/x")] {
            let name = RefName::new(&format!("refs/nostr/{bad}")).unwrap();
            assert_eq!(name.namespace(), Namespace::NostrIllegal, "{bad}");
        }
    }

    #[test]
    fn a_file_and_a_directory_of_one_name_conflict() {
        let a: RefName = "refs/heads/a".parse().unwrap();
        let a_b: RefName = "refs/heads/a/b".parse().unwrap();
        let ab: RefName = "refs/heads/ab".parse().unwrap();
        assert!(a.conflicts_with(&a_b) && a_b.conflicts_with(&a));
        assert!(!a.conflicts_with(&ab) && !a.conflicts_with(&a));
    }
}
