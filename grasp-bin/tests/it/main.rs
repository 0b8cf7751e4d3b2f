//! The command itself, as a child process.
#![allow(clippy::unwrap_used)]

mod looking;
mod serve;
mod support;
