//! Invariants of the engine and of its connections, checked in tests.

use std::collections::BTreeSet;

use grasp_core::RelayUrl;

use super::backlog::Backlog;
use super::history::RelayHistory;
use super::io::JobId;
use super::job::{FilterJob, JobPhase};
use super::relay::Link;
use super::session::ConnectionSession;
use super::subs::SubKind;
use super::{SyncEngine, connections};
use crate::limits::SlotClass;

impl SyncEngine {
    /// Panics if an invariant is broken. Visits the whole state.
    pub fn check_invariants(&self) {
        assert!(
            self.handshakes() <= connections::MAX_HANDSHAKES,
            "too many handshakes"
        );
        for (url, relay) in &self.relays {
            match &relay.link {
                Link::Idle | Link::Dialing { .. } => {
                    assert!(
                        relay.history.wants.len() == 0,
                        "{url}: wants without a connection"
                    );
                }
                Link::Up(session) => {
                    session.check(url, &relay.history);
                    let is_counted = self.connections.is_held(url);
                    assert!(
                        is_counted != self.connections.is_exempt(url),
                        "{url}: not accounted for"
                    );
                }
            }
            let is_left = relay.link.is_idle() && self.connections.is_held(url);
            assert!(!is_left, "{url}: counted without a connection");
            relay.history.wants.check();
        }
        self.connections.check();
        let places = self
            .relays
            .values()
            .filter(|relay| relay.place.is_some())
            .count();
        assert_eq!(
            self.followed.taken(),
            places as u64,
            "followed relays are miscounted"
        );
        let wanted: usize = self.wanted().map(|(_, wanted)| wanted).sum();
        assert_eq!(
            self.shared.wanted, wanted,
            "what relays have offered is miscounted"
        );
        for job in self.shared.held_items.keys() {
            let is_known = self.relays.values().any(|relay| match &relay.link {
                Link::Up(session) => session.backlog.jobs.contains_key(job),
                Link::Idle | Link::Dialing { .. } => false,
            });
            assert!(is_known, "an inventory is held for an unknown job");
        }
    }

    /// Returns the open subscriptions of a relay, and their limit.
    pub fn slots(&self, relay: &RelayUrl) -> Option<(usize, usize)> {
        let ledger = &self.relays.get(relay)?.history.ledger;
        Some((ledger.in_use(), ledger.total()))
    }
}

impl ConnectionSession {
    fn check(&self, url: &RelayUrl, history: &RelayHistory) {
        let ledger = &history.ledger;
        assert_eq!(
            ledger.in_use(),
            self.subs.iter().count(),
            "{url}: each slot has its subscription"
        );
        assert!(
            ledger.in_use() <= ledger.total(),
            "{url}: more subscriptions than allowed"
        );
        for class in [SlotClass::Live, SlotClass::Fetch, SlotClass::Reconcile] {
            let (used, limit) = (ledger.in_use_by(class), ledger.class_limit(class));
            // A lowered budget ends no fetch that is under way; live requests are polled at once.
            let may_exceed = class != SlotClass::Live;
            assert!(
                used <= limit || may_exceed,
                "{url}: {used} of {limit} {class:?}"
            );
        }
        self.check_subscriptions(url);
        self.backlog.check(url);
    }

    /// Checks that every subscription is known to its user, and has a timeout.
    fn check_subscriptions(&self, url: &RelayUrl) {
        for (sub, open) in self.subs.iter() {
            let is_open_for = |id: &JobId| {
                self.backlog
                    .get(*id)
                    .is_some_and(|job| job.sub() == Some(sub))
            };
            let is_known = match &open.kind {
                SubKind::Live(id) => self
                    .live
                    .requests
                    .get(id)
                    .is_some_and(|one| one.sub() == Some(sub)),
                SubKind::Pages(jobs) => jobs.iter().any(is_open_for),
                SubKind::Neg(id) => is_open_for(id),
                SubKind::Ids => true,
            };
            assert!(is_known, "{url}: {sub} is unused");
            let is_live = matches!(open.kind, SubKind::Live(_)) && open.is_answered;
            assert!(is_live || open.due.is_some(), "{url}: {sub} may never end");
        }
        let open: BTreeSet<_> = self.subs.iter().map(|(sub, _)| sub).collect();
        let jobs = self.backlog.jobs.values().filter_map(|job| job.sub());
        let live = self.live.requests.values().filter_map(|one| one.sub());
        assert!(
            jobs.chain(live).all(|sub| open.contains(&sub)),
            "{url}: a subscription is lost"
        );
    }
}

impl Backlog {
    /// Panics unless every job is where its phase says, and belongs to a batch.
    fn check(&self, url: &RelayUrl) {
        for id in self.batches.keys() {
            assert!(
                self.jobs_of(*id).next().is_some(),
                "{url}: a batch has lost its jobs"
            );
        }
        let mut waiting = 0;
        for (id, job) in &self.jobs {
            let batch = self.batches.get(&id.batch);
            let purpose = batch
                .map(|batch| batch.purpose)
                .expect("every job is in a batch");
            let is_waiting = match job.phase {
                JobPhase::Queued(method) => self
                    .queues
                    .get(&method)
                    .is_some_and(|queue| queue.contains(&(purpose, *id))),
                JobPhase::BackingOff { until, .. } => self.backing_off.contains(&(until, *id)),
                _ => continue,
            };
            assert!(is_waiting, "{url}: a job that is never woken");
            waiting += 1;
        }
        assert!(
            !self.jobs.values().any(FilterJob::is_complete),
            "{url}: a job that has not ended"
        );
        let queued: usize = self.queues.values().map(BTreeSet::len).sum();
        assert_eq!(
            waiting,
            queued + self.backing_off.len(),
            "{url}: a job waits twice"
        );
    }
}
