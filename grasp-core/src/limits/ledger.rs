//! Who holds which of a connection's few subscriptions.

use std::collections::BTreeMap;

/// How one connection's subscriptions are shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerConfig {
    /// Slots of a relay that advertises none. Default: 20, what several large relays allow.
    pub unadvertised: usize,
    /// Slots used at most, whatever a relay advertises. Default: 200.
    pub most: usize,
    /// Slots that stay free: others may share the relay's limit with us, behind one address. Default: 2.
    pub reserve: usize,
    /// Slots that live subscriptions leave to history. Default: 3.
    ///
    /// Live subscriptions never end; without this, history could stand still for ever.
    pub transient_floor: usize,
    /// Fetches at the same time. Default: 5.
    pub fetches: usize,
    /// Reconciliations at the same time. Default: 4.
    pub reconciliations: usize,
    /// Bytes of REQ messages that the relay is made to remember. Default: 900,000.
    pub retained_bytes: usize,
    /// Of those, what live subscriptions leave to one fetch. Default: 98,304.
    pub transient_bytes: usize,
}

impl Default for LedgerConfig {
    fn default() -> Self {
        Self {
            unadvertised: 20,
            most: 200,
            reserve: 2,
            transient_floor: 3,
            fetches: 5,
            reconciliations: 4,
            retained_bytes: 900_000,
            transient_bytes: 96 * 1024,
        }
    }
}

/// What a subscription is for; each class has its own share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SlotClass {
    /// Stays open for new events.
    Live,
    /// A REQ that ends: a page of history, a fetch by ids, a retry.
    Fetch,
    /// A NIP-77 session. Relays differ in whether these share the ceiling; we assume they do.
    Reconcile,
}

/// One subscription on one connection.
///
/// Cannot be copied, and is given back by value, so it is freed once.
#[must_use = "a slot that is not freed stays taken"]
#[derive(Debug, PartialEq, Eq)]
pub struct Slot {
    number: u64,
}

/// The subscriptions on one connection.
///
/// ```
/// use grasp_core::limits::{LedgerConfig, SlotClass, SlotLedger};
///
/// // A relay that allows ten: two stay free, three are for history, so five can be live.
/// let mut ledger = SlotLedger::new(LedgerConfig::default(), Some(10));
/// let mut live = Vec::new();
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
    config: LedgerConfig,
    total: usize,
    byte_ceiling: usize,
    open: BTreeMap<u64, Open>,
    next_number: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    class: SlotClass,
    bytes: usize,
}

impl SlotLedger {
    /// A fresh connection to a relay that advertises this `max_subscriptions`.
    pub fn new(config: LedgerConfig, advertised: Option<usize>) -> Self {
        Self {
            config,
            total: share(&config, advertised),
            byte_ceiling: config.retained_bytes,
            open: BTreeMap::new(),
            next_number: 0,
        }
    }

    /// Takes a slot for a request that makes the relay remember `bytes`, if there is one for it now.
    pub fn take(&mut self, class: SlotClass, bytes: usize) -> Option<Slot> {
        if !self.has_slot(class) || !self.has_bytes(class, bytes) {
            return None;
        }
        let number = self.next_number;
        self.next_number += 1;
        self.open.insert(number, Open { class, bytes });
        Some(Slot { number })
    }

    /// Gives a slot back, its subscription having ended. Nothing happens for one of an earlier
    /// connection.
    pub fn free(&mut self, slot: Slot) {
        self.open.remove(&slot.number);
    }

    /// The relay refused this subscription because there are too many: frees the slot, and takes
    /// those still in use to be all that this connection allows.
    pub fn refused_by_count(&mut self, slot: Slot) {
        if self.open.remove(&slot.number).is_some() {
            self.total = self.open.len().max(1);
        }
    }

    /// The relay refused this subscription because it remembers too many bytes, and perhaps said
    /// how many it allows. Only ever lowers the ceiling, and never below room for one fetch.
    pub fn refused_by_bytes(&mut self, slot: Slot, stated: Option<u64>) {
        if self.open.remove(&slot.number).is_none() {
            return;
        }
        let stated = stated.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let proven = stated.unwrap_or_else(|| self.retained_bytes());
        let lowered = proven.max(self.config.transient_bytes);
        self.byte_ceiling = self.byte_ceiling.min(lowered);
    }

    /// Slots of this connection, in use or not.
    pub const fn total(&self) -> usize {
        self.total
    }

    /// Slots in use, over all classes.
    pub fn in_use(&self) -> usize {
        self.open.len()
    }

    /// Slots in use by one class.
    pub fn in_use_by(&self, class: SlotClass) -> usize {
        self.of_class(class).count()
    }

    /// Slots that a class may hold on this connection, others permitting.
    pub fn class_limit(&self, class: SlotClass) -> usize {
        let shared = self.total - self.reserve();
        match class {
            SlotClass::Live => shared.saturating_sub(self.config.transient_floor),
            SlotClass::Fetch => self.config.fetches.min(shared),
            SlotClass::Reconcile => self.config.reconciliations.min(shared),
        }
    }

    /// Live subscriptions to close, since the budget was lowered under them.
    pub fn excess_live(&self) -> usize {
        let live = self.in_use_by(SlotClass::Live);
        live.saturating_sub(self.class_limit(SlotClass::Live))
    }

    /// Bytes that the relay remembers for us.
    pub fn retained_bytes(&self) -> usize {
        self.open.values().map(|open| open.bytes).sum()
    }

    /// Bytes that the relay may be made to remember.
    pub const fn byte_ceiling(&self) -> usize {
        self.byte_ceiling
    }

