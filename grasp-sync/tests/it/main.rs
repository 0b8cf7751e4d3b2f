//! The engine against scripted relays, in virtual time.

mod converge;
mod life;
mod refusals;
mod sim;
mod stage;
mod two_levels;
