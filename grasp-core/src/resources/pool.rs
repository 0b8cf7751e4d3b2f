//! A resource with a total, shares and a reserve.

use std::collections::BTreeMap;
use std::fmt;

use nostr::key::PublicKey;

use super::{ClientNetwork, Prefix};

/// Networks, and authors, that one pool accounts for one by one. Networks beyond it share one account; authors beyond
/// it are bounded by their networks only.
const MAX_ACCOUNTS: usize = 1 << 16;

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
        Self { total, reserve: total / 4, per_author: u64::MAX, smallest: 1 }
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
        Self { network: None, author: None, has_authority: true }
    }

    /// Returns an unknown party at a network.
    pub const fn at(network: ClientNetwork) -> Self {
        Self { network: Some(network), author: None, has_authority: false }
    }

    /// Returns an unknown party at a network that may not be known.
    pub const fn maybe_at(network: Option<ClientNetwork>) -> Self {
        Self { network, author: None, has_authority: false }
    }

    /// Adds the author of what is worked on.
    #[must_use]
    pub const fn signed_by(self, author: PublicKey) -> Self {
        Self { author: Some(author), ..self }
    }

    /// Opens the reserve.
    #[must_use]
    pub const fn with_authority(self) -> Self {
        Self { has_authority: true, ..self }
    }
}

/// The bound that stands in the way of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shortage {
    /// Everything is taken, or everything but the reserve.
    Total,
    /// A network of the client's has its share.
    Network(Prefix),
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

    pub(super) const fn of(accounts: Accounts, amount: u64) -> Self {
        Self { amount, accounts }
    }

    pub(super) const fn accounts(&self) -> Accounts {
        self.accounts
    }

    /// Adds another grant of the same accounts.
    pub(super) fn absorb(&mut self, other: Self) {
        self.amount = self.amount.saturating_add(other.amount);
    }
}

/// The accounts that a grant is booked on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Accounts {
    /// Widest first.
    networks: [Option<Prefix>; 3],
    author: Option<PublicKey>,
    has_authority: bool,
}

/// Amounts that are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By all claimants.
    pub all: u64,
    /// By claimants without authority.
    pub strangers: u64,
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
    networks: BTreeMap<(bool, Prefix), u64>,
    authors: BTreeMap<PublicKey, u64>,
}

impl Pool {
    /// Creates a pool of which nothing is taken.
    pub const fn new(bounds: Bounds) -> Self {
        let usage = Usage { all: 0, strangers: 0 };
        Self { bounds, usage, networks: BTreeMap::new(), authors: BTreeMap::new() }
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
            self.usage.strangers = self.usage.strangers.saturating_sub(amount);
        }
        for prefix in accounts.networks.into_iter().flatten() {
            subtract(&mut self.networks, &(accounts.has_authority, prefix), amount);
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
            let added = self.book(grant.accounts, more);
            grant.absorb(added);
        } else {
            let surplus = Grant { amount: grant.amount - amount, accounts: grant.accounts };
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
        let by_author = || accounts.author.and_then(|author| self.authors.get(&author).copied());
        by_network.or_else(by_author).unwrap_or(0)
    }

    /// Returns the author that holds most, and how much.
    pub fn largest_author(&self) -> Option<(PublicKey, u64)> {
        self.authors.iter().map(|(author, amount)| (*author, *amount)).max_by_key(|(_, most)| *most)
    }

    fn accounts(&self, claimant: &Claimant) -> Accounts {
        let has_authority = claimant.has_authority;
        let mut networks = [None; 3];
        if let Some(network) = claimant.network {
            for (slot, prefix) in networks.iter_mut().zip(network.prefixes()) {
                *slot = Some(prefix);
            }
        }
        let is_known = |prefix: &Prefix| self.networks.contains_key(&(has_authority, *prefix));
        let is_new = networks.iter().flatten().any(|prefix| !is_known(prefix));
        if is_new && self.networks.len() >= MAX_NARROW_ACCOUNTS {
            let widest = networks[0];
            let has_room = self.networks.len() < MAX_ACCOUNTS;
            let widest = widest.filter(|prefix| has_room || is_known(prefix));
            networks = [Some(widest.unwrap_or(Prefix::UNLISTED)), None, None];
        }
        let listed = |author: &PublicKey| {
            self.authors.len() < MAX_ACCOUNTS || self.authors.contains_key(author)
        };
        Accounts { networks, author: claimant.author.filter(listed), has_authority }
    }

    /// Returns the amount that may be booked on these accounts, and the bound that makes it no more.
    fn room_of(&self, accounts: &Accounts) -> (u64, Shortage) {
        let Bounds { total, reserve, per_author, smallest } = self.bounds;
        let mut free = total.saturating_sub(self.usage.all);
        if !accounts.has_authority {
            let open = total.saturating_sub(reserve);
            free = free.min(open.saturating_sub(self.usage.strangers));
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

    fn held(&self, has_authority: bool, prefix: Prefix) -> u64 {
        self.networks.get(&(has_authority, prefix)).copied().unwrap_or(0)
    }

    fn book(&mut self, accounts: Accounts, amount: u64) -> Grant {
        let add = |sum: &mut u64| *sum = sum.saturating_add(amount);
        add(&mut self.usage.all);
        if !accounts.has_authority {
            add(&mut self.usage.strangers);
        }
        if amount > 0 {
            for prefix in accounts.networks.into_iter().flatten() {
                add(self.networks.entry((accounts.has_authority, prefix)).or_default());
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
