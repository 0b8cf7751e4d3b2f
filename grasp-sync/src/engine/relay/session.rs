//! One connection to a relay: its live subscriptions, the history that is fetched over it, and the end of that.

use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{Refusal, should_consolidate};
use grasp_core::Mono;
use grasp_core::limits::{Admit, PeerText};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{
    AddFilters, Coverage, FilterHash, History, PendingBatch, PendingItems, RETENTION,
    RequestBudget, build_announcement_filter, build_layer2_and_layer3_filters, compute_actions,
};

use super::super::compact_filter::CompactFilter;
use super::super::context::RelayContext;
use super::super::ids::{ConnId, GroupId, JobId, SubId};
use super::super::io::{Frame, Places};
use super::super::job::{Group, Job, Method, Purpose};
use super::super::layer::Layer;
use super::super::report::Report;
use super::super::suspended::RequestMode;
use super::auth::Auth;
use super::full_sync::{FullSync, all_events};
use super::gaps::CountAs;
use super::live::LiveSet;
use super::resume::{PassKind, StartMode};
use super::subs::{SubKind, Subs};

/// The state of one connection; dropped when the connection ends.
#[derive(Debug)]
pub(in crate::engine) struct Session {
    pub(in crate::engine) conn: ConnId,
    /// The time since which everything wanted is subscribed to; `None` until the history was asked for.
    pub(super) listening_since: Option<Timestamp>,
    pub(super) budget: RequestBudget,
    /// Ids per request; lowered when the relay refuses or truncates.
    pub(super) ids_per_fetch: usize,
    pub(super) ids_authenticated: bool,
    pub(super) subs: Subs,
    pub(super) live: LiveSet,
    /// Set while the relay is asked for all that it has instead of by filters.
    pub(super) full_sync: Option<FullSync>,
    pub(super) groups: BTreeMap<GroupId, Group>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// Queued jobs by method: announcements first, polls last.
    pub(super) queues: BTreeMap<Method, BTreeSet<(Purpose, JobId)>>,
    pub(super) backing_off: BTreeSet<(Mono, JobId)>,
    pub(super) auth: Auth,
    /// True if the relay is known not to support NIP-77.
    pub(super) pages_only: bool,
    /// Pages that share a request; lowered when the relay refuses.
    pub(super) pages_per_req: usize,
    /// Concurrent NIP-77 sessions; lowered when the relay refuses.
    pub(super) max_neg_sessions: usize,
    /// A NOTICE about a dropped request is ignored until then: it is about one that was counted already.
    pub(super) ignore_drops_until: Mono,
    /// Meanings of refusals that were reported to the operator.
    reported_refusals: BTreeSet<&'static str>,
    /// The outcome of fetching the history, once it has ended.
    pub(super) ended: Option<History>,
}

impl Session {
    /// Starts a connection. Subscribes first and fetches afterwards, so that no event is missed in between.
    pub(in crate::engine) fn begin(
        ctx: &mut RelayContext<'_>,
        conn: ConnId,
        how: StartMode,
    ) -> Self {
        let count_as = ctx.history.pass.count_as();
        let mut session = Self {
            conn,
            listening_since: None,
            budget: ctx.history.profile.budget,
            ids_per_fetch: ctx.history.profile.ids,
            ids_authenticated: false,
            subs: Subs::default(),
            live: LiveSet::default(),
            full_sync: None,
            groups: BTreeMap::new(),
            jobs: BTreeMap::new(),
            queues: BTreeMap::new(),
            backing_off: BTreeSet::new(),
            auth: Auth::Unasked { challenged: false },
            pages_only: false,
            pages_per_req: Places::MAX,
            max_neg_sessions: usize::MAX,
            ignore_drops_until: Mono::ZERO,
            reported_refusals: BTreeSet::new(),
            ended: None,
        };
        session.subscribe(ctx, vec![build_announcement_filter(None)]);
        match how {
            StartMode::Fresh => session.fetch_announcements(ctx, count_as),
            StartMode::Continue { since } => {
                session.fetch_announcements(ctx, count_as);
                session.catch_up(ctx, since);
            }
            StartMode::CatchUp { since } => {
                session.catch_up_with_announcements(ctx, since);
                session.catch_up(ctx, since);
            }
        }
        session.ask_for_new_items(ctx, count_as);
        session
    }

