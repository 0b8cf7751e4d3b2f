//! Decides which relay is asked for which events. Decides nothing about time, and sends nothing.
//!
//! ```text
//!   our own relay ──IndexChange──▶ ┌───────────┐ ──discovered, retired──▶ connect, disconnect
//!   accepts, holds, drops          │ SyncIndex │
//!                                  └───────────┘
//!                                        │ added   (derive_relay_targets computes the same from scratch)
//!                                        ▼
//!   PendingSyncIndex ──▶ ┌─────────────────┐ ──AddFilters──▶ filters ──▶ pack_requests ──▶ REQ
//!   RelaySyncIndex   ──▶ │ compute_actions │       │
//!                        └─────────────────┘       ▼ items
//!   PendingSyncIndex ◀── in progress ──────── PendingBatch ── completed: confirm ──▶ RelaySyncIndex
//! ```
//!
//! [`compute_actions`] is the only place that decides on new subscriptions: target − pending − confirmed.

mod actions;
mod budget;
mod chunk;
mod coverage;
mod filters;
mod incremental;
mod items;
mod pending;
mod root;
mod state;
mod targets;

pub use self::actions::{AddFilters, compute_actions};
pub use self::budget::RequestBudget;
pub use self::chunk::{MAX_SHARED_VALUE_BYTES, pack_requests};
pub use self::coverage::{Coverage, CoverageSet, FilterHash, Proof, Proven};
pub use self::filters::{
    build_announcement_filter, build_layer2_and_layer3_filters, build_state_filters, live,
    tagged_one_of_our_repo_event_filters, tagged_one_of_our_root_event_filters,
};
pub use self::incremental::{IndexChange, SyncDelta, SyncIndex};
pub use self::items::{RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds, SyncLevel};
pub use self::pending::{
    BatchId, BatchProgress, PartId, PendingBatch, PendingItems, PendingSyncIndex, SyncMethod,
};
pub use self::root::{RootId, RootSet};
pub use self::state::{ConnectionStatus, History, RETENTION, RelayState, RelaySyncIndex, Resume};
pub use self::targets::derive_relay_targets;
