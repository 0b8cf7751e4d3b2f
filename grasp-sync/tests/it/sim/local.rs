//! The local relay: accepts what belongs to repositories that list us, and refuses other events until they do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::Retry;
use grasp_core::nip34::{Announcement, References};
use grasp_core::nostr::event::{Event, EventId, Kind};
use grasp_core::nostr::filter::{Filter, SingleLetterTag};
use grasp_core::nostr::key::PublicKey;
use grasp_core::{Identifier, RelayUrl, RepoId, kinds};
use grasp_sync::engine::{Accepted, InventoryFailed, Judged, Outcome, Row};

use super::{accepted, row};

/// Our own address.
pub(crate) fn our_url() -> RelayUrl {
    "wss://us.example".parse().unwrap()
}

#[derive(Clone, Default)]
pub(crate) struct Local {
    pub(crate) stored: BTreeMap<EventId, Event>,
    /// True if it can accept nothing at the moment.
    pub(crate) is_busy: bool,
    /// The reason why nothing can be listed at the moment.
    pub(crate) not_listed: Option<InventoryFailed>,
    /// The newest version of each addressable event.
    newest: BTreeMap<(u16, RepoId), EventId>,
    /// The authors of what is stored, and their relay lists.
    authors: BTreeMap<PublicKey, Option<EventId>>,
}

impl Local {
    /// Publishes an event as a client.
    pub(crate) fn direct(&mut self, event: Event) -> Vec<Accepted> {
        let is_stored = matches!(self.judge(&event), Outcome::Stored);
        is_stored
            .then(|| accepted(&event, true))
            .into_iter()
            .collect()
    }

    /// Ingests events of the engine; returns the judgements, and the events of the feed.
    pub(crate) fn ingest(&mut self, events: Vec<Event>) -> (Vec<Judged>, Vec<Accepted>) {
        let mut feed = Vec::new();
        let mut judged = Vec::new();
        for event in events {
            let outcome = self.judge(&event);
            if matches!(outcome, Outcome::Stored) {
                feed.push(accepted(&event, false));
            }
            judged.push(Judged {
                row: row(&event),
                outcome,
            });
        }
        (judged, feed)
    }

    pub(crate) fn inventory(&self, filter: &Filter) -> Result<Vec<Row>, InventoryFailed> {
        if let Some(why) = self.not_listed {
            return Err(why);
        }
        let matching = self.stored.values().filter(|event| matches(filter, event));
        Ok(matching.map(row).collect())
    }

    fn judge(&mut self, event: &Event) -> Outcome {
        if self.stored.contains_key(&event.id) {
            return Outcome::Known;
        }
        if self.is_busy {
            return Outcome::Refused {
                retry: Retry::Soon,
                event: None,
            };
        }
        if !self.is_related(event) {
            let event = Some(Arc::new(event.clone()));
            return Outcome::Refused {
                retry: Retry::AfterDependency,
                event,
            };
        }
        if let Some(key) = address(event) {
            let newest = self.newest.get(&key).and_then(|id| self.stored.get(id));
            if newest.is_some_and(|other| beats(other, event)) {
                return Outcome::Known;
            }
            if let Some(old) = self.newest.insert(key, event.id) {
                self.stored.remove(&old);
            }
        }
        let list = self.authors.entry(event.pubkey).or_default();
        if event.kind == Kind::RelayList {
            let newest = list.and_then(|id| self.stored.get(&id));
            if newest.is_some_and(|other| beats(other, event)) {
                return Outcome::Known;
            }
            if let Some(old) = list.replace(event.id) {
                self.stored.remove(&old);
            }
        }
        self.stored.insert(event.id, event.clone());
        Outcome::Stored
    }

    fn is_related(&self, event: &Event) -> bool {
        if event.kind == Kind::RelayList {
            return self.authors.contains_key(&event.pubkey);
        }
        if let Ok(announcement) = Announcement::parse(event) {
            return announcement.relays.contains(&our_url());
        }
        if event.kind == kinds::STATE {
            return address(event).is_some_and(|(_, repo)| self.has_repo(&repo));
        }
        let references = References::of(event);
        let names_repo = references.coordinates.iter().any(|coordinate| {
            let identifier = Identifier::new(&coordinate.identifier);
            identifier.is_ok_and(|d| self.has_repo(&RepoId::new(coordinate.public_key, d)))
        });
        if names_repo || references.ids.iter().any(|id| self.stored.contains_key(id)) {
            return true;
        }
        references.coordinates.iter().any(|coordinate| {
            self.stored.values().any(|member| {
                let is_by = member.pubkey == coordinate.public_key;
                let name = member
                    .tags
                    .identifier()
                    .map(|d| d.to_string())
                    .unwrap_or_default();
                is_by && member.kind == coordinate.kind && name == coordinate.identifier
            })
        })
    }

    fn has_repo(&self, repo: &RepoId) -> bool {
        self.newest
            .contains_key(&(kinds::ANNOUNCEMENT.as_u16(), repo.clone()))
    }
}

fn address(event: &Event) -> Option<(u16, RepoId)> {
    let is_addressable = event.kind == kinds::ANNOUNCEMENT || event.kind == kinds::STATE;
    let identifier = Identifier::new(&event.tags.identifier()?).ok()?;
    is_addressable.then(|| (event.kind.as_u16(), RepoId::new(event.pubkey, identifier)))
}

fn beats(one: &Event, other: &Event) -> bool {
    (one.created_at, std::cmp::Reverse(one.id)) >= (other.created_at, std::cmp::Reverse(other.id))
}

/// Returns whether a filter matches by NIP-01, for the fields that are used here.
pub(crate) fn matches(filter: &Filter, event: &Event) -> bool {
    let is_named = |(name, values): (&SingleLetterTag, &BTreeSet<String>)| {
        event.tags.iter().any(|tag| match tag.as_slice() {
            [key, value, ..] => {
                key.len() == 1 && key.starts_with(name.as_char()) && values.contains(value)
            }
            _ => false,
        })
    };
    filter.since.is_none_or(|since| event.created_at >= since)
        && filter.until.is_none_or(|until| event.created_at <= until)
        && filter
            .kinds
            .as_ref()
            .is_none_or(|kinds| kinds.contains(&event.kind))
        && filter
            .ids
            .as_ref()
            .is_none_or(|ids| ids.contains(&event.id))
        && filter.generic_tags.iter().all(is_named)
}
