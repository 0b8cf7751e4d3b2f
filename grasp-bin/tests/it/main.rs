//! The command itself, as a child process.
#![allow(clippy::unwrap_used)]

mod commands;
mod docs;
mod looking;
mod serve;
mod support;
