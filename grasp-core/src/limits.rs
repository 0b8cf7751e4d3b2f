//! Budgets, waits and refusals: the small machines that keep us a good guest.
//!
//! Each answers one question, from its own state and the `now` it is given. None opens, sleeps or
//! polls; a driver asks for the next deadline and comes back then.
//!
//! | question | machine |
//! |---|---|
//! | When may a peer that failed be tried again, and is it dead? | [`Backoff`] |
//! | May one more start happen in this minute? | [`RateWindow`] |
//! | Who may use this host now, and who is next in line? | [`Permits`] |
//! | How many requests are saved up? | [`TokenBucket`] |
//! | May this relay be asked now, after all that it refused? | [`Pace`] |
//! | Is there a subscription left on this connection, and for whom? | [`SlotLedger`] |
//! | Should the live subscriptions be rebuilt as fewer? | [`should_consolidate`] |
//! | Which page of history comes next, and is this the end? | [`Pager`] |
//! | What did the peer mean by that, and what now? | [`Refusal`] |
//! | What of a peer's words may enter a log? | [`PeerText`] |

mod admit;
mod backoff;
mod bucket;
mod consolidation;
mod ledger;
mod pace;
mod pager;
mod peer_text;
mod permit;
mod refusal;
mod window;

pub use admit::Admit;
pub use backoff::{Backoff, BackoffPolicy, BackoffSnapshot, Health};
pub use bucket::{Rate, TokenBucket};
pub use consolidation::{CONSOLIDATION_THRESHOLD, should_consolidate};
pub use ledger::{LedgerConfig, Slot, SlotClass, SlotLedger};
pub use pace::{Pace, PaceConfig};
pub use pager::{
    Ending, EoseHint, GapSecond, Next, PageRequest, Pager, PagerConfig, history_limit,
};
pub use peer_text::PeerText;
pub use permit::{Enqueued, Entry, Permit, PermitConfig, Permits};
pub use refusal::{Action, Heard, PARK, REQUEST_WATCHDOG, RETRY_DELAY, Refusal};
pub use window::RateWindow;

/// How long newly found repositories and roots are collected before they are acted on.
pub const DISCOVERY_WINDOW: std::time::Duration = std::time::Duration::from_secs(5);
