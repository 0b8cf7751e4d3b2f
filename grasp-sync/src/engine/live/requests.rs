//! Sends, polls and rebuilds the live requests of a connection, and fetches what they missed.

use std::time::Duration;

use crate::limits::{Refusal, SlotClass};
use grasp_core::admission::SyncPath;
use grasp_core::limits::Admit;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{CONFIRMED_RETENTION, PendingItems, build_layer2_and_layer3_filters};

use super::super::backlog::Purpose;
use super::super::filter::Layer;
use super::super::full_sync::all_events;
use super::super::history::CountAs;
use super::super::io::{Delivered, Frame, LiveId, Report, SubId};
use super::super::job::JobMethod;
use super::super::relay::RelayContext;
use super::super::session::ConnectionSession;
use super::super::subs::{Blocked, SubKind};
use super::super::suspended::RequestMode;
use super::{LivePhase, LiveRequest, LiveStep, MAX_REPO_FRAGMENTS};

impl ConnectionSession {
    /// Queues live requests whose backoff has ended; polls those whose time has come.
    pub(in crate::engine) fn wake_live(&mut self, ctx: &mut RelayContext<'_>) {
        for (id, until) in std::mem::take(&mut self.backlog.polled) {
            self.live.polled(id, until);
        }
        let can_compare = self.backlog.can_compare(ctx);
        for (id, since) in self.live.wake(ctx.mono(), can_compare) {
            if self.backlog.batch_for(Purpose::Poll(id)).is_none() {
                self.fetch_stored(ctx, Purpose::Poll(id), id, since, true);
            }
        }
    }

    /// Fetches stored events of a live request by pages from `since` on, or by comparison if that is asked for and
    /// possible: it finds events of any date, for which pages would have to begin from the start each time.
    fn fetch_stored(
        &mut self,
        ctx: &mut RelayContext<'_>,
        purpose: Purpose,
        id: LiveId,
        since: Option<Timestamp>,
        compare: bool,
    ) {
        let Some(request) = self.live.requests.get(&id) else {
            return;
        };
        let (filters, method) = match compare && self.backlog.can_compare(ctx) {
            true => (request.stored_filters(None), JobMethod::Reconcile),
            false => (request.stored_filters(since), JobMethod::Page),
        };
        ctx.history.kept.interrupted += usize::from(method == JobMethod::Page);
        self.backlog.fetch(
            ctx,
            purpose,
            filters,
            method,
            PendingItems::default(),
            CountAs::NEW,
        );
    }

    /// Sends queued live requests. They need a slot but no pace: relays do not limit live subscriptions by the
    /// minute, and every second without one is a gap. Requests without a slot are polled.
    pub(in crate::engine) fn send_live(&mut self, ctx: &mut RelayContext<'_>) {
        if self.live.needs_rebuild {
            self.rebuild_live(ctx);
        }
        while let Some(id) = self.live.queued(self.auth) {
            if self.subscribe_live(ctx, id).is_ok() {
                continue;
            }
            if self.close_one_replaced(ctx)
                || self.merge_repos(ctx)
                || self.poll_threads_instead(ctx, id)
            {
                continue;
            }
            // Rebuilds only if enough was added since the last time for that to merge something.
            let before = self.live.filters_at_rebuild;
            if self.live.filters() > before + (before / 2).max(3) {
                self.rebuild_live(ctx);
            } else {
                self.live.poll(ctx.mono(), id);
            }
        }
        self.resubscribe_polled(ctx);
        self.end_replacement(ctx);
    }

    /// Makes room for a request for repositories by polling one for known threads instead. Returns `false` if there
    /// is none, or the request is for threads itself.
    fn poll_threads_instead(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) -> bool {
        if self
            .live
            .requests
            .get(&id)
            .is_none_or(|one| one.layer == Layer::Roots)
        {
            return false;
        }
        let thread = {
            let mut threads = self
                .live
                .items()
                .filter(|(_, one)| one.layer == Layer::Roots);
            threads.find_map(|(id, one)| Some((id, one.sub()?)))
        };
        let Some((thread, sub)) = thread else {
            return false;
        };
        self.subs.close(ctx, sub);
        self.live.poll(ctx.mono(), thread);
        true
    }

