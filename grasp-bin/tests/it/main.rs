//! The command itself, as a child process.
#![allow(clippy::unwrap_used)]

mod browser;
mod commands;
mod docs;
mod full_disk;
mod http;
mod operations;
#[allow(dead_code, unreachable_pub, reason = "a module of grasp-tests")]
#[path = "../../../tests/src/postgres.rs"]
mod postgres;
mod proxy;
#[allow(unreachable_pub, reason = "a module of grasp-tests")]
#[path = "../../../tests/src/reserved.rs"]
mod reserved;
mod serve;
mod sidecar;
mod signals;
mod status;
mod support;
#[path = "../../../grasp-sync/tests/driver/tls_front.rs"]
mod tls_front;
