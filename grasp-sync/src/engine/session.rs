//! One connection to a relay: its live subscriptions, the history that is fetched over it, and the end of that.

use std::collections::BTreeSet;

use crate::limits::{Heard, Refusal};
use grasp_core::Mono;
use grasp_core::limits::{EoseHint, PeerText};
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{
    History, PendingItems, RelaySyncNeeds, RequestBudget, build_announcement_filter,
    build_layer2_and_layer3_filters, compute_actions,
};

use super::auth::Auth;
use super::backlog::{Backlog, Purpose};
use super::facts::RelayFacts;
use super::full_sync::{FullSync, all_events};
use super::history::{CountAs, PassKind, StartMode};
use super::io::{ConnId, Delivered, Frame, Places, Report, Said, SubId};
use super::job::{FilterJob, JobMethod};
use super::live::LiveSet;
use super::relay::RelayContext;
use super::subs::{OpenSub, SubKind, Subs};
use super::suspended::RequestMode;
use super::visits::Scope;

/// The party that ended a refused subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClosedBy {
    /// The relay named the subscription, so it is closed.
    Relay,
    /// We concluded it, so we have to close it.
    Us,
}

/// The state of one connection; dropped when the connection ends.
#[derive(Debug)]
pub(super) struct ConnectionSession {
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
    pub(super) backlog: Backlog,
    pub(super) auth: Auth,
    /// The relay is a private service, which tells its members alone anything.
    is_private: bool,
    /// The relay has a NIP-11 document, which says whether it is a private service.
    has_document: bool,
    /// The relay has sent a message.
    has_heard: bool,
    /// Pages that share a request; lowered when the relay refuses.
    pub(super) pages_per_req: usize,
    /// Concurrent NIP-77 sessions; lowered when the relay refuses.
    pub(super) max_neg_sessions: usize,
    /// A NOTICE about a dropped request is ignored until then: it is about one that was counted already.
    ignore_drops_until: Mono,
    /// Meanings of refusals that were reported to the operator.
    reported_refusals: BTreeSet<&'static str>,
    /// The outcome of fetching the history, once all was fetched, or given up for now.
    pub(super) ended: Option<History>,
}

impl ConnectionSession {
    /// Starts a connection. Subscribes first and fetches afterwards, so that no event is missed in between.
    ///
    /// A private service (GRASP-08) is sent nothing before it has let us in.
    pub(super) fn begin(
        ctx: &mut RelayContext<'_>,
        conn: ConnId,
        how: StartMode,
        facts: &RelayFacts,
    ) -> Self {
        let count_as = ctx.history.pass.count_as();
        let mut session = Self {
            listening_since: None,
            budget: ctx.history.profile.budget,
            ids_per_fetch: ctx.history.profile.ids,
            ids_authenticated: false,
            subs: Subs::new(conn),
            live: LiveSet::default(),
            full_sync: None,
            backlog: Backlog::default(),
            auth: match facts.is_private {
                true => Auth::Wanted(ctx.mono()),
                false => Auth::Unasked { challenged: false },
            },
            is_private: facts.is_private,
            has_document: facts.has_document,
            has_heard: false,
            pages_per_req: Places::MAX,
            max_neg_sessions: usize::MAX,
            ignore_drops_until: Mono::ZERO,
            reported_refusals: BTreeSet::new(),
            ended: None,
        };
        if ctx.history.scope == Scope::Full {
            session.subscribe(ctx, vec![build_announcement_filter(None)]);
        }
        match how {
            StartMode::Fresh => session.fetch_announcements(ctx, None, count_as),
            StartMode::Continue { since } => {
                session.fetch_announcements(ctx, None, count_as);
                session.catch_up(ctx, since);
            }
            StartMode::CatchUp { since } => {
                let count_as = count_as.with_gaps_until(ctx.now.unix);
                session.fetch_announcements(ctx, Some(since), count_as);
                session.catch_up(ctx, since);
            }
        }
        session.ask_for_new_items(ctx, count_as);
        session.begin_visits(ctx);
        session
    }

