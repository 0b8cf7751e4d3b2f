//! The history of a relay beyond its connections: which earlier results count for a new connection, from when on to ask,
//! when the daily pass comes, and what counts as a gap.

use std::collections::VecDeque;
use std::time::Duration;

use crate::limits::{LONGEST_PAUSE, Pace, SlotLedger};
use grasp_core::admission::SyncPath;
use grasp_core::limits::{Backoff, BackoffPolicy};
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{
    CONFIRMED_RETENTION, MAX_PROOFS, ProofSet, ProvenItems, RelayState, RelaySyncNeeds,
};
use grasp_core::{Mono, Now, RelayUrl};

use super::Config;
use super::facts::{RelayFacts, RelayProfile};
use super::health::RelayHealth;
use super::relay::{Link, RelayContext, RelayRecord};
use super::retry::Wants;
use super::suspended::Suspended;
use super::visits::Scope;

/// Everything about a relay that a new connection does not reset.
#[derive(Debug)]
pub(super) struct RelayHistory {
    /// The record that it began with. Kept up to date but for what [`record`](Self::record) adds.
    pub(super) kept: RelayRecord,
    /// What the relay is followed for. A relay that is to be followed for anything else is followed anew.
    pub(super) scope: Scope,
    pub(super) state: RelayState,
    pub(super) health: RelayHealth,
    pub(super) profile: RelayProfile,
    /// The pace of requests. Reconnecting ends no pause.
    pub(super) pace: Pace,
    pub(super) ledger: SlotLedger,
    pub(super) suspended: Suspended,
    pub(super) wants: Wants,
    /// The backoff of reconciliation. Sessions that fail together count once.
    pub(super) neg: Backoff,
    /// No full sync until then, however long the filters are.
    pub(super) filters_until: Mono,
    /// The time of the daily pass.
    pub(super) daily: Mono,
    pub(super) pass: HistoryPass,
    /// The time from which on everything is compared once more, because a catch-up asked by date; `None` if none did.
    pub(super) recheck_at: Option<Mono>,
    /// The earliest time of the next of these comparisons.
    next_recheck: Mono,
    /// Interruptions of live subscriptions before the comparison that is under way, which it makes up for.
    interrupted_before_recheck: usize,
    /// The number of interruptions that was last reported.
    pub(super) interrupted_reported: usize,
    pub(super) listening_times: ListeningTimes,
    /// True if the missing support of NIP-77 was reported.
    pub(super) no_negentropy_reported: bool,
    /// The time at which its record is to be written, if it has changed.
    pub(super) write_at: Option<Mono>,
    /// The time at which it is left, if it is followed for visits alone and has none.
    pub(super) leave_at: Option<Mono>,
}

impl RelayHistory {
    /// Creates the history of a relay that is followed from now on, or continues that of an earlier process.
    ///
    /// A relay that the operator names is usable at once: a restart may mean that its fault is repaired. Backoff
    /// between attempts remains.
    pub(super) fn new(
        now: Now,
        config: &Config,
        rng: &mut Rng,
        is_bootstrap: bool,
        scope: Scope,
        (relay, record): (&RelayUrl, Option<RelayRecord>),
    ) -> Self {
        let is_resumed = record.is_some();
        let is_named = is_bootstrap || config.named.contains(relay);
        let mut kept = record.unwrap_or_else(|| RelayRecord::new(relay.clone()));
        let profile = RelayProfile::new(&RelayFacts::default(), config);
        let paused = kept.paused_until.map_or(0, |until| until.as_secs());
        let left = Duration::from_secs(paused.saturating_sub(now.unix.as_secs()));
        let mut pace = Pace::new(profile.pace);
        pace.pause_until(now.mono + left.min(LONGEST_PAUSE));
        let pass = match is_resumed {
            false => HistoryPass::begin(now.unix, PassKind::Fresh),
            // Its proofs count for as long as a pass may be away.
            true => HistoryPass {
                complete_until: now.unix,
                is_over: true,
                ..HistoryPass::begin(now.unix - config.full_pass.1, PassKind::Resumed)
            },
        };
        kept.waits_since = Some(kept.waits_since.unwrap_or(now.unix).min(now.unix));
        Self {
            scope,
            state: RelayState::new(is_bootstrap),
            health: RelayHealth::new(now, config.backoff, &kept, is_named),
            profile,
            pace,
            ledger: SlotLedger::new(profile.retained_bytes, None),
            suspended: Suspended::restore(now, &kept.suspended),
            wants: Wants::default(),
            neg: Backoff::new(NEG_BACKOFF),
            filters_until: Mono::ZERO,
            daily: daily_pass(now, kept.full_pass_at, config.full_pass, rng),
            pass,
            recheck_at: None,
            next_recheck: Mono::ZERO,
            interrupted_before_recheck: 0,
            interrupted_reported: 0,
            listening_times: ListeningTimes::default(),
            no_negentropy_reported: false,
            write_at: None,
            leave_at: None,
            kept,
        }
    }

