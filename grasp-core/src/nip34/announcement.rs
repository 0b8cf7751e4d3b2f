//! Kind 30617: a repository exists, and these are its places and keepers.

use std::collections::BTreeSet;

use nostr::event::Event;

use super::{MaintainerList, tags};
use crate::kinds;
use crate::repo::{CloneUrl, Identifier, RelayUrl, RepoId};
use crate::service::ServiceIdentity;
use crate::text::{ParseError, invalid};
use crate::version::Version;

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
    /// Git servers that we could talk to, in the author's order, each once.
    pub clone: Vec<CloneUrl>,
    /// `clone` values that we cannot use: other schemes, credentials, no URL at all.
    pub clone_unusable: Vec<String>,
    /// Relays, in the author's order, each once.
    pub relays: Vec<RelayUrl>,
    /// `relays` values that are no relay's address.
    pub relays_unusable: Vec<String>,
    /// The maintainers that the author names.
    pub maintainer_list: MaintainerList,
    /// A human name.
    pub name: Option<String>,
    /// A human description.
    pub description: Option<String>,
}

impl Announcement {
    /// Bytes of the largest announcement that is taken: some 900 maintainers. Honest ones have a few thousand.
    pub const MAX_EVENT_BYTES: usize = 64 * 1024;

    /// Reads an announcement; several `clone`, `relays` or `maintainers` tags mean what one long tag would.
    pub fn parse(event: &Event) -> Result<Self, ParseError> {
        if event.kind != kinds::ANNOUNCEMENT {
            return invalid("not a repository announcement");
        }
        let Some(identifier) = tags::first(event, "d") else {
            return invalid("the announcement has no d tag");
        };
        let (clone, clone_unusable) = usable(tags::all_values(event, "clone"));
        let (relays, relays_unusable) = usable(tags::all_values(event, "relays"));
        Ok(Self {
            repo: RepoId::new(event.pubkey, Identifier::new(identifier)?),
            version: Version::of(event),
            clone,
            clone_unusable,
            relays,
            relays_unusable,
            maintainer_list: MaintainerList::parse(event),
            name: tags::first(event, "name").map(str::to_owned),
            description: tags::first(event, "description").map(str::to_owned),
        })
    }

    /// Whether the author asks this very service to host the repository: as git server *and* as relay.
    pub fn lists(&self, service: &ServiceIdentity) -> bool {
        self.clone.iter().any(|url| service.serves(url, &self.repo))
            && self.relays.iter().any(|url| service.is_own_url(url.as_str()))
    }
}

/// Splits values into those that parse, each once and in order, and the rest.
fn usable<'a, T: std::str::FromStr + Ord + Clone>(
    values: impl Iterator<Item = &'a str>,
) -> (Vec<T>, Vec<String>) {
    let (mut good, mut bad, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for value in values {
        match value.parse::<T>() {
            Ok(parsed) if seen.insert(parsed.clone()) => good.push(parsed),
            Ok(_) => {}
            Err(_) => bad.push(value.to_owned()),
        }
    }
    (good, bad)
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
        let hosts: Vec<_> = announcement.clone.iter().map(|url| url.host().to_string()).collect();
        assert_eq!(hosts, ["a.example", "b.example"]);
        assert_eq!(announcement.clone_unusable, ["ssh://git@a.example/x"]);
        assert_eq!(announcement.relays.len(), 1);
        assert_eq!(announcement.relays_unusable, ["nonsense"]);
    }

    #[test]
    fn without_a_usable_identifier_there_is_no_announcement() {
        assert_eq!(parse(&[]), invalid("the announcement has no d tag"));
        assert_eq!(parse(&[&["d"]]), invalid("the announcement has no d tag"));
        assert_eq!(parse(&[&["d", ""]]), invalid("the identifier is empty"));
        assert_eq!(parse(&[&["d", "a/b"]]), invalid("the identifier contains a path separator"));
        let issue = Unsigned::kind(1621).tags(&[&["d", "x"]]).by(key(1));
        assert_eq!(Announcement::parse(&issue), invalid("not a repository announcement"));
    }

    #[test]
    fn a_service_is_listed_only_as_git_server_and_relay_both() {
        let us: ServiceIdentity = "us.example".parse().unwrap();
        let ours = format!("https://us.example/{}/x.git", npub(&key(1)));
        let theirs = format!("https://us.example/{}/x.git", npub(&key(2)));
        let listed = |clone: &str, relay: &str| {
            parse(&[&["d", "x"], &["clone", clone], &["relays", relay]]).unwrap().lists(&us)
        };
        assert!(listed(&ours, "wss://us.example"));
        assert!(!listed(&ours, "wss://them.example"));
        assert!(!listed("https://them.example/x", "wss://us.example"));
        assert!(!listed(&theirs, "wss://us.example"), "another key's path");
    }
}
