//! Metrics of sync, under the same names in every program that exports them.
//!
//! The metrics are [`ALL`]. Their values come from the reports of a syncer ([`record_report`]) and from its status
//! ([`record_status`]), and go to a [`MetricSink`]: the registry of the program, or [`SyncMetrics`], which writes the
//! text format of Prometheus.
//!
//! ```
//! use grasp_sync::driver::Observer;
//! use grasp_sync::engine::{Report, Source};
//! use grasp_sync::metrics::SyncMetrics;
//! use grasp_sync::Settings;
//!
//! let metrics = SyncMetrics::default();
//! let settings = Settings::new("relay.example.com".parse()?).with_observer(metrics.clone());
//! settings.observer.report(&Report::Stored { from: Source::Direct, count: 2 });
//! // With a syncer: metrics.render(&syncer.status().await).
//! let text = metrics.render(&Default::default());
//! assert!(text.contains("grasp_sync_events_total{source=\"direct\"} 2\n"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A registry of the program takes the same values:
//!
//! ```
//! use std::cell::RefCell;
//! use grasp_sync::engine::{Report, Source};
//! use grasp_sync::metrics::{ALL, Metric, MetricKind, MetricSink, record_outbox, record_report, record_status};
//! use grasp_sync::outbox::OutboxStats;
//!
//! #[derive(Default)]
//! struct Lines(RefCell<Vec<String>>);
//!
//! impl MetricSink for Lines {
//!     fn add(&self, metric: &Metric, labels: &[&str], amount: u64) {
//!         self.0.borrow_mut().push(format!("{}{labels:?} + {amount}", metric.name));
//!     }
//!     fn set(&self, metric: &Metric, labels: &[&str], to: f64) {
//!         self.0.borrow_mut().push(format!("{}{labels:?} = {to}", metric.name));
//!     }
//!     fn remove(&self, _: &Metric, _: &str) {}
//!     fn clear(&self, _: &Metric) {}
//! }
//!
//! let lines = Lines::default();
//! record_report(&lines, &Report::Stored { from: Source::Direct, count: 2 });
//! record_status(&lines, &Default::default());
//! record_outbox(&lines, Some(OutboxStats { authors: 3, ..OutboxStats::default() }));
//! assert_eq!(lines.0.borrow()[0], "grasp_sync_events_total[\"direct\"] + 2");
//! assert!(lines.0.borrow().contains(&"grasp_sync_relays_tracked[] = 0".to_owned()));
//! assert!(lines.0.borrow().contains(&"grasp_sync_outbox_authors[] = 3".to_owned()));
//! assert!(ALL.iter().all(|metric| (metric.kind == MetricKind::Counter) == metric.name.ends_with("_total")));
//! ```

mod table;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use grasp_core::RelayUrl;
use grasp_core::admission::SyncPath;
use grasp_core::limits::Health;

pub use self::table::ALL;
use self::table::{
    ATTEMPTS, CONNECTED, CONSOLIDATIONS, COVERAGE, DEAD, DOWN, EVENTS, FAILURES, GAPS, HEALTH,
    INTERRUPTIONS, MISSING, ONLINE, OUTBOX_AUTHORS, OUTBOX_CURSORS, OUTBOX_RELAYS, OUTBOX_WORKERS,
    PAGED, RECEIVED, REFUSALS, REQUESTS, TRACKED, UP, UPTIME,
};
use crate::driver::{Log, Observer, RelayStatus, Status};
use crate::engine::{Report, Source};
use crate::outbox::OutboxStats;

/// The definition of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metric {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: MetricKind,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The meaning, in one sentence.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MetricKind {
    /// A value that only grows.
    Counter,
    /// A value that goes up and down.
    Gauge,
}

/// A registry of metrics.
pub trait MetricSink {
    /// Adds to a counter.
    fn add(&self, metric: &Metric, labels: &[&str], amount: u64);
    /// Sets a gauge, or a counter that is counted elsewhere.
    ///
    /// A registry that limits its series leaves out further ones of a gauge, which have no common value, and adds up those of
    /// a counter, which [`clear`](Self::clear) precedes.
    fn set(&self, metric: &Metric, labels: &[&str], to: f64);
    /// Removes the series with this first label.
    fn remove(&self, metric: &Metric, first: &str);
    /// Removes all series of a metric.
    fn clear(&self, metric: &Metric);
}

