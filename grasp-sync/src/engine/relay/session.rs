//! One connection to a relay: its live subscriptions, the history that is fetched over it, and the end of that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::limits::{Admit, PeerText, RETRY_DELAY, Refusal, should_consolidate};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{
    AddFilters, Coverage, FilterHash, History, PendingBatch, PendingItems, RETENTION,
    RequestBudget, build_announcement_filter, build_layer2_and_layer3_filters, compute_actions,
};

use super::super::batch::{Group, Purpose};
use super::super::desk::Desk;
use super::super::history::{Job, Method};
use super::super::ids::{ConnId, GroupId, JobId, SubId};
use super::super::io::{Frame, Places};
use super::super::layer::Layer;
use super::super::lean::LeanFilter;
use super::super::parks::Way;
use super::super::report::Report;
use super::auth::Auth;
use super::gaps::Course;
use super::live::Live;
use super::resume::{Sort, TakeUp};
use super::subs::{Serves, Subs};
use super::whole::{Whole, all};

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
    pub(super) live: Live,
    /// Set while the relay is asked for all that it has instead of by filters.
    pub(super) whole: Option<Whole>,
    pub(super) groups: BTreeMap<GroupId, Group>,
    pub(super) jobs: BTreeMap<JobId, Job>,
    /// Queued jobs by method: announcements first, polls last.
    pub(super) lines: BTreeMap<Method, BTreeSet<(Purpose, JobId)>>,
    pub(super) resting: BTreeSet<(Mono, JobId)>,
    pub(super) auth: Auth,
    /// True if the relay is known not to support NIP-77.
    pub(super) pages_only: bool,
    /// Pages that share a request; lowered when the relay refuses.
    pub(super) pages_per_req: usize,
    /// Concurrent NIP-77 sessions; lowered when the relay refuses.
    pub(super) most_sessions: usize,
    /// A NOTICE about a dropped request is ignored until then: it is about one that was counted already.
    pub(super) deaf_until: Mono,
    /// Meanings of refusals that were reported to the operator.
    told: BTreeSet<&'static str>,
    /// The outcome of fetching the history, once it has ended.
    pub(super) ended: Option<History>,
}

impl Session {
    /// Starts a connection. Subscribes first and fetches afterwards, so that no event is missed in between.
    pub(in crate::engine) fn begin(desk: &mut Desk<'_>, conn: ConnId, how: TakeUp) -> Self {
        let course = desk.standing.pass.course();
        let mut session = Self {
            conn,
            listening_since: None,
            budget: desk.standing.manners.budget,
            ids_per_fetch: desk.standing.manners.ids,
            ids_authenticated: false,
            subs: Subs::default(),
            live: Live::default(),
            whole: None,
            groups: BTreeMap::new(),
            jobs: BTreeMap::new(),
            lines: BTreeMap::new(),
            resting: BTreeSet::new(),
            auth: Auth::Unasked { challenged: false },
            pages_only: false,
            pages_per_req: Places::MOST,
            most_sessions: usize::MAX,
            deaf_until: Mono::ZERO,
            told: BTreeSet::new(),
            ended: None,
        };
        session.listen(desk, vec![build_announcement_filter(None)]);
        match how {
            TakeUp::Fresh => session.fetch_announcements(desk, course),
            TakeUp::Continue { since } => {
                session.fetch_announcements(desk, course);
                session.catch_up(desk, since);
            }
            TakeUp::CatchUp { since } => {
                session.catch_up_with_announcements(desk, since);
                session.catch_up(desk, since);
            }
        }
        session.ask_for_new_items(desk, course);
        session
    }

