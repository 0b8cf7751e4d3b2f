//! Accounting for everything that input from outside can consume.
//!
//! Each resource (git processes, bytes being unpacked, reader time, connections …) is one [`Pool`] with a total. Its
//! consumer is a [`Claimant`]: a client network, an author, or the server itself. Three rules hold for every pool:
//!
//! 1. **Shares.** No client network holds more than half of what would be free without it, at every width: an IPv4 /24
//!    half of the pool, each /32 in it half of what the /24 may have; IPv6 /48, /56 and /64 likewise. So a newcomer
//!    always finds something free, however much one network asks for. An author holds at most a fixed amount.
//! 2. **Reserve.** Claimants without authority never consume the reserve. Claimants with authority (confirmed
//!    maintainers of served repositories, the operator, the server itself) may, and have accounts of their own, so that
//!    others in the same network take nothing away from them.
//! 3. **Return.** What was taken is given back: a [`Grant`] to its pool, what a [`Meter`] counted after its period.
//!
//! [`QueuedPool`] adds a fair queue for claimants that can wait. Deadlines and the end of a client belong to drivers: they
//! give back what was granted.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use nostr::key::PublicKey;

use crate::Mono;

/// Widths of IPv4 networks, widest first.
const V4_WIDTHS: &[u8] = &[24, 32];

/// Widths of IPv6 networks, widest first. Providers hand out /64, /56 or /48 to one customer.
const V6_WIDTHS: &[u8] = &[48, 56, 64];

/// Returns the networks of these widths that an address belongs to.
fn networks(address: IpAddr) -> impl DoubleEndedIterator<Item = IpNet> {
    let widths = if address.is_ipv4() {
        V4_WIDTHS
    } else {
        V6_WIDTHS
    };
    widths
        .iter()
        .map(move |width| IpNet::new_assert(address, *width).trunc())
}

/// The networks that a client's address belongs to: IPv4 /32 and /24; IPv6 /64, /56 and /48.
///
/// ```
/// use grasp_core::resources::ClientNetwork;
///
/// let network = |text: &str| ClientNetwork::of(text.parse().unwrap());
/// assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:2"));
/// assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
/// assert_eq!(network("192.0.2.7"), network("::ffff:192.0.2.7"));
/// assert_eq!(network("192.0.2.7").to_string(), "192.0.2.7/32");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientNetwork(IpNet);

impl ClientNetwork {
    /// Returns the network of an address. An IPv4 address and its IPv6-mapped form are the same.
    pub fn of(address: IpAddr) -> Self {
        let address = address.to_canonical();
        Self(
            networks(address)
                .next_back()
                .unwrap_or_else(|| address.into()),
        )
    }

    /// Returns the first address of the network.
    pub fn address(self) -> IpAddr {
        self.0.addr()
    }

    /// Returns the networks from the widest to the narrowest.
    pub fn prefixes(self) -> impl Iterator<Item = IpNet> {
        networks(self.0.addr())
    }
}

impl fmt::Display for ClientNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Networks, and authors, that one pool accounts for one by one. Networks beyond it share one account; authors beyond
/// it are bounded by their networks only.
const MAX_ACCOUNTS: usize = 1 << 16;

/// The account of all networks that are not accounted for one by one.
const UNLISTED: IpNet = IpNet::V6(Ipv6Net::new_assert(Ipv6Addr::UNSPECIFIED, 0));

/// Accounts from which on only the widest network of a new client is accounted for: a client with one /48 has enough of
/// the narrower ones to use up all accounts.
const MAX_NARROW_ACCOUNTS: usize = MAX_ACCOUNTS / 2;

/// Bounds of a pool, in its own unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Amount that all claimants together may hold.
    pub total: u64,
    /// Part of the total that only claimants with authority may hold.
    pub reserve: u64,
    /// Amount that one author may hold.
    pub per_author: u64,
    /// Smallest useful amount: a share that would be less is rounded up to it while it is free.
    pub smallest: u64,
}

impl Bounds {
    /// Returns bounds with this total, a quarter of it in reserve, no bound per author, and a smallest amount of one.
    pub const fn of(total: u64) -> Self {
        Self {
            total,
            reserve: total / 4,
            per_author: u64::MAX,
            smallest: 1,
        }
    }
}

