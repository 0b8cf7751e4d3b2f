//! What to ask which relay for. Decides nothing about when, and sends nothing.
//!
//! ```text
//!  announcements, roots ──IndexChange──▶ ┌───────────┐   repository → relays, roots, level
//!  (from our own relay)                  │ SyncIndex │   relay → repositories
//!                                        └─────┬─────┘
//!     connect, disconnect  ◀─discovered, retired─┤ SyncDelta (derive_relay_targets, from scratch)
//!                                              ▼ added
//!  PendingSyncIndex, RelaySyncIndex ──▶ compute_actions ──▶ AddFilters ──filters──▶ pack_requests ──▶ REQ
//!         ▲                 ▲                                   │ items
//!         └── PendingBatch ◀┼───────────────────────────────────┘
//!                  └── EOSE, NEG ends: RelayState::confirm ──▶ Proof of coverage
//! ```
//!
//! [`compute_actions`] is the only place that decides on new subscriptions: target − pending − confirmed.

mod actions;
mod chunk;
mod coverage;
mod filters;
mod incremental;
mod index;
mod root;
mod targets;

pub use self::actions::{AddFilters, compute_actions};
pub use self::chunk::{MAX_SHARED_VALUE_BYTES, RequestBudget, pack_requests};
pub use self::coverage::{Coverage, CoverageSet, FilterHash, FilterHashError, Proof, Proven};
pub use self::filters::{
    build_announcement_filter, build_layer2_and_layer3_filters, build_state_filters, live,
    tagged_one_of_our_repo_event_filters, tagged_one_of_our_root_event_filters,
};
pub use self::incremental::{IndexChange, SyncDelta, SyncIndex};
pub use self::index::{
    BatchId, BatchProgress, ConnectionStatus, History, PendingBatch, PendingItems,
    PendingSyncIndex, RETENTION, RelayState, RelaySyncIndex, RelaySyncNeeds, RepoSyncIndex,
    RepoSyncNeeds, Resume, SyncLevel, SyncMethod,
};
pub use self::root::RootId;
pub use self::targets::derive_relay_targets;
