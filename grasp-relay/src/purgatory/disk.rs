//! Limits of the git data that parties add to the disk in a day, and of the size of a family.
//!
//! Git data stays until nothing refers to it, so it is counted when it comes. Maintainers of a served repository may add
//! most; all others share less, and less still for one family. The size of a family on disk is limited for good.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use grasp_core::resources::{Bounds, Claimant, Meter};
use grasp_core::{Identifier, Mono};
use grasp_purgatory::git::{GitError, RepoStore};

const GIB: u64 = 1 << 30;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Pushes of maintainers to served repositories.
const MAINTAINERS: Bounds =
    Bounds { total: 1 << 50, reserve: 0, per_author: 64 * GIB, smallest: 4 * GIB };

/// Pushes of others: new repositories, and pull requests.
const OTHERS: Bounds =
    Bounds { total: 32 * GIB, reserve: 0, per_author: 8 * GIB, smallest: 4 * GIB };

/// Fetches and copies because of events of others.
const HUNTED: Bounds = Bounds { total: 32 * GIB, reserve: 0, per_author: 4 * GIB, smallest: GIB };

/// Additions of others to one family.
const FAMILY: Bounds =
    Bounds { total: 8 * GIB, reserve: 0, per_author: 4 * GIB, smallest: 2 * GIB };

/// Families that are counted one by one. Those beyond are bounded with all others.
const MAX_FAMILIES: usize = 10_000;

/// The way on which git data comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Addition {
    /// A client sends it.
    Pushed,
    /// The server fetches or copies it because of an event.
    Hunted,
}

/// Bytes that were added in the last day, and the size that a family may have. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct DiskBudget {
    spent: Arc<Mutex<Spent>>,
    repository_bytes: u64,
}

#[derive(Debug)]
struct Spent {
    maintainers: Meter,
    others: Meter,
    hunted: Meter,
    families: BTreeMap<Identifier, Meter>,
}

impl Default for Spent {
    fn default() -> Self {
        let meter = |bounds| Meter::new(bounds, DAY);
        Self {
            maintainers: meter(MAINTAINERS),
            others: meter(OTHERS),
            hunted: meter(HUNTED),
            families: BTreeMap::new(),
        }
    }
}

impl Spent {
    /// Returns the meter of a claimant for all families.
    fn meter(&mut self, claimant: &Claimant, addition: Addition) -> &mut Meter {
        match (claimant.has_authority, addition) {
            (true, _) => &mut self.maintainers,
            (false, Addition::Pushed) => &mut self.others,
            (false, Addition::Hunted) => &mut self.hunted,
        }
    }

    /// Returns the meter of one family for claimants without authority; `None` if too many are counted.
    fn family(&mut self, now: Mono, family: &Identifier) -> Option<&mut Meter> {
        if !self.families.contains_key(family) {
            if self.families.len() >= MAX_FAMILIES {
                self.families.retain(|_, meter| meter.usage(now).all > 0);
            }
            if self.families.len() >= MAX_FAMILIES {
                return None;
            }
            self.families.insert(family.clone(), Meter::new(FAMILY, DAY));
        }
        self.families.get_mut(family)
    }
}

impl DiskBudget {
    /// Creates an unspent budget, for families of at most `repository_bytes`.
    pub(crate) fn new(repository_bytes: u64) -> Self {
        Self { spent: Arc::default(), repository_bytes }
    }

    /// Returns the bytes that a family may have when this claimant adds to it. A quarter is reserved for authority.
    pub(crate) fn family_limit(&self, claimant: &Claimant) -> u64 {
        match claimant.has_authority {
            true => self.repository_bytes,
            false => self.repository_bytes - self.repository_bytes / 4,
        }
    }

    /// Returns the bytes by which a claimant may still grow a family. Concurrent additions do not see each other.
    pub(crate) async fn family_room(
        &self,
        repos: &RepoStore,
        family: &Identifier,
        claimant: &Claimant,
    ) -> Result<u64, GitError> {
        Ok(self.family_limit(claimant).saturating_sub(repos.family_bytes(family).await?))
    }

    /// Returns the bytes that a claimant may still add to a family today.
    pub(crate) fn room(
        &self,
        now: Mono,
        family: &Identifier,
        claimant: &Claimant,
        addition: Addition,
    ) -> u64 {
        let mut spent = self.lock();
        let room = spent.meter(claimant, addition).room(now, claimant);
        if claimant.has_authority {
            return room;
        }
        let here = spent.family(now, family).map_or(room, |meter| meter.room(now, claimant));
        room.min(here)
    }

    /// Counts the bytes that a claimant has added to a family.
    pub(crate) fn charge(
        &self,
        now: Mono,
        family: &Identifier,
        claimant: &Claimant,
        (addition, bytes): (Addition, u64),
    ) {
        let mut spent = self.lock();
        spent.meter(claimant, addition).charge(now, claimant, bytes);
        if !claimant.has_authority {
            if let Some(meter) = spent.family(now, family) {
                meter.charge(now, claimant, bytes);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Spent> {
        // Every change is complete when the lock is released.
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    fn author(n: u8) -> Claimant {
        Claimant::default().signed_by(PublicKey::from_byte_array([n; 32]))
    }

    #[test]
    fn strangers_leave_a_quarter_of_a_family_to_its_maintainers() {
        let budget = DiskBudget::new(400);
        assert_eq!(budget.family_limit(&author(1)), 300);
        assert_eq!(budget.family_limit(&author(1).with_authority()), 400);
    }

    #[test]
    fn strangers_fill_neither_a_family_nor_the_disk_for_maintainers_and_get_it_back_the_day_after()
    {
        let (budget, now) = (DiskBudget::new(GIB), Mono::from_secs(1));
        let (x, y): (Identifier, Identifier) = ("x".parse().unwrap(), "y".parse().unwrap());
        let room =
            |now, family, claimant: &Claimant| budget.room(now, family, claimant, Addition::Hunted);
        let before = room(now, &x, &author(1).with_authority());
        let mut added = 0;
        for n in 1..=100 {
            let some = room(now, &x, &author(n));
            budget.charge(now, &x, &author(n), (Addition::Hunted, some));
            added += some;
        }
        assert_eq!(added, FAMILY.total, "however many sign");
        assert_eq!(room(now, &x, &author(101)), 0);
        assert!(room(now, &y, &author(101)) > 0, "another name");
        assert_eq!(room(now, &x, &author(1).with_authority()), before);
        assert!(room(now + DAY * 2, &x, &author(101)) > 0);
    }

    #[test]
    fn what_is_hunted_takes_nothing_from_those_who_push() {
        let (budget, now) = (DiskBudget::new(GIB), Mono::from_secs(1));
        for n in 0..100 {
            let family: Identifier = n.to_string().parse().unwrap();
            let some = budget.room(now, &family, &author(n), Addition::Hunted);
            budget.charge(now, &family, &author(n), (Addition::Hunted, some));
        }
        let x = "x".parse().unwrap();
        assert_eq!(budget.room(now, &x, &author(101), Addition::Hunted), 0);
        assert!(budget.room(now, &x, &author(101), Addition::Pushed) > GIB);
    }
}
