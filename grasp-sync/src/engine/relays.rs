//! The relays as a whole: taken up, dialled, given their turns, retired.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use grasp_core::limits::Admit;
use grasp_core::sync::{IndexChange, RelayState, SyncIndex, compute_actions};
use grasp_core::{Host, Now, RelayUrl};

use super::SyncEngine;
use super::config::Config;
use super::desk::Desk;
use super::facts::RelayFacts;
use super::ids::ConnId;
use super::io::{Fault, Output};
use super::record::RelayRecord;
use super::relay::{self, Link, Relay, Standing};
use super::report::{PeerReliability, Report};

/// The connections there are, by host, and how many there may be. What the operator wants is not counted. Relays that
/// only held announcements name get half of them: anybody can name relays, and have some that listen.
struct Open<'a> {
    most: usize,
    most_per_host: usize,
    index: &'a SyncIndex,
    exempt: BTreeSet<&'a RelayUrl>,
    count: usize,
    unserved: usize,
    by_host: BTreeMap<Host, usize>,
}

impl<'a> Open<'a> {
    fn new(config: &'a Config, index: &'a SyncIndex) -> Self {
        Self {
            most: config.connections,
            most_per_host: config.connections_per_host,
            index,
            exempt: config.bootstrap.iter().collect(),
            count: 0,
            unserved: 0,
            by_host: BTreeMap::new(),
        }
    }

    fn add(&mut self, relay: &RelayUrl) {
        if !self.exempt.contains(relay) {
            self.count += 1;
            self.unserved += usize::from(!self.index.is_wanted_in_full_from(relay));
            *self.by_host.entry(relay.host()).or_default() += 1;
        }
    }

    fn has_room(&self, relay: &RelayUrl) -> bool {
        let there = || self.by_host.get(&relay.host()).copied().unwrap_or_default();
        let has_room = || self.count < self.most && there() < self.most_per_host;
        let has_share =
            || self.unserved < self.most.div_ceil(2) || self.index.is_wanted_in_full_from(relay);
        self.exempt.contains(relay) || (has_room() && has_share())
    }
}

/// Relays that are followed at most; half of them for nothing but announcements that are held.
const MOST_RELAYS: usize = 10_000;

/// What an earlier process knew about a relay. One that the operator names is not left alone any longer for what was
/// wrong with it then: whoever restarts us may have mended it. Rests between attempts remain.
fn forgiving(record: RelayRecord, is_bootstrap: bool) -> RelayRecord {
    let quarantined_until = record.quarantined_until.filter(|_| !is_bootstrap);
    RelayRecord { quarantined_until, ..record }
}

