//! Holds nostr events until their git data is here, and fetches that data from other servers.
//!
//! Connections of nostr clients and the store of served events belong to the relay around it.
//!
//! ```text
//!   relay   ──Held──────▶ ┌───────────┐ ──Publish─────────▶ relay     events whose refs are set
//!   git     ──Surveyed──▶ │ Purgatory │ ──Release─────────▶ database  refs, HEAD and events together
//!   hunt    ──Changed───▶ │           │ ──Hunt────────────▶ hunt      fetch it
//!   timer   ──Tick──────▶ └───────────┘ ──Journal─────────▶ database  before any of the others
//!                 next_deadline() ────────────────────────▶ timer
//! ```
// A table of cases in a test reads from top to bottom.
#![cfg_attr(test, allow(clippy::too_many_lines))]

#[cfg(feature = "driver")]
mod active_work;
#[cfg(feature = "driver")]
pub mod database;
#[cfg(feature = "driver")]
pub mod driver;
#[cfg(feature = "driver")]
pub mod git;
#[cfg(feature = "driver")]
pub mod hunt;
pub mod purgatory;
#[cfg(feature = "driver")]
pub mod resources;

pub use purgatory::{
    Bound, CleanupTask, Config, Counts, HeldFor, HoldOutcome, Input, Output, Outputs, Phase,
    ProposalRef, Purgatory, PushTarget, Record, RefsTarget, Stage, StateTarget, Survey,
    SurveyedLead, SurveyedView, WakeCause, Want, select_addresses,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
