//! Limits for requests to other servers, and reactions to their refusals.
//!
//! Each type decides from its own state and the `now` that it is given. None opens, sleeps or polls; a driver
//! asks for the next deadline and calls again then.
//!
//! | type | decides |
//! |---|---|
//! | [`Backoff`] | when a failed peer may be tried again, and whether it is dead |
//! | [`RateWindow`] | starts per minute |
//! | [`Permits`] | concurrent uses and starts per minute of one host, with a fair queue |
//! | [`TokenBucket`] | a rate with bursts |
//! | [`Pace`] | the rate of requests to a relay, slower after refusals |
//! | [`SlotLedger`] | the subscriptions on one connection |
//! | [`should_consolidate`] | whether live subscriptions are rebuilt as fewer ones |
//! | [`Pager`] | the next page of a history, and its end |
//! | [`Refusal`] | the meaning of a relay's refusal, and the reaction |
//! | [`PeerText`] | the part of a peer's text that may enter a log |

mod backoff;
mod bucket;
mod ledger;
mod pace;
mod pager;
mod peer_text;
mod permit;
mod refusal;
mod window;

use std::time::Duration;

pub use backoff::{Backoff, BackoffPolicy, BackoffSnapshot, Health};
pub use bucket::{Rate, TokenBucket};
pub use ledger::{LedgerConfig, Slot, SlotClass, SlotLedger};
pub use pace::{Pace, PaceConfig};
pub use pager::{
    Ending, EoseHint, GapSecond, Next, PageRequest, Pager, PagerConfig, history_limit,
};
pub use peer_text::PeerText;
pub use permit::{Enqueued, Entry, Permit, PermitConfig, Permits};
pub use refusal::{Action, Heard, PARK, REQUEST_WATCHDOG, RETRY_DELAY, Refusal};
pub use window::RateWindow;

use crate::Mono;

/// Time for which new repositories and roots are collected before they are requested together.
pub const DISCOVERY_WINDOW: Duration = Duration::from_secs(5);

/// Number of filters on one connection above which they are consolidated.
pub const CONSOLIDATION_THRESHOLD: usize = 70;

/// The answer of a limit that only time can lift.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admit {
    /// Start once, now. A limit that counts starts has counted this one.
    Go,
    /// Do not start before this time.
    Wait(Mono),
}

impl Admit {
    fn not_before(start: Mono, now: Mono) -> Self {
        if now >= start { Self::Go } else { Self::Wait(start) }
    }
}

/// Returns whether the filters of a connection are to be rebuilt as fewer ones instead of adding `new` filters.
///
/// ```
/// use grasp_core::limits::{CONSOLIDATION_THRESHOLD, should_consolidate};
///
/// assert!(!should_consolidate(68, 2, CONSOLIDATION_THRESHOLD));
/// assert!(should_consolidate(68, 3, CONSOLIDATION_THRESHOLD));
/// assert!(should_consolidate(usize::MAX, 1, CONSOLIDATION_THRESHOLD));
/// ```
pub const fn should_consolidate(current: usize, new: usize, threshold: usize) -> bool {
    current.saturating_add(new) > threshold
}
