//! Reactions to refusals: budgets are lowered, and what was refused is retried, split, suspended or given up.

use std::time::Duration;

use grasp_core::limits::{Action, Heard, PARK, PeerText, Refusal, SlotClass};

use super::super::desk::Desk;
use super::super::history::{Method, Phase};
use super::super::ids::{JobId, LiveId, SubId};
use super::super::io::Frame;
use super::super::parks::Way;
use super::super::report::Report;
use super::auth::Ask;
use super::live::LivePhase;
use super::session::Session;
use super::subs::{Open, Serves};

/// The party that ended a refused subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The relay named the subscription, so it is closed.
    Yes,
    /// We concluded it, so we have to close it.
    No,
}

/// Duration of a live request after which earlier losses are forgotten.
const SETTLED: Duration = Duration::from_secs(5 * 60);
const FEWEST_IDS: usize = 10;

impl Session {
    /// Handles a subscription that was refused, or is taken for refused.
    pub(super) fn refused(
        &mut self,
        desk: &mut Desk<'_>,
        sub: SubId,
        refusal: Refusal,
        text: &str,
        named: Named,
    ) {
        let Some(open) = self.subs.remove(sub) else { return };
        let (serves, action) = (open.serves.clone(), refusal.action());
        let lasted = open.lasted(desk.mono());
        self.tell(desk, refusal, text);
        if named == Named::No && open.is_sent {
            let frame = match serves {
                Serves::Neg(_) => Frame::NegClose { sub },
                _ => Frame::Unsubscribe { sub },
            };
            desk.send(self.conn, frame);
        }
        self.give_back(desk, open, action);
        if action == Action::PauseStarts {
            desk.pause_starts();
        }
        match serves {
            Serves::Live(id) => self.live_refused(desk, id, action, lasted),
            Serves::Pages(jobs) => self.pages_refused(desk, &jobs, action),
            Serves::Neg(id) => {
                self.forget_inventory(desk, id);
                self.neg_refused(desk, id, refusal, text);
            }
            Serves::Ids => self.ids_refused(desk, sub, action),
        }
    }

    fn give_back(&mut self, desk: &mut Desk<'_>, open: Open, action: Action) {
        let ledger = &mut desk.standing.ledger;
        match action {
            Action::LowerSlots | Action::RefuseUnanswered => ledger.refused_by_count(open.slot),
            Action::LowerBytes(stated) => {
                ledger.refused_by_bytes(open.slot, stated);
                desk.standing.retained = Some(ledger.byte_ceiling());
                desk.note_change();
            }
            _ => ledger.free(open.slot),
        }
        self.shed_live(desk);
    }

    /// Polls the newest live requests that exceed a lowered budget.
    fn shed_live(&mut self, desk: &mut Desk<'_>) {
        while desk.standing.ledger.excess_live() > 0 && self.close_one_replaced(desk) {}
        let excess = desk.standing.ledger.excess_live();
        let open = self.live.wanted.iter().filter_map(|(id, one)| Some((*id, one.sub()?)));
        let mut open: Vec<(LiveId, SubId)> =
            open.filter(|(_, sub)| self.subs.serves(*sub).is_some()).collect();
        // Announcements were subscribed to first, and are polled last.
        let newest = open.split_off(open.len().saturating_sub(excess));
        for (id, sub) in newest {
            self.close(desk, sub);
            if let Some(listening) = self.live.wanted.get_mut(&id) {
                listening.poll(desk.now.mono, desk.shared.config.poll_every);
            }
        }
    }

    fn live_refused(&mut self, desk: &mut Desk<'_>, id: LiveId, action: Action, lasted: Duration) {
        let now = desk.mono();
        let Some(listening) = self.live.wanted.get_mut(&id) else { return };
        if listening.is_replaced() {
            self.live.wanted.remove(&id);
            return self.live.reach_back_from(desk.now.unix);
        }
        if lasted >= SETTLED {
            listening.failures = 0;
        }
        let is_one = listening.filters.len() == 1;
        if Self::is_refusal_of_whole(listening.layer, action) {
            listening.lost(LivePhase::Queued);
            return self.call_by_name(desk);
        }
        match action {
            Action::PauseStarts => listening.lost(LivePhase::Queued),
            Action::LowerSlots
            | Action::RefuseUnanswered
            | Action::WaitForSession
            | Action::LowerBytes(_) => listening.squeezed(now),
            Action::LiveWithoutLimitZero if listening.has_zero => {
                self.live.without_zero = true;
                listening.lost(LivePhase::Queued);
            }
            Action::HalveFilters if !is_one => self.halve_filters(id),
            Action::NeverResend if !is_one => self.live.halve(&mut desk.shared.ids, id),
            Action::HalveFilters | Action::NeverResend | Action::ParkAndSurface(_) => {
                listening.lost(LivePhase::Resting(now + PARK));
            }
            Action::AuthenticateOnce => self.live_wants_auth(desk, id),
            Action::Park(_) => {
                listening.lost(LivePhase::Queued);
                let layer = listening.layer;
                self.park(desk, layer, Way::Live);
            }
            // One drop is a gap to be closed; repeated drops mean that the relay cannot keep up.
            Action::ResubscribeSince => {
                match listening.failures {
                    0 => listening.lost(LivePhase::Queued),
                    _ => listening.rest(now),
                }
                listening.failures = listening.failures.max(1);
                listening.has_dropped = true;
            }
            _ => listening.rest(now),
        }
    }