/// Counts one report of sync.
pub fn record_report(metrics: &impl MetricSink, report: &Report) {
    match report {
        Report::Retired { relay } => {
            for metric in ALL
                .iter()
                .filter(|metric| metric.labels.first() == Some(&"relay"))
            {
                metrics.remove(metric, relay.as_str());
            }
        }
        Report::Stored { from, count } => {
            metrics.add(&EVENTS, &[source_label(from)], *count as u64);
        }
        Report::NoNegentropy { relay, .. } => metrics.set(&PAGED, &[relay.as_str()], 1.0),
        Report::Negentropy { relay } => metrics.set(&PAGED, &[relay.as_str()], 0.0),
        Report::Refused { refusal, .. } => metrics.add(&REFUSALS, &[refusal.label()], 1),
        Report::Consolidated { relay, .. } => metrics.add(&CONSOLIDATIONS, &[relay.as_str()], 1),
        Report::Requested { relay, request } => {
            let request = format!("{request:?}").to_lowercase();
            metrics.add(&REQUESTS, &[relay.as_str(), &request], 1);
        }
        _ => {}
    }
}

fn source_label(from: &Source) -> &'static str {
    match from {
        Source::Direct => "direct",
        Source::Relay {
            path: SyncPath::Live,
            ..
        } => "live",
        Source::Relay {
            path: SyncPath::CatchUp,
            ..
        } => "catch_up",
        Source::Relay {
            path: SyncPath::Daily,
            ..
        } => "daily",
    }
}

type StatusValue = fn(&RelayStatus) -> Option<f64>;

/// Metrics that are read from the status of each relay.
const OF_STATUS: [(&Metric, StatusValue); 11] = [
    (&CONNECTED, |relay| Some(f64::from(relay.connection as u8))),
    (&HEALTH, |relay| Some(f64::from(relay.health as u8) + 1.0)),
    (&FAILURES, |relay| {
        Some(f64::from(relay.consecutive_failures()))
    }),
    (&GAPS, |relay| Some(relay.gaps as f64)),
    (&RECEIVED, |relay| Some(relay.counts.stored() as f64)),
    (&INTERRUPTIONS, |relay| Some(relay.interruptions as f64)),
    (&MISSING, |relay| {
        Some(relay.reliability.as_ref()?.missing.values().sum::<u64>() as f64)
    }),
    (&UP, |relay| {
        Some(relay.reliability.as_ref()?.up.as_secs_f64())
    }),
    (&DOWN, |relay| {
        Some(relay.reliability.as_ref()?.down.as_secs_f64())
    }),
    (&UPTIME, |relay| relay.reliability.as_ref()?.uptime()),
    (&COVERAGE, |relay| relay.reliability.as_ref()?.coverage()),
];

/// Sets what the status of each relay says, and the totals. Series of other relays are removed.
///
/// In a registry that is read meanwhile, record into an empty one, and replace the metrics that were set or cleared by it at
/// once: otherwise a reader may find a part of them.
pub fn record_status(metrics: &impl MetricSink, relays: &BTreeMap<RelayUrl, RelayStatus>) {
    for (metric, value) in OF_STATUS {
        metrics.clear(metric);
        for (relay, status) in relays {
            if let Some(value) = value(status) {
                metrics.set(metric, &[relay.as_str()], value);
            }
        }
    }
    metrics.clear(&ATTEMPTS);
    for (relay, status) in relays {
        for (result, count) in [("success", status.connects), ("failure", status.failures)] {
            metrics.set(&ATTEMPTS, &[relay.as_str(), result], count as f64);
        }
    }
    let count = |is_counted: fn(&RelayStatus) -> bool| {
        relays.values().filter(|status| is_counted(status)).count() as f64
    };
    metrics.set(&TRACKED, &[], relays.len() as f64);
    metrics.set(
        &ONLINE,
        &[],
        count(|status| status.connection.is_connected()),
    );
    metrics.set(&DEAD, &[], count(|status| status.health == Health::Dead));
}

/// Sets the figures of the outbox; none if it does not run.
pub fn record_outbox(metrics: &impl MetricSink, stats: Option<OutboxStats>) {
    for metric in [
        &OUTBOX_AUTHORS,
        &OUTBOX_RELAYS,
        &OUTBOX_CURSORS,
        &OUTBOX_WORKERS,
    ] {
        metrics.clear(metric);
    }
    let Some(stats) = stats else {
        return;
    };
    metrics.set(&OUTBOX_AUTHORS, &[], stats.authors as f64);
    metrics.set(&OUTBOX_RELAYS, &[], stats.relays as f64);
    metrics.set(&OUTBOX_CURSORS, &[], stats.cursors as f64);
    metrics.set(&OUTBOX_WORKERS, &[], stats.workers as f64);
}

