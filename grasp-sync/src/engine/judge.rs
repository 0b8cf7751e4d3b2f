//! Fetches by id as they end, and the judgement of everything received.

use crate::limits::Refusal;
use grasp_core::admission::{Retry, SyncPath};
use grasp_core::nostr::event::EventId;
use grasp_core::sync::FilterHash;

use super::io::{JobId, Judged, Outcome, Report, SubId};
use super::job::FilterJob;
use super::relay::RelayContext;
use super::retry::{IdsEnded, Missed, WantResult};
use super::session::ConnectionSession;
use super::subs::{SubKind, Unjudged};

const MIN_IDS_PER_FETCH: usize = 10;

impl ConnectionSession {
    pub(super) fn ids_ended(&mut self, ctx: &mut RelayContext<'_>, sub: SubId) {
        self.subs.close(ctx, sub);
        let IdsEnded {
            missed,
            truncated_at,
        } = ctx.history.wants.ended(ctx.now.mono, sub);
        self.ids_per_fetch = self.ids_per_fetch.min(truncated_at.unwrap_or(usize::MAX));
        self.missed(ctx, missed);
    }

    pub(super) fn ids_refused(&mut self, ctx: &mut RelayContext<'_>, sub: SubId, refusal: Refusal) {
        let now = ctx.mono();
        // With nothing else open, a free slot is not to be expected soon.
        let is_alone = ctx.history.ledger.in_use() == 0;
        match refusal {
            Refusal::SlotCount | Refusal::DroppedStart if is_alone => self.ids_missed(ctx, sub),
            Refusal::Rate => ctx.history.wants.returned(now, sub),
            _ if refusal.is_for_room() => ctx.history.wants.returned(now, sub),
            Refusal::Malformed | Refusal::SetTooLarge if self.ids_per_fetch > MIN_IDS_PER_FETCH => {
                self.ids_per_fetch = (self.ids_per_fetch / 2).max(MIN_IDS_PER_FETCH);
                ctx.history.wants.returned(now, sub);
            }
            Refusal::AuthRequired => {
                let again = std::mem::replace(&mut self.ids_authenticated, true);
                match self.auth.require(ctx, self.subs.conn, again) {
                    true => ctx.history.wants.returned(now, sub),
                    false => self.ids_missed(ctx, sub),
                }
            }
            _ => self.ids_missed(ctx, sub),
        }
    }

    fn ids_missed(&mut self, ctx: &mut RelayContext<'_>, sub: SubId) {
        let missed = ctx.history.wants.refused(ctx.now.mono, sub);
        self.missed(ctx, missed);
    }

    /// Counts offered events that were not delivered; jobs of which hardly any were are paged instead.
    fn missed(&mut self, ctx: &mut RelayContext<'_>, missed: Vec<Missed>) {
        let mut undelivered: Vec<JobId> = Vec::new();
        for one in missed {
            if one.is_given_up {
                let event = one.event;
                ctx.report(|relay| Report::GaveUp { relay, event });
                self.backlog.event_resolved(ctx, one.jobs, false);
                continue;
            }
            for id in one.jobs.iter().filter(|_| one.is_first) {
                if self.backlog.get_mut(*id).is_some_and(FilterJob::missed_one) {
                    undelivered.push(*id);
                }
            }
        }
        for id in undelivered {
            self.switch_to_pages(ctx, id);
        }
    }

    /// Returns the way in which each judged row arrived under a subscription.
    pub(super) fn arrivals(
        &self,
        ctx: &RelayContext<'_>,
        sub: SubId,
        judged: &[Judged],
    ) -> Option<Vec<Arrival>> {
        let Unjudged { kind, count_as, .. } = self.subs.unjudged(sub)?;
        // The same for all of them, and expensive.
        let live_filter = match kind {
            SubKind::Live(id) => self.live.sole_filter(id),
            _ => None,
        };
        let arrival = |one: &Judged| {
            let job = match &kind {
                SubKind::Live(_) => None,
                SubKind::Neg(id) => Some(*id),
                SubKind::Pages(jobs) => jobs.first().filter(|_| jobs.len() == 1).copied(),
                SubKind::Ids => ctx.history.wants.job_waiting_for(one.row.id),
            };
            let filter = job
                .and_then(|id| self.backlog.get(id))
                .map(FilterJob::original_hash);
            let by_id = kind == SubKind::Ids;
            let count_as = if by_id {
                self.backlog.count_as(job.as_slice())
            } else {
                count_as
            };
            let times = &ctx.history.listening_times;
            let is_gap = times.is_gap(count_as, self.listening_since, one.row.at);
            Arrival {
                path: count_as.path,
                is_gap,
                filter: filter.or(live_filter),
            }
        };
        Some(judged.iter().map(arrival).collect())
    }