    /// Fetches everything again over the open connection: once a day, or because the local relay lost something. The
    /// live set is rebuilt; the old subscriptions stay open until the new ones are in force.
    pub(super) fn start_over(&mut self, ctx: &mut RelayContext<'_>, why: PassKind) {
        for job in self.backlog.jobs_where(|_| true) {
            self.backlog.drop_job(ctx, &mut self.subs, job);
        }
        self.subs.close_all(ctx, |kind| *kind == SubKind::Ids);
        self.backlog.batches.clear();
        ctx.history.wants.disconnected();
        let now = ctx.now.unix;
        ctx.history.state.start_over(now);
        ctx.history.begin_pass(now, why);
        let mut count_as = ctx.history.pass.count_as();
        match why {
            PassKind::Daily => count_as = count_as.with_gaps_until(now),
            // What came live is lost too, so finding it again is no gap of the relay.
            PassKind::Fresh | PassKind::Resumed => self.listening_since = None,
        }
        self.ended = None;
        ctx.report_status();
        self.replace_live_items(ctx, |_| true);
        (
            self.live.filters_at_rebuild,
            self.live.repo_requests_at_rebuild,
        ) = (0, 0);
        self.full_sync = None;
        self.fetch_announcements(ctx, None, count_as);
        self.ask_for_new_items(ctx, count_as);
        self.begin_visits(ctx);
    }

    /// Asks for the items that are wanted from this relay and neither confirmed nor pending.
    fn ask_for_new_items(&mut self, ctx: &mut RelayContext<'_>, count_as: CountAs) {
        let Some(target) = ctx.shared.index.target(ctx.relay) else {
            return;
        };
        self.add(ctx, &target, JobMethod::Reconcile, count_as);
    }

    /// Subscribes to the items of a target that are new, then fetches their history as one batch.
    pub(super) fn add(
        &mut self,
        ctx: &mut RelayContext<'_>,
        target: &RelaySyncNeeds,
        method: JobMethod,
        count_as: CountAs,
    ) {
        let pending = self.backlog.batches.values().map(|batch| &batch.items);
        let Some(items) = compute_actions(target, pending, &ctx.history.state) else {
            return;
        };
        let filters = build_layer2_and_layer3_filters(&items, None, &self.budget);
        if self.try_full_sync(ctx, &filters) {
            return self.fetch_in_full_sync(ctx, items, method, count_as);
        }
        let threshold = ctx
            .shared
            .config
            .consolidation_threshold
            .max(2 * self.live.filters_at_rebuild);
        let open = self.live.filters();
        if open > 0 && open + filters.len() > threshold {
            self.live.needs_rebuild = true;
        } else {
            self.subscribe(ctx, filters.clone());
        }
        self.backlog
            .fetch(ctx, Purpose::Items, filters, method, items, count_as);
    }

    /// Fetches layer 1: completely by comparison, or by pages from `since` on. Relays of authors are not asked for it.
    fn fetch_announcements(
        &mut self,
        ctx: &mut RelayContext<'_>,
        since: Option<Timestamp>,
        count_as: CountAs,
    ) {
        if ctx.history.scope != Scope::Full {
            return;
        }
        let method = if since.is_some() {
            JobMethod::Page
        } else {
            JobMethod::Reconcile
        };
        let filters = vec![build_announcement_filter(since)];
        let nothing = PendingItems::default();
        self.backlog.fetch(
            ctx,
            Purpose::Announcements,
            filters,
            method,
            nothing,
            count_as,
        );
    }