    /// Applies the facts of a relay that has just connected.
    pub(super) fn connected(&mut self, now: Mono, facts: &RelayFacts, config: &Config) {
        let profile = RelayProfile::new(facts, config);
        if profile.pace != self.profile.pace {
            let paused = self.pace.is_paused(now).then(|| self.pace.reopens_at());
            self.pace = Pace::new(profile.pace);
            self.pace.pause_until(paused.unwrap_or(Mono::ZERO));
        }
        let retained_bytes = profile
            .retained_bytes
            .min(self.kept.retained_bytes.unwrap_or(usize::MAX));
        self.ledger = SlotLedger::new(retained_bytes, facts.max_subscriptions);
        self.profile = profile;
        self.health.connected(now);
        self.wants.disconnected();
    }

    /// Forgets what the relay has delivered, because the local relay lost it.
    pub(super) fn forget_delivered(&mut self, now: Timestamp) {
        self.kept.proofs = ProofSet::with_capacity(MAX_PROOFS);
        self.begin_pass(now, PassKind::Fresh);
        self.listening_times = ListeningTimes::default();
    }

    pub(super) fn begin_pass(&mut self, now: Timestamp, kind: PassKind) {
        let interrupted_before = self.kept.interrupted;
        self.pass = HistoryPass {
            interrupted_before,
            ..HistoryPass::begin(now, kind)
        };
        self.recheck_at = None;
        self.health.pass_began();
    }

    /// Begins the comparison that follows a catch-up.
    pub(super) fn begin_recheck(&mut self, now: Mono) {
        self.recheck_at = None;
        self.next_recheck = now + RECHECK_EVERY;
        self.interrupted_before_recheck = self.kept.interrupted;
    }

    /// Ends that comparison: nothing that was published before it is missing.
    pub(super) fn rechecked(&mut self) {
        let made_up_for = std::mem::take(&mut self.interrupted_before_recheck);
        self.kept.interrupted = self.kept.interrupted.saturating_sub(made_up_for);
    }

    /// Returns whether it continues from what an earlier process received.
    pub(super) fn is_resumed(&self) -> bool {
        self.pass.kind == PassKind::Resumed
    }

    /// Returns the record of the relay.
    pub(super) fn record(&self, now: Now, link: &Link) -> RelayRecord {
        let mut proofs = ProofSet::with_capacity(MAX_PROOFS);
        let counts = self
            .kept
            .proofs
            .iter()
            .filter(|proof| proof.at >= self.pass.began);
        counts.for_each(|proof| proofs.add(*proof));
        let until = match (self.state.last_connected(), link) {
            (None, _) => self.pass.complete_until,
            (Some(last), Link::Up(session)) => session.heard_until(now.unix).unwrap_or(last),
            (Some(last), _) => last,
        };
        proofs.add_items(&self.state.confirmed, until, self.pass.began);
        let mut seen = self.health.seen(now.mono);
        if matches!(link, Link::Up(_)) {
            seen.last_success_at = Some(now.unix);
        }
        // In whole seconds, rounded up.
        let pause = self.pace.reopens_at() - now.mono + Duration::from_secs(1);
        RelayRecord {
            backoff: self.health.snapshot(now),
            unusable_until: self.health.unusable_until(now),
            paused_until: self.pace.is_paused(now.mono).then(|| now.unix + pause),
            suspended: self.suspended.record(now),
            is_forging: self.health.is_forging,
            seen,
            proofs,
            ..self.kept.clone()
        }
    }
}

