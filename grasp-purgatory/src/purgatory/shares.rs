//! Fair shares of a limited resource: memory for held events, disk for uploads.

use std::collections::BTreeMap;

use grasp_core::resources::{Bounds, Claimant, Grant, Pool, Shortage};
use nostr::event::EventId;

use super::io::Bound;

/// Divides the shares of claimants with authority when holders are compared for eviction.
const AUTHORITY_DIVISOR: u64 = 4;

/// The part of a pool that is never evicted from a holder: one of this many.
const MODEST_SHARES: u64 = 4_096;

/// Evictions for one newcomer, at most.
const MAX_EVICTIONS: usize = 16;

/// The events that take a part of a [`Pool`], each with its claimant.
#[derive(Debug)]
pub(super) struct Shares {
    pool: Pool,
    /// The least amount of one share, so that a limit of bytes is a limit of numbers too.
    least: u64,
    held: BTreeMap<EventId, Share>,
}

#[derive(Debug)]
struct Share {
    claimant: Claimant,
    grant: Grant,
}

impl Shares {
    /// Creates shares of a bound, and of a reserve beyond it for claimants with authority.
    pub(super) fn new(bound: Bound, reserve: u64, smallest: u64) -> Self {
        // Far below the amounts that overflow in sums.
        let bytes = bound.bytes.min(u64::MAX / 4);
        let reserve = reserve.min(bytes);
        let count = u64::try_from(bound.count).unwrap_or(u64::MAX);
        let least = bytes.checked_div(count).unwrap_or(u64::MAX);
        let (total, smallest) = (bytes + reserve, smallest.max(least));
        let bounds = Bounds { total, reserve, per_author: u64::MAX, smallest };
        Self { pool: Pool::new(bounds), least, held: BTreeMap::new() }
    }

    /// Takes a share in place of the one that the event has, evicting others if the pool is exhausted. Returns the
    /// evicted events and whether there is room; `holder` is the part of a claimant that holders are compared by.
    pub(super) fn reserve<H: Ord>(
        &mut self,
        id: EventId,
        claimant: Claimant,
        bytes: u64,
        holder: impl Fn(&Claimant) -> H,
        is_spared: impl Fn(&EventId) -> bool,
    ) -> (Vec<EventId>, bool) {
        let mut evicted = Vec::new();
        for _ in 0..MAX_EVICTIONS {
            match self.take(id, claimant, bytes) {
                Ok(()) => return (evicted, true),
                Err(Shortage::Total) => {}
                Err(Shortage::Network(_) | Shortage::Author) => break,
            }
            let victim = self.to_evict(&claimant, bytes, &holder, &is_spared);
            let Some(victim) = victim else { break };
            self.release(&victim);
            evicted.push(victim);
        }
        (evicted, false)
    }

    fn take(&mut self, id: EventId, claimant: Claimant, bytes: u64) -> Result<(), Shortage> {
        let before = self.held.remove(&id).map(|share| {
            let before = (share.claimant, share.grant.amount());
            self.pool.give_back(share.grant);
            before
        });
        let taken = self.pool.take(&claimant, bytes.max(self.least));
        let (claimant, grant, result) = match (taken, before) {
            (Ok(grant), _) => (claimant, grant, Ok(())),
            (Err(shortage), Some((claimant, amount))) => {
                (claimant, self.pool.force(&claimant, amount), Err(shortage))
            }
            (Err(shortage), None) => return Err(shortage),
        };
        self.held.insert(id, Share { claimant, grant });
        result
    }

    /// Adds a share without regard to the limit. A share that exists stays as it is.
    pub(super) fn add(&mut self, id: EventId, claimant: Claimant, bytes: u64) {
        let (pool, least) = (&mut self.pool, self.least);
        self.held
            .entry(id)
            .or_insert_with(|| Share { claimant, grant: pool.force(&claimant, bytes.max(least)) });
    }

    /// Moves a share to the account of claimants with authority.
    pub(super) fn authorise(&mut self, id: EventId) {
        if self.held.get(&id).is_none_or(|share| share.claimant.has_authority) {
            return;
        }
        let Some(Share { claimant, grant }) = self.held.remove(&id) else { return };
        let (claimant, amount) = (claimant.with_authority(), grant.amount());
        self.pool.give_back(grant);
        let grant = self.pool.force(&claimant, amount);
        self.held.insert(id, Share { claimant, grant });
    }