/// The party that a resource is consumed for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Claimant {
    /// The client's network; none for the server's own work and for what other servers brought.
    pub network: Option<ClientNetwork>,
    /// The author of what is worked on, where a signature says so.
    pub author: Option<PublicKey>,
    /// Whether the reserve is open: a confirmed maintainer of a served repository, the operator, or the server itself.
    pub has_authority: bool,
}

impl Claimant {
    /// Returns the server itself: no shares, but the total.
    pub const fn server() -> Self {
        Self {
            network: None,
            author: None,
            has_authority: true,
        }
    }

    /// Returns an unknown party at a network.
    pub const fn at(network: ClientNetwork) -> Self {
        Self {
            network: Some(network),
            author: None,
            has_authority: false,
        }
    }

    /// Returns an unknown party at a network that may not be known.
    pub const fn maybe_at(network: Option<ClientNetwork>) -> Self {
        Self {
            network,
            author: None,
            has_authority: false,
        }
    }

    /// Adds the author of what is worked on.
    #[must_use]
    pub const fn signed_by(self, author: PublicKey) -> Self {
        Self {
            author: Some(author),
            ..self
        }
    }

    /// Opens the reserve.
    #[must_use]
    pub const fn with_authority(self) -> Self {
        Self {
            has_authority: true,
            ..self
        }
    }
}

/// The bound that stands in the way of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Everything is taken, or everything but the reserve.
    Total,
    /// A network of the client's has its share.
    Network(IpNet),
    /// The author has their share.
    Author,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Total => f.write_str("the server is busy"),
            Self::Network(prefix) => write!(f, "the network {prefix} uses its share"),
            Self::Author => f.write_str("the author uses their share"),
        }
    }
}

/// An amount that was taken. Give it back with [`Pool::give_back`]; a grant that is dropped stays taken.
#[must_use = "a grant that is not given back stays taken"]
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    amount: u64,
    accounts: Accounts,
}

impl Grant {
    /// Returns the amount.
    pub const fn amount(&self) -> u64 {
        self.amount
    }
}

/// The accounts that a grant is booked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Accounts {
    /// Widest first.
    networks: [Option<IpNet>; 3],
    author: Option<PublicKey>,
    has_authority: bool,
}

/// Amounts that are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By all claimants.
    pub all: u64,
    /// By claimants without authority.
    pub without_authority: u64,
}

/// One resource: a total, shares per network and author, and a reserve. See the [module](super).
///
/// ```
/// use grasp_core::resources::{Bounds, Claimant, ClientNetwork, Pool};
///
/// let mut processes = Pool::new(Bounds { reserve: 4, ..Bounds::of(20) });
/// let eve = Claimant::at(ClientNetwork::of("198.51.100.1".parse().unwrap()));
/// let bob = Claimant::at(ClientNetwork::of("203.0.113.1".parse().unwrap()));
/// let hers = processes.take(&eve, 4).unwrap(); // a quarter of 16: half of her /24's half
/// assert!(processes.take(&eve, 1).is_err());
/// let his = processes.take(&bob, 3).unwrap();
/// # processes.give_back(hers); processes.give_back(his);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    bounds: Bounds,
    usage: Usage,
    networks: BTreeMap<(bool, IpNet), u64>,
    authors: BTreeMap<PublicKey, u64>,
}

impl Pool {
    /// Creates a pool of which nothing is taken.
    pub const fn new(bounds: Bounds) -> Self {
        let usage = Usage {
            all: 0,
            without_authority: 0,
        };
        Self {
            bounds,
            usage,
            networks: BTreeMap::new(),
            authors: BTreeMap::new(),
        }
    }

    /// Takes an amount, or nothing.
    pub fn take(&mut self, claimant: &Claimant, amount: u64) -> Result<Grant, Shortage> {
        let accounts = self.accounts(claimant);
        let (room, shortage) = self.room_of(&accounts);
        if amount > room {
            return Err(shortage);
        }
        Ok(self.book(accounts, amount))
    }

