//! The members of a private service (GRASP-08), as all parts of a server see them at once.

use std::collections::BTreeSet;
use std::sync::Arc;

use grasp_core::private::PublicOrigin;
use nostr::key::PublicKey;
use tokio::sync::watch;

/// What a private service needs to recognize its members.
#[derive(Clone, Debug)]
pub struct Private {
    /// The members.
    pub members: Members,
    /// The scheme, host and port that authorizations of requests (NIP-98) must name.
    pub origin: PublicOrigin,
}

/// The owner of the list of members: each change is in force at once.
#[derive(Debug)]
pub struct MemberList(watch::Sender<Arc<BTreeSet<PublicKey>>>);

impl MemberList {
    /// Creates a list.
    pub fn new(members: BTreeSet<PublicKey>) -> Self {
        Self(watch::Sender::new(Arc::new(members)))
    }

    /// Replaces the list; returns whether it changed. Connections and requests of removed members end.
    pub fn replace(&self, members: BTreeSet<PublicKey>) -> bool {
        self.0.send_if_modified(|current| {
            let is_other = **current != members;
            if is_other {
                *current = Arc::new(members);
            }
            is_other
        })
    }

    /// Returns the list for reading.
    pub fn members(&self) -> Members {
        Members(self.0.subscribe())
    }
}

/// The members of a private service at this moment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Members(watch::Receiver<Arc<BTreeSet<PublicKey>>>);

impl Members {
    /// Returns all members.
    pub fn current(&self) -> Arc<BTreeSet<PublicKey>> {
        Arc::clone(&self.0.borrow())
    }

    /// Returns whether a key is one of a member.
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.0.borrow().contains(key)
    }

    /// Waits until a key is not one of a member any more.
    pub async fn until_removed(mut self, key: PublicKey) {
        // Without an owner the list does not change.
        if self
            .0
            .wait_for(|members| !members.contains(&key))
            .await
            .is_err()
        {
            std::future::pending().await
        }
    }
}

/// Notices each change of the members for one connection; never any at a public service.
#[derive(Debug)]
pub(crate) struct MemberChanges(Option<watch::Receiver<Arc<BTreeSet<PublicKey>>>>);

impl MemberChanges {
    pub(crate) fn of(private: Option<&Private>) -> Self {
        Self(private.map(|private| private.members.0.clone()))
    }

    /// Returns the members, if they changed since the last look.
    pub(crate) fn latest(&mut self) -> Option<Arc<BTreeSet<PublicKey>>> {
        let members = self.0.as_mut()?;
        let has_changed = members.has_changed().unwrap_or(false);
        has_changed.then(|| Arc::clone(&members.borrow_and_update()))
    }

    /// Waits for the next change.
    pub(crate) async fn next(&mut self) -> Arc<BTreeSet<PublicKey>> {
        let Some(members) = &mut self.0 else {
            return std::future::pending().await;
        };
        // Without an owner the list does not change.
        match members.changed().await {
            Ok(()) => Arc::clone(&members.borrow_and_update()),
            Err(_) => std::future::pending().await,
        }
    }
}
