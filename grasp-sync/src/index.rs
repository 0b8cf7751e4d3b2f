//! Decides which relay is asked for which events. Decides nothing about time, and sends nothing.
//!
//! ```text
//!   our own relay ──IndexChange──▶ ┌───────────┐ ──discovered, retired──▶ connect, disconnect
//!   accepts, holds, drops          │ SyncIndex │
//!                                  └───────────┘
//!                                        │ added   (derive_relay_targets computes the same from scratch)
//!                                        ▼
//!   pending batches ──▶ ┌─────────────────┐ ──items──▶ filters ──▶ pack_requests ──▶ REQ
//!   RelayState      ──▶ │ compute_actions │
//!                       └─────────────────┘
//! ```
//!
//! [`compute_actions`] is the only place that decides on new subscriptions: target − pending − confirmed. The items that
//! it returns become a batch, and are confirmed ([`RelayState::confirm`]) when that is complete.

mod coverage;
mod filters;
mod incremental;
mod items;
mod root;
mod state;

pub(crate) use self::coverage::ProvenItems;
pub use self::coverage::{CoverageSet, FilterHash, Proof, Proven};
pub use self::filters::{
    MAX_SHARED_VALUE_BYTES, RequestBudget, build_announcement_filter,
    build_layer2_and_layer3_filters, pack_requests, tagged_one_of_our_repo_event_filters,
    tagged_one_of_our_root_event_filters,
};
pub use self::incremental::{IndexChange, SyncDelta, SyncIndex};
pub use self::items::{
    PendingItems, RelaySyncNeeds, RepoSyncIndex, RepoSyncNeeds, SyncLevel, derive_relay_targets,
};
pub use self::root::{RootId, RootSet};
pub use self::state::{ConnectionStatus, History, RETENTION, RelayState, compute_actions};
