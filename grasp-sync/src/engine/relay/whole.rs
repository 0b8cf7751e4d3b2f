//! Full sync: a GRASP server that carries much of what we carry is asked for all that it has.
//!
//! Filters of layers 2 and 3 name every repository and every root in three ways: two hundred bytes a thread. Two
//! mirrors with ten thousand threads would send megabytes to find out that nothing is new; a filter for everything is
//! one line. Events that it brings and that are not wanted here are refused by the local relay and remembered. As
//! soon as they cost more than the filters would have, the connection falls back to filters.

use std::time::Duration;

use grasp_core::Mono;
use grasp_core::admission::Lasting;
use grasp_core::limits::{Action, PARK};
use grasp_core::nip34::repo_refs;
use grasp_core::nostr::event::Event;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::{
    AddFilters, BatchProgress, FilterHash, PendingItems, build_layer2_and_layer3_filters,
};

use super::super::batch::Purpose;
use super::super::desk::Desk;
use super::super::history::{Job, Method, Phase};
use super::super::ids::{GroupId, JobId};
use super::super::io::{Judged, Outcome};
use super::super::layer::{Layer, wire_len};
use super::super::lean::LeanFilter;
use super::super::parks::Way;
use super::super::reconcile::MAX_NEEDED;
use super::super::report::Report;
use super::gaps::Course;
use super::session::Session;

/// The cost and benefit of full sync on one connection.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Whole {
    /// Bytes that the filters would have taken.
    named: usize,
    /// Events received that are wanted here.
    useful: usize,
    /// Events received that are not.
    useless: usize,
    /// Histories are fetched by filters until then: a comparison found too many differences.
    named_until: Mono,
    /// The time from which the next comparison may start.
    compare_at: Mono,
}

/// The cost of an event, in bytes of filters.
const EVENT_BYTES: usize = 1_024;
/// The cost of an id in a comparison; comparisons may cost some times as much as the filters.
const ID_BYTES: usize = 20;
/// Useless events that are always tolerated.
const FORGIVEN: usize = 200;
/// Ids that a comparison may always offer.
const FEWEST_OFFERED: usize = 1_000;
/// Duration of filters after full sync was not worth it.
const NAMED_FOR: Duration = PARK;
/// Duration of fetching histories by filters after a comparison offered too many ids.
const HISTORY_NAMED_FOR: Duration = Duration::from_secs(10 * 60);
/// Pause between comparisons, as a multiple of the last one's duration: each reads all that both sides have.
const COMPARISON_REST: u32 = 5;

impl Whole {
    fn new(named: usize) -> Self {
        Self { named, useful: 0, useless: 0, named_until: Mono::ZERO, compare_at: Mono::ZERO }
    }

    fn is_worth_it(&self) -> bool {
        self.useless <= self.useful + FORGIVEN.max(self.named / EVENT_BYTES)
    }

    /// Returns the number of ids that a comparison may offer.
    fn most_offered(&self) -> usize {
        (self.named / ID_BYTES).clamp(FEWEST_OFFERED, MAX_NEEDED)
    }
}

/// Returns the number of ids that a job may be offered.
pub(super) fn most_offered(whole: Option<Whole>, layer: Layer) -> usize {
    let whole = whole.filter(|_| layer == Layer::Whole);
    whole.map_or(MAX_NEEDED, |whole| whole.most_offered())
}

/// Returns the filter for all that a relay has.
pub(super) fn all() -> Filter {
    Filter::new()
}

impl Session {
    /// Returns whether the connection uses full sync; switches to it if these filters, with those that are open,
    /// exceed the limit. Filters for states of held repositories do not count: nothing else of these is wanted.
    pub(super) fn is_whole(&mut self, desk: &mut Desk<'_>, filters: &[Filter]) -> bool {
        let bytes = bytes(filters.iter().filter(|filter| filter.kinds.is_none()));
        if let Some(whole) = &mut self.whole {
            whole.named = whole.named.saturating_add(bytes);
            return true;
        }
        let named = bytes + self.live.items().map(|(_, one)| one.bytes).sum::<usize>();
        if !self.is_too_much(desk, named) || desk.mono() < desk.standing.named_until {
            return false;
        }
        self.whole = Some(Whole::new(named));
        if self.live.items().next().is_some() {
            self.live.rebuild = true;
        } else {
            self.listen(desk, vec![all()]);
        }
        true
    }

    /// Returns whether the history of these filters is fetched by a full comparison: that is work for both sides, so
    /// a few filters are sent as they are.
    pub(super) fn is_had_from_whole(&self, desk: &Desk<'_>, filters: &[Filter]) -> bool {
        let compares = self.whole.is_some_and(|whole| desk.mono() >= whole.named_until);
        compares && !self.pages_only && self.is_too_much(desk, bytes(filters))
    }

