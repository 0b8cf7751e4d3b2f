//! What the relay must know of the git half of the server.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use grasp_core::admission::{Hold, KnownAnnouncement, Origin};
use grasp_core::{Identifier, RepoId, Version};
use nostr::event::Event;

use crate::store::StoreError;

/// What the git half knows about an event and around it.
#[derive(Clone, Debug, Default)]
pub struct GitFacts {
    /// Whether this very event waits there.
    pub is_held: bool,
    /// Announcements with its identifier that wait there.
    pub announcements: Vec<KnownAnnouncement>,
    /// Whether a bound on what may wait is reached.
    pub over_quota: bool,
}

/// What became of an event that was to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// It waits, durably.
    Held,
    /// Newer versions of its author wait already.
    Superseded,
    /// There is no room to wait in.
    Full,
    /// There is nothing to wait for: it can be served.
    Servable,
    /// Its data was here: it is stored and told already.
    Released,
}

/// Where git data is, and where events wait for it.
pub trait GitSide: Send + Sync + 'static {
    /// What is known about an event.
    fn facts(&self, event: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>>;

    /// Keeps an event until its git data is here; resolves once that is durable.
    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        origin: Origin,
    ) -> BoxFuture<'_, Result<Kept, StoreError>>;

    /// Hears of an event that was stored, after it was.
    fn stored(&self, _event: Arc<Event>) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Hears under which repository names events were taken out of service, after they were.
    fn affected(&self, _names: BTreeSet<Identifier>) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Hears that an owner no longer asks us to host a repository.
    fn delisted(&self, _repo: RepoId, _by: Version) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// The git half of a server that hosts no git: no event waits for data that can never come.
#[derive(Clone, Copy, Debug, Default)]
pub struct RelayOnly;

impl GitSide for RelayOnly {
    fn facts(&self, _: Arc<Event>) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(std::future::ready(Ok(GitFacts::default())))
    }

    fn hold(&self, _: Arc<Event>, _: Hold, _: Origin) -> BoxFuture<'_, Result<Kept, StoreError>> {
        Box::pin(std::future::ready(Ok(Kept::Servable)))
    }
}
