//! The limits, each against a model too simple to be wrong.

mod backoff;
mod bucket;
mod ledger;
mod pager;
mod permit;
mod refusal;
mod window;
