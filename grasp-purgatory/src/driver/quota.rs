//! Quotas of git data as the writer keeps them: what is used, what is reserved, and what the operator gave.
//!
//! What is used is read from the database. A push reserves each byte before it is unpacked, so that concurrent pushes
//! count against each other, and keeps the reservation until its packs are committed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use grasp_core::quota::{GitUsage, QuotaExceeded, QuotaSubject, Quotas};
use grasp_core::resources::Claimant;
use grasp_core::{Mono, RepoId};
use parking_lot::Mutex;

use super::LocalRelay;
use crate::database::{Commit, Committed, Database, DatabaseError, QuotaChange};

/// Time after which the bytes of all repositories are counted again. In between, additions are added up.
const MAX_TOTAL_AGE: Duration = Duration::from_secs(60);

/// Times that usage is read again because a concurrent push ended meanwhile.
const MAX_REREADS: usize = 4;

/// The quotas of a server, and what is reserved of them. Clones share it.
#[derive(Clone)]
pub struct QuotaAccount {
    database: Arc<dyn Database>,
    relay: Arc<dyn LocalRelay>,
    book: Arc<Mutex<Book>>,
}

#[derive(Debug, Default)]
struct Book {
    quotas: Quotas,
    /// Bytes that pushes in progress have reserved, by repository.
    reserved: BTreeMap<RepoId, u64>,
    /// The number of reservations that ended. What they held is in the database then, if anything is.
    ended: u64,
    /// The bytes of all repositories, and when they were counted.
    total: Option<CountedTotal>,
}

#[derive(Clone, Copy, Debug)]
struct CountedTotal {
    at: Mono,
    bytes: u64,
}

impl Book {
    /// Returns what is used including what others have reserved.
    fn with_reserved(&self, repo: &RepoId, committed: GitUsage, own: u64) -> GitUsage {
        let mut used = committed;
        for (other, bytes) in &self.reserved {
            used.total += bytes;
            if other.owner == repo.owner {
                used.owner += bytes;
            }
            if other == repo {
                used.repository += bytes;
            }
        }
        GitUsage {
            repository: used.repository.saturating_sub(own),
            owner: used.owner.saturating_sub(own),
            total: used.total.saturating_sub(own),
        }
    }
}

impl QuotaAccount {
    pub(super) fn new(
        database: Arc<dyn Database>,
        relay: Arc<dyn LocalRelay>,
        quotas: Quotas,
    ) -> Self {
        let book = Book {
            quotas,
            ..Book::default()
        };
        Self {
            database,
            relay,
            book: Arc::new(Mutex::new(book)),
        }
    }

    /// Reads the quotas that the operator gave.
    pub(super) async fn restore(&self) -> Result<(), DatabaseError> {
        let overrides = self.database.quotas().await?;
        self.book.lock().quotas.overrides = overrides;
        Ok(())
    }

    /// Gives an owner or a repository a quota of its own, or takes it back. It holds from now on, and after a restart.
    pub async fn set(
        &self,
        subject: QuotaSubject,
        bytes: Option<u64>,
    ) -> Result<(), DatabaseError> {
        let change = QuotaChange {
            subject: subject.clone(),
            bytes,
        };
        let commit = Commit {
            quotas: vec![change],
            now: self.relay.now().unix,
            ..Commit::default()
        };
        let committed = self.database.commit(commit).await?;
        debug_assert!(matches!(committed, Committed::Done { .. }));
        let overrides = &mut self.book.lock().quotas.overrides;
        match bytes {
            Some(bytes) => overrides.insert(subject, bytes),
            None => overrides.remove(&subject),
        };
        Ok(())
    }

    /// Returns the quotas in force.
    pub fn quotas(&self) -> Quotas {
        self.book.lock().quotas.clone()
    }

    /// Returns the bytes that a claimant may still add to a repository, beside what is reserved.
    pub async fn room(&self, repo: &RepoId, claimant: &Claimant) -> Result<u64, DatabaseError> {
        let committed = self.committed(repo).await?;
        let book = self.book.lock();
        let used = book.with_reserved(repo, committed, 0);
        Ok(book.quotas.room(repo, claimant, used))
    }

    /// Returns a warning for the owner of a repository who has nearly used up a quota.
    pub async fn warning(&self, repo: &RepoId) -> Result<Option<String>, DatabaseError> {
        let committed = self.committed(repo).await?;
        Ok(self.book.lock().quotas.warning(repo, committed))
    }

    /// Opens a reservation of nothing yet for what a claimant adds to a repository.
    pub async fn open(
        &self,
        repo: &RepoId,
        claimant: Claimant,
    ) -> Result<Reservation, DatabaseError> {
        Ok(Reservation {
            account: self.clone(),
            committed: self.committed(repo).await?,
            repo: repo.clone(),
            claimant,
            bytes: 0,
        })
    }

    /// Notes bytes that were added to a repository.
    pub(super) fn added(&self, bytes: u64) {
        if let Some(total) = &mut self.book.lock().total {
            total.bytes = total.bytes.saturating_add(bytes);
        }
    }

    /// Returns what the database says.
    async fn committed(&self, repo: &RepoId) -> Result<GitUsage, DatabaseError> {
        let usage = self.database.git_usage(Some(repo.owner)).await?;
        Ok(GitUsage {
            repository: usage.get(repo).copied().unwrap_or_default(),
            owner: usage.values().sum(),
            total: self.total().await?,
        })
    }

    async fn total(&self) -> Result<u64, DatabaseError> {
        let at = self.relay.now().mono;
        let known = self.book.lock().total;
        if let Some(known) = known.filter(|known| at - known.at < MAX_TOTAL_AGE) {
            return Ok(known.bytes);
        }
        let bytes = self.database.git_bytes().await?;
        self.book.lock().total = Some(CountedTotal { at, bytes });
        Ok(bytes)
    }
}

/// Bytes that a push may add to a repository. Dropping it returns them.
pub struct Reservation {
    account: QuotaAccount,
    repo: RepoId,
    claimant: Claimant,
    /// What the database said when it was read last.
    committed: GitUsage,
    bytes: u64,
}

impl Reservation {
    /// Reserves this many bytes in all, if the quotas allow them.
    pub fn grow_to(&mut self, bytes: u64) -> Result<(), QuotaExceeded> {
        let mut book = self.account.book.lock();
        let used = book.with_reserved(&self.repo, self.committed, self.bytes);
        book.quotas.judge(&self.repo, &self.claimant, used, bytes)?;
        let reserved = book.reserved.entry(self.repo.clone()).or_default();
        *reserved = reserved.saturating_sub(self.bytes).saturating_add(bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Returns the bytes that are reserved.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reserves the bytes that are to be kept, upon what the database says now.
    pub async fn confirm(
        &mut self,
        bytes: u64,
    ) -> Result<Result<(), QuotaExceeded>, DatabaseError> {
        for _ in 0..MAX_REREADS {
            let before = self.account.book.lock().ended;
            self.committed = self.account.committed(&self.repo).await?;
            // What ended meanwhile may be missing from both sums.
            if self.account.book.lock().ended == before {
                break;
            }
        }
        Ok(self.grow_to(bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        let mut book = self.account.book.lock();
        book.ended += 1;
        if let Some(reserved) = book.reserved.get_mut(&self.repo) {
            *reserved = reserved.saturating_sub(self.bytes);
            if *reserved == 0 {
                book.reserved.remove(&self.repo);
            }
        }
    }
}
