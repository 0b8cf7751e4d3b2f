//! The engine against scripted relays, in virtual time.
#![allow(
    clippy::unwrap_used,
    reason = "a test that panics fails, which is what it is for"
)]
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod budgets;
mod connection_shares;
mod converge;
mod dates;
mod forged;
mod full_sync;
mod fuzz_corpus;
mod gaps;
mod lifecycle;
mod memory;
mod model;
mod outbox;
mod prop_limits;
mod refusals;
mod scale;
mod setup;
mod sim;
mod two_levels;
mod unknown_subscriptions;
mod user_relays;
mod visits;
