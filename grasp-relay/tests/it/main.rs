//! Tests of this crate's public face.
#![allow(clippy::unwrap_used)]

mod store_contract;
mod store_events;
