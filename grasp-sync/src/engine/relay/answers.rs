//! Handles the messages of a relay. A message about an unknown subscription changes nothing.

use std::collections::BTreeSet;

use grasp_core::admission::{Lasting, SyncPath};
use grasp_core::limits::{EoseHint, Heard, Refusal};
use grasp_core::nostr::event::EventId;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::FilterHash;

use super::super::desk::Desk;
use super::super::history::{Method, Phase, Say};
use super::super::ids::{InventoryId, JobId, LiveId, SubId};
use super::super::io::{Delivered, InventoryFailed, Judged, Outcome, Row, Said};
use super::super::layer::Layer;
use super::super::missing;
use super::super::parks::Way;
use super::super::reconcile::{Reconciliation, Step};
use super::super::report::Report;
use super::super::retry::{Ended, Missed, Wanting};
use super::gaps::Course;
use super::refusals::Named;
use super::session::Session;
use super::subs::{NEG_IDLE, Serves, Unjudged};
use super::whole::most_offered;

impl Session {
    pub(in crate::engine) fn heard(&mut self, desk: &mut Desk<'_>, said: Said) {
        match said {
            Said::Delivered { sub, rows } => self.delivered(desk, sub, &rows),
            Said::Eose { sub, hint } => self.eose(desk, sub, hint),
            Said::Closed { sub, text } => self.closed(desk, sub, &text),
            Said::NegMsg { sub, message } => self.neg_msg(desk, sub, &message),
            Said::NegErr { sub, text } => {
                if matches!(self.subs.serves(sub), Some(Serves::Neg(_))) {
                    let refusal = Refusal::read(Heard::NegErr, &text);
                    self.refused(desk, sub, refusal, &text, Named::Yes);
                }
            }
            Said::Notice { text } => self.notice(desk, &text),
            Said::Challenge => self.challenged(desk),
            Said::Authenticated { accepted } => self.authenticated(desk, accepted),
        }
    }

    fn delivered(&mut self, desk: &mut Desk<'_>, sub: SubId, rows: &[Delivered]) {
        let Some(serves) = self.subs.serves(sub) else { return };
        let course = match &serves {
            Serves::Live(_) => Course::LIVE,
            Serves::Pages(jobs) => self.course_of_jobs(jobs),
            Serves::Neg(_) | Serves::Ids => Course::NEW,
        };
        self.subs.heard(desk.mono(), sub, desk.shared.config.watchdog);
        self.subs.delivered(sub, rows.len(), course);
        match serves {
            Serves::Live(id) => self.overheard(desk, id, rows),
            Serves::Ids => {
                rows.iter().for_each(|one| desk.standing.wants.delivered(sub, one.row.id));
            }
            Serves::Pages(jobs) => self.pages_delivered(desk, sub, &jobs, rows),
            Serves::Neg(_) => {}
        }
    }

    /// Handles live events: nothing is missing up to the latest of them.
    fn overheard(&mut self, desk: &mut Desk<'_>, id: LiveId, rows: &[Delivered]) {
        self.reach_back(desk, id);
        let latest = rows.iter().map(|one| one.row.at.min(desk.now.unix)).max();
        if let Some(listening) = self.live.wanted.get_mut(&id) {
            listening.heard = listening.heard.max(latest.unwrap_or(listening.heard));
        }
    }

    fn eose(&mut self, desk: &mut Desk<'_>, sub: SubId, hint: Option<EoseHint>) {
        let Some(serves) = self.subs.serves(sub) else { return };
        match serves {
            Serves::Live(id) => self.listens(desk, sub, id),
            Serves::Pages(jobs) => self.pages_ended(desk, sub, &jobs, hint),
            Serves::Ids => {
                self.close(desk, sub);
                let Ended { missed, cut_at } = desk.standing.wants.ended(desk.now.mono, sub);
                self.ids_per_fetch = self.ids_per_fetch.min(cut_at.unwrap_or(usize::MAX));
                self.missed(desk, missed);
            }
            Serves::Neg(_) => {}
        }
    }

