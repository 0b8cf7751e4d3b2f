//! The engine against scripted relays, in virtual time.
#![allow(clippy::unwrap_used, reason = "a test that panics fails, which is what it is for")]

mod budgets;
mod converge;
mod dates;
mod forged;
mod fuzz_corpus;
mod gaps;
mod life;
mod memory;
mod model;
mod prop_limits;
mod prop_sync_actions;
mod prop_sync_coverage;
mod prop_sync_filters;
mod prop_sync_index;
mod prop_sync_roots;
mod prop_sync_world;
mod refusals;
mod scale;
mod shares;
mod sim;
mod stage;
mod strangers;
mod two_levels;
mod whole;
