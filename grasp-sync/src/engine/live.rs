//! The live set of a connection: subscriptions that stay open, or are polled where there is no room.
//!
//! A live subscription never carries `since`: a relay applies it to new events too, and an event that is published
//! now may be dated a week ago. Events that were missed while it was not open are fetched by a request of their own,
//! which ends at EOSE.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::index::{
    FilterHash, PendingItems, RETENTION, RequestBudget, build_layer2_and_layer3_filters,
    pack_requests,
};
use crate::limits::{PARK, Refusal, SlotClass};
use grasp_core::Mono;
use grasp_core::admission::SyncPath;
use grasp_core::limits::Admit;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;

use super::auth::Auth;
use super::backlog::Purpose;
use super::filter::{CompactFilter, Layer, compact_all, wire_len};
use super::full_sync::all_events;
use super::history::CountAs;
use super::io::{Delivered, Frame, Ids, LiveId, Report, SubId};
use super::job::{MAX_ROOM_REFUSALS, Method, REQUEST_BACKOFF};
use super::relay::Context;
use super::session::Session;
use super::subs::{Blocked, SubKind};
use super::suspended::RequestMode;

/// One request of the live set: a machine that owns its phase.
///
/// ```text
///   Queued ─▶ Open ─▶ Replaced
///     ▲ ▲      │ refused, or lost
///     │ └──────┼──▶ BackingOff ─▶ Queued
///     └────────┴──▶ Polled ─▶ Open, as soon as there is room
/// ```
#[derive(Clone, Debug)]
pub(super) struct LiveRequest {
    pub(super) layer: Layer,
    /// The filters without a window.
    filters: Vec<CompactFilter>,
    /// The approximate length as REQ.
    pub(super) bytes: usize,
    /// The start of a time in which it was not open: stored events from then on are fetched once it is, or is polled.
    missed_since: Option<Timestamp>,
    /// True if the relay dropped events of any date in that time, which a request with `since` would not find.
    has_dropped: bool,
    /// The latest time up to which it is known to have delivered.
    delivered_until: Timestamp,
    phase: LivePhase,
    /// Losses in a row.
    failures: u32,
    /// True if it is sent only after authenticating.
    pub(super) needs_auth: bool,
    /// True if it was sent with a limit of zero.
    uses_limit_zero: bool,
}

/// The phase of a request of the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LivePhase {
    /// Waits to be sent.
    Queued,
    Open(SubId),
    /// Open until the requests that replace it are in force.
    Replaced(SubId),
    /// Not sent until then.
    BackingOff(Mono),
    /// There is no room for it; its events are fetched from time to time, then for the next time.
    Polled(Mono),
}

/// The step after a live request was refused; the session takes it within its budgets.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
enum LiveStep {
    /// Nothing more: its phase says when it is sent again.
    Wait,
    /// Authenticate; it is sent again then.
    Authenticate,
    /// Suspend its layer.
    Suspend,
    /// Send no limit of zero to this relay.
    AvoidLimitZero,
    /// Send fewer filters in each request.
    LowerFilters(usize),
    /// Split it in two: one of its filters is refused.
    Halve,
    /// Replace full sync by filters.
    FallBackToFilters,
}

/// Interval of fetching what could not be subscribed to.
const POLL_EVERY: Duration = Duration::from_secs(10 * 60);
/// Duration of a live request after which earlier losses are forgotten.
const STABLE_AFTER: Duration = Duration::from_secs(5 * 60);
/// Requests for repositories that may be added before these are merged for want of room.
const MAX_REPO_FRAGMENTS: usize = 3;
/// Bytes of REQ, subscription id and brackets around the filters.
pub(super) const REQ_BYTES: usize = 80;

impl LiveRequest {
    /// Opens it, and returns the filters as sent.
    fn open(&mut self, now: Timestamp, sub: SubId, refuses_limit_zero: bool) -> Vec<Filter> {
        (self.phase, self.delivered_until) = (LivePhase::Open(sub), now);
        self.wire(refuses_limit_zero)
    }