    /// Books an amount that was consumed already, even beyond what is free.
    pub fn force(&mut self, claimant: &Claimant, amount: u64) -> Grant {
        let accounts = self.accounts(claimant);
        self.book(accounts, amount)
    }

    /// Returns what was taken.
    pub fn give_back(&mut self, grant: Grant) {
        let Grant { amount, accounts } = grant;
        self.usage.all = self.usage.all.saturating_sub(amount);
        if !accounts.has_authority {
            self.usage.without_authority = self.usage.without_authority.saturating_sub(amount);
        }
        for prefix in accounts.networks.into_iter().flatten() {
            subtract(
                &mut self.networks,
                &(accounts.has_authority, prefix),
                amount,
            );
        }
        if let Some(author) = accounts.author {
            subtract(&mut self.authors, &author, amount);
        }
    }

    /// Changes the amount of a grant. A grant can always shrink; it stays as it was if there is no room to grow.
    pub fn resize(&mut self, grant: &mut Grant, amount: u64) -> Result<(), Shortage> {
        if let Some(more) = amount.checked_sub(grant.amount) {
            let (room, shortage) = self.room_of(&grant.accounts);
            if more > room {
                return Err(shortage);
            }
            grant.amount += self.book(grant.accounts, more).amount;
        } else {
            let surplus = Grant {
                amount: grant.amount - amount,
                accounts: grant.accounts,
            };
            grant.amount = amount;
            self.give_back(surplus);
        }
        Ok(())
    }

    /// Returns the amount that a claimant could take now.
    pub fn room(&self, claimant: &Claimant) -> u64 {
        self.room_of(&self.accounts(claimant)).0
    }

    /// Returns what is taken.
    pub const fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the bounds.
    pub const fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// Returns the amount that a claimant's narrowest network holds, or its author if there is no network.
    pub fn held_by(&self, claimant: &Claimant) -> u64 {
        let accounts = self.accounts(claimant);
        let narrowest = accounts.networks.into_iter().flatten().last();
        let by_network = narrowest.map(|prefix| self.held(accounts.has_authority, prefix));
        let by_author = || {
            accounts
                .author
                .and_then(|author| self.authors.get(&author).copied())
        };
        by_network.or_else(by_author).unwrap_or(0)
    }

    fn accounts(&self, claimant: &Claimant) -> Accounts {
        let has_authority = claimant.has_authority;
        let mut networks = [None; 3];
        if let Some(network) = claimant.network {
            for (slot, prefix) in networks.iter_mut().zip(network.prefixes()) {
                *slot = Some(prefix);
            }
        }
        let is_known = |prefix: &IpNet| self.networks.contains_key(&(has_authority, *prefix));
        let is_new = networks.iter().flatten().any(|prefix| !is_known(prefix));
        if is_new && self.networks.len() >= MAX_NARROW_ACCOUNTS {
            let widest = networks[0];
            let has_room = self.networks.len() < MAX_ACCOUNTS;
            let widest = widest.filter(|prefix| has_room || is_known(prefix));
            networks = [Some(widest.unwrap_or(UNLISTED)), None, None];
        }
        let listed = |author: &PublicKey| {
            self.authors.len() < MAX_ACCOUNTS || self.authors.contains_key(author)
        };
        Accounts {
            networks,
            author: claimant.author.filter(listed),
            has_authority,
        }
    }

    /// Returns the amount that may be booked on these accounts, and the bound that makes it no more.
    fn room_of(&self, accounts: &Accounts) -> (u64, Shortage) {
        let Bounds {
            total,
            reserve,
            per_author,
            smallest,
        } = self.bounds;
        let mut free = total.saturating_sub(self.usage.all);
        if !accounts.has_authority {
            let open = total.saturating_sub(reserve);
            free = free.min(open.saturating_sub(self.usage.without_authority));
        }
        let mut room = (free, Shortage::Total);
        // What the network at hand could hold if it held nothing yet; narrower ones share what it may hold.
        let mut available = free;
        let mut held_by_wider = None;
        for prefix in accounts.networks.into_iter().flatten() {
            let held = self.held(accounts.has_authority, prefix);
            available = match held_by_wider {
                None => available.saturating_add(held),
                Some(wider) => available.saturating_sub(u64::saturating_sub(wider, held)),
            };
            let share = available.div_ceil(2).max(smallest.min(available));
            let left = share.saturating_sub(held);
            if left < room.0 {
                room = (left, Shortage::Network(prefix));
            }
            (available, held_by_wider) = (share, Some(held));
        }
        if let Some(author) = accounts.author {
            let left = per_author.saturating_sub(self.authors.get(&author).copied().unwrap_or(0));
            if left < room.0 {
                room = (left, Shortage::Author);
            }
        }
        room
    }