/// The metrics of a syncer, for programs without a registry. Also writes the reports to the log. Clones share the values.
#[derive(Clone, Debug, Default)]
pub struct SyncMetrics(Arc<Mutex<BTreeMap<&'static str, Series>>>);

/// The series of one metric, by label values.
type Series = BTreeMap<Vec<String>, f64>;

/// Series of one metric; of a counter with more, the rest share the label `(rest)`. Any event can name a relay.
const MAX_SERIES: usize = 512;

impl SyncMetrics {
    /// Returns all metrics in the text format of Prometheus, with this status.
    pub fn render(&self, status: &Status) -> String {
        let current = Self::default();
        record_status(&current, &status.relays);
        record_outbox(&current, status.outbox);
        let mut families = self.families();
        families.append(&mut current.families());
        let mut text = String::new();
        for metric in ALL {
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
            };
            let name = metric.name;
            let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", metric.help);
            for (labels, value) in families.get(name).into_iter().flatten() {
                write_line(&mut text, metric, labels, *value);
            }
        }
        text
    }

    fn families(&self) -> MutexGuard<'_, BTreeMap<&'static str, Series>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to the series with these labels; beyond the limit to the one that the rest share.
fn add_to(series: &mut Series, labels: Vec<String>, amount: f64) {
    let is_further = series.len() >= MAX_SERIES && !series.contains_key(&labels);
    let labels = match is_further {
        true => vec!["(rest)".to_owned(); labels.len()],
        false => labels,
    };
    *series.entry(labels).or_default() += amount;
}

fn owned(labels: &[&str]) -> Vec<String> {
    labels.iter().map(|label| (*label).to_owned()).collect()
}

fn write_line(text: &mut String, metric: &Metric, labels: &[String], value: f64) {
    let mut pairs = Vec::new();
    for (name, value) in metric.labels.iter().zip(labels) {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"");
        pairs.push(format!("{name}=\"{}\"", value.replace('\n', "\\n")));
    }
    let name = metric.name;
    let _ = match pairs.is_empty() {
        true => writeln!(text, "{name} {value}"),
        false => writeln!(text, "{name}{{{}}} {value}", pairs.join(",")),
    };
}

impl MetricSink for SyncMetrics {
    fn add(&self, metric: &Metric, labels: &[&str], amount: u64) {
        let mut families = self.families();
        let series = families.entry(metric.name).or_default();
        add_to(series, owned(labels), amount as f64);
    }

    fn set(&self, metric: &Metric, labels: &[&str], to: f64) {
        let mut families = self.families();
        let series = families.entry(metric.name).or_default();
        let labels = owned(labels);
        if series.len() < MAX_SERIES || series.contains_key(&labels) {
            series.insert(labels, to);
        } else if metric.kind == MetricKind::Counter {
            add_to(series, labels, to);
        }
    }

    fn remove(&self, metric: &Metric, first: &str) {
        if let Some(series) = self.families().get_mut(metric.name) {
            series.retain(|labels, _| labels.first().is_none_or(|label| label != first));
        }
    }

    fn clear(&self, metric: &Metric) {
        self.families().insert(metric.name, Series::new());
    }
}

