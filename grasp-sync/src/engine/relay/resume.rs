//! The start of a connection: which earlier results count, and from when on to ask.

use crate::index::{CoverageSet, RETENTION, RelayState, RelaySyncNeeds, Resume};
use grasp_core::admission::SyncPath;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{Now, RelayUrl};

use super::super::context::RelayContext;
use super::super::proof_buckets::{self, ProvenItems};
use super::super::record::{COVERAGE_CAPACITY, RelayRecord};
use super::{CountAs, Link, RelayHistory};

/// The extent of what a new connection fetches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum StartMode {
    /// Everything: nothing is confirmed.
    Fresh,
    /// The rest of an interrupted pass, and what it had confirmed from `since` on.
    Continue { since: Timestamp },
    /// What was published during a short absence.
    CatchUp { since: Timestamp },
}

/// The reason for a full pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum PassKind {
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
pub(in crate::engine) struct HistoryPass {
    pub(in crate::engine) kind: PassKind,
    /// Proofs from then on count.
    pub(in crate::engine) began: Timestamp,
    /// The time up to which everything confirmed in it is complete.
    pub(in crate::engine) complete_until: Timestamp,
    /// True if it has ended, successfully or not.
    pub(in crate::engine) is_over: bool,
    /// Interruptions of live subscriptions before it began, which it makes up for.
    pub(in crate::engine) interrupted_before: usize,
}

impl HistoryPass {
    pub(in crate::engine) fn begin(now: Timestamp, kind: PassKind) -> Self {
        Self { kind, began: now, complete_until: now, is_over: false, interrupted_before: 0 }
    }

    /// Returns the pass with the number of interruptions that it makes up for.
    pub(in crate::engine) fn after(self, interrupted_before: usize) -> Self {
        Self { interrupted_before, ..self }
    }

    /// Returns the pass of an earlier process, whose proofs count if they are no older than `oldest`.
    pub(in crate::engine) fn resumed(now: Timestamp, oldest: Timestamp) -> Self {
        let pass = Self::begin(oldest, PassKind::Resumed);
        Self { complete_until: now, is_over: true, ..pass }
    }

    /// Returns the way in which its events are counted.
    pub(in crate::engine) fn count_as(&self) -> CountAs {
        let is_daily = self.kind == PassKind::Daily && !self.is_over;
        CountAs { path: if is_daily { SyncPath::Daily } else { SyncPath::CatchUp }, ..CountAs::NEW }
    }
}

/// Marks the relay as connected, and chooses what to fetch.
pub(super) fn choose_start(ctx: &mut RelayContext<'_>) -> StartMode {
    let Now { mono, unix } = ctx.now;
    let is_due = ctx.history.daily.is_due(mono);
    let is_over = ctx.history.pass.is_over;
    let Some(state) = ctx.shared.states.get_mut(ctx.relay) else { return StartMode::Fresh };
    let was_away = state.last_connected().is_some() && state.should_clear_state(unix);
    if is_over && (is_due || was_away) {
        let kind = if is_due { PassKind::Daily } else { PassKind::Fresh };
        ctx.history.begin_pass(unix, kind);
        state.start_over(unix);
    }
    let kept = state.confirmed.clone();
    let how = match state.connected(unix) {
        Resume::CatchUp { since } => StartMode::CatchUp { since },
        Resume::Fresh => continue_pass(ctx, kept),
    };
    ctx.history.interrupted += usize::from(how != StartMode::Fresh);
    how
}

/// Continues an unfinished pass from what is confirmed, or else from what is proven on disk.
fn continue_pass(ctx: &mut RelayContext<'_>, kept: RelaySyncNeeds) -> StartMode {
    let HistoryPass { began, complete_until, .. } = ctx.history.pass;
    let known = if kept.is_empty() {
        let target = ctx.shared.index.target(ctx.relay).unwrap_or_default();
        proof_buckets::proven(&target, &ctx.history.coverage, began)
    } else {
        Some(ProvenItems { items: kept, until: complete_until, at: began })
    };
    let Some(ProvenItems { items, until, at }) = known else {
        ctx.history.pass.complete_until = ctx.now.unix;
        return StartMode::Fresh;
    };
    ctx.history.pass = HistoryPass { began: at, complete_until: until, ..ctx.history.pass };
    if let Some(state) = ctx.state() {
        state.confirm(items);
    }
    StartMode::Continue { since: until - RETENTION }
}

/// Returns the record of a relay.
pub(in crate::engine) fn record(
    now: Now,
    url: &RelayUrl,
    link: &Link,
    history: &RelayHistory,
    state: Option<&RelayState>,
) -> RelayRecord {
    let mut coverage = CoverageSet::with_capacity(COVERAGE_CAPACITY);
    let pass = history.pass;
    let counts = history.coverage.proofs().filter(|proof| proof.at >= pass.began);
    counts.for_each(|proof| coverage.add(*proof));
    if let Some(state) = state {
        let until = match (state.last_connected(), link) {
            (None, _) => pass.complete_until,
            (Some(last), Link::Up(session)) => session.heard_until(now.unix).unwrap_or(last),
            (Some(last), Link::Idle | Link::Dialing(_)) => last,
        };
        let proofs = proof_buckets::proofs(&state.confirmed, until, pass.began);
        proofs.for_each(|proof| coverage.add(proof));
    }
    history.record(now, url, coverage)
}
