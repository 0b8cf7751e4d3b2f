//! Sends what may be sent now: live subscriptions, then NIP-77 messages, fetches by id and jobs, each within its
//! budget.

use std::cell::OnceCell;

use crate::limits::{SlotClass, SlotLedger};
use grasp_core::limits::Admit;

use super::super::context::{InventoryRequest, RelayContext};
use super::super::ids::{JobId, LiveId};
use super::super::io::{Frame, Output};
use super::super::job::{Job, JobPhase, Method, NegMessage, Purpose, by_ids};
use super::super::layer::{Layer, wire_len};
use super::super::reconcile::MAX_NEEDED;
use super::super::suspended::RequestMode;
use super::gaps::CountAs;
use super::live::LivePhase;
use super::session::Session;
use super::subs::{NEG_IDLE_TIMEOUT, NEG_OPEN_TIMEOUT, SubKind};
use grasp_core::admission::SyncPath;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::{PendingItems, RETENTION};

/// Ids offered by all relays and not fetched yet above which histories are paged instead of compared.
const MAX_WANTED_TOTAL: usize = 1_000_000;

/// The result of an attempt to start something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartResult {
    /// It was sent, or became something else.
    Done,
    NoSlot,
    /// The pace does not allow it yet.
    NotYet,
}

impl Session {
    /// Sends everything that may be sent now.
    pub(in crate::engine) fn pump(&mut self, ctx: &mut RelayContext<'_>) {
        self.wake(ctx);
        if !ctx.history.pace.is_paused(ctx.mono()) {
            self.send_live(ctx);
            self.send_neg_messages(ctx);
            self.send_fetches(ctx);
            self.send_jobs(ctx);
        }
        self.update_progress(ctx);
        Self::report_interruptions(ctx);
    }

    /// Queues what has waited long enough.
    fn wake(&mut self, ctx: &mut RelayContext<'_>) {
        let now = ctx.mono();
        while let Some((_, id)) = self.backing_off.first().copied().filter(|(at, _)| *at <= now) {
            self.backing_off.pop_first();
            if let Some(JobPhase::BackingOff { then, .. }) =
                self.jobs.get(&id).map(|job| &job.phase)
            {
                self.queue(id, *then);
            }
        }
        let ids: Vec<LiveId> = self.live.requests.keys().copied().collect();
        for id in ids {
            self.wake_live(ctx, id);
        }
    }

    fn wake_live(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) {
        let now = ctx.mono();
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        match &mut request.phase {
            LivePhase::BackingOff(until) if *until <= now => request.phase = LivePhase::Queued,
            LivePhase::Polled { next, since } if *next <= now => {
                *next = now + ctx.shared.config.poll_every;
                let since = *since - RETENTION;
                // A comparison finds events of any date; pages would have to begin from the start each time.
                let compares = can_compare(ctx, self.pages_only);
                let (filters, method) = match compares {
                    true => (request.plain_filters(), Method::Reconcile),
                    false => (request.filters_since(since), Method::Page),
                };
                let is_running =
                    self.groups.values().any(|group| group.purpose == Purpose::Poll(id));
                if !is_running {
                    ctx.history.interrupted += usize::from(!compares);
                    let nothing = PendingItems::default();
                    let new = CountAs::NEW;
                    self.fetch(ctx, Purpose::Poll(id), filters, method, nothing, new);
                }
            }
            _ => {}
        }
    }

    /// Sends queued live requests. They need a slot but no pace: relays do not limit live subscriptions by the
    /// minute, and every second without one is a gap. Requests without a slot are polled.
    fn send_live(&mut self, ctx: &mut RelayContext<'_>) {
        if self.live.needs_rebuild {
            self.rebuild_live(ctx);
        }
        while let Some(id) = self.live.queued() {
            if self.subscribe_live(ctx, id) == StartResult::Done {
                continue;
            }
            if self.close_one_replaced(ctx)
                || self.merge_repos(ctx)
                || self.poll_threads_instead(ctx, id)
            {
                continue;
            }
            if self.live.is_fragmented() {
                self.rebuild_live(ctx);
            } else {
                self.poll_live(ctx, id);
            }
        }
        self.resubscribe_polled(ctx);
        self.end_replacement(ctx);
    }

