//! The subscription slots of one connection, shared out by class.

use std::collections::BTreeMap;

/// Slots of a relay that advertises no number; several large relays allow as many.
const UNADVERTISED_SLOTS: usize = 20;
/// Upper limit of slots, independent of the advertised number.
const MAX_SLOTS: usize = 200;
/// Slots that stay free, for other clients behind the same address.
const FREE_SLOTS: usize = 2;
/// Slots that live subscriptions leave to history. They do not end; without this limit they could keep history from
/// being fetched.
const TRANSIENT_SLOTS: usize = 3;
/// Concurrent fetches.
const MAX_FETCHES: usize = 5;
/// Concurrent reconciliations.
const MAX_RECONCILIATIONS: usize = 4;
/// Bytes of REQ messages that a relay may have to keep for us, unless it is known to accept more or less.
pub const RETAINED_BYTES: usize = 900_000;
/// Bytes that live subscriptions leave to one fetch.
const TRANSIENT_BYTES: usize = 96 * 1024;

/// The purpose of a subscription; each class has a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotClass {
    /// A subscription that stays open for new events.
    Live,
    /// A REQ that ends: a page of history, a fetch by ids, a retry.
    Fetch,
    /// A NIP-77 session. Some relays count these as subscriptions; all are assumed to.
    Reconcile,
}

/// One subscription on one connection.
///
/// Not `Copy`, and given back by value, so that it is freed once.
#[must_use = "a slot that is not freed stays taken"]
#[derive(Debug, PartialEq, Eq)]
pub struct Slot {
    class: SlotClass,
    bytes: usize,
}

/// The subscriptions on one connection.
///
/// ```
/// use grasp_sync::limits::{RETAINED_BYTES, Slot, SlotClass, SlotLedger};
///
/// // A relay that allows ten: two stay free, three are for history, so five can be live.
/// let mut ledger = SlotLedger::new(RETAINED_BYTES, Some(10));
/// let mut live: Vec<Slot> = Vec::new();
/// while let Some(slot) = ledger.take(SlotClass::Live, 1_000) {
///     live.push(slot);
/// }
/// assert_eq!(live.len(), 5);
///
/// ledger.free(live.remove(0));
/// assert!(ledger.take(SlotClass::Live, 1_000).is_some());
/// ```
#[derive(Debug)]
pub struct SlotLedger {
    total: usize,
    byte_ceiling: usize,
    /// Slots in use and their bytes, by class.
    open: BTreeMap<SlotClass, (usize, usize)>,
}

impl SlotLedger {
    /// Returns the ledger of a new connection to a relay that advertises this `max_subscriptions`.
    /// An advertised zero counts as not advertised.
    pub fn new(byte_ceiling: usize, advertised: Option<usize>) -> Self {
        let total = advertised
            .filter(|slots| *slots > 0)
            .unwrap_or(UNADVERTISED_SLOTS);
        Self {
            total: total.min(MAX_SLOTS),
            byte_ceiling,
            open: BTreeMap::new(),
        }
    }

    /// Takes a slot for a request of `bytes`, if the limits of its class allow one now.
    pub fn take(&mut self, class: SlotClass, bytes: usize) -> Option<Slot> {
        let has_slot = self.in_use() < self.total - self.reserve()
            && self.in_use_by(class) < self.class_limit(class);
        let byte_limit = match class {
            SlotClass::Live => self.byte_ceiling.saturating_sub(TRANSIENT_BYTES),
            SlotClass::Fetch | SlotClass::Reconcile => self.byte_ceiling,
        };
        let (_, of_class) = self.of_class(class);
        let fits = |held: usize, limit: usize| held.saturating_add(bytes) <= limit;
        let has_bytes =
            fits(of_class, byte_limit) && fits(self.retained_bytes(), self.byte_ceiling);
        if !has_slot || !has_bytes {
            return None;
        }
        let open = self.open.entry(class).or_default();
        *open = (open.0 + 1, open.1 + bytes);
        Some(Slot { class, bytes })
    }

