//! Metrics of sync and of the hunt, and the list of all metrics.

use std::sync::LazyLock;

use grasp_purgatory::hunt::{FetchError, HostFigures, HuntFigures, HuntReport};
use grasp_sync::driver::{Log, Observer};
use grasp_sync::engine::Report;
use grasp_sync::metrics::{self, MetricKind, MetricSink};

use crate::metrics::{Kind, Metric, Metrics, OTHER_LABEL, table};

crate::metrics! { pub HUNT:
    HUNT_QUEUE = Gauge "grasp_purgatory_sync_queue_size" []
        "Repository names whose git data is hunted for.";
    HUNT_ATTEMPTS = Counter "grasp_purgatory_sync_attempts_total" ["result"]
        "Attempts to fetch a repository's git data, by result (complete, incomplete, needless).";
    HUNT_FETCHED = Counter "grasp_purgatory_sync_oids_fetched_total" []
        "Tips fetched with their history from other servers.";
    HUNT_FAILURES = Counter "grasp_purgatory_sync_failures_total" ["cause"]
        "Requests to git servers that failed, by cause.";
    HOST_IN_FLIGHT = Gauge "grasp_purgatory_domain_in_flight" ["domain"]
        "Requests that run or are about to, for each recently asked host.";
    HOST_WAITING = Gauge "grasp_purgatory_domain_waiting" ["domain"]
        "Repository names in the queue, for each recently asked host.";
    HOST_REQUESTS = Counter "grasp_purgatory_domain_requests_total" ["domain"]
        "Requests since the start, for each recently asked host.";
}

/// Hosts with series of their own, the busiest ones; the others share one.
const MAX_NAMED_HOSTS: usize = 100;

/// Returns all metrics.
pub fn all() -> Vec<&'static Metric> {
    let tables = [table::ALL, &sync(), HUNT];
    tables.concat()
}

/// Returns the metrics of a sidecar.
pub(crate) fn of_sidecar() -> Vec<&'static Metric> {
    [&table::BUILD, &table::STARTED]
        .into_iter()
        .chain(sync())
        .collect()
}

/// The metrics of sync, which grasp-sync defines.
static SYNC: LazyLock<Vec<Metric>> =
    LazyLock::new(|| metrics::ALL.iter().map(|metric| defined(metric)).collect());

/// Returns the metrics of sync.
pub fn sync() -> Vec<&'static Metric> {
    SYNC.iter().collect()
}

fn defined(metric: &metrics::Metric) -> Metric {
    Metric {
        name: metric.name,
        kind: match metric.kind {
            MetricKind::Counter => Kind::Counter,
            _ => Kind::Gauge,
        },
        help: metric.help,
        labels: metric.labels,
    }
}

/// The metrics of the server, as the registry for those of sync.
pub(crate) struct SyncSink<'a>(pub(crate) &'a Metrics);

impl MetricSink for SyncSink<'_> {
    fn add(&self, metric: &metrics::Metric, labels: &[&str], amount: u64) {
        self.0.add(&defined(metric), labels, amount);
    }

    fn set(&self, metric: &metrics::Metric, labels: &[&str], to: f64) {
        self.0.set(&defined(metric), labels, to);
    }

    fn remove(&self, metric: &metrics::Metric, first: &str) {
        self.0.remove(&defined(metric), first);
    }

    fn clear(&self, metric: &metrics::Metric) {
        self.0.clear(&defined(metric));
    }
}

/// Logs and counts the reports of sync.
pub(crate) struct SyncObserver(pub(crate) Metrics);

impl Observer for SyncObserver {
    fn report(&self, report: &Report) {
        Log.report(report);
        metrics::record_report(&SyncSink(&self.0), report);
    }
}

/// Counts one report of the hunt.
pub(crate) fn record_hunt(metrics: &Metrics, report: &HuntReport) {
    match report {
        HuntReport::Complete { .. } => metrics.add(&HUNT_ATTEMPTS, &["complete"], 1),
        HuntReport::Needless { .. } => metrics.add(&HUNT_ATTEMPTS, &["needless"], 1),
        HuntReport::Incomplete { .. } => metrics.add(&HUNT_ATTEMPTS, &["incomplete"], 1),
        HuntReport::Fetched { oids, .. } => metrics.add(&HUNT_FETCHED, &[], *oids as u64),
        HuntReport::Failed { error, .. } => metrics.add(&HUNT_FAILURES, &[failure_label(error)], 1),
        _ => {}
    }
}

/// Sets the gauges of the hunt by host. Series of hosts that the hunt has forgotten are removed.
pub(crate) fn set_hunt_gauges(metrics: &Metrics, figures: &HuntFigures) {
    for metric in [&HOST_IN_FLIGHT, &HOST_WAITING, &HOST_REQUESTS] {
        metrics.clear(metric);
    }
    let mut busiest: Vec<_> = figures.hosts.iter().collect();
    busiest.sort_by_key(|(_, f)| std::cmp::Reverse((f.in_flight + f.waiting, f.requests)));
    let (named, others) = busiest.split_at(busiest.len().min(MAX_NAMED_HOSTS));
    for (host, figures) in named {
        set_host_gauges(metrics, host.as_str(), figures);
    }
    if !others.is_empty() {
        let total = others
            .iter()
            .fold(HostFigures::default(), |sum, (_, one)| HostFigures {
                in_flight: sum.in_flight + one.in_flight,
                waiting: sum.waiting + one.waiting,
                requests: sum.requests.saturating_add(one.requests),
                ..sum
            });
        set_host_gauges(metrics, OTHER_LABEL, &total);
    }
}