    /// Notes that a live request is in force.
    fn listens(&mut self, desk: &mut Desk<'_>, sub: SubId, id: LiveId) {
        self.subs.heard(desk.mono(), sub, desk.shared.config.watchdog);
        let Some(listening) = self.live.wanted.get_mut(&id) else { return };
        listening.heard = listening.heard.max(desk.now.unix);
        desk.standing.parks.answered(listening.layer, Way::Live);
        self.reach_back(desk, id);
    }

    fn closed(&mut self, desk: &mut Desk<'_>, sub: SubId, text: &str) {
        let heard = match self.subs.serves(sub) {
            None | Some(Serves::Neg(_)) => return,
            Some(Serves::Live(_)) => Heard::LiveClosed,
            Some(Serves::Pages(_) | Serves::Ids) => Heard::Closed,
        };
        self.refused(desk, sub, Refusal::read(heard, text), text, Named::Yes);
    }

    /// Counts offered events that were not delivered; jobs of which hardly any were are paged instead.
    pub(super) fn missed(&mut self, desk: &mut Desk<'_>, missed: Vec<Missed>) {
        let mut astray: Vec<JobId> = Vec::new();
        for one in missed {
            if one.is_given_up {
                let (relay, event) = (desk.relay.clone(), one.event);
                desk.report(Report::GaveUp { relay, event });
                self.settled(desk, one.jobs, false);
                continue;
            }
            for id in one.jobs.iter().filter(|_| one.is_first) {
                let Some(job) = self.jobs.get_mut(id) else { continue };
                job.missed += 1;
                if job.is_led_astray() {
                    astray.push(*id);
                }
            }
        }
        for id in astray {
            self.page_instead(desk, id);
        }
    }

    /// Starts a comparison with the inventory of the local relay.
    pub(in crate::engine) fn inventory(
        &mut self,
        desk: &mut Desk<'_>,
        id: JobId,
        answered: InventoryId,
        items: Result<Vec<Row>, InventoryFailed>,
    ) {
        let whole = self.whole;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let Phase::Listing { sub, request } = job.phase else { return };
        if request != answered {
            return;
        }
        // With nothing to compare, pages bring more for each request, and requests are limited here.
        if desk.standing.manners.counts_frames && items.as_ref().is_ok_and(Vec::is_empty) {
            self.close(desk, sub);
            return self.queue(id, Method::Page);
        }
        let (since, until) = job.window();
        let is_within = |row: &Row| {
            since.is_none_or(|since| row.at >= since) && until.is_none_or(|until| row.at <= until)
        };
        let (family, layer) = (job.family(), job.layer);
        let refused = desk.shared.rejected.rows(&family).filter(is_within);
        let frame = desk.standing.manners.neg_frame;
        let (most, most_items) = (most_offered(whole, layer), desk.shared.config.inventory_items);
        let opened = items
            .ok()
            .filter(|items| layer != Layer::Whole || items.len() <= most_items)
            .and_then(|items| Reconciliation::open(items.into_iter().chain(refused), frame, most));
        let Some((talk, first)) = opened else {
            self.close(desk, sub);
            return self.fail(desk, id);
        };
        desk.shared.held_items.insert(id, talk.items());
        let say = Some(Say::Open(first));
        job.phase = Phase::Comparing { sub, talk: Box::new(talk), say };
    }

    fn neg_msg(&mut self, desk: &mut Desk<'_>, sub: SubId, message: &[u8]) {
        let Some(Serves::Neg(id)) = self.subs.serves(sub) else { return };
        self.subs.heard(desk.mono(), sub, NEG_IDLE);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let layer = job.layer;
        // A message out of turn is ignored.
        let Phase::Comparing { talk, say: say @ None, .. } = &mut job.phase else { return };
        match talk.heard(message) {
            Step::Reply(reply) => *say = Some(Say::Go(reply)),
            Step::Done { needed, lacking } => {
                desk.standing.parks.answered(layer, Way::History);
                desk.standing.neg.worked();
                if std::mem::take(&mut desk.standing.is_known_to_page) {
                    let relay = desk.relay.clone();
                    desk.report(Report::Negentropy { relay });
                }
                let (items, ids) = (talk.items(), talk.take_lacking_ids());
                let filter = job.filter();
                // Polls compare every few minutes, and would dominate the count.
                let group = self.groups.get(&job.group);
                if group.is_some_and(|group| group.purpose.is_history()) {
                    note_lacking(desk, layer, &filter, Compared { items, lacking, ids });
                }
                if layer == Layer::Whole {
                    let (now, took) = (desk.mono(), self.subs.lasted(desk.mono(), sub));
                    self.whole_compared(now, took);
                }
                self.end_session(desk, id, sub);
                self.compared(desk, id, needed);
            }
            Step::TooMuch => {
                self.end_session(desk, id, sub);
                self.cut_by_time(desk, id, Method::Reconcile);
            }
            Step::Broken => self.refused(desk, sub, Refusal::NegProtocol, "", Named::No),
        }
    }

