//! The server as its administration sees it.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use grasp_core::admission::Policy;
use grasp_core::policy::PolicySubject;
use grasp_core::quota::QuotaSubject;
use grasp_core::service::{Endpoint, npub};
use grasp_core::{Identifier, RepoId, kinds};
use nostr::filter::{Filter, SingleLetterTag};
use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;

use super::Overview;
use crate::instance::server::CommonParts;
use crate::management::rules::{RepoQuery, RepoState};
use crate::management::{ChangeTarget, Footprint, ManagedServer};
use crate::store::policy::HeldRepo;
use crate::web::figures::RepositoryRow;

/// Repositories on a page, unless another number is wanted.
const PAGE: usize = 100;

/// Most repositories on a page.
const MAX_PAGE: usize = 500;

/// Lookups of repositories at the same time.
static LOOKUPS: Semaphore = Semaphore::const_new(2);

/// A page of repositories, those with most git data first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RepoPage {
    pub(crate) repos: Vec<ManagedRepo>,
    /// The last repository, if there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<RepoId>,
}

/// A repository, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ManagedRepo {
    pub(crate) repo: RepoId,
    /// The display name.
    pub(crate) name: String,
    /// Bytes of git data.
    pub(crate) bytes: u64,
    /// Branches and tags.
    pub(crate) refs: u64,
    /// The date of the newest announcement or state.
    pub(crate) active_at: u64,
    pub(crate) state: RepoState,
    /// The time until which a held one can be restored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) until: Option<u64>,
}

impl ManagedRepo {
    fn new(repo: RepoId, state: RepoState) -> Self {
        Self {
            name: repo.identifier.to_string(),
            repo,
            bytes: 0,
            refs: 0,
            active_at: 0,
            state,
            until: None,
        }
    }

    fn matches(&self, query: &RepoQuery) -> bool {
        let is_owner = query.owner.is_none_or(|owner| owner == self.repo.owner);
        let is_state = query.state.is_none_or(|state| state == self.state);
        let has_text = query.query.as_ref().is_none_or(|text| {
            let text = text.to_lowercase();
            let owner = npub(&self.repo.owner);
            let texts = [self.name.as_str(), self.repo.identifier.as_str(), &owner];
            texts.iter().any(|of| of.to_lowercase().contains(&text))
        });
        is_owner && is_state && has_text
    }
}

/// All that is known of repositories.
struct Known<'a> {
    listed: Vec<RepositoryRow>,
    waiting: Vec<RepoId>,
    damaged: Vec<RepoId>,
    held: Vec<HeldRepo>,
    bytes: BTreeMap<RepoId, u64>,
    policy: &'a Policy,
}

impl Known<'_> {
    /// Returns all repositories in their states.
    fn repositories(self) -> Vec<ManagedRepo> {
        let mut rows: BTreeMap<RepoId, ManagedRepo> = BTreeMap::new();
        for repo in self.waiting {
            rows.insert(repo.clone(), ManagedRepo::new(repo, RepoState::Waiting));
        }
        for row in self.listed {
            let Some(repo) = repo_of(&row) else {
                continue;
            };
            let mut listed = ManagedRepo::new(repo.clone(), RepoState::Served);
            listed.name = row.name;
            listed.refs = row.refs;
            listed.active_at = row.active_at;
            rows.insert(repo, listed);
        }
        for repo in self.damaged {
            let row = rows.entry(repo.clone());
            let row = row.or_insert_with(|| ManagedRepo::new(repo, RepoState::Damaged));
            row.state = RepoState::Damaged;
        }
        for repo in self.bytes.keys().filter(|repo| self.policy.withholds(repo)) {
            let row = rows.entry(repo.clone());
            let row = row.or_insert_with(|| ManagedRepo::new(repo.clone(), RepoState::Held));
            row.state = RepoState::Held;
        }
        for held in self.held {
            let row = rows.entry(held.repo.clone());
            let row = row.or_insert_with(|| ManagedRepo::new(held.repo, RepoState::Held));
            row.state = RepoState::Held;
            row.until = Some(held.until.as_secs());
        }
        let mut repos: Vec<ManagedRepo> = rows.into_values().collect();
        for row in &mut repos {
            row.bytes = self.bytes.get(&row.repo).copied().unwrap_or_default();
        }
        repos.sort_by_key(|row| Reverse(row.bytes));
        repos
    }
}