    /// Fetches everything again over the open connection: once a day, or because the local relay lost something. The
    /// live set is rebuilt; the old subscriptions stay open until the new ones are in force.
    pub(in crate::engine) fn start_over(&mut self, desk: &mut Desk<'_>, why: Sort) {
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            self.drop_job(desk, job);
        }
        self.close_all(desk, |serves| *serves == Serves::Ids);
        self.groups.clear();
        desk.batches().clear();
        desk.standing.wants.disconnected();
        let now = desk.now.unix;
        if let Some(state) = desk.state() {
            state.start_over(now);
        }
        desk.standing.begin_pass(now, why);
        let mut course = desk.standing.pass.course();
        match why {
            Sort::Daily => course = course.with_gaps_until(now),
            // What came live is lost too, so finding it again is no gap of the relay.
            Sort::Fresh | Sort::Resumed => self.listening_since = None,
        }
        self.ended = None;
        self.report_status(desk);
        // The fetches that ended here are part of the new pass.
        let _ = self.replace_live_items(desk, |_| true);
        (self.live.rebuilt, self.live.repos_rebuilt) = (0, 0);
        self.whole = None;
        self.fetch_announcements(desk, course);
        self.ask_for_new_items(desk, course);
    }

    /// Asks for the items that are wanted from this relay and neither confirmed nor pending.
    fn ask_for_new_items(&mut self, desk: &mut Desk<'_>, course: Course) {
        let Some(target) = desk.shared.index.target(desk.relay) else { return };
        let targets = [(desk.relay.clone(), target)].into();
        let actions = compute_actions(&targets, &desk.shared.pending, &desk.shared.states);
        for action in actions {
            self.add(desk, action, Method::Reconcile, course);
        }
    }

    /// Adds items that were just discovered, by pages: hardly anything about them is stored here, so there is little
    /// to compare.
    pub(in crate::engine) fn discovered(&mut self, desk: &mut Desk<'_>, action: AddFilters) {
        self.add(desk, action, Method::Page, Course::NEW);
    }

    /// Subscribes to new items, then fetches their history as one batch.
    fn add(&mut self, desk: &mut Desk<'_>, action: AddFilters, method: Method, course: Course) {
        let filters = action.filters(&self.budget);
        if self.is_whole(desk, &filters) {
            return self.fetch_with_whole(desk, action, method, course);
        }
        let threshold = desk.shared.config.consolidation_threshold.max(2 * self.live.rebuilt);
        if should_consolidate(self.live.filters(), filters.len(), threshold)
            && self.live.filters() > 0
        {
            self.live.rebuild = true;
        } else {
            self.listen(desk, filters.clone());
        }
        self.fetch_batch(desk, filters, method, action.items, course);
    }

    pub(super) fn fetch_batch(
        &mut self,
        desk: &mut Desk<'_>,
        filters: Vec<Filter>,
        method: Method,
        items: PendingItems,
        course: Course,
    ) {
        let batch = desk.shared.ids.batch();
        self.fetch(desk, Purpose::Batch(batch), filters, method, items, course);
    }

    /// Fetches layer 1 completely.
    fn fetch_announcements(&mut self, desk: &mut Desk<'_>, course: Course) {
        let filters = vec![build_announcement_filter(None)];
        let nothing = PendingItems::default();
        self.fetch(desk, Purpose::Announcements, filters, Method::Reconcile, nothing, course);
    }

    /// Fetches layer 1 from `since` on.
    fn catch_up_with_announcements(&mut self, desk: &mut Desk<'_>, since: Timestamp) {
        let filters = vec![build_announcement_filter(Some(since))];
        let course = desk.standing.pass.course().with_gaps_until(desk.now.unix);
        let nothing = PendingItems::default();
        self.fetch(desk, Purpose::Announcements, filters, Method::Page, nothing, course);
    }

    /// Subscribes to everything confirmed, and fetches it from `since` on.
    fn catch_up(&mut self, desk: &mut Desk<'_>, since: Timestamp) {
        let target = desk.shared.index.target(desk.relay).unwrap_or_default();
        let Some(state) = desk.state() else { return };
        state.confirmed.restrict_to(&target);
        let confirmed = state.confirmed.clone();
        let filters = build_layer2_and_layer3_filters(&confirmed, None, &self.budget);
        let filters = if self.is_whole(desk, &filters) {
            vec![all().since(since)]
        } else {
            self.listen(desk, filters);
            build_layer2_and_layer3_filters(&confirmed, Some(since), &self.budget)
        };
        let course = desk.standing.pass.course().with_gaps_until(desk.now.unix);
        let nothing = PendingItems::default();
        self.fetch(desk, Purpose::CatchUp, filters, Method::Page, nothing, course);
    }

    pub(super) fn listen(&mut self, desk: &mut Desk<'_>, filters: Vec<Filter>) {
        let (ids, now) = (&mut desk.shared.ids, desk.now.unix);
        self.live.add(ids, now, filters, None, &self.budget);
    }

    /// Starts a group of jobs, one for each filter.
    pub(super) fn fetch(
        &mut self,
        desk: &mut Desk<'_>,
        purpose: Purpose,
        filters: Vec<Filter>,
        method: Method,
        items: PendingItems,
        course: Course,
    ) {
        if filters.is_empty() {
            return;
        }
        let group = desk.shared.ids.group();
        let began = desk.now.unix;
        let planned: Vec<(Filter, Method)> =
            filters.into_iter().map(|filter| Self::plan(desk, purpose, filter, method)).collect();
        let jobs: Vec<JobId> = planned.iter().map(|_| desk.shared.ids.job()).collect();
        let id = match purpose {
            Purpose::Batch(id) => id,
            _ => desk.shared.ids.batch(),
        };
        let tracker = PendingBatch::new(id, items, jobs.iter().map(|job| job.part()));
        let tracker = match purpose {
            Purpose::Batch(_) => {
                desk.batches().push(tracker);
                None
            }
            _ => Some(tracker),
        };
        self.groups.insert(group, Group { purpose, began, course, tracker });
        let mut before: Option<LeanFilter> = None;
        for (job, (filter, method)) in jobs.into_iter().zip(planned) {
            let layer = Layer::of(&filter);
            let lean = LeanFilter::keep(filter, before.as_ref());
            self.put_in_line(desk, job, Job::new(group, layer, lean.clone(), began), method);
            before = Some(lean);
        }
    }

    /// Chooses the window and method of a filter. What was proven in this pass is not compared again, only continued.
    /// Polled filters are always fetched as asked: nothing was received for them in between.
    fn plan(desk: &Desk<'_>, purpose: Purpose, filter: Filter, method: Method) -> (Filter, Method) {
        let is_rechecked = desk.shared.config.recheck_announcements
            && desk.standing.is_resumed()
            && Layer::of(&filter) == Layer::Announcements;
        // A proof says nothing about events that the relay dropped since.
        let is_reach_back = matches!(purpose, Purpose::ReachBack(_));
        if method == Method::Page || is_rechecked || is_reach_back || !purpose.is_history() {
            return (filter, method);
        }
        match desk.standing.coverage.since(&FilterHash::of(&filter), None) {
            Coverage::Proven(proof) if proof.at >= desk.standing.pass.began => {
                (filter.since(proof.until - RETENTION), Method::Page)
            }
            Coverage::Proven(_) | Coverage::Unproven => (filter, method),
        }
    }

    pub(in crate::engine) fn report_status(&self, desk: &mut Desk<'_>) {
        let Some(status) = desk.state().map(|state| state.connection_status()) else { return };
        let relay = desk.relay.clone();
        desk.report(Report::Status { relay, status });
    }

    /// Reports a refusal to the operator, once for each meaning.
    pub(super) fn tell(&mut self, desk: &mut Desk<'_>, refusal: Refusal, text: &str) {
        if self.told.insert(refusal.label()) {
            let (relay, text) = (desk.relay.clone(), PeerText::new(text));
            desk.report(Report::Refused { relay, refusal, text });
        }
    }

    /// Releases the inventories that this connection's sessions hold in memory.
    pub(in crate::engine) fn forget_inventories(&self, desk: &mut Desk<'_>) {
        self.jobs.keys().for_each(|id| self.forget_inventory(desk, *id));
    }

    /// Returns whether all history was fetched, or given up for now.
    pub(in crate::engine) fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Closes every subscription that matches.
    pub(super) fn close_all(&mut self, desk: &mut Desk<'_>, which: impl Fn(&Serves) -> bool) {
        let subs: Vec<_> =
            self.subs.iter().filter(|(_, open)| which(&open.serves)).map(|(sub, _)| sub).collect();
        for sub in subs {
            self.close(desk, sub);
        }
    }

    /// Closes a subscription from our side, and frees its slot.
    pub(super) fn close(&mut self, desk: &mut Desk<'_>, sub: SubId) {
        let Some(open) = self.subs.remove(sub) else { return };
        if open.is_sent {
            let frame = match open.serves {
                Serves::Neg(_) => Frame::NegClose { sub },
                Serves::Live(_) | Serves::Pages(_) | Serves::Ids => Frame::Unsubscribe { sub },
            };
            desk.send(self.conn, frame);
        }
        desk.standing.ledger.free(open.slot);
    }

    /// Returns when this connection next needs to run.
    pub(in crate::engine) fn deadline(&self, desk: &Desk<'_>) -> Option<Mono> {
        let standing = &desk.standing;
        let now = desk.mono();
        let paced = self.wants_to_send(desk).then(|| standing.pace.reopens_at());
        let daily = self.has_ended().then(|| standing.daily.due());
        let parked = self.parked_layers(desk).into_values().min();
        [
            self.subs.deadline(),
            self.resting.first().map(|(at, _)| *at),
            self.live.deadline(),
            self.auth.deadline(),
            standing.wants.deadline().filter(|at| *at > now),
            // A time in the past means that a slot is missing, not time; freeing one will be an input.
            paced.filter(|at| *at > now),
            daily.map(|at| at.max(standing.pace.reopens_at())),
            self.next_comparison().filter(|at| *at > now),
            parked,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn wants_to_send(&self, desk: &Desk<'_>) -> bool {
        self.lines.values().any(|line| !line.is_empty())
            || desk.standing.wants.is_due(desk.mono())
            || self.live.rebuild
            || self.live.queued().is_some()
            || self.jobs.values().any(Job::has_something_to_say)
    }

    /// Returns the layers that are suspended, and until when.
    pub(super) fn parked_layers(&self, desk: &Desk<'_>) -> BTreeMap<Layer, Mono> {
        let layers = [Layer::Announcements, Layer::Repos, Layer::Roots];
        let until = |layer| match desk.standing.parks.admit(desk.mono(), layer, Way::History) {
            Admit::Go => None,
            Admit::Wait(until) => Some((layer, until)),
        };
        layers.into_iter().filter_map(until).collect()
    }

    /// Returns the backoff after failures in a row: 65 seconds, doubling to an hour.
    pub(super) fn rest_after(failures: u32) -> Duration {
        let doublings = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        let rest = RETRY_DELAY.saturating_mul(doublings);
        rest.min(Duration::from_secs(60 * 60))
    }
}
