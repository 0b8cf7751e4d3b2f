//! The outbox in virtual time: whose relay lists are asked for where and when, and what they lead to.

mod discovery;
mod history;
mod lists;
mod model;
mod simulated;
pub(crate) mod world;
