//! Full sync: a GRASP server that carries much of what we carry is asked for all that it has.
//!
//! Filters of layers 2 and 3 name every repository and every root in three ways: two hundred bytes a thread. Two
//! mirrors with ten thousand threads would send megabytes to find out that nothing is new; a filter for everything is
//! one line. Events that it brings and that are not wanted here are refused by the local relay and remembered. As
//! soon as they cost more than the filters would have, the connection falls back to filters.

use std::time::Duration;

use crate::limits::SUSPENDED_FOR;
use grasp_core::Mono;
use grasp_core::admission::Retry;
use grasp_core::nip34::repo_refs;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::{FilterHash, PendingItems, SyncIndex, build_layer2_and_layer3_filters};

use super::backlog::Purpose;
use super::filter::{Layer, wire_len};
use super::history::CountAs;
use super::io::{Judged, Outcome};
use super::job::JobMethod;
use super::judge::Arrival;
use super::reconcile::MAX_NEEDED;
use super::relay::RelayContext;
use super::session::ConnectionSession;
use super::visits::Scope;

/// The cost and benefit of full sync on one connection.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullSync {
    /// Bytes that the filters would have taken.
    filter_bytes: usize,
    /// Events received that are wanted here.
    useful: usize,
    /// Events received that are not.
    useless: usize,
    /// Histories are fetched by filters until then: a comparison found too many differences.
    filters_until: Mono,
    /// The time from which the next comparison may start.
    pub(super) compare_at: Mono,
}

/// The cost of an event, in bytes of filters.
const BYTES_PER_EVENT: usize = 1_024;
/// The cost of an id in a comparison; comparisons may cost some times as much as the filters.
const BYTES_PER_OFFERED_ID: usize = 20;
/// Useless events that are always tolerated.
const TOLERATED_USELESS: usize = 200;
/// Ids that a comparison may always offer.
const MIN_OFFERED: usize = 1_000;
/// Duration of filters after full sync was not worth it.
pub(super) const FALLBACK_FOR: Duration = SUSPENDED_FOR;
/// Duration of fetching histories by filters after a comparison offered too many ids.
const HISTORY_FALLBACK_FOR: Duration = Duration::from_secs(10 * 60);
/// Pause between comparisons, as a multiple of the last one's duration: each reads all that both sides have.
const COMPARISON_PAUSE_FACTOR: u32 = 5;

/// Returns the number of ids that a job may be offered.
pub(super) fn max_offered(full_sync: Option<FullSync>, layer: Layer) -> usize {
    let filter_bytes = full_sync
        .filter(|_| layer == Layer::All)
        .map(|one| one.filter_bytes);
    let affordable = |bytes: usize| (bytes / BYTES_PER_OFFERED_ID).clamp(MIN_OFFERED, MAX_NEEDED);
    filter_bytes.map_or(MAX_NEEDED, affordable)
}

/// Returns the filter for all that a relay has.
pub(super) fn all_events() -> Filter {
    Filter::new()
}

impl FullSync {
    pub(super) fn new(filter_bytes: usize) -> Self {
        Self {
            filter_bytes,
            ..Self::default()
        }
    }

    /// Counts further filters that it replaces.
    pub(super) fn replaces(&mut self, bytes: usize) {
        self.filter_bytes = self.filter_bytes.saturating_add(bytes);
    }

    /// Counts what it has brought; returns whether it is worth it.
    pub(super) fn count(
        &mut self,
        index: &SyncIndex,
        judged: &[Judged],
        arrivals: &[Arrival],
    ) -> bool {
        let all = Some(FilterHash::of(&all_events()));
        let ours = index.repos();
        let names_ours = |event: &Event| repo_refs(event).iter().any(|one| ours.contains_key(one));
        for (one, _) in judged
            .iter()
            .zip(arrivals)
            .filter(|(_, arrival)| arrival.filter == all)
        {
            match &one.outcome {
                Outcome::Stored | Outcome::Held | Outcome::Known => self.useful += 1,
                // That the local relay is busy says nothing about the event.
                Outcome::Refused {
                    retry: Retry::Soon, ..
                } => {}
                // It will be wanted as soon as its repository is served.
                Outcome::Refused {
                    event: Some(event), ..
                } if names_ours(event) => {}
                Outcome::Refused { .. } | Outcome::Forged => self.useless += 1,
            }
        }
        let tolerated = TOLERATED_USELESS.max(self.filter_bytes / BYTES_PER_EVENT);
        self.useless <= self.useful + tolerated
    }