    /// The reserve gives way first when a relay allows very few.
    fn reserve(&self) -> usize {
        let one_live = self.config.transient_floor.saturating_add(1);
        self.config.reserve.min(self.total.saturating_sub(one_live))
    }

    fn byte_limit(&self, class: SlotClass) -> usize {
        match class {
            SlotClass::Live => self.byte_ceiling.saturating_sub(self.config.transient_bytes),
            SlotClass::Fetch | SlotClass::Reconcile => self.byte_ceiling,
        }
    }

    fn has_slot(&self, class: SlotClass) -> bool {
        let has_room = self.in_use() < self.total - self.reserve();
        has_room && self.in_use_by(class) < self.class_limit(class)
    }

    fn has_bytes(&self, class: SlotClass, bytes: usize) -> bool {
        let of_class: usize = self.of_class(class).map(|open| open.bytes).sum();
        let fits = |held: usize, limit: usize| held.saturating_add(bytes) <= limit;
        fits(of_class, self.byte_limit(class)) && fits(self.retained_bytes(), self.byte_ceiling)
    }

    fn of_class(&self, class: SlotClass) -> impl Iterator<Item = &Open> {
        self.open.values().filter(move |open| open.class == class)
    }
}

/// Zero is no sensible advertisement: such a relay is treated like a silent one.
fn share(config: &LedgerConfig, advertised: Option<usize>) -> usize {
    let stated = advertised.filter(|slots| *slots > 0);
    stated.unwrap_or(config.unadvertised).min(config.most).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(advertised: usize) -> SlotLedger {
        SlotLedger::new(LedgerConfig::default(), Some(advertised))
    }

    fn slot(ledger: &mut SlotLedger, class: SlotClass) -> Slot {
        ledger.take(class, 100).unwrap()
    }

    fn take_all(ledger: &mut SlotLedger, class: SlotClass) -> Vec<Slot> {
        std::iter::from_fn(|| ledger.take(class, 100)).collect()
    }

    #[test]
    fn a_silent_relay_is_taken_to_allow_twenty_and_none_more_than_two_hundred() {
        let silent = SlotLedger::new(LedgerConfig::default(), None);
        assert_eq!(silent.total(), 20);
        assert_eq!(ledger(0).total(), 20);
        assert_eq!(ledger(500).total(), 200);
        assert_eq!(ledger(10).total(), 10);
    }

    #[test]
    fn live_leaves_the_reserve_and_three_for_history() {
        let mut ledger = ledger(20);
        assert_eq!(take_all(&mut ledger, SlotClass::Live).len(), 15);
        assert_eq!(take_all(&mut ledger, SlotClass::Fetch).len(), 3);
        assert_eq!(ledger.in_use() + 2, ledger.total());
    }

    #[test]
    fn history_has_its_own_ceilings_on_an_idle_connection() {
        let mut ledger = ledger(200);
        assert_eq!(take_all(&mut ledger, SlotClass::Fetch).len(), 5);
        assert_eq!(take_all(&mut ledger, SlotClass::Reconcile).len(), 4);
    }

    #[test]
    fn a_tiny_relay_keeps_history_moving_and_polls_the_rest() {
        for total in 1..=3 {
            let mut ledger = ledger(total);
            assert_eq!(ledger.take(SlotClass::Live, 100), None);
            assert_eq!(take_all(&mut ledger, SlotClass::Fetch).len(), total);
        }
        assert_eq!(ledger(4).class_limit(SlotClass::Live), 1);
        assert_eq!(ledger(6).class_limit(SlotClass::Live), 1, "the reserve gives way first");
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
    fn a_count_refusal_lowers_the_budget_to_what_is_open() {
        let mut ledger = ledger(20);
        let mut live = take_all(&mut ledger, SlotClass::Live);
        let refused = live.pop().unwrap();
        ledger.refused_by_count(refused);
        assert_eq!(ledger.total(), 14);
        assert_eq!(ledger.excess_live(), 14 - (14 - 2 - 3));
        assert_eq!(ledger.take(SlotClass::Fetch, 100), None);
    }

    #[test]
    fn one_slot_is_left_even_if_the_first_is_refused() {
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
    fn a_byte_refusal_only_ever_lowers_the_ceiling() {
        let mut ledger = ledger(200);
        let refused = slot(&mut ledger, SlotClass::Live);
        ledger.refused_by_bytes(refused, Some(500_000));
        assert_eq!(ledger.byte_ceiling(), 500_000);

        let refused = slot(&mut ledger, SlotClass::Live);
        ledger.refused_by_bytes(refused, Some(5_000_000));
        assert_eq!(ledger.byte_ceiling(), 500_000);
    }

    #[test]
    fn a_byte_refusal_without_figure_lowers_to_what_is_held() {
        let mut ledger = ledger(200);
        let Some(_held) = ledger.take(SlotClass::Live, 300_000) else {
            panic!("the ledger is empty")
        };
        let refused = slot(&mut ledger, SlotClass::Fetch);
        ledger.refused_by_bytes(refused, None);
        assert_eq!(ledger.byte_ceiling(), 300_000);
    }

    #[test]
    fn no_byte_refusal_takes_the_room_of_one_fetch() {
        let mut ledger = ledger(200);
        let refused = slot(&mut ledger, SlotClass::Live);
        ledger.refused_by_bytes(refused, Some(0));
        assert!(ledger.take(SlotClass::Fetch, 98_304).is_some());
        assert_eq!(ledger.take(SlotClass::Live, 1), None);
    }
}
