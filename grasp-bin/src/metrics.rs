//! Metrics of sync and of the hunt, and the list of all metrics.

pub(crate) mod hunt;
pub(crate) mod reference;
pub(crate) mod sync;

use grasp_relay::metrics::{Metric, table};

/// Metrics of one subject.
pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) metrics: &'static [&'static Metric],
}

/// All metrics, in the order of the reference.
pub(crate) const GROUPS: &[Group] = &[
    Group { title: "The server", metrics: table::ALL },
    Group { title: "Events from other relays", metrics: sync::ALL },
    Group { title: "Git data from other servers", metrics: hunt::ALL },
];

/// Returns all metrics.
pub(crate) fn all() -> Vec<&'static Metric> {
    GROUPS.iter().flat_map(|group| group.metrics).copied().collect()
}
