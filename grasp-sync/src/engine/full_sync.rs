//! Full sync: a GRASP server that carries much of what we carry is asked for all that it has.
//!
//! Filters of layers 2 and 3 name every repository and every root in three ways: two hundred bytes a thread. Two
//! mirrors with ten thousand threads would send megabytes to find out that nothing is new; a filter for everything is
//! one line. Events that it brings and that are not wanted here are refused by the local relay and remembered. As
//! soon as they cost more than the filters would have, the connection falls back to filters.

use std::time::Duration;

use crate::index::{FilterHash, PendingItems, build_layer2_and_layer3_filters};
use crate::limits::PARK;
use grasp_core::Mono;
use grasp_core::admission::Retry;
use grasp_core::nip34::repo_refs;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;

use super::context::Context;
use super::filter::{CompactFilter, Layer, wire_len};
use super::gaps::CountAs;
use super::ids::JobId;
use super::io::{Judged, Outcome};
use super::job::{Job, Method, Purpose};
use super::reconcile::MAX_NEEDED;
use super::report::Report;
use super::session::{Arrival, Session};
use super::suspended::RequestMode;

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
const FALLBACK_FOR: Duration = PARK;
/// Duration of fetching histories by filters after a comparison offered too many ids.
const HISTORY_FALLBACK_FOR: Duration = Duration::from_secs(10 * 60);
/// Pause between comparisons, as a multiple of the last one's duration: each reads all that both sides have.
pub(super) const COMPARISON_PAUSE_FACTOR: u32 = 5;

/// Returns the number of ids that a job may be offered.
pub(super) fn max_offered(full_sync: Option<FullSync>, layer: Layer) -> usize {
    let filter_bytes = full_sync.filter(|_| layer == Layer::All).map(|one| one.filter_bytes);
    let affordable = |bytes: usize| (bytes / BYTES_PER_OFFERED_ID).clamp(MIN_OFFERED, MAX_NEEDED);
    filter_bytes.map_or(MAX_NEEDED, affordable)
}

/// Returns the filter for all that a relay has.
pub(super) fn all_events() -> Filter {
    Filter::new()
}

impl Session {
    /// Returns whether the connection uses full sync; switches to it if these filters, with those that are open,
    /// exceed the limit. Filters for states of held repositories do not count: nothing else of these is wanted.
    pub(super) fn try_full_sync(&mut self, ctx: &mut Context<'_>, filters: &[Filter]) -> bool {
        let bytes = bytes(filters.iter().filter(|filter| filter.kinds.is_none()));
        if let Some(full_sync) = &mut self.full_sync {
            full_sync.filter_bytes = full_sync.filter_bytes.saturating_add(bytes);
            return true;
        }
        let filter_bytes = bytes + self.live.items().map(|(_, one)| one.bytes).sum::<usize>();
        if !self.exceeds_full_sync_limit(ctx, filter_bytes)
            || ctx.mono() < ctx.history.filters_until
        {
            return false;
        }
        self.full_sync = Some(FullSync { filter_bytes, ..FullSync::default() });
        if self.live.items().next().is_some() {
            self.live.needs_rebuild = true;
        } else {
            self.subscribe(ctx, vec![all_events()]);
        }
        true
    }

    /// Returns whether the history of these filters is fetched by a full comparison: that is work for both sides, so
    /// a few filters are sent as they are.
    pub(super) fn covered_by_full_sync(&self, ctx: &Context<'_>, filters: &[Filter]) -> bool {
        let compares =
            self.full_sync.is_some_and(|full_sync| ctx.mono() >= full_sync.filters_until);
        compares && !self.backlog.pages_only && self.exceeds_full_sync_limit(ctx, bytes(filters))
    }

    /// Fetches the history of items on a connection that uses full sync.
    ///
    /// Repositories that were just discovered are fetched by filter, in pages: nearly all of their threads are
    /// missing here, and much that the relay has may belong to others. Their threads and members come by comparison.
    pub(super) fn fetch_in_full_sync(
        &mut self,
        ctx: &mut Context<'_>,
        items: PendingItems,
        method: Method,
        count_as: CountAs,
    ) {
        let (repos, threads) = match method {
            Method::Reconcile => (PendingItems::default(), items),
            Method::Page => {
                let PendingItems { repos, root_events, coordinates } = items;
                let repos = PendingItems { repos, ..PendingItems::default() };
                (repos, PendingItems { root_events, coordinates, ..PendingItems::default() })
            }
        };
        let filters = build_layer2_and_layer3_filters(&repos, None, &self.budget);
        self.fetch(ctx, Purpose::Items, filters, method, repos, count_as);
        let filters = build_layer2_and_layer3_filters(&threads, None, &self.budget);
        let (filters, method) = match self.covered_by_full_sync(ctx, &filters) {
            true => (vec![all_events()], Method::Reconcile),
            false => (filters, method),
        };
        self.fetch(ctx, Purpose::Items, filters, method, threads, count_as);
    }

    fn exceeds_full_sync_limit(&self, ctx: &Context<'_>, bytes: usize) -> bool {
        ctx.history.profile.full_sync_from.is_some_and(|limit| bytes >= limit)
    }