/// Returns the page that is wanted of repositories.
fn page_of(mut repos: Vec<ManagedRepo>, query: &RepoQuery) -> RepoPage {
    repos.retain(|row| row.matches(query));
    if let Some(after) = &query.after {
        let last = repos.iter().position(|row| row.repo == *after);
        repos.drain(..last.map_or(0, |last| last + 1));
    }
    let limit = query.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
    let has_more = repos.len() > limit;
    repos.truncate(limit);
    let last = repos.last().filter(|_| has_more);
    RepoPage {
        next: last.map(|row| row.repo.clone()),
        repos,
    }
}

fn repo_of(row: &RepositoryRow) -> Option<RepoId> {
    let owner = PublicKey::parse(&row.owner).ok()?;
    let identifier: Identifier = row.identifier.parse().ok()?;
    Some(RepoId::new(owner, identifier))
}

fn failed(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Returns the repositories that an operator sees, or those of one owner, for which only that owner's are looked up: any
/// key may ask for its own.
async fn managed_repos(
    overview: &Overview,
    owner: Option<PublicKey>,
) -> Result<Vec<ManagedRepo>, String> {
    let _lookup = LOOKUPS.acquire().await.map_err(failed)?;
    let parts = overview.server()?;
    let base = &parts.base;
    let mut waiting = Vec::new();
    for row in parts.waiting().await? {
        let owner = PublicKey::parse(&row.owner).ok();
        let identifier: Option<Identifier> = row.identifier.parse().ok();
        waiting.extend(
            owner
                .zip(identifier)
                .map(|(owner, name)| RepoId::new(owner, name)),
        );
    }
    let damaged = parts.purgatory()?.damaged().into_iter();
    let damaged = damaged.filter(|it| it.endpoint == Endpoint::Repository);
    let policy = base.host.policy.now();
    let listed = match owner {
        Some(owner) => base.listing.of_owner(owner).await.map_err(failed)?.rows,
        None => base.listing.rows().await.map_err(failed)?.rows.clone(),
    };
    let known = Known {
        listed,
        waiting,
        damaged: damaged.map(|it| it.repo).collect(),
        held: base.policies.held_repos().await.map_err(failed)?,
        bytes: base.database.git_usage(owner).await.map_err(failed)?,
        policy: &policy,
    };
    Ok(known.repositories())
}

/// Returns the filters of the events that belong to a repository.
fn filters_of(repo: &RepoId) -> Vec<Filter> {
    let own = Filter::new()
        .author(repo.owner)
        .kinds([kinds::ANNOUNCEMENT, kinds::STATE])
        .identifier(repo.identifier.as_str());
    let naming = Filter::new().custom_tag(SingleLetterTag::LOWERCASE_A, repo.to_string());
    vec![own, naming]
}

async fn count(base: &CommonParts, filters: Vec<Filter>) -> Result<u64, String> {
    let now = base.host.clock.now().unix;
    base.host.store.count(filters, now).await.map_err(failed)
}

/// Returns the repositories that a change is about.
fn affected<'a>(repos: &'a [ManagedRepo], target: &ChangeTarget) -> Vec<&'a ManagedRepo> {
    let is_affected = |repo: &RepoId| match target {
        ChangeTarget::Entry(PolicySubject::BannedAuthor(key)) => repo.owner == *key,
        ChangeTarget::Entry(PolicySubject::BannedName(name)) => repo.identifier == *name,
        ChangeTarget::Entry(PolicySubject::BannedRepo(other)) | ChangeTarget::Repository(other) => {
            repo == other
        }
        ChangeTarget::Entry(_) => false,
    };
    let affected = repos.iter().filter(|row| is_affected(&row.repo));
    affected.collect()
}

async fn footprint(overview: &Overview, target: ChangeTarget) -> Result<Footprint, String> {
    let base = &overview.server()?.base;
    let mut footprint = Footprint::default();
    for row in affected(&managed_repos(overview, None).await?, &target) {
        footprint.repositories += 1;
        footprint.bytes += row.bytes;
        footprint.events += count(base, filters_of(&row.repo)).await?;
    }
    let signed = match target {
        ChangeTarget::Entry(PolicySubject::BannedAuthor(key)) => Filter::new().author(key),
        ChangeTarget::Entry(PolicySubject::BannedEvent(id)) => Filter::new().id(id),
        _ => return Ok(footprint),
    };
    let signed = count(base, vec![signed]).await?;
    footprint.events = footprint.events.max(signed);
    Ok(footprint)
}

fn json<T: Serialize>(value: T) -> Result<Value, String> {
    serde_json::to_value(value).map_err(failed)
}

