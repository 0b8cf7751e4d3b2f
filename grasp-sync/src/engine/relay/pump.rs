//! Sends what may be sent now: live subscriptions, then NIP-77 messages, fetches by id and jobs, each within its
//! budget.

use std::cell::OnceCell;

use grasp_core::limits::{Admit, SlotClass, SlotLedger};

use super::super::batch::Purpose;
use super::super::desk::{Asker, Desk};
use super::super::history::{Job, Method, Phase, Say, by_ids};
use super::super::ids::{JobId, LiveId};
use super::super::io::{Frame, Output};
use super::super::layer::{Layer, wire_len};
use super::super::parks::Way;
use super::super::reconcile::MAX_NEEDED;
use super::gaps::Course;
use super::live::LivePhase;
use super::session::Session;
use super::subs::{NEG_FIRST, NEG_IDLE, Serves};
use grasp_core::admission::SyncPath;
use grasp_core::nostr::filter::Filter;
use grasp_core::sync::{PendingItems, RETENTION};

/// Ids offered by all relays and not fetched yet above which histories are paged instead of compared.
const MOST_WANTED_IN_ALL: usize = 1_000_000;

/// The result of an attempt to start something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// It was sent, or became something else.
    Done,
    NoSlot,
    /// The pace does not allow it yet.
    NotYet,
}

impl Session {
    /// Sends everything that may be sent now.
    pub(in crate::engine) fn pump(&mut self, desk: &mut Desk<'_>) {
        self.wake(desk);
        if !desk.standing.pace.is_paused(desk.mono()) {
            self.send_live(desk);
            self.send_answers(desk);
            self.send_fetches(desk);
            self.send_jobs(desk);
        }
        self.settle(desk);
        Self::report_interruptions(desk);
    }

    /// Queues what has waited long enough.
    fn wake(&mut self, desk: &mut Desk<'_>) {
        let now = desk.mono();
        while let Some((_, id)) = self.resting.first().copied().filter(|(at, _)| *at <= now) {
            self.resting.pop_first();
            if let Some(Phase::Resting { then, .. }) = self.jobs.get(&id).map(|job| &job.phase) {
                self.queue(id, *then);
            }
        }
        let ids: Vec<LiveId> = self.live.wanted.keys().copied().collect();
        for id in ids {
            self.wake_live(desk, id);
        }
    }

    fn wake_live(&mut self, desk: &mut Desk<'_>, id: LiveId) {
        let now = desk.mono();
        let Some(listening) = self.live.wanted.get_mut(&id) else { return };
        match &mut listening.phase {
            LivePhase::Resting(until) if *until <= now => listening.phase = LivePhase::Queued,
            LivePhase::Polled { next, since } if *next <= now => {
                *next = now + desk.shared.config.poll_every;
                let since = *since - RETENTION;
                // A comparison finds events of any date; pages would have to begin from the start each time.
                let compares = can_compare(desk, self.pages_only);
                let (filters, method) = match compares {
                    true => (listening.plain_filters(), Method::Reconcile),
                    false => (listening.filters_since(since), Method::Page),
                };
                let is_running =
                    self.groups.values().any(|group| group.purpose == Purpose::Poll(id));
                if !is_running {
                    desk.standing.interrupted += usize::from(!compares);
                    let nothing = PendingItems::default();
                    let new = Course::NEW;
                    self.fetch(desk, Purpose::Poll(id), filters, method, nothing, new);
                }
            }
            _ => {}
        }
    }

    /// Sends queued live requests. They need a slot but no pace: relays do not limit live subscriptions by the
    /// minute, and every second without one is a gap. Requests without a slot are polled.
    fn send_live(&mut self, desk: &mut Desk<'_>) {
        if self.live.rebuild {
            self.rebuild_live(desk);
        }
        while let Some(id) = self.live.queued() {
            if self.send_one_live(desk, id) == Start::Done {
                continue;
            }
            if self.close_one_replaced(desk)
                || self.merge_repos(desk)
                || self.poll_a_thread_instead(desk, id)
            {
                continue;
            }
            if self.live.is_fragmented() {
                self.rebuild_live(desk);
            } else if let Some(listening) = self.live.wanted.get_mut(&id) {
                listening.poll(desk.now.mono, desk.shared.config.poll_every);
            }
        }
        self.unpoll(desk);
        self.end_replacement(desk);
    }