    /// Subscribes to everything confirmed, and fetches it from `since` on.
    fn catch_up(&mut self, ctx: &mut RelayContext<'_>, since: Timestamp) {
        let target = ctx.shared.index.target(ctx.relay).unwrap_or_default();
        ctx.history.state.confirmed.restrict_to(&target);
        let confirmed = ctx.history.state.confirmed.clone();
        let filters = build_layer2_and_layer3_filters(&confirmed, None, &self.budget);
        let filters = if self.try_full_sync(ctx, &filters) {
            vec![all_events().since(since)]
        } else {
            self.subscribe(ctx, filters);
            build_layer2_and_layer3_filters(&confirmed, Some(since), &self.budget)
        };
        let count_as = ctx.history.pass.count_as().with_gaps_until(ctx.now.unix);
        let nothing = PendingItems::default();
        self.backlog.fetch(
            ctx,
            Purpose::CatchUp,
            filters,
            JobMethod::Page,
            nothing,
            count_as,
        );
    }

    pub(super) fn subscribe(&mut self, ctx: &mut RelayContext<'_>, filters: Vec<Filter>) {
        let ids = &mut ctx.shared.ids;
        let now = ctx.now.unix;
        self.live.add(ids, now, filters, None, &self.budget);
    }

    /// Sends everything that may be sent now.
    pub(super) fn pump(&mut self, ctx: &mut RelayContext<'_>) {
        if self.is_private && self.auth != Auth::Done {
            return;
        }
        self.backlog.wake(ctx.mono());
        self.wake_live(ctx);
        if !ctx.history.pace.is_paused(ctx.mono()) {
            self.send_live(ctx);
            self.send_history(ctx);
        }
        self.end_failed_visits(ctx);
        self.update_progress(ctx);
        if self.recheck_if_due(ctx) && !ctx.history.pace.is_paused(ctx.mono()) {
            self.send_history(ctx);
        }
        ctx.report_interruptions();
    }

    /// Returns whether this message is a challenge before any other of a relay without a document, as that of a private
    /// service is.
    pub(super) fn seems_private(&mut self, said: &Said) -> bool {
        let is_first = !std::mem::replace(&mut self.has_heard, true);
        is_first && !self.has_document && *said == Said::Challenge
    }

    /// Waits with all requests until the relay has let us in.
    pub(super) fn set_private(&mut self, now: Mono) {
        self.is_private = true;
        self.auth = Auth::Wanted(now);
    }

    pub(super) fn handle_message(&mut self, ctx: &mut RelayContext<'_>, said: Said) {
        match said {
            Said::Delivered { sub, rows } => self.delivered(ctx, sub, &rows),
            Said::Eose { sub, hint } => self.eose(ctx, sub, hint),
            Said::Closed { sub, text } => {
                let heard = match self.subs.kind(sub) {
                    None | Some(SubKind::Neg(_)) => return,
                    Some(SubKind::Live(_)) => Heard::LiveClosed,
                    Some(SubKind::Pages(_) | SubKind::Ids) => Heard::Closed,
                };
                self.refused(
                    ctx,
                    sub,
                    Refusal::read(heard, &text),
                    &text,
                    ClosedBy::Relay,
                );
            }
            Said::NegMsg { sub, message } => self.neg_msg(ctx, sub, &message),
            Said::NegErr { sub, text } => {
                if matches!(self.subs.kind(sub), Some(SubKind::Neg(_))) {
                    let refusal = Refusal::read(Heard::NegErr, &text);
                    self.refused(ctx, sub, refusal, &text, ClosedBy::Relay);
                }
            }
            Said::Notice { text } => self.notice(ctx, &text),
            Said::Challenge => {
                if self.auth.challenged(ctx.mono()) {
                    ctx.send(self.subs.conn, Frame::Authenticate);
                }
            }
            Said::Authenticated { accepted } => {
                if self.auth.answered(accepted) && !accepted {
                    self.auth_refused(ctx);
                }
            }
        }
    }

    fn delivered(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, rows: &[Delivered]) {
        let Some(kind) = self.subs.kind(sub) else {
            return;
        };
        let count_as = match &kind {
            SubKind::Live(_) => CountAs::LIVE,
            SubKind::Pages(jobs) => self.backlog.count_as(jobs),
            SubKind::Neg(_) | SubKind::Ids => CountAs::NEW,
        };
        self.subs
            .answered(ctx.mono(), sub, ctx.shared.config.watchdog);
        self.subs.delivered(sub, rows.len(), count_as);
        match kind {
            SubKind::Live(id) => self.live_delivered(ctx, id, rows),
            SubKind::Ids => {
                rows.iter()
                    .for_each(|one| ctx.history.wants.delivered(sub, one.row.id));
            }
            SubKind::Pages(jobs) => self.pages_delivered(ctx, sub, &jobs, rows),
            SubKind::Neg(_) => {}
        }
    }

