//! The health of a relay: backoff, faults that make it unusable for a while, and reliability.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::limits::SUSPENDED_FOR;
use grasp_core::limits::{Admit, Backoff, BackoffPolicy, BackoffSnapshot, Health};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{Mono, Now, RepoId};

use super::io::{Failure, Fault, PeerReliability};
use super::relay::RelayRecord;

const MAX_REPOS: usize = 200;
/// Missing events of one repository that are remembered by id.
const MAX_MISSING: usize = 1_000;

/// Time for which a relay is not dialled after a fault that is no outage: a name that does not exist, bad TLS, no
/// websocket.
const UNUSABLE_FOR: Duration = Duration::from_secs(12 * 60 * 60);
/// Forged events on one connection after which it is ended. Honest relays that never checked what they store have a few.
pub(super) const MAX_FORGED: usize = 100;

/// Failures to read the document after which a relay is dialled without one.
const MAX_UNREAD: u32 = 2;

/// Decides when a relay may be dialled, and records how reliable it was.
#[derive(Debug)]
pub(super) struct RelayHealth {
    backoff: Backoff,
    /// The relay is not dialled until then, even if its backoff has ended.
    unusable_until: Mono,
    /// True if it is unusable by our own rule about addresses, which may have changed by the next start.
    is_by_rule: bool,
    /// The reliability up to when it last connected or disconnected.
    pub(super) seen: PeerReliability,
    /// Forged events of this connection.
    pub(super) forged_events: usize,
    /// True if a connection was ended for forged events, and none has been free of them for long enough since. A
    /// handshake is then no success: the streak of failures that ends in [`Health::Dead`] goes on.
    pub(super) is_forging: bool,
    /// Time that a connection must last without forged events to end the streak.
    settle: Duration,
    /// Events it lacks, as found by this process.
    missing: BTreeMap<RepoId, BTreeSet<EventId>>,
    is_up: bool,
    /// Failures to read its document since it was read last.
    unread: u32,
    /// The time at which it last connected or disconnected.
    since: Mono,
    reported: Health,
}

impl RelayHealth {
    /// Restores the health that an earlier process recorded. A relay that the operator names is usable at once.
    pub(super) fn new(now: Now, policy: BackoffPolicy, kept: &RelayRecord, is_named: bool) -> Self {
        let until = kept
            .unusable_until
            .filter(|_| !is_named)
            .map_or(0, |until| until.as_secs());
        let left = Duration::from_secs(until.saturating_sub(now.unix.as_secs()));
        let restored = |snapshot| Backoff::restore(policy, now, snapshot);
        Self {
            backoff: kept
                .backoff
                .as_ref()
                .map_or_else(|| Backoff::new(policy), restored),
            unusable_until: now.mono + left.min(SUSPENDED_FOR),
            is_by_rule: false,
            seen: kept.seen.clone(),
            forged_events: 0,
            is_forging: kept.is_forging,
            settle: policy.settle,
            missing: BTreeMap::new(),
            is_up: false,
            unread: 0,
            since: now.mono,
            reported: Health::Healthy,
        }
    }

    /// Returns whether it may be dialled now, or when.
    pub(super) fn admit(&self, now: Mono) -> Admit {
        if now < self.unusable_until {
            return Admit::Wait(self.unusable_until);
        }
        self.backoff.admit(now)
    }

    pub(super) fn connected(&mut self, now: Mono) {
        if !self.is_forging {
            self.backoff.connected(now);
        }
        self.forged_events = 0;
        self.seen.consecutive_failures = 0;
        self.set_connected(now, true);
    }

