//! The maintainers that an announcement names.

use std::collections::BTreeSet;

use nostr::event::{Event, Tag};
use nostr::key::PublicKey;

use super::tags;
use crate::repo::parse_pubkey;

/// The maintainers that an announcement names.
///
/// If there is a role tag (`M`, `m`, `o`), the `maintainers` tags are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MaintainerList {
    /// The values of the `maintainers` tags; the author is a maintainer without being named.
    Listed(BTreeSet<PublicKey>),
    /// The role tags.
    Roles(Vec<RoleRecord>),
}

/// One role tag.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct RoleRecord {
    pub role: Role,
    pub key: PublicKey,
    pub tenure: Tenure,
}

/// The role in a role tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// `M`: leads, and is the maintainer that the announcements of others point to.
    Lead,
    /// `m`: may sign states.
    Maintainer,
    /// `o`: moderates; may not sign states.
    Moderator,
}

/// The current state of a role, by its alternating start and end times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tenure {
    /// Started (or without times) and not ended.
    Active,
    /// Ended at a given time.
    Ended,
    /// Ended by the word `defer`.
    Deferred,
    /// Invalid times; the record is ignored.
    Void,
}

impl MaintainerList {
    /// Parses the maintainer_list of an announcement; ignores values that are not keys.
    pub(super) fn parse(event: &Event) -> Self {
        let roles = || event.tags.iter().filter(|tag| Role::of(tag).is_some());
        if roles().next().is_some() {
            return Self::Roles(roles().filter_map(RoleRecord::parse).collect());
        }
        Self::Listed(tags::all_values(event, "maintainers").filter_map(parse_pubkey).collect())
    }

    /// Returns the keys that may sign states according to this announcement; the author only if named.
    pub fn listed(&self) -> BTreeSet<PublicKey> {
        match self {
            Self::Listed(keys) => keys.clone(),
            Self::Roles(records) => {
                records.iter().filter(|r| r.may_sign_states()).map(|r| r.key).collect()
            }
        }
    }

    /// Returns whether this announcement names the key as one that may sign states.
    pub fn lists(&self, key: &PublicKey) -> bool {
        match self {
            Self::Listed(keys) => keys.contains(key),
            Self::Roles(records) => records.iter().any(|r| r.key == *key && r.may_sign_states()),
        }
    }

    /// Returns whether the author takes part according to its own announcement.
    ///
    /// An own record that ended, is deferred, is invalid or only moderates means that the author has left,
    /// independent of other announcements.
    pub fn author_is_active(&self, author: &PublicKey) -> bool {
        match self {
            Self::Listed(_) => true,
            Self::Roles(records) => {
                let mut own = records.iter().filter(|record| record.key == *author).peekable();
                own.peek().is_none() || own.any(RoleRecord::may_sign_states)
            }
        }
    }

    /// Returns the keys that are lead at present.
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
    /// Parses `start, end, start, …`: active if the last time is a start, or there is none.
    fn parse<'a>(boundaries: impl Iterator<Item = &'a str>) -> Self {
        let mut tenure = Self::Active;
        for (position, boundary) in boundaries.enumerate() {
            let is_end = position % 2 == 1;
            if tenure == Self::Deferred {
                return Self::Void; // `defer` was not the last value
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

    fn maintainer_list(tags: &[&[&str]]) -> MaintainerList {
        MaintainerList::parse(&Unsigned::kind(30617).tags(tags).by(key(1)))
    }

    #[test]
    fn several_maintainers_tags_add_up_and_bad_keys_are_skipped() {
        let (a, b) = (key(2).to_string(), key(3).to_string());
        let maintainer_list =
            maintainer_list(&[&["maintainers", &a, "nonsense"], &["maintainers", &b]]);
        assert_eq!(maintainer_list.listed(), BTreeSet::from([key(2), key(3)]));
    }

    #[test]
    fn a_role_tag_overrides_the_maintainers_tags() {
        let (a, b) = (key(2).to_string(), key(3).to_string());
        let with_role = maintainer_list(&[&["maintainers", &a], &["o", &b]]);
        assert_eq!(with_role.listed(), BTreeSet::new());
        let with_broken_role = maintainer_list(&[&["maintainers", &a], &["m", "nonsense"]]);
        assert_eq!(with_broken_role.listed(), BTreeSet::new());
    }

    #[test]
    fn a_role_is_active_unless_its_last_time_is_an_end() {
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
    fn an_author_with_an_ended_own_record_is_not_active() {
        let me = key(1).to_string();
        assert!(maintainer_list(&[&["m", &key(2).to_string()]]).author_is_active(&key(1)));
        assert!(maintainer_list(&[&["M", &me]]).author_is_active(&key(1)));
        assert!(maintainer_list(&[&["M", &me, "0", "5"], &["m", &me]]).author_is_active(&key(1)));
        for left in [
            &["M", me.as_str(), "0", "5"][..],
            &["m", &me, "0", "defer"],
            &["m", &me, "x"],
            &["o", &me],
        ] {
            assert!(!maintainer_list(&[left]).author_is_active(&key(1)), "{left:?}");
        }
    }

    #[test]
    fn moderators_may_not_sign_states() {
        assert!(!maintainer_list(&[&["o", &key(2).to_string()]]).lists(&key(2)));
    }
}
