//! The facts of admission, read from the store with a few queries for a whole round.

use std::collections::BTreeMap;
use std::sync::Arc;

use grasp_core::admission::{Facts, KnownAnnouncement, Needs, Presence};
use grasp_core::deletion::coordinate;
use grasp_core::nip34::References;
use grasp_core::{Identifier, Version, kinds};
use nostr::event::Event;
use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::{GitBackend, Pending};
use crate::store::{self, EventStore, Present, StoreError};

/// Returns the facts about each event of a round.
pub(super) async fn facts(
    store: &dyn EventStore,
    git: &dyn GitBackend,
    round: &[Pending],
    now: Timestamp,
) -> Result<Vec<Facts>, StoreError> {
    // Purgatory first: an event that is released meanwhile is in the store when that is read.
    let mut held = Vec::with_capacity(round.len());
    for pending in round {
        held.push(git.facts(Arc::clone(&pending.event)).await?);
    }
    let present = store.present(named(round), now).await?;
    let mut announced = announced(store, round, now).await?;
    let delisted = delisted(store, round).await?;
    let queries = round.iter().flat_map(|pending| queries(&pending.event, &present)).collect();
    let answers = store.exists(queries, now).await?;
    let mut facts = Vec::with_capacity(round.len());
    let answers = answers.chunks_exact(QUERIES_PER_EVENT);
    for ((pending, git), answers) in round.iter().zip(held).zip(answers) {
        let event = &pending.event;
        let needs = Needs::of(event);
        // No other event of the round has that identifier.
        let named = retain_present(needs.references, &present);
        let announced = needs.identifier.and_then(|name| announced.remove(&name));
        let Announced { known: mut announcements, bytes } = announced.unwrap_or_default();
        let is_stored = |held: &KnownAnnouncement| {
            let is_same = |known: &KnownAnnouncement| known.announcement == held.announcement;
            announcements.iter().any(is_same)
        };
        let held: Vec<_> = git.announcements.into_iter().filter(|it| !is_stored(it)).collect();
        announcements.extend(held);
        facts.push(Facts {
            known: presence(present.ids.contains(&event.id), git.is_held),
            latest: coordinate(event)
                .and_then(|at| present.versions.get(&at).max(delisted.get(&at)).copied()),
            announcements,
            announcement_bytes: bytes,
            related: named != References::default() || answers[0],
            named,
            author_known: answers[1],
            over_quota: git.over_quota,
        });
    }
    Ok(facts)
}

fn presence(is_stored: bool, is_held: bool) -> Option<Presence> {
    match (is_stored, is_held) {
        (true, _) => Some(Presence::Stored),
        (false, true) => Some(Presence::Held),
        (false, false) => None,
    }
}

/// Returns the versions by which repositories that a round announces were delisted before.
async fn delisted(
    store: &dyn EventStore,
    round: &[Pending],
) -> Result<BTreeMap<Coordinate, Version>, StoreError> {
    let events = round.iter().map(|pending| &pending.event);
    let announced = events.filter(|event| event.kind == kinds::ANNOUNCEMENT);
    let announced: Vec<_> = announced.filter_map(|event| coordinate(event)).collect();
    if announced.is_empty() { Ok(BTreeMap::new()) } else { store.delisted(announced).await }
}

/// Returns the events of a round, and all that they name.
fn named(round: &[Pending]) -> References {
    let mut named = References::default();
    for Pending { event, .. } in round {
        let References { ids, coordinates } = Needs::of(event).references;
        named.ids.extend(ids.into_iter().chain([event.id]));
        named.coordinates.extend(coordinates.into_iter().chain(coordinate(event)));
    }
    named
}

/// Retains the references to stored events.
fn retain_present(mut named: References, present: &Present) -> References {
    named.ids.retain(|id| present.ids.contains(id));
    named.coordinates.retain(|at| present.versions.contains_key(at));
    named
}

const QUERIES_PER_EVENT: usize = 2;

/// Returns two queries about an event: for stored events that name it, if it names no stored one itself; and for
/// participation of its author. A query without filters matches nothing.
fn queries(event: &Event, present: &Present) -> [Vec<Filter>; QUERIES_PER_EVENT] {
    let needs = Needs::of(event);
    let mut naming = Vec::new();
    let names_nothing = retain_present(needs.references, present) == References::default();
    if needs.named_by_others && names_nothing {
        naming = naming_by_id(event);
        naming.extend(coordinate(event).into_iter().flat_map(naming_by_coordinate));
    }
    let mut author = Vec::new();
    let is_asked = [&kinds::PROFILE_KINDS[..], &kinds::UNCONDITIONAL_KINDS].concat();
    if is_asked.contains(&event.kind) {
        author.push(Filter::new().author(event.pubkey).kinds(kinds::PARTICIPATION_KINDS));
    }
    [naming, author]
}

/// Returns filters for events that name an event by its id.
fn naming_by_id(event: &Event) -> Vec<Filter> {
    let id = event.id.to_hex();
    [SingleLetterTag::LOWERCASE_E, SingleLetterTag::UPPERCASE_E, SingleLetterTag::LOWERCASE_Q]
        .map(|name| Filter::new().custom_tag(name, id.clone()))
        .into()
}

/// Returns filters for events that name a coordinate. Replaceable ones are written with and without the last colon.
fn naming_by_coordinate(coordinate: Coordinate) -> Vec<Filter> {
    let full =
        format!("{}:{}:{}", coordinate.kind.as_u16(), coordinate.public_key, coordinate.identifier);
    let mut spellings = vec![full];
    if kinds::is_replaceable(coordinate.kind) {
        spellings.push(format!("{}:{}", coordinate.kind.as_u16(), coordinate.public_key));
    }
    [SingleLetterTag::LOWERCASE_A, SingleLetterTag::UPPERCASE_A, SingleLetterTag::LOWERCASE_Q]
        .into_iter()
        .map(|name| Filter::new().custom_tags(name, spellings.clone()))
        .collect()
}

/// The stored announcements of one identifier.
#[derive(Default)]
struct Announced {
    known: Vec<KnownAnnouncement>,
    bytes: usize,
}

/// Reads the stored announcements of the identifiers of a round.
async fn announced(
    store: &dyn EventStore,
    round: &[Pending],
    now: Timestamp,
) -> Result<BTreeMap<Identifier, Announced>, StoreError> {
    let names = round.iter().filter_map(|pending| Needs::of(&pending.event).identifier);
    let names: Vec<Identifier> = names.collect();
    let mut announced: BTreeMap<_, Announced> = BTreeMap::new();
    for (announcement, bytes) in store::announcements(store, &names, now).await? {
        let of_name = announced.entry(announcement.repo.identifier.clone()).or_default();
        of_name.known.push(KnownAnnouncement { announcement, presence: Presence::Stored });
        of_name.bytes += bytes;
    }
    Ok(announced)
}
