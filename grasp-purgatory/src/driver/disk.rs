//! Limits of the git data that parties add to the disk in a day.
//!
//! Git data stays until nothing refers to it, so it is counted when it comes. Maintainers of a served repository may add
//! most; all others share less, and less still for one repository. What stays is limited by [quotas](super::QuotaAccount).
//!
//! What came is committed with the next change of purgatory, at the latest with the release that follows from it, and read
//! at the next start: the limits of authors, repositories and the server hold across restarts. Client networks are not
//! written to disk, so their shares begin anew, within what is left of the total.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::resources::{Bounds, Claimant, Meter};
use grasp_core::{Mono, Now, RepoId};
use nostr::types::Timestamp;
use parking_lot::Mutex;

use super::JOURNAL;
use crate::database::{
    ADDITIONS_KEPT, Addition, Commit, Committed, DataSource, Database, DatabaseError,
};

const GIB: u64 = 1 << 30;
const HOUR: u64 = 60 * 60;
const DAY: Duration = Duration::from_secs(24 * HOUR);

/// Additions that wait for a commit before one is made for them alone.
const MAX_UNSAVED: usize = 64;

/// Pushes of maintainers to served repositories.
const MAINTAINERS: Bounds = Bounds {
    total: 1 << 50,
    reserve: 0,
    per_author: 64 * GIB,
    smallest: 4 * GIB,
};

/// Pushes of others: new repositories, and pull requests.
const OTHERS: Bounds = Bounds {
    total: 32 * GIB,
    reserve: 0,
    per_author: 8 * GIB,
    smallest: 4 * GIB,
};

/// Fetches and copies because of events of others.
const HUNTED: Bounds = Bounds {
    total: 32 * GIB,
    reserve: 0,
    per_author: 4 * GIB,
    smallest: GIB,
};

/// Additions of others to one repository.
const REPOSITORY: Bounds = Bounds {
    total: 8 * GIB,
    reserve: 0,
    per_author: 4 * GIB,
    smallest: 2 * GIB,
};

/// Repositories that are counted one by one. Those beyond are bounded with all others.
const MAX_REPOS: usize = 10_000;

/// Bytes that were added in the last day. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct DiskBudget {
    spent: Arc<Mutex<Spent>>,
}

#[derive(Debug)]
struct Spent {
    maintainers: Meter,
    others: Meter,
    hunted: Meter,
    repos: BTreeMap<RepoId, Meter>,
    /// Additions that are in no commit yet: their bytes, by what else they are.
    unsaved: BTreeMap<Addition, u64>,
}

impl Default for Spent {
    fn default() -> Self {
        let meter = |bounds| Meter::new(bounds, DAY);
        Self {
            maintainers: meter(MAINTAINERS),
            others: meter(OTHERS),
            hunted: meter(HUNTED),
            repos: BTreeMap::new(),
            unsaved: BTreeMap::new(),
        }
    }
}

impl Spent {
    /// Returns the meter of a claimant for all repositories.
    fn meter(&mut self, claimant: &Claimant, source: DataSource) -> &mut Meter {
        match (claimant.has_authority, source) {
            (true, _) => &mut self.maintainers,
            (false, DataSource::Pushed) => &mut self.others,
            (false, DataSource::Hunted) => &mut self.hunted,
        }
    }

    fn charge(
        &mut self,
        at: Mono,
        repo: &RepoId,
        claimant: &Claimant,
        (source, bytes): (DataSource, u64),
    ) {
        self.meter(claimant, source).charge(at, claimant, bytes);
        if !claimant.has_authority {
            if let Some(meter) = self.repo(at, repo) {
                meter.charge(at, claimant, bytes);
            }
        }
    }

    /// Notes an addition for the next commit. More than a few wait only while the database cannot be written.
    fn note(&mut self, addition: Addition) {
        let key = Addition {
            bytes: 0,
            ..addition
        };
        if self.unsaved.len() < MAX_REPOS || self.unsaved.contains_key(&key) {
            let sum = self.unsaved.entry(key).or_default();
            *sum = sum.saturating_add(addition.bytes);
        }
    }

