//! Signed events of one author.

use std::time::Duration;

use grasp_core::nostr::event::{Event, EventBuilder, EventId, FinalizeEvent as _, Kind, Tag};
use grasp_core::nostr::key::Keys;
use grasp_core::nostr::types::Timestamp;
use grasp_core::{RelayUrl, RepoId};

use super::local::Local;

pub(crate) struct Author(pub(crate) Keys);

impl Author {
    pub(crate) fn new() -> Self {
        Self(Keys::generate())
    }

    pub(crate) fn repo(&self, name: &str) -> RepoId {
        RepoId::new(self.0.public_key(), name.parse().unwrap())
    }

    pub(crate) fn sign(&self, kind: Kind, content: &str, tags: &[&[&str]]) -> Event {
        self.sign_at(
            Timestamp::now() - Duration::from_secs(60),
            kind,
            content,
            tags,
        )
    }

    pub(crate) fn sign_at(
        &self,
        at: Timestamp,
        kind: Kind,
        content: &str,
        tags: &[&[&str]],
    ) -> Event {
        let tags = tags
            .iter()
            .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
        let event = EventBuilder::new(kind, content)
            .tags(tags)
            .custom_created_at(at);
        event.finalize(&self.0).unwrap()
    }

    /// Announces a repository that lists us and these relays.
    pub(crate) fn announcement(&self, name: &str, relays: &[&RelayUrl]) -> Event {
        let us = Local::us();
        let relays = relays.iter().map(|url| url.as_str());
        let relays: Vec<_> = ["relays", us.as_str()].into_iter().chain(relays).collect();
        self.sign(Kind::GitRepoAnnouncement, "", &[&["d", name], &relays])
    }

    pub(crate) fn issue(&self, repo: &RepoId, text: &str) -> Event {
        self.sign(Kind::GitIssue, text, &[&["a", &repo.to_string()]])
    }

    /// Returns an issue with a date.
    pub(crate) fn issue_at(&self, repo: &str, text: &str, at: u64) -> Event {
        EventBuilder::new(Kind::GitIssue, text)
            .tag(Tag::parse(["a", repo]).unwrap())
            .custom_created_at(Timestamp::from_secs(at))
            .finalize(&self.0)
            .unwrap()
    }

    pub(crate) fn comment(&self, root: EventId, text: &str) -> Event {
        self.sign(Kind::Comment, text, &[&["E", &root.to_hex()]])
    }
}
