//! The live set of a connection: subscriptions that stay open, or are polled where there is no room.
//!
//! A live subscription never carries `since`: a relay applies it to new events too, and an event that is published
//! now may be dated a week ago. Events that were missed while it was not open are fetched by a request of their own,
//! which ends at EOSE.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::RETRY_DELAY;
use grasp_core::Mono;
use grasp_core::nostr::filter::Filter;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::{RETENTION, RequestBudget, live, pack_requests};

use super::super::compact_filter::{CompactFilter, compact_all};
use super::super::ids::{Ids, LiveId, SubId};
use super::super::job::MAX_ROOM_REFUSALS;
use super::super::layer::{Layer, wire_len};

/// One request of the live set.
#[derive(Clone, Debug)]
pub(in crate::engine) struct LiveRequest {
    pub(in crate::engine) layer: Layer,
    /// The filters without a window.
    pub(in crate::engine) filters: Vec<CompactFilter>,
    /// The approximate length as REQ.
    pub(in crate::engine) bytes: usize,
    /// The start of a time in which it was not open: stored events from then on are fetched once it is.
    pub(in crate::engine) missed_since: Option<Timestamp>,
    /// True if the relay dropped events of any date in that time, which a request with `since` would not find.
    pub(in crate::engine) has_dropped: bool,
    /// The latest time up to which it is known to have delivered.
    pub(in crate::engine) delivered_until: Timestamp,
    pub(in crate::engine) phase: LivePhase,
    /// Losses in a row.
    pub(in crate::engine) failures: u32,
    /// True if it was sent again after authenticating.
    pub(in crate::engine) authenticated: bool,
    /// True if it was sent with a limit of zero.
    pub(in crate::engine) uses_limit_zero: bool,
}

/// The phase of a request of the live set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum LivePhase {
    /// Waits to be sent.
    Queued,
    Open(SubId),
    /// Open until the requests that replace it are in force.
    Replaced(SubId),
    /// Not sent until then.
    BackingOff(Mono),
    /// Waits for the answer to our authentication.
    AwaitingAuth,
    /// There is no room for it; its events are fetched from time to time.
    Polled {
        /// The time of the next poll.
        next: Mono,
        /// The time up to which events were fetched.
        since: Timestamp,
    },
}

/// The longest backoff after refusals and losses.
const MAX_BACKOFF: Duration = Duration::from_secs(60 * 60);
/// Requests for repositories that may be added before these are merged for want of room.
const MAX_REPO_FRAGMENTS: usize = 3;
/// Bytes of REQ, subscription id and brackets around the filters.
pub(super) const REQ_BYTES: usize = 80;

impl LiveRequest {
    /// Returns the filters as sent: without stored events, or, for a relay that refuses a limit of zero, with the
    /// newest event of each filter.
    pub(in crate::engine) fn wire(&mut self, refuses_limit_zero: bool) -> Vec<Filter> {
        self.uses_limit_zero = !refuses_limit_zero;
        let one = |compact: &CompactFilter| match refuses_limit_zero {
            true => compact.filter().limit(1),
            false => live(compact.filter()),
        };
        self.filters.iter().map(one).collect()
    }

    /// Returns the filters without a window.
    pub(in crate::engine) fn plain_filters(&self) -> Vec<Filter> {
        self.filters.iter().map(CompactFilter::filter).collect()
    }

    /// Returns the filters for stored events from `since` on.
    pub(in crate::engine) fn filters_since(&self, since: Timestamp) -> Vec<Filter> {
        self.filters.iter().map(|compact| compact.filter().since(since)).collect()
    }

    /// Leaves the open phase: what was published since the last delivery is to be fetched.
    pub(in crate::engine) fn interrupt(&mut self, phase: LivePhase) {
        if matches!(self.phase, LivePhase::Open(_)) {
            let delivered_until = self.delivered_until - RETENTION;
            self.missed_since =
                Some(self.missed_since.map_or(delivered_until, |since| since.min(delivered_until)));
        }
        self.phase = phase;
    }

    /// Handles a refusal for want of room: sent again at once, up to a limit.
    pub(in crate::engine) fn refused_for_room(&mut self, now: Mono) {
        if self.failures >= MAX_ROOM_REFUSALS {
            return self.back_off(now);
        }
        self.failures += 1;
        self.interrupt(LivePhase::Queued);
    }

    /// Backs off after another loss, longer each time.
    pub(in crate::engine) fn back_off(&mut self, now: Mono) {
        self.failures = self.failures.saturating_add(1);
        self.interrupt(LivePhase::BackingOff(now + backoff_after(self.failures)));
    }

    /// Switches to polling.
    pub(in crate::engine) fn poll(&mut self, now: Mono, every: Duration) {
        let since = self.missed_since.unwrap_or(self.delivered_until);
        self.interrupt(LivePhase::Polled { next: now + every, since });
    }

    /// Returns the time up to which no event is missing.
    pub(in crate::engine) fn covered_until(&self, now: Timestamp) -> Timestamp {
        match (self.phase, self.missed_since) {
            (LivePhase::Polled { since, .. }, _) => since,
            (LivePhase::Open(_) | LivePhase::Replaced(_), None) => now,
            (_, Some(missed_since)) => missed_since + RETENTION,
            (_, None) => self.delivered_until,
        }
    }

    pub(in crate::engine) fn sub(&self) -> Option<SubId> {
        match self.phase {
            LivePhase::Open(sub) | LivePhase::Replaced(sub) => Some(sub),
            _ => None,
        }
    }

    pub(in crate::engine) fn is_replaced(&self) -> bool {
        matches!(self.phase, LivePhase::Replaced(_))
    }
}

