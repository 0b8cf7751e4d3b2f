//! Properties of resource accounting: totals, shares, the reserve, and that everything is given back.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use grasp_core::Mono;
use grasp_core::resources::{Bounds, Claimant, ClientNetwork, Grant, Meter, Pool, QueuedPool};
use nostr::key::PublicKey;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Take(Claimant, u64),
    GiveBack(prop::sample::Index),
    Resize(prop::sample::Index, u64),
}

fn author(number: u8) -> PublicKey {
    PublicKey::from_byte_array([number; 32])
}

fn claimants() -> impl Strategy<Value = Claimant> {
    let v4 = (0..3_u8, 0..3_u8).prop_map(|(net, host)| Ipv4Addr::new(198, 51, net, host).into());
    let v6 = (0..2_u16, 0..2_u16, 0..2_u16).prop_map(|(site, home, lan)| {
        Ipv6Addr::new(0x2001, 0xdb8, site, home << 8 | lan, 0, 0, 0, 1).into()
    });
    let network = prop_oneof![v4, v6].prop_map(|address: IpAddr| ClientNetwork::of(address));
    (
        prop::option::of(network),
        prop::option::of(1..4_u8),
        any::<bool>(),
    )
        .prop_map(|(network, key, has_authority)| Claimant {
            network,
            author: key.map(author),
            has_authority,
        })
}