    /// Returns the filters as sent: without stored events, or, for a relay that refuses a limit of zero, with the
    /// newest event of each filter.
    fn wire(&mut self, refuses_limit_zero: bool) -> Vec<Filter> {
        self.uses_limit_zero = !refuses_limit_zero;
        let limit = usize::from(refuses_limit_zero);
        self.filters.iter().map(|compact| compact.filter().limit(limit)).collect()
    }

    /// Returns the filters for stored events, from `since` on if given.
    fn stored_filters(&self, since: Option<Timestamp>) -> Vec<Filter> {
        let stored = |compact: &CompactFilter| Filter { since, ..compact.filter() };
        self.filters.iter().map(stored).collect()
    }

    /// Decides on the next step after it was refused, having been open for this long.
    fn refused(&mut self, now: Mono, refusal: Refusal, lasted: Duration) -> LiveStep {
        if lasted >= STABLE_AFTER {
            self.failures = 0;
        }
        self.interrupt(LivePhase::Queued);
        if self.layer == Layer::All && refusal.is_about_the_filter() {
            return LiveStep::FallBackToFilters;
        }
        let filters = self.filters.len();
        match refusal {
            Refusal::Rate => {}
            _ if refusal.is_for_room() => self.refused_for_room(now),
            Refusal::LimitZero if self.uses_limit_zero => return LiveStep::AvoidLimitZero,
            Refusal::FilterCount if filters > 1 => return LiveStep::LowerFilters(filters / 2),
            Refusal::Malformed if filters > 1 => return LiveStep::Halve,
            Refusal::FilterCount | Refusal::Malformed | Refusal::Unknown => {
                self.phase = LivePhase::BackingOff(now + PARK);
            }
            Refusal::AuthRequired => return LiveStep::Authenticate,
            Refusal::Policy => return LiveStep::Suspend,
            // One drop is a gap to be closed; repeated drops mean that the relay cannot keep up.
            Refusal::LiveOverflow => {
                self.has_dropped = true;
                match self.failures {
                    0 => self.failures = 1,
                    _ => self.back_off(now),
                }
            }
            _ => self.back_off(now),
        }
        LiveStep::Wait
    }

    /// Leaves the open phase: what was published since the last delivery is to be fetched.
    fn interrupt(&mut self, phase: LivePhase) {
        if matches!(self.phase, LivePhase::Open(_)) {
            let delivered_until = self.delivered_until - RETENTION;
            self.missed_since =
                Some(self.missed_since.map_or(delivered_until, |since| since.min(delivered_until)));
        }
        self.phase = phase;
    }

    /// Handles a refusal for want of room: sent again at once, up to a limit.
    fn refused_for_room(&mut self, now: Mono) {
        match self.failures {
            MAX_ROOM_REFUSALS.. => self.back_off(now),
            _ => self.failures += 1,
        }
    }

    /// Backs off after another loss, longer each time.
    fn back_off(&mut self, now: Mono) {
        self.failures = self.failures.saturating_add(1);
        self.interrupt(LivePhase::BackingOff(now + REQUEST_BACKOFF.delay_after(self.failures)));
    }

    /// Returns the time up to which no event is missing.
    pub(super) fn covered_until(&self, now: Timestamp) -> Timestamp {
        match (self.phase, self.missed_since) {
            (LivePhase::Open(_) | LivePhase::Replaced(_), None) => now,
            (_, Some(missed_since)) => missed_since + RETENTION,
            (_, None) => self.delivered_until,
        }
    }

    pub(super) fn sub(&self) -> Option<SubId> {
        match self.phase {
            LivePhase::Open(sub) | LivePhase::Replaced(sub) => Some(sub),
            _ => None,
        }
    }

    fn is_replaced(&self) -> bool {
        matches!(self.phase, LivePhase::Replaced(_))
    }
}

