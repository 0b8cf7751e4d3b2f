//! Carrying out the policy upon what is stored: what it hides goes out of service, and what it no longer hides comes back.
//!
//! The difference between the policy and what is hidden is the work, so that a process that ended in the middle of it, or
//! settings that changed meanwhile, need no record of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use grasp_core::admission::Policy;
use grasp_core::nip34::Announcement;
use grasp_core::policy::HiddenCause;
use grasp_core::service::Endpoint;
use grasp_core::{RepoId, kinds};
use nostr::event::EventId;
use nostr::filter::Filter;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::{LivePolicy, PolicyOwner};
use crate::clock::Clock;
use crate::ingest::GitBackend;
use crate::nostr::Hub;
use crate::store::{Store, StoreError};

/// The time for which hidden events can be restored.
pub const KEEP_HIDDEN: Duration = Duration::from_secs(90 * 24 * 60 * 60);

/// The time after which the stored events are looked at once more: some were judged by the policy before.
pub(super) const SECOND_LOOK: Duration = Duration::from_secs(5);

/// The time after a failure.
pub(super) const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Authors who list the owner of a repository, looked at for one repository.
const MAX_LISTING: usize = 100;

/// Authors that are looked for at once.
const AUTHORS_AT_ONCE: usize = 500;

/// Hides and restores stored events, as long as this process is the writer.
pub struct Enforcer {
    /// The store of the events.
    pub store: Arc<dyn Store>,
    /// The policy, which is read again once a cause is over.
    pub policy: Arc<PolicyOwner>,
    /// Publishes what is restored, and tells what is hidden.
    pub hub: Hub,
    /// Is told of the repositories whose events are hidden or restored.
    pub git: Arc<dyn GitBackend>,
    /// The clock of the server.
    pub clock: Clock,
}

impl Enforcer {
    /// Enforces the policy and each change of it, and follows what is announced, for as long as it is polled.
    pub async fn run(self) {
        tokio::join!(self.enforce_changes(), self.follow_announcements());
    }

    /// Enforces the policy and each change of it.
    async fn enforce_changes(&self) {
        let mut live = self.policy.live();
        let mut enforced = Enforced::default();
        loop {
            let policy = live.latest();
            if let Err(error) = self.enforce(&mut enforced).await {
                tracing::warn!(%error, "could not hide or restore events; trying again");
                tokio::time::sleep(RETRY_DELAY).await;
                continue;
            }
            tokio::select! {
                _ = live.next() => continue,
                () = tokio::time::sleep(SECOND_LOOK) => {}
            }
            match self.enforce(&mut enforced).await {
                Ok(()) => {
                    // A change during the look may have ended a cause that holds again now.
                    if Arc::ptr_eq(&policy, &live.now()) {
                        enforced = Enforced::of(policy);
                    }
                    let _ = live.next().await;
                }
                Err(error) => {
                    tracing::warn!(%error, "could not hide or restore events; trying again")
                }
            }
        }
    }

    /// Brings what is stored in line with the policy, but for what was enforced before. From that it drops what holds no
    /// longer: if it is decided again, it is enforced again.
    pub async fn enforce(&self, before: &mut Enforced) -> Result<(), StoreError> {
        let live = &self.policy.live();
        before.narrow(&live.now());
        for cause in self.store.hidden_causes().await? {
            self.restore(cause, live, before).await?;
        }
        let policy = live.now();
        before.narrow(&policy);
        let authors = policy.bans.authors.difference(&before.authors);
        let authors: Vec<_> = authors.copied().collect();
        for authors in authors.chunks(AUTHORS_AT_ONCE) {
            for author in self.present(authors).await? {
                self.hide(HiddenCause::Author(author), live).await?;
            }
        }
        for id in policy.bans.events.difference(&before.events) {
            self.hide(HiddenCause::Event(*id), live).await?;
        }
        if before.others.is_none() {
            self.hide_repositories(&policy, live).await?;
        }
        Ok(())
    }

    /// Returns those of these authors that have events here.
    async fn present(&self, authors: &[PublicKey]) -> Result<Vec<PublicKey>, StoreError> {
        let questions = authors
            .iter()
            .map(|author| vec![Filter::new().author(*author)]);
        let found = self.store.exists(questions.collect(), self.now()).await?;
        let present = authors.iter().zip(found).filter(|(_, found)| *found);
        Ok(present.map(|(author, _)| *author).collect())
    }

