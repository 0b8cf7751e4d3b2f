//! Holds nostr events until their git data is here, and fetches that data from other servers.
//!
//! Connections of nostr clients and the store of served events belong to the relay around it.
//!
//! ```text
//!   relay   ──Held──────▶ ┌───────────┐ ──Store, Publish──▶ relay     events whose refs are set
//!   git     ──Surveyed──▶ │ Purgatory │ ──Apply───────────▶ git       refs, HEAD, views, staging
//!   hunter  ──Changed───▶ │           │ ──Hunt────────────▶ hunter    fetch it
//!   timer   ──Tick──────▶ └───────────┘ ──Journal─────────▶ disk      before any of the others
//!                 next_deadline() ────────────────────────▶ timer
//! ```

#[cfg(feature = "driver")]
pub mod git;
pub mod hunt;
pub mod journal;
pub mod purgatory;
#[cfg(feature = "driver")]
pub mod resources;

pub use purgatory::{
    Bound, CleanupTask, Config, Counts, EndReason, HeldProposal, HoldOutcome, Input, Output,
    PassNumber, Phase, ProposalRef, Purgatory, PushTarget, Report, Stage, Survey, ViewTarget, Want,
    select_addresses,
};
