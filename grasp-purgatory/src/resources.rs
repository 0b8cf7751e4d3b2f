//! Accounting pools that tasks share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::resources::{Asked, Bounds, Claimant, Grant, Line, Shortage, Usage};
use tokio::sync::oneshot;

/// Claims that may wait for one pool.
const MAX_WAITING: u64 = 4_096;

/// A [`Line`] that tasks share. Clones are the same pool; nothing waits while its lock is held.
#[derive(Clone, Debug)]
pub struct SharedPool {
    state: Arc<Mutex<PoolState>>,
}

#[derive(Debug)]
struct PoolState {
    line: Line<u64>,
    last_key: u64,
    waiting: BTreeMap<u64, oneshot::Sender<Holding>>,
}

/// An amount of a [`SharedPool`], given back when it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Holding {
    pool: SharedPool,
    grant: Option<Grant>,
}

/// A claim in the queue, removed when it is dropped.
struct Claim<'a> {
    pool: &'a SharedPool,
    key: u64,
}

impl SharedPool {
    /// Creates a pool of which nothing is taken.
    pub fn new(bounds: Bounds) -> Self {
        let line = Line::new(bounds, MAX_WAITING);
        let state = PoolState { line, last_key: 0, waiting: BTreeMap::new() };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Takes an amount if it is free.
    pub fn try_take(&self, claimant: &Claimant, amount: u64) -> Result<Holding, Shortage> {
        let taken = self.lock().line.take(claimant, amount);
        taken.map(|grant| self.holding(grant))
    }

    /// Takes an amount, waiting for it if need be. Dropping the future leaves the queue.
    pub async fn wait(
        &self,
        claimant: &Claimant,
        amount: u64,
        timeout: Duration,
    ) -> Result<Holding, Shortage> {
        let (key, granted) = match self.ask(claimant, amount)? {
            Ok(holding) => return Ok(holding),
            Err(queued) => queued,
        };
        let _claim = Claim { pool: self, key };
        match tokio::time::timeout(timeout, granted).await {
            Ok(Ok(holding)) => Ok(holding),
            _ => Err(Shortage::Total),
        }
    }

    /// Returns what is taken.
    pub fn usage(&self) -> Usage {
        self.lock().line.usage()
    }

    /// Returns the bounds.
    pub fn bounds(&self) -> Bounds {
        self.lock().line.bounds()
    }

    /// Returns the number of claims that wait.
    pub fn queued(&self) -> usize {
        self.lock().line.queued()
    }

    #[allow(
        clippy::type_complexity,
        reason = "taken at once, or a key and the way in which it is granted"
    )]
    fn ask(
        &self,
        claimant: &Claimant,
        amount: u64,
    ) -> Result<Result<Holding, (u64, oneshot::Receiver<Holding>)>, Shortage> {
        let mut state = self.lock();
        state.last_key += 1;
        let key = state.last_key;
        match state.line.ask(key, *claimant, amount) {
            Asked::Granted(grant) => Ok(Ok(self.holding(grant))),
            Asked::Queued => {
                let (sender, receiver) = oneshot::channel();
                state.waiting.insert(key, sender);
                Ok(Err((key, receiver)))
            }
            Asked::Refused(shortage) => Err(shortage),
        }
    }

    fn holding(&self, grant: Grant) -> Holding {
        Holding { pool: self.clone(), grant: Some(grant) }
    }

    fn lock(&self) -> MutexGuard<'_, PoolState> {
        // Every change is complete when the lock is released.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands out what has become free.
    fn grant_next(&self, mut state: MutexGuard<'_, PoolState>) {
        let mut granted = Vec::new();
        while let Some((key, grant)) = state.line.grant_next() {
            let holding = self.holding(grant);
            granted.push((state.waiting.remove(&key), holding));
        }
        drop(state);
        for (sender, holding) in granted {
            // A receiver that is gone drops the holding, which gives it back.
            if let Some(sender) = sender {
                drop(sender.send(holding));
            }
        }
    }
}

impl Holding {
    /// Returns the amount.
    pub fn amount(&self) -> u64 {
        self.grant.as_ref().map_or(0, Grant::amount)
    }

    /// Changes the amount. It stays as it was if there is no room to grow.
    pub fn resize(&mut self, amount: u64) -> Result<(), Shortage> {
        let Some(grant) = self.grant.as_mut() else { return Ok(()) };
        let mut state = self.pool.lock();
        state.line.resize(grant, amount)?;
        self.pool.grant_next(state);
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            let mut state = self.pool.lock();
            state.line.give_back(grant);
            self.pool.grant_next(state);
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.pool.lock();
        state.line.cancel(&self.key);
        let sender = state.waiting.remove(&self.key);
        drop(state);
        drop(sender);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use grasp_core::resources::ClientNetwork;

    use super::*;

    const SOON: Duration = Duration::from_secs(60);

    fn at(net: u8) -> Claimant {
        Claimant::at(ClientNetwork::of(Ipv4Addr::new(198, 51, net, 1).into()))
    }

    #[tokio::test]
    async fn a_claim_waits_until_something_is_given_back() {
        let pool = SharedPool::new(Bounds { reserve: 0, ..Bounds::of(1) });
        let first = pool.try_take(&at(1), 1).expect("it is free");
        assert!(pool.try_take(&at(2), 1).is_err());
        let second = tokio::spawn({
            let pool = pool.clone();
            async move { pool.wait(&at(2), 1, SOON).await }
        });
        while pool.queued() == 0 {
            tokio::task::yield_now().await;
        }
        drop(first);
        let second = second.await.expect("no panic").expect("it was given back");
        assert_eq!((second.amount(), pool.usage().all), (1, 1));
        drop(second);
        assert_eq!(pool.usage(), Usage::default());
    }

    #[tokio::test]
    async fn a_claim_that_waits_too_long_or_is_dropped_leaves_the_queue() {
        let pool = SharedPool::new(Bounds { reserve: 0, ..Bounds::of(1) });
        let held = pool.try_take(&at(1), 1).expect("it is free");
        assert!(pool.wait(&at(2), 1, Duration::ZERO).await.is_err());
        assert!(tokio::time::timeout(Duration::ZERO, pool.wait(&at(2), 1, SOON)).await.is_err());
        assert_eq!(pool.queued(), 0);
        drop(held);
        assert_eq!(pool.usage(), Usage::default());
    }

    #[tokio::test]
    async fn a_holding_shrinks_for_others_and_grows_only_into_what_is_free() {
        let pool = SharedPool::new(Bounds { reserve: 0, ..Bounds::of(16) });
        let mut holding = pool.try_take(&at(1), 4).expect("a quarter is a share");
        assert!(holding.resize(5).is_err());
        holding.resize(1).expect("it can always shrink");
        assert_eq!(pool.usage().all, 1);
    }
}