fn bounds() -> impl Strategy<Value = Bounds> {
    (1..200_u64, 0..100_u64, 1..100_u64, 1..5_u64).prop_map(
        |(total, reserve, per_author, smallest)| Bounds {
            total,
            reserve: reserve.min(total),
            per_author,
            smallest,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (claimants(), 0..40_u64).prop_map(|(who, amount)| Step::Take(who, amount)),
        2 => any::<prop::sample::Index>().prop_map(Step::GiveBack),
        1 => (any::<prop::sample::Index>(), 0..40_u64).prop_map(|(which, to)| Step::Resize(which, to)),
    ];
    prop::collection::vec(step, 0..100)
}

/// The amounts that claimants hold, counted by the test.
#[derive(Default)]
struct Holdings(Vec<(Claimant, Grant)>);

impl Holdings {
    fn sum(&self, counts: impl Fn(&Claimant) -> bool) -> u64 {
        let counted = self.0.iter().filter(|(claimant, _)| counts(claimant));
        counted.map(|(_, grant)| grant.amount()).sum()
    }

    /// Returns the largest amount that the widest network of a claimant may hold after a take.
    fn share(&self, bounds: Bounds, claimant: &Claimant) -> Option<(u64, u64)> {
        let widest = |one: &Claimant| one.network.and_then(|network| network.prefixes().next());
        let network = widest(claimant)?;
        let of_network = |one: &Claimant| {
            one.has_authority == claimant.has_authority && widest(one) == Some(network)
        };
        let held = self.sum(of_network);
        let mut free = bounds.total - self.sum(|_| true);
        if !claimant.has_authority {
            let without_authority = self.sum(|one| !one.has_authority);
            free = free.min((bounds.total - bounds.reserve) - without_authority);
        }
        let available = free + held;
        Some((
            held,
            available.div_ceil(2).max(bounds.smallest.min(available)),
        ))
    }
}

proptest! {
    #[test]
    fn totals_reserve_and_shares_hold_and_everything_is_given_back(bounds in bounds(), steps in steps()) {
        let (mut pool, mut holdings) = (Pool::new(bounds), Holdings::default());
        for step in steps {
            match step {
                Step::Take(claimant, amount) => {
                    let share = holdings.share(bounds, &claimant);
                    let Ok(grant) = pool.take(&claimant, amount) else { continue };
                    if let Some((held, share)) = share {
                        prop_assert!(held + amount <= share || amount == 0);
                    }
                    holdings.0.push((claimant, grant));
                }
                Step::GiveBack(which) if !holdings.0.is_empty() => {
                    let (_, grant) = holdings.0.swap_remove(which.index(holdings.0.len()));
                    pool.give_back(grant);
                }
                Step::Resize(which, to) if !holdings.0.is_empty() => {
                    let position = which.index(holdings.0.len());
                    let (_, grant) = &mut holdings.0[position];
                    let before = grant.amount();
                    let resized = pool.resize(grant, to).is_ok();
                    prop_assert_eq!(grant.amount(), if resized { to } else { before });
                    prop_assert!(resized || to > before);
                }
                Step::GiveBack(_) | Step::Resize(..) => {}
            }
            prop_assert_eq!(pool.usage().all, holdings.sum(|_| true));
            prop_assert!(pool.usage().all <= bounds.total);
            prop_assert!(holdings.sum(|one| !one.has_authority) <= bounds.total - bounds.reserve);
            for key in 1..4 {
                let held = holdings.sum(|one| one.author == Some(author(key)));
                prop_assert!(held <= bounds.per_author);
            }
        }
        for (_, grant) in holdings.0 {
            pool.give_back(grant);
        }
        prop_assert_eq!(pool, Pool::new(bounds));
    }

    #[test]
    fn one_network_leaves_half_of_the_rest_to_another(total in 8..1_000_u64, tries in 1..200_usize) {
        let mut pool = Pool::new(Bounds { reserve: 0, ..Bounds::of(total) });
        // A whole /48, from any number of its /64.
        for number in 0..tries {
            let address = Ipv6Addr::new(0x2001, 0xdb8, 1, number as u16, 0, 0, 0, 1);
            let eve = Claimant::at(ClientNetwork::of(address.into()));
            while let Ok(grant) = pool.take(&eve, 1) {
                let _kept = grant;
            }
        }
        prop_assert!(pool.usage().all <= total.div_ceil(2));
        let bob = Claimant::at(ClientNetwork::of(Ipv6Addr::new(0x2001, 0xdb8, 2, 0, 0, 0, 0, 1).into()));
        prop_assert!(pool.room(&bob) >= total / 16);
    }

    #[test]
    fn spent_amounts_come_back_after_the_period_and_not_before(
        spent in prop::collection::vec((claimants(), 0..30_u64, 0..40_u64), 1..80),
    ) {
        let (bounds, period) = (Bounds::of(100), Duration::from_secs(80));
        let (mut meter, mut now) = (Meter::new(bounds, period), Mono::from_secs(1));
        let mut record: Vec<(Mono, u64)> = Vec::new();
        for (claimant, amount, pause) in spent {
            now = now + Duration::from_secs(pause);
            if meter.spend(now, &claimant, amount).is_ok() {
                record.push((now, amount));
            }
            let recent: u64 =
                record.iter().filter(|(at, _)| now - *at < period).map(|(_, sum)| sum).sum();
            prop_assert!(recent <= meter.usage(now).all && meter.usage(now).all <= bounds.total);
        }
        prop_assert_eq!(meter.usage(now + period * 2).all, 0);
    }

    #[test]
    fn every_queued_claim_is_granted_once_or_cancelled(
        claims in prop::collection::vec((claimants(), 1..6_u64, any::<bool>()), 1..60),
        bounds in bounds(),
    ) {
        let mut queue = QueuedPool::new(bounds, 1_000);
        let (mut granted, mut queued) = (BTreeMap::new(), BTreeMap::new());
        for (key, (claimant, amount, cancels)) in claims.into_iter().enumerate() {
            if let Ok(grant) = queue.pool.take(&claimant, amount) {
                granted.insert(key, grant);
            } else if let Some(number) = queue.enqueue(claimant, amount, key) {
                if cancels {
                    queue.cancel(number);
                } else {
                    queued.insert(key, amount);
                }
            }
            prop_assert!(queue.pool.usage().all <= bounds.total);
        }
        while let Some((_, grant)) = granted.pop_first() {
            queue.pool.give_back(grant);
            while let Some((key, grant)) = queue.grant_next() {
                prop_assert_eq!(queued.remove(&key), Some(grant.amount()));
                granted.insert(key, grant);
            }
            prop_assert!(queue.pool.usage().all <= bounds.total);
        }
        prop_assert_eq!(queue.pool.usage().all, 0);
        prop_assert_eq!(queue.queued(), queued.len());
        // Only claims that fit into no empty pool remain.
        prop_assert!(queue.grant_next().is_none());
    }
}

#[test]
fn authority_is_granted_first_then_the_smallest_holder() {
    let network = |net: u8| ClientNetwork::of(Ipv4Addr::new(198, 51, net, 1).into());
    let mut queue = QueuedPool::new(
        Bounds {
            reserve: 0,
            ..Bounds::of(8)
        },
        100,
    );
    let mut held = Vec::new();
    for net in [1, 1, 2, 3, 4] {
        held.push(
            queue
                .pool
                .take(&Claimant::at(network(net)), 1)
                .expect("there is room"),
        );
    }
    let own = queue
        .pool
        .take(&Claimant::server(), 3)
        .expect("there is room");
    let clients = [network(1), network(5)].map(Claimant::at);
    let claimants = [
        clients[0],
        clients[1],
        Claimant::at(network(6)).with_authority(),
    ];
    for (key, claimant) in (1..).zip(claimants) {
        assert!(queue.pool.take(&claimant, 1).is_err());
        assert!(queue.enqueue(claimant, 1, key).is_some());
    }
    queue.pool.give_back(own);
    let order: Vec<_> = std::iter::from_fn(|| queue.grant_next())
        .map(|(key, grant)| (key, grant.amount()))
        .collect();
    assert_eq!(
        order,
        [(3, 1), (2, 1)],
        "the network that holds two waits for half of what is free"
    );
}

#[test]
fn networks_take_turns_however_many_claims_one_of_them_has() {
    let at = |net: u8, host: u8| {
        Claimant::at(ClientNetwork::of(Ipv4Addr::new(198, 51, net, host).into()))
    };
    let mut queue = QueuedPool::new(
        Bounds {
            reserve: 0,
            ..Bounds::of(1)
        },
        100,
    );
    let mut held = queue.pool.take(&at(1, 1), 1).expect("there is room");
    // Addresses of one network count together.
    for host in 1..=9 {
        assert!(queue.enqueue(at(1, host), 1, (1, host)).is_some());
    }
    assert!(queue.enqueue(at(2, 1), 1, (2, 1)).is_some());
    let mut order = Vec::new();
    for step in 0..6 {
        queue.pool.give_back(held);
        let (item, grant) = queue.grant_next().expect("a claim waits");
        order.push(item);
        held = grant;
        if step == 2 {
            assert!(queue.enqueue(at(2, 1), 1, (2, 2)).is_some());
            assert!(
                queue
                    .enqueue(at(3, 1).with_authority(), 1, (3, 1))
                    .is_some()
            );
        }
    }
    assert_eq!(order, [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 2)]);
}

#[test]
fn one_wide_network_does_not_use_up_the_accounts_of_others() {
    let mut pool = Pool::new(Bounds {
        reserve: 0,
        ..Bounds::of(1 << 20)
    });
    // Every /64 of a /48 takes a little.
    for number in 0..=u16::MAX {
        let address = Ipv6Addr::new(0x2001, 0xdb8, 1, number, 0, 0, 0, 1);
        let _kept = pool.take(&Claimant::at(ClientNetwork::of(address.into())), 1);
    }
    let newcomer = |site| {
        Claimant::at(ClientNetwork::of(
            Ipv6Addr::new(0x2001, 0xdb8, site, 0, 0, 0, 0, 1).into(),
        ))
    };
    let _kept = pool.take(&newcomer(2), 100).expect("there is room");
    assert_eq!(
        (pool.held_by(&newcomer(2)), pool.held_by(&newcomer(3))),
        (100, 0)
    );
}
