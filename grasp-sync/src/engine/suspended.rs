//! Requests that a relay refuses: suspended for a day, then probed once.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{REQUEST_WATCHDOG, SUSPENDED_FOR};
use crate::memory::Memory;
use grasp_core::limits::Admit;
use grasp_core::nostr::types::Timestamp;
use grasp_core::sync::FilterHash;
use grasp_core::{Mono, Now};
use serde::{Deserialize, Serialize};

use super::filter::Layer;

/// Filters remembered as refused.
const MAX_FILTERS: usize = 1_000;

/// The mode in which a layer is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RequestMode {
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
pub(super) struct Suspended {
    layers: BTreeMap<(Layer, RequestMode), Suspension>,
    filters: Memory<FilterHash, (), MAX_FILTERS, { SUSPENDED_FOR.as_secs() }>,
}

#[derive(Clone, Copy, Debug)]
struct Suspension {
    until: Mono,
    /// True if one request is open to find out whether the policy still holds. If it is not answered, another is sent.
    is_probed: bool,
}

/// A suspended layer, as it is recorded across restarts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedLayer {
    layer: Layer,
    mode: RequestMode,
    until: Timestamp,
}

impl Suspended {
    /// Restores the suspensions of an earlier process. A clock that was set back makes no suspension longer.
    pub(super) fn restore(now: Now, suspended: &[SuspendedLayer]) -> Self {
        let until = |one: &SuspendedLayer| {
            let left = one.until.as_secs().saturating_sub(now.unix.as_secs());
            now.mono + Duration::from_secs(left).min(SUSPENDED_FOR)
        };
        let suspension = |one| Suspension {
            until: until(one),
            is_probed: false,
        };
        let layers = suspended
            .iter()
            .map(|one| ((one.layer, one.mode), suspension(one)));
        Self {
            layers: layers.collect(),
            ..Self::default()
        }
    }

    /// Returns the suspended layers for the record.
    pub(super) fn record(&self, now: Now) -> Vec<SuspendedLayer> {
        let until = |suspension: &Suspension| match suspension.is_probed {
            true => now.unix,
            false => now.unix + (suspension.until - now.mono),
        };
        let one = |(&(layer, mode), suspension)| SuspendedLayer {
            layer,
            mode,
            until: until(suspension),
        };
        self.layers.iter().map(one).collect()
    }

    /// Returns whether a layer may be requested, or when.
    pub(super) fn admit(&self, now: Mono, layer: Layer, mode: RequestMode) -> Admit {
        let suspension = self.layers.get(&(layer, mode));
        suspension.map_or(Admit::Go, |suspension| {
            Admit::not_before(suspension.until, now)
        })
    }

    /// Notes a request for a layer, which is the probe if the layer is suspended.
    pub(super) fn sent(&mut self, now: Mono, layer: Layer, mode: RequestMode) {
        if let Some(suspension) = self.layers.get_mut(&(layer, mode)) {
            *suspension = Suspension {
                until: now + REQUEST_WATCHDOG,
                is_probed: true,
            };
        }
    }

    /// Notes an answer to a request for a layer. If that was the probe, the suspension ends; an answer to a request
    /// that was sent before the suspension proves nothing.
    pub(super) fn answered(&mut self, layer: Layer, mode: RequestMode) {
        self.layers
            .retain(|of, suspension| *of != (layer, mode) || !suspension.is_probed);
    }

    /// Suspends a layer.
    pub(super) fn suspend(&mut self, now: Mono, layer: Layer, mode: RequestMode) {
        let suspension = Suspension {
            until: now + SUSPENDED_FOR,
            is_probed: false,
        };
        self.layers.insert((layer, mode), suspension);
    }

    /// Suspends one filter.
    pub(super) fn suspend_filter(&mut self, now: Mono, filter: FilterHash) {
        self.filters.put(now, filter, ());
    }