    /// Makes room for a request for repositories by polling one for known threads instead. Returns `false` if there
    /// is none, or the request is for threads itself.
    fn poll_a_thread_instead(&mut self, desk: &mut Desk<'_>, id: LiveId) -> bool {
        if self.live.wanted.get(&id).is_none_or(|one| one.layer == Layer::Roots) {
            return false;
        }
        let thread = {
            let mut threads = self.live.items().filter(|(_, one)| one.layer == Layer::Roots);
            threads.find_map(|(id, one)| Some((id, one.sub()?)))
        };
        let Some((thread, sub)) = thread else { return false };
        self.close(desk, sub);
        if let Some(listening) = self.live.wanted.get_mut(&thread) {
            listening.poll(desk.now.mono, desk.shared.config.poll_every);
        }
        true
    }

    fn send_one_live(&mut self, desk: &mut Desk<'_>, id: LiveId) -> Start {
        let now = desk.mono();
        let Some(listening) = self.live.wanted.get_mut(&id) else { return Start::Done };
        if let Admit::Wait(until) = desk.standing.parks.admit(now, listening.layer, Way::Live) {
            listening.phase = LivePhase::Resting(until);
            return Start::Done;
        }
        let Some(slot) = desk.standing.ledger.take(SlotClass::Live, listening.bytes) else {
            return Start::NoSlot;
        };
        desk.standing.parks.sent(now, listening.layer, Way::Live);
        let sub = desk.shared.ids.sub();
        let filters = listening.wire(self.live.without_zero);
        listening.phase = LivePhase::Open(sub);
        listening.heard = desk.now.unix;
        self.subs.insert(now, sub, slot, Serves::Live(id), desk.shared.config.watchdog);
        desk.send(self.conn, Frame::Subscribe { sub, filters, path: SyncPath::Live });
        Start::Done
    }

    /// Fetches what was published while a live request was not open, now that it is in force.
    pub(super) fn reach_back(&mut self, desk: &mut Desk<'_>, id: LiveId) {
        let listening = self.live.wanted.get_mut(&id);
        let Some(from) = listening.and_then(|listening| listening.from.take()) else { return };
        let purpose = Purpose::ReachBack(id);
        // One that is still under way is started again together with this one.
        let is_compared = self.is_reached_back_by_comparison(id);
        let from = self.drop_group_for(desk, purpose).map_or(from, |earlier| earlier.min(from));
        let Some(listening) = self.live.wanted.get_mut(&id) else { return };
        let has_dropped = std::mem::take(&mut listening.has_dropped) || is_compared;
        let compares = has_dropped && can_compare(desk, self.pages_only);
        let (missed, method) = match compares {
            true => (listening.plain_filters(), Method::Reconcile),
            false => (listening.filters_since(from), Method::Page),
        };
        desk.standing.interrupted += usize::from(!compares);
        self.fetch(desk, purpose, missed, method, PendingItems::default(), Course::NEW);
    }

    /// Finds by comparison what a relay dropped for a live request that is about to be replaced.
    pub(super) fn compare_dropped(
        &mut self,
        desk: &mut Desk<'_>,
        id: LiveId,
        filters: Vec<Filter>,
    ) {
        if can_compare(desk, self.pages_only) && !self.is_reached_back_by_comparison(id) {
            let (purpose, nothing) = (Purpose::ReachBack(id), PendingItems::default());
            self.fetch(desk, purpose, filters, Method::Reconcile, nothing, Course::NEW);
        }
    }