    /// Notes a failed attempt to connect.
    pub(super) fn failed(&mut self, now: Mono, why: Fault) {
        self.seen.failures += 1;
        self.seen.consecutive_failures = self.seen.consecutive_failures.saturating_add(1);
        self.backoff.failed(now);
        self.set_connected(now, false);
        self.is_by_rule = why == Fault::Forbidden;
        match why {
            Fault::Unreachable => {}
            Fault::NoDocument => self.unread = self.unread.saturating_add(1),
            Fault::NoSuchHost
            | Fault::Certificate(_)
            | Fault::Tls
            | Fault::Protocol
            | Fault::Forbidden => self.mark_unusable(now + UNUSABLE_FOR),
            Fault::Private => self.mark_unusable(now + SUSPENDED_FOR),
        }
    }

    /// Returns whether it is only dialled with a document, which tells whether it is a private service. A relay whose
    /// document can never be read is dialled without one in the end.
    pub(super) fn needs_document(&self) -> bool {
        self.unread < MAX_UNREAD
    }

    /// Notes that its document was read.
    pub(super) fn document_read(&mut self) {
        self.unread = 0;
    }

    /// Returns the state after a failed attempt.
    pub(super) fn failure(&self, now: Mono) -> Failure {
        let retry_in = match self.admit(now) {
            Admit::Wait(until) => until - now,
            Admit::Go => Duration::ZERO,
        };
        let attempt = self.seen.consecutive_failures;
        Failure {
            attempt,
            failing_for: self.backoff.failing_for(),
            retry_in,
        }
    }

    /// Notes a connection that ended: the relay was lost, or it sent forged events.
    pub(super) fn lost(&mut self, now: Mono) {
        self.backoff.failed(now);
        self.set_connected(now, false);
    }

    /// Counts forged events of this connection. From [`MAX_FORGED`] on, marks the relay as forging and returns true:
    /// the connection is to be ended.
    pub(super) fn forged(&mut self, count: usize) -> bool {
        self.forged_events = self.forged_events.saturating_add(count);
        self.is_forging |= self.forged_events >= MAX_FORGED;
        self.forged_events >= MAX_FORGED
    }

    /// Forgives a relay that forged events before, once a connection has lasted without any.
    pub(super) fn forgive(&mut self, now: Mono) {
        if self.forgiven_at().is_some_and(|at| now >= at) {
            self.is_forging = false;
            self.backoff.connected(now);
        }
    }

    /// Returns when the relay may be forgiven, if it waits for that.
    pub(super) fn forgiven_at(&self) -> Option<Mono> {
        let is_waited_for = self.is_forging && self.is_up && self.forged_events == 0;
        is_waited_for.then(|| self.since + self.settle)
    }

    /// Marks the relay as unusable until then, or for longer if it is already.
    pub(super) fn mark_unusable(&mut self, until: Mono) {
        self.unusable_until = self.unusable_until.max(until);
    }

    /// Returns the end of the pause between two attempts to connect; none after a connection.
    pub(super) fn retry_at(&self) -> Option<Mono> {
        let unusable = (self.unusable_until > self.since).then_some(self.unusable_until);
        self.backoff.retry_at().into_iter().chain(unusable).max()
    }

    /// Lets the relay be dialled now, because the operator asks for it. Its failures are forgotten.
    pub(super) fn retry_at_once(&mut self, now: Mono) {
        self.unusable_until = now;
        self.backoff.fresh_start();
    }

    /// Counts a comparison with our events.
    pub(super) fn compared(&mut self, events: usize, lacking: usize) {
        self.seen.compared = self.seen.compared.saturating_add(events as u64);
        self.seen.lacking = self.seen.lacking.saturating_add(lacking as u64);
    }

    /// Adds events of a repository that it lacks. Returns their number, and that of those not known before.
    pub(super) fn lacks(&mut self, repo: &RepoId, events: BTreeSet<EventId>) -> (usize, usize) {
        if !self.missing.contains_key(repo) && self.missing.len() >= MAX_REPOS {
            return (0, 0);
        }
        let known = self.missing.entry(repo.clone()).or_default();
        let before = known.len();
        known.extend(events);
        while known.len() > MAX_MISSING {
            known.pop_last();
        }
        let count = known.len();
        self.seen.missing.insert(repo.clone(), count as u64);
        (count, count.saturating_sub(before))
    }

