//! Metrics in the text format of Prometheus.
//!
//! A [`Metric`] is defined once, as a constant in a table; output and reference are made from the tables. Values are in one
//! [`Metrics`], whose clones share them.
//!
//! ```
//! use grasp_relay::metrics::Metrics;
//!
//! grasp_relay::metrics! { ALL:
//!     SEEN = Counter "grasp_seen_total" ["colour"] "Things seen.";
//! }
//!
//! let metrics = Metrics::default();
//! metrics.add(&SEEN, &["red"], 2);
//! assert!(metrics.render(ALL).ends_with("grasp_seen_total{colour=\"red\"} 2\n"));
//! ```

mod counting;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub use self::counting::count_requests;

/// Limits the series of one metric; further ones of a counter share the label [`OTHER_LABEL`]. Further ones of a gauge are left
/// out: they have no common value.
///
/// Labels contain relays and hosts, which any event can name.
const MAX_SERIES: usize = 512;

/// The label of series beyond the limit.
pub const OTHER_LABEL: &str = "(rest)";

/// Upper bounds of the buckets of a [`Kind::Histogram`], in seconds.
const BUCKET_BOUNDS: [f64; 10] = [0.001, 0.005, 0.02, 0.1, 0.5, 1.0, 5.0, 20.0, 60.0, 300.0];

impl Kind {
    /// Returns the name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// The definition of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: Kind,
    /// The meaning, in one sentence.
    pub help: &'static str,
    /// The names of the labels.
    pub labels: &'static [&'static str],
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
    /// Durations, counted by bucket.
    Histogram,
}

/// Defines metrics as constants, with their kind, name, labels and meaning, and the list of them in the same order.
#[macro_export]
macro_rules! metrics {
    ($visible:vis $all:ident:
        $($constant:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(
            #[doc = $help]
            $visible const $constant: $crate::metrics::Metric = $crate::metrics::Metric {
                name: $name,
                kind: $crate::metrics::Kind::$kind,
                help: $help,
                labels: &[$($label),*],
            };
        )*
        /// All of these metrics, in the order of the reference.
        $visible const $all: &[&$crate::metrics::Metric] = &[$(&$constant),*];
    };
}

/// The values of all metrics. Cheap to clone; clones share the values.
///
/// One lock guards them: it is taken per request or batch, never per byte, and not held across an await.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<&'static str, SeriesMap>>>);

/// The series of one metric, by label values.
type SeriesMap = BTreeMap<Vec<Box<str>>, Value>;

#[derive(Clone, Debug)]
enum Value {
    Number(f64),
    Histogram(Histogram),
}

/// Numbers of durations by bucket.
#[derive(Clone, Debug, Default)]
struct Histogram {
    buckets: [u64; BUCKET_BOUNDS.len()],
    count: u64,
    seconds: f64,
}

impl Metrics {
    /// Adds to a counter.
    pub fn add(&self, metric: &Metric, labels: &[&str], amount: u64) {
        let mut families = self.families();
        let family = families.entry(metric.name).or_default();
        if let Value::Number(number) = series_mut(family, metric, labels, || Value::Number(0.0)) {
            *number += amount as f64;
        }
    }

    /// Sets a gauge, or a counter that is counted elsewhere. Further series of such a counter are added up; clear it before.
    pub fn set(&self, metric: &Metric, labels: &[&str], to: f64) {
        let mut families = self.families();
        let family = families.entry(metric.name).or_default();
        let is_further = is_full(family, &key(labels));
        if is_further && metric.kind != Kind::Counter {
            return;
        }
        if let Value::Number(number) = series_mut(family, metric, labels, || Value::Number(0.0)) {
            *number = if is_further { *number + to } else { to };
        }
    }

    /// Adds a duration to a histogram.
    pub fn observe(&self, metric: &Metric, labels: &[&str], time: Duration) {
        let mut families = self.families();
        let family = families.entry(metric.name).or_default();
        let value = series_mut(family, metric, labels, || {
            Value::Histogram(Histogram::default())
        });
        if let Value::Histogram(histogram) = value {
            histogram.add(time);
        }
    }

    /// Removes the series with this first label.
    pub fn remove(&self, metric: &Metric, first: &str) {
        if let Some(family) = self.families().get_mut(metric.name) {
            family.retain(|labels, _| labels.first().is_none_or(|label| **label != *first));
        }
    }

    /// Removes all series of a metric.
    pub fn clear(&self, metric: &Metric) {
        self.families().insert(metric.name, SeriesMap::new());
    }

    /// Replaces the metrics that were set or cleared in `current`, all at once: a reader never finds a part of them.
    pub fn replace(&self, current: &Self) {
        let mut current = std::mem::take(&mut *current.families());
        self.families().append(&mut current);
    }

    /// Returns the value of one series, or the sum of a histogram; `None` before its first update.
    pub fn value(&self, metric: &Metric, labels: &[&str]) -> Option<f64> {
        match self.families().get(metric.name)?.get(&key(labels))? {
            Value::Number(number) => Some(*number),
            Value::Histogram(histogram) => Some(histogram.seconds),
        }
    }

    /// Returns these metrics in the text format.
    pub fn render(&self, metrics: &[&Metric]) -> String {
        let families = self.families();
        let mut text = String::new();
        for metric in metrics {
            write_metric(&mut text, metric, families.get(metric.name));
        }
        text
    }

    fn families(&self) -> MutexGuard<'_, BTreeMap<&'static str, SeriesMap>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(labels: &[&str]) -> Vec<Box<str>> {
    labels.iter().map(|label| Box::from(*label)).collect()
}

/// Returns the series of these labels, or the one that further series share if there are too many.
fn series_mut<'a>(
    family: &'a mut SeriesMap,
    metric: &Metric,
    labels: &[&str],
    new: impl FnOnce() -> Value,
) -> &'a mut Value {
    debug_assert_eq!(labels.len(), metric.labels.len(), "{}", metric.name);
    let mut series = key(labels);
    if is_full(family, &series) {
        series = key(&vec![OTHER_LABEL; labels.len()]);
    }
    family.entry(series).or_insert_with(new)
}

