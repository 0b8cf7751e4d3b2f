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
mod refusals;
mod scale;
mod shares;
mod sim;
mod stage;
mod strangers;
mod two_levels;
mod whole;