    fn held(&self, has_authority: bool, prefix: IpNet) -> u64 {
        self.networks
            .get(&(has_authority, prefix))
            .copied()
            .unwrap_or(0)
    }

    fn book(&mut self, accounts: Accounts, amount: u64) -> Grant {
        let add = |sum: &mut u64| *sum = sum.saturating_add(amount);
        add(&mut self.usage.all);
        if !accounts.has_authority {
            add(&mut self.usage.without_authority);
        }
        if amount > 0 {
            for prefix in accounts.networks.into_iter().flatten() {
                add(self
                    .networks
                    .entry((accounts.has_authority, prefix))
                    .or_default());
            }
            if let Some(author) = accounts.author {
                add(self.authors.entry(author).or_default());
            }
        }
        Grant { amount, accounts }
    }
}

/// Subtracts an amount from an account, and closes the account at zero.
fn subtract<K: Ord>(accounts: &mut BTreeMap<K, u64>, key: &K, amount: u64) {
    if let Some(held) = accounts.get_mut(key) {
        *held = held.saturating_sub(amount);
        if *held == 0 {
            accounts.remove(key);
        }
    }
}

/// A [`Pool`] with a queue for claimants that can wait, each with an item that its grant is handed out with.
///
/// Claimants with authority come first, then those that hold least; among these, networks take turns, each in the order in
/// which its claims came. The queue is a pool, too: no network takes more than half of its free places.
///
/// ```
/// use grasp_core::resources::{Bounds, Claimant, ClientNetwork, Grant, QueuedPool};
///
/// let mut processes = QueuedPool::new(Bounds::of(8), 16);
/// let eve = Claimant::at(ClientNetwork::of("198.51.100.1".parse().unwrap()));
/// processes.enqueue(eve, 1, "clone x");
/// let granted: Option<(&str, Grant)> = processes.grant_next();
/// let (work, grant) = granted.expect("there is room");
/// assert_eq!((work, grant.amount(), processes.queued()), ("clone x", 1, 0));
/// processes.pool.give_back(grant);
/// ```
#[derive(Debug)]
pub struct QueuedPool<T> {
    /// The pool. After something was given back, call [`QueuedPool::grant_next`] until it returns nothing.
    pub pool: Pool,
    places: Pool,
    /// Claims by their number, in the order in which they came.
    waiting: BTreeMap<u64, PoolRequest<T>>,
    last_number: u64,
    /// The latest round in which a claim was granted.
    round: u64,
    /// The round of the last claim of each widest network that has claims in later rounds.
    rounds: BTreeMap<IpNet, u64>,
}

#[derive(Debug)]
struct PoolRequest<T> {
    claimant: Claimant,
    amount: u64,
    place: Grant,
    /// In each round every network has one claim.
    round: u64,
    item: T,
}

impl<T> QueuedPool<T> {
    /// Creates a queue of this many places in front of a pool with these bounds.
    pub const fn new(bounds: Bounds, places: u64) -> Self {
        Self {
            pool: Pool::new(bounds),
            places: Pool::new(Bounds::of(places)),
            waiting: BTreeMap::new(),
            last_number: 0,
            round: 0,
            rounds: BTreeMap::new(),
        }
    }

    /// Queues a claim and returns its number; `None` if the queue is full, or the claimant has its share of it.
    pub fn enqueue(&mut self, claimant: Claimant, amount: u64, item: T) -> Option<u64> {
        let place = self.places.take(&claimant, 1).ok()?;
        self.last_number += 1;
        let round = self.next_round(&claimant);
        self.waiting.insert(
            self.last_number,
            PoolRequest {
                claimant,
                amount,
                place,
                round,
                item,
            },
        );
        Some(self.last_number)
    }