    /// Lowers the filters per request, because the relay accepts fewer.
    fn halve_filters(&mut self, id: LiveId) {
        let Some(listening) = self.live.wanted.get_mut(&id) else { return };
        let half = (listening.filters.len() / 2).max(1);
        listening.lost(LivePhase::Queued);
        self.budget = self.budget.lowered_to_filters_per_req(half);
        self.live.rebuild = true;
    }

    pub(super) fn page_refused(&mut self, desk: &mut Desk<'_>, id: JobId, action: Action) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let layer = job.layer;
        let next = job.page_failed();
        if Self::is_refusal_of_whole(layer, action) {
            return self.call_by_name(desk);
        }
        match action {
            Action::PauseStarts => self.turn_page(desk, id, next),
            Action::LowerSlots
            | Action::RefuseUnanswered
            | Action::WaitForSession
            | Action::LowerBytes(_)
                if job.may_squeeze() =>
            {
                self.turn_page(desk, id, next);
            }
            Action::RetryOnce(rest) if !job.once.retried => {
                job.once.retried = true;
                self.rest(desk, id, rest, Method::Page);
            }
            Action::AuthenticateOnce => self.job_wants_auth(desk, id, Method::Page),
            Action::Park(_) => {
                self.park(desk, layer, Way::History);
                self.queue(id, Method::Page);
            }
            Action::NeverResend => self.cut_by_content(desk, id, Method::Page),
            Action::Bisect => self.cut_by_time(desk, id, Method::Page),
            Action::HalveFilters | Action::ParkAndSurface(_) => self.give_up_filter(desk, id),
            _ => self.fail(desk, id),
        }
    }

    fn neg_refused(&mut self, desk: &mut Desk<'_>, id: JobId, refusal: Refusal, text: &str) {
        let now = desk.mono();
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match refusal.action() {
            Action::PauseStarts => self.queue(id, Method::Reconcile),
            Action::LowerSlots | Action::RefuseUnanswered | Action::LowerBytes(_)
                if job.may_squeeze() =>
            {
                self.queue(id, Method::Reconcile);
            }
            Action::WaitForSession if job.may_squeeze() => {
                let open = desk.standing.ledger.in_use_by(SlotClass::Reconcile);
                self.most_sessions = self.most_sessions.min(open.max(1));
                self.queue(id, Method::Reconcile);
            }
            Action::Bisect => self.cut_by_time(desk, id, Method::Reconcile),
            Action::ReopenOnce if !job.once.reopened => {
                job.once.reopened = true;
                self.queue(id, Method::Reconcile);
            }
            Action::AuthenticateOnce => self.job_wants_auth(desk, id, Method::Reconcile),
            Action::PageSession => {
                self.queue(id, Method::Page);
                self.page_from_now_on(desk);
                self.warn_of_paging(desk, refusal, text);
            }
            // This is about the filter, or about reconciling it; its pages will show.
            Action::ReopenOnce | Action::PageFilter | Action::NeverResend | Action::Park(_) => {
                self.queue(id, Method::Page);
            }
            _ => {
                desk.standing.neg.failed(now);
                self.queue(id, Method::Page);
                self.warn_of_paging(desk, refusal, text);
            }
        }
    }

    /// Switches the connection to pages: the relay does not support NIP-77.
    fn page_from_now_on(&mut self, desk: &mut Desk<'_>) {
        self.pages_only = true;
        let waiting = self.lines.remove(&Method::Reconcile).unwrap_or_default();
        waiting.into_iter().for_each(|(_, id)| self.queue(id, Method::Page));
        self.close_all(desk, |serves| matches!(serves, Serves::Neg(_)));
        let is_talking =
            |phase: &Phase| matches!(phase, Phase::Listing { .. } | Phase::Comparing { .. });
        let talking = self.jobs.iter().filter(|(_, job)| is_talking(&job.phase));
        let talking: Vec<JobId> = talking.map(|(id, _)| *id).collect();
        for id in talking {
            self.forget_inventory(desk, id);
            self.queue(id, Method::Page);
        }
    }

    fn warn_of_paging(&mut self, desk: &mut Desk<'_>, refusal: Refusal, text: &str) {
        if !std::mem::replace(&mut desk.standing.is_known_to_page, true) {
            let (relay, text) = (desk.relay.clone(), PeerText::new(text));
            desk.report(Report::NoNegentropy { relay, refusal, text });
        }
    }

