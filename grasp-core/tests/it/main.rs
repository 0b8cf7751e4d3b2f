//! What must hold for any input, and what only shows from outside.
#![allow(clippy::unwrap_used)]

mod prop_sync_actions;
mod prop_sync_coverage;
mod prop_sync_filters;
mod prop_sync_index;
mod prop_sync_roots;
mod prop_sync_world;