/// The extent of what a new connection fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartMode {
    /// Everything: nothing is confirmed.
    Fresh,
    /// The rest of an interrupted pass, and what it had confirmed from `since` on.
    Continue { since: Timestamp },
    /// What was published during a short absence.
    CatchUp { since: Timestamp },
}

/// The reason for a full pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassKind {
    /// The relay is new, or was away for long.
    Fresh,
    /// A day has passed.
    Daily,
    /// An earlier process began it, or ended it.
    Resumed,
}

/// The latest pass over all that a relay has for us.
///
/// A pass may take several connections. Some relays end each connection after a minute and accept a request every
/// other second; starting again each time would never end.
#[derive(Clone, Copy, Debug)]
pub(super) struct HistoryPass {
    pub(super) kind: PassKind,
    /// Proofs from then on count.
    pub(super) began: Timestamp,
    /// The time up to which everything confirmed in it is complete.
    pub(super) complete_until: Timestamp,
    /// True if it has ended, successfully or not.
    pub(super) is_over: bool,
    /// Interruptions of live subscriptions before it began, which it makes up for.
    pub(super) interrupted_before: usize,
}

impl HistoryPass {
    fn begin(now: Timestamp, kind: PassKind) -> Self {
        Self {
            kind,
            began: now,
            complete_until: now,
            is_over: false,
            interrupted_before: 0,
        }
    }

    /// Returns the way in which its events are counted.
    pub(super) fn count_as(&self) -> CountAs {
        let is_daily = self.kind == PassKind::Daily && !self.is_over;
        CountAs {
            path: if is_daily {
                SyncPath::Daily
            } else {
                SyncPath::CatchUp
            },
            ..CountAs::NEW
        }
    }
}

/// Marks the relay as connected, and chooses what to fetch.
pub(super) fn choose_start(ctx: &mut RelayContext<'_>) -> StartMode {
    let Now { mono, unix } = ctx.now;
    let history = &mut *ctx.history;
    let is_due = mono >= history.daily;
    let was_away =
        history.state.last_connected().is_some() && history.state.should_clear_state(unix);
    if history.pass.is_over && (is_due || was_away) {
        history.begin_pass(
            unix,
            if is_due {
                PassKind::Daily
            } else {
                PassKind::Fresh
            },
        );
        history.state.start_over(unix);
    }
    let kept = history.state.confirmed.clone();
    let how = match history.state.connected(unix) {
        Some(since) => StartMode::CatchUp { since },
        None => continue_pass(ctx, kept),
    };
    if how != StartMode::Fresh {
        ctx.history.kept.interrupted += 1;
        // Not after a restart of our own, which would then compare with all relays at once.
        if !ctx.history.is_resumed() || matches!(how, StartMode::CatchUp { .. }) {
            ctx.history.recheck_at = Some(mono.max(ctx.history.next_recheck));
        }
    }
    how
}

/// Continues an unfinished pass from what is confirmed, or else from what is proven on disk.
fn continue_pass(ctx: &mut RelayContext<'_>, kept: RelaySyncNeeds) -> StartMode {
    let HistoryPass {
        began,
        complete_until,
        ..
    } = ctx.history.pass;
    let known = if kept.is_empty() {
        let target = ctx.shared.index.target(ctx.relay).unwrap_or_default();
        ctx.history.kept.proofs.proven_items(&target, began)
    } else {
        Some(ProvenItems {
            items: kept,
            until: complete_until,
            at: began,
        })
    };
    let Some(ProvenItems { items, until, at }) = known else {
        ctx.history.pass.complete_until = ctx.now.unix;
        return StartMode::Fresh;
    };
    ctx.history.pass = HistoryPass {
        began: at,
        complete_until: until,
        ..ctx.history.pass
    };
    ctx.history.state.confirm(items);
    StartMode::Continue {
        since: until - CONFIRMED_RETENTION,
    }
}

/// Shortest time between two comparisons that follow a catch-up: some relays end every connection after a minute.
const RECHECK_EVERY: Duration = Duration::from_secs(60 * 60);

/// The backoff of reconciliation after silence, faults or unreadable messages: a minute, doubling to two hours.
const NEG_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(60),
    cap: Duration::from_secs(2 * 60 * 60),
    dead_after: Duration::MAX,
    ..BackoffPolicy::RELAY
};

