//! Accounting pools that tasks share.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::resources::{Bounds, Claimant, Grant, QueuedPool, Shortage, Usage};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Claims that may wait for one pool.
const MAX_WAITING: u64 = 4_096;

/// A [`QueuedPool`] that tasks share. Clones are the same pool; nothing waits while its lock is held.
#[derive(Clone, Debug)]
pub struct SharedPool(Arc<Mutex<QueuedPool<oneshot::Sender<Holding>>>>);

/// An amount of a [`SharedPool`], given back when it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Holding {
    pool: SharedPool,
    grant: Option<Grant>,
}

/// A claim in the queue, removed when it is dropped.
struct QueuedClaim<'a> {
    pool: &'a SharedPool,
    number: u64,
}

impl SharedPool {
    /// Creates a pool of which nothing is taken.
    pub fn new(bounds: Bounds) -> Self {
        Self(Arc::new(Mutex::new(QueuedPool::new(bounds, MAX_WAITING))))
    }

    /// Takes an amount if it is free.
    pub fn try_take(&self, claimant: &Claimant, amount: u64) -> Result<Holding, Shortage> {
        self.0
            .lock()
            .pool
            .take(claimant, amount)
            .map(|grant| self.holding(grant))
    }

    /// Takes an amount if it is free, and if the narrowest network of the claimant then holds no more than `most`.
    pub fn try_take_within(
        &self,
        claimant: &Claimant,
        amount: u64,
        most: u64,
    ) -> Result<Holding, Shortage> {
        let mut state = self.0.lock();
        if state.pool.held_by(claimant).saturating_add(amount) > most {
            return Err(Shortage::Total);
        }
        state
            .pool
            .take(claimant, amount)
            .map(|grant| self.holding(grant))
    }

    /// Takes an amount, waiting for it if need be. Dropping the future leaves the queue.
    pub async fn wait(
        &self,
        claimant: &Claimant,
        amount: u64,
        timeout: Duration,
    ) -> Result<Holding, Shortage> {
        let (sender, granted) = oneshot::channel();
        let number = {
            let mut pool = self.0.lock();
            match pool.pool.take(claimant, amount) {
                Ok(grant) => return Ok(self.holding(grant)),
                Err(shortage) => pool.enqueue(*claimant, amount, sender).ok_or(shortage)?,
            }
        };
        let _claim = QueuedClaim { pool: self, number };
        match tokio::time::timeout(timeout, granted).await {
            Ok(Ok(holding)) => Ok(holding),
            _ => Err(Shortage::Total),
        }
    }

    /// Returns what is taken.
    pub fn usage(&self) -> Usage {
        self.0.lock().pool.usage()
    }

    /// Returns the bounds.
    pub fn bounds(&self) -> Bounds {
        self.0.lock().pool.bounds()
    }

    /// Returns the number of claims that wait.
    pub fn queued(&self) -> usize {
        self.0.lock().queued()
    }

    fn holding(&self, grant: Grant) -> Holding {
        Holding {
            pool: self.clone(),
            grant: Some(grant),
        }
    }

    /// Hands out what has become free.
    fn grant_next(&self, mut pool: MutexGuard<'_, QueuedPool<oneshot::Sender<Holding>>>) {
        let granted: Vec<_> = std::iter::from_fn(|| pool.grant_next()).collect();
        drop(pool);
        for (sender, grant) in granted {
            // A receiver that is gone drops the holding, which gives it back.
            drop(sender.send(self.holding(grant)));
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
        let Some(grant) = self.grant.as_mut() else {
            return Ok(());
        };
        let mut pool = self.pool.0.lock();
        pool.pool.resize(grant, amount)?;
        self.pool.grant_next(pool);
        Ok(())
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        if let Some(grant) = self.grant.take() {
            let mut pool = self.pool.0.lock();
            pool.pool.give_back(grant);
            self.pool.grant_next(pool);
        }
    }
}

impl Drop for QueuedClaim<'_> {
    fn drop(&mut self) {
        self.pool.0.lock().cancel(self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use grasp_core::resources::ClientNetwork;

    use super::*;

    const CLAIM_TIMEOUT: Duration = Duration::from_secs(60);

    fn at(net: u8) -> Claimant {
        Claimant::at(ClientNetwork::of(Ipv4Addr::new(198, 51, net, 1).into()))
    }

    #[tokio::test]
    async fn a_claim_waits_until_something_is_given_back() {
        let pool = SharedPool::new(Bounds {
            reserve: 0,
            ..Bounds::of(1)
        });
        let first = pool.try_take(&at(1), 1).expect("it is free");
        assert!(pool.try_take(&at(2), 1).is_err());
        let second = tokio::spawn({
            let pool = pool.clone();
            async move { pool.wait(&at(2), 1, CLAIM_TIMEOUT).await }
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
        let pool = SharedPool::new(Bounds {
            reserve: 0,
            ..Bounds::of(1)
        });
        let held = pool.try_take(&at(1), 1).expect("it is free");
        assert!(pool.wait(&at(2), 1, Duration::ZERO).await.is_err());
        assert!(
            tokio::time::timeout(Duration::ZERO, pool.wait(&at(2), 1, CLAIM_TIMEOUT))
                .await
                .is_err()
        );
        assert_eq!(pool.queued(), 0);
        drop(held);
        assert_eq!(pool.usage(), Usage::default());
    }

    #[tokio::test]
    async fn a_holding_shrinks_for_others_and_grows_only_into_what_is_free() {
        let pool = SharedPool::new(Bounds {
            reserve: 0,
            ..Bounds::of(16)
        });
        let mut holding = pool.try_take(&at(1), 4).expect("a quarter is a share");
        assert!(holding.resize(5).is_err());
        holding.resize(1).expect("it can always shrink");
        assert_eq!(pool.usage().all, 1);
    }
}
