//! What is counted and measured, in Prometheus' text form.
//!
//! A [`Metric`] is defined once, as a constant in a table; the tables are what is rendered, and what the reference is
//! written from. Values live in one [`Metrics`], which anybody may hold a clone of.
//!
//! ```
//! use grasp_relay::metrics::{Metric, Metrics};
//!
//! const SEEN: Metric = Metric::counter("grasp_seen_total", "Things seen.", &["colour"]);
//!
//! let metrics = Metrics::default();
//! metrics.add(&SEEN, &["red"], 2);
//! assert!(metrics.render(&[&SEEN]).ends_with("grasp_seen_total{colour=\"red\"} 2\n"));
//! ```

mod http;
mod ingest;
pub mod table;
mod text;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::http::count_requests;
pub use self::ingest::Counted;

/// Series of one metric at most; whatever comes after is counted together, under [`REST`].
///
/// Labels hold names of relays and hosts, which strangers choose.
const MOST_SERIES: usize = 512;

/// The label values of what found no place of its own.
pub const REST: &str = "(rest)";

/// Upper ends of the buckets of a [`Kind::Times`], in seconds.
const BUCKETS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0, 300.0];

/// Something that is counted or measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// How its values behave.
    pub kind: Kind,
    /// What it says, in one sentence.
    pub help: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
}

/// How the values of a metric behave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They only grow.
    Counter,
    /// They go up and down.
    Gauge,
    /// They are lengths of time, counted by how long they were.
    Times,
}

impl Metric {
    /// Something that only grows.
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { name, kind: Kind::Counter, help, labels }
    }

    /// Something that goes up and down.
    pub const fn gauge(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { name, kind: Kind::Gauge, help, labels }
    }

    /// Lengths of time.
    pub const fn times(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { name, kind: Kind::Times, help, labels }
    }
}

/// The values of all metrics. Cheap to clone; all clones are the same.
///
/// One lock guards the lot: it is taken per request or batch, never per byte, and nothing waits while it is held.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<&'static str, Family>>>);

/// The series of one metric, by the values of its labels.
type Family = BTreeMap<Vec<Box<str>>, Value>;

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Spread(Spread),
}

/// How many lengths of time fell into which bucket.
#[derive(Clone, Debug, Default)]
struct Spread {
    buckets: [u64; BUCKETS.len()],
    count: u64,
    seconds: f64,
}

impl Metrics {
    /// Counts so many more.
    pub fn add(&self, metric: &Metric, labels: &[&str], more: u64) {
        self.change(metric, labels, |value| *value += more as f64);
    }

    /// Sets a gauge, or a counter to what somebody else counted.
    pub fn set(&self, metric: &Metric, labels: &[&str], to: f64) {
        self.change(metric, labels, |value| *value = to);
    }

    /// Notes a length of time.
    pub fn took(&self, metric: &Metric, labels: &[&str], time: Duration) {
        let mut families = self.families();
        let family = families.entry(metric.name).or_default();
        let value = slot(family, metric, labels, || Value::Spread(Spread::default()));
        if let Value::Spread(spread) = value {
            spread.note(time);
        }
    }

    /// Forgets the series with this value of the first label: whatever it was about is gone.
    pub fn forget(&self, metric: &Metric, first: &str) {
        if let Some(family) = self.families().get_mut(metric.name) {
            family.retain(|labels, _| labels.first().is_none_or(|label| **label != *first));
        }
    }

    /// Forgets all series of a metric, before they are said anew.
    pub fn clear(&self, metric: &Metric) {
        self.families().remove(metric.name);
    }

    /// One series; `None` before anything was said of it.
    pub fn value(&self, metric: &Metric, labels: &[&str]) -> Option<f64> {
        match self.families().get(metric.name)?.get(&key(labels))? {
            Value::Number(number) => Some(*number),
            Value::Spread(spread) => Some(spread.seconds),
        }
    }

    /// These metrics as text.
    pub fn render(&self, metrics: &[&Metric]) -> String {
        let families = self.families();
        let mut text = String::new();
        for metric in metrics {
            text::write(&mut text, metric, families.get(metric.name));
        }
        text
    }

