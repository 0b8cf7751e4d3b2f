//! Limits of the work and the rows that events cause, accepted or refused: by client network, by author, and by the
//! thread or repository that they belong to.
//!
//! Part of each budget is reserved for authors with authority: the operator, and authors of a stored state, who were
//! confirmed maintainers when it came. Other clients who use up the rest do not lock them out. Authority is known only
//! once a signature was verified, and finding it out takes a query; authors with authority are remembered.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::admission::{ExceededLimit, Facts, Needs, Origin, Outcome, Rejection, Verdict};
use grasp_core::nip34::repo_refs;
use grasp_core::resources::{Bounds, Claimant, Meter, Shortage};
use grasp_core::{Mono, RepoId, kinds};
use grasp_purgatory::resources::{Holding, SharedPool};
use lru::LruCache;
use nostr::event::Event;
use nostr::filter::Filter;
use nostr::key::PublicKey;

use super::{Pending, Pipeline};
use crate::store::{self, StoreError, write_cost};

/// Keys that are looked up for all clients within a minute: some seconds of one processor. A quarter is
/// reserved for authors with authority. One address gets a quarter of what others leave of the rest, which is enough for
/// a hundred thousand events that name a few others each.
const LOOKUPS_PER_MINUTE: u64 = 10_000_000;

/// Keys that are looked up for an event besides those that it names: its id, its coordinate, and events that name it.
const LOOKUPS_PER_EVENT: usize = 8;

/// Authors whose authority is looked up for all clients within a minute, once the budget without authority is spent.
const AUTHORITY_CHECKS_PER_MINUTE: u64 = 200_000;

/// Rounds of clients' events that are looked up at once, a quarter of them with events of authors with authority. One
/// address has a quarter of what others leave of the rest.
const ROUNDS_AT_ONCE: u64 = 32;

/// Time that a round waits for its slot.
const SLOT_TIMEOUT: Duration = Duration::from_secs(30);

/// Rows that are written within a day for events of unknown authors, of kinds that are stored for any author: some
/// hundred megabytes. One address gets a quarter of what others leave.
const UNKNOWN_AUTHOR_ROWS_PER_DAY: u64 = 1_000_000;

/// Authors with authority that are remembered; beyond it the oldest is forgotten.
const MAX_AUTHORITIES: NonZeroUsize = NonZeroUsize::new(1 << 14).expect("not zero");

/// Threads, and repositories, of an event that are read to find out whether its author is a maintainer.
const MAX_READ_FOR_MAINTAINERS: usize = 8;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

const MINUTE: Duration = Duration::from_secs(60);

/// A [`Meter`] that tasks share.
#[derive(Debug)]
pub(crate) struct SharedMeter(Mutex<Meter>);

impl SharedMeter {
    const fn new(bounds: Bounds, period: Duration) -> Self {
        Self(Mutex::new(Meter::new(bounds, period)))
    }

    /// Creates a meter of this amount a minute, without a reserve.
    pub(crate) const fn per_minute(total: u64) -> Self {
        Self::new(
            Bounds {
                reserve: 0,
                ..Bounds::of(total)
            },
            MINUTE,
        )
    }

    /// Spends an amount; returns whether the claimant had enough left.
    #[must_use]
    pub(crate) fn spend(&self, now: Mono, claimant: &Claimant, amount: u64) -> bool {
        lock(&self.0).spend(now, claimant, amount).is_ok()
    }
}

/// Accounts for the work that clients' events cause, accepted or refused.
#[derive(Debug)]
pub struct Budgets {
    lookups: SharedMeter,
    /// Rows of events of unknown authors.
    unknown_author_rows: SharedMeter,
    round_slots: SharedPool,
    authority_checks: SharedMeter,
    /// Authors that were found to have authority.
    authorities: Mutex<LruCache<PublicKey, ()>>,
}

impl Default for Budgets {
    fn default() -> Self {
        Self::new(LOOKUPS_PER_MINUTE)
    }
}

impl Budgets {
    /// Returns budgets with this many keys to be looked up within a minute.
    pub fn new(lookups_per_minute: u64) -> Self {
        let unknown_author_rows = Bounds {
            reserve: 0,
            ..Bounds::of(UNKNOWN_AUTHOR_ROWS_PER_DAY)
        };
        Self {
            lookups: SharedMeter::new(Bounds::of(lookups_per_minute), MINUTE),
            unknown_author_rows: SharedMeter::new(unknown_author_rows, DAY),
            round_slots: SharedPool::new(Bounds::of(ROUNDS_AT_ONCE)),
            authority_checks: SharedMeter::per_minute(AUTHORITY_CHECKS_PER_MINUTE),
            authorities: Mutex::new(LruCache::new(MAX_AUTHORITIES)),
        }
    }