    fn subscribe_live(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) -> Result<(), Blocked> {
        let now = ctx.mono();
        let Some(request) = self.live.requests.get_mut(&id) else {
            return Ok(());
        };
        if let Admit::Wait(until) =
            ctx.history
                .suspended
                .admit(now, request.layer, RequestMode::Live)
        {
            request.phase = LivePhase::BackingOff(until);
            return Ok(());
        }
        let sub = self
            .subs
            .open(ctx, SlotClass::Live, request.bytes, SubKind::Live(id))?;
        ctx.history
            .suspended
            .sent(now, request.layer, RequestMode::Live);
        let filters = request.open(ctx.now.unix, sub, self.live.refuses_limit_zero);
        ctx.send(
            self.subs.conn,
            Frame::Subscribe {
                sub,
                filters,
                path: SyncPath::Live,
            },
        );
        Ok(())
    }

    /// Fetches what was published while a live request was not open, now that it is in force.
    fn fetch_missed(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) {
        let request = self.live.requests.get_mut(&id);
        let Some(from) = request.and_then(|request| request.missed_since.take()) else {
            return;
        };
        let purpose = Purpose::MissedLive(id);
        // One that is still under way is started again together with this one.
        let is_compared = self.backlog.is_comparing_missed(id);
        let from = self
            .backlog
            .drop_batch_for(ctx, &mut self.subs, purpose)
            .map_or(from, |earlier| earlier.min(from));
        // A comparison that began before it was open is begun again.
        self.backlog
            .drop_batch_for(ctx, &mut self.subs, Purpose::Poll(id));
        let Some(request) = self.live.requests.get_mut(&id) else {
            return;
        };
        let has_dropped = std::mem::take(&mut request.has_dropped);
        self.fetch_stored(ctx, purpose, id, Some(from), has_dropped || is_compared);
    }

    /// Subscribes to polled requests as soon as there is room.
    fn resubscribe_polled(&mut self, ctx: &mut RelayContext<'_>) {
        let polled = self.live.requests.iter();
        let polled = polled.filter(|(_, one)| matches!(one.phase, LivePhase::Polled(_)));
        for id in polled.map(|(id, _)| *id).collect::<Vec<_>>() {
            if self.subscribe_live(ctx, id).is_err() {
                return;
            }
        }
    }

    /// Handles live events: nothing is missing up to the latest of them.
    pub(in crate::engine) fn live_delivered(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: LiveId,
        rows: &[Delivered],
    ) {
        self.fetch_missed(ctx, id);
        let latest = rows.iter().map(|one| one.row.at.min(ctx.now.unix)).max();
        if let Some(request) = self.live.requests.get_mut(&id) {
            request.delivered_until = request
                .delivered_until
                .max(latest.unwrap_or(request.delivered_until));
        }
    }

    /// Notes that a live request is in force.
    pub(in crate::engine) fn live_established(
        &mut self,
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        id: LiveId,
    ) {
        self.subs
            .answered(ctx.mono(), sub, ctx.shared.config.watchdog);
        let Some(request) = self.live.requests.get_mut(&id) else {
            return;
        };
        request.delivered_until = request.delivered_until.max(ctx.now.unix);
        ctx.history
            .suspended
            .answered(request.layer, RequestMode::Live);
        self.fetch_missed(ctx, id);
    }

    /// Polls the newest live requests that exceed a lowered budget.
    pub(in crate::engine) fn poll_excess_live(&mut self, ctx: &mut RelayContext<'_>) {
        while ctx.history.ledger.excess_live() > 0 && self.close_one_replaced(ctx) {}
        let excess = ctx.history.ledger.excess_live();
        let open = self
            .live
            .requests
            .iter()
            .filter_map(|(id, one)| Some((*id, one.sub()?)));
        let mut open: Vec<(LiveId, SubId)> = open
            .filter(|(_, sub)| self.subs.kind(*sub).is_some())
            .collect();
        // Announcements were subscribed to first, and are polled last.
        let newest = open.split_off(open.len().saturating_sub(excess));
        for (id, sub) in newest {
            self.subs.close(ctx, sub);
            self.live.poll(ctx.mono(), id);
        }
    }

    pub(in crate::engine) fn live_refused(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: LiveId,
        refusal: Refusal,
        lasted: Duration,
    ) {
        let Some(request) = self.live.requests.get_mut(&id) else {
            return;
        };
        if request.is_replaced() {
            // Its replacement brings what is published from its start on, not what this one has dropped before.
            if refusal == Refusal::LiveOverflow {
                let since = request.delivered_until - CONFIRMED_RETENTION;
                self.fetch_stored(ctx, Purpose::MissedLive(id), id, Some(since), true);
            }
            self.live.requests.remove(&id);
            return self.live.mark_missed(ctx.now.unix);
        }
        match request.refused(ctx.mono(), refusal, lasted) {
            LiveStep::Wait => {}
            LiveStep::AvoidLimitZero => self.live.refuses_limit_zero = true,
            LiveStep::LowerFilters(filters) => {
                self.budget = self.budget.lowered_to_filters_per_req(filters);
                self.live.needs_rebuild = true;
            }
            LiveStep::Halve => self.live.halve(&mut ctx.shared.ids, id),
            LiveStep::Authenticate => {
                let again = request.needs_auth;
                let layer = request.layer;
                request.needs_auth = true;
                if !self.auth.require(ctx, self.subs.conn, again) {
                    self.suspend(ctx, layer, RequestMode::Live);
                }
            }
            LiveStep::Suspend => {
                let layer = request.layer;
                self.suspend(ctx, layer, RequestMode::Live);
            }
            LiveStep::FallBackToFilters => self.fall_back_to_filters(ctx),
        }
    }

