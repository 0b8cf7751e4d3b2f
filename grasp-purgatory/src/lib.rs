//! Holds nostr events until their git data is here, and goes and gets that data.
//!
//! It knows no sockets of nostr clients and stores no event that is served: those belong to the relay around it.
//!
//! ```text
//!   relay   ──Held──────▶ ┌───────────┐ ──Store, Publish──▶ relay     events whose refs are set
//!   git     ──Surveyed──▶ │ Purgatory │ ──Apply───────────▶ git       refs, HEAD, views, staging
//!   hunter  ──Changed───▶ │           │ ──Hunt────────────▶ hunter    go and get it
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
    Bound, Chore, Config, Counts, Input, Kept, KeptProposal, Output, Pass, Phase, ProposalRef,
    Purgatory, PushTarget, Report, Room, Stage, Survey, ViewTarget, Want, Why, some_places,
};
