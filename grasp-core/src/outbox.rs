//! The relays that users name as their own (NIP-65), and the users whose relays are asked (GRASP-03).
//!
//! ```text
//!   stored events ──▶ Fact ──▶ People ──▶ users who take part in served repositories
//!   relay list (kind 10002) ──▶ RelayList::parse ──▶ relays that may be asked
//! ```
//!
//! Anyone can publish a relay list with any addresses in it, so that only usable ones are kept, and few of them.
//!
//! ```
//! use std::collections::BTreeSet;
//! use grasp_core::outbound::OutboundPolicy;
//! use grasp_core::outbox::{Fact, RelayList, Named, People, ThreadNo};
//! use grasp_core::{RepoId, Version};
//! use nostr::event::{EventBuilder, EventId, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//! use nostr::types::Timestamp;
//!
//! let [owner, author, commenter] = [(); 3].map(|()| Keys::generate());
//! let repo: RepoId = format!("30617:{}:x", owner.public_key()).parse()?;
//! let [announcement, issue, comment] = [1, 2, 3].map(|n| EventId::from_byte_array([n; 32]));
//! let at = Timestamp::from_secs(1_700_000_000);
//!
//! // A comment on an issue that is not stored yet makes nobody take part.
//! let mut people = People::default();
//! people.apply(Fact::Announced {
//!     repo: repo.clone(),
//!     version: Version { created_at: at, id: announcement },
//!     maintainers: [owner.public_key()].into(),
//! });
//! people.apply(Fact::Descendant {
//!     id: comment,
//!     author: commenter.public_key(),
//!     coordinate: None,
//!     names: vec![Named::Event(issue)],
//! });
//! assert!(!people.is_eligible(&commenter.public_key()));
//!
//! // With the issue, both authors take part.
//! let changed = people.apply(Fact::Root { id: issue, author: author.public_key(), at, repos: vec![repo.clone()] });
//! assert_eq!(changed, [author.public_key(), commenter.public_key()].into());
//! assert!(people.is_eligible(&commenter.public_key()) && !people.has_root(&commenter.public_key()));
//! let thread: ThreadNo = people.threads_of(&commenter.public_key()).next().expect("that of the issue");
//! assert_eq!(people.root(thread), Some(issue));
//! assert!(people.descendants(thread).eq([comment]));
//!
//! // So the relay that the commenter writes to is asked for the rest of the thread.
//! let list = EventBuilder::new(Kind::RelayList, "")
//!     .tag(Tag::parse(["r", "wss://home.example.com", "write"])?)
//!     .finalize(&commenter)?;
//! let own = "us.example.com".parse()?;
//! let relays = RelayList::parse(&list, &own, OutboundPolicy::default(), &BTreeSet::new());
//! assert!(relays.of_participant().eq([&"wss://home.example.com".parse()?]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod fact;
mod people;
mod waiting;

use std::collections::BTreeSet;

use nostr::event::{Event, Kind};
use percent_encoding::percent_decode_str;

use crate::outbound::{OutboundPolicy, Provenance};
use crate::repo::UrlParts;
use crate::{RelayUrl, ServiceIdentity};

pub use self::fact::{Fact, Named};
pub use self::people::{People, ThreadNo};

/// A relay list (kind 10002, NIP-65): the relays of a user that may be asked.
///
/// ```
/// use std::collections::BTreeSet;
/// use grasp_core::outbound::OutboundPolicy;
/// use grasp_core::outbox::RelayList;
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
/// use nostr::key::Keys;
///
/// let event = EventBuilder::new(Kind::RelayList, "")
///     .tag(Tag::parse(["r", "wss://both.example.com"])?)
///     .tag(Tag::parse(["r", "wss://inbox.example.com", "read"])?)
///     .tag(Tag::parse(["r", "ws://127.0.0.1"])?)
///     .finalize(&Keys::generate())?;
/// let own = "us.example.com".parse()?;
/// let list = RelayList::parse(&event, &own, OutboundPolicy::default(), &BTreeSet::new());
/// assert_eq!(list.write, ["wss://both.example.com".parse()?]);
/// assert_eq!(list.read, ["wss://both.example.com".parse()?, "wss://inbox.example.com".parse()?]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RelayList {
    /// Relays that the user reads from: others send there what concerns the user.
    pub read: Vec<RelayUrl>,
    /// Relays that the user writes to.
    pub write: Vec<RelayUrl>,
}

impl RelayList {
    /// Relays per purpose that are kept.
    pub const MAX_PER_PURPOSE: usize = 4;