    /// Fetches the history of items on a connection that uses full sync.
    ///
    /// Repositories that were just discovered are fetched by filter, in pages: nearly all of their threads are
    /// missing here, and much that the relay has may belong to others. Their threads and members come by comparison.
    pub(super) fn fetch_with_whole(
        &mut self,
        desk: &mut Desk<'_>,
        action: AddFilters,
        method: Method,
        course: Course,
    ) {
        let AddFilters { relay, items } = action;
        let (repos, threads) = match method {
            Method::Reconcile => (PendingItems::default(), items),
            Method::Page => {
                let PendingItems { repos, root_events, coordinates } = items;
                let repos = PendingItems { repos, ..PendingItems::default() };
                (repos, PendingItems { root_events, coordinates, ..PendingItems::default() })
            }
        };
        let repos = AddFilters { relay: relay.clone(), items: repos };
        self.fetch_batch(desk, repos.filters(&self.budget), method, repos.items, course);
        let threads = AddFilters { relay, items: threads };
        let filters = threads.filters(&self.budget);
        let (filters, method) = match self.is_had_from_whole(desk, &filters) {
            true => (vec![all()], Method::Reconcile),
            false => (filters, method),
        };
        self.fetch_batch(desk, filters, method, threads.items, course);
    }

    fn is_too_much(&self, desk: &Desk<'_>, bytes: usize) -> bool {
        desk.standing.manners.whole_from.is_some_and(|most| bytes >= most)
    }

    /// Counts what full sync has brought, and falls back to filters if it is not worth it.
    pub(super) fn weigh(
        &mut self,
        desk: &mut Desk<'_>,
        judged: &[Judged],
        filters: &[Option<FilterHash>],
    ) {
        let Some(whole) = &mut self.whole else { return };
        let all = Some(FilterHash::of(&all()));
        for (one, _) in judged.iter().zip(filters).filter(|(_, filter)| **filter == all) {
            match &one.outcome {
                Outcome::Stored | Outcome::Held | Outcome::Known => whole.useful += 1,
                // That the local relay is busy says nothing about the event.
                Outcome::Refused { lasting: Lasting::Briefly, .. } => {}
                // It will be wanted as soon as its repository is served.
                Outcome::Refused { event: Some(event), .. } if is_of_ours(desk, event) => {}
                Outcome::Refused { .. } | Outcome::Forged => whole.useless += 1,
            }
        }
        if !whole.is_worth_it() {
            self.call_by_name(desk);
        }
    }

    /// Returns whether a refusal is about the filter for everything.
    pub(super) fn is_refusal_of_whole(layer: Layer, action: Action) -> bool {
        let is_about_the_filter = matches!(
            action,
            Action::HalveFilters | Action::NeverResend | Action::ParkAndSurface(_) | Action::Bisect
        );
        layer == Layer::Whole && is_about_the_filter
    }

    /// Suspends a layer that the relay refuses; falls back to filters if it refuses full sync.
    pub(super) fn park(&mut self, desk: &mut Desk<'_>, layer: Layer, way: Way) {
        match layer {
            Layer::Whole => self.call_by_name(desk),
            Layer::Announcements | Layer::Repos | Layer::Roots => desk.park(layer, way),
        }
    }

    /// Returns whether a full comparison may start: everything else is fetched, and the last comparison is some time
    /// ago.
    pub(super) fn may_compare(&self, desk: &Desk<'_>) -> bool {
        let is_rested = self.whole.is_none_or(|whole| desk.mono() >= whole.compare_at);
        is_rested && !self.has_other_work(desk)
    }

    /// Returns when a queued full comparison may start, if it waits for time.
    pub(super) fn next_comparison(&self) -> Option<Mono> {
        let line = self.lines.get(&Method::Reconcile)?;
        let waits = line.iter().any(|(_, id)| self.is_last(*id));
        self.whole.filter(|_| waits).map(|whole| whole.compare_at)
    }

    /// Notes the end of a full comparison, and how long it took.
    pub(super) fn whole_compared(&mut self, now: Mono, took: Duration) {
        if let Some(whole) = &mut self.whole {
            whole.compare_at = now + took.saturating_mul(COMPARISON_REST);
        }
    }

    /// Fetches the histories that waited for a full comparison by filters, because too much differs.
    pub(super) fn name_histories(&mut self, desk: &mut Desk<'_>) {
        if let Some(whole) = &mut self.whole {
            whole.named_until = desk.mono() + HISTORY_NAMED_FOR;
        }
        let is_comparison = |job: &Job| job.layer == Layer::Whole && job.window().0.is_none();
        let compared = self.jobs.iter().filter(|(_, job)| is_comparison(job));
        let compared: Vec<(JobId, GroupId)> = compared.map(|(id, job)| (*id, job.group)).collect();
        for (id, group) in compared {
            match self.groups.get(&group).map(|group| group.purpose) {
                Some(poll @ Purpose::Poll(_)) => _ = self.drop_group_for(desk, poll),
                _ => self.name_job(desk, id),
            }
        }
    }

