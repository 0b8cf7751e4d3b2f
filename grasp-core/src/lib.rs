//! The data types and rules of GRASP. No IO, no clock, no lock.
//!
//! ```text
//!   event ──▶ nip34 ──▶ admission::judge(policy, now, origin, event, facts) ──▶ stored | held | refused + OK text
//!   push  ──▶ push::CommandReader ──▶ push::authorise(request, view) ─────────▶ a verdict per ref
//!   announcements ──▶ MaintainerModel::maintainers ───────────────────────────▶ keys that may sign states
//!   answers of relays ──▶ limits ─────────────────────────────────────────────▶ time and size of the next request
//!   addresses in events ──▶ outbound::OutboundPolicy ─────────────────────────▶ addresses that may be contacted
//!   relay lists of users ──▶ outbox::RelayList, outbox::People ───────────────▶ relays to ask beside those of repositories
//!   stored events ──▶ sync::SyncIndex, sync::compute_actions ─────────────────▶ items to request from each relay
//! ```
//!
//! Everything here is a value, a function of values, or a small state machine that is given the time. Drivers in
//! other crates own sockets, clocks and databases. Input from a peer is untrusted until it is parsed into one of
//! these types.
//! ```
//! use grasp_core::{RelayUrl, RepoId, ServiceIdentity};
//! use grasp_core::nip34::Announcement;
//! use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let us: ServiceIdentity = "grasp.example".parse()?;
//! let alice = Keys::generate();
//! let repo = RepoId::new(alice.public_key(), "hello".parse()?);
//!
//! let event = EventBuilder::new(Kind::GitRepoAnnouncement, "")
//!     .tag(Tag::identifier("hello"))
//!     .tag(Tag::parse(["clone", &format!("https://grasp.example{}", us.repo_path(&repo))])?)
//!     .tag(Tag::parse(["relays", "wss://grasp.example", "wss://Other.example:443/"])?)
//!     .finalize(&alice)?;
//!
//! let announcement = Announcement::parse(&event)?;
//! assert_eq!(announcement.repo, repo);
//! assert!(announcement.lists(&us));
//! let others: Vec<&RelayUrl> = announcement.relays.iter().filter(|url| !us.is_own_url(url.as_str())).collect();
//! assert_eq!(others[0].as_str(), "wss://other.example");
//! # Ok(()) }
//! ```

pub mod admission;
pub mod deletion;
mod event;
pub mod http_auth;
pub mod in_step;
pub mod kinds;
pub mod limits;
pub mod maintainers;
pub mod neg;
pub mod nip34;
pub mod outbound;
pub mod outbox;
pub mod policy;
pub mod private;
pub mod push;
pub mod quota;
mod repo;
pub mod resources;
pub mod service;
pub mod sync;
#[cfg(test)]
#[path = "../tests/it/unsigned.rs"]
mod testing;
mod text;
pub mod threads;
mod time;

pub use nostr;

pub use event::{VerificationError, Verified, Version};
pub use maintainers::MaintainerModel;
pub use repo::{
    CloneUrl, Host, Identifier, Namespace, Oid, RefName, RelayUrl, RepoId, parse_coordinate,
};
pub use service::ServiceIdentity;
pub use text::ParseError;
pub use time::{Mono, Now};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
