//! Purgatory from outside: its rules, its journal, and random histories in a small scripted world.
#![allow(clippy::unwrap_used)]

mod model;
mod model_disk;
mod model_drive;
mod model_events;
mod model_rules;
mod model_sight;
mod model_world;
mod purgatory_authority;
mod purgatory_expiry;
mod purgatory_failures;
mod purgatory_hold;
mod purgatory_journal;
mod purgatory_proposals;
mod purgatory_removal;