    /// Returns whether a comparison, which has no window, is finding what a live request missed.
    pub(super) fn is_reached_back_by_comparison(&self, id: LiveId) -> bool {
        let mut groups = self.groups.iter();
        let group = groups.find(|(_, group)| group.purpose == Purpose::ReachBack(id));
        let Some((group, _)) = group else { return false };
        self.jobs.values().any(|job| job.group == *group && job.window().0.is_none())
    }

    /// Subscribes to polled requests as soon as there is room.
    fn unpoll(&mut self, desk: &mut Desk<'_>) {
        let is_polled = |phase| matches!(phase, LivePhase::Polled { .. });
        let ids: Vec<LiveId> = {
            let wanted = self.live.wanted.iter().filter(|(_, one)| is_polled(one.phase));
            wanted.map(|(id, _)| *id).collect()
        };
        for id in ids {
            if !has_room(&desk.standing.ledger, SlotClass::Live) {
                return;
            }
            let Some(listening) = self.live.wanted.get_mut(&id) else { continue };
            let LivePhase::Polled { since, .. } = listening.phase else { continue };
            let from = listening.from.replace(since - RETENTION);
            if self.send_one_live(desk, id) == Start::NoSlot {
                if let Some(listening) = self.live.wanted.get_mut(&id) {
                    listening.from = from;
                }
                return;
            }
        }
    }

    /// Sends the next messages of the NIP-77 sessions under way.
    fn send_answers(&mut self, desk: &mut Desk<'_>) {
        let talking: Vec<JobId> = {
            let jobs = self.jobs.iter().filter(|(_, job)| job.has_something_to_say());
            jobs.map(|(id, _)| *id).collect()
        };
        for id in talking {
            if self.send_answer(desk, id) == Start::NotYet {
                return;
            }
        }
    }

    fn send_answer(&mut self, desk: &mut Desk<'_>, id: JobId) -> Start {
        let now = desk.mono();
        let Some(job) = self.jobs.get_mut(&id) else { return Start::Done };
        let opening = job.has_opening().then(|| job.filter());
        let Phase::Comparing { sub, say, .. } = &mut job.phase else { return Start::Done };
        let sub = *sub;
        let is_charged = opening.is_some() || desk.standing.manners.counts_frames;
        if is_charged && desk.standing.pace.admit(now) != Admit::Go {
            return Start::NotYet;
        }
        let Some(Say::Open(message) | Say::Go(message)) = say.take() else { return Start::Done };
        let (frame, wait) = match opening {
            Some(filter) => (Frame::NegOpen { sub, filter: Box::new(filter), message }, NEG_FIRST),
            None => (Frame::NegMsg { sub, message }, NEG_IDLE),
        };
        self.subs.sent(now, sub, wait);
        desk.send(self.conn, frame);
        Start::Done
    }

    /// Fetches offered events by id.
    fn send_fetches(&mut self, desk: &mut Desk<'_>) {
        let now = desk.mono();
        while desk.standing.wants.is_due(now) && !self.auth.is_pending() {
            if desk.standing.pace.reopens_at() > now {
                return;
            }
            // All are this size or smaller; the limit is about what the relay remembers, not what is sent.
            let bytes = 256 + 67 * self.ids_per_fetch;
            let Some(slot) = desk.standing.ledger.take(SlotClass::Fetch, bytes) else {
                return;
            };
            if desk.standing.pace.admit(now) != Admit::Go {
                return desk.standing.ledger.free(slot);
            }
            let sub = desk.shared.ids.sub();
            let ids = desk.standing.wants.ask(now, sub, self.ids_per_fetch);
            self.subs.insert(now, sub, slot, Serves::Ids, desk.shared.config.watchdog);
            let path = ids.first().map_or(Course::NEW, |id| self.course_of_id(desk, *id)).path;
            let filters = vec![by_ids(ids)];
            desk.send(self.conn, Frame::Subscribe { sub, filters, path });
        }
    }