/// Returns the time of the pass after the last one, perhaps of an earlier process: random within bounds, so that relays
/// are not all asked at once.
pub(super) fn daily_pass(
    now: Now,
    last: Option<Timestamp>,
    bounds: (Duration, Duration),
    rng: &mut Rng,
) -> Mono {
    let wait = rng.between(bounds.0, bounds.1);
    // A clock that was set back makes no wait longer than the bounds.
    let passed = last.map_or(0, |last| now.unix.as_secs().saturating_sub(last.as_secs()));
    now.mono + wait.saturating_sub(Duration::from_secs(passed))
}

/// A small generator (SplitMix64): seeded by the configuration, the same on every machine.
#[derive(Clone, Debug)]
pub(super) struct Rng(u64);

impl Rng {
    pub(super) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a duration from `least` up to, and not including, `most`; `least` if these leave no room.
    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let room = u64::try_from(most.saturating_sub(least).as_millis()).unwrap_or(u64::MAX);
        least + Duration::from_millis(self.next().checked_rem(room).unwrap_or(0))
    }
}

const MAX_PERIODS: usize = 16;
/// Time that an event may take to arrive live, and a dead connection to be noticed.
const LIVE_DELAY: Duration = Duration::from_secs(2 * 60);

/// The way in which the events of a fetch are counted.
///
/// A gap is an event that a live subscription should have brought, and did not. The time at which an event reached a
/// relay is unknown; the time at which it was signed is not. An event counts as a gap if it was signed while everything
/// wanted was subscribed to, and was found later by a catch-up or the daily pass. Events signed while we were not
/// connected, first fetches, and events that the local relay had lost are no gaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CountAs {
    pub(super) path: SyncPath,
    /// The time up to which a live subscription should have brought them; `None` if none of them can be a gap.
    pub(super) gaps_until: Option<Timestamp>,
}

impl CountAs {
    /// Events of a live subscription.
    pub(super) const LIVE: Self = Self {
        path: SyncPath::Live,
        gaps_until: None,
    };
    /// Events that were not subscribed to before.
    pub(super) const NEW: Self = Self {
        path: SyncPath::CatchUp,
        gaps_until: None,
    };

    /// Counts events signed before `until` as gaps.
    pub(super) fn with_gaps_until(self, until: Timestamp) -> Self {
        Self {
            gaps_until: Some(until),
            ..self
        }
    }
}

/// The times in which everything wanted from a relay was subscribed to, over past connections of this process.
#[derive(Debug, Default)]
pub(super) struct ListeningTimes(VecDeque<(Timestamp, Timestamp)>);

impl ListeningTimes {
    /// Adds a connection that has ended.
    pub(super) fn ended(&mut self, from: Timestamp, until: Timestamp) {
        if self.0.len() >= MAX_PERIODS {
            self.0.pop_front();
        }
        self.0.push_back((from, until));
    }