    /// Gives back the slot of a subscription that ended.
    pub fn free(&mut self, slot: Slot) {
        let open = self.open.entry(slot.class).or_default();
        *open = (open.0.saturating_sub(1), open.1.saturating_sub(slot.bytes));
    }

    /// Frees the slot of a subscription that was refused because there are too many, and lowers the
    /// total to the slots that are still in use.
    pub fn refused_by_count(&mut self, slot: Slot) {
        self.free(slot);
        self.total = self.in_use().max(1);
    }

    /// Frees the slot of a subscription that was refused because the relay keeps too many bytes, and
    /// lowers the byte ceiling to the stated limit or to the bytes in use.
    ///
    /// Never raises the ceiling, and leaves room for one fetch.
    pub fn refused_by_bytes(&mut self, slot: Slot, stated: Option<u64>) {
        self.free(slot);
        let stated = stated.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let proven = stated.unwrap_or_else(|| self.retained_bytes());
        let lowered = proven.max(TRANSIENT_BYTES);
        self.byte_ceiling = self.byte_ceiling.min(lowered);
    }

    /// Returns the number of slots of this connection, free ones included.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Returns the number of slots in use.
    pub fn in_use(&self) -> usize {
        self.open.values().map(|(slots, _)| slots).sum()
    }

    /// Returns the number of slots in use by one class.
    pub fn in_use_by(&self, class: SlotClass) -> usize {
        self.of_class(class).0
    }

    /// Returns the number of slots that a class may hold.
    pub fn class_limit(&self, class: SlotClass) -> usize {
        let shared = self.total - self.reserve();
        match class {
            SlotClass::Live => shared.saturating_sub(TRANSIENT_SLOTS),
            SlotClass::Fetch => MAX_FETCHES.min(shared),
            SlotClass::Reconcile => MAX_RECONCILIATIONS.min(shared),
        }
    }

    /// Returns the number of live subscriptions to close after the limit was lowered.
    pub fn excess_live(&self) -> usize {
        let live = self.in_use_by(SlotClass::Live);
        live.saturating_sub(self.class_limit(SlotClass::Live))
    }

    /// Returns the bytes of the requests in use.
    pub fn retained_bytes(&self) -> usize {
        self.open.values().map(|(_, bytes)| bytes).sum()
    }

    /// Returns the limit of [`retained_bytes`](Self::retained_bytes).
    pub const fn byte_ceiling(&self) -> usize {
        self.byte_ceiling
    }

    /// Returns the slots to leave free; fewer than configured if a relay allows very few.
    fn reserve(&self) -> usize {
        let one_live = TRANSIENT_SLOTS + 1;
        FREE_SLOTS.min(self.total.saturating_sub(one_live))
    }

