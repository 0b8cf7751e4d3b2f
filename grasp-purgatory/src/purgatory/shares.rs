//! Fair shares of a limited resource: memory for held events, disk for uploads.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::resources::{Bounds, Claimant, Grant, Pool, Shortage};
use nostr::event::EventId;

use super::io::Bound;

/// Divides the shares of claimants with authority when holders are compared for eviction.
const AUTHORITY_DIVISOR: u64 = 4;

/// The part of a pool that is never evicted from a holder: one of this many.
const MODEST_SHARES: u64 = 4_096;

/// Evictions for one newcomer, at most.
const MAX_EVICTIONS: usize = 16;

/// The events that take a part of a [`Pool`], each with its claimant. `H` is the part of a claimant that holders are
/// compared by.
#[derive(Debug)]
pub(super) struct Shares<H> {
    pool: Pool,
    /// The least amount of one share, so that a limit of bytes is a limit of numbers too.
    least: u64,
    held: BTreeMap<EventId, HolderShare>,
    holder: fn(&Claimant) -> H,
    holders: BTreeMap<H, Holder>,
    by_sum: BTreeSet<(u64, H)>,
}

#[derive(Debug)]
struct HolderShare {
    claimant: Claimant,
    grant: Grant,
}

impl HolderShare {
    /// Returns the amount by which its holder is compared with others.
    fn weight(&self) -> u64 {
        let divisor = if self.claimant.has_authority {
            AUTHORITY_DIVISOR
        } else {
            1
        };
        self.grant.amount() / divisor
    }
}

/// The shares of one holder.
#[derive(Debug, Default)]
struct Holder {
    /// The sum of their weights.
    sum: u64,
    by_amount: BTreeSet<(u64, EventId)>,
}

impl<H: Copy + Ord> Shares<H> {
    /// Creates shares of a bound, and of a reserve beyond it for claimants with authority.
    pub(super) fn new(
        bound: Bound,
        reserve: u64,
        smallest: u64,
        holder: fn(&Claimant) -> H,
    ) -> Self {
        // Far below the amounts that overflow in sums.
        let bytes = bound.bytes.min(u64::MAX / 4);
        let reserve = reserve.min(bytes);
        let count = u64::try_from(bound.count).unwrap_or(u64::MAX);
        let least = bytes.checked_div(count).unwrap_or(u64::MAX);
        let total = bytes + reserve;
        let smallest = smallest.max(least);
        let bounds = Bounds {
            total,
            reserve,
            per_author: u64::MAX,
            smallest,
        };
        let holders = BTreeMap::new();
        let by_sum = BTreeSet::new();
        Self {
            pool: Pool::new(bounds),
            least,
            held: BTreeMap::new(),
            holder,
            holders,
            by_sum,
        }
    }

    fn insert(&mut self, id: EventId, share: HolderShare) {
        let key = (self.holder)(&share.claimant);
        let weight = share.weight();
        let amount = share.grant.amount();
        let holder = self.holders.entry(key).or_default();
        self.by_sum.remove(&(holder.sum, key));
        holder.sum = holder.sum.saturating_add(weight);
        holder.by_amount.insert((amount, id));
        self.by_sum.insert((holder.sum, key));
        self.held.insert(id, share);
    }

    fn remove(&mut self, id: &EventId) -> Option<HolderShare> {
        let share = self.held.remove(id)?;
        let key = (self.holder)(&share.claimant);
        if let Some(holder) = self.holders.get_mut(&key) {
            self.by_sum.remove(&(holder.sum, key));
            holder.sum = holder.sum.saturating_sub(share.weight());
            holder.by_amount.remove(&(share.grant.amount(), *id));
            match holder.by_amount.is_empty() {
                true => _ = self.holders.remove(&key),
                false => _ = self.by_sum.insert((holder.sum, key)),
            }
        }
        Some(share)
    }

    /// Takes a share in place of the one that the event has, evicting others if the pool is exhausted. Returns the
    /// evicted events and whether there is room.
    pub(super) fn reserve(
        &mut self,
        id: EventId,
        claimant: Claimant,
        bytes: u64,
        is_spared: impl Fn(&EventId) -> bool,
    ) -> (Vec<EventId>, bool) {
        let mut evicted = Vec::new();
        for _ in 0..MAX_EVICTIONS {
            match self.take(id, claimant, bytes) {
                Ok(()) => return (evicted, true),
                Err(Shortage::Total) => {}
                Err(Shortage::Network(_) | Shortage::Author) => break,
            }
            let victim = self.to_evict(&claimant, bytes, &is_spared);
            let Some(victim) = victim else { break };
            self.release(&victim);
            evicted.push(victim);
        }
        (evicted, false)
    }