    /// Returns how long a filter is still suspended.
    pub(super) fn filter_suspended_for(
        &self,
        now: Mono,
        filter: impl FnOnce() -> FilterHash,
    ) -> Option<Duration> {
        // The hash takes writing the filter out.
        if self.filters.len() == 0 {
            None
        } else {
            self.filters.time_left(now, &filter())
        }
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::nostr::filter::Filter;

    use super::*;

    const T0: Mono = Mono::from_secs(50);

    #[test]
    fn a_refused_layer_is_suspended_for_a_day_and_probed_once() {
        let mut suspended = Suspended::default();
        assert_eq!(
            suspended.admit(T0, Layer::Roots, RequestMode::History),
            Admit::Go
        );
        suspended.suspend(T0, Layer::Roots, RequestMode::History);
        assert_eq!(
            suspended.admit(T0, Layer::Roots, RequestMode::History),
            Admit::Wait(T0 + SUSPENDED_FOR)
        );
        assert_eq!(
            suspended.admit(T0, Layer::Roots, RequestMode::Live),
            Admit::Go
        );
        assert_eq!(
            suspended.admit(T0, Layer::Repos, RequestMode::History),
            Admit::Go
        );

        let probe = T0 + SUSPENDED_FOR;
        assert_eq!(
            suspended.admit(probe, Layer::Roots, RequestMode::History),
            Admit::Go
        );
        suspended.sent(probe, Layer::Roots, RequestMode::History);
        let wait = Admit::Wait(probe + REQUEST_WATCHDOG);
        assert_eq!(
            suspended.admit(probe, Layer::Roots, RequestMode::History),
            wait
        );
        suspended.suspend(probe, Layer::Roots, RequestMode::History);
        assert_eq!(
            suspended.admit(probe, Layer::Roots, RequestMode::History),
            Admit::Wait(probe + SUSPENDED_FOR)
        );

        let again = probe + SUSPENDED_FOR;
        suspended.sent(again, Layer::Roots, RequestMode::History);
        suspended.answered(Layer::Roots, RequestMode::History);
        assert_eq!(
            suspended.admit(again, Layer::Roots, RequestMode::History),
            Admit::Go
        );
    }

    #[test]
    fn an_answer_from_before_the_refusal_ends_no_suspension() {
        let mut suspended = Suspended::default();
        suspended.sent(T0, Layer::Repos, RequestMode::History);
        suspended.sent(T0, Layer::Repos, RequestMode::History);
        suspended.suspend(T0, Layer::Repos, RequestMode::History);
        suspended.answered(Layer::Repos, RequestMode::History);
        assert_eq!(
            suspended.admit(T0, Layer::Repos, RequestMode::History),
            Admit::Wait(T0 + SUSPENDED_FOR)
        );
    }

    #[test]
    fn suspensions_survive_a_restart() {
        let at = |secs| {
            Now::new(
                Mono::from_secs(secs),
                Timestamp::from_secs(1_700_000_000 + secs),
            )
        };
        let mut suspended = Suspended::default();
        suspended.suspend(at(50).mono, Layer::Roots, RequestMode::Live);
        let restored = Suspended::restore(at(70), &suspended.record(at(60)));
        let until = at(50).mono + SUSPENDED_FOR;
        assert_eq!(
            restored.admit(at(70).mono, Layer::Roots, RequestMode::Live),
            Admit::Wait(until)
        );
        assert_eq!(
            restored.admit(until, Layer::Roots, RequestMode::Live),
            Admit::Go
        );
        assert_eq!(
            restored.admit(at(70).mono, Layer::Roots, RequestMode::History),
            Admit::Go
        );
    }

    #[test]
    fn a_refused_filter_is_remembered_and_memory_is_bounded() {
        let mut suspended = Suspended::default();
        let hash = |n: usize| FilterHash::of(&Filter::new().identifier(n.to_string()));
        (0..2 * MAX_FILTERS).for_each(|n| suspended.suspend_filter(T0, hash(n)));
        assert_eq!(suspended.filters.len(), MAX_FILTERS);
        assert_eq!(
            suspended.filter_suspended_for(T0, || hash(0)),
            None,
            "the oldest"
        );
        let last = || hash(2 * MAX_FILTERS - 1);
        assert_eq!(
            suspended.filter_suspended_for(T0, last),
            Some(SUSPENDED_FOR)
        );
        assert_eq!(
            suspended.filter_suspended_for(T0 + SUSPENDED_FOR, last),
            None
        );
    }
}
