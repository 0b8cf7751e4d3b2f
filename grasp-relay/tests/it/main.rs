//! Tests of the public interface of this crate.
#![allow(clippy::unwrap_used)]
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod ingest;
mod policy;
mod private;
mod purgatory;
mod search;
mod store_archive;
mod store_check;
mod store_contract;
mod store_events;
mod store_kill;
mod store_model;
#[cfg(feature = "postgres")]
mod store_postgres;
mod store_sqlite;

mod support;

mod auth;
mod bad_input;
mod database_contract;
mod feed;
mod http;
mod limits;
mod negentropy;
mod relay;
mod shutdown;
#[cfg(feature = "tls")]
mod tls;