    /// Returns the meter of one repository for claimants without authority; `None` if too many are counted.
    fn repo(&mut self, now: Mono, repo: &RepoId) -> Option<&mut Meter> {
        if !self.repos.contains_key(repo) {
            if self.repos.len() >= MAX_REPOS {
                self.repos.retain(|_, meter| meter.usage(now).all > 0);
            }
            if self.repos.len() >= MAX_REPOS {
                return None;
            }
            self.repos.insert(repo.clone(), Meter::new(REPOSITORY, DAY));
        }
        self.repos.get_mut(repo)
    }
}

impl DiskBudget {
    /// Counts what came before the start, oldest first.
    pub(super) fn restore(&self, now: Now, additions: &[Addition]) {
        let mut spent = self.spent.lock();
        for Addition {
            at,
            repo,
            author,
            has_authority,
            source,
            bytes,
        } in additions
        {
            let age = Duration::from_secs(now.unix.as_secs().saturating_sub(at.as_secs()));
            let author = *author;
            let claimant = Claimant {
                network: None,
                author,
                has_authority: *has_authority,
            };
            spent.charge(shifted(now.mono) - age, repo, &claimant, (*source, *bytes));
        }
    }

    /// Takes the additions that are to be saved with a commit.
    fn take_unsaved(&self) -> Vec<Addition> {
        let unsaved = std::mem::take(&mut self.spent.lock().unsaved);
        unsaved
            .into_iter()
            .map(|(key, bytes)| Addition { bytes, ..key })
            .collect()
    }

    /// Returns whether so many additions wait that they get a commit of their own.
    pub(super) fn has_many_unsaved(&self) -> bool {
        self.spent.lock().unsaved.len() >= MAX_UNSAVED
    }

    /// Commits, together with the additions that are in no commit yet.
    pub(super) async fn commit(
        &self,
        database: &dyn Database,
        mut commit: Commit,
    ) -> Result<Committed, DatabaseError> {
        let additions = self.take_unsaved();
        commit.additions.clone_from(&additions);
        tracing::trace!(target: JOURNAL, records = commit.records.len(), "writing");
        let committed = database.commit(commit).await;
        if !matches!(committed, Ok(Committed::Done { .. })) {
            self.put_back(additions);
        }
        tracing::trace!(target: JOURNAL, "written");
        committed
    }

    /// Returns additions whose commit did not happen.
    fn put_back(&self, additions: Vec<Addition>) {
        let mut spent = self.spent.lock();
        additions
            .into_iter()
            .for_each(|addition| spent.note(addition));
    }

    /// Returns the bytes that a claimant may still add to a repository today.
    pub fn room(&self, now: Mono, repo: &RepoId, claimant: &Claimant, source: DataSource) -> u64 {
        let now = shifted(now);
        let mut spent = self.spent.lock();
        let room = spent.meter(claimant, source).room(now, claimant);
        if claimant.has_authority {
            return room;
        }
        let here = spent
            .repo(now, repo)
            .map_or(room, |meter| meter.room(now, claimant));
        room.min(here)
    }

    /// Counts the bytes that a claimant has added to a repository.
    pub fn charge(
        &self,
        now: Now,
        repo: &RepoId,
        claimant: &Claimant,
        (source, bytes): (DataSource, u64),
    ) {
        let secs = now.unix.as_secs();
        let addition = Addition {
            at: Timestamp::from_secs(secs - secs % HOUR),
            repo: repo.clone(),
            author: claimant.author,
            has_authority: claimant.has_authority,
            source,
            bytes,
        };
        let mut spent = self.spent.lock();
        spent.charge(shifted(now.mono), repo, claimant, (source, bytes));
        spent.note(addition);
    }
}

/// Returns a time of the meters: there is room before the start of the process for what came before it.
fn shifted(time: Mono) -> Mono {
    time + Duration::from_secs(ADDITIONS_KEPT)
}

