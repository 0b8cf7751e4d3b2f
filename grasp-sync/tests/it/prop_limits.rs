//! The limits, each compared with a simple model.

mod bucket;
mod ledger;
mod pager;
mod refusal;

use proptest::prelude::ProptestConfig;

/// Sets the number of cases; a failing one is stored under `tests/proptest-regressions/` and tried first.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig::with_cases(cases)
}