    fn change(&self, metric: &Metric, labels: &[&str], change: impl FnOnce(&mut f64)) {
        let mut families = self.families();
        let family = families.entry(metric.name).or_default();
        if let Value::Number(number) = slot(family, metric, labels, || Value::Number(0.0)) {
            change(number);
        }
    }

    fn families(&self) -> MutexGuard<'_, BTreeMap<&'static str, Family>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(labels: &[&str]) -> Vec<Box<str>> {
    labels.iter().map(|label| Box::from(*label)).collect()
}

/// The series of these labels, or the one for the rest if there are too many.
fn slot<'a>(
    family: &'a mut Family,
    metric: &Metric,
    labels: &[&str],
    new: impl FnOnce() -> Value,
) -> &'a mut Value {
    debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
    let mut place = key(labels);
    if family.len() >= MOST_SERIES && !family.contains_key(&place) {
        place = key(&vec![REST; labels.len()]);
    }
    family.entry(place).or_insert_with(new)
}

impl Spread {
    fn note(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.count += 1;
        self.seconds += seconds;
        for (bucket, end) in self.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Metric = Metric::counter("seen_total", "Things seen.", &["colour"]);
    const LEVEL: Metric = Metric::gauge("level", "How full it is.", &[]);
    const WORK: Metric = Metric::times("work_seconds", "How long work takes.", &[]);

    #[test]
    fn what_is_added_is_rendered_with_its_labels() {
        let metrics = Metrics::default();
        metrics.add(&SEEN, &["red"], 2);
        metrics.add(&SEEN, &["red"], 1);
        metrics.add(&SEEN, &["a\"b\\c\nd"], 1);
        let expected = "# HELP seen_total Things seen.\n# TYPE seen_total counter\n\
            seen_total{colour=\"a\\\"b\\\\c\\nd\"} 1\nseen_total{colour=\"red\"} 3\n";
        assert_eq!(metrics.render(&[&SEEN]), expected);
    }

    #[test]
    fn what_has_no_labels_is_there_before_it_is_touched() {
        let metrics = Metrics::default();
        assert!(metrics.render(&[&LEVEL]).ends_with("\nlevel 0\n"));
        metrics.set(&LEVEL, &[], 0.5);
        assert!(metrics.render(&[&LEVEL]).ends_with("\nlevel 0.5\n"));
    }

    #[test]
    fn times_fall_into_every_bucket_that_holds_them() {
        let metrics = Metrics::default();
        metrics.took(&WORK, &[], Duration::from_millis(20));
        metrics.took(&WORK, &[], Duration::from_secs(400));
        let text = metrics.render(&[&WORK]);
        for line in [
            "work_seconds_bucket{le=\"0.005\"} 0\n",
            "work_seconds_bucket{le=\"0.02\"} 1\n",
            "work_seconds_bucket{le=\"300\"} 1\n",
            "work_seconds_bucket{le=\"+Inf\"} 2\n",
            "work_seconds_sum 400.02\n",
            "work_seconds_count 2\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }

    #[test]
    fn strangers_cannot_make_series_without_end() {
        let metrics = Metrics::default();
        for number in 0..MOST_SERIES + 100 {
            metrics.add(&SEEN, &[&number.to_string()], 1);
        }
        metrics.add(&SEEN, &["7"], 1);
        assert_eq!(metrics.value(&SEEN, &[REST]), Some(100.0));
        assert_eq!(metrics.value(&SEEN, &["7"]), Some(2.0));
        assert_eq!(metrics.render(&[&SEEN]).lines().count(), MOST_SERIES + 3);
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let metrics = Metrics::default();
        metrics.add(&SEEN, &["red"], 1);
        metrics.add(&SEEN, &["blue"], 1);
        metrics.forget(&SEEN, "red");
        assert_eq!(metrics.value(&SEEN, &["red"]), None);
        assert_eq!(metrics.value(&SEEN, &["blue"]), Some(1.0));
    }
}
