//! Shares of what may wait: memory for events, disk for uploads.

use std::collections::BTreeMap;

use grasp_core::resources::{Bounds, Claimant, Grant, Pool, Shortage};

use super::config::Bound;

/// The part of their holdings that claimants with authority are compared by when somebody has to make room.
const AUTHORITY_DIVISOR: u64 = 4;

/// Modest amounts that make up a whole pool.
const MODEST_SHARES: u64 = 4_096;

/// Things that wait, each with the part of a [`Pool`] that it takes and the claimant that it was taken for.
#[derive(Debug)]
pub(super) struct Shares<K> {
    pool: Pool,
    /// What each thing takes at least, so that a bound on bytes is a bound on numbers too.
    least: u64,
    held: BTreeMap<K, Share>,
}

#[derive(Debug)]
struct Share {
    claimant: Claimant,
    grant: Grant,
}

impl<K: Ord + Copy> Shares<K> {
    /// Shares of a bound, and of a reserve beyond it for claimants with authority.
    pub(super) fn new(bound: Bound, reserve: u64, smallest: u64) -> Self {
        // Far from what overflows when it is added up.
        let bytes = bound.bytes.min(u64::MAX / 4);
        let reserve = reserve.min(bytes);
        let count = u64::try_from(bound.count).unwrap_or(u64::MAX);
        let least = bytes.checked_div(count).unwrap_or(u64::MAX);
        let (total, smallest) = (bytes + reserve, smallest.max(least));
        let bounds = Bounds { total, reserve, per_author: u64::MAX, smallest };
        Self { pool: Pool::new(bounds), least, held: BTreeMap::new() }
    }

    /// Takes room for something, in place of what it had before.
    pub(super) fn take(&mut self, key: K, claimant: Claimant, bytes: u64) -> Result<(), Shortage> {
        let before = self.held.remove(&key).map(|share| {
            let had = (share.claimant, share.grant.amount());
            self.pool.give_back(share.grant);
            had
        });
        let taken = self.pool.take(&claimant, bytes.max(self.least));
        let (claimant, grant, outcome) = match (taken, before) {
            (Ok(grant), _) => (claimant, grant, Ok(())),
            (Err(shortage), Some((claimant, amount))) => {
                (claimant, self.pool.force(&claimant, amount), Err(shortage))
            }
            (Err(shortage), None) => return Err(shortage),
        };
        self.held.insert(key, Share { claimant, grant });
        outcome
    }

    /// Books something that is here, whatever room there is. It stays as it is if it was booked before.
    pub(super) fn book(&mut self, key: K, claimant: Claimant, bytes: u64) {
        let (pool, least) = (&mut self.pool, self.least);
        self.held
            .entry(key)
            .or_insert_with(|| Share { claimant, grant: pool.force(&claimant, bytes.max(least)) });
    }

    /// Books something on the account of those with authority from now on.
    pub(super) fn authorise(&mut self, key: K) {
        if self.held.get(&key).is_none_or(|share| share.claimant.has_authority) {
            return;
        }
        let Some(Share { claimant, grant }) = self.held.remove(&key) else { return };
        let (claimant, amount) = (claimant.with_authority(), grant.amount());
        self.pool.give_back(grant);
        let grant = self.pool.force(&claimant, amount);
        self.held.insert(key, Share { claimant, grant });
    }

    /// Whether something is on the account of those with authority.
    pub(super) fn has_authority(&self, key: &K) -> bool {
        self.held.get(key).is_some_and(|share| share.claimant.has_authority)
    }

    /// Returns the room that something took.
    pub(super) fn give_back(&mut self, key: &K) {
        if let Some(share) = self.held.remove(key) {
            self.pool.give_back(share.grant);
        }
    }