    /// Hides what repositories are that the policy withholds.
    async fn hide_repositories(
        &self,
        policy: &Policy,
        live: &LivePolicy,
    ) -> Result<(), StoreError> {
        let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
        let mut withheld = Vec::new();
        let mut found = self.store.query(announcements, self.now());
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                let Ok(announcement) = Announcement::parse(&stored.event()?) else {
                    continue;
                };
                if policy.upholds(&HiddenCause::Repo(announcement.repo.clone())) {
                    withheld.push(announcement.repo);
                }
            }
        }
        for repo in withheld {
            if !self.is_needed(policy, &repo).await? {
                self.hide(HiddenCause::Repo(repo), live).await?;
            }
        }
        Ok(())
    }

    /// Returns whether the announcement of a repository that is only not allowed is kept for the maintainer set of one that
    /// is, and lists its owner.
    async fn is_needed(&self, policy: &Policy, repo: &RepoId) -> Result<bool, StoreError> {
        if policy.bans.cover(repo) || policy.held.contains(repo) {
            return Ok(false);
        }
        let listing = self.store.listing(repo.clone(), MAX_LISTING).await?;
        let allowed = |key: &PublicKey| policy.allows(&RepoId::new(*key, repo.identifier.clone()));
        Ok(listing.iter().any(allowed))
    }

    /// Hides all that a cause hides, as long as it holds.
    async fn hide(&self, cause: HiddenCause, live: &LivePolicy) -> Result<(), StoreError> {
        loop {
            if !live.now().upholds(&cause) {
                return Ok(());
            }
            let now = self.now();
            let step = self
                .store
                .hide(cause.clone(), now + KEEP_HIDDEN, now)
                .await?;
            self.hub.publish_removed(step.removed).await;
            self.git.affected(step.affected).await;
            if step.is_done {
                return Ok(());
            }
        }
    }

    /// Restores all that a cause has hidden, unless it holds still.
    async fn restore(
        &self,
        cause: HiddenCause,
        live: &LivePolicy,
        before: &mut Enforced,
    ) -> Result<(), StoreError> {
        let mut affected = BTreeSet::new();
        loop {
            let policy = live.now();
            if policy.upholds(&cause) {
                break;
            }
            before.forget(&cause);
            let step = self.store.restore(cause.clone(), policy, self.now());
            let step = step.await?;
            for event in step.restored {
                self.hub.publish_stored(event).await;
            }
            self.hub.publish_removed(step.removed).await;
            affected.extend(step.affected);
            if step.is_done {
                self.policy.load(&*self.store).await?;
                affected.extend(self.withheld_by(&cause).await?);
                break;
            }
        }
        // The repositories are surveyed once they are not withheld any more.
        if !affected.is_empty() {
            self.git.affected(affected).await;
        }
        Ok(())
    }

    /// Returns the repositories that a cause withheld. Their authors may have deleted what they are made of meanwhile, so
    /// that none of it is restored.
    async fn withheld_by(&self, cause: &HiddenCause) -> Result<BTreeSet<RepoId>, StoreError> {
        let author = match cause {
            HiddenCause::Author(author) => author,
            HiddenCause::Repo(repo) => return Ok(BTreeSet::from([repo.clone()])),
            HiddenCause::Event(_) | HiddenCause::Unannounced(_) => return Ok(BTreeSet::new()),
        };
        let repos = self.store.repositories(Endpoint::Repository).await?;
        Ok(repos.into_iter().filter(|it| it.owner == *author).collect())
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now().unix
    }
}

/// What was carried out upon all that is stored, and holds since.
#[derive(Debug, Default)]
pub struct Enforced {
    authors: BTreeSet<PublicKey>,
    events: BTreeSet<EventId>,
    /// The policy whose decisions on other repositories were carried out.
    others: Option<Arc<Policy>>,
}

impl Enforced {
    /// Returns all that a policy decides.
    pub fn of(policy: Arc<Policy>) -> Self {
        Self {
            authors: policy.bans.authors.clone(),
            events: policy.bans.events.clone(),
            others: Some(policy),
        }
    }

    /// Forgets what a policy does not decide.
    fn narrow(&mut self, policy: &Policy) {
        self.authors.retain(|key| policy.bans.authors.contains(key));
        self.events.retain(|id| policy.bans.events.contains(id));
        self.others
            .take_if(|others| decides_on_others(others, policy));
    }

    /// Forgets a cause of which something is restored.
    fn forget(&mut self, cause: &HiddenCause) {
        match cause {
            HiddenCause::Author(key) => _ = self.authors.remove(key),
            HiddenCause::Event(id) => _ = self.events.remove(id),
            HiddenCause::Repo(_) => self.others = None,
            HiddenCause::Unannounced(_) => {}
        }
    }
}

/// Returns whether two policies may differ in the repositories that they withhold, beside those of banned authors.
fn decides_on_others(before: &Policy, policy: &Policy) -> bool {
    before.bans.repos != policy.bans.repos
        || before.bans.names != policy.bans.names
        || before.allowed != policy.allowed
        || before.held != policy.held
}