    /// Returns the slots of a class in use, and their bytes.
    fn of_class(&self, class: SlotClass) -> (usize, usize) {
        self.open.get(&class).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(advertised: usize) -> SlotLedger {
        SlotLedger::new(RETAINED_BYTES, Some(advertised))
    }

    fn slot(ledger: &mut SlotLedger, class: SlotClass) -> Slot {
        ledger.take(class, 100).unwrap()
    }

    fn take_all(ledger: &mut SlotLedger, class: SlotClass) -> Vec<Slot> {
        std::iter::from_fn(|| ledger.take(class, 100)).collect()
    }

    #[test]
    fn uses_twenty_slots_unless_advertised_and_two_hundred_at_most() {
        let silent = SlotLedger::new(RETAINED_BYTES, None);
        assert_eq!(silent.total(), 20);
        assert_eq!(ledger(0).total(), 20);
        assert_eq!(ledger(500).total(), 200);
        assert_eq!(ledger(10).total(), 10);
    }

    #[test]
    fn live_subscriptions_leave_the_reserve_and_three_slots() {
        let mut ledger = ledger(20);
        assert_eq!(take_all(&mut ledger, SlotClass::Live).len(), 15);
        assert_eq!(take_all(&mut ledger, SlotClass::Fetch).len(), 3);
        assert_eq!(ledger.in_use() + 2, ledger.total());
    }

    #[test]
    fn fetches_and_reconciliations_have_limits_of_their_own() {
        let mut ledger = ledger(200);
        assert_eq!(take_all(&mut ledger, SlotClass::Fetch).len(), 5);
        assert_eq!(take_all(&mut ledger, SlotClass::Reconcile).len(), 4);
    }

    #[test]
    fn a_relay_with_few_slots_gives_them_to_history() {
        for total in 1..=3 {
            let mut ledger = ledger(total);
            assert_eq!(ledger.take(SlotClass::Live, 100), None);
            assert_eq!(take_all(&mut ledger, SlotClass::Fetch).len(), total);
        }
        assert_eq!(ledger(4).class_limit(SlotClass::Live), 1);
        assert_eq!(
            ledger(6).class_limit(SlotClass::Live),
            1,
            "the reserve gives way first"
        );
    }

    #[test]
    fn a_freed_slot_can_be_taken_again() {
        let mut ledger = ledger(4);
        let live = slot(&mut ledger, SlotClass::Live);
        assert_eq!(ledger.take(SlotClass::Live, 100), None);
        ledger.free(live);
        let _live = slot(&mut ledger, SlotClass::Live);
    }

    #[test]
    fn a_count_refusal_lowers_the_total_to_the_slots_in_use() {
        let mut ledger = ledger(20);
        let mut live = take_all(&mut ledger, SlotClass::Live);
        let refused = live.pop().unwrap();
        ledger.refused_by_count(refused);
        assert_eq!(ledger.total(), 14);
        assert_eq!(ledger.excess_live(), 14 - (14 - 2 - 3));
        assert_eq!(ledger.take(SlotClass::Fetch, 100), None);
    }

    #[test]
    fn one_slot_stays_if_the_first_is_refused() {
        let mut ledger = ledger(20);
        let only = slot(&mut ledger, SlotClass::Fetch);
        ledger.refused_by_count(only);
        assert_eq!(ledger.total(), 1);
        let _retry = slot(&mut ledger, SlotClass::Fetch);
    }

    #[test]
    fn live_subscriptions_leave_bytes_for_one_fetch() {
        let mut ledger = ledger(200);
        assert!(ledger.take(SlotClass::Live, 800_000).is_some());
        assert_eq!(ledger.take(SlotClass::Live, 10_000), None);
        assert!(ledger.take(SlotClass::Fetch, 98_304).is_some());
        assert_eq!(ledger.take(SlotClass::Live, 900_000), None);
    }

    #[test]
    fn a_byte_refusal_never_raises_the_ceiling() {
        let mut ledger = ledger(200);
        let refused = slot(&mut ledger, SlotClass::Live);
        ledger.refused_by_bytes(refused, Some(500_000));
        assert_eq!(ledger.byte_ceiling(), 500_000);

        let refused = slot(&mut ledger, SlotClass::Live);
        ledger.refused_by_bytes(refused, Some(5_000_000));
        assert_eq!(ledger.byte_ceiling(), 500_000);
    }

    #[test]
    fn a_byte_refusal_without_figure_lowers_to_the_bytes_in_use() {
        let mut ledger = ledger(200);
        let Some(_held) = ledger.take(SlotClass::Live, 300_000) else {
            panic!("the ledger is empty")
        };
        let refused = slot(&mut ledger, SlotClass::Fetch);
        ledger.refused_by_bytes(refused, None);
        assert_eq!(ledger.byte_ceiling(), 300_000);
    }

    #[test]
    fn a_byte_refusal_leaves_room_for_one_fetch() {
        let mut ledger = ledger(200);
        let refused = slot(&mut ledger, SlotClass::Live);
        ledger.refused_by_bytes(refused, Some(0));
        assert!(ledger.take(SlotClass::Fetch, 98_304).is_some());
        assert_eq!(ledger.take(SlotClass::Live, 1), None);
    }
}
