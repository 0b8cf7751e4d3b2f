//! The live set of a connection: subscriptions that stay open, or are polled where there is no room.
//!
//! A live subscription never carries `since`: a relay applies it to new events too, and an event that is published
//! now may be dated a week ago. Events that were missed while it was not open are fetched by a request of their own,
//! which ends at EOSE.

mod requests;

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{Refusal, SUSPENDED_FOR};
use grasp_core::Mono;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{CONFIRMED_RETENTION, FilterHash, RequestBudget, pack_requests};

use super::auth::Auth;
use super::filter::{CompactFilter, Layer, compact_all, wire_len};
use super::io::{Ids, LiveId, SubId};
use super::job::{MAX_ROOM_REFUSALS, REQUEST_BACKOFF};

/// One request of the live set: a machine that owns its phase.
///
/// ```text
///   Queued ─▶ Open ─▶ Replaced
///     ▲ ▲      │ refused, or lost
///     │ └──────┼──▶ BackingOff, Overflowed ─▶ Queued
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
    /// The relay dropped events repeatedly. Not sent until then; its filters are compared meanwhile.
    Overflowed {
        until: Mono,
        compare_at: Mono,
    },
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
/// Pause of a live request whose relay drops events repeatedly, as in a long import.
const OVERFLOW_PAUSE: Duration = Duration::from_secs(130);
/// Interval of comparisons during that pause.
const OVERFLOW_COMPARE_EVERY: Duration = Duration::from_secs(30);
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
        self.filters
            .iter()
            .map(|compact| compact.filter().limit(limit))
            .collect()
    }

    /// Returns the filters for stored events, from `since` on if given.
    fn stored_filters(&self, since: Option<Timestamp>) -> Vec<Filter> {
        let stored = |compact: &CompactFilter| Filter {
            since,
            ..compact.filter()
        };
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
                self.phase = LivePhase::BackingOff(now + SUSPENDED_FOR);
            }
            Refusal::AuthRequired => return LiveStep::Authenticate,
            Refusal::Policy => return LiveStep::Suspend,
            // One drop is a gap to be closed; repeated drops mean that the relay cannot keep up.
            Refusal::LiveOverflow => {
                self.has_dropped = true;
                match self.failures {
                    0 => self.failures = 1,
                    _ => {
                        let until = now + OVERFLOW_PAUSE;
                        self.phase = LivePhase::Overflowed {
                            until,
                            compare_at: now,
                        };
                    }
                }
            }
            _ => self.back_off(now),
        }
        LiveStep::Wait
    }

    /// Leaves the open phase: what was published since the last delivery is to be fetched.
    fn interrupt(&mut self, phase: LivePhase) {
        if matches!(self.phase, LivePhase::Open(_)) {
            let delivered_until = self.delivered_until - CONFIRMED_RETENTION;
            self.missed_since = Some(
                self.missed_since
                    .map_or(delivered_until, |since| since.min(delivered_until)),
            );
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
        self.interrupt(LivePhase::BackingOff(
            now + REQUEST_BACKOFF.delay_after(self.failures),
        ));
    }

    /// Returns the time up to which no event is missing.
    pub(super) fn covered_until(&self, now: Timestamp) -> Timestamp {
        match (self.phase, self.missed_since) {
            (LivePhase::Open(_) | LivePhase::Replaced(_), None) => now,
            (_, Some(missed_since)) => missed_since + CONFIRMED_RETENTION,
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
        let Some(request) = self
            .requests
            .get_mut(&id)
            .filter(|request| request.filters.len() > 1)
        else {
            return;
        };
        let second_half = request.filters.split_off(request.filters.len() / 2);
        request.bytes /= 2;
        request.interrupt(LivePhase::Queued);
        let other = LiveRequest {
            filters: second_half,
            uses_limit_zero: false,
            ..request.clone()
        };
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
        let queued = self
            .requests
            .values_mut()
            .filter(|one| one.phase == LivePhase::Queued);
        queued.for_each(|one| _ = one.missed_since.get_or_insert(now - CONFIRMED_RETENTION));
    }

    /// Notes that a polled request was fetched up to a time.
    fn polled(&mut self, id: LiveId, until: Timestamp) {
        let request = self.requests.get_mut(&id);
        if let Some(request) = request.filter(|one| matches!(one.phase, LivePhase::Polled(_))) {
            request.missed_since = Some(until - CONFIRMED_RETENTION);
        }
    }

    /// Queues requests whose backoff has ended; returns those to be polled, and from when on. Without a comparison, what
    /// was dropped is fetched only once the request is open again: by date, which has to be repeated then.
    fn wake(&mut self, now: Mono, can_compare: bool) -> Vec<(LiveId, Option<Timestamp>)> {
        let mut due = Vec::new();
        for (id, request) in &mut self.requests {
            match &mut request.phase {
                LivePhase::BackingOff(until) | LivePhase::Overflowed { until, .. }
                    if *until <= now =>
                {
                    request.phase = LivePhase::Queued;
                }
                LivePhase::Overflowed { compare_at, .. } if *compare_at <= now => {
                    *compare_at = now + OVERFLOW_COMPARE_EVERY;
                    if can_compare {
                        due.push((*id, request.missed_since));
                    }
                }
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
            request
                .missed_since
                .get_or_insert(request.delivered_until - CONFIRMED_RETENTION);
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
            LivePhase::Overflowed { until, compare_at } => Some(until.min(compare_at)),
            LivePhase::Queued | LivePhase::Open(_) | LivePhase::Replaced(_) => None,
        });
        ends.min()
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::event::EventId;
    use grasp_core::sync::build_announcement_filter;

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
        one.missed_since = Some(NOW - CONFIRMED_RETENTION);
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
        assert_eq!(one.missed_since, Some(NOW + 500u64 - CONFIRMED_RETENTION));
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
            assert_eq!(
                request.refused(now, refusal, Duration::ZERO),
                step,
                "{refusal:?}"
            );
            assert_eq!(request.phase, LivePhase::Queued, "{refusal:?}");
            assert_eq!(request.missed_since, Some(NOW - CONFIRMED_RETENTION));
        }
        assert_eq!(
            request
                .clone()
                .refused(now, Refusal::Unknown, SUSPENDED_FOR),
            LiveStep::Wait
        );
        assert_eq!(
            request.refused(now, Refusal::LiveOverflow, SUSPENDED_FOR),
            LiveStep::Wait
        );
        assert_eq!(
            (request.phase, request.has_dropped),
            (LivePhase::Queued, true)
        );
        assert_eq!(
            request.refused(now, Refusal::LiveOverflow, Duration::ZERO),
            LiveStep::Wait
        );
        let paused = LivePhase::Overflowed {
            until: now + OVERFLOW_PAUSE,
            compare_at: now,
        };
        assert_eq!(request.phase, paused, "it cannot keep up");
        request.layer = Layer::All;
        let step = request.refused(now, Refusal::Unknown, SUSPENDED_FOR);
        assert_eq!(step, LiveStep::FallBackToFilters);
    }

    #[test]
    fn layers_share_no_request_and_announcements_are_not_rebuilt() {
        let (mut live, mut ids) = live_set(12);
        assert_eq!(live.requests.len(), 2, "ten filters and two");
        let announcements = vec![build_announcement_filter(None)];
        live.add(
            &mut ids,
            NOW,
            announcements,
            None,
            &RequestBudget::default(),
        );
        assert_eq!((live.requests.len(), live.filters()), (3, 12));
    }

    #[test]
    fn a_refused_request_is_halved_down_to_single_filters() {
        let (mut live, mut ids) = live_set(8);
        let long = |live: &LiveSet| {
            live.requests
                .iter()
                .find(|(_, one)| one.filters.len() > 1)
                .map(|(id, _)| *id)
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
