//! The limits, each compared with a simple model.

mod backoff;
mod bucket;
mod ledger;
mod pager;
mod permit;
mod refusal;
mod window;
