//! The git data of owners and repositories, with what they may have.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::RepoId;
use grasp_core::http_auth::{HttpAuthRefusal, HttpAuthRule, PayloadRule, UrlRule, judge_header};
use grasp_core::quota::{QuotaSubject, Quotas};
use grasp_core::service::npub;
use grasp_purgatory::database::DatabaseError;
use nostr::key::PublicKey;

use super::Overview;
use crate::instance::server::CommonParts;
use crate::web::figures::{UsageReport, UsageRow};

/// How far the clock of a client may differ from that of the server.
const MAX_CLOCK_DIFFERENCE: Duration = Duration::from_secs(60);

/// Limits the rows of a report.
const MAX_ROWS: usize = 1_000;

impl Overview {
    /// Returns the key that authorized a `GET` of a path below the mount (NIP-98), whichever scheme its address has.
    pub(crate) fn authorized(
        &self,
        header: &str,
        path: &str,
    ) -> Result<PublicKey, HttpAuthRefusal> {
        let url = format!("{}{}", self.0.service, path);
        let now = self.0.clock.now().unix;
        let mut refusal = HttpAuthRefusal::Url;
        for scheme in ["https", "http"] {
            let address = format!("{scheme}://{url}");
            let rule = HttpAuthRule {
                method: "GET",
                url: UrlRule::Exactly(&address),
                payload: PayloadRule::Ignored,
                max_age: MAX_CLOCK_DIFFERENCE,
                max_ahead: MAX_CLOCK_DIFFERENCE,
            };
            match judge_header(header, &rule, now) {
                Ok(auth) => return Ok(auth.author),
                Err(HttpAuthRefusal::Url) => {}
                Err(other) => refusal = other,
            }
        }
        Err(refusal)
    }

    /// Returns the git data of an owner, then of each repository, those with most first.
    pub(crate) async fn usage_of(&self, owner: PublicKey) -> Result<Vec<UsageRow>, String> {
        let rows = rows_of(&self.server()?.base, owner).await;
        rows.map_err(|error| error.to_string())
    }

    /// Returns the git data of all owners, those with most first, or of one with its repositories.
    pub(crate) async fn usage(&self, owner: Option<PublicKey>) -> Result<UsageReport, String> {
        let report = read(&self.server()?.base, owner).await;
        report.map_err(|error| error.to_string())
    }

    /// Gives an owner or a repository a quota of its own, or takes it back. Returns what it has and may have then.
    pub(crate) async fn set_quota(
        &self,
        subject: QuotaSubject,
        bytes: Option<u64>,
    ) -> Result<UsageRow, String> {
        let parts = self.server()?;
        let set = parts.purgatory()?.quota().set(subject.clone(), bytes).await;
        set.map_err(|error| error.to_string())?;
        let row = row_of(&parts.base, &subject).await;
        row.map_err(|error| error.to_string())
    }
}

async fn row_of(base: &CommonParts, subject: &QuotaSubject) -> Result<UsageRow, DatabaseError> {
    let quotas = quotas(base).await?;
    let owner = match subject {
        QuotaSubject::Owner(owner) => *owner,
        QuotaSubject::Repository(repo) => repo.owner,
    };
    let usage = base.database.git_usage(Some(owner)).await?;
    Ok(match subject {
        QuotaSubject::Owner(_) => owner_row(owner, &usage, &quotas),
        QuotaSubject::Repository(repo) => {
            let bytes = usage.get(repo).copied().unwrap_or_default();
            repository_row(repo, bytes, &quotas)
        }
    })
}

/// Returns the quotas in force, also on a node that is not the writer.
async fn quotas(base: &CommonParts) -> Result<Quotas, DatabaseError> {
    let mut quotas = base.settings.quotas();
    quotas.overrides = base.database.quotas().await?;
    Ok(quotas)
}

async fn read(base: &CommonParts, owner: Option<PublicKey>) -> Result<UsageReport, DatabaseError> {
    let rows = match owner {
        Some(owner) => rows_of(base, owner).await?,
        None => rows_by_owner(base).await?,
    };
    let total_quota = base.settings.quotas().total_bytes;
    Ok(UsageReport {
        total_bytes: base.database.git_bytes().await?,
        total_quota: (total_quota < u64::MAX).then_some(total_quota),
        rows,
    })
}

/// Returns an owner, then the repositories, those with most first.
async fn rows_of(base: &CommonParts, owner: PublicKey) -> Result<Vec<UsageRow>, DatabaseError> {
    let quotas = quotas(base).await?;
    let usage = base.database.git_usage(Some(owner)).await?;
    let mut rows = Vec::new();
    for (repo, bytes) in &usage {
        rows.push(repository_row(repo, *bytes, &quotas));
    }
    rows.sort_by_key(|row| Reverse(row.bytes));
    rows.insert(0, owner_row(owner, &usage, &quotas));
    rows.truncate(MAX_ROWS);
    Ok(rows)
}

/// Returns all owners with git data, and those that were given a quota.
async fn rows_by_owner(base: &CommonParts) -> Result<Vec<UsageRow>, DatabaseError> {
    let quotas = quotas(base).await?;
    let mut owners: BTreeMap<PublicKey, BTreeMap<RepoId, u64>> = BTreeMap::new();
    for subject in quotas.overrides.keys() {
        if let QuotaSubject::Owner(owner) = subject {
            owners.insert(*owner, BTreeMap::new());
        }
    }
    for (repo, bytes) in base.database.git_usage(None).await? {
        owners.entry(repo.owner).or_default().insert(repo, bytes);
    }
    let mut rows = Vec::new();
    for (owner, usage) in owners {
        rows.push(owner_row(owner, &usage, &quotas));
    }
    rows.sort_by_key(|row| Reverse(row.bytes));
    rows.truncate(MAX_ROWS);
    Ok(rows)
}

fn owner_row(owner: PublicKey, usage: &BTreeMap<RepoId, u64>, quotas: &Quotas) -> UsageRow {
    UsageRow {
        owner: npub(&owner),
        repository: None,
        bytes: usage.values().sum(),
        quota: quotas.of_owner(owner),
        is_given: quotas.overrides.contains_key(&QuotaSubject::Owner(owner)),
        repositories: usage.len() as u64,
    }
}

fn repository_row(repo: &RepoId, bytes: u64, quotas: &Quotas) -> UsageRow {
    let subject = QuotaSubject::Repository(repo.clone());
    UsageRow {
        owner: npub(&repo.owner),
        repository: Some(repo.identifier.to_string()),
        bytes,
        quota: quotas.of_repository(repo),
        is_given: quotas.overrides.contains_key(&subject),
        repositories: 1,
    }
}