    fn end_session(&mut self, desk: &mut Desk<'_>, id: JobId, sub: SubId) {
        self.close(desk, sub);
        self.forget_inventory(desk, id);
    }

    /// Returns the way in which each judged row arrived under a subscription.
    pub(in crate::engine) fn origin(
        &self,
        desk: &Desk<'_>,
        sub: SubId,
        judged: &[Judged],
    ) -> Option<Origin> {
        let Unjudged { serves, course, .. } = self.subs.unjudged(sub)?;
        let filters = match serves {
            // The same for all, and expensive.
            Serves::Live(id) => vec![self.sole_filter(id); judged.len()],
            _ => judged.iter().map(|one| self.filter_of(desk, &serves, one.row.id)).collect(),
        };
        let came = judged.iter().map(|one| {
            let by_id = serves == Serves::Ids;
            let course = if by_id { self.course_of_id(desk, one.row.id) } else { course };
            let is_gap = desk.standing.listened.is_gap(course, self.listening_since, one.row.at);
            Came { path: course.path, is_gap }
        });
        Some(Origin { came: came.collect(), filters })
    }

    /// Returns the way in which a page of these jobs is counted.
    pub(super) fn course_of_jobs(&self, jobs: &[JobId]) -> Course {
        let group = jobs.iter().find_map(|id| self.groups.get(&self.jobs.get(id)?.group));
        group.map_or(Course::NEW, |group| group.course)
    }

    /// Returns the way in which an event fetched by id is counted.
    pub(super) fn course_of_id(&self, desk: &Desk<'_>, event: EventId) -> Course {
        let job = desk.standing.wants.a_job_of(event);
        self.course_of_jobs(job.as_slice())
    }

    /// Handles the judgement of rows that arrived under a subscription.
    pub(in crate::engine) fn judged(
        &mut self,
        desk: &mut Desk<'_>,
        sub: SubId,
        judged: &[Judged],
        filters: &[Option<FilterHash>],
    ) {
        self.weigh(desk, judged, filters);
        self.give_up_forged(desk, judged);
        let Some(Unjudged { serves, rows, .. }) = self.subs.judged(sub, judged.len()) else {
            return;
        };
        match serves {
            Serves::Pages(jobs) => {
                self.retry_failed(desk, judged, &jobs);
                if rows == 0 {
                    jobs.iter().for_each(|id| self.page_judged(desk, sub, *id));
                }
            }
            Serves::Ids => self.retry_failed(desk, judged, &[]),
            Serves::Live(_) => self.fetch_what_failed(desk, judged),
            Serves::Neg(_) => {}
        }
    }

    /// What came forged is not wanted from this relay: whoever has the event itself will offer it.
    fn give_up_forged(&mut self, desk: &mut Desk<'_>, judged: &[Judged]) {
        let now = desk.mono();
        for one in judged.iter().filter(|one| matches!(one.outcome, Outcome::Forged)) {
            let waiting = desk.standing.wants.forged(now, one.row.id);
            self.settled(desk, waiting, false);
        }
    }

    /// Fetches live events that the local relay could not accept at the time, within their budget: no other request
    /// brings them.
    fn fetch_what_failed(&mut self, desk: &mut Desk<'_>, judged: &[Judged]) {
        let now = desk.mono();
        let is_brief = |one: &&Judged| {
            matches!(one.outcome, Outcome::Refused { lasting: Lasting::Briefly, .. })
        };
        for one in judged.iter().filter(is_brief) {
            if desk.standing.wants.want(now, one.row.id, None) != Wanting::GivenUp {
                let missed = desk.standing.wants.failed(now, one.row.id);
                self.missed(desk, vec![missed]);
            }
        }
    }

