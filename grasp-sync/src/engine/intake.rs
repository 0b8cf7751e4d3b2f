//! Inputs of the local relay: accepted events, inventories and judgements.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use grasp_core::admission::{Retry, SyncPath};
use grasp_core::nostr::event::{Event, EventId};
use grasp_core::sync::IndexChange;
use grasp_core::{Now, RelayUrl};

use super::SyncEngine;
use super::io::{
    Accepted, ConnId, InventoryFailed, InventoryId, Judged, Outcome, Output, Report, Row, Source,
    SubId,
};
use super::judge::Arrival;
use super::missing::{self, Attribution, Question};
use super::rejected::{Dependency, Released};
use super::relay::{InventoryRequest, Link, Relay};
use super::retry::WantResult;

impl SyncEngine {
    pub(super) fn accepted(&mut self, now: Now, accepted: Accepted) {
        if accepted.is_uncounted {
            self.count_by_origin(accepted.event);
        }
        let mut arrived: Vec<Dependency> = Vec::new();
        if let Some(event) = accepted.event {
            self.shared.rejected.accepted(event);
            arrived.push(Dependency::Event(event));
            self.events_arrived(now, &[event]);
        }
        if let Some(change) = accepted.change {
            if let IndexChange::Announced { repo, .. } = &change {
                arrived.push(Dependency::Repo(repo.clone()));
                arrived.push(Dependency::Name(repo.identifier.clone()));
            }
            self.discovery.offer(now.mono, change);
        }
        self.release(now, &arrived);
    }

    /// Handles the inventory of the local relay.
    pub(super) fn inventory(
        &mut self,
        now: Now,
        request: InventoryId,
        items: Result<Vec<Row>, InventoryFailed>,
    ) {
        match self.shared.inventories.remove(&request) {
            Some(InventoryRequest::Job(relay, job)) => {
                _ = self.with_relay(now, &relay, |link, ctx| {
                    if let Link::Up(session) = link {
                        session.inventory(ctx, job, items);
                    }
                })
            }
            Some(InventoryRequest::Missing(question)) => {
                let found = items
                    .unwrap_or_default()
                    .into_iter()
                    .map(|row| row.id)
                    .collect();
                self.found_missing(now, *question, found);
            }
            None => {}
        }
    }

    /// Handles the answer to which repositories the events belong to that a relay lacks.
    fn found_missing(&mut self, now: Now, question: Question, found: BTreeSet<EventId>) {
        let relay = question.relay.clone();
        let is_uncounted = question.is_uncounted;
        let (repo, found) = match question.answered(found) {
            Attribution::Of(repo, found) => (repo, found),
            Attribution::Ask(more) => return missing::ask(&mut self.shared, &mut self.out, more),
        };
        self.with_relay(now, &relay, |_, ctx| {
            let health = &mut ctx.history.health;
            let (count, new) = health.lacks(&repo, found);
            if is_uncounted {
                health.compared(new, new);
            }
            if new > 0 {
                ctx.schedule_write();
                ctx.report(|relay| Report::Lacking { relay, repo, count });
            }
        });
    }

    /// Handles the judgement of events that a relay delivered.
    pub(super) fn ingested(
        &mut self,
        now: Now,
        relay: &RelayUrl,
        conn: ConnId,
        sub: SubId,
        judged: Vec<Judged>,
    ) {
        // Jobs that waited for these events must learn that they are here before the rows count as judged.
        let arrivals = self.with_relay(now, relay, |link, ctx| {
            link.session(conn)?.arrivals(ctx, sub, &judged)
        });
        let arrivals = arrivals.flatten().unwrap_or_default();
        if arrivals.is_empty() {
            // Its connection has ended; what it brought is stored all the same.
            let unknown = Arrival {
                path: SyncPath::CatchUp,
                is_gap: false,
                filter: None,
            };
            self.report_stored(now, relay, &vec![unknown; judged.len()], &judged);
        } else {
            self.report_stored(now, relay, &arrivals, &judged);
        }
        self.remember(now, relay, &judged, &arrivals);
        self.with_relay(now, relay, |link, ctx| {
            if let Some(session) = link.session(conn) {
                session.judged(ctx, sub, &judged, &arrivals);
            }
            let forged = judged
                .iter()
                .filter(|one| matches!(one.outcome, Outcome::Forged));
            link.forged(ctx, conn, forged.count());
        });
    }

    /// Handles the judgement of events that were offered again.
    pub(super) fn reoffered(&mut self, now: Now, judged: Vec<Judged>) {
        let stored: Vec<EventId> = stored(&judged);
        for event in &stored {
            self.count_by_origin(Some(*event));
        }
        let is_here = |one: &&Judged| {
            matches!(
                one.outcome,
                Outcome::Stored | Outcome::Held | Outcome::Known
            )
        };
        let here: Vec<EventId> = judged
            .iter()
            .filter(is_here)
            .map(|one| one.row.id)
            .collect();
        here.iter()
            .for_each(|event| self.shared.rejected.accepted(*event));
        self.events_arrived(now, &here);
        let arrived: Vec<_> = stored.into_iter().map(Dependency::Event).collect();
        self.release(now, &arrived);
    }

