//! The command itself, as a child process.
#![allow(clippy::unwrap_used)]

mod browser;
mod commands;
mod docs;
mod looking;
mod serve;
mod sidecar;
mod signals;
mod support;
