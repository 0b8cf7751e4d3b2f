//! The engine against scripted relays, in virtual time.
#![allow(
    clippy::unwrap_used,
    reason = "a test that panics fails, which is what it is for"
)]

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
mod prop_limits;
mod prop_sync_actions;
mod prop_sync_filters;
mod prop_sync_index;
mod prop_sync_proofs;
mod prop_sync_roots;
mod prop_sync_world;
mod refusals;
mod scale;
mod setup;
mod sim;
mod two_levels;
mod unknown_subscriptions;
