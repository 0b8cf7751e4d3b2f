//! The rows that writes need, for a database that loads them before a transaction.

use std::sync::Arc;

use grasp_core::deletion::{self, DeletionRequest};
use grasp_purgatory::database::Commit;
use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
use nostr::nips::nip01::Coordinate;
use nostr::types::Timestamp;

use super::changes::number;
use super::keeps_versions;
use super::keys::{Digest, Keys, newest, seconds};

/// The keys of rows that tasks need.
#[derive(Default)]
pub(crate) struct Wanted {
    /// Events of which the existence matters.
    pub(crate) ids: Vec<[u8; 32]>,
    /// Events and kept versions that may be removed.
    pub(crate) targets: Vec<[u8; 32]>,
    pub(crate) authors: Vec<[u8; 32]>,
    pub(crate) coordinates: Vec<Digest>,
    /// Coordinates whose versions are kept.
    pub(crate) kept: Vec<Digest>,
    pub(crate) gates: Vec<Digest>,
    pub(crate) requests: Vec<([u8; 32], [u8; 32])>,
    pub(crate) vanishing: Vec<(Digest, [u8; 32], i64)>,
    /// The time up to which expired events are removed.
    pub(crate) expired: Option<i64>,
    /// The time of a sweep.
    pub(crate) swept: Option<Timestamp>,
    pub(crate) views: Vec<(i64, String, [u8; 32])>,
}

impl Wanted {
    /// Adds what saving or checking an event needs.
    pub(crate) fn event(&mut self, keys: &Keys, event: &Event) {
        self.ids.push(event.id.to_bytes());
        self.authors.push(event.pubkey.to_bytes());
        if deletion::is_deletable(event.kind) {
            self.gates.push(keys.own_event(&event.pubkey, &event.id));
        }
        if let Some(coordinate) = deletion::coordinate(event) {
            self.coordinate(keys, &coordinate);
            if keeps_versions(event.kind) {
                self.targets.push(event.id.to_bytes());
            }
        }
        if event.kind == Kind::EventDeletion {
            self.requests.push((event.pubkey.to_bytes(), event.id.to_bytes()));
        }
        self.request(keys, event);
    }

    /// Adds what carrying out a request needs; nothing for other kinds.
    pub(crate) fn request(&mut self, keys: &Keys, event: &Event) {
        if event.kind == Kind::RequestToVanish {
            let list = keys.author(&event.pubkey);
            self.vanishing.push((list, event.pubkey.to_bytes(), newest(event.created_at)));
        }
        if event.kind == Kind::EventDeletion {
            let request = DeletionRequest::parse(event).unwrap_or_default();
            self.targets.extend(request.ids.iter().map(|id| id.to_bytes()));
            request.coordinates.iter().for_each(|coordinate| self.coordinate(keys, coordinate));
        }
    }

    /// Adds the versions of a coordinate.
    pub(crate) fn coordinate(&mut self, keys: &Keys, coordinate: &Coordinate) {
        let key = keys.coordinate(coordinate);
        self.coordinates.push(key);
        self.gates.push(key);
        if keeps_versions(coordinate.kind) {
            self.kept.push(key);
        }
    }

    pub(crate) fn save(&mut self, keys: &Keys, events: &[Arc<Event>], now: Timestamp) {
        events.iter().for_each(|event| self.event(keys, event));
        self.expired = self.expired.max(Some(seconds(now.as_secs())));
    }

    pub(crate) fn remove(&mut self, ids: &[EventId]) {
        self.targets.extend(ids.iter().map(|id| id.to_bytes()));
    }

    pub(crate) fn commit(&mut self, keys: &Keys, commit: &Commit) {
        for family in &commit.families {
            let key = |owner: &PublicKey| {
                (number(family.endpoint), family.identifier.to_string(), owner.to_bytes())
            };
            self.views.extend(family.views.iter().map(|view| key(&view.owner)));
        }
        self.remove(&commit.withdraw);
        self.ids.extend(commit.require.iter().map(|id| id.to_bytes()));
        if !commit.save.is_empty() {
            self.save(keys, &commit.save, commit.now);
        }
    }

    pub(crate) fn sweep(&mut self, now: Timestamp) {
        self.expired = self.expired.max(Some(seconds(now.as_secs())));
        self.swept = self.swept.max(Some(now));
    }

    /// Adds what another write needs.
    #[cfg(feature = "postgres")]
    pub(crate) fn add(&mut self, other: Self) {
        self.ids.extend(other.ids);
        self.targets.extend(other.targets);
        self.authors.extend(other.authors);
        self.coordinates.extend(other.coordinates);
        self.kept.extend(other.kept);
        self.gates.extend(other.gates);
        self.requests.extend(other.requests);
        self.vanishing.extend(other.vanishing);
        self.expired = self.expired.max(other.expired);
        self.swept = self.swept.max(other.swept);
        self.views.extend(other.views);
    }
}
