//! Authors and their events.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::service::npub;
use grasp_core::{Identifier, Oid, RefName, RepoId, Verified};
use nostr::event::{Event, EventBuilder, EventId, FinalizeEvent, Kind, Tag};
use nostr::key::{Keys, PublicKey};
use nostr::types::Timestamp;

/// The time at which all tests begin.
pub(crate) const START: u64 = 1_800_000_000;

/// The address of the service under test.
pub(crate) const US: &str = "us.example";

/// An author with a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Author(u8);

pub(crate) const ALICE: Author = Author(1);
pub(crate) const BOB: Author = Author(2);
pub(crate) const CAROL: Author = Author(3);
pub(crate) const DAVE: Author = Author(4);

impl Author {
    /// Returns the author with this number.
    pub(crate) const fn numbered(number: u8) -> Self {
        Self(number)
    }

    fn keys(self) -> Keys {
        Keys::parse(&format!("{:064x}", u32::from(self.0) + 1_000)).unwrap()
    }

    pub(crate) fn key(self) -> PublicKey {
        self.keys().public_key()
    }

    pub(crate) fn repo(self, identifier: &str) -> RepoId {
        RepoId::new(self.key(), name(identifier))
    }

    /// Signs an event `at` seconds before or after the start.
    pub(crate) fn signs(self, kind: u16, at: i64, tags: Vec<Vec<String>>) -> Arc<Event> {
        let at = Timestamp::from_secs(START.saturating_add_signed(at));
        let tags = tags.into_iter().map(|tag| Tag::parse(tag).unwrap());
        let event = EventBuilder::new(Kind::from_u16(kind), "")
            .tags(tags)
            .custom_created_at(at)
            .finalize(&self.keys())
            .unwrap();
        Arc::new(event)
    }
}

pub(crate) fn name(identifier: &str) -> Identifier {
    identifier.parse().unwrap()
}

/// Returns an object id of equal bytes.
pub(crate) fn oid(n: u8) -> Oid {
    Oid::Sha1([n; 20])
}

pub(crate) fn branch(name: &str) -> RefName {
    format!("refs/heads/{name}").parse().unwrap()
}

thread_local! {
    /// Verified events; checking a signature takes longer than everything else here.
    static CHECKED: RefCell<BTreeMap<EventId, Verified<Arc<Event>>>> = RefCell::default();
}

/// Returns a verified event.
pub(crate) fn verified(event: &Arc<Event>) -> Verified<Arc<Event>> {
    CHECKED.with_borrow_mut(|checked| {
        let check = || Verified::check((**event).clone()).unwrap().share();
        checked.entry(event.id).or_insert_with(check).clone()
    })
}

fn tag(name: &str, values: impl IntoIterator<Item = String>) -> Vec<String> {
    [name.to_owned()].into_iter().chain(values).collect()
}

/// Returns an announcement that lists this service.
pub(crate) fn announcement(
    by: Author,
    identifier: &str,
    at: i64,
    maintainers: &[Author],
) -> Arc<Event> {
    let ours = format!("https://{US}/{}/{identifier}.git", npub(&by.key()));
    announcement_at(
        by,
        identifier,
        at,
        maintainers,
        &ours,
        &format!("wss://{US}"),
    )
}

/// Returns an announcement that lists this service and names a lead and further maintainers by their roles.
pub(crate) fn led(
    by: Author,
    identifier: &str,
    at: i64,
    lead: Author,
    maintainers: &[Author],
) -> Arc<Event> {
    let ours = format!("https://{US}/{}/{identifier}.git", npub(&by.key()));
    let mut tags = vec![
        tag("d", [identifier.to_owned()]),
        tag("clone", [ours]),
        tag("relays", [format!("wss://{US}")]),
        tag("M", [lead.key().to_hex()]),
    ];
    for maintainer in maintainers {
        tags.push(tag("m", [maintainer.key().to_hex()]));
    }
    by.signs(30617, at, tags)
}

/// Returns an announcement that lists another service.
pub(crate) fn elsewhere(
    by: Author,
    identifier: &str,
    at: i64,
    maintainers: &[Author],
) -> Arc<Event> {
    let theirs = format!("https://them.example/{}/{identifier}.git", npub(&by.key()));
    announcement_at(
        by,
        identifier,
        at,
        maintainers,
        &theirs,
        "wss://them.example",
    )
}

fn announcement_at(
    by: Author,
    identifier: &str,
    at: i64,
    maintainers: &[Author],
    clone: &str,
    relay: &str,
) -> Arc<Event> {
    let mirror = format!("https://mirror.example/{}/{identifier}", npub(&by.key()));
    let tags = vec![
        tag("d", [identifier.to_owned()]),
        tag("clone", [clone.to_owned(), mirror]),
        tag("relays", [relay.to_owned()]),
        tag(
            "maintainers",
            maintainers
                .iter()
                .map(|maintainer| maintainer.key().to_hex()),
        ),
    ];
    by.signs(30617, at, tags)
}

/// A state with these branches.
pub(crate) fn state(by: Author, identifier: &str, at: i64, refs: &[(&str, u8)]) -> Arc<Event> {
    let refs = refs
        .iter()
        .map(|(branch, n)| tag(&format!("refs/heads/{branch}"), [oid(*n).to_string()]));
    by.signs(
        30618,
        at,
        [tag("d", [identifier.to_owned()])]
            .into_iter()
            .chain(refs)
            .collect(),
    )
}

/// A pull request for a tip, to these repositories.
pub(crate) fn pull_request(by: Author, at: i64, to: &[RepoId], tip: u8) -> Arc<Event> {
    let to = to.iter().map(|repo| tag("a", [repo.to_string()]));
    by.signs(
        1618,
        at,
        to.chain([tag("c", [oid(tip).to_string()])]).collect(),
    )
}

/// A request to delete events by their ids.
pub(crate) fn deletion(by: Author, at: i64, targets: &[&Event]) -> Arc<Event> {
    by.signs(
        5,
        at,
        targets
            .iter()
            .map(|event| tag("e", [event.id.to_hex()]))
            .collect(),
    )
}

/// A request to delete everything at a coordinate.
pub(crate) fn deletion_at(by: Author, at: i64, kind: u16, identifier: &str) -> Arc<Event> {
    by.signs(
        5,
        at,
        vec![tag("a", [format!("{kind}:{}:{identifier}", by.key())])],
    )
}
