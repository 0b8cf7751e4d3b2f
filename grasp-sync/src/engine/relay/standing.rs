//! The history of a relay beyond its connections.

use std::net::IpAddr;
use std::time::Duration;

use grasp_core::limits::{LedgerConfig, PARK, Pace, PaceConfig, SlotLedger};
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::CoverageSet;
use grasp_core::{Mono, Now, RelayUrl};

use super::super::config::Config;
use super::super::facts::{Manners, RelayFacts};
use super::super::health::RelayHealth;
use super::super::parks::Parks;
use super::super::record::{COVERAGE_CAPACITY, RelayRecord};
use super::super::retry::Wants;
use super::super::rng::Rng;
use super::super::schedule::Daily;
use super::gaps::Listened;
use super::resume::{Pass, Sort};

/// Everything about a relay that a new connection does not reset.
#[derive(Debug)]
pub(in crate::engine) struct Standing {
    pub(in crate::engine) health: RelayHealth,
    /// The address that it was last found at.
    pub(in crate::engine) address: Option<IpAddr>,
    /// When it was taken up, last tried, or last had a connection: the longest ago is the next.
    pub(in crate::engine) waits_since: Timestamp,
    pub(in crate::engine) manners: Manners,
    /// The pace of requests. Reconnecting ends no pause.
    pub(in crate::engine) pace: Pace,
    pub(in crate::engine) ledger: SlotLedger,
    /// Bytes of subscriptions that the relay remembers at most, as it said.
    pub(in crate::engine) retained: Option<usize>,
    pub(in crate::engine) parks: Parks,
    pub(in crate::engine) wants: Wants,
    pub(in crate::engine) neg: NegRest,
    /// No full sync until then, however long the filters are.
    pub(in crate::engine) named_until: Mono,
    pub(in crate::engine) daily: Daily,
    pub(in crate::engine) coverage: CoverageSet,
    pub(in crate::engine) pass: Pass,
    /// Interruptions of live subscriptions since the last full pass began: an event that was published then with an
    /// older date is found by the next pass.
    pub(in crate::engine) interrupted: usize,
    /// The number of these that was last reported.
    pub(in crate::engine) interrupted_reported: usize,
    pub(in crate::engine) listened: Listened,
    /// True if the missing support of NIP-77 was reported.
    pub(in crate::engine) is_known_to_page: bool,
    /// The time at which its record is to be written, if it has changed.
    pub(in crate::engine) write_at: Option<Mono>,
}

impl Standing {
    pub(in crate::engine) fn new(
        now: Now,
        config: &Config,
        rng: &mut Rng,
        record: Option<RelayRecord>,
    ) -> Self {
        let manners = Manners::towards(&RelayFacts::default(), config);
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
            manners,
            pace: paused(now, manners.pace, record.as_ref()),
            ledger: SlotLedger::new(manners.ledger, None),
            retained: record.as_ref().and_then(|record| record.retained_bytes),
            parks: record
                .as_ref()
                .map_or_else(Parks::default, |record| Parks::restore(now, &record.parked)),
            wants: Wants::default(),
            neg: NegRest::default(),
            named_until: Mono::ZERO,
            daily: Daily::since(now, full_pass, config.full_pass, rng),
            pass: match record {
                Some(_) => Pass::resumed(now.unix, now.unix - config.full_pass.1),
                None => Pass::begin(now.unix, Sort::Fresh),
            },
            interrupted: record.as_ref().map_or(0, |record| record.interrupted),
            coverage: record.map_or_else(empty, |record| record.coverage),
            interrupted_reported: 0,
            listened: Listened::default(),
            is_known_to_page: false,
            write_at: None,
        }
    }

    /// Applies the facts of a relay that has just connected.
    pub(in crate::engine) fn connected(&mut self, now: Mono, facts: &RelayFacts, config: &Config) {
        let manners = Manners::towards(facts, config);
        if manners.pace != self.manners.pace {
            let paused = self.pace.is_paused(now).then(|| self.pace.reopens_at());
            self.pace = Pace::new(manners.pace);
            self.pace.pause_until(paused.unwrap_or(Mono::ZERO));
        }
        let retained_bytes = manners.ledger.retained_bytes.min(self.retained.unwrap_or(usize::MAX));
        let ledger = LedgerConfig { retained_bytes, ..manners.ledger };
        self.ledger = SlotLedger::new(ledger, facts.max_subscriptions);
        self.manners = manners;
        self.health.connected(now);
        self.wants.disconnected();
    }

    /// Forgets what the relay has delivered, because the local relay lost it.
    pub(in crate::engine) fn forget_what_was_given(&mut self, now: Timestamp) {
        self.coverage = CoverageSet::with_capacity(COVERAGE_CAPACITY);
        self.begin_pass(now, Sort::Fresh);
        self.listened.forget();
    }

    pub(in crate::engine) fn begin_pass(&mut self, now: Timestamp, sort: Sort) {
        self.pass = Pass::begin(now, sort).after(self.interrupted);
        self.health.pass_began();
    }

    /// Returns whether it continues from what an earlier process received.
    pub(in crate::engine) fn is_resumed(&self) -> bool {
        self.pass.sort == Sort::Resumed
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
            parked: self.parks.parked(now),
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
pub(in crate::engine) struct NegRest {
    until: Mono,
    steps: usize,
}

/// The backoffs, one after another.
const RESTS: [Duration; 4] = [
    Duration::from_secs(60),
    Duration::from_secs(5 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 60 * 60),
];

impl NegRest {
    /// Backs off after a failure. Sessions that fail together count once.
    pub(in crate::engine) fn failed(&mut self, now: Mono) {
        if now < self.until {
            return;
        }
        let rest = RESTS.get(self.steps).or(RESTS.last()).copied().unwrap_or_default();
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
    fn reconciliation_rests_longer_each_time_it_leads_nowhere() {
        let mut rest = NegRest::default();
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
        let mut standing = Standing::new(now, &config, &mut Rng::seeded(1), None);
        standing.pace.refused(now.mono);
        let strfry = RelayFacts { software: Some("strfry".into()), ..RelayFacts::default() };
        standing.connected(now.mono, &strfry, &config);
        assert!(standing.pace.is_paused(now.mono));
        assert!(!standing.pace.is_paused(now.mono + Duration::from_secs(65)));
    }
}
