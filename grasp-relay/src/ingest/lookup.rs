//! What the rulebook asks for, read from the store: a few questions for a whole round.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::TryStreamExt;
use grasp_core::admission::{Facts, KnownAnnouncement, Needs};
use grasp_core::deletion::coordinate;
use grasp_core::nip34::Announcement;
use grasp_core::push::Standing;
use grasp_core::{Version, kinds};
use nostr::event::Event;
use nostr::filter::{Filter, SingleLetterTag};
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::git_side::GitSide;
use super::round::Pending;
use crate::store::{EventStore, StoreError};

/// Everything the rulebook wants to know for each event of a round.
pub(super) async fn facts(
    store: &dyn EventStore,
    git: &dyn GitSide,
    round: &[Pending],
    now: Timestamp,
) -> Result<Vec<Facts>, StoreError> {
    let ruled = ruled(store, round, now).await?;
    let questions = round.iter().flat_map(|pending| questions(&pending.event)).collect();
    let answers = store.exists(questions, now).await?;
    let mut facts = Vec::with_capacity(round.len());
    for (pending, answers) in round.iter().zip(answers.chunks_exact(QUESTIONS)) {
        let git = git.facts(Arc::clone(&pending.event)).await?;
        let mut announcements = ruled.announcements_for(&pending.event);
        announcements.extend(git.announcements);
        facts.push(Facts {
            known: standing(answers[0], git.is_held),
            latest: ruled.latest(&pending.event),
            announcements,
            related: answers[1],
            author_known: answers[2],
            over_quota: git.over_quota,
        });
    }
    Ok(facts)
}

fn standing(is_stored: bool, is_held: bool) -> Option<Standing> {
    match (is_stored, is_held) {
        (true, _) => Some(Standing::Stored),
        (false, true) => Some(Standing::Held),
        (false, false) => None,
    }
}

const QUESTIONS: usize = 3;

/// Is this very event stored? Is it related to something stored? Is its author known?
fn questions(event: &Event) -> [Vec<Filter>; QUESTIONS] {
    let author = if kinds::ABOUT_THEIR_AUTHOR.contains(&event.kind) {
        vec![Filter::new().author(event.pubkey).kinds(kinds::TAKING_PART)]
    } else {
        Vec::new()
    };
    [vec![Filter::new().id(event.id)], relations(event), author]
}

/// Filters of which any match makes the event related.
fn relations(event: &Event) -> Vec<Filter> {
    let needs = Needs::of(event);
    let mut filters = Vec::new();
    if !needs.references.ids.is_empty() {
        filters.push(Filter::new().ids(needs.references.ids));
    }
    filters.extend(needs.references.coordinates.into_iter().map(at));
    if needs.named_by_others {
        let id = event.id.to_hex();
        let by_id = [
            SingleLetterTag::LOWERCASE_E,
            SingleLetterTag::UPPERCASE_E,
            SingleLetterTag::LOWERCASE_Q,
        ];
        filters.extend(by_id.map(|name| Filter::new().custom_tag(name, id.clone())));
        filters.extend(coordinate(event).into_iter().flat_map(named_by_coordinate));
    }
    filters
}

/// The event at a coordinate.
fn at(coordinate: Coordinate) -> Filter {
    let filter = Filter::new().kind(coordinate.kind).author(coordinate.public_key);
    if coordinate.kind.is_addressable() { filter.identifier(coordinate.identifier) } else { filter }
}

/// Events that name a coordinate. Plain replaceable ones are written with and without the last colon.
fn named_by_coordinate(coordinate: Coordinate) -> Vec<Filter> {
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

/// The stored announcements and states of the identifiers that a round is about.
#[derive(Default)]
struct Ruled {
    announcements: BTreeMap<String, Vec<Announcement>>,
    versions: BTreeMap<Coordinate, Version>,
}

impl Ruled {
    fn announcements_for(&self, event: &Event) -> Vec<KnownAnnouncement> {
        let Some(identifier) = Needs::of(event).identifier else { return Vec::new() };
        let known = self.announcements.get(identifier.as_str()).into_iter().flatten();
        known
            .map(|a| KnownAnnouncement { announcement: a.clone(), standing: Standing::Stored })
            .collect()
    }

    fn latest(&self, event: &Event) -> Option<Version> {
        self.versions.get(&coordinate(event)?).copied()
    }
}

async fn ruled(
    store: &dyn EventStore,
    round: &[Pending],
    now: Timestamp,
) -> Result<Ruled, StoreError> {
    let identifiers: Vec<_> = round
        .iter()
        .filter_map(|pending| Needs::of(&pending.event).identifier)
        .map(|identifier| identifier.to_string())
        .collect();
    let mut ruled = Ruled::default();
    if identifiers.is_empty() {
        return Ok(ruled);
    }
    let filter = Filter::new().kinds([kinds::ANNOUNCEMENT, kinds::STATE]).identifiers(identifiers);
    let mut found = store.query(vec![filter], now);
    while let Some(chunk) = found.try_next().await? {
        for stored in chunk {
            let event = stored.event()?;
            if let Some(coordinate) = coordinate(&event) {
                ruled.versions.insert(coordinate, Version::of(&event));
            }
            if let Ok(announcement) = Announcement::parse(&event) {
                let identifier = announcement.repo.identifier.to_string();
                ruled.announcements.entry(identifier).or_default().push(announcement);
            }
        }
    }
    Ok(ruled)
}
