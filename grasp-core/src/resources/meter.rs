//! A resource that is spent, and comes back with time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::pool::Accounts;
use super::{Bounds, Claimant, Grant, Pool, Shortage, Usage};
use crate::Mono;

/// Parts of a period that are given back one by one.
const STEPS: u32 = 8;

/// A [`Pool`] per period: what is spent comes back when the period is over.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::Mono;
/// use grasp_core::resources::{Bounds, Claimant, ClientNetwork, Meter};
///
/// let minute = Duration::from_secs(60);
/// let mut events = Meter::new(Bounds { reserve: 0, ..Bounds::of(80) }, minute);
/// let (now, eve) = (Mono::from_secs(1), Claimant::at(ClientNetwork::of("192.0.2.1".parse().unwrap())));
/// assert!(events.spend(now, &eve, 20).is_ok());
/// assert!(events.spend(now, &eve, 1).is_err());
/// assert!(events.spend(now + minute * 2, &eve, 20).is_ok());
/// ```
#[derive(Clone, Debug)]
pub struct Meter {
    pool: Pool,
    period: Duration,
    /// What was spent since a point in time, oldest first.
    spent: VecDeque<(Mono, BTreeMap<Accounts, u64>)>,
}

impl Meter {
    /// Creates a meter of which nothing is spent.
    pub const fn new(bounds: Bounds, period: Duration) -> Self {
        Self { pool: Pool::new(bounds), period, spent: VecDeque::new() }
    }

    /// Spends an amount, or nothing.
    pub fn spend(&mut self, now: Mono, claimant: &Claimant, amount: u64) -> Result<(), Shortage> {
        self.restore(now);
        let grant = self.pool.take(claimant, amount)?;
        self.note(now, grant);
        Ok(())
    }

    /// Books an amount that was spent already, even beyond what is left.
    pub fn charge(&mut self, now: Mono, claimant: &Claimant, amount: u64) {
        self.restore(now);
        let grant = self.pool.force(claimant, amount);
        self.note(now, grant);
    }

    /// Returns the amount that a claimant could spend now.
    pub fn room(&mut self, now: Mono, claimant: &Claimant) -> u64 {
        self.restore(now);
        self.pool.room(claimant)
    }

    /// Returns what was spent within the last period.
    pub fn usage(&mut self, now: Mono) -> Usage {
        self.restore(now);
        self.pool.usage()
    }

    /// Returns the bounds per period.
    pub const fn bounds(&self) -> Bounds {
        self.pool.bounds()
    }

    /// Returns the time after which everything that is spent now has come back.
    pub const fn period(&self) -> Duration {
        self.period
    }

    fn note(&mut self, now: Mono, grant: Grant) {
        let step = self.period / STEPS;
        if self.spent.back().is_none_or(|(since, _)| now - *since >= step) {
            self.spent.push_back((now, BTreeMap::new()));
        }
        if let Some((_, spent)) = self.spent.back_mut() {
            let sum = spent.entry(grant.accounts()).or_default();
            *sum = sum.saturating_add(grant.amount());
        }
    }

    fn restore(&mut self, now: Mono) {
        let step = self.period / STEPS;
        while self.spent.front().is_some_and(|(since, _)| now - *since >= self.period + step) {
            let spent = self.spent.pop_front().map(|(_, spent)| spent).unwrap_or_default();
            for (accounts, amount) in spent {
                self.pool.give_back(Grant::of(accounts, amount));
            }
        }
    }
}