    /// Fetches everything again over the open connection: once a day, or because the local relay lost something. The
    /// live set is rebuilt; the old subscriptions stay open until the new ones are in force.
    pub(in crate::engine) fn start_over(&mut self, ctx: &mut RelayContext<'_>, why: PassKind) {
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.drop_job(ctx, job);
        }
        self.close_all(ctx, |kind| *kind == SubKind::Ids);
        self.groups.clear();
        ctx.batches().clear();
        ctx.history.wants.disconnected();
        let now = ctx.now.unix;
        if let Some(state) = ctx.state() {
            state.start_over(now);
        }
        ctx.history.begin_pass(now, why);
        let mut count_as = ctx.history.pass.count_as();
        match why {
            PassKind::Daily => count_as = count_as.with_gaps_until(now),
            // What came live is lost too, so finding it again is no gap of the relay.
            PassKind::Fresh | PassKind::Resumed => self.listening_since = None,
        }
        self.ended = None;
        self.report_status(ctx);
        // The fetches that ended here are part of the new pass.
        let _ = self.replace_live_items(ctx, |_| true);
        (self.live.filters_at_rebuild, self.live.repo_requests_at_rebuild) = (0, 0);
        self.full_sync = None;
        self.fetch_announcements(ctx, count_as);
        self.ask_for_new_items(ctx, count_as);
    }

    /// Asks for the items that are wanted from this relay and neither confirmed nor pending.
    fn ask_for_new_items(&mut self, ctx: &mut RelayContext<'_>, count_as: CountAs) {
        let Some(target) = ctx.shared.index.target(ctx.relay) else { return };
        let targets = [(ctx.relay.clone(), target)].into();
        let actions = compute_actions(&targets, &ctx.shared.pending, &ctx.shared.states);
        for action in actions {
            self.add(ctx, action, Method::Reconcile, count_as);
        }
    }

    /// Adds items that were just discovered, by pages: hardly anything about them is stored here, so there is little
    /// to compare.
    pub(in crate::engine) fn discovered(&mut self, ctx: &mut RelayContext<'_>, action: AddFilters) {
        self.add(ctx, action, Method::Page, CountAs::NEW);
    }

    /// Subscribes to new items, then fetches their history as one batch.
    fn add(
        &mut self,
        ctx: &mut RelayContext<'_>,
        action: AddFilters,
        method: Method,
        count_as: CountAs,
    ) {
        let filters = action.filters(&self.budget);
        if self.try_full_sync(ctx, &filters) {
            return self.fetch_in_full_sync(ctx, action, method, count_as);
        }
        let threshold =
            ctx.shared.config.consolidation_threshold.max(2 * self.live.filters_at_rebuild);
        if should_consolidate(self.live.filters(), filters.len(), threshold)
            && self.live.filters() > 0
        {
            self.live.needs_rebuild = true;
        } else {
            self.subscribe(ctx, filters.clone());
        }
        self.fetch_batch(ctx, filters, method, action.items, count_as);
    }

    pub(super) fn fetch_batch(
        &mut self,
        ctx: &mut RelayContext<'_>,
        filters: Vec<Filter>,
        method: Method,
        items: PendingItems,
        count_as: CountAs,
    ) {
        let batch = ctx.shared.ids.batch();
        self.fetch(ctx, Purpose::Batch(batch), filters, method, items, count_as);
    }

    /// Fetches layer 1 completely.
    fn fetch_announcements(&mut self, ctx: &mut RelayContext<'_>, count_as: CountAs) {
        let filters = vec![build_announcement_filter(None)];
        let nothing = PendingItems::default();
        self.fetch(ctx, Purpose::Announcements, filters, Method::Reconcile, nothing, count_as);
    }

    /// Fetches layer 1 from `since` on.
    fn catch_up_with_announcements(&mut self, ctx: &mut RelayContext<'_>, since: Timestamp) {
        let filters = vec![build_announcement_filter(Some(since))];
        let count_as = ctx.history.pass.count_as().with_gaps_until(ctx.now.unix);
        let nothing = PendingItems::default();
        self.fetch(ctx, Purpose::Announcements, filters, Method::Page, nothing, count_as);
    }

    /// Subscribes to everything confirmed, and fetches it from `since` on.
    fn catch_up(&mut self, ctx: &mut RelayContext<'_>, since: Timestamp) {
        let target = ctx.shared.index.target(ctx.relay).unwrap_or_default();
        let Some(state) = ctx.state() else { return };
        state.confirmed.restrict_to(&target);
        let confirmed = state.confirmed.clone();
        let filters = build_layer2_and_layer3_filters(&confirmed, None, &self.budget);
        let filters = if self.try_full_sync(ctx, &filters) {
            vec![all_events().since(since)]
        } else {
            self.subscribe(ctx, filters);
            build_layer2_and_layer3_filters(&confirmed, Some(since), &self.budget)
        };
        let count_as = ctx.history.pass.count_as().with_gaps_until(ctx.now.unix);
        let nothing = PendingItems::default();
        self.fetch(ctx, Purpose::CatchUp, filters, Method::Page, nothing, count_as);
    }

    pub(super) fn subscribe(&mut self, ctx: &mut RelayContext<'_>, filters: Vec<Filter>) {
        let (ids, now) = (&mut ctx.shared.ids, ctx.now.unix);
        self.live.add(ids, now, filters, None, &self.budget);
    }

    /// Starts a group of jobs, one for each filter.
    pub(super) fn fetch(
        &mut self,
        ctx: &mut RelayContext<'_>,
        purpose: Purpose,
        filters: Vec<Filter>,
        method: Method,
        items: PendingItems,
        count_as: CountAs,
    ) {
        if filters.is_empty() {
            return;
        }
        let group = ctx.shared.ids.group();
        let began = ctx.now.unix;
        let planned: Vec<(Filter, Method)> =
            filters.into_iter().map(|filter| Self::plan(ctx, purpose, filter, method)).collect();
        let jobs: Vec<JobId> = planned.iter().map(|_| ctx.shared.ids.job()).collect();
        let id = match purpose {
            Purpose::Batch(id) => id,
            _ => ctx.shared.ids.batch(),
        };
        let tracker = PendingBatch::new(id, items, jobs.iter().map(|job| job.part()));
        let tracker = match purpose {
            Purpose::Batch(_) => {
                ctx.batches().push(tracker);
                None
            }
            _ => Some(tracker),
        };
        self.groups.insert(group, Group { purpose, began, count_as, tracker });
        let mut before: Option<CompactFilter> = None;
        for (job, (filter, method)) in jobs.into_iter().zip(planned) {
            let layer = Layer::of(&filter);
            let compact = CompactFilter::new(filter, before.as_ref());
            self.enqueue(ctx, job, Job::new(group, layer, compact.clone(), began), method);
            before = Some(compact);
        }
    }

    /// Chooses the window and method of a filter. What was proven in this pass is not compared again, only continued.
    /// Polled filters are always fetched as asked: nothing was received for them in between.
    fn plan(
        ctx: &RelayContext<'_>,
        purpose: Purpose,
        filter: Filter,
        method: Method,
    ) -> (Filter, Method) {
        let is_rechecked = ctx.shared.config.recheck_announcements
            && ctx.history.is_resumed()
            && Layer::of(&filter) == Layer::Announcements;
        // A proof says nothing about events that the relay dropped since.
        let is_reach_back = matches!(purpose, Purpose::MissedLive(_));
        if method == Method::Page || is_rechecked || is_reach_back || !purpose.is_history() {
            return (filter, method);
        }
        match ctx.history.coverage.since(&FilterHash::of(&filter), None) {
            Coverage::Proven(proof) if proof.at >= ctx.history.pass.began => {
                (filter.since(proof.until - RETENTION), Method::Page)
            }
            Coverage::Proven(_) | Coverage::Unproven => (filter, method),
        }
    }

    pub(in crate::engine) fn report_status(&self, ctx: &mut RelayContext<'_>) {
        let Some(status) = ctx.state().map(|state| state.connection_status()) else { return };
        ctx.report(|relay| Report::Status { relay, status });
    }

    /// Reports a refusal to the operator, once for each meaning.
    pub(super) fn report_refusal(
        &mut self,
        ctx: &mut RelayContext<'_>,
        refusal: Refusal,
        text: &str,
    ) {
        if self.reported_refusals.insert(refusal.label()) {
            let text = PeerText::new(text);
            ctx.report(|relay| Report::Refused { relay, refusal, text });
        }
    }

    /// Releases the inventories that this connection's sessions hold in memory.
    pub(in crate::engine) fn forget_inventories(&self, ctx: &mut RelayContext<'_>) {
        self.jobs.keys().for_each(|id| self.forget_inventory(ctx, *id));
    }

    /// Returns whether all history was fetched, or given up for now.
    pub(in crate::engine) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Closes every subscription that matches.
    pub(super) fn close_all(
        &mut self,
        ctx: &mut RelayContext<'_>,
        which: impl Fn(&SubKind) -> bool,
    ) {
        let subs: Vec<_> =
            self.subs.iter().filter(|(_, open)| which(&open.kind)).map(|(sub, _)| sub).collect();
        for sub in subs {
            self.close(ctx, sub);
        }
    }

    /// Closes a subscription from our side, and frees its slot.
    pub(super) fn close(&mut self, ctx: &mut RelayContext<'_>, sub: SubId) {
        let Some(open) = self.subs.remove(sub) else { return };
        if open.is_sent {
            let frame = match open.kind {
                SubKind::Neg(_) => Frame::NegClose { sub },
                SubKind::Live(_) | SubKind::Pages(_) | SubKind::Ids => Frame::Unsubscribe { sub },
            };
            ctx.send(self.conn, frame);
        }
        ctx.history.ledger.free(open.slot);
    }

    /// Returns when this connection next needs to run.
    pub(in crate::engine) fn deadline(&self, ctx: &RelayContext<'_>) -> Option<Mono> {
        let history = &ctx.history;
        let now = ctx.mono();
        let paced = self.wants_to_send(ctx).then(|| history.pace.reopens_at());
        let daily = self.has_ended().then(|| history.daily.due());
        let suspended = self.suspended_layers(ctx).into_values().min();
        [
            self.subs.deadline(),
            self.backing_off.first().map(|(at, _)| *at),
            self.live.deadline(),
            self.auth.deadline(),
            history.wants.deadline().filter(|at| *at > now),
            // A time in the past means that a slot is missing, not time; freeing one will be an input.
            paced.filter(|at| *at > now),
            daily.map(|at| at.max(history.pace.reopens_at())),
            self.next_comparison().filter(|at| *at > now),
            suspended,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn wants_to_send(&self, ctx: &RelayContext<'_>) -> bool {
        self.queues.values().any(|queue| !queue.is_empty())
            || ctx.history.wants.is_due(ctx.mono())
            || self.live.needs_rebuild
            || self.live.queued().is_some()
            || self.jobs.values().any(Job::has_neg_message)
    }

    /// Returns the layers that are suspended, and until when.
    pub(super) fn suspended_layers(&self, ctx: &RelayContext<'_>) -> BTreeMap<Layer, Mono> {
        let layers = [Layer::Announcements, Layer::Repos, Layer::Roots];
        let until =
            |layer| match ctx.history.suspended.admit(ctx.mono(), layer, RequestMode::History) {
                Admit::Go => None,
                Admit::Wait(until) => Some((layer, until)),
            };
        layers.into_iter().filter_map(until).collect()
    }
}
