//! Property tests of the rules, and a replay of the fuzzing corpus.
#![allow(clippy::unwrap_used)]

mod events;
mod fuzz_corpus;
mod prop_backoff;
mod prop_maintainers;
mod prop_parsers;
mod prop_push;
mod prop_resources;
mod unsigned;

use proptest::prelude::ProptestConfig;

/// Sets the number of cases; a failing one is stored under `tests/proptest-regressions/` and tried first.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig::with_cases(cases)
}
