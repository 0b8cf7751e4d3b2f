//! What the hunt for git data reports, as metrics.

use grasp_relay::metrics::Metric;

pub(crate) const QUEUE: Metric =
    Metric::gauge("grasp_hunt_queue", "Repository names whose git data is hunted for.", &[]);

/// All of them, in the order of the reference.
pub(crate) const ALL: &[&Metric] = &[&QUEUE];
