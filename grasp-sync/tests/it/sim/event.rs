//! Unsigned events: no signature is checked in the simulation.

use grasp_core::nostr::event::{Event, EventId, Kind, Signature, Tag};
use grasp_core::nostr::key::PublicKey;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{RelayUrl, RepoId, kinds};

use super::chance::Chance;

fn event(chance: &mut Chance, by: PublicKey, at: u64, kind: Kind, tags: Vec<Vec<String>>) -> Event {
    let id = EventId::from_byte_array(chance.bytes());
    let tags: Vec<Tag> = tags
        .into_iter()
        .map(|tag| Tag::parse(tag).unwrap())
        .collect();
    let sig = Signature::from_slice(&[0; 64]).unwrap();
    Event::new(
        id,
        by,
        Timestamp::from_secs(at),
        kind,
        tags,
        String::new(),
        sig,
    )
}

pub(crate) fn announcement(
    chance: &mut Chance,
    repo: &RepoId,
    at: u64,
    relays: &[RelayUrl],
) -> Event {
    let mut listed = vec!["relays".to_owned()];
    listed.extend(relays.iter().map(RelayUrl::to_string));
    let tags = vec![vec!["d".to_owned(), repo.identifier.to_string()], listed];
    event(chance, repo.owner, at, kinds::ANNOUNCEMENT, tags)
}

pub(crate) fn state(chance: &mut Chance, repo: &RepoId, at: u64) -> Event {
    let tags = vec![vec!["d".to_owned(), repo.identifier.to_string()]];
    event(chance, repo.owner, at, kinds::STATE, tags)
}

pub(crate) fn issue(chance: &mut Chance, at: u64, repos: &[RepoId]) -> Event {
    let by = PublicKey::from_byte_array(chance.bytes());
    issue_by(chance, by, at, repos)
}

pub(crate) fn issue_by(chance: &mut Chance, by: PublicKey, at: u64, repos: &[RepoId]) -> Event {
    let tags = repos
        .iter()
        .map(|repo| vec!["a".to_owned(), repo.to_string()])
        .collect();
    let kind = *chance.pick(&[kinds::ISSUE, kinds::PATCH]);
    event(chance, by, at, kind, tags)
}

/// Returns a relay list with these addresses and markers.
pub(crate) fn relay_list<'a>(
    chance: &mut Chance,
    by: PublicKey,
    relays: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Event {
    let tag = |(url, marker): (&str, &str)| {
        let values = ["r", url, marker].map(str::to_owned);
        values
            .into_iter()
            .filter(|value| !value.is_empty())
            .collect()
    };
    let tags = relays.into_iter().map(tag).collect();
    event(chance, by, super::START, Kind::RelayList, tags)
}

/// Returns a comment that names nothing but its parent.
pub(crate) fn comment(chance: &mut Chance, at: u64, about: EventId, tag: &str) -> Event {
    let by = PublicKey::from_byte_array(chance.bytes());
    comment_by(chance, by, at, about, tag)
}

pub(crate) fn comment_by(
    chance: &mut Chance,
    by: PublicKey,
    at: u64,
    about: EventId,
    tag: &str,
) -> Event {
    let tags = vec![vec![tag.to_owned(), about.to_hex()]];
    event(chance, by, at, Kind::Comment, tags)
}

/// Returns an event that names nothing but a coordinate, with its own.
pub(crate) fn member(chance: &mut Chance, at: u64, kind: u16, about: &str) -> (Event, String) {
    let by = PublicKey::from_byte_array(chance.bytes());
    let name = chance.within(0, 1_000_000).to_string();
    let coordinate = format!("{kind}:{by}:{name}");
    let tags = vec![
        vec!["d".to_owned(), name],
        vec!["a".to_owned(), about.to_owned()],
    ];
    (
        event(chance, by, at, Kind::from_u16(kind), tags),
        coordinate,
    )
}
