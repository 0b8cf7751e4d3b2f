//! The command itself, as a child process.
#![allow(clippy::unwrap_used)]

mod browser;
mod commands;
mod docs;
mod full_disk;
mod http;
mod looking;
mod operations;
#[allow(dead_code, unreachable_pub, reason = "a module of the tests of whole servers")]
#[path = "../../../tests/src/postgres.rs"]
mod postgres;
mod proxy;
mod reference;
mod serve;
mod sidecar;
mod signals;
mod support;
#[path = "../../../grasp-sync/tests/driver/tls_front.rs"]
mod tls_front;
