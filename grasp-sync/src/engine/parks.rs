//! Requests that a relay refuses: suspended for a day, then probed once.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::limits::{Admit, PARK, REQUEST_WATCHDOG};
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::FilterHash;
use grasp_core::{Mono, Now};
use serde::{Deserialize, Serialize};

use super::layer::Layer;

/// Filters remembered as refused.
const MAX_FILTERS: usize = 1_000;

/// The mode in which a layer is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Way {
    /// Events still to come.
    Live,
    /// Stored events.
    History,
}

/// The suspended requests of one relay. Outlives its connections: reconnecting is no reason to ask again.
///
/// A policy is about our identity or about the kind of request, hardly ever about one filter; so it suspends the
/// layer. Otherwise each new issue would make a new filter, and be refused again. A filter that was refused for its
/// content suspends nothing but itself.
#[derive(Debug, Default)]
pub(super) struct Parks {
    layers: BTreeMap<(Layer, Way), Park>,
    filters: BTreeMap<FilterHash, Mono>,
}

#[derive(Clone, Copy, Debug)]
enum Park {
    Until(Mono),
    /// One request is open to find out whether the policy still holds.
    Probing(Mono),
}

/// A request that a relay refuses, as it is remembered across a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parked {
    layer: Layer,
    way: Way,
    until: Timestamp,
}

impl Parks {
    /// Restores what an earlier process was told. A clock that was set back makes no suspension longer.
    pub(super) fn restore(now: Now, parked: &[Parked]) -> Self {
        let until = |one: &Parked| {
            let left = one.until.as_secs().saturating_sub(now.unix.as_secs());
            now.mono + Duration::from_secs(left).min(PARK)
        };
        let layers = parked.iter().map(|one| ((one.layer, one.way), Park::Until(until(one))));
        Self { layers: layers.collect(), filters: BTreeMap::new() }
    }

    /// Returns the suspended layers for the record.
    pub(super) fn parked(&self, now: Now) -> Vec<Parked> {
        let until = |park: &Park| match *park {
            Park::Until(until) => now.unix + (until - now.mono),
            Park::Probing(_) => now.unix,
        };
        let one = |(&(layer, way), park)| Parked { layer, way, until: until(park) };
        self.layers.iter().map(one).collect()
    }

    /// Returns whether a layer may be requested, or when.
    pub(super) fn admit(&self, now: Mono, layer: Layer, way: Way) -> Admit {
        let at = match self.layers.get(&(layer, way)) {
            None => return Admit::Go,
            Some(Park::Until(at)) => *at,
            // A probe without an answer is sent again.
            Some(Park::Probing(since)) => *since + REQUEST_WATCHDOG,
        };
        if now >= at { Admit::Go } else { Admit::Wait(at) }
    }

    /// Notes a request for a layer, which is the probe if the layer is suspended.
    pub(super) fn sent(&mut self, now: Mono, layer: Layer, way: Way) {
        if let Some(park) = self.layers.get_mut(&(layer, way)) {
            *park = Park::Probing(now);
        }
    }

    /// Notes an answer to a request for a layer. If that was the probe, the suspension ends; an answer to a request
    /// that was sent before the suspension proves nothing.
    pub(super) fn answered(&mut self, layer: Layer, way: Way) {
        if let Some(Park::Probing(_)) = self.layers.get(&(layer, way)) {
            self.layers.remove(&(layer, way));
        }
    }

    /// Suspends a layer.
    pub(super) fn park(&mut self, now: Mono, layer: Layer, way: Way) {
        self.layers.insert((layer, way), Park::Until(now + PARK));
    }

    /// Suspends one filter.
    pub(super) fn refuse(&mut self, now: Mono, filter: FilterHash) {
        self.filters.retain(|_, until| *until > now);
        if self.filters.len() < MAX_FILTERS {
            self.filters.insert(filter, now + PARK);
        }
    }

    /// Returns how long a filter is still suspended.
    pub(super) fn refused_until(
        &self,
        now: Mono,
        filter: impl FnOnce() -> FilterHash,
    ) -> Option<Duration> {
        if self.filters.is_empty() {
            return None;
        }
        let until = *self.filters.get(&filter())?;
        (until > now).then(|| until - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: Mono = Mono::from_secs(50);

    #[test]
    fn parked_coverage_is_left_alone_for_a_day_and_probed_once() {
        let mut parks = Parks::default();
        assert_eq!(parks.admit(T0, Layer::Roots, Way::History), Admit::Go);
        parks.park(T0, Layer::Roots, Way::History);
        assert_eq!(parks.admit(T0, Layer::Roots, Way::History), Admit::Wait(T0 + PARK));
        assert_eq!(parks.admit(T0, Layer::Roots, Way::Live), Admit::Go);
        assert_eq!(parks.admit(T0, Layer::Repos, Way::History), Admit::Go);

        let probe = T0 + PARK;
        assert_eq!(parks.admit(probe, Layer::Roots, Way::History), Admit::Go);
        parks.sent(probe, Layer::Roots, Way::History);
        let wait = Admit::Wait(probe + REQUEST_WATCHDOG);
        assert_eq!(parks.admit(probe, Layer::Roots, Way::History), wait);
        parks.park(probe, Layer::Roots, Way::History);
        assert_eq!(parks.admit(probe, Layer::Roots, Way::History), Admit::Wait(probe + PARK));

        let again = probe + PARK;
        parks.sent(again, Layer::Roots, Way::History);
        parks.answered(Layer::Roots, Way::History);
        assert_eq!(parks.admit(again, Layer::Roots, Way::History), Admit::Go);
    }

    #[test]
    fn an_answer_to_what_was_sent_before_the_refusal_proves_nothing() {
        let mut parks = Parks::default();
        parks.sent(T0, Layer::Repos, Way::History);
        parks.sent(T0, Layer::Repos, Way::History);
        parks.park(T0, Layer::Repos, Way::History);
        parks.answered(Layer::Repos, Way::History);
        assert_eq!(parks.admit(T0, Layer::Repos, Way::History), Admit::Wait(T0 + PARK));
    }

    #[test]
    fn a_restart_is_no_reason_to_ask_again() {
        let at = |secs| Now::new(Mono::from_secs(secs), Timestamp::from_secs(1_700_000_000 + secs));
        let mut parks = Parks::default();
        parks.park(at(50).mono, Layer::Roots, Way::Live);
        let restored = Parks::restore(at(70), &parks.parked(at(60)));
        let until = at(50).mono + PARK;
        assert_eq!(restored.admit(at(70).mono, Layer::Roots, Way::Live), Admit::Wait(until));
        assert_eq!(restored.admit(until, Layer::Roots, Way::Live), Admit::Go);
        assert_eq!(restored.admit(at(70).mono, Layer::Roots, Way::History), Admit::Go);
    }

    #[test]
    fn a_refused_filter_is_remembered_and_memory_is_bounded() {
        let mut parks = Parks::default();
        let hash = |n: usize| format!("{n:064x}").parse::<FilterHash>().unwrap();
        (0..2 * MAX_FILTERS).for_each(|n| parks.refuse(T0, hash(n)));
        assert_eq!(parks.filters.len(), MAX_FILTERS);
        assert_eq!(parks.refused_until(T0, || hash(0)), Some(PARK));
        assert_eq!(parks.refused_until(T0 + PARK, || hash(0)), None);
    }
}