    /// Starts a full pass, which finds again what it lacks.
    pub(super) fn pass_began(&mut self) {
        self.missing.clear();
        self.seen.missing.clear();
    }

    /// Returns the reliability up to now.
    pub(super) fn seen(&self, now: Mono) -> PeerReliability {
        let mut seen = self.seen.clone();
        *(if self.is_up {
            &mut seen.up
        } else {
            &mut seen.down
        }) += now - self.since;
        seen
    }

    pub(super) fn health(&self, now: Mono) -> Health {
        self.backoff.health(now)
    }

    /// Returns the health, and the time for which it has failed, if the health has changed.
    pub(super) fn news(&mut self, now: Mono) -> Option<(Health, Duration)> {
        let health = self.health(now);
        let is_news = health != self.reported;
        self.reported = health;
        is_news.then(|| (health, self.backoff.failing_for()))
    }

    pub(super) fn snapshot(&self, now: Now) -> Option<BackoffSnapshot> {
        self.backoff.snapshot(now)
    }

    pub(super) fn unusable_until(&self, now: Now) -> Option<Timestamp> {
        let left = self.unusable_until - now.mono;
        (!left.is_zero() && !self.is_by_rule).then(|| now.unix + left + Duration::from_secs(1))
    }

    /// Notes that it is connected from now on, or no longer is.
    pub(super) fn set_connected(&mut self, now: Mono, is_up: bool) {
        self.seen = self.seen(now);
        self.since = now;
        self.is_up = is_up;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Flaw;

    fn at(secs: u64) -> Now {
        Now::new(
            Mono::from_secs(secs),
            Timestamp::from_secs(1_700_000_000 + secs),
        )
    }

    fn health() -> RelayHealth {
        restored(at(0), None, None)
    }

    fn restored(
        now: Now,
        backoff: Option<BackoffSnapshot>,
        unusable_until: Option<Timestamp>,
    ) -> RelayHealth {
        let empty = RelayRecord::new("wss://a.example".parse().unwrap());
        let kept = RelayRecord {
            backoff,
            unusable_until,
            ..empty
        };
        RelayHealth::new(now, BackoffPolicy::RELAY, &kept, false)
    }

    #[test]
    fn faults_that_are_no_outage_make_unusable_for_half_a_day() {
        let certificate = Fault::Certificate(Flaw::Untrusted);
        for why in [
            Fault::NoSuchHost,
            certificate,
            Fault::Tls,
            Fault::Protocol,
            Fault::Forbidden,
        ] {
            let mut health = health();
            health.failed(Mono::from_secs(1), why);
            let until = Mono::from_secs(1) + UNUSABLE_FOR;
            assert_eq!(health.admit(Mono::from_secs(2)), Admit::Wait(until));
            assert_eq!(health.admit(until), Admit::Go);
        }
        let mut health = health();
        health.failed(Mono::from_secs(1), Fault::Unreachable);
        assert_eq!(
            health.admit(Mono::from_secs(2)),
            Admit::Wait(Mono::from_secs(6))
        );
    }

    #[test]
    fn a_restart_shortens_neither_backoff_nor_unusable_time() {
        let mut health = health();
        health.failed(Mono::from_secs(1), Fault::Tls);
        let kept = (health.snapshot(at(1)), health.unusable_until(at(1)));
        let restored = |now: Now| restored(now, kept.0, kept.1);
        let Admit::Wait(until) = restored(at(60)).admit(Mono::from_secs(60)) else {
            panic!()
        };
        assert!(until >= Mono::from_secs(1) + UNUSABLE_FOR);
        assert_eq!(
            restored(at(50_000)).admit(Mono::from_secs(50_000)),
            Admit::Go
        );
    }

    #[test]
    fn unusable_by_address_policy_ends_with_a_restart() {
        let mut health = health();
        health.failed(Mono::from_secs(1), Fault::Forbidden);
        assert_eq!(health.unusable_until(at(1)), None);
        health.failed(Mono::from_secs(2), Fault::Tls);
        assert!(health.unusable_until(at(2)).is_some());
    }

    #[test]
    fn time_up_and_down_is_counted() {
        let mut health = health();
        health.seen.attempts += 1;
        health.connected(Mono::from_secs(10));
        health.lost(Mono::from_secs(40));
        let seen = health.seen(Mono::from_secs(60));
        assert_eq!(
            (seen.up.as_secs(), seen.down.as_secs(), seen.attempts),
            (30, 30, 1)
        );
        assert_eq!(seen.uptime(), Some(0.5));
        assert_eq!(seen.coverage(), None);
    }

    #[test]
    fn failed_attempts_are_counted_until_one_succeeds() {
        let mut health = health();
        health.failed(Mono::from_secs(1), Fault::Unreachable);
        health.failed(Mono::from_secs(6), Fault::Unreachable);
        let failure = health.failure(Mono::from_secs(6));
        assert_eq!((failure.attempt, failure.failing_for.as_secs()), (2, 5));
        assert_eq!(failure.retry_in.as_secs(), 10);
        health.connected(Mono::from_secs(16));
        health.failed(Mono::from_secs(20), Fault::Tls);
        let failure = health.failure(Mono::from_secs(20));
        assert_eq!((failure.attempt, failure.retry_in), (1, UNUSABLE_FOR));
    }

    #[test]
    fn a_change_of_health_is_reported_once() {
        let mut health = health();
        assert_eq!(health.news(Mono::ZERO), None);
        health.failed(Mono::from_secs(1), Fault::Unreachable);
        assert_eq!(
            health.news(Mono::from_secs(1)),
            Some((Health::Degraded, Duration::ZERO))
        );
        assert_eq!(health.news(Mono::from_secs(2)), None);
    }

    #[test]
    fn a_relay_that_forges_on_every_connection_is_dead_after_a_day() {
        let mut health = health();
        let mut moment = Mono::from_secs(1);
        while health.health(moment) != Health::Dead {
            health.connected(moment);
            assert!(
                !health.forged(MAX_FORGED - 1),
                "a few forged events are tolerated"
            );
            assert!(health.forged(1));
            health.lost(moment);
            let Admit::Wait(until) = health.admit(moment) else {
                panic!()
            };
            moment = until;
            assert!(moment < Mono::from_secs(3 * 24 * 60 * 60));
        }
        assert!(moment >= Mono::from_secs(24 * 60 * 60));
    }

    #[test]
    fn a_connection_without_forged_events_resets_the_count() {
        let mut health = health();
        health.connected(Mono::from_secs(1));
        health.forged(MAX_FORGED);
        health.lost(Mono::from_secs(2));
        health.connected(Mono::from_secs(10));
        health.forgive(Mono::from_secs(309));
        assert!(health.is_forging);
        assert_eq!(health.forgiven_at(), Some(Mono::from_secs(310)));
        health.forgive(Mono::from_secs(310));
        assert!(!health.is_forging);
        assert_eq!(health.health(Mono::from_secs(610)), Health::Healthy);
    }

    #[test]
    fn a_restart_forgets_neither_that_a_relay_is_dead_nor_since_when() {
        let mut health = health();
        let mut moment = Mono::from_secs(1);
        while health.health(moment) != Health::Dead {
            health.failed(moment, Fault::Unreachable);
            let Admit::Wait(until) = health.admit(moment) else {
                panic!()
            };
            moment = until;
        }
        let (now, later) = (moment.since_start().as_secs(), Mono::from_secs(90));
        let kept = health.snapshot(at(now));
        let restarted = Now::new(later, at(now).unix);
        let mut again = restored(restarted, kept, None);
        let (told, failing_for) = again.news(later).unwrap();
        assert_eq!(told, Health::Dead);
        assert!(
            failing_for >= BackoffPolicy::RELAY.dead_after,
            "{failing_for:?}"
        );
    }
}