    /// Starts jobs in queue order, as far as slots and pace allow.
    fn send_jobs(&mut self, desk: &mut Desk<'_>) {
        let mut methods = vec![Method::Page, Method::Reconcile];
        loop {
            let heads = methods.iter().filter_map(|method| self.next_in_line(desk, *method));
            let Some((purpose, id, method)) = heads.min() else { return };
            let start = match method {
                Method::Page => self.start_pages(desk, id),
                Method::Reconcile => self.start_listing(desk, id),
            };
            match start {
                Start::Done => self.leave_line(method, purpose, id),
                Start::NoSlot => methods.retain(|other| *other != method),
                Start::NotYet => return,
            }
        }
    }

    fn leave_line(&mut self, method: Method, purpose: Purpose, id: JobId) {
        if let Some(line) = self.lines.get_mut(&method) {
            line.remove(&(purpose, id));
        }
    }

    /// Returns the first queued job whose layer is not suspended.
    fn next_in_line(&self, desk: &Desk<'_>, method: Method) -> Option<(Purpose, JobId, Method)> {
        let line = self.lines.get(&method)?;
        let parked = self.parked_layers(desk);
        let is_parked =
            |id: &JobId| self.jobs.get(id).is_some_and(|job| parked.contains_key(&job.layer));
        let may_compare = OnceCell::new();
        let waits =
            |id: &JobId| self.is_last(*id) && !*may_compare.get_or_init(|| self.may_compare(desk));
        let may_start = |id: &JobId| !is_parked(id) && !waits(id);
        let (purpose, id) = line.iter().find(|(_, id)| may_start(id))?;
        Some((*purpose, *id, method))
    }

    /// Starts a reconciliation by asking the local relay for its inventory.
    fn start_listing(&mut self, desk: &mut Desk<'_>, id: JobId) -> Start {
        let now = desk.mono();
        if desk.standing.pace.reopens_at() > now {
            return Start::NotYet;
        }
        let is_memory_full = desk.shared.held_items() >= desk.shared.config.inventory_items
            || desk.shared.wanted >= MOST_WANTED_IN_ALL;
        if !desk.standing.neg.is_over(now) || is_memory_full {
            self.queue(id, Method::Page);
            return Start::Done;
        }
        let ledger = &desk.standing.ledger;
        let is_full = ledger.in_use_by(SlotClass::Reconcile) >= self.most_sessions;
        // What one comparison found is fetched before the next finds more.
        let is_behind = desk.standing.wants.len() >= MAX_NEEDED;
        if is_full || is_behind || !has_room(ledger, SlotClass::Reconcile) {
            return Start::NoSlot;
        }
        let Some(filter) = self.jobs.get(&id).map(Job::filter) else {
            return Start::Done;
        };
        let bytes = wire_len(&filter) + 80;
        let Some(slot) = desk.standing.ledger.take(SlotClass::Reconcile, bytes) else {
            return Start::NoSlot;
        };
        let sub = desk.shared.ids.sub();
        let Some(job) = self.jobs.get_mut(&id) else { return Start::Done };
        let request = desk.shared.ids.inventory();
        job.phase = Phase::Listing { sub, request };
        desk.standing.parks.sent(now, job.layer, Way::History);
        desk.shared.inventories.insert(request, Asker::Job(desk.relay.clone(), id));
        self.subs.insert(now, sub, slot, Serves::Neg(id), desk.shared.config.watchdog);
        self.subs.not_sent_yet(sub);
        desk.out.push(Output::FetchInventory { request, filter: Box::new(filter) });
        self.lead(id);
        Start::Done
    }
}

/// Returns whether a class has a free slot; checked before anything is built that needs one.
pub(super) fn has_room(ledger: &SlotLedger, class: SlotClass) -> bool {
    ledger.in_use_by(class) < ledger.class_limit(class)
}

/// Returns whether sets can be compared with a relay: it supports NIP-77 and no backoff of it is in force.
fn can_compare(desk: &Desk<'_>, pages_only: bool) -> bool {
    !pages_only && desk.standing.neg.is_over(desk.mono())
}
