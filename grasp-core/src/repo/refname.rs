//! Names of refs, by git's rules.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use nostr::event::EventId;

use crate::text::{is_lower_hex, serde_as_text};

/// A full ref name such as `refs/heads/main`, valid for git and as a path.
///
/// ```
/// use grasp_core::{Namespace, RefName};
///
/// let main: RefName = "refs/heads/main".parse().unwrap();
/// assert_eq!(main.namespace(), Namespace::Branch("main"));
/// assert!("refs/heads/../../config".parse::<RefName>().is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
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

/// The reason for which git refuses a ref name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefNameError {
    /// Not below `refs/`.
    #[error("does not begin with refs/")]
    NotARef,
    /// Longer than [`RefName::MAX_BYTES`], or one component longer than [`RefName::MAX_COMPONENT_BYTES`].
    #[error("is too long")]
    TooLong,
    /// An empty component: `//`, or a slash at the end.
    #[error("has an empty component")]
    EmptyComponent,
    /// A component that begins with a dot, or `..` anywhere, or a dot at the end.
    #[error("has a dot where git allows none")]
    Dot,
    /// A component that ends in `.lock`.
    #[error("has a component that ends in .lock")]
    Lock,
    /// A space, a control character or one of `~^:?*[\`.
    #[error("contains a character that git allows in no ref")]
    Character,
    /// `@{`, which git reads as a reflog lookup.
    #[error("contains @{{")]
    AtBrace,
}

impl RefName {
    /// Maximum length of the name.
    pub const MAX_BYTES: usize = 1024;
    /// Maximum length of a component: file systems allow 255 bytes, and git's lock file adds five.
    pub const MAX_COMPONENT_BYTES: usize = 250;

    /// Validates a name by the rules of `git check-ref-format`.
    pub fn new(name: &str) -> Result<Self, RefNameError> {
        let rest = name.strip_prefix("refs/").ok_or(RefNameError::NotARef)?;
        if name.len() > Self::MAX_BYTES {
            return Err(RefNameError::TooLong);
        }
        if name.contains("..") || name.ends_with('.') {
            return Err(RefNameError::Dot);
        }
        if name.contains("@{") {
            return Err(RefNameError::AtBrace);
        }
        if name.chars().any(is_forbidden) {
            return Err(RefNameError::Character);
        }
        rest.split('/').try_for_each(check_component)?;
        Ok(Self(name.into()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
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
        match EventId::from_hex(id) {
            Ok(event) if is_lower_hex(id) => Namespace::Nostr(event),
            _ => Namespace::NostrIllegal,
        }
    }

    /// Returns whether the ref is controlled by signed states.
    pub fn is_branch_or_tag(&self) -> bool {
        matches!(self.namespace(), Namespace::Branch(_) | Namespace::Tag(_))
    }

    /// Returns whether one of the names is a directory of the other, so that both cannot exist.
    pub fn conflicts_with(&self, other: &Self) -> bool {
        let below = |long: &str, short: &str| {
            long.strip_prefix(short).is_some_and(|rest| rest.starts_with('/'))
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

fn check_component(component: &str) -> Result<(), RefNameError> {
    if component.is_empty() {
        return Err(RefNameError::EmptyComponent);
    }
    if component.len() > RefName::MAX_COMPONENT_BYTES {
        return Err(RefNameError::TooLong);
    }
    if component.starts_with('.') {
        return Err(RefNameError::Dot);
    }
    if component.ends_with(".lock") {
        return Err(RefNameError::Lock);
    }
    Ok(())
}

impl FromStr for RefName {
    type Err = RefNameError;
    fn from_str(name: &str) -> Result<Self, RefNameError> {
        Self::new(name)
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

serde_as_text!(RefName);

#[cfg(test)]
mod tests {
    use super::*;

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
            ("main", RefNameError::NotARef),
            ("HEAD", RefNameError::NotARef),
            ("refs/", RefNameError::EmptyComponent),
            ("refs//main", RefNameError::EmptyComponent),
            ("refs/heads/", RefNameError::EmptyComponent),
            ("refs/heads/.a", RefNameError::Dot),
            ("refs/heads/a.", RefNameError::Dot),
            ("refs/heads/a..b", RefNameError::Dot),
            ("refs/heads/a.lock", RefNameError::Lock),
            ("refs/heads/a.lock/b", RefNameError::Lock),
            ("refs/heads/a b", RefNameError::Character),
            ("refs/heads/a\tb", RefNameError::Character),
            ("refs/heads/a\u{7f}", RefNameError::Character),
            ("refs/tags/v1^{}", RefNameError::Character),
            ("refs/heads/a@{1}", RefNameError::AtBrace),
        ];
        for (name, why) in cases {
            assert_eq!(RefName::new(name), Err(why), "{name}");
        }
    }

    #[test]
    fn a_component_leaves_room_for_the_lock_file() {
        let longest = format!("refs/heads/{}", "x".repeat(RefName::MAX_COMPONENT_BYTES));
        assert!(RefName::new(&longest).is_ok());
        assert_eq!(RefName::new(&format!("{longest}x")), Err(RefNameError::TooLong));
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
