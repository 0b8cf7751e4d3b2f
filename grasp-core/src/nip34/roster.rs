//! Whom one announcement names, and as what.

use std::collections::BTreeSet;

use nostr::event::{Event, Tag};
use nostr::key::PublicKey;

use super::tags;
use crate::repo::parse_pubkey;

/// Whom one announcement names as keepers of the repository.
///
/// If any role tag (`M`, `m`, `o`) is present the `maintainers` tags mean nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Roster {
    /// The values of the `maintainers` tags; the author is one of them without being named.
    Listed(BTreeSet<PublicKey>),
    /// Role tags, each with the times it held.
    Roles(Vec<RoleRecord>),
}

/// One role tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoleRecord {
    /// What the key is made.
    pub role: Role,
    /// Whom it is about.
    pub key: PublicKey,
    /// Whether it holds at present.
    pub tenure: Tenure,
}

/// What a role tag makes of somebody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `M`: leads, and is where the others' announcements point to.
    Lead,
    /// `m`: may sign states.
    Maintainer,
    /// `o`: moderates; never signs states.
    Moderator,
}

/// Whether a role holds at present, by its alternating start and end times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// Begun (or never bounded) and not ended.
    Active,
    /// Ended at a stated time.
    Ended,
    /// Ended by the word `defer`.
    Deferred,
    /// Times that cannot be read; the record counts for nothing.
    Void,
}

impl Roster {
    /// Reads the roster of an announcement; values that are no keys are skipped.
    pub(super) fn parse(event: &Event) -> Self {
        let roles = || event.tags.iter().filter(|tag| Role::of(tag).is_some());
        if roles().next().is_some() {
            return Self::Roles(roles().filter_map(RoleRecord::parse).collect());
        }
        Self::Listed(tags::all_values(event, "maintainers").filter_map(parse_pubkey).collect())
    }

    /// The keys that may sign states by this announcement's word, its author not among them unless named.
    pub fn listed(&self) -> BTreeSet<PublicKey> {
        match self {
            Self::Listed(keys) => keys.clone(),
            Self::Roles(records) => {
                records.iter().filter(|r| r.may_sign_states()).map(|r| r.key).collect()
            }
        }
    }

    /// Whether this announcement names the key as one that may sign states.
    pub fn lists(&self, key: &PublicKey) -> bool {
        match self {
            Self::Listed(keys) => keys.contains(key),
            Self::Roles(records) => records.iter().any(|r| r.key == *key && r.may_sign_states()),
        }
    }

    /// Whether the author still takes part by their own word.
    ///
    /// A self record that ended, is deferred, cannot be read or only moderates means that the author has left,
    /// whatever others say.
    pub fn author_is_active(&self, author: &PublicKey) -> bool {
        match self {
            Self::Listed(_) => true,
            Self::Roles(records) => {
                let mut own = records.iter().filter(|record| record.key == *author).peekable();
                own.peek().is_none() || own.any(RoleRecord::may_sign_states)
            }
        }
    }

    /// The keys named as lead at present.
    pub fn leads(&self) -> BTreeSet<PublicKey> {
        match self {
            Self::Listed(_) => BTreeSet::new(),
            Self::Roles(records) => records
                .iter()
                .filter(|r| r.role == Role::Lead && r.tenure == Tenure::Active)
                .map(|r| r.key)
                .collect(),
        }
    }
}

impl RoleRecord {
    fn parse(tag: &Tag) -> Option<Self> {
        let role = Role::of(tag)?;
        let mut values = tags::values(tag);
        let key = parse_pubkey(values.next()?)?;
        Some(Self { role, key, tenure: Tenure::parse(values) })
    }

    fn may_sign_states(&self) -> bool {
        self.role != Role::Moderator && self.tenure == Tenure::Active
    }
}

impl Role {
    fn of(tag: &Tag) -> Option<Self> {
        match tag.kind() {
            "M" => Some(Self::Lead),
            "m" => Some(Self::Maintainer),
            "o" => Some(Self::Moderator),
            _ => None,
        }
    }
}

impl Tenure {
    /// Reads `start, end, start, …`: open as long as the last boundary is a start, or there is none.
    fn parse<'a>(boundaries: impl Iterator<Item = &'a str>) -> Self {
        let mut tenure = Self::Active;
        for (position, boundary) in boundaries.enumerate() {
            let is_end = position % 2 == 1;
            if tenure == Self::Deferred {
                return Self::Void; // `defer` was not the last word
            }
            tenure = match boundary {
                "defer" if is_end => Self::Deferred,
                _ if !is_seconds(boundary) => return Self::Void,
                _ if is_end => Self::Ended,
                _ => Self::Active,
            };
        }
        tenure
    }
}

fn is_seconds(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u64>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    fn roster(tags: &[&[&str]]) -> Roster {
        Roster::parse(&Unsigned::kind(30617).tags(tags).by(key(1)))
    }

    #[test]
    fn several_maintainers_tags_add_up_and_bad_keys_are_skipped() {
        let (a, b) = (key(2).to_string(), key(3).to_string());
        let roster = roster(&[&["maintainers", &a, "nonsense"], &["maintainers", &b]]);
        assert_eq!(roster.listed(), BTreeSet::from([key(2), key(3)]));
    }

    #[test]
    fn any_role_tag_silences_the_maintainers_tag() {
        let (a, b) = (key(2).to_string(), key(3).to_string());
        let with_role = roster(&[&["maintainers", &a], &["o", &b]]);
        assert_eq!(with_role.listed(), BTreeSet::new());
        let with_broken_role = roster(&[&["maintainers", &a], &["m", "nonsense"]]);
        assert_eq!(with_broken_role.listed(), BTreeSet::new());
    }

    #[test]
    fn a_role_holds_until_its_last_boundary_is_an_end() {
        let cases: [(&[&str], Tenure); 9] = [
            (&[], Tenure::Active),
            (&["0"], Tenure::Active),
            (&["0", "5"], Tenure::Ended),
            (&["0", "5", "9"], Tenure::Active),
            (&["0", "defer"], Tenure::Deferred),
            (&["defer"], Tenure::Void),
            (&["0", "defer", "9"], Tenure::Void),
            (&["0", "-1"], Tenure::Void),
            (&[""], Tenure::Void),
        ];
        for (boundaries, tenure) in cases {
            assert_eq!(Tenure::parse(boundaries.iter().copied()), tenure, "{boundaries:?}");
        }
    }

    #[test]
    fn an_author_who_left_by_their_own_record_is_not_active() {
        let me = key(1).to_string();
        assert!(roster(&[&["m", &key(2).to_string()]]).author_is_active(&key(1)));
        assert!(roster(&[&["M", &me]]).author_is_active(&key(1)));
        assert!(roster(&[&["M", &me, "0", "5"], &["m", &me]]).author_is_active(&key(1)));
        for left in [
            &["M", me.as_str(), "0", "5"][..],
            &["m", &me, "0", "defer"],
            &["m", &me, "x"],
            &["o", &me],
        ] {
            assert!(!roster(&[left]).author_is_active(&key(1)), "{left:?}");
        }
    }

    #[test]
    fn moderators_never_sign_states() {
        assert!(!roster(&[&["o", &key(2).to_string()]]).lists(&key(2)));
    }
}
