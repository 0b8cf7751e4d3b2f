//! When served events end by their own expiration (NIP-40): then their refs must go too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::Identifier;
use nostr::event::Event;
use nostr::types::Timestamp;

use super::input::Survey;

/// The next end of a served event under each identifier that has one.
#[derive(Debug, Default)]
pub(super) struct Endings {
    by_identifier: BTreeMap<Identifier, Timestamp>,
    by_time: BTreeSet<(Timestamp, Identifier)>,
}

impl Endings {
    /// Notes what a survey has shown, in place of what an earlier one did.
    pub(super) fn surveyed(&mut self, identifier: &Identifier, survey: &Survey, now: Timestamp) {
        if let Some(before) = self.by_identifier.remove(identifier) {
            self.by_time.remove(&(before, identifier.clone()));
        }
        let served = survey.announcements.iter().chain(&survey.states).chain(&survey.proposals);
        self.served(identifier, served, now);
    }

    /// Notes events that are served from now on. What a store shows although it is over is not waited for.
    pub(super) fn served<'a>(
        &mut self,
        identifier: &Identifier,
        events: impl IntoIterator<Item = &'a Arc<Event>>,
        now: Timestamp,
    ) {
        let ends = events.into_iter().filter_map(|event| event.tags.expiration());
        let Some(end) = ends.filter(|end| *end > now).min() else { return };
        let before = self.by_identifier.get(identifier).copied();
        if before.is_none_or(|before| end < before) {
            before.map(|before| self.by_time.remove(&(before, identifier.clone())));
            self.by_identifier.insert(identifier.clone(), end);
            self.by_time.insert((end, identifier.clone()));
        }
    }

    /// The next end of all.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(end, _)| *end)
    }

    /// The identifiers under which something has ended; they are noted anew by the survey that follows.
    pub(super) fn take_over(&mut self, now: Timestamp) -> Vec<Identifier> {
        let mut over = Vec::new();
        while self.next().is_some_and(|end| end <= now) {
            if let Some((_, identifier)) = self.by_time.pop_first() {
                self.by_identifier.remove(&identifier);
                over.push(identifier);
            }
        }
        over
    }
}