    /// Counts stored events, and notes the origin of those that may be stored later.
    fn report_stored(
        &mut self,
        now: Now,
        relay: &RelayUrl,
        arrivals: &[Arrival],
        judged: &[Judged],
    ) {
        let mut counts: BTreeMap<Arrival, usize> = BTreeMap::new();
        let origins = &mut self.shared.origins;
        for (one, arrival) in judged.iter().zip(arrivals) {
            let event = one.row.id;
            match &one.outcome {
                Outcome::Stored => {
                    *counts
                        .entry(Arrival {
                            filter: None,
                            ..*arrival
                        })
                        .or_default() += 1;
                    origins.remove(&event);
                }
                // The first relay counts.
                Outcome::Held | Outcome::Refused { event: Some(_), .. } => {
                    let first = origins.remove(&event).unwrap_or((relay.clone(), *arrival));
                    origins.put(now.mono, event, first);
                }
                Outcome::Known | Outcome::Forged | Outcome::Refused { .. } => {}
            }
        }
        for (arrival, count) in counts {
            self.report_new(relay, arrival, count);
        }
    }

    /// Counts an event that was held, refused at first, or sent by a client: for the relay that brought it first, or else
    /// for a client.
    fn count_by_origin(&mut self, event: Option<EventId>) {
        let origin = event.and_then(|event| self.shared.origins.remove(&event));
        match origin {
            Some((relay, arrival)) => self.report_new(&relay, arrival, 1),
            None => {
                let from = Source::Direct;
                self.out
                    .push(Output::Report(Report::Stored { from, count: 1 }));
            }
        }
    }

    /// Reports newly stored events of another relay.
    fn report_new(&mut self, relay: &RelayUrl, arrival: Arrival, count: usize) {
        if let Some(known) = self.relays.get_mut(relay) {
            known.history.health.seen.received += count as u64;
        }
        let Arrival { path, is_gap, .. } = arrival;
        let from = Source::Relay {
            relay: relay.clone(),
            path,
        };
        self.out
            .push(Output::Report(Report::Stored { from, count }));
        if is_gap {
            let relay = relay.clone();
            self.out
                .push(Output::Report(Report::Gap { relay, path, count }));
        }
    }

    /// Remembers refused events, and releases those that waited for what is here.
    fn remember(&mut self, now: Now, relay: &RelayUrl, judged: &[Judged], arrivals: &[Arrival]) {
        let filters = arrivals
            .iter()
            .map(|one| one.filter)
            .chain(std::iter::repeat(None));
        let mut again: Vec<Arc<Event>> = Vec::new();
        for (one, filter) in judged.iter().zip(filters) {
            match &one.outcome {
                Outcome::Forged
                | Outcome::Refused {
                    retry: Retry::Soon, ..
                } => {}
                Outcome::Refused { event, .. } => {
                    let rejected = &mut self.shared.rejected;
                    let event = event.clone();
                    again.extend(rejected.refused(now.mono, relay, filter, one.row, event));
                }
                Outcome::Stored | Outcome::Held | Outcome::Known => {
                    self.shared.rejected.accepted(one.row.id);
                }
            }
        }
        if !again.is_empty() {
            self.out.push(Output::Reoffer { events: again });
        }
        // A forged copy says nothing about the event of that id, which another relay may bring.
        let is_done = |one: &&Judged| {
            !one.outcome.is_worth_retrying() && !matches!(one.outcome, Outcome::Forged)
        };
        let done = judged.iter().filter(is_done);
        let done: Vec<EventId> = done.map(|one| one.row.id).collect();
        self.events_arrived(now, &done);
        let arrived: Vec<_> = stored(judged).into_iter().map(Dependency::Event).collect();
        self.release(now, &arrived);
    }

    /// Ends the wait for these events at every relay.
    fn events_arrived(&mut self, now: Now, events: &[EventId]) {
        let wants = |one: &Relay| events.iter().any(|event| one.history.wants.has(event));
        let wanting = self.relays.iter().filter(|(_, one)| wants(one));
        for url in wanting.map(|(url, _)| url.clone()).collect::<Vec<_>>() {
            self.with_relay(now, &url, |link, ctx| {
                if let Link::Up(session) = link {
                    events
                        .iter()
                        .for_each(|event| session.event_arrived(ctx, *event));
                }
            });
        }
    }

    /// Offers or fetches again the events that waited for these dependencies.
    fn release(&mut self, now: Now, arrived: &[Dependency]) {
        let mut events: Vec<Arc<Event>> = Vec::new();
        for dependency in arrived {
            self.shared.rejected.note_arrival(now.mono, dependency);
            let Released { reoffer, refetch } = self.shared.rejected.release(dependency);
            events.extend(reoffer);
            for (relay, event) in refetch {
                self.with_relay(now, &relay, |link, ctx| match link {
                    Link::Up(_) => ctx.history.wants.want(now.mono, event, None),
                    Link::Idle | Link::Dialing { .. } => WantResult::GivenUp,
                });
            }
        }
        if !events.is_empty() {
            self.out.push(Output::Reoffer { events });
        }
    }
}

fn stored(judged: &[Judged]) -> Vec<EventId> {
    let stored = judged
        .iter()
        .filter(|one| matches!(one.outcome, Outcome::Stored));
    stored.map(|one| one.row.id).collect()
}