/// The live set of one connection.
#[derive(Debug, Default)]
pub(super) struct LiveSet {
    pub(super) requests: BTreeMap<LiveId, LiveRequest>,
    /// True if the relay refuses a limit of zero.
    pub(super) refuses_limit_zero: bool,
    /// True if the set is to be rebuilt as fewer, fuller filters before anything else is sent.
    pub(super) needs_rebuild: bool,
    /// Filters after the last rebuild.
    pub(super) filters_at_rebuild: usize,
    /// Requests for repositories after these were last rebuilt.
    pub(super) repo_requests_at_rebuild: usize,
}

impl LiveSet {
    /// Adds requests for these filters.
    pub(super) fn add(
        &mut self,
        ids: &mut Ids,
        now: Timestamp,
        filters: Vec<Filter>,
        missed_since: Option<Timestamp>,
        budget: &RequestBudget,
    ) {
        // Layers never share a request: a relay may refuse one and accept the other.
        let mut layers: BTreeMap<Layer, Vec<Filter>> = BTreeMap::new();
        for filter in filters {
            layers.entry(Layer::of(&filter)).or_default().push(filter);
        }
        for (layer, filters) in layers {
            for filters in pack_requests(filters, budget) {
                let bytes = REQ_BYTES + filters.iter().map(wire_len).sum::<usize>();
                let request = LiveRequest {
                    layer,
                    filters: compact_all(filters),
                    bytes,
                    missed_since,
                    has_dropped: false,
                    delivered_until: now,
                    phase: LivePhase::Queued,
                    failures: 0,
                    needs_auth: false,
                    uses_limit_zero: false,
                };
                self.requests.insert(ids.next(LiveId), request);
            }
        }
    }

    /// Splits a request in two, because one of its filters is refused. A request with one filter stays as it is.
    fn halve(&mut self, ids: &mut Ids, id: LiveId) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.filters.len() > 1)
        else {
            return;
        };
        let second_half = request.filters.split_off(request.filters.len() / 2);
        request.bytes /= 2;
        request.interrupt(LivePhase::Queued);
        let other = LiveRequest { filters: second_half, uses_limit_zero: false, ..request.clone() };
        self.requests.insert(ids.next(LiveId), other);
    }

    /// Returns the number of filters for layers 2 and 3.
    pub(super) fn filters(&self) -> usize {
        self.items().map(|(_, request)| request.filters.len()).sum()
    }

    /// Returns the number of requests for a layer.
    fn requests_for(&self, layer: Layer) -> usize {
        self.items().filter(|(_, one)| one.layer == layer).count()
    }

    /// Returns the requests for layers 2 and 3, without those that are being replaced.
    pub(super) fn items(&self) -> impl Iterator<Item = (LiveId, &LiveRequest)> {
        let is_item = |one: &LiveRequest| one.layer != Layer::Announcements && !one.is_replaced();
        let items = self.requests.iter().filter(move |(_, one)| is_item(one));
        items.map(|(id, request)| (*id, request))
    }

    /// Returns a request that is being replaced, and its subscription.
    fn replaced(&self) -> Option<(LiveId, SubId)> {
        let replaced = |(id, one): (&LiveId, &LiveRequest)| match one.phase {
            LivePhase::Replaced(sub) => Some((*id, sub)),
            _ => None,
        };
        self.requests.iter().find_map(replaced)
    }

    /// Marks queued requests as having missed events from now on: a subscription that covered them is closed.
    fn mark_missed(&mut self, now: Timestamp) {
        let queued = self.requests.values_mut().filter(|one| one.phase == LivePhase::Queued);
        queued.for_each(|one| _ = one.missed_since.get_or_insert(now - RETENTION));
    }

    /// Notes that a polled request was fetched up to a time.
    fn polled(&mut self, id: LiveId, until: Timestamp) {
        let request = self.requests.get_mut(&id);
        if let Some(request) = request.filter(|one| matches!(one.phase, LivePhase::Polled(_))) {
            request.missed_since = Some(until - RETENTION);
        }
    }

    /// Queues requests whose backoff has ended; returns those to be polled, and from when on.
    fn wake(&mut self, now: Mono) -> Vec<(LiveId, Option<Timestamp>)> {
        let mut due = Vec::new();
        for (id, request) in &mut self.requests {
            match &mut request.phase {
                LivePhase::BackingOff(until) if *until <= now => request.phase = LivePhase::Queued,
                LivePhase::Polled(next) if *next <= now => {
                    *next = now + POLL_EVERY;
                    due.push((*id, request.missed_since));
                }
                _ => {}
            }
        }
        due
    }

    /// Polls a request instead of subscribing to it.
    fn poll(&mut self, now: Mono, id: LiveId) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.missed_since.get_or_insert(request.delivered_until - RETENTION);
            request.interrupt(LivePhase::Polled(now + POLL_EVERY));
        }
    }

    /// Returns the hash of the filter of a request that has only one.
    pub(super) fn sole_filter(&self, id: LiveId) -> Option<FilterHash> {
        match self.requests.get(&id)?.filters.as_slice() {
            [only] => Some(FilterHash::of(&only.filter())),
            _ => None,
        }
    }

    /// Returns the first request that waits to be sent, and may be: some need an authentication that is pending.
    pub(super) fn queued(&self, auth: Auth) -> Option<LiveId> {
        let may_send = |one: &LiveRequest| !(one.needs_auth && auth.is_pending());
        let mut requests = self.requests.iter();
        let next = requests.find(|(_, one)| one.phase == LivePhase::Queued && may_send(one));
        next.map(|(id, _)| *id)
    }

    /// Returns when the next backoff ends or the next poll is due.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let ends = self.requests.values().filter_map(|one| match one.phase {
            LivePhase::BackingOff(at) | LivePhase::Polled(at) => Some(at),
            LivePhase::Queued | LivePhase::Open(_) | LivePhase::Replaced(_) => None,
        });
        ends.min()
    }
}

