//! The maintainers that an announcement names.

use std::collections::BTreeSet;

use nostr::event::{Event, Tag};
use nostr::key::PublicKey;

use super::tags;
use crate::text::parse_pubkey;

/// The maintainers that an announcement names.
///
/// If there is a role tag (`M`, `m`, `o`), the `maintainers` tags are ignored. Roles that have ended, are deferred or
/// have invalid times are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintainerList {
    /// The keys that may sign states: values of the `maintainers` tags, leads and maintainers. The author only if named.
    pub listed: BTreeSet<PublicKey>,
    /// The keys that lead (`M`): the maintainers that the announcements of others point to.
    pub leads: BTreeSet<PublicKey>,
    /// The keys that moderate (`o`), and may not sign states by that.
    pub moderators: BTreeSet<PublicKey>,
    /// The announcement has role tags of its own author, and none by which the author may sign states at present.
    /// The author has left, independent of other announcements.
    pub author_left: bool,
}

impl MaintainerList {
    /// Parses the tags of an announcement; ignores values that are not keys.
    pub(super) fn parse(event: &Event) -> Self {
        let is_role = |tag: &&Tag| matches!(tag.kind(), "M" | "m" | "o");
        let roles: Vec<_> = event.tags.iter().filter(is_role).collect();
        if roles.is_empty() {
            let listed = tags::all_values(event, "maintainers").filter_map(parse_pubkey).collect();
            return Self { listed, ..Self::default() };
        }
        let (mut list, mut names_author) = (Self::default(), false);
        for role in roles {
            let mut values = tags::values(role);
            let Some(key) = values.next().and_then(parse_pubkey) else { continue };
            names_author |= key == event.pubkey;
            if !is_active(values) {
                continue;
            }
            let of_role = if role.kind() == "o" { &mut list.moderators } else { &mut list.listed };
            of_role.insert(key);
            if role.kind() == "M" {
                list.leads.insert(key);
            }
        }
        list.author_left = names_author && !list.listed.contains(&event.pubkey);
        list
    }

    /// Returns whether this announcement names the key as one that may sign states.
    pub fn lists(&self, key: &PublicKey) -> bool {
        self.listed.contains(key)
    }
}

/// Returns whether a role is active by its times `start, end, start, …`: the last one is a start, or there is none.
/// The word `defer` in place of the last end defers it.
fn is_active<'a>(times: impl Iterator<Item = &'a str>) -> bool {
    let mut is_active = true;
    for (position, time) in times.enumerate() {
        // Nothing may follow `defer`, nor a text that is not a time.
        if !is_seconds(time) {
            return false;
        }
        is_active = position % 2 == 0;
    }
    is_active
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
        assert_eq!(maintainer_list.listed, BTreeSet::from([key(2), key(3)]));
    }

    #[test]
    fn a_role_tag_overrides_the_maintainers_tags() {
        let (a, b) = (key(2).to_string(), key(3).to_string());
        let with_role = maintainer_list(&[&["maintainers", &a], &["o", &b]]);
        assert_eq!(with_role.listed, BTreeSet::new());
        let with_broken_role = maintainer_list(&[&["maintainers", &a], &["m", "nonsense"]]);
        assert_eq!(with_broken_role.listed, BTreeSet::new());
    }

    #[test]
    fn a_role_is_active_unless_its_last_time_is_an_end() {
        for times in [&[][..], &["0"], &["0", "5", "9"]] {
            assert!(is_active(times.iter().copied()), "{times:?}");
        }
        let ended = &["0", "5"][..];
        let deferred = &["0", "defer"][..];
        let invalid = [&["defer"][..], &["0", "defer", "9"], &["0", "-1"], &[""]];
        for times in [ended, deferred].into_iter().chain(invalid) {
            assert!(!is_active(times.iter().copied()), "{times:?}");
        }
    }

    #[test]
    fn an_author_with_an_ended_own_record_is_not_active() {
        let me = key(1).to_string();
        assert!(!maintainer_list(&[&["m", &key(2).to_string()]]).author_left);
        assert!(!maintainer_list(&[&["M", &me]]).author_left);
        assert!(!maintainer_list(&[&["M", &me, "0", "5"], &["m", &me]]).author_left);
        for left in [
            &["M", me.as_str(), "0", "5"][..],
            &["m", &me, "0", "defer"],
            &["m", &me, "x"],
            &["o", &me],
        ] {
            assert!(maintainer_list(&[left]).author_left, "{left:?}");
        }
    }

    #[test]
    fn moderators_may_not_sign_states() {
        let list = maintainer_list(&[&["o", &key(2).to_string()]]);
        assert!(!list.lists(&key(2)));
        assert_eq!(list.moderators, BTreeSet::from([key(2)]));
    }
}
