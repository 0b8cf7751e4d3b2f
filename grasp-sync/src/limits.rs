//! Limits for requests to relays, and the meanings of their refusals.
//!
//! Each type decides from its own state and the `now` that it is given. None opens, sleeps or polls; a driver
//! asks for the next deadline and calls again then.
//!
//! | type | decides |
//! |---|---|
//! | [`TokenBucket`] | a rate with bursts |
//! | [`Pace`] | the rate of requests to a relay, slower after refusals |
//! | [`SlotLedger`] | the subscriptions on one connection |
//! | [`should_consolidate`] | whether live subscriptions are rebuilt as fewer ones |
//! | [`Pager`] | the next page of a history, and its end |
//! | [`Refusal`] | the meaning of a relay's refusal, and the reaction |

mod bucket;
mod ledger;
mod pace;
mod pager;
mod refusal;

use std::time::Duration;

pub use bucket::{Rate, TokenBucket};
pub use ledger::{RETAINED_BYTES, Slot, SlotClass, SlotLedger, TRANSIENT_BYTES, TRANSIENT_SLOTS};
pub use pace::{LONGEST_PAUSE, Pace, PaceConfig};
pub use pager::{Ending, Next, PageRequest, Pager, PagerConfig, history_limit};
pub use refusal::{Heard, PARK, REQUEST_WATCHDOG, RETRY_DELAY, Refusal};

/// Time for which new repositories and roots are collected before they are requested together.
pub const DISCOVERY_WINDOW: Duration = Duration::from_secs(5);

/// Number of filters on one connection above which they are consolidated.
pub const CONSOLIDATION_THRESHOLD: usize = 70;

/// Returns whether the filters of a connection are to be rebuilt as fewer ones instead of adding `new` filters.
///
/// ```
/// use grasp_sync::limits::{CONSOLIDATION_THRESHOLD, should_consolidate};
///
/// assert!(!should_consolidate(68, 2, CONSOLIDATION_THRESHOLD));
/// assert!(should_consolidate(68, 3, CONSOLIDATION_THRESHOLD));
/// assert!(should_consolidate(usize::MAX, 1, CONSOLIDATION_THRESHOLD));
/// ```
pub const fn should_consolidate(current: usize, new: usize, threshold: usize) -> bool {
    current.saturating_add(new) > threshold
}