    /// Pays for the lookups that an event is judged by; returns whether the claimant had enough left.
    #[must_use]
    fn pay_lookups(&self, now: Mono, needs: &Needs, claimant: &Claimant) -> bool {
        let named = &needs.references;
        let keys = LOOKUPS_PER_EVENT + named.ids.len() + named.coordinates.len();
        self.lookups.spend(now, claimant, keys as u64)
    }

    /// Pays for storing an event of an unknown author, of a kind that is stored for any author.
    #[must_use]
    pub(super) fn pay_unknown_author(&self, now: Mono, event: &Event, origin: &Origin) -> bool {
        self.unknown_author_rows
            .spend(now, &origin.claimant(), write_cost(event) as u64)
    }

    /// Waits until a round of a client's events may be looked up. Events that sync asked for need not wait.
    pub(super) async fn round_slot(
        &self,
        origin: &Origin,
        has_authority: bool,
    ) -> Result<Option<Holding>, Shortage> {
        let claimant = Claimant {
            has_authority,
            ..origin.claimant()
        };
        match origin.is_sync() {
            true => Ok(None),
            false => self
                .round_slots
                .wait(&claimant, 1, SLOT_TIMEOUT)
                .await
                .map(Some),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pipeline {
    /// Pays for the lookups that an event is judged by: from the share of its sender's network, or from the reserve if the
    /// author has authority. Returns whether enough was left.
    pub(super) async fn pay_lookups(&self, pending: &Pending, origin: &Origin) -> bool {
        let now = self.clock.now().mono;
        let claimant = origin.claimant();
        let author = pending.event.pubkey;
        let needs = &pending.needs;
        if origin.is_sync() || self.budgets.pay_lookups(now, needs, &claimant) {
            return true;
        }
        let has_authority = self.is_known_authority(&author)
            || self.budgets.authority_checks.spend(now, &claimant, 1)
                && self.look_up_authority(author).await;
        let claimant = claimant.with_authority();
        has_authority && self.budgets.pay_lookups(now, needs, &claimant)
    }

    /// Returns whether an author is known to have authority.
    pub(super) fn is_known_authority(&self, author: &PublicKey) -> bool {
        self.policy.now().operator == Some(*author)
            || lock(&self.budgets.authorities).contains(author)
    }

    /// Looks up whether the authors of accepted states have authority, so that it is known once a budget is spent.
    pub(super) async fn note_authorities(&self, round: &[Pending]) {
        for pending in round {
            let author = pending.event.pubkey;
            if pending.event.kind != kinds::STATE || self.is_known_authority(&author) {
                continue;
            }
            let outcome = pending.verdict.clone().outcome();
            if matches!(outcome, Outcome::Stored | Outcome::Held) {
                self.look_up_authority(author).await;
            }
        }
    }

    /// Looks up whether a state of this author is stored. A failed lookup gives no authority.
    async fn look_up_authority(&self, author: PublicKey) -> bool {
        let question = vec![vec![Filter::new().author(author).kind(kinds::STATE)]];
        let answer = self.store.exists(question, self.clock.now().unix).await;
        let has_authority = answer.is_ok_and(|answers| answers == [true]);
        if has_authority {
            lock(&self.budgets.authorities).put(author, ());
        }
        has_authority
    }

    /// Refuses a judged event that would exceed a limit.
    pub(super) async fn check_limits(
        &self,
        pending: &mut Pending,
        origin: &Origin,
    ) -> Result<(), StoreError> {
        let now = self.clock.now().mono;
        let Pending {
            event,
            facts,
            verdict,
            ..
        } = pending;
        let is_unknown_author = kinds::UNCONDITIONAL_KINDS.contains(&event.kind)
            && matches!(verdict, Verdict::Store { is_related: true } | Verdict::Obey)
            && !facts.is_author_known
            && self.policy.now().operator != Some(event.pubkey);
        if is_unknown_author && !self.budgets.pay_unknown_author(now, event, origin) {
            *verdict = Rejection::RateLimited.into();
        }
        if !verdict.counts_for_fan_out() {
            return Ok(());
        }
        let mut admitted = lock(&self.fan_out).admit(now, event, &facts.named);
        // Maintainers have a limit of their own; who is one is read only when it is needed.
        if admitted == Err(ExceededLimit::Root) && self.is_by_maintainer(event, facts).await? {
            admitted = lock(&self.fan_out).admit_maintainer(now, event, &facts.named);
        }
        if admitted.is_err() {
            *verdict = Rejection::RateLimited.into();
        }
        Ok(())
    }

    /// Returns whether an event is signed by a confirmed maintainer of a repository that it belongs to.
    async fn is_by_maintainer(&self, event: &Event, facts: &Facts) -> Result<bool, StoreError> {
        let repos = self.repos_of(facts).await?;
        if repos.iter().any(|repo| repo.owner == event.pubkey) {
            return Ok(true);
        }
        for repo in repos {
            if self.git.is_maintainer(repo, event.pubkey).await? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the repositories that an event names, and those of the stored threads that it names.
    async fn repos_of(&self, facts: &Facts) -> Result<BTreeSet<RepoId>, StoreError> {
        let named = &facts.named;
        let mut repos: BTreeSet<RepoId> = named
            .coordinates
            .iter()
            .filter_map(|at| RepoId::try_from(at).ok())
            .collect();
        let threads: Vec<_> = named
            .ids
            .iter()
            .take(MAX_READ_FOR_MAINTAINERS)
            .copied()
            .collect();
        if !threads.is_empty() {
            let filter = Filter::new().ids(threads);
            for thread in store::events(&*self.store, filter, self.clock.now().unix).await? {
                repos.extend(repo_refs(&thread));
            }
        }
        Ok(repos.into_iter().take(MAX_READ_FOR_MAINTAINERS).collect())
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::resources::ClientNetwork;
    use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
    use nostr::key::Keys;

    use super::*;

    fn from(address: &str) -> Origin {
        let network = Some(ClientNetwork::of(address.parse().unwrap()));
        Origin::Client {
            authenticated: Vec::new(),
            network,
        }
    }

    fn naming(ids: usize) -> Event {
        let tag = |n: usize| Tag::parse(["e", &format!("{n:064x}")]).unwrap();
        EventBuilder::new(Kind::TextNote, "")
            .tags((0..ids).map(tag))
            .finalize(&Keys::generate())
            .unwrap()
    }

    fn network(address: &str) -> Claimant {
        Claimant::at(ClientNetwork::of(address.parse().unwrap()))
    }

    #[test]
    fn each_address_has_its_own_share() {
        let (rates, now) = (SharedMeter::per_minute(8), Mono::from_secs(1_000));
        let (alice, eve) = (network("192.0.2.1"), network("198.51.100.1"));
        assert!(rates.spend(now, &eve, 1) && rates.spend(now, &eve, 1));
        assert!(!rates.spend(now, &eve, 1));
        assert!(rates.spend(now, &alice, 1));
        assert!(rates.spend(now + 2 * MINUTE, &eve, 1), "it comes back");
    }

    #[test]
    fn addresses_of_one_network_share_its_limit() {
        let (rates, now) = (SharedMeter::per_minute(256), Mono::from_secs(1_000));
        let taken = |address: u8| {
            let claimant = network(&format!("198.51.100.{address}"));
            (0..1_000)
                .take_while(|_| rates.spend(now, &claimant, 1))
                .count()
        };
        let sum: usize = (0..=255).map(taken).sum();
        assert!(sum <= 128, "half of all, not {sum}");
        assert!(rates.spend(now, &network("192.0.2.1"), 1));
    }

    #[test]
    fn requests_of_unknown_authors_are_bounded_by_network() {
        let (budgets, now) = (Budgets::default(), Mono::from_secs(100));
        let (eve, alice) = (from("198.51.100.1"), from("192.0.2.1"));
        let long = naming(2_000);
        let paid = (0..1_000)
            .take_while(|_| budgets.pay_unknown_author(now, &long, &eve))
            .count();
        assert_eq!(paid, 250_000 / write_cost(&long));
        assert!((0..1_000).all(|_| budgets.pay_unknown_author(now, &naming(1), &alice)));
        assert!(
            budgets.pay_unknown_author(now + 2 * DAY, &long, &eve),
            "it comes back"
        );
    }

    #[test]
    fn events_that_name_many_others_use_up_the_share_of_their_network_only() {
        let (budgets, now) = (Budgets::default(), Mono::from_secs(100));
        let (eve, alice) = (
            from("198.51.100.1").claimant(),
            from("192.0.2.1").claimant(),
        );
        let event = Needs::of(&naming(1_000));
        let paid = (0..1_000_000)
            .take_while(|_| budgets.pay_lookups(now, &event, &eve))
            .count();
        // No more ids of one event are looked up than 256.
        assert_eq!(paid, 1_875_000 / (256 + LOOKUPS_PER_EVENT));
        let note = Needs::of(&naming(1));
        assert!((0..50_000).all(|_| budgets.pay_lookups(now, &note, &alice)));
        assert!(
            budgets.pay_lookups(now, &event, &eve.with_authority()),
            "the reserve"
        );
        assert!(
            budgets.pay_lookups(now + 2 * MINUTE, &event, &eve),
            "it comes back"
        );
    }

    #[test]
    fn the_oldest_authority_is_forgotten_first() {
        let author = |n: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&n.to_be_bytes());
            PublicKey::from_byte_array(bytes)
        };
        let budgets = Budgets::default();
        let (mut authorities, most) = (lock(&budgets.authorities), MAX_AUTHORITIES.get());
        for n in (0..=most).chain([5]) {
            authorities.put(author(n), ());
        }
        assert!(!authorities.contains(&author(0)));
        assert!((1..=most).all(|n| authorities.contains(&author(n))));
    }
}
