//! The keeper as the relay sees it.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use grasp_core::admission::{GitData, Hold, Needs, Origin};
use grasp_core::deletion::VanishScope;
use grasp_core::nip34::Announcement;
use grasp_core::{Identifier, RepoId, Version, kinds};
use grasp_purgatory::{Input, Kept as Purgatorial, Room};
use nostr::event::Event;

use super::{Gone, Keeper};
use crate::ingest::{GitFacts, GitSide, Kept};
use crate::store::StoreError;

impl From<Gone> for StoreError {
    fn from(_: Gone) -> Self {
        Self::Closed
    }
}

impl GitSide for Keeper {
    fn facts(&self, event: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(async move {
            if !waits_for_git(&event) {
                return Ok(GitFacts::default());
            }
            let identifier = Needs::of(&event).identifier;
            let facts = move |purgatory: &grasp_purgatory::Purgatory| GitFacts {
                is_held: purgatory.holds(&event.id),
                // Whatever speaks of git data goes through purgatory, which releases it at once if all is here.
                git: GitData::Missing,
                announcements: identifier.iter().flat_map(|i| purgatory.announcements(i)).collect(),
                states: identifier.iter().flat_map(|i| purgatory.states(i)).collect(),
                over_quota: purgatory.room_for(&event) == Room::Full,
            };
            Ok(self.ask(facts).await?)
        })
    }

    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> BoxFuture<'_, Result<Kept, StoreError>> {
        Box::pin(async move {
            Ok(match Self::hold(self, event, hold, origin).await? {
                Purgatorial::Held => Kept::Held,
                Purgatorial::Superseded => Kept::Superseded,
                Purgatorial::Full => Kept::Full,
                Purgatorial::Unreadable => Kept::Servable,
            })
        })
    }

    fn stored(&self, event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            if let Some(input) = self.consequence(event) {
                self.tell(input).await;
            }
        })
    }

    fn delisted(&self, repo: RepoId, by: Version) -> BoxFuture<'_, ()> {
        Box::pin(self.tell(Input::Delisted { repo, by }))
    }
}

impl Keeper {
    /// What a stored event means for what waits.
    fn consequence(&self, event: Arc<Event>) -> Option<Input> {
        if event.kind == kinds::ANNOUNCEMENT {
            let identifier: Identifier = Announcement::parse(&event).ok()?.repo.identifier;
            return Some(Input::Changed { identifier });
        }
        if event.kind == kinds::DELETION {
            return Some(Input::Deleted { request: event });
        }
        let vanishes =
            event.kind == kinds::VANISH && VanishScope::parse(&event).includes(&self.addresses());
        vanishes.then(|| Input::Vanished { author: event.pubkey, until: event.created_at })
    }
}

impl Keeper {
    /// The addresses by which a request to vanish may mean us.
    fn addresses(&self) -> Vec<nostr::types::RelayUrl> {
        let ours = [true, false].map(|secure| self.policy().service.relay_url(secure));
        let ours = ours.into_iter().flatten();
        ours.filter_map(|url| nostr::types::RelayUrl::parse(url.as_str()).ok()).collect()
    }
}

/// Whether an event of this kind may have to wait for git data.
fn waits_for_git(event: &Event) -> bool {
    let kind = event.kind;
    kind == kinds::ANNOUNCEMENT
        || kind == kinds::STATE
        || kind == kinds::PULL_REQUEST
        || kind == kinds::PULL_REQUEST_UPDATE
}