    /// Subscribes to everything confirmed and everything pending in as few filters as possible.
    ///
    /// Called only when requests may be sent, and followed by sending at once. The old requests stay open until the
    /// new ones are in force, as far as there is room for both. Pending batches are not touched: they fetch history,
    /// and their items stay subscribed to. Announcements keep their own subscription.
    fn rebuild_live(&mut self, ctx: &mut RelayContext<'_>) {
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
        ctx.report(|relay| Report::Consolidated {
            relay,
            before,
            after,
        });
    }

    /// Rebuilds only the requests for repositories, if there are many: each takes a slot, and a complete rebuild is
    /// worth it only for many filters. Returns `false` if there are few.
    fn merge_repos(&mut self, ctx: &mut RelayContext<'_>) -> bool {
        let before = self.live.repo_requests_at_rebuild;
        let is_fragmented = self.live.requests_for(Layer::Repos) > before + MAX_REPO_FRAGMENTS;
        if !is_fragmented || self.full_sync.is_some() {
            return false;
        }
        let repos = self.subscribed_items(ctx).repos;
        let items = PendingItems {
            repos,
            ..PendingItems::default()
        };
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
        let from = covered
            .filter(|covered| *covered < now)
            .map(|covered| covered - CONFIRMED_RETENTION);
        self.replace_live_items(ctx, which);
        self.live
            .add(&mut ctx.shared.ids, now, filters, from, &self.budget);
    }

    /// Marks the requests of some layers to be closed once others are in force. What they missed before is still
    /// fetched.
    pub(in crate::engine) fn replace_live_items(
        &mut self,
        ctx: &mut RelayContext<'_>,
        which: impl Fn(Layer) -> bool,
    ) {
        let items = self.live.items().filter(|(_, one)| which(one.layer));
        let items: Vec<_> = items.map(|(id, _)| id).collect();
        for id in items {
            let Some(request) = self.live.requests.get_mut(&id) else {
                continue;
            };
            let is_lost = std::mem::take(&mut request.has_dropped) && self.backlog.can_compare(ctx);
            if is_lost && !self.backlog.is_comparing_missed(id) {
                self.fetch_stored(ctx, Purpose::MissedLive(id), id, None, true);
            }
            let Some(request) = self.live.requests.get_mut(&id) else {
                continue;
            };
            if let LivePhase::Open(sub) = request.phase {
                request.phase = LivePhase::Replaced(sub);
            } else {
                self.live.requests.remove(&id);
            }
            self.backlog
                .drop_batch_for(ctx, &mut self.subs, Purpose::Poll(id));
        }
    }

    /// Closes one request that is being replaced, for want of room; returns `false` if there is none.
    fn close_one_replaced(&mut self, ctx: &mut RelayContext<'_>) -> bool {
        let Some((id, sub)) = self.live.replaced() else {
            return false;
        };
        self.subs.close(ctx, sub);
        self.live.requests.remove(&id);
        self.live.mark_missed(ctx.now.unix);
        true
    }

    /// Returns everything confirmed and everything pending.
    fn subscribed_items(&self, ctx: &RelayContext<'_>) -> PendingItems {
        let mut items = ctx.history.state.confirmed.clone();
        for batch in self.backlog.batches.values() {
            items.include(batch.items.clone());
        }
        items
    }

    /// Closes replaced requests, once all their replacements are answered.
    fn end_replacement(&mut self, ctx: &mut RelayContext<'_>) {
        if self.live.replaced().is_none() {
            return;
        }
        let is_on_its_way = |one: &LiveRequest| match one.phase {
            LivePhase::Queued => true,
            LivePhase::Open(sub) => self.subs.get(sub).is_some_and(|open| !open.is_answered),
            _ => false,
        };
        if self.live.requests.values().any(is_on_its_way) {
            return;
        }
        while self.close_one_replaced(ctx) {}
    }
}