    /// Makes room for a request for repositories by polling one for known threads instead. Returns `false` if there
    /// is none, or the request is for threads itself.
    fn poll_threads_instead(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) -> bool {
        if self.live.requests.get(&id).is_none_or(|one| one.layer == Layer::Roots) {
            return false;
        }
        let thread = {
            let mut threads = self.live.items().filter(|(_, one)| one.layer == Layer::Roots);
            threads.find_map(|(id, one)| Some((id, one.sub()?)))
        };
        let Some((thread, sub)) = thread else { return false };
        self.close(ctx, sub);
        self.poll_live(ctx, thread);
        true
    }

    /// Polls a live request instead of subscribing to it.
    pub(super) fn poll_live(&mut self, ctx: &RelayContext<'_>, id: LiveId) {
        if let Some(request) = self.live.requests.get_mut(&id) {
            request.poll(ctx.now.mono, ctx.shared.config.poll_every);
        }
    }

    fn subscribe_live(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) -> StartResult {
        let now = ctx.mono();
        let Some(request) = self.live.requests.get_mut(&id) else { return StartResult::Done };
        if let Admit::Wait(until) =
            ctx.history.suspended.admit(now, request.layer, RequestMode::Live)
        {
            request.phase = LivePhase::BackingOff(until);
            return StartResult::Done;
        }
        let Some(slot) = ctx.history.ledger.take(SlotClass::Live, request.bytes) else {
            return StartResult::NoSlot;
        };
        ctx.history.suspended.sent(now, request.layer, RequestMode::Live);
        let sub = ctx.shared.ids.sub();
        let filters = request.wire(self.live.refuses_limit_zero);
        request.phase = LivePhase::Open(sub);
        request.delivered_until = ctx.now.unix;
        self.subs.insert(now, sub, slot, SubKind::Live(id), ctx.shared.config.watchdog);
        ctx.send(self.conn, Frame::Subscribe { sub, filters, path: SyncPath::Live });
        StartResult::Done
    }

    /// Fetches what was published while a live request was not open, now that it is in force.
    pub(super) fn fetch_missed(&mut self, ctx: &mut RelayContext<'_>, id: LiveId) {
        let request = self.live.requests.get_mut(&id);
        let Some(from) = request.and_then(|request| request.missed_since.take()) else { return };
        let purpose = Purpose::MissedLive(id);
        // One that is still under way is started again together with this one.
        let is_compared = self.is_comparing_missed(id);
        let from = self.drop_group_for(ctx, purpose).map_or(from, |earlier| earlier.min(from));
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        let has_dropped = std::mem::take(&mut request.has_dropped) || is_compared;
        let compares = has_dropped && can_compare(ctx, self.pages_only);
        let (missed, method) = match compares {
            true => (request.plain_filters(), Method::Reconcile),
            false => (request.filters_since(from), Method::Page),
        };
        ctx.history.interrupted += usize::from(!compares);
        self.fetch(ctx, purpose, missed, method, PendingItems::default(), CountAs::NEW);
    }

    /// Finds by comparison what a relay dropped for a live request that is about to be replaced.
    pub(super) fn compare_dropped(
        &mut self,
        ctx: &mut RelayContext<'_>,
        id: LiveId,
        filters: Vec<Filter>,
    ) {
        if can_compare(ctx, self.pages_only) && !self.is_comparing_missed(id) {
            let (purpose, nothing) = (Purpose::MissedLive(id), PendingItems::default());
            self.fetch(ctx, purpose, filters, Method::Reconcile, nothing, CountAs::NEW);
        }
    }

    /// Returns whether a comparison, which has no window, is finding what a live request missed.
    pub(super) fn is_comparing_missed(&self, id: LiveId) -> bool {
        let mut groups = self.groups.iter();
        let group = groups.find(|(_, group)| group.purpose == Purpose::MissedLive(id));
        let Some((group, _)) = group else { return false };
        self.jobs.values().any(|job| job.group == *group && job.window().0.is_none())
    }

