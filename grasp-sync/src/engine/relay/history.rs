//! The history of a relay beyond its connections.

use std::net::IpAddr;
use std::time::Duration;

use crate::index::CoverageSet;
use crate::limits::{LedgerConfig, PARK, Pace, PaceConfig, SlotLedger};
use grasp_core::nostr::types::Timestamp;
use grasp_core::{Mono, Now, RelayUrl};

use super::super::config::Config;
use super::super::facts::{RelayFacts, RelayProfile};
use super::super::health::RelayHealth;
use super::super::record::{COVERAGE_CAPACITY, RelayRecord};
use super::super::retry::Wants;
use super::super::schedule::{Daily, Rng};
use super::super::suspended::Suspended;
use super::gaps::ListeningTimes;
use super::resume::{HistoryPass, PassKind};

/// Everything about a relay that a new connection does not reset.
#[derive(Debug)]
pub(in crate::engine) struct RelayHistory {
    pub(in crate::engine) health: RelayHealth,
    /// The address at which it was last reached.
    pub(in crate::engine) address: Option<IpAddr>,
    /// The time at which it was followed, last tried or last connected: the longest ago is the next.
    pub(in crate::engine) waits_since: Timestamp,
    pub(in crate::engine) profile: RelayProfile,
    /// The pace of requests. Reconnecting ends no pause.
    pub(in crate::engine) pace: Pace,
    pub(in crate::engine) ledger: SlotLedger,
    /// Bytes of subscriptions that the relay remembers at most, as it said.
    pub(in crate::engine) retained: Option<usize>,
    pub(in crate::engine) suspended: Suspended,
    pub(in crate::engine) wants: Wants,
    pub(in crate::engine) neg: NegBackoff,
    /// No full sync until then, however long the filters are.
    pub(in crate::engine) filters_until: Mono,
    pub(in crate::engine) daily: Daily,
    pub(in crate::engine) coverage: CoverageSet,
    pub(in crate::engine) pass: HistoryPass,
    /// Interruptions of live subscriptions since the last full pass began: an event that was published then with an
    /// older date is found by the next pass.
    pub(in crate::engine) interrupted: usize,
    /// The number of these that was last reported.
    pub(in crate::engine) interrupted_reported: usize,
    pub(in crate::engine) listening_times: ListeningTimes,
    /// True if the missing support of NIP-77 was reported.
    pub(in crate::engine) no_negentropy_reported: bool,
    /// The time at which its record is to be written, if it has changed.
    pub(in crate::engine) write_at: Option<Mono>,
}

impl RelayHistory {
    pub(in crate::engine) fn new(
        now: Now,
        config: &Config,
        rng: &mut Rng,
        record: Option<RelayRecord>,
    ) -> Self {
        let profile = RelayProfile::new(&RelayFacts::default(), config);
        let (backoff, quarantine) =
            record.as_ref().map_or((None, None), |one| (one.backoff, one.quarantined_until));
        let longest = config.quarantine.max(PARK);
        let mut health =
            RelayHealth::restore(now, config.backoff, backoff.as_ref(), quarantine, longest);
        if let Some(record) = &record {
            health.resume(record.seen.clone(), record.is_forging);
        }
        let (address, waits_since) =
            record.as_ref().map_or((None, None), |one| (one.address, one.waits_since));
        let full_pass = record.as_ref().and_then(|record| record.full_pass_at);
        let empty = || CoverageSet::with_capacity(COVERAGE_CAPACITY);
        Self {
            health,
            address,
            waits_since: waits_since.unwrap_or(now.unix).min(now.unix),
            profile,
            pace: paused(now, profile.pace, record.as_ref()),
            ledger: SlotLedger::new(profile.ledger, None),
            retained: record.as_ref().and_then(|record| record.retained_bytes),
            suspended: record
                .as_ref()
                .map_or_else(Suspended::default, |record| Suspended::restore(now, &record.parked)),
            wants: Wants::default(),
            neg: NegBackoff::default(),
            filters_until: Mono::ZERO,
            daily: Daily::since(now, full_pass, config.full_pass, rng),
            pass: match record {
                Some(_) => HistoryPass::resumed(now.unix, now.unix - config.full_pass.1),
                None => HistoryPass::begin(now.unix, PassKind::Fresh),
            },
            interrupted: record.as_ref().map_or(0, |record| record.interrupted),
            coverage: record.map_or_else(empty, |record| record.coverage),
            interrupted_reported: 0,
            listening_times: ListeningTimes::default(),
            no_negentropy_reported: false,
            write_at: None,
        }
    }

