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
//! The engine is pure: it takes what happened and returns what to do. This is all that is needed to run it:
//!
//! ```
//! use grasp_core::{Mono, Now, Version};
//! use grasp_core::nostr::event::EventId;
//! use grasp_core::nostr::types::Timestamp;
//! use grasp_core::sync::{IndexChange, SyncLevel};
//! use grasp_sync::engine::{Accepted, Config, Fault, Input, Output, SyncEngine};
//!
//! let mut now = Now::new(Mono::ZERO, Timestamp::from_secs(1_700_000_000));
//! let mut engine = SyncEngine::new(now, Config::new("us.example".parse()?));
//!
//! // The local relay accepts an announcement that names another relay.
//! let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
//! let change = IndexChange::Announced {
//!     repo: format!("30617:{owner}:grasp").parse()?,
//!     version: Version { created_at: now.unix, id: EventId::from_byte_array([7; 32]) },
//!     relays: ["wss://other.example".parse()?].into(),
//!     level: SyncLevel::Full,
//! };
//! let accepted = Accepted { event: None, is_uncounted: true, change: Some(change) };
//! let mut inputs = vec![Input::Accepted(accepted), Input::FeedCaughtUp];
//! let mut dialled = Vec::new();
//!
//! for _ in 0..20 {
//!     // A driver waits for whichever comes first: an input, or the deadline.
//!     let input = match inputs.pop() {
//!         Some(input) => input,
//!         None => {
//!             let Some(deadline) = engine.next_deadline() else { break };
//!             now = now.after(deadline - now.mono);
//!             Input::Tick
//!         }
//!     };
//!     for output in engine.handle(now, input) {
//!         // Nothing is waited for here. What comes of it will be an input.
//!         if let Output::Connect { relay, conn, .. } = output {
//!             dialled.push(now.mono);
//!             inputs.push(Input::ConnectFailed { relay, conn, why: Fault::Unreachable });
//!         }
//!     }
//! }
//! let waits: Vec<_> = dialled.windows(2).map(|pair| (pair[1] - pair[0]).as_secs()).collect();
//! assert_eq!(waits[..4], [5, 10, 20, 40]);
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
