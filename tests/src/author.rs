//! Authors of events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use grasp_core::{RepoId, ServiceIdentity};
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::{Keys, PublicKey};
use nostr::types::Timestamp;

/// A key that signs events, with a clock of its own.
#[derive(Clone, Debug)]
pub struct Author {
    keys: Keys,
    at: u64,
}

impl Author {
    /// Creates an author with a new key and the present time.
    pub fn new() -> Self {
        Self {
            keys: Keys::generate(),
            at: Timestamp::now().as_secs(),
        }
    }

    /// Returns the same author, this number of seconds later.
    #[must_use]
    pub fn later(&self, seconds: u64) -> Self {
        Self {
            keys: self.keys.clone(),
            at: self.at + seconds,
        }
    }

    /// Returns the same author, this number of seconds earlier.
    #[must_use]
    pub fn earlier(&self, seconds: u64) -> Self {
        Self {
            keys: self.keys.clone(),
            at: self.at - seconds,
        }
    }

    /// Returns the same author at this second.
    #[must_use]
    pub fn at(&self, at: u64) -> Self {
        Self {
            keys: self.keys.clone(),
            at,
        }
    }

    /// Returns the public key.
    pub fn key(&self) -> PublicKey {
        self.keys.public_key()
    }

    /// Returns the id of a repository of this owner.
    pub fn repo(&self, name: &str) -> RepoId {
        RepoId::new(self.key(), name.parse().expect("a valid identifier"))
    }

    /// Signs an event.
    pub fn sign(&self, kind: u16, content: &str, tags: &[&[&str]]) -> Event {
        let tags = tags
            .iter()
            .map(|tag| Tag::parse(tag.iter().copied()).expect("a tag"));
        EventBuilder::new(Kind::from_u16(kind), content)
            .tags(tags)
            .custom_created_at(Timestamp::from_secs(self.at))
            .finalize(&self.keys)
            .expect("a key can sign")
    }

    /// Announces a repository on one service.
    pub fn announce(&self, name: &str, on: &ServiceIdentity) -> Event {
        self.announce_with(name, on, &[])
    }

    /// Announces a repository on several services.
    pub fn announce_on(&self, name: &str, services: &[ServiceIdentity]) -> Event {
        let clone: Vec<_> = services.iter().map(|on| self.clone_url(name, on)).collect();
        let relays: Vec<_> = services.iter().map(|on| format!("ws://{on}")).collect();
        let clone: Vec<_> = ["clone"]
            .into_iter()
            .chain(clone.iter().map(String::as_str))
            .collect();
        let relays: Vec<_> = ["relays"]
            .into_iter()
            .chain(relays.iter().map(String::as_str))
            .collect();
        self.sign(30617, "", &[&["d", name], &clone, &relays])
    }

    /// Announces a repository with further tags.
    pub fn announce_with(&self, name: &str, on: &ServiceIdentity, more: &[&[&str]]) -> Event {
        let clone = self.clone_url(name, on);
        let relay = format!("ws://{on}");
        let own: [&[&str]; 3] = [&["d", name], &["clone", &clone], &["relays", &relay]];
        self.sign(30617, "", &[&own, more].concat())
    }

    /// Returns the value of an `Authorization` header for git at a URL (NIP-98), signed now.
    pub fn authorization(&self, url: &str) -> String {
        self.authorization_at(url, Timestamp::now().as_secs())
    }

    /// Returns such a value that was signed at this second.
    pub fn authorization_at(&self, url: &str, at: u64) -> String {
        let event = self
            .at(at)
            .sign(27_235, "", &[&["u", url], &["method", "GET"]]);
        format!("Nostr {}", STANDARD.encode(event.as_json()))
    }

    fn clone_url(&self, name: &str, on: &ServiceIdentity) -> String {
        let path = on.repo_path(&self.repo(name));
        let below = path.strip_prefix(&on.mount_path()).unwrap_or(&path);
        format!("http://{on}{below}")
    }

    /// Signs a state; HEAD is `main` if that is among the refs.
    pub fn state(&self, name: &str, refs: &[(&str, &str)]) -> Event {
        let mut tags: Vec<Vec<&str>> = vec![vec!["d", name]];
        tags.extend(refs.iter().map(|(name, oid)| vec![*name, *oid]));
        if refs.iter().any(|(name, _)| *name == "refs/heads/main") {
            tags.push(vec!["HEAD", "ref: refs/heads/main"]);
        }
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        self.sign(30618, "", &tags)
    }

    /// Signs a pull request for a commit.
    pub fn pull_request(&self, repo: &RepoId, tip: &str) -> Event {
        self.sign(
            1618,
            "please pull",
            &[&["a", &repo.to_string()], &["c", tip]],
        )
    }

    /// Signs an issue.
    pub fn issue(&self, repo: &RepoId, text: &str) -> Event {
        self.sign(1621, text, &[&["a", &repo.to_string()]])
    }
}

impl Default for Author {
    fn default() -> Self {
        Self::new()
    }
}