impl Session {
    /// Queues live requests whose backoff has ended; polls those whose time has come.
    pub(super) fn wake_live(&mut self, ctx: &mut Context<'_>) {
        for (id, until) in std::mem::take(&mut self.backlog.polled) {
            self.live.polled(id, until);
        }
        for (id, since) in self.live.wake(ctx.mono()) {
            if self.backlog.batch_for(Purpose::Poll(id)).is_none() {
                self.fetch_stored(ctx, Purpose::Poll(id), id, since, true);
            }
        }
    }

    /// Fetches stored events of a live request by pages from `since` on, or by comparison if that is asked for and
    /// possible: it finds events of any date, for which pages would have to begin from the start each time.
    fn fetch_stored(
        &mut self,
        ctx: &mut Context<'_>,
        purpose: Purpose,
        id: LiveId,
        since: Option<Timestamp>,
        compare: bool,
    ) {
        let Some(request) = self.live.requests.get(&id) else { return };
        let (filters, method) = match compare && self.backlog.can_compare(ctx) {
            true => (request.stored_filters(None), Method::Reconcile),
            false => (request.stored_filters(since), Method::Page),
        };
        ctx.history.interrupted += usize::from(method == Method::Page);
        self.backlog.fetch(ctx, purpose, filters, method, PendingItems::default(), CountAs::NEW);
    }