impl Observer for SyncMetrics {
    fn report(&self, report: &Report) {
        Log.report(report);
        record_report(self, report);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use grasp_core::RepoId;
    use grasp_core::limits::{ConnectionStatus, PeerText};

    use super::*;
    use crate::driver::Failed;
    use crate::engine::{Fault, PeerReliability, Request};
    use crate::limits::Refusal;

    impl SyncMetrics {
        fn value(&self, metric: &Metric, labels: &[&str]) -> Option<f64> {
            self.families()
                .get(metric.name)?
                .get(&owned(labels))
                .copied()
        }
    }

    fn recorded(reports: &[Report]) -> SyncMetrics {
        let metrics = SyncMetrics::default();
        reports
            .iter()
            .for_each(|report| record_report(&metrics, report));
        metrics
    }

    /// Returns the metrics of one relay with this status.
    fn shown(status: RelayStatus) -> SyncMetrics {
        let metrics = SyncMetrics::default();
        record_status(&metrics, &[(relay(), status)].into());
        metrics
    }

    fn relay() -> RelayUrl {
        "wss://relay.example.com".parse().unwrap()
    }

    #[test]
    fn connection_states_are_numbers_and_attempts_are_counted() {
        let name = relay();
        for (number, connection) in [
            ConnectionStatus::Disconnected,
            ConnectionStatus::Connecting,
            ConnectionStatus::Syncing,
            ConnectionStatus::Connected,
            ConnectionStatus::ConnectedHistoricSyncFailures,
        ]
        .into_iter()
        .enumerate()
        {
            let metrics = shown(RelayStatus {
                connection,
                connects: 2,
                ..RelayStatus::default()
            });
            assert_eq!(
                metrics.value(&CONNECTED, &[name.as_str()]),
                Some(number as f64)
            );
            assert_eq!(
                metrics.value(&ONLINE, &[]),
                Some(f64::from(u8::from(number > 1)))
            );
            assert_eq!(
                metrics.value(&ATTEMPTS, &[name.as_str(), "success"]),
                Some(2.0)
            );
            assert_eq!(metrics.value(&FAILURES, &[name.as_str()]), Some(0.0));
        }
        let failed = Some(Failed {
            why: Fault::Unreachable,
            attempts: 2,
            retry_at: 9.into(),
        });
        let metrics = shown(RelayStatus {
            failed,
            failures: 5,
            ..RelayStatus::default()
        });
        assert_eq!(metrics.value(&FAILURES, &[name.as_str()]), Some(2.0));
        assert_eq!(
            metrics.value(&ATTEMPTS, &[name.as_str(), "failure"]),
            Some(5.0)
        );
    }

    #[test]
    fn a_dead_relay_is_counted_until_it_is_retired() {
        let metrics = shown(RelayStatus {
            health: Health::Dead,
            ..RelayStatus::default()
        });
        assert_eq!(metrics.value(&HEALTH, &[relay().as_str()]), Some(3.0));
        let totals = || (metrics.value(&TRACKED, &[]), metrics.value(&DEAD, &[]));
        assert_eq!(totals(), (Some(1.0), Some(1.0)));
        record_report(&metrics, &Report::Retired { relay: relay() });
        record_status(&metrics, &BTreeMap::new());
        assert_eq!(totals(), (Some(0.0), Some(0.0)));
        assert!(
            !metrics
                .render(&Status::default())
                .contains("relay.example.com")
        );
    }

    #[test]
    fn events_are_counted_by_source_and_relay() {
        let from = |path| Source::Relay {
            relay: relay(),
            path,
        };
        let metrics = recorded(&[
            Report::Stored {
                from: Source::Direct,
                count: 2,
            },
            Report::Stored {
                from: from(SyncPath::Live),
                count: 3,
            },
            Report::Stored {
                from: from(SyncPath::Daily),
                count: 4,
            },
        ]);
        for (source, count) in [("direct", 2.0), ("live", 3.0), ("daily", 4.0)] {
            assert_eq!(metrics.value(&EVENTS, &[source]), Some(count));
        }
        let mut status = RelayStatus {
            gaps: 4,
            interruptions: 3,
            ..RelayStatus::default()
        };
        (status.counts.live, status.counts.daily) = (3, 4);
        let metrics = shown(status);
        assert_eq!(metrics.value(&GAPS, &[relay().as_str()]), Some(4.0));
        assert_eq!(metrics.value(&RECEIVED, &[relay().as_str()]), Some(7.0));
        assert_eq!(
            metrics.value(&INTERRUPTIONS, &[relay().as_str()]),
            Some(3.0)
        );
    }

    #[test]
    fn requests_are_counted_by_relay_and_kind() {
        let sent = |request| Report::Requested {
            relay: relay(),
            request,
        };
        let metrics = recorded(&[
            sent(Request::Live),
            sent(Request::Page),
            sent(Request::Page),
        ]);
        let name = relay();
        assert_eq!(
            metrics.value(&REQUESTS, &[name.as_str(), "live"]),
            Some(1.0)
        );
        assert_eq!(
            metrics.value(&REQUESTS, &[name.as_str(), "page"]),
            Some(2.0)
        );
    }

    #[test]
    fn reliability_is_shown_as_ratios() {
        let seen = PeerReliability {
            up: Duration::from_secs(30),
            down: Duration::from_secs(10),
            received: 1,
            compared: 3,
            lacking: 3,
            ..PeerReliability::default()
        };
        let metrics = shown(RelayStatus {
            reliability: Some(seen),
            ..RelayStatus::default()
        });
        assert_eq!(metrics.value(&UPTIME, &[relay().as_str()]), Some(0.75));
        assert_eq!(metrics.value(&COVERAGE, &[relay().as_str()]), Some(0.25));
        assert_eq!(metrics.value(&UP, &[relay().as_str()]), Some(30.0));
        assert_eq!(metrics.value(&DOWN, &[relay().as_str()]), Some(10.0));
    }

    #[test]
    fn missing_events_are_not_added_up_over_passes() {
        let owner = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
        let repo = |name: &str| format!("30617:{owner}:{name}").parse::<RepoId>().unwrap();
        let seen = PeerReliability {
            compared: 90,
            lacking: 30,
            missing: [(repo("x"), 2), (repo("y"), 1)].into(),
            ..PeerReliability::default()
        };
        let metrics = shown(RelayStatus {
            reliability: Some(seen),
            ..RelayStatus::default()
        });
        assert_eq!(metrics.value(&MISSING, &[relay().as_str()]), Some(3.0));
    }

    #[test]
    fn failures_of_an_earlier_process_are_shown() {
        let seen = PeerReliability {
            consecutive_failures: 7,
            ..PeerReliability::default()
        };
        let metrics = shown(RelayStatus {
            reliability: Some(seen),
            ..RelayStatus::default()
        });
        assert_eq!(metrics.value(&FAILURES, &[relay().as_str()]), Some(7.0));
    }

    #[test]
    fn texts_of_relays_are_no_labels() {
        let refusal = Refusal::RetainedBytes { stated: Some(77) };
        let text = PeerText::new("ERROR: text of a relay");
        let metrics = recorded(&[Report::Refused {
            relay: relay(),
            refusal,
            text,
        }]);
        assert_eq!(metrics.value(&REFUSALS, &["retained_bytes"]), Some(1.0));
    }

    #[test]
    fn a_relay_that_supports_nip77_again_is_not_shown_as_paged() {
        let (refusal, text) = (Refusal::NegUnsupported, PeerText::new(""));
        let paged = Report::NoNegentropy {
            relay: relay(),
            refusal,
            text,
        };
        let metrics = recorded(std::slice::from_ref(&paged));
        assert_eq!(metrics.value(&PAGED, &[relay().as_str()]), Some(1.0));
        let metrics = recorded(&[paged, Report::Negentropy { relay: relay() }]);
        assert_eq!(metrics.value(&PAGED, &[relay().as_str()]), Some(0.0));
    }

    #[test]
    fn many_relays_share_the_last_series() {
        let metrics = SyncMetrics::default();
        for n in 0..2 * MAX_SERIES {
            metrics.add(&REQUESTS, &[&n.to_string(), "page"], 1);
        }
        let text = metrics.render(&Status::default());
        assert!(
            text.contains("grasp_sync_requests_total{relay=\"(rest)\",request=\"(rest)\"} 512\n")
        );
    }

    #[test]
    fn further_gauges_are_left_out_and_further_counters_added_up() {
        let relay = |n: usize| format!("wss://r{n:04}.example.com").parse().unwrap();
        let status = |n: usize| RelayStatus {
            gaps: n as u64,
            connects: 1,
            failures: 1,
            ..RelayStatus::default()
        };
        let relays = (0..2 * MAX_SERIES).map(|n| (relay(n), status(n)));
        let all = Status {
            relays: relays.collect(),
            ..Status::default()
        };
        let metrics = SyncMetrics::default();
        let text = metrics.render(&all);
        assert_eq!(metrics.render(&all), text, "nothing is counted twice");
        let lines = |metric: &Metric| {
            let name = format!("{}{{", metric.name);
            text.lines().filter(|line| line.starts_with(&name)).count()
        };
        assert_eq!(lines(&HEALTH), MAX_SERIES);
        assert_eq!(metrics.value(&HEALTH, &["(rest)"]), None);
        assert_eq!(lines(&ATTEMPTS), MAX_SERIES + 1);
        let rest = metrics.value(&ATTEMPTS, &["(rest)", "(rest)"]);
        assert_eq!(rest, Some((3 * MAX_SERIES) as f64));
        let further: usize = (MAX_SERIES..2 * MAX_SERIES).sum();
        let rest = metrics.value(&GAPS, &["(rest)"]);
        assert_eq!(rest, Some(further as f64));
        assert_eq!(metrics.value(&TRACKED, &[]), Some((2 * MAX_SERIES) as f64));
    }
}