    /// Parses a relay list; relays that must not be asked are left out. The relays of the operator may be at any
    /// address, but are never this service itself.
    pub fn parse(
        event: &Event,
        own: &ServiceIdentity,
        outbound: OutboundPolicy,
        operator: &BTreeSet<RelayUrl>,
    ) -> Self {
        let mut list = Self::default();
        if event.kind != Kind::RelayList {
            return list;
        }
        for tag in event.tags.iter().filter(|tag| tag.kind() == "r") {
            if list.is_full() {
                break;
            }
            let mut values = tag.as_slice().iter().skip(1).map(String::as_str);
            let Some(text) = values.next() else {
                continue;
            };
            let is_read;
            let is_write;
            match values.next() {
                None | Some("") => {
                    is_read = true;
                    is_write = true;
                }
                Some("read") => {
                    is_read = true;
                    is_write = false;
                }
                Some("write") => {
                    is_read = false;
                    is_write = true;
                }
                Some(_) => continue,
            }
            let Some(relay) = usable(text, own, outbound, operator) else {
                continue;
            };
            if is_read {
                add(&mut list.read, &relay);
            }
            if is_write {
                add(&mut list.write, &relay);
            }
        }
        list
    }

    /// Returns the relays that may have the user's own events: those that the user writes to, then others, up to
    /// [`Self::MAX_PER_PURPOSE`].
    pub fn of_participant(&self) -> impl Iterator<Item = &RelayUrl> {
        let is_other = |relay: &&RelayUrl| !self.write.contains(relay);
        let others = self.read.iter().filter(is_other);
        self.write.iter().chain(others).take(Self::MAX_PER_PURPOSE)
    }

    /// Returns all relays, each once.
    pub fn all(&self) -> BTreeSet<&RelayUrl> {
        self.read.iter().chain(&self.write).collect()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.read.is_empty() && self.write.is_empty()
    }

    fn is_full(&self) -> bool {
        self.read.len() >= Self::MAX_PER_PURPOSE && self.write.len() >= Self::MAX_PER_PURPOSE
    }
}

fn add(relays: &mut Vec<RelayUrl>, relay: &RelayUrl) {
    if relays.len() < RelayList::MAX_PER_PURPOSE && !relays.contains(relay) {
        relays.push(relay.clone());
    }
}

/// Longest address in a list, as written.
const MAX_WRITTEN_BYTES: usize = 2_048;

/// Returns the relay of an address, if it may be asked.
fn usable(
    text: &str,
    own: &ServiceIdentity,
    outbound: OutboundPolicy,
    operator: &BTreeSet<RelayUrl>,
) -> Option<RelayUrl> {
    if text.len() > MAX_WRITTEN_BYTES {
        return None;
    }
    let relay: RelayUrl = text.parse().ok()?;
    if own.is_own_url(relay.as_str()) {
        return None;
    }
    if operator.contains(&relay) {
        return Some(relay);
    }
    let host = relay.host();
    let is_allowed = outbound.judge_host(Provenance::Event, &host).is_ok();
    let is_onion = host.name().ends_with(".onion");
    (is_allowed && !is_onion && !is_private_path(&relay)).then_some(relay)
}

/// Returns whether the path of a relay is one that relays make for a single user: with a key, with the name of a host,
/// or with a few words that nobody is meant to guess.
fn is_private_path(relay: &RelayUrl) -> bool {
    let Ok(parts) = UrlParts::parse(relay.as_str(), &["ws", "wss"]) else {
        return true;
    };
    let mut last = None;
    for segment in &parts.segments {
        let segment = percent_decode_str(segment).decode_utf8_lossy();
        let segment = segment.to_ascii_lowercase();
        let is_key = segment.len() == 64 && segment.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_key || segment == parts.host {
            return true;
        }
        last = Some(segment);
    }
    last.is_some_and(|segment| is_code_name(&segment))
}

/// Returns whether a path segment consists of one to three words of the table.
fn is_code_name(segment: &str) -> bool {
    let is_word = |word: &str| CODE_WORDS.binary_search(&word).is_ok();
    segment.split('-').count() <= 3 && segment.split('-').all(is_word)
}

/// Words that such relays make their paths of, sorted.
const CODE_WORDS: [&str; 52] = [
    "alpha", "anchor", "beacon", "bravo", "charlie", "cipher", "delta", "dynamo", "echo", "ember",
    "flint", "foxtrot", "glyph", "golf", "haven", "hotel", "india", "ivory", "jade", "juliet",
    "karma", "kilo", "lantern", "lima", "marble", "mike", "nexus", "november", "onyx", "oscar",
    "papa", "prism", "quartz", "quebec", "raven", "romeo", "sable", "sierra", "tango", "titan",
    "umbra", "uniform", "vertex", "victor", "warden", "whiskey", "xenon", "xray", "yankee",
    "yonder", "zenith", "zulu",
];

#[cfg(test)]
mod tests;
