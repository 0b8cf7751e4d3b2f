//! Properties of the core against plain models, and the fuzzing corpus replayed.
#![allow(clippy::unwrap_used)]

mod fuzz_corpus;
mod prop_limits;

use proptest::prelude::ProptestConfig;

/// So many cases; a failing one is kept under `tests/proptest-regressions/` and tried first.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig::with_cases(cases)
}
