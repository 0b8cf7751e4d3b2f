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
//! | [`Pager`] | the next page of a history, and its end |
//! | [`Refusal`] | the meaning of a relay's refusal, and the reaction |

mod ledger;
mod pace;
mod pager;
mod refusal;

pub use ledger::{RETAINED_BYTES, Slot, SlotClass, SlotLedger};
pub(crate) use pace::LONGEST_PAUSE;
pub use pace::{Pace, Rate, TokenBucket};
pub use pager::{Ending, Next, PageRequest, Pager, PagerConfig, history_limit};
pub use refusal::{Heard, Refusal};
pub(crate) use refusal::{REQUEST_WATCHDOG, RETRY_DELAY, SUSPENDED_FOR};