    fn take(&mut self, id: EventId, claimant: Claimant, bytes: u64) -> Result<(), Shortage> {
        let before = self.remove(&id).map(|share| {
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
        self.insert(id, HolderShare { claimant, grant });
        result
    }

    /// Adds a share without regard to the limit. A share that exists stays as it is.
    pub(super) fn add(&mut self, id: EventId, claimant: Claimant, bytes: u64) {
        if !self.held.contains_key(&id) {
            let grant = self.pool.force(&claimant, bytes.max(self.least));
            self.insert(id, HolderShare { claimant, grant });
        }
    }

    /// Moves a share to the account of claimants with authority.
    pub(super) fn authorise(&mut self, id: EventId) {
        if self
            .held
            .get(&id)
            .is_none_or(|share| share.claimant.has_authority)
        {
            return;
        }
        let Some(HolderShare { claimant, grant }) = self.remove(&id) else {
            return;
        };
        let claimant = claimant.with_authority();
        let amount = grant.amount();
        self.pool.give_back(grant);
        let grant = self.pool.force(&claimant, amount);
        self.insert(id, HolderShare { claimant, grant });
    }

    pub(super) fn has_authority(&self, id: &EventId) -> bool {
        self.held
            .get(id)
            .is_some_and(|share| share.claimant.has_authority)
    }

    pub(super) fn release(&mut self, id: &EventId) {
        if let Some(share) = self.remove(id) {
            self.pool.give_back(share.grant);
        }
    }

    /// Returns the largest share of the holder with most, if that is more than the newcomer would have and more than a
    /// [modest](Self::modest) amount. Spared events are never returned.
    ///
    /// Early holders of much cannot exclude newcomers, and holders of little keep it.
    fn to_evict(
        &self,
        newcomer: &Claimant,
        bytes: u64,
        is_spared: impl Fn(&EventId) -> bool,
    ) -> Option<EventId> {
        let own = self
            .holders
            .get(&(self.holder)(newcomer))
            .map_or(0, |holder| holder.sum);
        let least = own.saturating_add(bytes.max(self.least)).max(self.modest());
        let large = self.by_sum.iter().rev().take_while(|(sum, _)| *sum > least);
        let largest = |(_, key): &(u64, H)| {
            let shares = self.holders.get(key)?.by_amount.iter().rev();
            shares.map(|(_, id)| *id).find(|id| !is_spared(id))
        };
        large.into_iter().find_map(largest)
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

    const BOUND: Bound = Bound {
        count: 100,
        bytes: 1_000,
    };

    fn author(n: u8) -> Claimant {
        Claimant::default().signed_by(PublicKey::from_byte_array([n; 32]))
    }

    fn id(n: u8) -> EventId {
        EventId::from_byte_array([n; 32])
    }

    fn evicts(
        shares: &Shares<Option<PublicKey>>,
        newcomer: Claimant,
        bytes: u64,
    ) -> Option<EventId> {
        shares.to_evict(&newcomer, bytes, |_| false)
    }

    #[test]
    fn the_holder_with_most_makes_room_for_one_with_less() {
        let mut shares = Shares::new(BOUND, 0, 1, |one| one.author);
        for n in 0..9 {
            shares.take(id(n), author(1), 100).unwrap();
        }
        shares.take(id(9), author(2), 100).unwrap();
        assert_eq!(shares.take(id(10), author(3), 50), Err(Shortage::Total));
        assert_eq!(
            evicts(&shares, author(1), 50),
            None,
            "not for more of their own"
        );
        let victim = evicts(&shares, author(3), 50).unwrap();
        assert!(victim < id(9), "of the one with most");
        shares.release(&victim);
        shares.take(id(10), author(3), 50).unwrap();
        assert_eq!(
            evicts(&shares, author(4), 900),
            None,
            "the newcomer would have most"
        );
    }

    #[test]
    fn many_small_events_use_a_share_like_few_large_ones() {
        let mut shares = Shares::new(BOUND, 0, 1, |one| one.author);
        let fits = |n: &u8| shares.take(id(*n), author(1), 1).is_ok();
        assert_eq!((0..200).filter(fits).count(), BOUND.count);
    }

    #[test]
    fn one_network_leaves_room_for_others_and_the_reserve_needs_authority() {
        let mut shares = Shares::new(BOUND, 250, 1, |one| one.author);
        let at =
            |net: u8| Claimant::at(ClientNetwork::of(IpAddr::V4(Ipv4Addr::new(10, 0, net, 1))));
        let mut n = 0;
        let mut fill = |shares: &mut Shares<Option<PublicKey>>, claimant: Claimant| {
            let mut taken = 0;
            while shares.take(id(n), claimant, 10).is_ok() {
                (n, taken) = (n + 1, taken + 10);
            }
            taken
        };
        assert!((200..=300).contains(&fill(&mut shares, at(1))), "a quarter");
        assert!(fill(&mut shares, at(2)) >= 100);
        assert_eq!(fill(&mut shares, Claimant::default()) % 10, 0);
        assert!(
            fill(&mut shares, author(1).with_authority()) >= 240,
            "the reserve"
        );
    }

    #[test]
    fn shares_added_or_released_twice_count_once() {
        let mut shares = Shares::new(BOUND, 250, 1, |one| one.author);
        shares.add(id(1), author(1), 400);
        shares.add(id(1), author(1), 400);
        assert_eq!(shares.pool.usage().all, 400);
        shares.authorise(id(1));
        assert_eq!(
            (
                shares.pool.usage().all,
                shares.pool.usage().without_authority
            ),
            (400, 0)
        );
        shares.release(&id(1));
        shares.release(&id(1));
        assert_eq!(shares.pool.usage().all, 0);
    }
}
