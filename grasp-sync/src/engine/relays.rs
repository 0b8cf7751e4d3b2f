//! The relays as a whole: taken up, dialled, given their turns, retired.

use grasp_core::limits::Admit;
use grasp_core::sync::{IndexChange, RelayState, compute_actions};
use grasp_core::{Now, RelayUrl};

use super::SyncEngine;
use super::desk::Desk;
use super::facts::RelayFacts;
use super::ids::ConnId;
use super::io::{Fault, Output};
use super::record::RelayRecord;
use super::relay::{self, Link, Relay, Standing};
use super::report::Report;

impl SyncEngine {
    /// Gives a relay its turn, and lets it send what it then may.
    pub(super) fn turn<T>(
        &mut self,
        now: Now,
        url: &RelayUrl,
        act: impl FnOnce(&mut Link, &mut Desk<'_>) -> T,
    ) -> Option<T> {
        let Relay { standing, link, deadline } = self.relays.get_mut(url)?;
        let (shared, out) = (&mut self.shared, &mut self.out);
        let mut desk = Desk { now, relay: url, standing, shared, out };
        let answer = act(link, &mut desk);
        *deadline = link.pump(&mut desk);
        Some(answer)
    }

    /// Acts on what has changed about what is wanted.
    pub(super) fn apply(&mut self, now: Now, changes: Vec<IndexChange>) {
        let delta = self.shared.index.apply(changes);
        for relay in delta.discovered {
            self.take_up(now, relay, false);
        }
        for (relay, removed) in delta.removed {
            self.turn(now, &relay, |_, desk| relay::forget(desk, &relay, &removed));
        }
        for relay in delta.retired {
            self.retire(now, &relay);
        }
        let actions = compute_actions(&delta.added, &self.shared.pending, &self.shared.states);
        for action in actions {
            let relay = action.relay.clone();
            self.turn(now, &relay, |link, desk| link.add(desk, action));
        }
    }

    /// A relay has become a target.
    pub(super) fn take_up(&mut self, now: Now, relay: RelayUrl, is_bootstrap: bool) {
        let record = self.records.take(&relay);
        let shared = &mut self.shared;
        let standing = Standing::new(now, &shared.config, &mut shared.rng, record);
        shared.states.insert(relay.clone(), RelayState::new(is_bootstrap));
        let taken = Relay { standing, link: Link::Idle, deadline: None };
        self.relays.insert(relay.clone(), taken);
        self.out.push(Output::Report(Report::Discovered { relay: relay.clone() }));
        self.say_health(now, &relay);
        self.turn(now, &relay, |_, _| ());
    }

    /// Tells what an earlier process thought of a relay, if it thought ill of it.
    fn say_health(&mut self, now: Now, relay: &RelayUrl) {
        let Some(known) = self.relays.get_mut(relay) else { return };
        if let Some(health) = known.standing.health.news(now.mono) {
            let relay = relay.clone();
            self.out.push(Output::Report(Report::Health { relay, health }));
        }
    }

    /// Nobody needs a relay any more.
    fn retire(&mut self, now: Now, url: &RelayUrl) {
        self.turn(now, url, |link, desk| {
            if let Link::Dialing(conn) = link {
                let conn = *conn;
                link.retire(desk);
                return Some(conn);
            }
            link.retire(desk);
            None
        })
        .flatten()
        .into_iter()
        .for_each(|conn| self.dialer.ended(conn));
        let Some(relay) = self.relays.remove(url) else { return };
        let state = self.shared.states.remove(url);
        self.shared.pending.remove(url);
        let record = relay::record(now, url, &relay.link, &relay.standing, state.as_ref());
        self.out.push(Output::Persist(Box::new(record.clone())));
        self.records.keep(record);
        self.out.push(Output::Report(Report::Retired { relay: url.clone() }));
    }

    /// What an earlier process knew. Relays that are taken up already begin again from it, if nothing was tried.
    pub(super) fn restored(&mut self, now: Now, records: Vec<RelayRecord>) {
        for record in records {
            let url = record.relay.clone();
            self.records.keep(record);
            let is_untried = self.relays.get(&url).is_some_and(|relay| relay.link.is_idle());
            if is_untried {
                let record = self.records.take(&url);
                let shared = &mut self.shared;
                let standing = Standing::new(now, &shared.config, &mut shared.rng, record);
                if let Some(relay) = self.relays.get_mut(&url) {
                    relay.standing = standing;
                }
                self.say_health(now, &url);
                self.turn(now, &url, |_, _| ());
            }
        }
    }

    pub(super) fn connected(
        &mut self,
        now: Now,
        relay: &RelayUrl,
        conn: ConnId,
        facts: &RelayFacts,
    ) {
        self.dialer.ended(conn);
        let met = self.turn(now, relay, |link, desk| link.connected(desk, conn, facts));
        if met.is_none() {
            self.out.push(Output::Disconnect { relay: relay.clone(), conn });
        }
    }

    /// Connects to whoever may be connected to, the well ones first.
    pub(super) fn dial(&mut self, now: Now) {
        let mut waiting: Vec<_> = self
            .relays
            .iter()
            .filter(|(_, relay)| relay.link.is_idle())
            .filter(|(_, relay)| relay.standing.health.admit(now.mono) == Admit::Go)
            .map(|(url, relay)| (relay.standing.health.health(now.mono), url.clone()))
            .collect();
        waiting.sort();
        let mut waiting = waiting.into_iter();
        while self.dialer.is_free(now.mono) {
            let Some((_, url)) = waiting.next() else { break };
            let conn = self.shared.ids.conn();
            self.dialer.started(now.mono, url.clone(), conn);
            self.turn(now, &url, |link, desk| link.dial(desk, conn));
        }
        self.dialer.set_waits(waiting.next().is_some());
    }

    pub(super) fn tick(&mut self, now: Now) {
        for (relay, conn) in self.dialer.overdue(now.mono) {
            self.dialer.ended(conn);
            self.turn(now, &relay, |link, desk| link.failed(desk, conn, Fault::Unreachable));
            self.out.push(Output::Disconnect { relay, conn });
        }
        let is_due = |relay: &Relay| relay.deadline.is_some_and(|at| now.mono >= at);
        let due: Vec<_> = self
            .relays
            .iter()
            .filter(|(_, relay)| is_due(relay))
            .map(|(url, _)| url.clone())
            .collect();
        for url in due {
            self.turn(now, &url, |link, desk| link.tick(desk));
        }
        self.shared.rejected.expire(now.mono);
    }

    /// How many events each relay has offered that are not here yet, as far as that is known beforehand.
    pub fn wanted(&self) -> impl Iterator<Item = (&RelayUrl, usize)> {
        self.relays.iter().map(|(url, relay)| (url, relay.standing.wants.len()))
    }

    /// Everything to be kept on disk, for instance when the process ends.
    pub fn records(&self, now: Now) -> Vec<RelayRecord> {
        let known = self.relays.iter().map(|(url, relay)| {
            let state = self.shared.states.get(url);
            relay::record(now, url, &relay.link, &relay.standing, state)
        });
        known.chain(self.records.all().cloned()).collect()
    }
}
