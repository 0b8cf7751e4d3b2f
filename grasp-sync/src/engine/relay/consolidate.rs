//! Consolidation: rebuilds many small live filters as few full ones. The new are open before the old are closed.

use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{PendingItems, RETENTION, build_layer2_and_layer3_filters};

use super::super::context::RelayContext;
use super::super::job::Purpose;
use super::super::layer::Layer;
use super::super::report::Report;
use super::full_sync::all_events;
use super::live::{LivePhase, LiveRequest};
use super::session::Session;

impl Session {
    /// Subscribes to everything confirmed and everything pending in as few filters as possible.
    ///
    /// Called only when requests may be sent, and followed by sending at once. The old requests stay open until the
    /// new ones are in force, as far as there is room for both. Pending batches are not touched: they fetch history,
    /// and their items stay subscribed to. Announcements keep their own subscription.
    pub(super) fn rebuild_live(&mut self, ctx: &mut RelayContext<'_>) {
        self.live.needs_rebuild = false;
        let before = self.live.filters();
        let filters = match self.full_sync {
            Some(_) => vec![all_events()],
            None => {
                let items = self.subscribed_items(ctx);
                build_layer2_and_layer3_filters(&items, None, &self.budget)
            }
        };
        let after = filters.len();
        self.replace_with(ctx, |_| true, filters);
        self.live.filters_at_rebuild = after;
        self.live.repo_requests_at_rebuild = self.live.requests_for(Layer::Repos);
        ctx.report(|relay| Report::Consolidated { relay, before, after });
    }

    /// Rebuilds only the requests for repositories, if there are many: each takes a slot, and a complete rebuild is
    /// worth it only for many filters. Returns `false` if there are few.
    pub(super) fn merge_repos(&mut self, ctx: &mut RelayContext<'_>) -> bool {
        if !self.live.are_repos_fragmented() || self.full_sync.is_some() {
            return false;
        }
        let confirmed = ctx.state().map(|state| state.confirmed.repos.clone()).unwrap_or_default();
        let mut items = PendingItems { repos: confirmed, ..PendingItems::default() };
        for batch in ctx.batches().iter() {
            let repos = batch.items.repos.clone();
            items.include(PendingItems { repos, ..PendingItems::default() });
        }
        let filters = build_layer2_and_layer3_filters(&items, None, &self.budget);
        self.replace_with(ctx, |layer| layer == Layer::Repos, filters);
        self.live.repo_requests_at_rebuild = self.live.requests_for(Layer::Repos);
        true
    }

    /// Replaces the requests of some layers by requests for these filters. What was missed before is fetched once
    /// they are in force.
    fn replace_with(
        &mut self,
        ctx: &mut RelayContext<'_>,
        which: impl Fn(Layer) -> bool,
        filters: Vec<Filter>,
    ) {
        let now = ctx.now.unix;
        let replaced = self.live.items().filter(|(_, one)| which(one.layer));
        let covered = replaced.map(|(_, one)| one.covered_until(now)).min();
        let covered = covered.filter(|covered| *covered < now).map(|covered| covered - RETENTION);
        let under_way = self.replace_live_items(ctx, which);
        let from = covered.into_iter().chain(under_way).min();
        self.live.add(&mut ctx.shared.ids, now, filters, from, &self.budget);
    }

    fn subscribed_items(&self, ctx: &mut RelayContext<'_>) -> PendingItems {
        let mut items = ctx.state().map(|state| state.confirmed.clone()).unwrap_or_default();
        for batch in ctx.batches().iter() {
            items.include(batch.items.clone());
        }
        items
    }

    /// Marks the requests of some layers to be closed once others are in force. Returns the start of what was still
    /// being fetched for them.
    pub(super) fn replace_live_items(
        &mut self,
        ctx: &mut RelayContext<'_>,
        which: impl Fn(Layer) -> bool,
    ) -> Option<Timestamp> {
        let items = self.live.items().filter(|(_, one)| which(one.layer));
        let items: Vec<_> = items.map(|(id, _)| id).collect();
        let mut under_way = None;
        for id in items {
            let Some(request) = self.live.requests.get_mut(&id) else { continue };
            let dropped = std::mem::take(&mut request.has_dropped).then(|| request.plain_filters());
            if let LivePhase::Open(sub) = request.phase {
                request.phase = LivePhase::Replaced(sub);
            } else {
                self.live.requests.remove(&id);
            }
            self.drop_group_for(ctx, Purpose::Poll(id));
            if let Some(filters) = dropped {
                self.compare_dropped(ctx, id, filters);
            }
            // A comparison has no window that could be handed on, and continues by itself.
            if !self.is_comparing_missed(id) {
                let since = self.drop_group_for(ctx, Purpose::MissedLive(id));
                under_way = under_way.into_iter().chain(since).min();
            }
        }
        under_way
    }

    /// Closes one request that is being replaced, for want of room; returns `false` if there is none.
    pub(super) fn close_one_replaced(&mut self, ctx: &mut RelayContext<'_>) -> bool {
        let Some((id, sub)) = self.live.replaced() else { return false };
        self.close(ctx, sub);
        self.live.requests.remove(&id);
        self.live.mark_missed(ctx.now.unix);
        true
    }

    /// Closes replaced requests, once all their replacements are answered.
    pub(super) fn end_replacement(&mut self, ctx: &mut RelayContext<'_>) {
        if self.live.replaced().is_none() {
            return;
        }
        let is_on_its_way = |one: &LiveRequest| match one.phase {
            LivePhase::Queued => true,
            LivePhase::Open(sub) => !self.subs.is_answered(sub),
            _ => false,
        };
        if self.live.requests.values().any(is_on_its_way) {
            return;
        }
        while self.close_one_replaced(ctx) {}
    }

    /// Removes the jobs of a purpose; returns the start of their window, if they have any.
    pub(super) fn drop_group_for(
        &mut self,
        ctx: &mut RelayContext<'_>,
        purpose: Purpose,
    ) -> Option<Timestamp> {
        let (group, _) = self.groups.iter().find(|(_, one)| one.purpose == purpose)?;
        let group = *group;
        let jobs = self.jobs.iter().filter(|(_, job)| job.group == group);
        let jobs: Vec<_> = jobs.map(|(id, job)| (*id, job.window().0)).collect();
        for (job, _) in &jobs {
            self.drop_job(ctx, *job);
        }
        self.groups.remove(&group);
        jobs.into_iter().filter_map(|(_, since)| since).min()
    }
}
