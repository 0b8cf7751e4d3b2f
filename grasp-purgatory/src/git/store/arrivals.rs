//! The families that a push or fetch is under way to, so that none is removed meanwhile.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::git::layout::Family;

/// Number of entries from which on unused ones are dropped.
const MANY: usize = 1024;

/// The families that something is on its way to.
#[derive(Debug, Default)]
pub(super) struct Arrivals(Mutex<BTreeMap<String, Weak<()>>>);

/// Something on its way to a family, until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub(super) struct Expected(#[expect(dead_code, reason = "that it exists says it all")] Arc<()>);

impl Arrivals {
    pub(super) fn expect(&self, family: &Family) -> Expected {
        // Nothing below can panic, and the map is whole at any time.
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() > MANY {
            all.retain(|_, expected| expected.strong_count() > 0);
        }
        let known = all.get(family.key()).and_then(Weak::upgrade);
        let expected = known.unwrap_or_default();
        all.insert(family.key().to_owned(), Arc::downgrade(&expected));
        Expected(expected)
    }

    pub(super) fn any_for(&self, family: &Family) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(family.key()).is_some_and(|expected| expected.strong_count() > 0)
    }
}