    /// Returns whether an event signed at `at` is a gap. `current` is the time since which the open connection is
    /// subscribed.
    pub(super) fn is_gap(
        &self,
        count_as: CountAs,
        current: Option<Timestamp>,
        at: Timestamp,
    ) -> bool {
        let Some(until) = count_as.gaps_until else {
            return false;
        };
        let current = current.map(|from| (from, until));
        let mut periods = self.0.iter().copied().chain(current);
        periods.any(|(from, until)| from <= at && at + LIVE_DELAY <= until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600;
    const BOUNDS: (Duration, Duration) = (
        Duration::from_secs(23 * HOUR),
        Duration::from_secs(25 * HOUR),
    );

    fn at(secs: u64) -> Now {
        Now::new(
            Mono::from_secs(secs),
            Timestamp::from_secs(1_700_000_000 + secs),
        )
    }

    #[test]
    fn the_pass_comes_after_23_to_25_hours_and_not_always_the_same() {
        let mut rng = Rng::seeded(1);
        let waits: Vec<_> = (0..200)
            .map(|_| daily_pass(at(0), None, BOUNDS, &mut rng))
            .collect();
        assert!(
            waits
                .iter()
                .all(|due| (23 * HOUR..25 * HOUR).contains(&due.since_start().as_secs()))
        );
        let halves = waits
            .iter()
            .filter(|due| **due < Mono::from_secs(24 * HOUR))
            .count();
        assert!(
            (50..150).contains(&halves),
            "{halves} of 200 before 24 hours"
        );
    }

    #[test]
    fn a_restart_does_not_delay_the_pass() {
        let mut rng = Rng::seeded(2);
        let last = Timestamp::from_secs(1_700_000_000 - 20 * HOUR);
        let daily = daily_pass(at(0), Some(last), BOUNDS, &mut rng);
        assert!((3 * HOUR..5 * HOUR).contains(&daily.since_start().as_secs()));
        let long_ago = Timestamp::from_secs(1_700_000_000 - 30 * HOUR);
        assert!(daily_pass(at(0), Some(long_ago), BOUNDS, &mut rng) == Mono::ZERO);
    }

    #[test]
    fn the_next_pass_counts_from_the_end_of_the_last() {
        let mut rng = Rng::seeded(3);
        let daily = daily_pass(at(26 * HOUR), Some(at(26 * HOUR).unix), BOUNDS, &mut rng);
        assert!(daily >= Mono::from_secs(49 * HOUR));
    }

    #[test]
    fn reconciliation_backs_off_longer_after_each_failure() {
        let mut backoff = Backoff::new(NEG_BACKOFF);
        let (mut now, mut delays) = (Mono::from_secs(10), Vec::new());
        for _ in 0..30 {
            let retry_at = backoff.failed(now);
            assert_eq!(backoff.failed(now), retry_at);
            delays.push((retry_at - now).as_secs());
            now = retry_at;
        }
        assert_eq!(delays[..8], [60, 120, 240, 480, 960, 1_920, 3_840, 7_200]);
        assert_eq!(delays[29], 7_200);
    }

    #[test]
    fn reconnecting_ends_no_pause_even_as_other_software() {
        let config = Config::new("us.example".parse().unwrap());
        let now = Now::new(Mono::from_secs(9), 1_700_000_000.into());
        let relay = "wss://a.example".parse().unwrap();
        let mut history = RelayHistory::new(
            now,
            &config,
            &mut Rng::seeded(1),
            false,
            Scope::Full,
            (&relay, None),
        );
        history.pace.refused(now.mono);
        let strfry = RelayFacts {
            software: Some("strfry".into()),
            ..RelayFacts::default()
        };
        history.connected(now.mono, &strfry, &config);
        assert!(history.pace.is_paused(now.mono));
        assert!(!history.pace.is_paused(now.mono + Duration::from_secs(65)));
    }

    fn signed(secs: u64) -> Timestamp {
        at(secs).unix
    }

    #[test]
    fn only_events_signed_while_subscribed_are_gaps() {
        let mut listening_times = ListeningTimes::default();
        listening_times.ended(signed(1_000), signed(2_000));
        let count_as = CountAs::NEW.with_gaps_until(signed(5_000));
        let is_gap = |secs| listening_times.is_gap(count_as, Some(signed(4_000)), signed(secs));
        assert!(is_gap(1_000) && is_gap(1_880) && is_gap(4_500));
        assert!(
            !is_gap(999) && !is_gap(1_881),
            "before it, and too late to arrive"
        );
        assert!(
            !is_gap(3_000) && !is_gap(4_900),
            "not subscribed, and still in transit"
        );
        assert!(!listening_times.is_gap(CountAs::NEW, Some(signed(4_000)), signed(1_500)));
    }

    #[test]
    fn the_number_of_remembered_connections_is_bounded() {
        let mut listening_times = ListeningTimes::default();
        for n in 0..100 {
            listening_times.ended(signed(n * 1_000), signed(n * 1_000 + 500));
        }
        assert_eq!(listening_times.0.len(), MAX_PERIODS);
        let count_as = CountAs::NEW.with_gaps_until(signed(200_000));
        assert!(listening_times.is_gap(count_as, None, signed(99_100)));
        assert!(!listening_times.is_gap(count_as, None, signed(100)));
        listening_times = ListeningTimes::default();
        assert!(!listening_times.is_gap(count_as, None, signed(99_100)));
    }
}