fn set_host_gauges(metrics: &Metrics, host: &str, figures: &HostFigures) {
    metrics.set(&HOST_IN_FLIGHT, &[host], figures.in_flight as f64);
    metrics.set(&HOST_WAITING, &[host], figures.waiting as f64);
    metrics.set(&HOST_REQUESTS, &[host], figures.requests as f64);
}

fn failure_label(error: &FetchError) -> &'static str {
    match error {
        FetchError::Forbidden(_) => "forbidden",
        FetchError::Unreachable(_) => "unreachable",
        FetchError::RateLimited { .. } => "rate_limited",
        FetchError::Answered(_) => "answered",
        FetchError::Refused(_) => "refused",
        FetchError::Broken(_) => "broken",
        FetchError::TooLarge => "too_large",
        FetchError::TooManyRefs => "too_many_refs",
        FetchError::TooManyObjects { .. } => "too_many_objects",
        FetchError::Stalled => "stalled",
        FetchError::Cancelled => "cancelled",
        FetchError::Internal(_) => "internal",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use grasp_core::Host;

    use super::*;

    #[test]
    fn reports_are_counted_and_error_texts_are_no_labels() {
        let metrics = Metrics::default();
        let owner = nostr::key::PublicKey::from_byte_array([1; 32]);
        let repo = grasp_core::RepoId::new(owner, "x".parse().unwrap());
        let url: grasp_core::CloneUrl = "https://git.example.com/x.git".parse().unwrap();
        record_hunt(&metrics, &HuntReport::Complete { repo: repo.clone() });
        record_hunt(
            &metrics,
            &HuntReport::Fetched {
                repo: repo.clone(),
                url: url.clone(),
                oids: 3,
            },
        );
        let error = FetchError::Internal("words".into());
        record_hunt(&metrics, &HuntReport::Failed { repo, url, error });
        assert_eq!(metrics.value(&HUNT_ATTEMPTS, &["complete"]), Some(1.0));
        assert_eq!(metrics.value(&HUNT_FETCHED, &[]), Some(3.0));
        assert_eq!(metrics.value(&HUNT_FAILURES, &["internal"]), Some(1.0));
    }

    #[test]
    fn series_of_forgotten_hosts_are_removed() {
        let metrics = Metrics::default();
        let host: Host = "git.example.com".parse().unwrap();
        let figures = HostFigures {
            in_flight: 2,
            waiting: 1,
            requests: 9,
            ..HostFigures::default()
        };
        let hosts = vec![(host.clone(), figures)];
        set_hunt_gauges(
            &metrics,
            &HuntFigures {
                hosts,
                ..HuntFigures::default()
            },
        );
        assert_eq!(metrics.value(&HOST_REQUESTS, &[host.as_str()]), Some(9.0));
        set_hunt_gauges(&metrics, &HuntFigures::default());
        assert_eq!(metrics.value(&HOST_REQUESTS, &[host.as_str()]), None);
    }

    #[test]
    fn ten_thousand_hosts_have_a_hundred_and_one_series() {
        let metrics = Metrics::default();
        let host = |n: u32| format!("h{n}.example.com").parse::<Host>().unwrap();
        let one = HostFigures {
            in_flight: 1,
            waiting: 2,
            requests: 3,
            ..HostFigures::default()
        };
        let busy = HostFigures {
            requests: 99,
            ..one
        };
        let mut hosts: Vec<_> = (0..10_000).map(|n| (host(n), one)).collect();
        hosts.push((host(10_000), busy));
        set_hunt_gauges(
            &metrics,
            &HuntFigures {
                hosts,
                ..HuntFigures::default()
            },
        );
        let text = metrics.render(&[&HOST_REQUESTS]);
        assert_eq!(
            text.lines().filter(|line| !line.starts_with('#')).count(),
            MAX_NAMED_HOSTS + 1
        );
        assert_eq!(
            metrics.value(&HOST_REQUESTS, &["h10000.example.com"]),
            Some(99.0)
        );
        assert_eq!(
            metrics.value(&HOST_WAITING, &[OTHER_LABEL]),
            Some(2.0 * 9_901.0)
        );
    }

    #[test]
    fn metrics_have_the_names_of_the_design() {
        let names = [
            ("purgatory_sync_queue_size", &HUNT_QUEUE),
            ("purgatory_sync_attempts_total", &HUNT_ATTEMPTS),
            ("purgatory_sync_oids_fetched_total", &HUNT_FETCHED),
            ("purgatory_domain_in_flight", &HOST_IN_FLIGHT),
            ("purgatory_domain_requests_total", &HOST_REQUESTS),
        ];
        for (name, metric) in names {
            assert_eq!(metric.name, format!("grasp_{name}"));
            assert!(
                !metric.labels.contains(&"identifier"),
                "any author can choose identifiers"
            );
        }
    }

    fn docs(path: &str) -> std::path::PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../docs")
            .join(path)
    }

    #[test]
    fn names_are_unique_and_counters_end_with_total() {
        let names: BTreeSet<_> = all().iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), all().len());
        for metric in all() {
            assert!(metric.name.starts_with("grasp_"), "{}", metric.name);
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
        }
    }

    /// Returns the names of our metrics in a file of the monitoring how-to.
    fn mentioned(file: &str) -> BTreeSet<String> {
        let text = std::fs::read_to_string(docs("how-to/monitoring").join(file)).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words
            .filter(|word| word.starts_with("grasp_"))
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn dashboard_and_alerts_use_metrics_that_exist() {
        for file in ["dashboard.json", "alerts.yml"] {
            for name in mentioned(file) {
                let base = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|end| name.strip_suffix(end))
                    .unwrap_or(&name);
                let known = all()
                    .iter()
                    .any(|metric| metric.name == base || metric.name == name);
                assert!(known, "{file}: {name}");
            }
        }
    }
}
