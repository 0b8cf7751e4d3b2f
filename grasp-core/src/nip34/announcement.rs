//! Repository announcements (kind 30617): the addresses and the maintainers of a repository.

use std::collections::BTreeSet;

use nostr::event::{Event, Tag};
use nostr::key::PublicKey;

use super::tags;
use crate::event::Version;
use crate::kinds;
use crate::repo::{CloneUrl, Identifier, RelayUrl, RepoId};
use crate::service::ServiceIdentity;
use crate::text::{ParseError, invalid, parse_pubkey};

/// A repository announcement.
///
/// ```
/// use grasp_core::nip34::Announcement;
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
/// use nostr::key::Keys;
///
/// let event = EventBuilder::new(Kind::GitRepoAnnouncement, "")
///     .tag(Tag::identifier("grasp"))
///     .tag(Tag::parse(["clone", "https://a.example/x.git", "https://b.example/y.git"]).unwrap())
///     .tag(Tag::parse(["relays", "wss://a.example"]).unwrap())
///     .finalize(&Keys::generate())
///     .unwrap();
/// let announcement = Announcement::parse(&event).unwrap();
/// assert_eq!(announcement.clone.len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// The repository.
    pub repo: RepoId,
    /// Which version of the announcement this is.
    pub version: Version,
    /// Usable clone URLs, in the author's order, each once. Unusable ones are left out.
    pub clone: Vec<CloneUrl>,
    /// Relays, in the author's order, each once.
    pub relays: Vec<RelayUrl>,
    /// The maintainers that the author names.
    pub maintainer_list: MaintainerList,
    /// A human name.
    pub name: Option<String>,
    /// A human description.
    pub description: Option<String>,
    /// The topics, up to [`Self::MAX_TOPICS`].
    pub topics: Vec<String>,
}

impl Announcement {
    /// Bytes of the largest announcement that is taken: some 900 maintainers. Honest ones have a few thousand.
    pub const MAX_EVENT_BYTES: usize = 64 * 1024;

    /// Topics that are read.
    pub const MAX_TOPICS: usize = 16;

    /// Reads an announcement; several `clone`, `relays` or `maintainers` tags mean what one long tag would.
    pub fn parse(event: &Event) -> Result<Self, ParseError> {
        if event.kind != kinds::ANNOUNCEMENT {
            return invalid("not a repository announcement");
        }
        let Some(identifier) = tags::first(event, "d") else {
            return invalid("the announcement has no d tag");
        };
        Ok(Self {
            repo: RepoId::new(event.pubkey, Identifier::new(identifier)?),
            version: Version::of(event),
            clone: usable(tags::all_values(event, "clone")),
            relays: usable(tags::all_values(event, "relays")),
            maintainer_list: MaintainerList::parse(event),
            name: tags::first(event, "name").map(str::to_owned),
            description: tags::first(event, "description").map(str::to_owned),
            topics: tags::first_values(event, "t")
                .take(Self::MAX_TOPICS)
                .map(str::to_owned)
                .collect(),
        })
    }

    /// Returns whether the author asks this service to host the repository: as git server *and* as relay.
    pub fn lists(&self, service: &ServiceIdentity) -> bool {
        self.clone.iter().any(|url| service.serves(url, &self.repo))
            && self
                .relays
                .iter()
                .any(|url| service.is_own_url(url.as_str()))
    }
}

/// Returns the values that parse, each once and in order.
fn usable<'a, T: std::str::FromStr + Ord + Clone>(values: impl Iterator<Item = &'a str>) -> Vec<T> {
    let mut seen = BTreeSet::new();
    let parsed = values.filter_map(|value| value.parse::<T>().ok());
    parsed.filter(|value| seen.insert(value.clone())).collect()
}

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
            let listed = tags::all_values(event, "maintainers")
                .filter_map(parse_pubkey)
                .collect();
            return Self {
                listed,
                ..Self::default()
            };
        }
        let mut list = Self::default();
        let mut names_author = false;
        for role in roles {
            let mut values = tags::values(role);
            let Some(key) = values.next().and_then(parse_pubkey) else {
                continue;
            };
            names_author |= key == event.pubkey;
            if !is_active(values) {
                continue;
            }
            let of_role = if role.kind() == "o" {
                &mut list.moderators
            } else {
                &mut list.listed
            };
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
    use crate::service::npub;
    use crate::testing::{Unsigned, key};

    fn parse(tags: &[&[&str]]) -> Result<Announcement, ParseError> {
        Announcement::parse(&Unsigned::kind(30617).tags(tags).by(key(1)))
    }

    #[test]
    fn values_of_several_tags_are_joined_each_once() {
        let announcement = parse(&[
            &["d", "x"],
            &["clone", "https://a.example/x", "ssh://git@a.example/x"],
            &["clone", "https://b.example/x", "https://A.example/x"],
            &["relays", "wss://a.example", "nonsense"],
            &["relays", "wss://a.example/"],
        ])
        .unwrap();
        let hosts: Vec<_> = announcement
            .clone
            .iter()
            .map(|url| url.host().to_string())
            .collect();
        assert_eq!(hosts, ["a.example", "b.example"]);
        assert_eq!(announcement.relays.len(), 1);
    }

    #[test]
    fn without_a_usable_identifier_there_is_no_announcement() {
        assert_eq!(parse(&[]), invalid("the announcement has no d tag"));
        assert_eq!(parse(&[&["d"]]), invalid("the announcement has no d tag"));
        assert_eq!(parse(&[&["d", ""]]), invalid("the identifier is empty"));
        assert_eq!(
            parse(&[&["d", "a/b"]]),
            invalid("the identifier contains a path separator")
        );
        let issue = Unsigned::kind(1621).tags(&[&["d", "x"]]).by(key(1));
        assert_eq!(
            Announcement::parse(&issue),
            invalid("not a repository announcement")
        );
    }

    #[test]
    fn a_service_is_listed_only_as_git_server_and_relay_both() {
        let us: ServiceIdentity = "us.example".parse().unwrap();
        let ours = format!("https://us.example/{}/x.git", npub(&key(1)));
        let theirs = format!("https://us.example/{}/x.git", npub(&key(2)));
        let listed = |clone: &str, relay: &str| {
            parse(&[&["d", "x"], &["clone", clone], &["relays", relay]])
                .unwrap()
                .lists(&us)
        };
        assert!(listed(&ours, "wss://us.example"));
        assert!(!listed(&ours, "wss://them.example"));
        assert!(!listed("https://them.example/x", "wss://us.example"));
        assert!(!listed(&theirs, "wss://us.example"), "another key's path");
    }

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
