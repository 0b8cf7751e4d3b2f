//! The set of relays: followed, dialled, run and retired.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::mem::discriminant;
use std::net::IpAddr;

use grasp_core::limits::Admit;
use grasp_core::resources::Grant;
use grasp_core::sync::{IndexChange, MAX_PROOFS, ProofSet};
use grasp_core::{Mono, Now, RelayUrl};

use super::SyncEngine;
use super::connections::{self, Claim};
use super::facts::RelayFacts;
use super::history::RelayHistory;
use super::io::{ConnId, Output, Report};
use super::job::JobMethod;
use super::relay::{self, Link, Relay, RelayContext, RelayRecord};
use super::visits::Scope;

impl Relay {
    fn may_be_dialled(&self, now: Now) -> bool {
        let is_left = self.history.leave_at.is_some();
        self.link.is_idle() && !is_left && self.history.health.admit(now.mono) == Admit::Go
    }
}

impl SyncEngine {
    /// Runs one relay, and lets it send what it then may.
    pub(super) fn with_relay<T>(
        &mut self,
        now: Now,
        url: &RelayUrl,
        act: impl FnOnce(&mut Link, &mut RelayContext<'_>) -> T,
    ) -> Option<T> {
        let Relay {
            history,
            link,
            deadline,
            ..
        } = self.relays.get_mut(url)?;
        let shared = &mut self.shared;
        let out = &mut self.out;
        let wanted = history.wants.len();
        let was = discriminant(link);
        let mut ctx = RelayContext {
            now,
            relay: url,
            history,
            shared,
            out,
        };
        let answer = act(link, &mut ctx);
        *deadline = link.pump(&mut ctx);
        self.shared.wanted = self.shared.wanted - wanted + history.wants.len();
        self.connections.needs_check |= discriminant(link) != was;
        if link.is_idle() {
            self.connections.give_back(url);
        }
        Some(answer)
    }

    /// Applies changes of what is wanted, and fetches the history of what is added by this method.
    pub(super) fn apply(&mut self, now: Now, changes: Vec<IndexChange>, method: JobMethod) {
        let delta = self.shared.index.apply(changes);
        let mut touched = delta.discovered;
        touched.extend(delta.retired);
        touched.extend(delta.added.keys().chain(delta.removed.keys()).cloned());
        for (relay, removed) in delta.removed {
            self.with_relay(now, &relay, |_, ctx| relay::forget(ctx, &removed));
        }
        self.update_scopes(now, touched);
        for (relay, added) in &delta.added {
            self.with_relay(now, relay, |link, ctx| link.discovered(ctx, added, method));
        }
    }

    /// Stops following relays for what they are no longer followed for, and follows those that have become targets.
    /// One that is now followed for something else is followed anew, from its record.
    fn update_scopes(&mut self, now: Now, touched: BTreeSet<RelayUrl>) {
        let mut new = BTreeSet::new();
        for relay in touched {
            let was = self.relays.get(&relay).map(|known| known.history.scope);
            let is = self.shared.scope_of(&relay);
            if was == is {
                continue;
            }
            if was.is_some() {
                self.retire(now, &relay);
            }
            if is.is_some() {
                new.insert(relay);
            }
        }
        self.follow_new(now, new);
    }

    /// Follows relays that have become targets. A relay without room is followed when there is some, unless it is for
    /// a visit.
    pub(super) fn follow_new(&mut self, now: Now, mut new: BTreeSet<RelayUrl>) {
        if std::mem::take(&mut self.is_full) {
            let targets = self.shared.index.relays();
            let left_out = targets.filter(|relay| !self.relays.contains_key(*relay));
            new.extend(left_out.cloned());
        }
        for relay in new {
            // One event can name thousands of relays; a claimant's share limits them.
            let Some(scope) = self.shared.scope_of(&relay) else {
                continue;
            };
            let places = self.followed.of_mut(scope);
            let claimant = connections::claimant(places, &self.shared.index, &relay, None);
            match places.take(&claimant, 1) {
                Ok(place) => self.follow(now, relay, Some(place)),
                Err(_) => {
                    self.refuse_visits(&relay);
                    self.is_full |= self.shared.index.is_target(&relay);
                }
            }
        }
    }

    /// Follows a relay that has become a target; without a grant it is one of the operator's.
    pub(super) fn follow(&mut self, now: Now, relay: RelayUrl, place: Option<Grant>) {
        let is_bootstrap = place.is_none();
        let record = self.records.0.remove(&relay);
        let scope = self.shared.scope_of(&relay).unwrap_or(Scope::Visits);
        let config = &self.shared.config;
        let rng = &mut self.shared.rng;
        let history = RelayHistory::new(now, config, rng, is_bootstrap, scope, (&relay, record));
        let taken = Relay {
            history,
            link: Link::Idle,
            deadline: None,
            place,
        };
        self.relays.insert(relay.clone(), taken);
        self.connections.needs_check = true;
        self.out.push(Output::Report(Report::Discovered {
            relay: relay.clone(),
        }));
        self.with_relay(now, &relay, |link, ctx| link.followed(ctx));
    }

    /// Stops following a relay that is no longer a target.
    fn retire(&mut self, now: Now, url: &RelayUrl) {
        self.with_relay(now, url, |link, ctx| link.close(ctx));
        let Some(mut relay) = self.relays.remove(url) else {
            return;
        };
        if let Some(place) = relay.place.take() {
            self.followed.of_mut(relay.history.scope).give_back(place);
        }
        let record = relay.history.record(now, &relay.link);
        self.out.push(Output::Persist(Box::new(record.clone())));
        self.records.keep(record);
        self.out
            .push(Output::Report(Report::Retired { relay: url.clone() }));
    }

    /// Replaces the bootstrap relays. Relays that become bootstrap relays or cease to be are followed anew, from their
    /// records, because places and connections are accounted differently.
    pub(super) fn set_bootstrap(&mut self, now: Now, relays: Vec<RelayUrl>) {
        let changed = self.shared.index.set_bootstrap(relays.iter().cloned());
        self.shared.config.bootstrap = relays;
        for relay in &changed {
            self.retire(now, relay);
        }
        self.connections.set_exempt(&self.shared.config.bootstrap);
        let bootstrap: BTreeSet<&RelayUrl> = self.shared.config.bootstrap.iter().collect();
        let mut named = BTreeSet::new();
        let mut configured = Vec::new();
        for relay in changed {
            if bootstrap.contains(&relay) {
                configured.push(relay);
            } else if self.shared.scope_of(&relay).is_some() {
                named.insert(relay);
            }
        }
        for relay in configured {
            self.follow(now, relay, None);
        }
        self.follow_new(now, named);
    }

    /// Begins a full pass of a relay now, or dials it now if it is not connected.
    pub(super) fn sync_now(&mut self, now: Now, relay: &RelayUrl) {
        self.with_relay(now, relay, |link, ctx| link.sync_now(ctx));
        self.connections.needs_check = true;
    }

    /// Restores the records of an earlier process. Relays that are followed already start again from theirs, if
    /// nothing was tried.
    pub(super) fn restored(&mut self, now: Now, records: Vec<RelayRecord>) {
        for record in records {
            let url = record.relay.clone();
            let untried = self
                .relays
                .get_mut(&url)
                .filter(|relay| relay.link.is_idle());
            let Some(relay) = untried else {
                self.records.keep(record);
                continue;
            };
            let is_bootstrap = relay.history.state.is_bootstrap;
            let scope = relay.history.scope;
            let config = &self.shared.config;
            let rng = &mut self.shared.rng;
            let record = (&url, Some(record));
            relay.history = RelayHistory::new(now, config, rng, is_bootstrap, scope, record);
            self.with_relay(now, &url, |link, ctx| link.followed(ctx));
        }
    }

    /// Fetches everything again from matching relays, because the local relay lost what they gave.
    pub(super) fn begin_anew(&mut self, now: Now, which: impl Fn(&RelayHistory) -> bool) {
        for record in self.records.0.values_mut() {
            record.proofs = ProofSet::with_capacity(MAX_PROOFS);
        }
        let relays = self
            .relays
            .iter()
            .filter(|(_, relay)| which(&relay.history));
        let relays: Vec<_> = relays.map(|(url, _)| url.clone()).collect();
        for url in relays {
            self.with_relay(now, &url, |link, ctx| link.begin_anew(ctx));
        }
    }

    pub(super) fn connected(
        &mut self,
        now: Now,
        relay: &RelayUrl,
        conn: ConnId,
        address: Option<IpAddr>,
        facts: &RelayFacts,
    ) {
        let is_asked_for = self
            .relays
            .get(relay)
            .is_some_and(|known| known.link.is_dialing(conn));
        if is_asked_for && !self.find_room(now, relay, address) {
            self.with_relay(now, relay, |link, ctx| link.close(ctx));
            return;
        }
        let met = self.with_relay(now, relay, |link, ctx| link.connected(ctx, conn, facts));
        if met.is_none() {
            self.out.push(Output::Disconnect {
                relay: relay.clone(),
                conn,
            });
        }
    }

    /// Finds room for a connection, now that its address is known; returns `false` if there is none.
    fn find_room(&mut self, now: Now, relay: &RelayUrl, found_at: Option<IpAddr>) -> bool {
        let Some(known) = self.relays.get_mut(relay) else {
            return false;
        };
        let address = found_at.or(known.history.kept.address);
        known.history.kept.address = address;
        let scope = known.history.scope;
        let index = &self.shared.index;
        let claim = self.connections.claim(index, relay, scope, address);
        if self.connections.take(relay, claim).is_err() {
            let gives_way = self.connections.give_way(now.mono, index, &claim);
            let Some(gives_way) = gives_way else {
                return false;
            };
            self.with_relay(now, &gives_way, |link, ctx| link.give_way(ctx));
            if self.connections.take(relay, claim).is_err() {
                return false;
            }
        }
        self.connections.connected(now.mono, relay);
        true
    }

    /// Dials relays that may be dialled: visits last, but for every fourth handshake; healthy ones first, of these the
    /// operator's, then those whose owners and networks have fewest connections, then those that many owners list.
    /// Where there is no room, relays take turns.
    pub(super) fn dial(&mut self, now: Now) {
        // There may be thousands of relays, and most inputs make none of them dialable.
        if !std::mem::take(&mut self.connections.needs_check) {
            return;
        }
        let waits = self.relays.values().any(|relay| relay.may_be_dialled(now));
        let handshakes = self.handshakes();
        if !waits || !self.connections.may_dial(now.mono, handshakes) {
            self.connections.take_turn(now.mono, waits);
            self.connections.is_waiting = waits;
            return;
        }
        let (waiting, is_crowded) = self.waiting(now);
        let mut waiting = waiting.into_iter();
        let mut dialled = Vec::new();
        while self
            .connections
            .may_dial(now.mono, handshakes + dialled.len())
        {
            let next = waiting.find(|(url, its)| self.connections.take(url, *its).is_ok());
            let Some((url, its)) = next else { break };
            self.connections
                .dialled(now.mono, its.scope == Scope::Visits);
            dialled.push(url);
        }
        self.connections.is_waiting =
            waiting.any(|(url, its)| self.connections.has_room(&url, &its));
        let has_turn = self.connections.take_turn(now.mono, is_crowded);
        if has_turn
            && self
                .connections
                .may_dial(now.mono, handshakes + dialled.len())
        {
            self.connections.dialled(now.mono, false);
            dialled.extend(self.next_in_turn(now));
        }
        for url in dialled {
            self.with_relay(now, &url, |link, ctx| link.dial(ctx));
        }
    }

    /// Returns the number of handshakes under way.
    pub(super) fn handshakes(&self) -> usize {
        self.relays
            .values()
            .filter(|relay| matches!(relay.link, Link::Dialing { .. }))
            .count()
    }

    /// Returns the relays that may be dialled and for which there is room, in order; and whether there are others.
    fn waiting(&self, now: Now) -> (Vec<(RelayUrl, Claim)>, bool) {
        let index = &self.shared.index;
        let visits_first = self.connections.is_turn_of_visits();
        let mut is_crowded = false;
        let mut waiting = Vec::new();
        for (url, relay) in self
            .relays
            .iter()
            .filter(|(_, relay)| relay.may_be_dialled(now))
        {
            let is_exempt = self.connections.is_exempt(url);
            let scope = relay.history.scope;
            let address = relay.history.kept.address;
            let claim = (!self.connections.is_full(scope) || is_exempt)
                .then(|| self.connections.claim(index, url, scope, address))
                .filter(|claim| self.connections.has_room(url, claim));
            let is_visit = scope == Scope::Visits;
            let Some(claim) = claim else {
                is_crowded |= !is_visit;
                continue;
            };
            let health = relay.history.health.health(now.mono);
            let weight = self.connections.weight(&claim);
            let need = Reverse(index.owners_of(url));
            let rank = (
                is_visit != visits_first,
                health,
                !is_exempt,
                weight,
                need,
                relay.history.kept.waits_since,
            );
            waiting.push((rank, url, claim));
        }
        waiting.sort_by(|(a, one, _), (b, other, _)| (a, one).cmp(&(b, other)));
        let waiting = waiting.into_iter();
        let waiting = waiting.map(|(_, url, claim)| (url.clone(), claim));
        (waiting.collect(), is_crowded)
    }

    /// Returns the relay whose turn it is, although there is no room: another gives way to it if it answers.
    fn next_in_turn(&self, now: Now) -> Option<RelayUrl> {
        let without_room = self.relays.iter().filter_map(|(url, relay)| {
            let scope = relay.history.scope;
            let address = relay.history.kept.address;
            let index = &self.shared.index;
            let claim = self.connections.claim(index, url, scope, address);
            let is_target = scope != Scope::Visits;
            let may = is_target && relay.may_be_dialled(now) && self.connections.has_host_room(url);
            let is_next = may && !self.connections.has_room(url, &claim);
            let health = relay.history.health.health(now.mono);
            let weight = self.connections.weight(&claim);
            is_next.then_some(((health, weight, relay.history.kept.waits_since), url, claim))
        });
        let mut waiting: Vec<_> = without_room.collect();
        waiting.sort_by(|(a, one, _), (b, other, _)| (a, one).cmp(&(b, other)));
        let mut waiting = waiting.into_iter();
        let next = waiting.find(|(_, _, its)| self.connections.may_replace(now.mono, its));
        next.map(|(_, url, _)| url.clone())
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.connections.needs_check = true;
        let is_due = |relay: &Relay| relay.deadline.is_some_and(|at| now.mono >= at);
        let due: Vec<_> = self
            .relays
            .iter()
            .filter(|(_, relay)| is_due(relay))
            .map(|(url, _)| url.clone())
            .collect();
        for url in due {
            self.with_relay(now, &url, |link, ctx| link.tick(ctx));
            let leave_at = self.relays.get(&url).and_then(|one| one.history.leave_at);
            if leave_at.is_some_and(|at| now.mono >= at) {
                self.retire(now, &url);
            }
        }
        self.shared.rejected.expire(now.mono);
    }

    /// Returns the number of events that each relay has offered and that are not here yet, as far as known.
    pub fn wanted(&self) -> impl Iterator<Item = (&RelayUrl, usize)> {
        self.relays
            .iter()
            .map(|(url, relay)| (url, relay.history.wants.len()))
    }

    /// Returns when each relay may be dialled again; `None` for one that is connected, or may be dialled now.
    pub fn retries(&self) -> impl Iterator<Item = (&RelayUrl, Option<Mono>)> {
        self.relays.iter().map(|(url, relay)| {
            let is_idle = relay.link.is_idle();
            (
                url,
                is_idle.then(|| relay.history.health.retry_at()).flatten(),
            )
        })
    }

    /// Returns all records, for instance to be written when the process ends.
    pub fn records(&self, now: Now) -> Vec<RelayRecord> {
        let known = self
            .relays
            .values()
            .map(|relay| relay.history.record(now, &relay.link));
        known.chain(self.records.0.values().cloned()).collect()
    }
}
