//! What is counted beyond the server itself: sync, the hunt; and where all of it is read.

pub(crate) mod hunt;
pub(crate) mod reference;
pub(crate) mod sync;

use grasp_relay::metrics::{Metric, table};

/// Metrics that belong together.
pub(crate) struct Group {
    /// What they are about.
    pub(crate) title: &'static str,
    /// The metrics.
    pub(crate) metrics: &'static [&'static Metric],
}

/// Everything that `/metrics` shows, in the order of the reference.
pub(crate) const GROUPS: &[Group] = &[
    Group { title: "The server", metrics: table::ALL },
    Group { title: "Events from other relays", metrics: sync::ALL },
    Group { title: "Git data from other servers", metrics: hunt::ALL },
];

/// Every metric.
pub(crate) fn all() -> Vec<&'static Metric> {
    GROUPS.iter().flat_map(|group| group.metrics).copied().collect()
}
