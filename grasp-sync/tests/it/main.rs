//! The engine against scripted relays, in virtual time.

mod converge;
mod sim;
mod two_levels;