    /// Returns the hash of the filter that brought an event, if it was a single one.
    fn filter_of(&self, desk: &Desk<'_>, serves: &Serves, event: EventId) -> Option<FilterHash> {
        let job = match serves {
            Serves::Live(_) => None,
            Serves::Neg(id) => Some(*id),
            Serves::Pages(jobs) => jobs.first().filter(|_| jobs.len() == 1).copied(),
            Serves::Ids => desk.standing.wants.a_job_of(event),
        };
        Some(self.jobs.get(&job?)?.family())
    }

    /// Fetches events again that could not be accepted, within their budget. Any of the jobs may be the one that an
    /// event belongs to, so all of them wait for it.
    fn retry_failed(&mut self, desk: &mut Desk<'_>, judged: &[Judged], jobs: &[JobId]) {
        let now = desk.mono();
        if judged.iter().any(|one| matches!(one.outcome, Outcome::Forged)) {
            let affected = jobs.iter().copied();
            affected.for_each(|id| _ = self.jobs.get_mut(&id).map(|job| job.is_partial = true));
        }
        for one in judged.iter().filter(|one| one.outcome.is_worth_retrying()) {
            let mut is_wanted = jobs.is_empty();
            for id in jobs {
                let Some(job) = self.jobs.get_mut(id) else { continue };
                match desk.standing.wants.want(now, one.row.id, Some(*id)) {
                    Wanting::Noted | Wanting::Doubtful => {
                        job.left += 1;
                        is_wanted = true;
                    }
                    Wanting::Already => {}
                    Wanting::GivenUp => job.is_partial = true,
                }
            }
            if is_wanted {
                let missed = desk.standing.wants.failed(now, one.row.id);
                self.missed(desk, vec![missed]);
            }
        }
    }

    fn sole_filter(&self, id: LiveId) -> Option<FilterHash> {
        match self.live.wanted.get(&id)?.filters.as_slice() {
            [only] => Some(FilterHash::of(&only.filter())),
            _ => None,
        }
    }

    /// Ends the wait for an event that is here, from any relay.
    pub(in crate::engine) fn is_here(&mut self, desk: &mut Desk<'_>, event: EventId) {
        let jobs = desk.standing.wants.settled(event);
        self.settled(desk, jobs, true);
    }
}

/// The result of a comparison, on our side.
struct Compared {
    /// Our events that were compared.
    items: usize,
    /// Those of them that the relay lacks.
    lacking: usize,
    /// Ids of some of these.
    ids: BTreeSet<EventId>,
}

/// Notes our events that a relay lacks. In full sync it need not have all of them: those of its own repositories
/// count once they are attributed to one.
fn note_lacking(desk: &mut Desk<'_>, layer: Layer, filter: &Filter, compared: Compared) {
    let Compared { items, lacking, ids } = compared;
    let health = &mut desk.standing.health;
    match layer {
        Layer::Whole => health.compared(items.saturating_sub(lacking), 0),
        Layer::Announcements | Layer::Repos | Layer::Roots => health.compared(items, lacking),
    }
    desk.note_change();
    if !ids.is_empty() {
        let asked = missing::questions(&desk.shared.index, desk.relay, layer, filter, ids);
        missing::ask(desk.shared, desk.out, asked);
    }
}

/// The way in which judged events arrived.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Origin {
    pub(in crate::engine) came: Vec<Came>,
    /// The filter that brought each, if it was a single one.
    pub(in crate::engine) filters: Vec<Option<FilterHash>>,
}

/// The way in which one event arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::engine) struct Came {
    pub(in crate::engine) path: SyncPath,
    /// True if a live subscription should have brought it before.
    pub(in crate::engine) is_gap: bool,
}

impl Outcome {
    /// Returns whether fetching the event again may help.
    pub(in crate::engine) fn is_worth_retrying(&self) -> bool {
        match self {
            Self::Refused { lasting: Lasting::Briefly, .. } => true,
            Self::Stored | Self::Held | Self::Known | Self::Forged | Self::Refused { .. } => false,
        }
    }
}