    pub(super) fn has_authority(&self, id: &EventId) -> bool {
        self.held.get(id).is_some_and(|share| share.claimant.has_authority)
    }

    pub(super) fn release(&mut self, id: &EventId) {
        if let Some(share) = self.held.remove(id) {
            self.pool.give_back(share.grant);
        }
    }

    /// Returns the largest share of the holder with most, if that is more than the newcomer would have and more than a
    /// [modest](Self::modest) amount. Spared events are never returned.
    ///
    /// Early holders of much cannot exclude newcomers, and holders of little keep it.
    fn to_evict<H: Ord>(
        &self,
        newcomer: &Claimant,
        bytes: u64,
        holder: impl Fn(&Claimant) -> H,
        is_spared: impl Fn(&EventId) -> bool,
    ) -> Option<EventId> {
        let mut holders: BTreeMap<H, (u64, Option<(u64, EventId)>)> = BTreeMap::new();
        for (id, Share { claimant, grant }) in &self.held {
            let (sum, largest) = holders.entry(holder(claimant)).or_default();
            let divisor = if claimant.has_authority { AUTHORITY_DIVISOR } else { 1 };
            *sum = sum.saturating_add(grant.amount() / divisor);
            if !is_spared(id) {
                *largest = (*largest).max(Some((grant.amount(), *id)));
            }
        }
        let own = holders.get(&holder(newcomer)).map_or(0, |(sum, _)| *sum);
        let own = own.saturating_add(bytes.max(self.least));
        let evictable = holders.into_values().filter_map(|(sum, largest)| Some((sum, largest?.1)));
        let (sum, id) = evictable.max_by_key(|(sum, _)| *sum)?;
        (sum > own.max(self.modest())).then_some(id)
    }

    /// An amount that is never evicted: an announcement and its state have to wait together.
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

    fn id(n: u8) -> EventId {
        EventId::from_byte_array([n; 32])
    }

    fn evicts(shares: &Shares, newcomer: Claimant, bytes: u64) -> Option<EventId> {
        shares.to_evict(&newcomer, bytes, |claimant| claimant.author, |_| false)
    }

    #[test]
    fn the_holder_with_most_makes_room_for_one_with_less() {
        let mut shares = Shares::new(BOUND, 0, 1);
        for n in 0..9 {
            shares.take(id(n), author(1), 100).unwrap();
        }
        shares.take(id(9), author(2), 100).unwrap();
        assert_eq!(shares.take(id(10), author(3), 50), Err(Shortage::Total));
        assert_eq!(evicts(&shares, author(1), 50), None, "not for more of their own");
        let victim = evicts(&shares, author(3), 50).unwrap();
        assert!(victim < id(9), "of the one with most");
        shares.release(&victim);
        shares.take(id(10), author(3), 50).unwrap();
        assert_eq!(evicts(&shares, author(4), 900), None, "the newcomer would have most");
    }

    #[test]
    fn many_small_events_use_a_share_like_few_large_ones() {
        let mut shares = Shares::new(BOUND, 0, 1);
        let fits = |n: &u8| shares.take(id(*n), author(1), 1).is_ok();
        assert_eq!((0..200).filter(fits).count(), BOUND.count);
    }

    #[test]
    fn one_network_leaves_room_for_others_and_the_reserve_needs_authority() {
        let mut shares = Shares::new(BOUND, 250, 1);
        let at =
            |net: u8| Claimant::at(ClientNetwork::of(IpAddr::V4(Ipv4Addr::new(10, 0, net, 1))));
        let mut n = 0;
        let mut fill = |shares: &mut Shares, claimant: Claimant| {
            let mut taken = 0;
            while shares.take(id(n), claimant, 10).is_ok() {
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
    fn shares_added_or_released_twice_count_once() {
        let mut shares = Shares::new(BOUND, 250, 1);
        shares.add(id(1), author(1), 400);
        shares.add(id(1), author(1), 400);
        assert_eq!(shares.pool.usage().all, 400);
        shares.authorise(id(1));
        assert_eq!((shares.pool.usage().all, shares.pool.usage().without_authority), (400, 0));
        shares.release(&id(1));
        shares.release(&id(1));
        assert_eq!(shares.pool.usage().all, 0);
    }
}
