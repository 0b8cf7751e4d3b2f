//! The outbox beside the engine, and the answers of relays to its requests.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::nostr::key::PublicKey;
use grasp_core::outbox::Fact;
use grasp_core::sync::IndexChange;
use grasp_sync::engine::{Accepted, Input, Outcome, VisitId};
use grasp_sync::outbox::{self as machine, FetchOutcome, Outbox, OutboxConfig, Output, TaskId};

use super::{InTransit, Sim};

/// Time after which the driver gives up a request for relay lists.
const FETCH_TIMEOUT: Duration = Duration::from_secs(25);

impl Sim {
    /// Runs an outbox with these settings beside the engine.
    pub(crate) fn run_outbox(&mut self, config: OutboxConfig) {
        self.outbox = Some(Outbox::new(config));
    }

    /// Returns what the outbox learns from an input of the engine.
    pub(super) fn outbox_input(&self, input: &Input) -> Option<machine::Input> {
        self.outbox.as_ref()?;
        match input {
            Input::FeedCaughtUp => Some(machine::Input::CaughtUp),
            Input::Accepted(Accepted {
                event: Some(id), ..
            }) => {
                let event = self.local.stored.get(id)?;
                if event.kind == Kind::RelayList {
                    return Some(machine::Input::Listed(Arc::new(event.clone())));
                }
                Fact::of(event).map(machine::Input::Learnt)
            }
            _ => None,
        }
    }

    pub(super) fn tell_outbox(&mut self, input: machine::Input) {
        let Some(outbox) = &mut self.outbox else {
            return;
        };
        for output in outbox.handle(self.now.mono, input) {
            match output {
                Output::Fetch {
                    id,
                    source,
                    authors,
                    ..
                } => self.fetch_lists(id, source, &authors),
                Output::Visit { id, relay, filters } => {
                    let id = VisitId(id.0);
                    self.handle(Input::Visit { relay, id, filters });
                }
                Output::EndVisit { id } => self.handle(Input::EndVisit { id: VisitId(id.0) }),
                Output::Follow { author, relays } => self.handle(Input::Accepted(Accepted {
                    event: None,
                    is_uncounted: false,
                    change: Some(IndexChange::UserRelays { author, relays }),
                })),
            }
        }
    }

    /// Asks a relay for relay lists, as the driver does: over a connection for nothing else.
    fn fetch_lists(&mut self, id: TaskId, source: RelayUrl, authors: &[PublicKey]) {
        let asked = (self.now.mono, source.clone(), authors.len());
        self.asked_for_lists.push(asked);
        let peer = self.peers.get(&source);
        let peer = peer.filter(|peer| peer.script.is_up(self.now.mono));
        let mut wait = Duration::from_millis(self.chance.within(1, 300));
        let mut events = None;
        if let Some(peer) = peer {
            let authors: BTreeSet<&PublicKey> = authors.iter().collect();
            let silent = peer.script.silent_one_in;
            if silent.is_some_and(|n| self.chance.one_in(n)) {
                wait = FETCH_TIMEOUT;
            } else {
                let has = peer.events.values();
                let has = has.filter(|event| {
                    event.kind == Kind::RelayList && authors.contains(&event.pubkey)
                });
                events = Some(has.cloned().collect());
            }
        }
        self.send(wait, InTransit::Lists { id, events });
    }

    /// Offers relay lists to the local relay, and tells the outbox what came of it.
    pub(super) fn receive_lists(&mut self, id: TaskId, events: Option<Vec<Event>>) {
        let Some(events) = events else {
            let outcome = FetchOutcome::Failed;
            return self.tell_outbox(machine::Input::Fetched { id, outcome });
        };
        let found: BTreeSet<PublicKey> = events.iter().map(|event| event.pubkey).collect();
        let mut accepted = BTreeSet::new();
        let authors: Vec<PublicKey> = events.iter().map(|event| event.pubkey).collect();
        let (judged, feed) = self.local.ingest(events);
        for (author, judged) in authors.into_iter().zip(judged) {
            if matches!(judged.outcome, Outcome::Stored | Outcome::Known) {
                accepted.insert(author);
            }
        }
        for one in feed {
            self.handle(Input::Accepted(one));
        }
        let outcome = FetchOutcome::Complete { found, accepted };
        self.tell_outbox(machine::Input::Fetched { id, outcome });
    }
}