impl Relay {
    fn may_be_dialled(&self, now: Now) -> bool {
        self.link.is_idle() && self.standing.health.admit(now.mono) == Admit::Go
    }
}

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
        let (wanted, was_idle) = (standing.wants.len(), link.is_idle());
        let mut desk = Desk { now, relay: url, standing, shared, out };
        let answer = act(link, &mut desk);
        *deadline = link.pump(&mut desk);
        self.shared.wanted = self.shared.wanted - wanted + standing.wants.len();
        if link.is_idle() != was_idle {
            self.dialer.look();
        }
        Some(answer)
    }

    /// Acts on what has changed about what is wanted.
    pub(super) fn apply(&mut self, now: Now, changes: Vec<IndexChange>) {
        let delta = self.shared.index.apply(changes);
        for (relay, removed) in delta.removed {
            self.turn(now, &relay, |_, desk| relay::forget(desk, &relay, &removed));
        }
        for relay in delta.retired {
            self.retire(now, &relay);
        }
        self.take_up_new(now, delta.discovered);
        let actions = compute_actions(&delta.added, &self.shared.pending, &self.shared.states);
        for action in actions {
            let relay = action.relay.clone();
            self.turn(now, &relay, |link, desk| link.add(desk, action));
        }
    }

    /// Relays have become targets. Whoever finds no room is taken up when there is some.
    fn take_up_new(&mut self, now: Now, mut new: BTreeSet<RelayUrl>) {
        if std::mem::take(&mut self.is_full) {
            let targets = self.shared.index.relays();
            new = targets.filter(|relay| !self.relays.contains_key(*relay)).cloned().collect();
        }
        for relay in new {
            // Anybody can name relays by the thousand; it takes more to have a repository here.
            let is_served = self.shared.index.is_wanted_in_full_from(&relay);
            let most = if is_served { MOST_RELAYS } else { MOST_RELAYS / 2 };
            match self.relays.len() < most {
                true => self.take_up(now, relay, false),
                false => self.is_full = true,
            }
        }
    }

    /// A relay has become a target.
    pub(super) fn take_up(&mut self, now: Now, relay: RelayUrl, is_bootstrap: bool) {
        let record = self.records.take(&relay).map(|record| forgiving(record, is_bootstrap));
        let shared = &mut self.shared;
        let standing = Standing::new(now, &shared.config, &mut shared.rng, record);
        shared.states.insert(relay.clone(), RelayState::new(is_bootstrap));
        let taken = Relay { standing, link: Link::Idle, deadline: None };
        self.relays.insert(relay.clone(), taken);
        self.dialer.look();
        self.out.push(Output::Report(Report::Discovered { relay: relay.clone() }));
        self.say_health(now, &relay);
        self.turn(now, &relay, |_, _| ());
    }

    /// Tells what an earlier process thought of a relay, if it thought ill of it, and what it has seen of it.
    fn say_health(&mut self, now: Now, relay: &RelayUrl) {
        let Some(known) = self.relays.get_mut(relay) else { return };
        let seen = known.standing.health.seen(now.mono);
        if seen != PeerReliability::default() {
            let relay = relay.clone();
            self.out.push(Output::Report(Report::Reliability { relay, seen }));
        }
        if let Some((health, failing_for)) = known.standing.health.news(now.mono) {
            let relay = relay.clone();
            self.out.push(Output::Report(Report::Health { relay, health, failing_for }));
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
            let is_untried = self.relays.get(&url).is_some_and(|relay| relay.link.is_idle());
            if !is_untried {
                self.records.keep(record);
                continue;
            }
            let is_bootstrap = self.shared.states.get(&url).is_some_and(|state| state.is_bootstrap);
            let record = Some(forgiving(record, is_bootstrap));
            let shared = &mut self.shared;
            let standing = Standing::new(now, &shared.config, &mut shared.rng, record);
            if let Some(relay) = self.relays.get_mut(&url) {
                relay.standing = standing;
            }
            self.say_health(now, &url);
            self.turn(now, &url, |_, _| ());
        }
    }

    /// The local relay has lost what such relays have given: it has to be fetched anew.
    pub(super) fn begin_anew(&mut self, now: Now, which: impl Fn(&Standing) -> bool) {
        self.records.forget_coverage();
        let relays = self.relays.iter().filter(|(_, relay)| which(&relay.standing));
        let relays: Vec<_> = relays.map(|(url, _)| url.clone()).collect();
        for url in relays {
            self.turn(now, &url, |link, desk| link.begin_anew(desk));
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

    /// Connects to whoever may be connected to: the well ones first, of these the operator's and then those that many
    /// owners list. Anybody can make up relays without end; they wait behind all that somebody needs.
    pub(super) fn dial(&mut self, now: Now) {
        // There may be thousands, and most of what happens makes none of them dialable.
        if !self.dialer.take_look() {
            return;
        }
        let waits = self.relays.values().any(|relay| relay.may_be_dialled(now));
        if !waits || !self.dialer.is_free(now.mono) {
            return self.dialer.set_waits(waits);
        }
        let mut open = Open::new(&self.shared.config, &self.shared.index);
        let busy = self.relays.iter().filter(|(_, relay)| !relay.link.is_idle());
        busy.for_each(|(url, _)| open.add(url));
        let mut waiting: Vec<_> = self
            .relays
            .iter()
            .filter(|(url, relay)| relay.may_be_dialled(now) && open.has_room(url))
            .map(|(url, relay)| {
                let health = relay.standing.health.health(now.mono);
                let need = (open.exempt.contains(url), open.index.owners_of(url));
                (health, Reverse(need), url.clone())
            })
            .collect();
        waiting.sort();
        let mut waiting = waiting.into_iter().map(|(_, _, url)| url);
        let mut dialled = Vec::new();
        while self.dialer.is_free(now.mono) {
            let Some(url) = waiting.find(|url| open.has_room(url)) else { break };
            open.add(&url);
            let conn = self.shared.ids.conn();
            self.dialer.started(now.mono, url.clone(), conn);
            dialled.push((url, conn));
        }
        self.dialer.set_waits(waiting.any(|url| open.has_room(&url)));
        for (url, conn) in dialled {
            self.turn(now, &url, |link, desk| link.dial(desk, conn));
        }
    }

    pub(super) fn tick(&mut self, now: Now) {
        self.dialer.look();
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