    fn eose(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, hint: Option<EoseHint>) {
        let Some(kind) = self.subs.kind(sub) else {
            return;
        };
        match kind {
            SubKind::Live(id) => self.live_established(ctx, sub, id),
            SubKind::Pages(jobs) => self.pages_ended(ctx, sub, &jobs, hint),
            SubKind::Ids => self.ids_ended(ctx, sub),
            SubKind::Neg(_) => {}
        }
    }

    /// Handles a subscription that was refused, or is taken for refused.
    pub(super) fn refused(
        &mut self,
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        refusal: Refusal,
        text: &str,
        closed_by: ClosedBy,
    ) {
        let Some(open) = self.subs.remove(sub) else {
            return;
        };
        let kind = open.kind.clone();
        let lasted = open.lasted(ctx.mono());
        self.report_refusal(ctx, refusal, text);
        if closed_by == ClosedBy::Us {
            self.subs.unsubscribe(ctx, sub, &open);
        }
        self.release_slot(ctx, open, refusal);
        if refusal == Refusal::Rate {
            ctx.pause_starts();
        }
        match kind {
            SubKind::Live(id) => self.live_refused(ctx, id, refusal, lasted),
            SubKind::Pages(jobs) => self.pages_refused(ctx, &jobs, refusal),
            SubKind::Neg(id) => self.neg_refused(ctx, id, refusal, text),
            SubKind::Ids => self.ids_refused(ctx, sub, refusal),
        }
    }

