//! The words and the rules of GRASP. Opens nothing, reads no clock, takes no lock.

pub mod deletion;
pub mod limits;
mod time;

pub use time::{Mono, Now};