impl ManagedServer for Overview {
    fn may_change(&self) -> Result<(), String> {
        self.server()?.purgatory().map(drop)
    }

    fn status(&self) -> BoxFuture<'_, Result<Value, String>> {
        async move { json(Self::status(self).await) }.boxed()
    }

    fn repositories(&self, query: RepoQuery) -> BoxFuture<'_, Result<Value, String>> {
        async move {
            let repos = managed_repos(self, query.owner).await?;
            json(page_of(repos, &query))
        }
        .boxed()
    }

    fn usage(&self, owner: Option<PublicKey>) -> BoxFuture<'_, Result<Value, String>> {
        async move { json(Self::usage(self, owner).await?) }.boxed()
    }

    fn set_quota(
        &self,
        subject: QuotaSubject,
        bytes: Option<u64>,
    ) -> BoxFuture<'_, Result<Value, String>> {
        async move { json(Self::set_quota(self, subject, bytes).await?) }.boxed()
    }

    fn repair(&self, repo: RepoId) -> BoxFuture<'_, Result<Value, String>> {
        async move { json(Self::repair(self, &repo).await?) }.boxed()
    }

    fn footprint(&self, target: ChangeTarget) -> BoxFuture<'_, Result<Footprint, String>> {
        async move { footprint(self, target).await }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use nostr::types::Timestamp;

    use super::*;

    fn repo(n: u8, name: &str) -> RepoId {
        let owner = PublicKey::from_byte_array([n; 32]);
        RepoId::new(owner, name.parse().unwrap())
    }

    fn listed(repo: &RepoId) -> RepositoryRow {
        RepositoryRow {
            owner: npub(&repo.owner),
            identifier: repo.identifier.to_string(),
            name: format!("The {}", repo.identifier),
            refs: 2,
            ..RepositoryRow::default()
        }
    }

    fn repositories() -> Vec<ManagedRepo> {
        let mut policy = Policy::new("grasp.example".parse().unwrap());
        policy.bans.names.insert("banned".parse().unwrap());
        let held = HeldRepo {
            repo: repo(1, "held"),
            reason: String::new(),
            actor: String::new(),
            since: Timestamp::from_secs(1),
            until: Timestamp::from_secs(90),
        };
        let known = Known {
            listed: vec![listed(&repo(1, "served")), listed(&repo(2, "damaged"))],
            waiting: vec![repo(1, "waiting"), repo(1, "served")],
            damaged: vec![repo(2, "damaged")],
            held: vec![held],
            bytes: [
                (repo(1, "served"), 10),
                (repo(1, "banned"), 30),
                (repo(1, "held"), 20),
                (repo(3, "nothing of it is served"), 99),
            ]
            .into(),
            policy: &policy,
        };
        known.repositories()
    }

    #[test]
    fn every_repository_has_one_state_and_those_with_most_data_are_first() {
        let rows = repositories();
        let shown: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.repo.identifier.as_str(),
                    row.state,
                    row.bytes,
                    row.until,
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("banned", RepoState::Held, 30, None),
                ("held", RepoState::Held, 20, Some(90)),
                ("served", RepoState::Served, 10, None),
                ("waiting", RepoState::Waiting, 0, None),
                ("damaged", RepoState::Damaged, 0, None),
            ]
        );
    }

    #[test]
    fn pages_continue_after_the_last_repository_and_are_filtered() {
        let names = |query: &RepoQuery| {
            let page = page_of(repositories(), query);
            let names = page.repos.iter().map(|row| row.repo.identifier.to_string());
            (names.collect::<Vec<_>>(), page.next)
        };
        let mut query = RepoQuery {
            limit: Some(3),
            ..RepoQuery::default()
        };
        let (first, next) = names(&query);
        assert_eq!(first, ["banned", "held", "served"]);
        query.after = next;
        let (second, next) = names(&query);
        assert_eq!(
            (second, next),
            (vec!["waiting".into(), "damaged".into()], None)
        );
        let by_text = |text: &str| RepoQuery {
            query: Some(text.into()),
            ..RepoQuery::default()
        };
        assert_eq!(names(&by_text("SERVED")).0, ["served"]);
        let owner = npub(&repo(2, "x").owner);
        assert_eq!(names(&by_text(&owner)).0, ["damaged"]);
        let held = RepoQuery {
            state: Some(RepoState::Held),
            owner: Some(repo(1, "x").owner),
            ..RepoQuery::default()
        };
        assert_eq!(names(&held).0, ["banned", "held"]);
    }
}
