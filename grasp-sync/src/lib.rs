//! Keeps a nostr relay complete: decides which other relay to ask for what and when, and asks (GRASP-02).
//!
//! A relay given to this crate ends up with every event that its repositories' other relays have: live as they
//! appear, older ones by set reconciliation (NIP-77) or by pages, under relays that flap, refuse, lie or say
//! nothing; and without ever being a bad guest.
//!
//! It stores nothing, and judges nothing: what is kept is for the local relay's own rules to say. It knows nothing
//! of git.
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
//! # What happens
//!
//! 1. The local relay's feed says which repositories and roots there are. After a short [window](engine::Config)
//!    the [index](grasp_core::sync::SyncIndex) says what that changes for which relay.
//! 2. A relay that is new is dialled. Once connected, everything wanted from it is listened to first
//!    (`limit: 0`), and fetched then, so that nothing falls between: announcements and states, what tags our
//!    repositories, what tags their roots.
//! 3. Each filter is a *job*: our inventory is compared with the relay's, and what is missing is fetched by id; or
//!    it is paged through until a page brings nothing. A job ends when everything that came was judged.
//! 4. Jobs of one batch confirm its repositories and roots together. Confirmed items are caught up with after a
//!    short absence, and fetched anew after a long one, and once a day.
//! 5. Whatever a relay refuses has a meaning ([`Refusal`](grasp_core::limits::Refusal)) and an answer to that:
//!    wait, ask for less, ask otherwise, or leave it alone for a day.
//!
//! # The engine in a loop
//!
//! The engine is pure: it is told what happened and answers with what to do. This is all there is to running it.
//!
//! ```
//! use grasp_core::{Mono, Now};
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
//!     relays: ["wss://other.example".parse()?].into(),
//!     level: SyncLevel::Full,
//! };
//! let accepted = Accepted { event: None, direct: true, change: Some(change) };
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
//! # What a driver owes
//!
//! - Every [`Output::Connect`](engine::Output::Connect) is answered once, under its name, and so is every
//!   [`Output::FetchInventory`](engine::Output::FetchInventory).
//! - What a relay says is told in its order. That events came is told at once, before they are verified; what
//!   became of each is told later, and for every one of them.
//! - Only texts that [`SubId`](engine::SubId) reads are subscriptions of ours. Only events that match their
//!   subscription are told of.
//!
//! # Invariants
//!
//! Every subscription ends by EOSE, CLOSED, loss or deadline, and its slot is freed once. No relay is sent more than
//! its budget, nor any request during its pause. Trouble with one relay delays no other. The same inputs and the
//! same seed give the same outputs. Bytes from a peer can neither panic the engine nor make it grow without bound.

#[cfg(feature = "driver")]
pub mod driver;
pub mod engine;
pub mod local;
#[cfg(feature = "driver")]
pub mod sidecar;

#[cfg(feature = "driver")]
pub use driver::{Roots, Settings, Syncer};
pub use local::LocalRelay;
#[cfg(feature = "driver")]
pub use sidecar::Sidecar;