    /// Handles the judgement of rows that arrived under a subscription.
    pub(super) fn judged(
        &mut self,
        ctx: &mut RelayContext<'_>,
        sub: SubId,
        judged: &[Judged],
        arrivals: &[Arrival],
    ) {
        let index = &ctx.shared.index;
        if self
            .full_sync
            .as_mut()
            .is_some_and(|one| !one.count(index, judged, arrivals))
        {
            self.fall_back_to_filters(ctx);
        }
        self.give_up_forged(ctx, judged);
        let Some(Unjudged { kind, rows, .. }) = self.subs.judged(sub, judged.len()) else {
            return;
        };
        match kind {
            SubKind::Pages(jobs) => {
                self.retry_failed(ctx, judged, &jobs);
                for id in jobs.iter().filter(|_| rows == 0) {
                    if let Some(job) = self.backlog.get_mut(*id) {
                        job.unjudged.remove(&sub);
                    }
                    self.backlog.end_if_complete(ctx, *id);
                }
            }
            // No other request brings these.
            SubKind::Ids | SubKind::Live(_) => self.retry_failed(ctx, judged, &[]),
            SubKind::Neg(_) => {}
        }
    }

    /// Gives up events that this relay forged: a relay that has the genuine event will offer it.
    fn give_up_forged(&mut self, ctx: &mut RelayContext<'_>, judged: &[Judged]) {
        let now = ctx.mono();
        for one in judged
            .iter()
            .filter(|one| matches!(one.outcome, Outcome::Forged))
        {
            let waiting = ctx.history.wants.forged(now, one.row.id);
            self.backlog.event_resolved(ctx, waiting, false);
        }
    }

    /// Fetches events again that could not be accepted, within their budget. Any of the jobs may be the one that an
    /// event belongs to, so all of them wait for it.
    fn retry_failed(&mut self, ctx: &mut RelayContext<'_>, judged: &[Judged], jobs: &[JobId]) {
        let now = ctx.mono();
        if judged
            .iter()
            .any(|one| matches!(one.outcome, Outcome::Forged))
        {
            for id in jobs {
                self.backlog
                    .get_mut(*id)
                    .into_iter()
                    .for_each(|job| job.is_partial = true);
            }
        }
        for one in judged.iter().filter(|one| one.outcome.is_worth_retrying()) {
            let wants = &mut ctx.history.wants;
            let mut is_wanted =
                jobs.is_empty() && wants.want(now, one.row.id, None) != WantResult::GivenUp;
            for id in jobs {
                let Some(job) = self.backlog.get_mut(*id) else {
                    continue;
                };
                is_wanted |= job.wants_again(wants.want(now, one.row.id, Some(*id)));
            }
            if is_wanted {
                let missed = wants.failed(now, one.row.id);
                self.missed(ctx, vec![missed]);
            }
        }
    }

    /// Ends the wait for an event that is here, from any relay.
    pub(super) fn event_arrived(&mut self, ctx: &mut RelayContext<'_>, event: EventId) {
        let jobs = ctx.history.wants.resolve(event);
        self.backlog.event_resolved(ctx, jobs, true);
    }
}

/// The way in which one event arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Arrival {
    pub(super) path: SyncPath,
    /// True if a live subscription should have brought it before.
    pub(super) is_gap: bool,
    /// The filter that brought it, if it was a single one.
    pub(super) filter: Option<FilterHash>,
}

impl Outcome {
    /// Returns whether fetching the event again may help.
    pub(super) fn is_worth_retrying(&self) -> bool {
        match self {
            Self::Refused {
                retry: Retry::Soon, ..
            } => true,
            Self::Stored | Self::Held | Self::Known | Self::Forged | Self::Refused { .. } => false,
        }
    }
}
