//! What clients may make ingest do before anything is accepted.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::admission::{Needs, Origin};
use grasp_core::resources::{Bounds, Claimant, Meter, Shortage};
use grasp_purgatory::resources::{Holding, SharedPool};
use nostr::event::Event;

use super::authority::Remembered;
use crate::store::write_cost;

/// Keys that all clients together may have looked up within a minute: some seconds of one processor. A quarter is
/// reserved for authors with authority. One address gets a quarter of what others leave of the rest, which is enough for
/// a hundred thousand events that name a few others each.
const LOOKUPS_PER_MINUTE: u64 = 10_000_000;

/// What an event has looked up besides what it names: itself, its coordinate, and who names it.
const LOOKUPS_PER_EVENT: usize = 8;

/// Bytes of stored text that take as long to read as it takes to look up a key.
const BYTES_PER_LOOKUP: usize = 800;

/// Authors that all clients together may have looked up within a minute because nothing is left for strangers.
const INQUIRIES_PER_MINUTE: u64 = 200_000;

/// Rounds of clients' events that are looked up at once, a quarter of them with events of authors with authority. One
/// address has a quarter of what others leave of the rest.
const ROUNDS_AT_ONCE: u64 = 32;

/// How long a round waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(30);

/// Rows that are written within a day for authors who are not known here, of kinds that are kept of everybody: some
/// hundred megabytes. One address gets a quarter of what others leave.
const UNASKED_ROWS_PER_DAY: u64 = 1_000_000;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const MINUTE: Duration = Duration::from_secs(60);

/// Accounts for the work that clients' events cause, accepted or refused.
#[derive(Debug)]
pub struct Budgets {
    lookups: Mutex<Meter>,
    /// Rows of events that are kept whoever signs them.
    unasked: Mutex<Meter>,
    turns: SharedPool,
    /// Looks at whether an author has authority.
    inquiries: Mutex<Meter>,
    pub(super) authorities: Remembered,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::new(LOOKUPS_PER_MINUTE)
    }
}

impl Budgets {
    /// Returns budgets with this many keys to be looked up within a minute.
    pub fn new(lookups_per_minute: u64) -> Self {
        let unasked = Bounds { reserve: 0, ..Bounds::of(UNASKED_ROWS_PER_DAY) };
        let inquiries = Bounds { reserve: 0, ..Bounds::of(INQUIRIES_PER_MINUTE) };
        Self {
            lookups: Mutex::new(Meter::new(Bounds::of(lookups_per_minute), MINUTE)),
            unasked: Mutex::new(Meter::new(unasked, DAY)),
            turns: SharedPool::new(Bounds::of(ROUNDS_AT_ONCE)),
            inquiries: Mutex::new(Meter::new(inquiries, MINUTE)),
            authorities: Remembered::default(),
        }
    }

    /// Pays for what must be looked up before an event can be judged, if the claimant can.
    #[must_use]
    pub(super) fn pay_lookups(&self, now: Mono, event: &Event, claimant: &Claimant) -> bool {
        let named = Needs::of(event).references;
        let keys = LOOKUPS_PER_EVENT + named.ids.len() + named.coordinates.len();
        lock(&self.lookups).spend(now, claimant, keys as u64).is_ok()
    }

    /// Pays for a look at whether an author has authority.
    #[must_use]
    pub(super) fn pay_inquiry(&self, now: Mono, origin: &Origin) -> bool {
        lock(&self.inquiries).spend(now, &origin.claimant(), 1).is_ok()
    }

    /// Pays for keeping an event of an author who is not known here, of a kind that is kept of everybody.
    #[must_use]
    pub(super) fn pay_unasked(&self, now: Mono, event: &Event, origin: &Origin) -> bool {
        lock(&self.unasked).spend(now, &origin.claimant(), write_cost(event) as u64).is_ok()
    }

    /// Waits until a round of a client's events may be looked up. What we asked other relays for need not wait.
    pub(super) async fn turn(
        &self,
        origin: &Origin,
        has_authority: bool,
    ) -> Result<Option<Holding>, Shortage> {
        let claimant = Claimant { has_authority, ..origin.claimant() };
        match origin.is_sync() {
            true => Ok(None),
            false => self.turns.wait(&claimant, 1, TURN_TIMEOUT).await.map(Some),
        }
    }

    /// Charges for stored text that had to be read, which was not known before it was.
    pub(super) fn charge_reading(&self, now: Mono, bytes: usize, origin: &Origin) {
        if !origin.is_sync() {
            let keys = bytes / BYTES_PER_LOOKUP;
            lock(&self.lookups).charge(now, &origin.claimant(), keys as u64);
        }
    }
}

fn lock(meter: &Mutex<Meter>) -> MutexGuard<'_, Meter> {
    meter.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use grasp_core::resources::ClientNetwork;
    use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
    use nostr::key::Keys;

    use super::*;

    fn from(address: &str) -> Origin {
        let network = Some(ClientNetwork::of(address.parse().unwrap()));
        Origin::Client { authenticated: Vec::new(), network }
    }

    fn naming(ids: usize) -> Event {
        let tag = |n: usize| Tag::parse(["e", &format!("{n:064x}")]).unwrap();
        EventBuilder::new(Kind::TextNote, "")
            .tags((0..ids).map(tag))
            .finalize(&Keys::generate())
            .unwrap()
    }

    #[test]
    fn requests_of_unknown_authors_are_bounded_by_network() {
        let (budgets, now) = (Budgets::default(), Mono::from_secs(100));
        let (eve, alice) = (from("198.51.100.1"), from("192.0.2.1"));
        let long = naming(2_000);
        let paid = (0..1_000).take_while(|_| budgets.pay_unasked(now, &long, &eve)).count();
        assert_eq!(paid, 250_000 / write_cost(&long));
        assert!((0..1_000).all(|_| budgets.pay_unasked(now, &naming(1), &alice)));
        assert!(budgets.pay_unasked(now + 2 * DAY, &long, &eve), "it comes back");
    }

    #[test]
    fn reading_the_announcements_of_crowded_names_uses_up_the_share_too() {
        let (budgets, now, eve) = (Budgets::default(), Mono::from_secs(100), from("198.51.100.1"));
        let mut read = 0;
        while budgets.pay_lookups(now, &naming(0), &eve.claimant()) {
            budgets.charge_reading(now, 8 << 20, &eve);
            read += 1;
        }
        assert!((150..250).contains(&read), "{read}");
        assert!(budgets.pay_lookups(now, &naming(0), &from("192.0.2.1").claimant()));
    }

    #[test]
    fn events_that_name_many_others_use_up_a_networks_share_and_nobody_elses() {
        let (budgets, now) = (Budgets::default(), Mono::from_secs(100));
        let (eve, alice) = (from("198.51.100.1").claimant(), from("192.0.2.1").claimant());
        let event = naming(1_000);
        let paid = (0..1_000_000).take_while(|_| budgets.pay_lookups(now, &event, &eve)).count();
        // No more ids of one event are looked up than 256.
        assert_eq!(paid, 1_875_000 / (256 + LOOKUPS_PER_EVENT));
        let note = naming(1);
        assert!((0..50_000).all(|_| budgets.pay_lookups(now, &note, &alice)));
        assert!(budgets.pay_lookups(now, &event, &eve.with_authority()), "the reserve");
        assert!(budgets.pay_lookups(now + 2 * MINUTE, &event, &eve), "it comes back");
    }
}