    /// Counts what full sync has brought, and falls back to filters if it is not worth it.
    pub(super) fn count_full_sync(
        &mut self,
        ctx: &mut Context<'_>,
        judged: &[Judged],
        arrivals: &[Arrival],
    ) {
        let Some(full_sync) = &mut self.full_sync else { return };
        let all = Some(FilterHash::of(&all_events()));
        let ours = ctx.shared.index.repos();
        let names_ours = |event: &Event| repo_refs(event).iter().any(|one| ours.contains_key(one));
        for (one, _) in judged.iter().zip(arrivals).filter(|(_, arrival)| arrival.filter == all) {
            match &one.outcome {
                Outcome::Stored | Outcome::Held | Outcome::Known => full_sync.useful += 1,
                // That the local relay is busy says nothing about the event.
                Outcome::Refused { retry: Retry::Soon, .. } => {}
                // It will be wanted as soon as its repository is served.
                Outcome::Refused { event: Some(event), .. } if names_ours(event) => {}
                Outcome::Refused { .. } | Outcome::Forged => full_sync.useless += 1,
            }
        }
        let tolerated = TOLERATED_USELESS.max(full_sync.filter_bytes / BYTES_PER_EVENT);
        if full_sync.useless > full_sync.useful + tolerated {
            self.fall_back_to_filters(ctx);
        }
    }

    /// Suspends a layer that the relay refuses; falls back to filters if it refuses full sync.
    pub(super) fn suspend(&mut self, ctx: &mut Context<'_>, layer: Layer, mode: RequestMode) {
        match layer {
            Layer::All => self.fall_back_to_filters(ctx),
            Layer::Announcements | Layer::Repos | Layer::Roots => ctx.suspend(layer, mode),
        }
    }

    /// Returns whether a full comparison may start: everything else is fetched, and the last comparison is some time
    /// ago.
    pub(super) fn may_start_comparison(&self, ctx: &Context<'_>) -> bool {
        let has_paused = self.full_sync.is_none_or(|full_sync| ctx.mono() >= full_sync.compare_at);
        has_paused && !self.backlog.has_other_work(ctx)
    }

    /// Returns when a queued full comparison may start, if it waits for time.
    pub(super) fn next_comparison(&self) -> Option<Mono> {
        let full_sync = self.full_sync.filter(|_| self.backlog.has_queued_comparison());
        full_sync.map(|full_sync| full_sync.compare_at)
    }

    /// Fetches the histories that waited for a full comparison by filters, because too much differs.
    pub(super) fn fetch_histories_by_filters(&mut self, ctx: &mut Context<'_>) {
        if let Some(full_sync) = &mut self.full_sync {
            full_sync.filters_until = ctx.mono() + HISTORY_FALLBACK_FOR;
        }
        self.replace_by_filters(ctx, |job| job.window().0.is_none());
    }

    /// Falls back to filters: full sync is refused, or not worth it.
    pub(super) fn fall_back_to_filters(&mut self, ctx: &mut Context<'_>) {
        if self.full_sync.take().is_some() {
            ctx.history.filters_until = ctx.mono() + FALLBACK_FOR;
            self.live.needs_rebuild = true;
            ctx.report(|relay| Report::CalledByName { relay });
        }
        // The live set may bring on such jobs until it is rebuilt.
        self.replace_by_filters(ctx, |_| true);
    }

    /// Replaces jobs for everything by jobs for filters. Polls end, and start again with the live set.
    fn replace_by_filters(&mut self, ctx: &mut Context<'_>, which: impl Fn(&Job) -> bool) {
        for id in self.backlog.jobs_where(|job| job.layer == Layer::All && which(job)) {
            match self.backlog.batch_of(id).map(|batch| batch.purpose) {
                Some(poll @ Purpose::Poll(_)) => _ = self.drop_batch_for(ctx, poll),
                _ => self.replace_job_by_filters(ctx, id),
            }
        }
    }

    fn replace_job_by_filters(&mut self, ctx: &mut Context<'_>, id: JobId) {
        let job = self.backlog.get(id).zip(self.backlog.batch_of(id));
        let Some((job, its_batch)) = job else { return };
        let items = match its_batch.purpose {
            Purpose::Items => its_batch.items.clone(),
            Purpose::CatchUp | Purpose::MissedLive(_) => ctx.history.state.confirmed.clone(),
            Purpose::Announcements | Purpose::Poll(_) => return,
        };
        let (batch, began, (since, _)) = (job.batch, job.began, job.window());
        let method = if since.is_some() { Method::Page } else { Method::Reconcile };
        for filter in build_layer2_and_layer3_filters(&items, since, &self.budget) {
            let (part, compact) = (ctx.shared.ids.next(JobId), CompactFilter::new(filter, None));
            self.backlog.add(ctx, part, Job::new(batch, compact, began), method);
        }
        self.drop_job(ctx, id);
        self.end_batch_if_complete(ctx, batch);
    }
}

fn bytes<'a>(filters: impl IntoIterator<Item = &'a Filter>) -> usize {
    filters.into_iter().map(wire_len).sum()
}
