//! Where a new connection takes up: what counts of what was fetched before, and from when on to ask.

use grasp_core::admission::SyncPath;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{CoverageSet, RETENTION, RelayState, RelaySyncNeeds, Resume};
use grasp_core::{Now, RelayUrl};

use super::super::cells::{self, ProvenItems};
use super::super::desk::Desk;
use super::super::record::{COVERAGE_CAPACITY, RelayRecord};
use super::{Course, Link, Standing};

/// How a connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum TakeUp {
    /// With everything: nothing is confirmed.
    Fresh,
    /// With the rest of a pass that was cut short: what it had confirmed is caught up with.
    Continue {
        /// From when on.
        since: Timestamp,
    },
    /// With what came during a short absence.
    CatchUp {
        /// From when on.
        since: Timestamp,
    },
}

/// Why everything is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Sort {
    /// The relay is new, or was away for long.
    Fresh,
    /// It is time again.
    Daily,
    /// An earlier process has begun it, or even ended it.
    Resumed,
}

/// One pass over all that a relay has for us; the latest.
///
/// It may take several connections. Relays exist that end each after a minute and take a start every other second;
/// beginning anew each time would never come to an end.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Pass {
    pub(in crate::engine) sort: Sort,
    /// What was proven since then counts.
    pub(in crate::engine) began: Timestamp,
    /// Up to when everything confirmed in it is complete.
    pub(in crate::engine) complete_until: Timestamp,
    /// Whether it has come to an end, well or not.
    pub(in crate::engine) is_over: bool,
    /// Interruptions of listening before it began, which it makes up for.
    pub(in crate::engine) interrupted_before: usize,
}

impl Pass {
    pub(in crate::engine) fn begin(now: Timestamp, sort: Sort) -> Self {
        Self { sort, began: now, complete_until: now, is_over: false, interrupted_before: 0 }
    }

    /// The same, which makes up for so many interruptions of listening.
    pub(in crate::engine) fn after(self, interrupted_before: usize) -> Self {
        Self { interrupted_before, ..self }
    }

    /// What an earlier process has proven counts if it is no older than this.
    pub(in crate::engine) fn resumed(now: Timestamp, oldest: Timestamp) -> Self {
        let pass = Self::begin(oldest, Sort::Resumed);
        Self { complete_until: now, is_over: true, ..pass }
    }

    /// How what it brings is counted.
    pub(in crate::engine) fn course(&self) -> Course {
        let is_daily = self.sort == Sort::Daily && !self.is_over;
        Course { path: if is_daily { SyncPath::Daily } else { SyncPath::CatchUp }, ..Course::NEW }
    }
}

/// Notes that the relay is connected, and decides how to begin.
pub(super) fn take_up(desk: &mut Desk<'_>) -> TakeUp {
    let Now { mono, unix } = desk.now;
    let is_due = desk.standing.daily.is_due(mono);
    let is_over = desk.standing.pass.is_over;
    let Some(state) = desk.shared.states.get_mut(desk.relay) else { return TakeUp::Fresh };
    let was_away = state.last_connected().is_some() && state.should_clear_state(unix);
    if is_over && (is_due || was_away) {
        let sort = if is_due { Sort::Daily } else { Sort::Fresh };
        desk.standing.begin_pass(unix, sort);
        state.start_over(unix);
    }
    let kept = state.confirmed.clone();
    let how = match state.connected(unix) {
        Resume::CatchUp { since } => TakeUp::CatchUp { since },
        Resume::Fresh => go_on(desk, kept),
    };
    desk.standing.interrupted += usize::from(how != TakeUp::Fresh);
    how
}

/// Takes up a pass that has not come to its end, from what is confirmed, or else from what is proven on disk.
fn go_on(desk: &mut Desk<'_>, kept: RelaySyncNeeds) -> TakeUp {
    let Pass { began, complete_until, .. } = desk.standing.pass;
    let known = if kept.is_empty() {
        let target = desk.shared.index.target(desk.relay).unwrap_or_default();
        cells::proven(&target, &desk.standing.coverage, began)
    } else {
        Some(ProvenItems { items: kept, until: complete_until, at: began })
    };
    let Some(ProvenItems { items, until, at }) = known else {
        desk.standing.pass.complete_until = desk.now.unix;
        return TakeUp::Fresh;
    };
    desk.standing.pass = Pass { began: at, complete_until: until, ..desk.standing.pass };
    if let Some(state) = desk.state() {
        state.confirm(items);
    }
    TakeUp::Continue { since: until - RETENTION }
}

/// What is to be remembered of a relay.
pub(in crate::engine) fn record(
    now: Now,
    url: &RelayUrl,
    link: &Link,
    standing: &Standing,
    state: Option<&RelayState>,
) -> RelayRecord {
    let mut coverage = CoverageSet::with_capacity(COVERAGE_CAPACITY);
    let pass = standing.pass;
    let counts = standing.coverage.proofs().filter(|proof| proof.at >= pass.began);
    counts.for_each(|proof| coverage.add(*proof));
    if let Some(state) = state {
        let until = match (state.last_connected(), link) {
            (None, _) => pass.complete_until,
            (Some(last), Link::Up(session)) => session.heard_until(now.unix).unwrap_or(last),
            (Some(last), Link::Idle | Link::Dialing(_)) => last,
        };
        let proofs = cells::proofs(&state.confirmed, until, pass.began);
        proofs.for_each(|proof| coverage.add(proof));
    }
    standing.record(now, url, coverage)
}