/// The live set of one connection.
#[derive(Debug, Default)]
pub(in crate::engine) struct LiveSet {
    pub(in crate::engine) requests: BTreeMap<LiveId, LiveRequest>,
    /// True if the relay refuses a limit of zero.
    pub(in crate::engine) refuses_limit_zero: bool,
    /// True if the set is to be rebuilt as fewer, fuller filters before anything else is sent.
    pub(in crate::engine) needs_rebuild: bool,
    /// Filters after the last rebuild.
    pub(in crate::engine) filters_at_rebuild: usize,
    /// Requests for repositories after these were last rebuilt.
    pub(in crate::engine) repo_requests_at_rebuild: usize,
}

impl LiveSet {
    /// Adds requests for these filters.
    pub(in crate::engine) fn add(
        &mut self,
        ids: &mut Ids,
        now: Timestamp,
        filters: Vec<Filter>,
        missed_since: Option<Timestamp>,
        budget: &RequestBudget,
    ) {
        for (layer, filters) in by_layer(filters) {
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
                    authenticated: false,
                    uses_limit_zero: false,
                };
                self.requests.insert(ids.live(), request);
            }
        }
    }

    /// Splits a request in two, because one of its filters is refused. A request with one filter stays as it is.
    pub(in crate::engine) fn halve(&mut self, ids: &mut Ids, id: LiveId) {
        let Some(request) = self.requests.get_mut(&id).filter(|request| request.filters.len() > 1)
        else {
            return;
        };
        let second_half = request.filters.split_off(request.filters.len() / 2);
        request.bytes /= 2;
        request.interrupt(LivePhase::Queued);
        let other = LiveRequest { filters: second_half, uses_limit_zero: false, ..request.clone() };
        self.requests.insert(ids.live(), other);
    }

    /// Returns the number of filters for layers 2 and 3.
    pub(in crate::engine) fn filters(&self) -> usize {
        self.items().map(|(_, request)| request.filters.len()).sum()
    }

    /// Returns whether enough was added since the last rebuild for another to merge something.
    pub(in crate::engine) fn is_fragmented(&self) -> bool {
        self.filters() > self.filters_at_rebuild + (self.filters_at_rebuild / 2).max(3)
    }

    /// Returns the number of requests for a layer.
    pub(in crate::engine) fn requests_for(&self, layer: Layer) -> usize {
        self.items().filter(|(_, one)| one.layer == layer).count()
    }

    /// Returns whether enough requests for repositories were added since these were last rebuilt to do so again.
    pub(in crate::engine) fn are_repos_fragmented(&self) -> bool {
        self.requests_for(Layer::Repos) > self.repo_requests_at_rebuild + MAX_REPO_FRAGMENTS
    }

    /// Returns the requests for layers 2 and 3, without those that are being replaced.
    pub(in crate::engine) fn items(&self) -> impl Iterator<Item = (LiveId, &LiveRequest)> {
        let is_item = |one: &LiveRequest| one.layer != Layer::Announcements && !one.is_replaced();
        let items = self.requests.iter().filter(move |(_, one)| is_item(one));
        items.map(|(id, request)| (*id, request))
    }

    /// Returns a request that is being replaced, and its subscription.
    pub(in crate::engine) fn replaced(&self) -> Option<(LiveId, SubId)> {
        let replaced = |(id, one): (&LiveId, &LiveRequest)| match one.phase {
            LivePhase::Replaced(sub) => Some((*id, sub)),
            _ => None,
        };
        self.requests.iter().find_map(replaced)
    }

    /// Marks queued requests as having missed events from now on: a subscription that covered them is closed.
    pub(in crate::engine) fn mark_missed(&mut self, now: Timestamp) {
        let queued = self.requests.values_mut().filter(|one| one.phase == LivePhase::Queued);
        queued.for_each(|one| _ = one.missed_since.get_or_insert(now - RETENTION));
    }

    /// Returns the first request that waits to be sent.
    pub(in crate::engine) fn queued(&self) -> Option<LiveId> {
        let mut requests = self.requests.iter();
        requests.find(|(_, one)| one.phase == LivePhase::Queued).map(|(id, _)| *id)
    }

    /// Returns when the next backoff ends or the next poll is due.
    pub(in crate::engine) fn deadline(&self) -> Option<Mono> {
        let ends = self.requests.values().filter_map(|one| match one.phase {
            LivePhase::BackingOff(until) => Some(until),
            LivePhase::Polled { next, .. } => Some(next),
            LivePhase::Queued
            | LivePhase::Open(_)
            | LivePhase::Replaced(_)
            | LivePhase::AwaitingAuth => None,
        });
        ends.min()
    }
}

/// Returns the backoff after failures in a row: 65 seconds, doubling to an hour.
pub(super) fn backoff_after(failures: u32) -> Duration {
    let doublings = 1u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    RETRY_DELAY.saturating_mul(doublings).min(MAX_BACKOFF)
}

/// Groups filters by layer. Layers never share a request: a relay may refuse one and accept the other.
fn by_layer(filters: Vec<Filter>) -> BTreeMap<Layer, Vec<Filter>> {
    let mut layers: BTreeMap<Layer, Vec<Filter>> = BTreeMap::new();
    for filter in filters {
        layers.entry(Layer::of(&filter)).or_default().push(filter);
    }
    layers
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
        one.phase = LivePhase::Open(ids.sub());
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
        let id = live.queued().unwrap();
        live.halve(&mut ids, id);
        assert_eq!(live.requests.len(), 8);
    }
}
