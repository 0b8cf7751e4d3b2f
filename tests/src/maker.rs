//! Somebody who signs events.

use grasp_core::service::npub;
use grasp_core::{RepoId, ServiceIdentity};
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::{Keys, PublicKey};
use nostr::types::Timestamp;

/// A person with a key and a clock of their own.
#[derive(Clone, Debug)]
pub struct Maker {
    keys: Keys,
    at: u64,
}

impl Maker {
    /// Somebody new, whose clock is right.
    pub fn new() -> Self {
        Self { keys: Keys::generate(), at: Timestamp::now().as_secs() }
    }

    /// The same person, that many seconds later.
    #[must_use]
    pub fn later(&self, seconds: u64) -> Self {
        Self { keys: self.keys.clone(), at: self.at + seconds }
    }

    /// The person's public key.
    pub fn key(&self) -> PublicKey {
        self.keys.public_key()
    }

    /// A repository of this person's.
    pub fn repo(&self, name: &str) -> RepoId {
        RepoId::new(self.key(), name.parse().expect("a legal name"))
    }

    /// Signs an event.
    pub fn sign(&self, kind: u16, content: &str, tags: &[&[&str]]) -> Event {
        let tags = tags.iter().map(|tag| Tag::parse(tag.iter().copied()).expect("a tag"));
        EventBuilder::new(Kind::from_u16(kind), content)
            .tags(tags)
            .custom_created_at(Timestamp::from_secs(self.at))
            .finalize(&self.keys)
            .expect("a key can sign")
    }

    /// Announces a repository that a service shall host.
    pub fn announce(&self, name: &str, on: &ServiceIdentity) -> Event {
        let clone = format!("http://{on}/{}/{name}.git", npub(&self.key()));
        let relay = format!("ws://{on}");
        self.sign(30617, "", &[&["d", name], &["clone", &clone], &["relays", &relay]])
    }

    /// Opens an issue.
    pub fn issue(&self, repo: &RepoId, text: &str) -> Event {
        self.sign(1621, text, &[&["a", &repo.to_string()]])
    }
}

impl Default for Maker {
    fn default() -> Self {
        Self::new()
    }
}