    /// Sends queued live requests. They need a slot but no pace: relays do not limit live subscriptions by the
    /// minute, and every second without one is a gap. Requests without a slot are polled.
    pub(super) fn send_live(&mut self, ctx: &mut Context<'_>) {
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
    fn poll_threads_instead(&mut self, ctx: &mut Context<'_>, id: LiveId) -> bool {
        if self.live.requests.get(&id).is_none_or(|one| one.layer == Layer::Roots) {
            return false;
        }
        let thread = {
            let mut threads = self.live.items().filter(|(_, one)| one.layer == Layer::Roots);
            threads.find_map(|(id, one)| Some((id, one.sub()?)))
        };
        let Some((thread, sub)) = thread else { return false };
        self.subs.close(ctx, sub);
        self.live.poll(ctx.mono(), thread);
        true
    }

    fn subscribe_live(&mut self, ctx: &mut Context<'_>, id: LiveId) -> Result<(), Blocked> {
        let now = ctx.mono();
        let Some(request) = self.live.requests.get_mut(&id) else { return Ok(()) };
        if let Admit::Wait(until) =
            ctx.history.suspended.admit(now, request.layer, RequestMode::Live)
        {
            request.phase = LivePhase::BackingOff(until);
            return Ok(());
        }
        let sub = self.subs.open(ctx, SlotClass::Live, request.bytes, SubKind::Live(id))?;
        ctx.history.suspended.sent(now, request.layer, RequestMode::Live);
        let filters = request.open(ctx.now.unix, sub, self.live.refuses_limit_zero);
        ctx.send(self.subs.conn, Frame::Subscribe { sub, filters, path: SyncPath::Live });
        Ok(())
    }

    /// Fetches what was published while a live request was not open, now that it is in force.
    fn fetch_missed(&mut self, ctx: &mut Context<'_>, id: LiveId) {
        let request = self.live.requests.get_mut(&id);
        let Some(from) = request.and_then(|request| request.missed_since.take()) else { return };
        let purpose = Purpose::MissedLive(id);
        // One that is still under way is started again together with this one.
        let is_compared = self.backlog.is_comparing_missed(id);
        let from = self
            .backlog
            .drop_batch_for(ctx, &mut self.subs, purpose)
            .map_or(from, |earlier| earlier.min(from));
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        let has_dropped = std::mem::take(&mut request.has_dropped);
        self.fetch_stored(ctx, purpose, id, Some(from), has_dropped || is_compared);
    }

    /// Subscribes to polled requests as soon as there is room.
    fn resubscribe_polled(&mut self, ctx: &mut Context<'_>) {
        let polled = self.live.requests.iter();
        let polled = polled.filter(|(_, one)| matches!(one.phase, LivePhase::Polled(_)));
        for id in polled.map(|(id, _)| *id).collect::<Vec<_>>() {
            if self.subscribe_live(ctx, id).is_err() {
                return;
            }
        }
    }

    /// Handles live events: nothing is missing up to the latest of them.
    pub(super) fn live_delivered(&mut self, ctx: &mut Context<'_>, id: LiveId, rows: &[Delivered]) {
        self.fetch_missed(ctx, id);
        let latest = rows.iter().map(|one| one.row.at.min(ctx.now.unix)).max();
        if let Some(request) = self.live.requests.get_mut(&id) {
            request.delivered_until =
                request.delivered_until.max(latest.unwrap_or(request.delivered_until));
        }
    }

    /// Notes that a live request is in force.
    pub(super) fn live_established(&mut self, ctx: &mut Context<'_>, sub: SubId, id: LiveId) {
        self.subs.answered(ctx.mono(), sub, ctx.shared.config.watchdog);
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        request.delivered_until = request.delivered_until.max(ctx.now.unix);
        ctx.history.suspended.answered(request.layer, RequestMode::Live);
        self.fetch_missed(ctx, id);
    }

    /// Polls the newest live requests that exceed a lowered budget.
    pub(super) fn poll_excess_live(&mut self, ctx: &mut Context<'_>) {
        while ctx.history.ledger.excess_live() > 0 && self.close_one_replaced(ctx) {}
        let excess = ctx.history.ledger.excess_live();
        let open = self.live.requests.iter().filter_map(|(id, one)| Some((*id, one.sub()?)));
        let mut open: Vec<(LiveId, SubId)> =
            open.filter(|(_, sub)| self.subs.kind(*sub).is_some()).collect();
        // Announcements were subscribed to first, and are polled last.
        let newest = open.split_off(open.len().saturating_sub(excess));
        for (id, sub) in newest {
            self.subs.close(ctx, sub);
            self.live.poll(ctx.mono(), id);
        }
    }

    pub(super) fn live_refused(
        &mut self,
        ctx: &mut Context<'_>,
        id: LiveId,
        refusal: Refusal,
        lasted: Duration,
    ) {
        let Some(request) = self.live.requests.get_mut(&id) else { return };
        if request.is_replaced() {
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
                let (again, layer) = (request.needs_auth, request.layer);
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
    fn rebuild_live(&mut self, ctx: &mut Context<'_>) {
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
    fn merge_repos(&mut self, ctx: &mut Context<'_>) -> bool {
        let before = self.live.repo_requests_at_rebuild;
        let is_fragmented = self.live.requests_for(Layer::Repos) > before + MAX_REPO_FRAGMENTS;
        if !is_fragmented || self.full_sync.is_some() {
            return false;
        }
        let repos = self.subscribed_items(ctx).repos;
        let items = PendingItems { repos, ..PendingItems::default() };
        let filters = build_layer2_and_layer3_filters(&items, None, &self.budget);
        self.replace_with(ctx, |layer| layer == Layer::Repos, filters);
        self.live.repo_requests_at_rebuild = self.live.requests_for(Layer::Repos);
        true
    }

    /// Replaces the requests of some layers by requests for these filters. What was missed before is fetched once
    /// they are in force.
    fn replace_with(
        &mut self,
        ctx: &mut Context<'_>,
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

    /// Marks the requests of some layers to be closed once others are in force. Returns the start of what was still
    /// being fetched for them.
    pub(super) fn replace_live_items(
        &mut self,
        ctx: &mut Context<'_>,
        which: impl Fn(Layer) -> bool,
    ) -> Option<Timestamp> {
        let items = self.live.items().filter(|(_, one)| which(one.layer));
        let items: Vec<_> = items.map(|(id, _)| id).collect();
        let mut under_way = None;
        for id in items {
            let Some(request) = self.live.requests.get_mut(&id) else { continue };
            let is_lost = std::mem::take(&mut request.has_dropped) && self.backlog.can_compare(ctx);
            if is_lost && !self.backlog.is_comparing_missed(id) {
                self.fetch_stored(ctx, Purpose::MissedLive(id), id, None, true);
            }
            let Some(request) = self.live.requests.get_mut(&id) else { continue };
            if let LivePhase::Open(sub) = request.phase {
                request.phase = LivePhase::Replaced(sub);
            } else {
                self.live.requests.remove(&id);
            }
            self.backlog.drop_batch_for(ctx, &mut self.subs, Purpose::Poll(id));
            // A comparison has no window that could be handed on, and continues by itself.
            if !self.backlog.is_comparing_missed(id) {
                let since =
                    self.backlog.drop_batch_for(ctx, &mut self.subs, Purpose::MissedLive(id));
                under_way = under_way.into_iter().chain(since).min();
            }
        }
        under_way
    }

    /// Closes one request that is being replaced, for want of room; returns `false` if there is none.
    fn close_one_replaced(&mut self, ctx: &mut Context<'_>) -> bool {
        let Some((id, sub)) = self.live.replaced() else { return false };
        self.subs.close(ctx, sub);
        self.live.requests.remove(&id);
        self.live.mark_missed(ctx.now.unix);
        true
    }

    /// Returns everything confirmed and everything pending.
    fn subscribed_items(&self, ctx: &Context<'_>) -> PendingItems {
        let mut items = ctx.history.state.confirmed.clone();
        for batch in self.backlog.batches.values() {
            items.include(batch.items.clone());
        }
        items
    }

    /// Closes replaced requests, once all their replacements are answered.
    fn end_replacement(&mut self, ctx: &mut Context<'_>) {
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

#[cfg(test)]
mod tests {
    use crate::index::build_announcement_filter;
    use grasp_core::nostr::event::EventId;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

    fn live_set(filters: usize) -> (LiveSet, Ids) {
        let (mut live, mut ids) = (LiveSet::default(), Ids::default());
        let filters = (0..filters)
            .map(|n| Filter::new().event(EventId::from_byte_array([n as u8; 32])))
            .collect();
        live.add(&mut ids, NOW, filters, None, &RequestBudget::default());
        (live, ids)
    }

    #[test]
    fn a_live_request_has_no_since_and_the_smallest_limit() {
        let (mut live, _) = live_set(1);
        let one = live.requests.values_mut().next().unwrap();
        one.missed_since = Some(NOW - RETENTION);
        for (refuses_limit_zero, limit) in [(false, 0), (true, 1)] {
            let wire = &one.wire(refuses_limit_zero)[0];
            assert_eq!((wire.since, wire.limit), (None, Some(limit)));
        }
    }

    #[test]
    fn an_interrupted_request_fetches_from_before_its_last_delivery() {
        let (mut live, mut ids) = live_set(1);
        let one = live.requests.values_mut().next().unwrap();
        one.phase = LivePhase::Open(ids.next(SubId));
        one.delivered_until = NOW + 500u64;
        one.back_off(Mono::from_secs(10));
        assert_eq!(one.phase, LivePhase::BackingOff(Mono::from_secs(75)));
        assert_eq!(one.missed_since, Some(NOW + 500u64 - RETENTION));
        one.back_off(Mono::from_secs(75));
        assert_eq!(one.phase, LivePhase::BackingOff(Mono::from_secs(75 + 130)));
        (0..40).for_each(|_| one.back_off(Mono::ZERO));
        assert_eq!(one.phase, LivePhase::BackingOff(Mono::from_secs(3_600)));
    }

    #[test]
    fn each_refusal_leads_to_one_step() {
        let (mut live, mut ids) = live_set(4);
        let request = live.requests.values_mut().next().unwrap();
        request.open(NOW, ids.next(SubId), false);
        let now = Mono::from_secs(10);
        for (refusal, step) in [
            (Refusal::Rate, LiveStep::Wait),
            (Refusal::SlotCount, LiveStep::Wait),
            (Refusal::LimitZero, LiveStep::AvoidLimitZero),
            (Refusal::FilterCount, LiveStep::LowerFilters(2)),
            (Refusal::Malformed, LiveStep::Halve),
            (Refusal::AuthRequired, LiveStep::Authenticate),
            (Refusal::Policy, LiveStep::Suspend),
        ] {
            let mut request = request.clone();
            assert_eq!(request.refused(now, refusal, Duration::ZERO), step, "{refusal:?}");
            assert_eq!(request.phase, LivePhase::Queued, "{refusal:?}");
            assert_eq!(request.missed_since, Some(NOW - RETENTION));
        }
        assert_eq!(request.clone().refused(now, Refusal::Unknown, PARK), LiveStep::Wait);
        assert_eq!(request.refused(now, Refusal::LiveOverflow, PARK), LiveStep::Wait);
        assert_eq!((request.phase, request.has_dropped), (LivePhase::Queued, true));
        assert_eq!(request.refused(now, Refusal::LiveOverflow, Duration::ZERO), LiveStep::Wait);
        assert!(matches!(request.phase, LivePhase::BackingOff(_)), "it cannot keep up");
        request.layer = Layer::All;
        let step = request.refused(now, Refusal::Unknown, PARK);
        assert_eq!(step, LiveStep::FallBackToFilters);
    }

    #[test]
    fn layers_share_no_request_and_announcements_are_not_rebuilt() {
        let (mut live, mut ids) = live_set(12);
        assert_eq!(live.requests.len(), 2, "ten filters and two");
        let announcements = vec![build_announcement_filter(None)];
        live.add(&mut ids, NOW, announcements, None, &RequestBudget::default());
        assert_eq!((live.requests.len(), live.filters()), (3, 12));
    }

    #[test]
    fn a_refused_request_is_halved_down_to_single_filters() {
        let (mut live, mut ids) = live_set(8);
        let long = |live: &LiveSet| {
            live.requests.iter().find(|(_, one)| one.filters.len() > 1).map(|(id, _)| *id)
        };
        while let Some(id) = long(&live) {
            live.halve(&mut ids, id);
        }
        assert_eq!((live.requests.len(), live.filters()), (8, 8));
        let id = live.queued(Auth::Done).unwrap();
        live.halve(&mut ids, id);
        assert_eq!(live.requests.len(), 8);
    }
}
