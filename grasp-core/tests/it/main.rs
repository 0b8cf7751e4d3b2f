//! Property tests of the rules, and a replay of the fuzzing corpus.
#![allow(clippy::unwrap_used)]
// A scenario, or a table of cases, reads from top to bottom.
#![allow(clippy::too_many_lines)]

mod events;
mod fuzz_corpus;
mod prop_backoff;
mod prop_maintainers;
mod prop_parsers;
mod prop_people;
mod prop_push;
mod prop_relay_lists;
mod prop_resources;
mod prop_sync_actions;
mod prop_sync_filters;
mod prop_sync_index;
mod prop_sync_proofs;
mod prop_sync_roots;
mod prop_sync_world;
mod prop_threads;
mod unsigned;

use proptest::prelude::ProptestConfig;

/// Sets the number of cases; a failing one is stored under `tests/proptest-regressions/` and tried first.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig::with_cases(cases)
}