    fn release_slot(&mut self, ctx: &mut RelayContext<'_>, open: OpenSub, refusal: Refusal) {
        let ledger = &mut ctx.history.ledger;
        match refusal {
            Refusal::SlotCount | Refusal::DroppedStart => ledger.refused_by_count(open.slot),
            Refusal::RetainedBytes { stated } => {
                ledger.refused_by_bytes(open.slot, stated);
                ctx.history.kept.retained_bytes = Some(ledger.byte_ceiling());
                ctx.schedule_write();
            }
            _ => ledger.free(open.slot),
        }
        self.poll_excess_live(ctx);
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
            ctx.report(|relay| Report::Refused {
                relay,
                refusal,
                text,
            });
        }
    }

    /// Handles a NOTICE, which names no subscription. If it can only be about a request that was just sent, the
    /// newest is refused.
    pub(super) fn notice(&mut self, ctx: &mut RelayContext<'_>, text: &str) {
        let refusal = Refusal::read(Heard::Notice, text);
        self.report_refusal(ctx, refusal, text);
        let unanswered = self.subs.unanswered();
        let newest = |is_it: fn(&SubKind) -> bool| {
            unanswered
                .iter()
                .find(|(_, kind)| is_it(kind))
                .map(|(sub, _)| *sub)
        };
        let blamed = match refusal {
            Refusal::Remark => return,
            Refusal::Rate => return ctx.pause_starts(),
            Refusal::DroppedStart => return self.refuse_unanswered(ctx, refusal, text),
            Refusal::NegUnsupported
            | Refusal::NegSessions
            | Refusal::SetTooLarge
            | Refusal::NegClosed
            | Refusal::NegProtocol => newest(|kind| matches!(kind, SubKind::Neg(_))),
            Refusal::LimitZero | Refusal::LiveOverflow => {
                newest(|kind| matches!(kind, SubKind::Live(_)))
            }
            _ => newest(|_| true),
        };
        if let Some(sub) = blamed {
            self.refused(ctx, sub, refusal, text, ClosedBy::Us);
        }
    }

    /// Handles word of a dropped request, which will never be answered. The newest is the likeliest and lowers the
    /// budget; the other unanswered ones are sent again. Further notices are ignored for as long as the oldest
    /// request has waited: they are about the same requests.
    fn refuse_unanswered(&mut self, ctx: &mut RelayContext<'_>, refusal: Refusal, text: &str) {
        let now = ctx.mono();
        let unanswered = self.subs.unanswered();
        let oldest = unanswered.last().and_then(|(sub, _)| self.subs.get(*sub));
        let Some(oldest) = oldest.filter(|_| now >= self.ignore_drops_until) else {
            return;
        };
        self.ignore_drops_until = now + oldest.lasted(now);
        let mut unanswered = unanswered.into_iter();
        if let Some((newest, _)) = unanswered.next() {
            self.refused(ctx, newest, refusal, text, ClosedBy::Us);
        }
        for (sub, _) in unanswered {
            // Frees the slot and sends it again, without lowering a limit further.
            self.refused(ctx, sub, Refusal::NegSessions, text, ClosedBy::Us);
        }
    }

    /// Refuses requests that are overdue, and ends an authentication that took too long.
    pub(super) fn check_timeouts(&mut self, ctx: &mut RelayContext<'_>) {
        for sub in self.subs.overdue(ctx.mono()) {
            // While rows are being judged the socket is not read, so the relay is not silent.
            if self.subs.extend_deadline(ctx.mono(), sub) {
                continue;
            }
            match self.subs.kind(sub) {
                // It took too long by our own fault.
                Some(SubKind::Neg(id))
                    if self.backlog.get(id).is_some_and(FilterJob::waits_for_us) =>
                {
                    self.end_session(ctx, id, sub);
                    self.fail(ctx, id);
                }
                _ => self.refused(ctx, sub, Refusal::Silent, "", ClosedBy::Us),
            }
        }
        if self.auth.timed_out(ctx.mono()) {
            self.auth_refused(ctx);
        }
    }

    /// Suspends the layers of the requests that waited for authentication.
    fn auth_refused(&mut self, ctx: &mut RelayContext<'_>) {
        let jobs = self.backlog.jobs.values().filter(|job| job.needs_auth());
        let live = self.live.requests.values().filter(|one| one.needs_auth);
        let jobs = jobs.map(|job| (job.layer, RequestMode::History));
        let all: BTreeSet<_> = jobs
            .chain(live.map(|one| (one.layer, RequestMode::Live)))
            .collect();
        all.into_iter()
            .for_each(|(layer, mode)| self.suspend(ctx, layer, mode));
    }

    /// Returns when this connection next needs to run.
    pub(super) fn deadline(&self, ctx: &RelayContext<'_>) -> Option<Mono> {
        let history = &ctx.history;
        let now = ctx.mono();
        let paced = self.wants_to_send(ctx).then(|| history.pace.reopens_at());
        let daily = self.ended.map(|_| history.daily);
        let suspended = ctx.suspended_layers().into_values().min();
        let full_sync = self
            .full_sync
            .filter(|_| self.backlog.has_queued_comparison());
        let comparison = full_sync.map(|full_sync| full_sync.compare_at);
        let recheck = history
            .recheck_at
            .filter(|_| self.ended == Some(History::Complete));
        [
            self.subs.deadline(),
            self.backlog.backing_off.first().map(|(at, _)| *at),
            self.live.deadline(),
            self.auth.deadline(),
            history.wants.deadline().filter(|at| *at > now),
            // A time in the past means that a slot is missing, not time; freeing one will be an input.
            paced.filter(|at| *at > now),
            daily.map(|at| at.max(history.pace.reopens_at())),
            comparison.filter(|at| *at > now),
            recheck.filter(|at| *at > now),
            suspended,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn wants_to_send(&self, ctx: &RelayContext<'_>) -> bool {
        self.backlog.wants_to_send()
            || ctx.history.wants.is_due(ctx.mono())
            || self.live.needs_rebuild
            || self.live.queued(self.auth).is_some()
    }
}
