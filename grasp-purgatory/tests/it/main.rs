//! Tests of the public interface: the rules of purgatory and hunt in simulations, and the store against real git.
#![allow(clippy::unwrap_used)]
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod git_advertise;
mod git_collect;
mod git_cost;
mod git_fixture;
#[cfg(feature = "object-store")]
mod git_packs;
#[cfg(feature = "object-store")]
mod git_packs_faults;
mod git_process;
mod git_push;
mod git_refs;
mod git_staging;
mod git_views;
mod hunt_driver;
mod hunt_load;
mod hunt_model;
mod hunt_rules;
mod hunt_sim;
mod memory_database;
mod model;
mod model_disk;
mod model_drive;
mod model_events;
mod model_isolation;
mod model_queries;
mod model_reach;
mod model_rules;
mod model_world;
mod purgatory_authority;
mod purgatory_expiry;
mod purgatory_failures;
mod purgatory_hold;
mod purgatory_proposals;
mod purgatory_removal;
#[cfg(feature = "object-store")]
#[allow(
    unreachable_pub,
    reason = "tests of whole servers have this module, too"
)]
mod s3_server;
