//! What is done for every repository name now and then.

use std::collections::{BTreeSet, VecDeque};

use futures_util::TryStreamExt;
use grasp_core::nip34::Announcement;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Oid, kinds};
use grasp_purgatory::git::FamilyGuard;
use nostr::filter::Filter;

use super::git::KeepError;
use super::lane::Hands;

impl Hands {
    /// Every name that something is hosted under, on disk or by a stored announcement.
    pub(super) async fn names(&self) -> Option<VecDeque<Identifier>> {
        match self.try_names().await {
            Ok(names) => Some(names.into_iter().collect()),
            Err(error) => {
                tracing::warn!(%error, "could not find out what is hosted here");
                None
            }
        }
    }

    async fn try_names(&self) -> Result<BTreeSet<Identifier>, KeepError> {
        let mut names = BTreeSet::new();
        for store in self.stores() {
            names.extend(store.identifiers().await?);
        }
        let announcements = vec![Filter::new().kind(kinds::ANNOUNCEMENT)];
        let mut found = self.parts.store.query(announcements, self.parts.clock.now().unix);
        while let Some(chunk) = found.try_next().await? {
            for stored in chunk {
                let hosted = Announcement::parse(&stored.event()?).ok();
                let hosted = hosted.filter(|announcement| self.parts.policy.hosts(announcement));
                names.extend(hosted.map(|announcement| announcement.repo.identifier));
            }
        }
        Ok(names)
    }

    /// Forgets what was kept for long enough, and makes few packs of many. Objects that no view needs go, unless they
    /// are for something that is `waiting`, if anything is.
    pub(super) async fn tidy(&self, identifier: &Identifier, waiting: Option<BTreeSet<Oid>>) {
        if let Err(error) = self.try_tidy(identifier, waiting).await {
            tracing::warn!(%error, %identifier, "could not tidy up");
        }
    }

    async fn try_tidy(
        &self,
        identifier: &Identifier,
        waiting: Option<BTreeSet<Oid>>,
    ) -> Result<(), KeepError> {
        let now = self.parts.clock.now().unix;
        self.unrelated.forget(identifier);
        for (endpoint, store) in
            [Endpoint::Repository, Endpoint::PullRequests].into_iter().zip(self.stores())
        {
            if let Err(error) = self.damage.inspect((endpoint, store), identifier, false).await {
                tracing::warn!(%error, %identifier, "could not look for damage");
            }
            let mut guard = store.lock(identifier).await?;
            guard.forget_old_tips(now).await?;
            self.forget_vanished(&mut guard).await?;
            guard.forget_retired(now).await?;
            if waiting.is_none() {
                guard.remove_if_deserted().await?;
            }
            if guard.compact().await? {
                tracing::debug!(%identifier, "made few packs of many");
            }
            drop(guard);
            if store.collect(identifier, &waiting.clone().unwrap_or_default(), now).await? {
                tracing::debug!(%identifier, "removed objects that nothing refers to");
            }
        }
        Ok(())
    }

    /// Forgets what was retired by those who have vanished since.
    async fn forget_vanished(&self, guard: &mut FamilyGuard) -> Result<(), KeepError> {
        for owner in guard.retired_owners().await? {
            if self.has_vanished(&owner).await? {
                guard.forget_retired_of(&owner).await?;
            }
        }
        Ok(())
    }
}
