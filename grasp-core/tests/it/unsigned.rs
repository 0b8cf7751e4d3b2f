//! Unsigned events for tests of the rules, which do not check signatures.

use nostr::event::{Event, EventId, Kind, Signature, Tag};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

/// Returns a public key whose bytes are all `n`.
pub(crate) fn key(n: u8) -> PublicKey {
    PublicKey::from_byte_array([n; 32])
}

/// A builder of events without a signature.
pub(crate) struct Unsigned {
    kind: u16,
    at: u64,
    id: u8,
    tags: Vec<Tag>,
    content: String,
}

impl Unsigned {
    pub(crate) fn kind(kind: u16) -> Self {
        Self {
            kind,
            at: 1_000,
            id: 1,
            tags: Vec::new(),
            content: String::new(),
        }
    }

    pub(crate) fn tags(mut self, tags: &[&[&str]]) -> Self {
        self.tags.extend(
            tags.iter()
                .map(|tag| Tag::parse(tag.iter().copied()).unwrap()),
        );
        self
    }

    pub(crate) fn content(mut self, content: &str) -> Self {
        content.clone_into(&mut self.content);
        self
    }

    pub(crate) fn at(mut self, seconds: u64) -> Self {
        self.at = seconds;
        self
    }

    pub(crate) fn id(mut self, n: u8) -> Self {
        self.id = n;
        self
    }

    pub(crate) fn by(self, author: PublicKey) -> Event {
        let id = EventId::from_slice(&[self.id; 32]).unwrap();
        let sig = Signature::from_slice(&[0; 64]).unwrap();
        let at = Timestamp::from_secs(self.at);
        Event::new(
            id,
            author,
            at,
            Kind::from_u16(self.kind),
            self.tags,
            self.content,
            sig,
        )
    }
}