    /// Returns whether histories are compared, rather than fetched by filters.
    pub(super) fn compares(&self, now: Mono) -> bool {
        now >= self.filters_until
    }

    /// Fetches histories by filters for a while, because too much differs.
    pub(super) fn differs_too_much(&mut self, now: Mono) {
        self.filters_until = now + HISTORY_FALLBACK_FOR;
    }

    /// Returns whether a comparison for this purpose has to wait for the end of a pause. One that finds events which the
    /// relay has dropped does not: until it ends, these are missing.
    pub(super) fn pauses_comparison(&self, now: Mono, purpose: Purpose) -> bool {
        now < self.compare_at && !matches!(purpose, Purpose::MissedLive(_))
    }

    /// Notes a comparison that took this time, and is followed by a pause.
    pub(super) fn compared(&mut self, now: Mono, took: Duration) {
        self.compare_at = now + took.saturating_mul(COMPARISON_PAUSE_FACTOR);
    }
}

impl ConnectionSession {
    /// Returns whether the connection uses full sync; switches to it if these filters, with those that are open,
    /// exceed the limit. Filters for states of held repositories do not count: nothing else of these is wanted.
    pub(super) fn try_full_sync(&mut self, ctx: &mut RelayContext<'_>, filters: &[Filter]) -> bool {
        if ctx.history.scope != Scope::Full {
            return false;
        }
        let bytes = bytes(filters.iter().filter(|filter| filter.kinds.is_none()));
        if let Some(full_sync) = &mut self.full_sync {
            full_sync.replaces(bytes);
            return true;
        }
        let filter_bytes = bytes + self.live.items().map(|(_, one)| one.bytes).sum::<usize>();
        if !self.exceeds_full_sync_limit(ctx, filter_bytes)
            || ctx.mono() < ctx.history.filters_until
        {
            return false;
        }
        self.full_sync = Some(FullSync::new(filter_bytes));
        if self.live.items().next().is_some() {
            self.live.needs_rebuild = true;
        } else {
            self.subscribe(ctx, vec![all_events()]);
        }
        true
    }

    /// Returns whether the history of these filters is fetched by a full comparison: that is work for both sides, so
    /// a few filters are sent as they are.
    pub(super) fn covered_by_full_sync(&self, ctx: &RelayContext<'_>, filters: &[Filter]) -> bool {
        let compares = self
            .full_sync
            .is_some_and(|full_sync| full_sync.compares(ctx.mono()));
        compares && !self.backlog.pages_only && self.exceeds_full_sync_limit(ctx, bytes(filters))
    }

    /// Fetches the history of items on a connection that uses full sync.
    ///
    /// Repositories that were just discovered are fetched by filter, in pages: nearly all of their threads are
    /// missing here, and much that the relay has may belong to others. Their threads and members come by comparison.
    pub(super) fn fetch_in_full_sync(
        &mut self,
        ctx: &mut RelayContext<'_>,
        items: PendingItems,
        method: JobMethod,
        count_as: CountAs,
    ) {
        let (repos, threads) = match method {
            JobMethod::Reconcile => (PendingItems::default(), items),
            JobMethod::Page => {
                let PendingItems {
                    repos,
                    root_events,
                    coordinates,
                } = items;
                let repos = PendingItems {
                    repos,
                    ..PendingItems::default()
                };
                (
                    repos,
                    PendingItems {
                        root_events,
                        coordinates,
                        ..PendingItems::default()
                    },
                )
            }
        };
        let filters = build_layer2_and_layer3_filters(&repos, None, &self.budget);
        self.backlog
            .fetch(ctx, Purpose::Items, filters, method, repos, count_as);
        let filters = build_layer2_and_layer3_filters(&threads, None, &self.budget);
        let (filters, method) = match self.covered_by_full_sync(ctx, &filters) {
            true => (vec![all_events()], JobMethod::Reconcile),
            false => (filters, method),
        };
        self.backlog
            .fetch(ctx, Purpose::Items, filters, method, threads, count_as);
    }

    fn exceeds_full_sync_limit(&self, ctx: &RelayContext<'_>, bytes: usize) -> bool {
        ctx.history
            .profile
            .full_sync_from
            .is_some_and(|limit| bytes >= limit)
    }
}

/// Returns the approximate length of filters as JSON.
pub(super) fn bytes<'a>(filters: impl IntoIterator<Item = &'a Filter>) -> usize {
    filters.into_iter().map(wire_len).sum()
}
