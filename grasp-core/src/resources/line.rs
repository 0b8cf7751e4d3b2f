//! A fair queue in front of a pool.

use std::collections::BTreeMap;

use super::{Bounds, Claimant, Grant, Pool, Shortage, Usage};

/// The answer to a claim.
#[must_use]
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// Taken at once.
    Granted(Grant),
    /// Queued; [`Line::grant_next`] hands it out under the key.
    Queued,
    /// The queue is full, or the claimant has its share of it.
    Refused(Shortage),
}

/// A [`Pool`] with a queue for claimants that can wait.
///
/// Claimants with authority come first, then those that hold least, then those that came first. The queue is a pool,
/// too: no network takes more than half of its free places.
#[derive(Debug)]
pub struct Line<K> {
    pool: Pool,
    places: Pool,
    waiting: BTreeMap<K, Waiting>,
    arrivals: u64,
}

#[derive(Debug)]
struct Waiting {
    claimant: Claimant,
    amount: u64,
    arrival: u64,
    place: Grant,
}

impl<K: Ord + Clone> Line<K> {
    /// Creates a line of this many places in front of a pool with these bounds.
    pub const fn new(bounds: Bounds, places: u64) -> Self {
        Self {
            pool: Pool::new(bounds),
            places: Pool::new(Bounds::of(places)),
            waiting: BTreeMap::new(),
            arrivals: 0,
        }
    }

    /// Takes an amount if it is free, otherwise queues the claim under a key that is not queued yet.
    pub fn ask(&mut self, key: K, claimant: Claimant, amount: u64) -> Asked {
        let shortage = match self.pool.take(&claimant, amount) {
            Ok(grant) => return Asked::Granted(grant),
            Err(shortage) => shortage,
        };
        let Ok(place) = self.places.take(&claimant, 1) else {
            return Asked::Refused(shortage);
        };
        self.arrivals += 1;
        let arrival = self.arrivals;
        self.waiting.insert(key, Waiting { claimant, amount, arrival, place });
        Asked::Queued
    }

    /// Takes an amount if it is free.
    pub fn take(&mut self, claimant: &Claimant, amount: u64) -> Result<Grant, Shortage> {
        self.pool.take(claimant, amount)
    }

    /// Changes the amount of a grant; see [`Pool::resize`].
    pub fn resize(&mut self, grant: &mut Grant, amount: u64) -> Result<(), Shortage> {
        self.pool.resize(grant, amount)
    }

    /// Returns what was taken. Call [`Line::grant_next`] afterwards until it returns nothing.
    pub fn give_back(&mut self, grant: Grant) {
        self.pool.give_back(grant);
    }

    /// Removes a claim from the queue.
    pub fn cancel(&mut self, key: &K) {
        if let Some(waiting) = self.waiting.remove(key) {
            self.places.give_back(waiting.place);
        }
    }

    /// Grants the next claim in the queue that fits.
    pub fn grant_next(&mut self) -> Option<(K, Grant)> {
        let order = |waiting: &Waiting| {
            let held = self.pool.held_by(&waiting.claimant);
            (!waiting.claimant.has_authority, held, waiting.arrival)
        };
        let fits = |waiting: &Waiting| waiting.amount <= self.pool.room(&waiting.claimant);
        let next = self.waiting.iter().filter(|(_, waiting)| fits(waiting));
        let key = next.min_by_key(|(_, waiting)| order(waiting)).map(|(key, _)| key.clone())?;
        let Waiting { claimant, amount, place, .. } = self.waiting.remove(&key)?;
        self.places.give_back(place);
        let grant = self.pool.take(&claimant, amount).ok()?;
        Some((key, grant))
    }

    /// Returns the number of claims in the queue.
    pub fn queued(&self) -> usize {
        self.waiting.len()
    }

    /// Returns what is taken.
    pub const fn usage(&self) -> Usage {
        self.pool.usage()
    }

    /// Returns the bounds.
    pub const fn bounds(&self) -> Bounds {
        self.pool.bounds()
    }
}