    fn ids_refused(&mut self, desk: &mut Desk<'_>, sub: SubId, action: Action) {
        let now = desk.mono();
        // With nothing else open, a free slot is not to be expected soon.
        let is_alone = desk.standing.ledger.in_use() == 0;
        match action {
            Action::LowerSlots | Action::RefuseUnanswered if is_alone => self.ids_missed(desk, sub),
            Action::PauseStarts
            | Action::LowerSlots
            | Action::RefuseUnanswered
            | Action::WaitForSession
            | Action::LowerBytes(_) => desk.standing.wants.returned(now, sub),
            Action::NeverResend | Action::Bisect if self.ids_per_fetch > FEWEST_IDS => {
                self.ids_per_fetch = (self.ids_per_fetch / 2).max(FEWEST_IDS);
                desk.standing.wants.returned(now, sub);
            }
            Action::AuthenticateOnce => {
                let again = std::mem::replace(&mut self.ids_authenticated, true);
                match self.ask_for_auth(desk, again) {
                    Ask::Policy => self.ids_missed(desk, sub),
                    _ => desk.standing.wants.returned(now, sub),
                }
            }
            _ => self.ids_missed(desk, sub),
        }
    }

    fn ids_missed(&mut self, desk: &mut Desk<'_>, sub: SubId) {
        let missed = desk.standing.wants.refused(desk.now.mono, sub);
        self.missed(desk, missed);
    }

    /// Handles a NOTICE, which names no subscription. If it can only be about a request that was just sent, the
    /// newest is refused.
    pub(super) fn notice(&mut self, desk: &mut Desk<'_>, text: &str) {
        let refusal = Refusal::read(Heard::Notice, text);
        self.tell(desk, refusal, text);
        let unanswered = self.subs.unanswered();
        let newest = |is_it: fn(&Serves) -> bool| {
            unanswered.iter().find(|(_, serves)| is_it(serves)).map(|(sub, _)| *sub)
        };
        let blamed: Vec<SubId> = match refusal.action() {
            Action::Surface => return,
            Action::PauseStarts => return desk.pause_starts(),
            Action::RefuseUnanswered => return self.refuse_unanswered(desk, refusal, text),
            Action::PageSession
            | Action::WaitForSession
            | Action::Bisect
            | Action::ReopenOnce
            | Action::PageFilter => newest(|serves| matches!(serves, Serves::Neg(_))),
            Action::LiveWithoutLimitZero | Action::ResubscribeSince => {
                newest(|serves| matches!(serves, Serves::Live(_)))
            }
            _ => newest(|_| true),
        }
        .into_iter()
        .collect();
        for sub in blamed {
            self.refused(desk, sub, refusal, text, Named::No);
        }
    }

    /// Handles word of a dropped request, which will never be answered. The newest is the likeliest and lowers the
    /// budget; the other unanswered ones are sent again. Further notices are ignored for as long as the oldest
    /// request has waited: they are about the same requests.
    fn refuse_unanswered(&mut self, desk: &mut Desk<'_>, refusal: Refusal, text: &str) {
        let now = desk.mono();
        let Some(oldest) = self.subs.oldest_unanswered().filter(|_| now >= self.deaf_until) else {
            return;
        };
        self.deaf_until = now + (now - oldest);
        let mut unanswered = self.subs.unanswered().into_iter();
        if let Some((newest, _)) = unanswered.next() {
            self.refused(desk, newest, refusal, text, Named::No);
        }
        for (sub, _) in unanswered {
            // Frees the slot and sends it again, without lowering a limit further.
            self.refused(desk, sub, Refusal::NegSessions, text, Named::No);
        }
    }

    /// Returns whether a session waits for us: for the inventory of the local relay, or for permission to send.
    fn is_our_turn(&self, id: JobId) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        matches!(job.phase, Phase::Listing { .. }) || job.has_something_to_say()
    }

    /// Starts a session again that took too long by our own fault.
    fn lose_session(&mut self, desk: &mut Desk<'_>, id: JobId, sub: SubId) {
        self.close(desk, sub);
        self.forget_inventory(desk, id);
        self.fail(desk, id);
    }

    /// Refuses requests that are overdue, and ends an authentication that took too long.
    pub(in crate::engine) fn watch(&mut self, desk: &mut Desk<'_>) {
        for sub in self.subs.overdue(desk.mono()) {
            // While rows are being judged the socket is not read, so the relay is not silent.
            if self.subs.put_off(desk.mono(), sub) {
                continue;
            }
            match self.subs.serves(sub) {
                Some(Serves::Neg(id)) if self.is_our_turn(id) => self.lose_session(desk, id, sub),
                _ => self.refused(desk, sub, Refusal::Silent, "", Named::No),
            }
        }
        if self.auth.gave_up(desk.mono()) {
            self.auth_ended(desk, false);
        }
    }
}