    /// Subscribes to polled requests as soon as there is room.
    fn resubscribe_polled(&mut self, ctx: &mut RelayContext<'_>) {
        let is_polled = |phase| matches!(phase, LivePhase::Polled { .. });
        let ids: Vec<LiveId> = {
            let polled = self.live.requests.iter().filter(|(_, one)| is_polled(one.phase));
            polled.map(|(id, _)| *id).collect()
        };
        for id in ids {
            if !has_room(&ctx.history.ledger, SlotClass::Live) {
                return;
            }
            let Some(request) = self.live.requests.get_mut(&id) else { continue };
            let LivePhase::Polled { since, .. } = request.phase else { continue };
            let from = request.missed_since.replace(since - RETENTION);
            if self.subscribe_live(ctx, id) == StartResult::NoSlot {
                if let Some(request) = self.live.requests.get_mut(&id) {
                    request.missed_since = from;
                }
                return;
            }
        }
    }

    /// Sends the next messages of the NIP-77 sessions under way.
    fn send_neg_messages(&mut self, ctx: &mut RelayContext<'_>) {
        for id in self.jobs_where(Job::has_neg_message) {
            if self.send_neg_message(ctx, id) == StartResult::NotYet {
                return;
            }
        }
    }

    fn send_neg_message(&mut self, ctx: &mut RelayContext<'_>, id: JobId) -> StartResult {
        let now = ctx.mono();
        let Some(job) = self.jobs.get_mut(&id) else { return StartResult::Done };
        let opening = job.is_opening().then(|| job.filter());
        let JobPhase::Comparing { sub, outgoing, .. } = &mut job.phase else {
            return StartResult::Done;
        };
        let sub = *sub;
        let is_paced = opening.is_some() || ctx.history.profile.counts_frames;
        if is_paced && ctx.history.pace.admit(now) != Admit::Go {
            return StartResult::NotYet;
        }
        let Some(NegMessage::Open(message) | NegMessage::Reply(message)) = outgoing.take() else {
            return StartResult::Done;
        };
        let (frame, wait) = match opening {
            Some(filter) => {
                (Frame::NegOpen { sub, filter: Box::new(filter), message }, NEG_OPEN_TIMEOUT)
            }
            None => (Frame::NegMsg { sub, message }, NEG_IDLE_TIMEOUT),
        };
        self.subs.sent(now, sub, wait);
        ctx.send(self.conn, frame);
        StartResult::Done
    }

    /// Fetches offered events by id.
    fn send_fetches(&mut self, ctx: &mut RelayContext<'_>) {
        let now = ctx.mono();
        while ctx.history.wants.is_due(now) && !self.auth.is_pending() {
            if ctx.history.pace.reopens_at() > now {
                return;
            }
            // All are this size or smaller; the limit is about what the relay remembers, not what is sent.
            let bytes = 256 + 67 * self.ids_per_fetch;
            let Some(slot) = ctx.history.ledger.take(SlotClass::Fetch, bytes) else {
                return;
            };
            if ctx.history.pace.admit(now) != Admit::Go {
                return ctx.history.ledger.free(slot);
            }
            let sub = ctx.shared.ids.sub();
            let ids = ctx.history.wants.take_due(now, sub, self.ids_per_fetch);
            self.subs.insert(now, sub, slot, SubKind::Ids, ctx.shared.config.watchdog);
            let path = ids.first().map_or(CountAs::NEW, |id| self.count_as_of_id(ctx, *id)).path;
            let filters = vec![by_ids(ids)];
            ctx.send(self.conn, Frame::Subscribe { sub, filters, path });
        }
    }