/// Returns whether these labels are new, and too many.
fn is_full(family: &SeriesMap, series: &[Box<str>]) -> bool {
    family.len() >= MAX_SERIES && !family.contains_key(series)
}

impl Histogram {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        self.count += 1;
        self.seconds += seconds;
        for (bucket, bound) in self.buckets.iter_mut().zip(BUCKET_BOUNDS) {
            *bucket += u64::from(seconds <= bound);
        }
    }
}

/// Writes one metric with its header lines. A metric without labels is written even before its first update.
fn write_metric(text: &mut String, metric: &Metric, family: Option<&SeriesMap>) {
    let name = metric.name;
    let help = metric.help;
    let kind = metric.kind.name();
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    let initial = match metric.kind {
        Kind::Histogram => Value::Histogram(Histogram::default()),
        _ => Value::Number(0.0),
    };
    match family.filter(|family| !family.is_empty()) {
        None if metric.labels.is_empty() => write_series(text, metric, &[], &initial),
        None => {}
        Some(family) => {
            for (labels, value) in family {
                write_series(text, metric, labels, value);
            }
        }
    }
}

fn write_series(text: &mut String, metric: &Metric, labels: &[Box<str>], value: &Value) {
    let name = metric.name;
    let labels = label_pairs(metric, labels);
    match value {
        Value::Number(number) => write_line(text, name, &labels, *number),
        Value::Histogram(histogram) => {
            let name = |part: &str| format!("{name}_{part}");
            let bounds = BUCKET_BOUNDS
                .iter()
                .map(f64::to_string)
                .chain(["+Inf".to_owned()]);
            for (bound, count) in bounds.zip(histogram.buckets.iter().chain([&histogram.count])) {
                let labels = [&labels[..], &[format!("le=\"{bound}\"")]].concat();
                write_line(text, &name("bucket"), &labels, *count as f64);
            }
            write_line(text, &name("sum"), &labels, histogram.seconds);
            write_line(text, &name("count"), &labels, histogram.count as f64);
        }
    }
}

fn label_pairs(metric: &Metric, labels: &[Box<str>]) -> Vec<String> {
    let pairs = metric.labels.iter().zip(labels);
    pairs
        .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
        .collect()
}

fn write_line(text: &mut String, name: &str, labels: &[String], value: f64) {
    let _ = match labels {
        [] => writeln!(text, "{name} {value}"),
        labels => writeln!(text, "{name}{{{}}} {value}", labels.join(",")),
    };
}

fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// Metrics of the server.
pub mod table {
    crate::metrics! { pub ALL:
        BUILD = Gauge "grasp_build_info" ["version"]
            "Always 1; the label is the version of grasp.";
        STARTED = Gauge "grasp_start_time_seconds" []
            "Start of the process, in Unix seconds.";
        MEMORY = Gauge "grasp_process_resident_bytes" []
            "Resident memory of the process (Linux).";
        FILES = Gauge "grasp_process_open_files" []
            "Open files and sockets of the process (Linux).";
        EVENTS = Counter "grasp_events_total" ["source", "outcome"]
            "Events received, by source (client, live, catch_up, daily) and outcome.";
        REJECTIONS = Counter "grasp_events_rejected_total" ["reason"]
            "Events refused, by reason.";
        INGEST = Histogram "grasp_ingest_seconds" []
            "Time from the arrival of a batch of events to its verdicts, which are durable.";
        SOCKETS = Gauge "grasp_relay_websockets" []
            "Open websockets of clients.";
        LISTENERS = Gauge "grasp_relay_listeners" []
            "Connections and feeds that have or had a subscription.";
        SUBSCRIPTIONS = Gauge "grasp_relay_subscriptions" []
            "Live subscriptions of clients.";
        REQUESTS = Counter "grasp_http_requests_total" ["what", "class"]
            "HTTP requests except those of the relay's address, by what was requested and the class of the status.";
        REQUEST_TIME = Histogram "grasp_http_request_seconds" ["what"]
            "Time from an HTTP request to the start of its response; for a push, until its commands were read.";
        PAGES = Counter "grasp_pages_total" ["page", "result"]
            "Pages that were asked for, by page and result: unchanged at the client (304), in memory (kept), made, to be confirmed (confirm), refused.";
        STORED = Gauge "grasp_store_events" []
            "Events that are served; the count is at most a minute old.";
        REPOSITORIES = Gauge "grasp_repositories" []
            "Repositories whose announcement is served; the count is at most a minute old.";
        STORE_BYTES = Gauge "grasp_store_bytes" []
            "Bytes of the event store's files, its log included.";
        GIT_BYTES = Gauge "grasp_git_bytes" []
            "Bytes of git data on disk: repositories, and uploads that wait for their event. At most an hour old.";
        DISK_BYTES = Gauge "grasp_disk_bytes" []
            "Bytes of all data on disk: events, git data and records. At most an hour old.";
        DAMAGED = Gauge "grasp_repositories_damaged" []
            "Repositories whose git objects are not all on disk any more.";
        CERTIFICATE_DAYS = Gauge "grasp_tls_certificate_days_left" []
            "Days for which the TLS certificate is valid, 0 without one; absent if the server does no TLS itself.";
        COMPARED = Gauge "grasp_compared_servers" ["refs"]
            "Announced servers of hosted repositories, by what the last comparison of refs found (equal, different, unreachable, unknown).";
        STORE_UP = Gauge "grasp_store_up" []
            "1 if the disk could be written and the event store read when they were tried last, otherwise 0.";
        HELD = Gauge "grasp_purgatory_held" ["kind"]
            "Events that wait for their git data, by kind (announcement, state, proposal).";
        HELD_BYTES = Gauge "grasp_purgatory_bytes" []
            "Approximate bytes of events that wait for their git data.";
        EXPIRED = Gauge "grasp_purgatory_expired" []
            "Events that expired without their git data and are remembered.";
        STAGED = Gauge "grasp_purgatory_staged" []
            "Events that uploads wait for.";
        STAGED_BYTES = Gauge "grasp_purgatory_staged_bytes" []
            "Bytes of uploads that wait for their event.";
        PENDING_CLEANUP = Gauge "grasp_purgatory_cleanup_tasks" []
            "Cleanup tasks: data on disk that is still to be created or removed.";
        PURGATORY_UP = Gauge "grasp_purgatory_up" []
            "1 if purgatory works, 0 while its records cannot be written.";
        IS_WRITER = Gauge "grasp_node_is_writer" []
            "1 if this node admits events and pushes, 0 if it forwards them. Always 1 for a single process.";
        FEED_LAG = Gauge "grasp_node_feed_lag" []
            "Events that are committed and not published to the subscriptions of this node yet.";
        PACK_CACHE_BYTES = Gauge "grasp_pack_cache_bytes" []
            "Bytes of packs from the object store on the disk of this node.";
        PACK_CACHE_READS = Counter "grasp_pack_cache_reads_total" ["result"]
            "Reads of repositories, by result: all packs were on disk (hit), or some were downloaded first (miss).";
        PACK_UPLOADING = Gauge "grasp_pack_uploads_open" []
            "Files of packs that this node is uploading to the object store.";
        PACK_FAILURES = Counter "grasp_pack_storage_failures_total" []
            "Requests to the object store that failed, however often they were repeated.";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::metrics! { ALL:
        SEEN = Counter "seen_total" ["colour"] "Things seen.";
        LEVEL = Gauge "level" [] "How full it is.";
        WORK = Histogram "work_seconds" [] "How long work takes.";
    }

    #[test]
    fn counters_are_rendered_with_their_labels() {
        let metrics = Metrics::default();
        metrics.add(&SEEN, &["red"], 2);
        metrics.add(&SEEN, &["red"], 1);
        metrics.add(&SEEN, &["a\"b\\c\nd"], 1);
        let expected = "# HELP seen_total Things seen.\n# TYPE seen_total counter\n\
            seen_total{colour=\"a\\\"b\\\\c\\nd\"} 1\nseen_total{colour=\"red\"} 3\n";
        assert_eq!(metrics.render(&[&SEEN]), expected);
    }

    #[test]
    fn metrics_without_labels_are_rendered_before_their_first_update() {
        let metrics = Metrics::default();
        assert!(metrics.render(&[&LEVEL]).ends_with("\nlevel 0\n"));
        metrics.set(&LEVEL, &[], 0.5);
        assert!(metrics.render(&[&LEVEL]).ends_with("\nlevel 0.5\n"));
    }

    #[test]
    fn durations_count_in_every_bucket_above_them() {
        let metrics = Metrics::default();
        metrics.observe(&WORK, &[], Duration::from_millis(20));
        metrics.observe(&WORK, &[], Duration::from_secs(400));
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
    fn the_number_of_series_is_limited() {
        let metrics = Metrics::default();
        for number in 0..MAX_SERIES + 100 {
            metrics.add(&SEEN, &[&number.to_string()], 1);
        }
        metrics.add(&SEEN, &["7"], 1);
        assert_eq!(metrics.value(&SEEN, &[OTHER_LABEL]), Some(100.0));
        assert_eq!(metrics.value(&SEEN, &["7"]), Some(2.0));
        assert_eq!(metrics.render(&[&SEEN]).lines().count(), MAX_SERIES + 3);
    }

    #[test]
    fn further_series_of_a_gauge_are_left_out() {
        crate::metrics! { GAUGES: DEPTH = Gauge "depth" ["lake"] "How deep it is."; }
        let metrics = Metrics::default();
        for number in 0..MAX_SERIES + 100 {
            metrics.set(&DEPTH, &[&number.to_string()], 1.0);
            metrics.set(&SEEN, &[&number.to_string()], 2.0);
        }
        assert_eq!(metrics.render(GAUGES).lines().count(), MAX_SERIES + 2);
        assert_eq!(metrics.value(&DEPTH, &[OTHER_LABEL]), None);
        assert_eq!(metrics.value(&SEEN, &[OTHER_LABEL]), Some(200.0));
    }

    #[test]
    fn replaced_metrics_have_no_earlier_series_and_others_stay() {
        let metrics = Metrics::default();
        metrics.add(&SEEN, &["red"], 1);
        metrics.set(&LEVEL, &[], 0.5);
        metrics.observe(&WORK, &[], Duration::from_secs(1));
        let current = Metrics::default();
        current.clear(&SEEN);
        current.set(&SEEN, &["blue"], 3.0);
        current.clear(&LEVEL);
        metrics.replace(&current);
        assert_eq!(metrics.value(&SEEN, &["red"]), None);
        assert_eq!(metrics.value(&SEEN, &["blue"]), Some(3.0));
        assert!(metrics.render(&[&LEVEL]).ends_with("\nlevel 0\n"));
        assert_eq!(metrics.value(&WORK, &[]), Some(1.0));
    }

    #[test]
    fn removed_series_are_not_rendered() {
        let metrics = Metrics::default();
        metrics.add(&SEEN, &["red"], 1);
        metrics.add(&SEEN, &["blue"], 1);
        metrics.remove(&SEEN, "red");
        assert!(!metrics.render(ALL).contains("red"));
        assert_eq!(metrics.value(&SEEN, &["red"]), None);
        assert_eq!(metrics.value(&SEEN, &["blue"]), Some(1.0));
    }
}
