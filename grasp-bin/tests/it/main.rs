//! The command itself, as a child process.
#![allow(clippy::unwrap_used)]
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod browser;
mod commands;
mod docs;
mod full_disk;
mod http;
mod operations;
mod pages;
#[allow(dead_code, unreachable_pub, reason = "a module of grasp-tests")]
#[path = "../../../tests/src/postgres.rs"]
mod postgres;
mod private;
mod proxy;
mod purge;
#[allow(unreachable_pub, reason = "a module of grasp-tests")]
#[path = "../../../tests/src/reserved.rs"]
mod reserved;
mod serve;
mod sidecar;
mod signals;
mod status;
mod support;
mod tls;
#[path = "../../../grasp-sync/tests/driver/tls_front.rs"]
mod tls_front;
mod upgrade;