    /// Starts jobs in queue order, as far as slots and pace allow.
    fn send_jobs(&mut self, ctx: &mut RelayContext<'_>) {
        let mut methods = vec![Method::Page, Method::Reconcile];
        loop {
            let heads = methods.iter().filter_map(|method| self.next_queued(ctx, *method));
            let Some((purpose, id, method)) = heads.min() else { return };
            let start = match method {
                Method::Page => self.start_pages(ctx, id),
                Method::Reconcile => self.start_reconciliation(ctx, id),
            };
            match start {
                StartResult::Done => self.unqueue_from(method, purpose, id),
                StartResult::NoSlot => methods.retain(|other| *other != method),
                StartResult::NotYet => return,
            }
        }
    }

    fn unqueue_from(&mut self, method: Method, purpose: Purpose, id: JobId) {
        if let Some(queue) = self.queues.get_mut(&method) {
            queue.remove(&(purpose, id));
        }
    }

    /// Returns the first queued job whose layer is not suspended.
    fn next_queued(
        &self,
        ctx: &RelayContext<'_>,
        method: Method,
    ) -> Option<(Purpose, JobId, Method)> {
        let queue = self.queues.get(&method)?;
        let suspended = self.suspended_layers(ctx);
        let is_suspended =
            |id: &JobId| self.jobs.get(id).is_some_and(|job| suspended.contains_key(&job.layer));
        let may_start_comparison = OnceCell::new();
        let waits = |id: &JobId| {
            self.is_full_comparison(*id)
                && !*may_start_comparison.get_or_init(|| self.may_start_comparison(ctx))
        };
        let may_start = |id: &JobId| !is_suspended(id) && !waits(id);
        let (purpose, id) = queue.iter().find(|(_, id)| may_start(id))?;
        Some((*purpose, *id, method))
    }

    /// Starts a reconciliation by asking the local relay for its inventory.
    fn start_reconciliation(&mut self, ctx: &mut RelayContext<'_>, id: JobId) -> StartResult {
        let now = ctx.mono();
        if ctx.history.pace.reopens_at() > now {
            return StartResult::NotYet;
        }
        let is_memory_full = ctx.shared.held_items() >= ctx.shared.config.inventory_items
            || ctx.shared.wanted >= MAX_WANTED_TOTAL;
        if !ctx.history.neg.is_over(now) || is_memory_full {
            self.queue(id, Method::Page);
            return StartResult::Done;
        }
        let ledger = &ctx.history.ledger;
        let is_full = ledger.in_use_by(SlotClass::Reconcile) >= self.max_neg_sessions;
        // What one comparison found is fetched before the next finds more.
        let is_behind = ctx.history.wants.len() >= MAX_NEEDED;
        if is_full || is_behind || !has_room(ledger, SlotClass::Reconcile) {
            return StartResult::NoSlot;
        }
        let Some(filter) = self.jobs.get(&id).map(Job::filter) else {
            return StartResult::Done;
        };
        let bytes = wire_len(&filter) + 80;
        let Some(slot) = ctx.history.ledger.take(SlotClass::Reconcile, bytes) else {
            return StartResult::NoSlot;
        };
        let sub = ctx.shared.ids.sub();
        let Some(job) = self.jobs.get_mut(&id) else { return StartResult::Done };
        let request = ctx.shared.ids.inventory();
        job.phase = JobPhase::Listing { sub, request };
        ctx.history.suspended.sent(now, job.layer, RequestMode::History);
        ctx.shared.inventories.insert(request, InventoryRequest::Job(ctx.relay.clone(), id));
        self.subs.insert(now, sub, slot, SubKind::Neg(id), ctx.shared.config.watchdog);
        self.subs.not_sent_yet(sub);
        ctx.out.push(Output::FetchInventory { request, filter: Box::new(filter) });
        self.serve_other_comparisons(id);
        StartResult::Done
    }
}

/// Returns whether a class has a free slot; checked before anything is built that needs one.
pub(super) fn has_room(ledger: &SlotLedger, class: SlotClass) -> bool {
    ledger.in_use_by(class) < ledger.class_limit(class)
}

/// Returns whether sets can be compared with a relay: it supports NIP-77 and no backoff of it is in force.
fn can_compare(ctx: &RelayContext<'_>, pages_only: bool) -> bool {
    !pages_only && ctx.history.neg.is_over(ctx.mono())
}