#[cfg(test)]
mod tests {
    use nostr::key::PublicKey;

    use super::*;

    fn author(n: u8) -> Claimant {
        Claimant::default().signed_by(PublicKey::from_byte_array([n; 32]))
    }

    fn repo(owner: u8, identifier: &str) -> RepoId {
        RepoId::new(
            PublicKey::from_byte_array([owner; 32]),
            identifier.parse().unwrap(),
        )
    }

    fn at(secs: u64) -> Now {
        Now::new(
            Mono::from_secs(secs),
            Timestamp::from_secs(1_800_000_000 + secs),
        )
    }

    #[test]
    fn data_without_authority_is_bounded_by_repository_and_in_total_for_a_day() {
        let (budget, now) = (DiskBudget::default(), at(1));
        let (x, y) = (repo(1, "x"), repo(2, "x"));
        let room = |now: Now, repo, claimant: &Claimant| {
            budget.room(now.mono, repo, claimant, DataSource::Hunted)
        };
        let before = room(now, &x, &author(1).with_authority());
        let mut added = 0;
        for n in 1..=100 {
            let some = room(now, &x, &author(n));
            budget.charge(now, &x, &author(n), (DataSource::Hunted, some));
            added += some;
        }
        assert_eq!(added, REPOSITORY.total, "however many sign");
        assert_eq!(room(now, &x, &author(101)), 0);
        assert!(room(now, &y, &author(101)) > 0, "another owner of the name");
        assert_eq!(room(now, &x, &author(1).with_authority()), before);
        assert!(room(at(2 * 24 * HOUR), &x, &author(101)) > 0);
    }

    #[test]
    fn hunted_data_does_not_use_the_share_of_pushes() {
        let (budget, now) = (DiskBudget::default(), at(1));
        for n in 0..100 {
            let repo = repo(1, &n.to_string());
            let some = budget.room(now.mono, &repo, &author(n), DataSource::Hunted);
            budget.charge(now, &repo, &author(n), (DataSource::Hunted, some));
        }
        let x = repo(1, "x");
        assert_eq!(
            budget.room(now.mono, &x, &author(101), DataSource::Hunted),
            0
        );
        assert!(budget.room(now.mono, &x, &author(101), DataSource::Pushed) > GIB);
    }

    #[test]
    fn a_restart_restores_the_spent_amounts_and_their_age() {
        let (before, x) = (DiskBudget::default(), repo(1, "x"));
        before.charge(at(0), &x, &author(1), (DataSource::Pushed, GIB));
        before.charge(at(1), &x, &author(1), (DataSource::Pushed, 2 * GIB));
        before.charge(
            at(12 * HOUR),
            &x,
            &author(2).with_authority(),
            (DataSource::Pushed, GIB),
        );
        let saved = before.take_unsaved();
        assert_eq!(
            saved.iter().map(|it| it.bytes).collect::<Vec<_>>(),
            [3 * GIB, GIB]
        );
        assert!(before.take_unsaved().is_empty());
        let after = DiskBudget::default();
        // The process starts anew: its own clock begins at zero.
        let start = Now::new(Mono::ZERO, at(13 * HOUR).unix);
        after.restore(start, &saved);
        let room = |budget: &DiskBudget, mono: Mono| {
            let room = |who: &Claimant| budget.room(mono, &x, who, DataSource::Pushed);
            [
                room(&author(1)),
                room(&author(2)),
                room(&author(2).with_authority()),
            ]
        };
        assert_eq!(room(&after, start.mono), room(&before, at(13 * HOUR).mono));
        assert_eq!(room(&after, start.mono)[0], GIB, "of four in a repository");
        let fresh = room(&DiskBudget::default(), start.mono);
        let a_day_later = start.mono + Duration::from_secs(15 * HOUR);
        assert_eq!(
            room(&after, a_day_later)[..2],
            fresh[..2],
            "12 hours after the start and a step"
        );
    }
}
