//! Bounds on events that are welcome: of unknown authors, of one author, about one thing.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};

use grasp_core::admission::{Acceptance, ExceededLimit, Facts, FanOut, Origin, Rejection, Verdict};
use grasp_core::maintainers::maintainer_lists;
use grasp_core::nip34::repo_refs;
use grasp_core::{RepoId, kinds};
use nostr::event::Event;
use nostr::filter::Filter;

use super::Pipeline;
use crate::store::{self, StoreError};

/// Threads, and repositories, that are looked at to find out whether an author maintains what an event belongs to.
const MAX_LOOKED_AT: usize = 8;

impl Pipeline {
    /// Refuses an event that would be welcome if it were not one too many.
    pub(super) async fn within_bounds(
        &self,
        event: &Event,
        facts: &Facts,
        origin: &Origin,
        verdict: Verdict,
    ) -> Result<Verdict, StoreError> {
        let now = self.clock.now().mono;
        let is_unasked = kinds::UNCONDITIONAL_KINDS.contains(&event.kind)
            && verdict == Verdict::Accept(Acceptance::Related)
            && !facts.author_known
            && self.policy.operator != Some(event.pubkey);
        if is_unasked && !self.budgets.pay_unasked(now, event, origin) {
            return Ok(Verdict::Reject(Rejection::RateLimited));
        }
        if !verdict.counts_for_fan_out() {
            return Ok(verdict);
        }
        let mut admitted = self.fan_out().admit(now, event, &facts.named);
        // Only looked at when it matters: it takes reading.
        if admitted == Err(ExceededLimit::Root) && self.is_maintainers(event, facts, origin).await?
        {
            admitted = self.fan_out().admit_maintainer(now, event, &facts.named);
        }
        Ok(admitted.map_or(Verdict::Reject(Rejection::RateLimited), |()| verdict))
    }

    /// Whether an event is signed by a confirmed maintainer of a repository that it belongs to.
    async fn is_maintainers(
        &self,
        event: &Event,
        facts: &Facts,
        origin: &Origin,
    ) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let repos = self.repos_of(facts).await?;
        if repos.iter().any(|repo| repo.owner == event.pubkey) {
            return Ok(true);
        }
        for repo in repos {
            let read = store::announcements(&*self.store, [&repo.identifier], now.unix).await?;
            let bytes = read.iter().map(|(_, bytes)| bytes).sum();
            self.budgets.charge_reading(now.mono, bytes, origin);
            let maintainer_lists =
                maintainer_lists(read.iter().map(|(announcement, _)| announcement));
            if self.policy.model.maintainers(&repo.owner, &maintainer_lists).contains(&event.pubkey)
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The stored repositories that an event names, or that the threads belong to that it names.
    async fn repos_of(&self, facts: &Facts) -> Result<BTreeSet<RepoId>, StoreError> {
        let named = &facts.named;
        let mut repos: BTreeSet<RepoId> =
            named.coordinates.iter().filter_map(|at| RepoId::try_from(at).ok()).collect();
        let threads: Vec<_> = named.ids.iter().take(MAX_LOOKED_AT).copied().collect();
        if !threads.is_empty() {
            let filter = Filter::new().ids(threads);
            for thread in store::events(&*self.store, filter, self.clock.now().unix).await? {
                repos.extend(repo_refs(&thread));
            }
        }
        Ok(repos.into_iter().take(MAX_LOOKED_AT).collect())
    }

    fn fan_out(&self) -> MutexGuard<'_, FanOut> {
        self.fan_out.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
