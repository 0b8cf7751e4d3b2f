//! The engine against scripted relays, in virtual time.
#![allow(clippy::unwrap_used, clippy::collapsible_match)]

mod budgets;
mod converge;
mod life;
mod memory;
mod model;
mod refusals;
mod scale;
mod sim;
mod stage;
mod strangers;
mod two_levels;