    /// The largest thing of the holder who has most, if that is more than a newcomer would have and more than a
    /// [modest](Self::modest) amount; nothing that is spared.
    ///
    /// Newcomers are not closed out by whoever came first and took much. Whoever took little keeps it.
    pub(super) fn to_evict<H: Ord>(
        &self,
        newcomer: &Claimant,
        bytes: u64,
        holder: impl Fn(&Claimant) -> H,
        is_spared: impl Fn(&K) -> bool,
    ) -> Option<K> {
        let mut holders: BTreeMap<H, (u64, Option<(u64, K)>)> = BTreeMap::new();
        for (key, Share { claimant, grant }) in &self.held {
            let (sum, largest) = holders.entry(holder(claimant)).or_default();
            let divisor = if claimant.has_authority { AUTHORITY_DIVISOR } else { 1 };
            *sum = sum.saturating_add(grant.amount() / divisor);
            if !is_spared(key) {
                *largest = (*largest).max(Some((grant.amount(), *key)));
            }
        }
        let own = holders.get(&holder(newcomer)).map_or(0, |(sum, _)| *sum);
        let own = own.saturating_add(bytes.max(self.least));
        let evictable = holders.into_values().filter_map(|(sum, largest)| Some((sum, largest?.1)));
        let (sum, key) = evictable.max_by_key(|(sum, _)| *sum)?;
        (sum > own.max(self.modest())).then_some(key)
    }

    /// An amount that nobody has to give up: an announcement and its state have to wait together.
    fn modest(&self) -> u64 {
        (self.pool.bounds().total / MODEST_SHARES).max(self.least.saturating_mul(2))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use grasp_core::resources::ClientNetwork;
    use nostr::key::PublicKey;

    use super::*;

    const BOUND: Bound = Bound { count: 100, bytes: 1_000 };

    fn author(n: u8) -> Claimant {
        Claimant::default().signed_by(PublicKey::from_byte_array([n; 32]))
    }

    fn evicts(shares: &Shares<u32>, newcomer: Claimant, bytes: u64) -> Option<u32> {
        shares.to_evict(&newcomer, bytes, |claimant| claimant.author, |_| false)
    }

    #[test]
    fn whoever_has_most_makes_room_for_whoever_has_less() {
        let mut shares = Shares::new(BOUND, 0, 1);
        for n in 0..9 {
            shares.take(n, author(1), 100).unwrap();
        }
        shares.take(9, author(2), 100).unwrap();
        assert_eq!(shares.take(10, author(3), 50), Err(Shortage::Total));
        assert_eq!(evicts(&shares, author(1), 50), None, "not for more of their own");
        let victim = evicts(&shares, author(3), 50).unwrap();
        assert!(victim < 9, "of the one with most");
        shares.give_back(&victim);
        shares.take(10, author(3), 50).unwrap();
        assert_eq!(evicts(&shares, author(4), 900), None, "who would have more than anybody");
    }

    #[test]
    fn many_small_things_take_room_like_few_large_ones() {
        let mut shares = Shares::new(BOUND, 0, 1);
        let fits = |n: &u32| shares.take(*n, author(1), 1).is_ok();
        assert_eq!((0..200).filter(fits).count(), BOUND.count);
    }

    #[test]
    fn one_network_leaves_room_for_others_and_strangers_leave_the_reserve() {
        let mut shares = Shares::new(BOUND, 250, 1);
        let at =
            |net: u8| Claimant::at(ClientNetwork::of(IpAddr::V4(Ipv4Addr::new(10, 0, net, 1))));
        let mut n = 0;
        let mut fill = |shares: &mut Shares<u32>, claimant: Claimant| {
            let mut taken = 0;
            while shares.take(n, claimant, 10).is_ok() {
                (n, taken) = (n + 1, taken + 10);
            }
            taken
        };
        assert!((200..=300).contains(&fill(&mut shares, at(1))), "a quarter");
        assert!(fill(&mut shares, at(2)) >= 100);
        assert_eq!(fill(&mut shares, Claimant::default()) % 10, 0);
        assert!(fill(&mut shares, author(1).with_authority()) >= 240, "the reserve");
    }

    #[test]
    fn what_is_booked_twice_or_given_back_twice_counts_once() {
        let mut shares = Shares::new(BOUND, 250, 1);
        shares.book(1, author(1), 400);
        shares.book(1, author(1), 400);
        assert_eq!(shares.pool.usage().all, 400);
        shares.authorise(1);
        assert_eq!((shares.pool.usage().all, shares.pool.usage().strangers), (400, 0));
        shares.give_back(&1);
        shares.give_back(&1);
        assert_eq!(shares.pool.usage().all, 0);
    }
}