    /// Returns whether a job is a queued full comparison.
    pub(super) fn is_last(&self, id: JobId) -> bool {
        let is_comparison = |job: &Job| matches!(job.phase, Phase::Queued(Method::Reconcile));
        self.jobs.get(&id).is_some_and(|job| job.layer == Layer::Whole && is_comparison(job))
    }

    /// Returns whether anything but full sync is being fetched.
    pub(super) fn has_other_work(&self, desk: &Desk<'_>) -> bool {
        let parked = self.parked_layers(desk);
        let mut others = self.jobs.values().filter(|job| job.layer != Layer::Whole);
        others.any(|job| Self::is_at_work(desk, job, &parked))
    }

    /// Makes other queued full comparisons wait for the one that starts, which serves them too.
    pub(super) fn lead(&mut self, leader: JobId) {
        if self.jobs.get(&leader).is_none_or(|job| job.layer != Layer::Whole) {
            return;
        }
        let others = self.jobs.iter().filter(|(id, job)| {
            let is_queued = matches!(job.phase, Phase::Queued(Method::Reconcile));
            **id != leader && job.layer == Layer::Whole && is_queued
        });
        let others: Vec<JobId> = others.map(|(id, _)| *id).collect();
        for id in others {
            self.leave_lines(id);
            if let Some(job) = self.jobs.get_mut(&id) {
                job.phase = Phase::Settling;
                job.behind = Some(leader);
            }
        }
    }

    /// Ends the jobs that waited for a full comparison.
    pub(super) fn led(&mut self, desk: &mut Desk<'_>, leader: JobId) {
        let behind = self.jobs.iter().filter(|(_, job)| job.behind == Some(leader));
        let behind: Vec<JobId> = behind.map(|(id, _)| *id).collect();
        for id in behind {
            if let Some(job) = self.jobs.get_mut(&id) {
                job.behind = None;
            }
            self.end_if_settled(desk, id);
        }
    }

    /// Falls back to filters: full sync is refused, or not worth it.
    pub(super) fn call_by_name(&mut self, desk: &mut Desk<'_>) {
        if self.whole.take().is_none() {
            return;
        }
        desk.standing.named_until = desk.mono() + NAMED_FOR;
        self.live.rebuild = true;
        let whole = self.jobs.iter().filter(|(_, job)| job.layer == Layer::Whole);
        let jobs: Vec<JobId> = whole.map(|(id, _)| *id).collect();
        for id in jobs {
            self.name_job(desk, id);
        }
        let relay = desk.relay.clone();
        desk.report(Report::CalledByName { relay });
    }

    /// Replaces a job for everything by jobs for filters. Polls start again with the live set.
    fn name_job(&mut self, desk: &mut Desk<'_>, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (group, asked, (since, _)) = (job.group, job.asked, job.window());
        let purpose = self.groups.get(&group).map(|group| group.purpose);
        let (items, method) = match purpose {
            Some(Purpose::Batch(batch)) => {
                (desk.batch(batch).map(|batch| batch.items.clone()), Method::Reconcile)
            }
            Some(Purpose::CatchUp | Purpose::ReachBack(_)) => {
                let method = if since.is_some() { Method::Page } else { Method::Reconcile };
                (desk.state().map(|state| state.confirmed.clone()), method)
            }
            Some(Purpose::Announcements | Purpose::Poll(_)) | None => return,
        };
        let items = items.unwrap_or_default();
        for filter in build_layer2_and_layer3_filters(&items, since, &self.budget) {
            let (layer, part) = (Layer::of(&filter), desk.shared.ids.job());
            let lean = LeanFilter::keep(filter, None);
            let _ = self.tracked(desk, group, |batch| batch.grow(part.part()));
            self.put_in_line(desk, part, Job::new(group, layer, lean, asked), method);
        }
        self.drop_job(desk, id);
        let progress = self.tracked(desk, group, |batch| batch.ended(id.part()));
        if progress == Some(BatchProgress::Complete) {
            self.complete(desk, group);
        }
    }
}

fn bytes<'a>(filters: impl IntoIterator<Item = &'a Filter>) -> usize {
    filters.into_iter().map(wire_len).sum()
}

/// Returns whether an event names a repository that is wanted here, if only in part.
fn is_of_ours(desk: &Desk<'_>, event: &Event) -> bool {
    repo_refs(event).iter().any(|repo| desk.shared.index.repos().contains_key(repo))
}
