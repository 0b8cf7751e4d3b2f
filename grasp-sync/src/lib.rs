//! Keeps a nostr relay complete: decides which other relay to ask for what and when, and asks (GRASP-02).
//!
//! A relay given to this crate ends up with every event that its repositories' other relays have: new events live,
//! older ones by set reconciliation (NIP-77) or by pages; from relays that flap, refuse, forge or do not answer, and
//! within their limits.
//!
//! It stores and judges nothing: the local relay's own rules decide what is kept. It knows nothing of git.
//!
//! ```text
//!  local relay ──Accepted, FeedCaughtUp──▶ ┌────────────┐ ──FetchInventory, Reoffer──▶ local relay
//!              ──Inventory, Ingested─────▶ │            │
//!  sockets ──Connected, Heard, Disconnected▶│ SyncEngine │ ──Connect, Send, Disconnect──▶ sockets
//!  disk    ──Restored────────────────────▶ │            │ ──Persist──────────────────▶ disk
//!  timer   ──Tick────────────────────────▶ └────────────┘ ──Report───────────────────▶ log, metrics
//!                 next_deadline() ────────────────────────────────────────────────────▶ timer
//! ```
//!
//! # In a relay
//!
//! A relay implements [`SyncedRelay`], and starts a `Syncer` (feature `driver`) that keeps it complete:
//!
#![cfg_attr(feature = "driver", doc = "```no_run")]
#![cfg_attr(not(feature = "driver"), doc = "```ignore")]
//! use std::sync::Arc;
//! use grasp_sync::{Settings, SyncedRelay, Syncer};
//!
//! async fn keep_complete(relay: Arc<dyn SyncedRelay>) -> Result<Syncer, Box<dyn std::error::Error>> {
//!     let settings = Settings::new("relay.example.com".parse()?).with_bootstrap(["wss://other.example.com".parse()?]);
//!     let syncer = Syncer::start(relay, settings).await?;
//!     println!("complete: {}", syncer.until_complete().await.is_complete());
//!     Ok(syncer)
//! }
//! ```
//!
//! # Overview
//!
//! 1. The local relay's feed tells which repositories and roots there are. After a short [window](engine::Config) the
//!    [index](sync::SyncIndex) computes what that changes for each relay.
//! 2. A new relay is dialled. Once connected, everything wanted from it is subscribed to first (`limit: 0`) and
//!    fetched afterwards, so that no event is missed in between: announcements and states, events that tag our
//!    repositories, events that tag their roots.
//! 3. Each filter is a *job*: our inventory is compared with the relay's, and missing events are fetched by id; or
//!    the relay is paged until a page brings nothing new. A job ends when every event received was judged.
//! 4. The jobs of one batch confirm its repositories and roots together. Confirmed items are caught up with after a
//!    short absence, and fetched again after a long one and once a day.
//! 5. Every refusal of a relay has a meaning ([`Refusal`](limits::Refusal)) and a reaction: wait, ask for
//!    less, ask differently, or suspend the request for a day.
//!
//! # The engine in a loop
//!
//! The engine is pure: it takes what happened and returns what to do. This is a whole run of it, from an announcement here to
//! an event of another relay that is stored:
//!
//! ```
//! use std::collections::VecDeque;
//! use grasp_sync::core::nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use grasp_sync::core::nostr::key::Keys;
//! use grasp_sync::core::nostr::types::Timestamp;
//! use grasp_sync::core::{Mono, Now};
//! use grasp_sync::engine::{
//!     Accepted, Config, Delivered, Frame, Input, InventoryFailed, Judged, Outcome, Output, Places, RelayFacts,
//!     Report, Row, Said, SyncEngine, index_change,
//! };
//! use grasp_sync::sync::SyncLevel;
//!
//! // The local relay accepts a repository. The other relay that it names has an issue of it.
//! let keys = Keys::generate();
//! let announcement = EventBuilder::new(Kind::GitRepoAnnouncement, "")
//!     .tags([Tag::identifier("x"), Tag::parse(["relays", "wss://us.example", "wss://other.example"])?])
//!     .finalize(&keys)?;
//! let repo = format!("30617:{}:x", keys.public_key());
//! let issue = EventBuilder::new(Kind::GitIssue, "it fails").tag(Tag::parse(["a", &repo])?).finalize(&keys)?;
//! let accepted = Accepted {
//!     event: Some(announcement.id),
//!     is_uncounted: true,
//!     change: index_change(&announcement, SyncLevel::Full),
//! };
//!
//! let mut now = Now::new(Mono::ZERO, Timestamp::now());
//! let mut engine = SyncEngine::new(now, Config::new("us.example".parse()?));
//! let mut inputs = VecDeque::from([Input::Accepted(accepted), Input::FeedCaughtUp]);
//! let mut has_issue = false;
//! let mut stored = 0;
//! for _ in 0..100 {
//!     // A driver waits for whichever comes first: an input, or the deadline.
//!     let input = match inputs.pop_front() {
//!         Some(input) => input,
//!         None => {
//!             let Some(deadline) = engine.next_deadline() else { break };
//!             now = now.after(deadline - now.mono);
//!             Input::Tick
//!         }
//!     };
//!     for output in engine.handle(now, input) {
//!         // Nothing is waited for here. What comes of it will be an input.
//!         match output {
//!             Output::Connect { relay, conn, .. } => {
//!                 inputs.push_back(Input::Connected { relay, conn, address: None, facts: RelayFacts::default() });
//!             }
//!             // Without a list there is nothing to compare by NIP-77, so history is requested page by page.
//!             Output::FetchInventory { request, .. } => {
//!                 inputs.push_back(Input::Inventory { request, items: Err(InventoryFailed::TooLarge) });
//!             }
//!             // The relay answers a request: the issue if it matches, and the end of what is stored. `limit: 0` is live.
//!             Output::Send { relay, conn, frame: Frame::Subscribe { sub, filters, .. } } => {
//!                 let row = Row::of(&issue);
//!                 let places = Places::of(&filters, &issue);
//!                 let is_live = filters.iter().any(|filter| filter.limit == Some(0));
//!                 if !is_live && !places.is_empty() {
//!                     let said = Said::Delivered { sub, rows: vec![Delivered { row, places }] };
//!                     inputs.push_back(Input::Heard { relay: relay.clone(), conn, said });
//!                     // The local relay verifies the event, and judges it by its own rules.
//!                     let is_known = std::mem::replace(&mut has_issue, true);
//!                     let outcome = if is_known { Outcome::Known } else { Outcome::Stored };
//!                     let judged = vec![Judged { row, outcome }];
//!                     inputs.push_back(Input::Ingested { relay: relay.clone(), conn, sub, judged });
//!                 }
//!                 inputs.push_back(Input::Heard { relay, conn, said: Said::Eose { sub, hint: None } });
//!             }
//!             Output::Report(Report::Stored { count, .. }) => stored += count,
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!(stored, 2, "the announcement by a client, the issue by sync");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Duties of a driver
//!
//! - Every [`Output::Connect`](engine::Output::Connect) and every
//!   [`Output::FetchInventory`](engine::Output::FetchInventory) is answered exactly once, with its id.
//! - Messages of a relay are passed on in order. That events came is passed on at once, before they are verified; the
//!   judgement of each follows later.
//! - Only texts that [`SubId`](engine::SubId) parses are subscriptions of ours. Only events that match their
//!   subscription are passed on.
//!
//! # Invariants
//!
//! Every subscription ends by EOSE, CLOSED, loss or deadline, and its slot is freed once. No relay is sent more than
//! its budget, nor any request during its pause. Trouble with one relay delays no other. The same inputs and the
//! same seed give the same outputs. Bytes from a peer can neither panic the engine nor make it grow without bound.
// A table of cases in a test reads from top to bottom.
#![cfg_attr(test, allow(clippy::too_many_lines))]

#[cfg(feature = "nostr-database")]
pub mod database;
#[cfg(feature = "driver")]
pub mod driver;
pub mod engine;
pub mod limits;
pub mod local;
mod memory;
#[cfg(feature = "metrics")]
pub mod metrics;
pub mod outbox;
#[cfg(feature = "driver")]
pub mod sidecar;

#[cfg(feature = "driver")]
pub use driver::{Roots, Settings, Syncer};
#[doc(no_inline)]
pub use grasp_core as core;
#[doc(no_inline)]
pub use grasp_core::sync;
pub use local::SyncedRelay;
#[cfg(feature = "driver")]
pub use sidecar::Sidecar;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
