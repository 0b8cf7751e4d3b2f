//! Tests of this crate's public face.
#![allow(clippy::unwrap_used)]

mod store_adapter;
mod store_contract;
mod store_events;
mod store_kill;
mod store_model;
mod store_sqlite;