    /// Returns the round of a new claim: the one after the last of its network.
    fn next_round(&mut self, claimant: &Claimant) -> u64 {
        let widest = claimant
            .network
            .and_then(|network| network.prefixes().next());
        let Some(widest) = widest else {
            return self.round + 1;
        };
        // Networks whose claims were all cancelled are left over.
        if self.rounds.len() >= MAX_ACCOUNTS {
            self.rounds.clear();
        }
        let last = self.rounds.entry(widest).or_default();
        *last = self.round.max(*last) + 1;
        *last
    }

    /// Removes a claim from the queue, if it is still there.
    pub fn cancel(&mut self, number: u64) {
        if let Some(waiting) = self.waiting.remove(&number) {
            self.places.give_back(waiting.place);
        }
    }

    /// Grants the next claim in the queue that fits.
    pub fn grant_next(&mut self) -> Option<(T, Grant)> {
        let fits = |waiting: &PoolRequest<T>| waiting.amount <= self.pool.room(&waiting.claimant);
        let order = |number: u64,
                     PoolRequest {
                         claimant, round, ..
                     }: &PoolRequest<T>| {
            (
                !claimant.has_authority,
                self.pool.held_by(claimant),
                *round,
                number,
            )
        };
        let next = self.waiting.iter().filter(|(_, waiting)| fits(waiting));
        let (number, _) = next.min_by_key(|(number, waiting)| order(**number, waiting))?;
        let number = *number;
        let PoolRequest {
            claimant,
            amount,
            place,
            round,
            item,
        } = self.waiting.remove(&number)?;
        self.places.give_back(place);
        self.round = self.round.max(round);
        self.rounds.retain(|_, last| *last > self.round);
        let grant = self.pool.take(&claimant, amount).ok()?;
        Some((item, grant))
    }

    /// Returns the number of claims in the queue.
    pub fn queued(&self) -> usize {
        self.waiting.len()
    }
}

/// Parts of a period that are given back one by one.
const STEPS: u32 = 8;

/// A [`Pool`] per period: what is spent comes back when the period is over.
///
/// ```
/// use std::time::Duration;
/// use grasp_core::Mono;
/// use grasp_core::resources::{Bounds, Claimant, ClientNetwork, Meter, Shortage, Usage};
///
/// let minute = Duration::from_secs(60);
/// let mut events = Meter::new(Bounds { reserve: 0, ..Bounds::of(80) }, minute);
/// let (now, eve) = (Mono::from_secs(1), Claimant::at(ClientNetwork::of("192.0.2.1".parse().unwrap())));
/// assert!(events.spend(now, &eve, 20).is_ok());
/// assert!(matches!(events.spend(now, &eve, 1), Err(Shortage::Network(_))));
/// assert_eq!(events.usage(now), Usage { all: 20, without_authority: 20 });
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
        Self {
            pool: Pool::new(bounds),
            period,
            spent: VecDeque::new(),
        }
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

    /// Returns the bounds.
    pub const fn bounds(&self) -> Bounds {
        self.pool.bounds()
    }

    /// Returns what was spent within the last period.
    pub fn usage(&mut self, now: Mono) -> Usage {
        self.restore(now);
        self.pool.usage()
    }

    fn note(&mut self, now: Mono, grant: Grant) {
        let step = self.period / STEPS;
        if self
            .spent
            .back()
            .is_none_or(|(since, _)| now - *since >= step)
        {
            self.spent.push_back((now, BTreeMap::new()));
        }
        if let Some((_, spent)) = self.spent.back_mut() {
            let sum = spent.entry(grant.accounts).or_default();
            *sum = sum.saturating_add(grant.amount);
        }
    }

    fn restore(&mut self, now: Mono) {
        let step = self.period / STEPS;
        while self
            .spent
            .front()
            .is_some_and(|(since, _)| now - *since >= self.period + step)
        {
            let spent = self
                .spent
                .pop_front()
                .map(|(_, spent)| spent)
                .unwrap_or_default();
            for (accounts, amount) in spent {
                self.pool.give_back(Grant { amount, accounts });
            }
        }
    }
}