    /// Applies the facts of a relay that has just connected.
    pub(in crate::engine) fn connected(&mut self, now: Mono, facts: &RelayFacts, config: &Config) {
        let profile = RelayProfile::new(facts, config);
        if profile.pace != self.profile.pace {
            let paused = self.pace.is_paused(now).then(|| self.pace.reopens_at());
            self.pace = Pace::new(profile.pace);
            self.pace.pause_until(paused.unwrap_or(Mono::ZERO));
        }
        let retained_bytes = profile.ledger.retained_bytes.min(self.retained.unwrap_or(usize::MAX));
        let ledger = LedgerConfig { retained_bytes, ..profile.ledger };
        self.ledger = SlotLedger::new(ledger, facts.max_subscriptions);
        self.profile = profile;
        self.health.connected(now);
        self.wants.disconnected();
    }

    /// Forgets what the relay has delivered, because the local relay lost it.
    pub(in crate::engine) fn forget_delivered(&mut self, now: Timestamp) {
        self.coverage = CoverageSet::with_capacity(COVERAGE_CAPACITY);
        self.begin_pass(now, PassKind::Fresh);
        self.listening_times.forget();
    }

    pub(in crate::engine) fn begin_pass(&mut self, now: Timestamp, kind: PassKind) {
        self.pass = HistoryPass::begin(now, kind).after(self.interrupted);
        self.health.pass_began();
    }

    /// Returns whether it continues from what an earlier process received.
    pub(in crate::engine) fn is_resumed(&self) -> bool {
        self.pass.kind == PassKind::Resumed
    }

    /// Returns the rest of the pause in whole seconds, rounded up.
    fn pause_left(&self, now: Now) -> Duration {
        self.pace.reopens_at() - now.mono + Duration::from_secs(1)
    }

    pub(in crate::engine) fn record(
        &self,
        now: Now,
        relay: &RelayUrl,
        coverage: CoverageSet,
    ) -> RelayRecord {
        RelayRecord {
            relay: relay.clone(),
            backoff: self.health.snapshot(now),
            quarantined_until: self.health.quarantined_until(now),
            paused_until: self.pace.is_paused(now.mono).then(|| now.unix + self.pause_left(now)),
            parked: self.suspended.parked(now),
            full_pass_at: self.daily.last(),
            retained_bytes: self.retained,
            interrupted: self.interrupted,
            address: self.address,
            waits_since: Some(self.waits_since),
            is_forging: self.health.is_forging(),
            seen: self.health.seen(now.mono),
            coverage,
        }
    }
}

/// Returns a pace that keeps the pause of an earlier process.
fn paused(now: Now, config: PaceConfig, record: Option<&RelayRecord>) -> Pace {
    let mut pace = Pace::new(config);
    let until = record.and_then(|record| record.paused_until).unwrap_or(now.unix);
    let left = Duration::from_secs(until.as_secs().saturating_sub(now.unix.as_secs()));
    pace.pause_until(now.mono + left.min(config.longest_pause));
    pace
}

/// Backoff of reconciliation after silence, faults or unreadable messages.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct NegBackoff {
    until: Mono,
    steps: usize,
}

/// The backoffs, one after another.
const NEG_BACKOFFS: [Duration; 4] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 60 * 60),
];

impl NegBackoff {
    /// Backs off after a failure. Sessions that fail together count once.
    pub(in crate::engine) fn failed(&mut self, now: Mono) {
        if now < self.until {
            return;
        }
        let rest =
            NEG_BACKOFFS.get(self.steps).or(NEG_BACKOFFS.last()).copied().unwrap_or_default();
        self.steps = self.steps.saturating_add(1);
        self.until = now + rest;
    }

    /// Ends the backoff.
    pub(in crate::engine) fn worked(&mut self) {
        *self = Self::default();
    }

    pub(in crate::engine) fn is_over(&self, now: Mono) -> bool {
        now >= self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reconciliation_backs_off_longer_after_each_failure() {
        let mut rest = NegBackoff::default();
        let (mut now, mut rests) = (Mono::from_secs(10), Vec::new());
        for _ in 0..5 {
            rest.failed(now);
            rest.failed(now);
            rests.push((rest.until - now).as_secs());
            now = rest.until;
        }
        assert_eq!(rests, [60, 300, 1_800, 7_200, 7_200]);
        rest.worked();
        assert!(rest.is_over(Mono::ZERO));
    }

    #[test]
    fn reconnecting_ends_no_pause_even_as_other_software() {
        let config = Config::new("us.example".parse().unwrap());
        let now = Now::new(Mono::from_secs(9), 1_700_000_000.into());
        let mut history = RelayHistory::new(now, &config, &mut Rng::seeded(1), None);
        history.pace.refused(now.mono);
        let strfry = RelayFacts { software: Some("strfry".into()), ..RelayFacts::default() };
        history.connected(now.mono, &strfry, &config);
        assert!(history.pace.is_paused(now.mono));
        assert!(!history.pace.is_paused(now.mono + Duration::from_secs(65)));
    }
}
