//! Metrics of sync and of the hunt, and the list of all metrics.

use std::collections::BTreeMap;

use grasp_core::RelayUrl;
use grasp_core::admission::SyncPath;
use grasp_core::limits::Health;
use grasp_purgatory::hunt::{FetchError, HostFigures, HuntFigures, HuntReport};
use grasp_relay::metrics::{Metric, Metrics, OTHER_LABEL, table};
use grasp_sync::driver::{Log, Observer, RelayStatus};
use grasp_sync::engine::{Report, Source};

grasp_relay::metrics! { pub(crate) SYNC:
    TRACKED = Gauge "grasp_sync_relays_tracked" []
        "Relays that are followed.";
    ONLINE = Gauge "grasp_sync_relays_connected" []
        "Relays that are connected.";
    DEAD = Gauge "grasp_sync_relays_dead" []
        "Relays that have failed for so long that connection attempts are rare.";
    EVENTS = Counter "grasp_sync_events_total" ["source"]
        "New events, by source (direct, live, catch_up, daily).";
    CONNECTED = Gauge "grasp_sync_relay_connected" ["relay"]
        "State of the connection: 0 disconnected, 1 connecting, 2 fetching history, 3 complete and live, 4 live but some history could not be fetched.";
    HEALTH = Gauge "grasp_sync_relay_status" ["relay"]
        "Health of the relay: 1 healthy, 2 degraded, 3 dead.";
    FAILURES = Gauge "grasp_sync_relay_failures" ["relay"]
        "Failed attempts to connect since the last success.";
    ATTEMPTS = Counter "grasp_sync_connection_attempts_total" ["relay", "result"]
        "Attempts to connect, by result (success, failure).";
    GAPS = Counter "grasp_sync_gap_events_total" ["relay"]
        "Events that an open live subscription should have delivered and that a catch-up or the daily pass found.";
    RECEIVED = Counter "grasp_sync_relay_events_total" ["relay"]
        "New events that the relay sent.";
    UP = Counter "grasp_sync_relay_up_seconds_total" ["relay"]
        "Time that the relay was connected, updated when a connection ends and after each daily pass.";
    DOWN = Counter "grasp_sync_relay_down_seconds_total" ["relay"]
        "Time that the relay was not connected, updated at the same times.";
    UPTIME = Gauge "grasp_sync_relay_uptime_ratio" ["relay"]
        "Share of time that the relay was connected, from 0 to 1.";
    COVERAGE = Gauge "grasp_sync_relay_coverage_ratio" ["relay"]
        "Share of events that the relay had, of those it sent and those of ours it was compared with, from 0 to 1.";
    MISSING = Gauge "grasp_sync_relay_missing" ["relay"]
        "Events of repositories that list the relay, and that it lacks, as of the last full pass; up to 1000 of a repository.";
    PAGED = Gauge "grasp_sync_relay_without_negentropy" ["relay"]
        "1 for a relay whose history is fetched by pages, because it does not support NIP-77.";
    REFUSALS = Counter "grasp_sync_refusals_total" ["meaning"]
        "Refusals by relays (CLOSED, NOTICE, OK), once per connection for each meaning.";
    CONSOLIDATIONS = Counter "grasp_sync_consolidations_total" ["relay"]
        "Consolidations of live subscriptions.";
    REQUESTS = Counter "grasp_sync_requests_total" ["relay", "request"]
        "Requests sent to a relay, by kind: REQ that stays open (live), for a page (page) or for ids (ids), and NEG-OPEN (compare).";
    INTERRUPTIONS = Gauge "grasp_sync_relay_interruptions" ["relay"]
        "Interruptions of live subscriptions since the last full pass. Events that were published meanwhile with an older date come with the next full pass.";
}

grasp_relay::metrics! { pub(crate) HUNT:
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
pub(crate) fn all() -> Vec<&'static Metric> {
    [table::ALL, SYNC, HUNT].concat()
}

/// Returns the metrics of a sidecar.
pub(crate) fn of_sidecar() -> Vec<&'static Metric> {
    [&table::BUILD, &table::STARTED]
        .into_iter()
        .chain(SYNC.iter().copied())
        .collect()
}

/// Logs and counts the reports of sync.
pub(crate) struct SyncObserver(pub(crate) Metrics);

impl Observer for SyncObserver {
    fn report(&self, report: &Report) {
        Log.report(report);
        record_sync(&self.0, report);
    }
}

/// Counts one report of sync.
fn record_sync(metrics: &Metrics, report: &Report) {
    match report {
        Report::Retired { relay } => {
            for metric in SYNC
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
pub(crate) fn set_relay_gauges(metrics: &Metrics, relays: &BTreeMap<RelayUrl, RelayStatus>) {
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
    use std::time::Duration;

    use grasp_core::limits::ConnectionStatus;
    use grasp_core::limits::PeerText;
    use grasp_core::{Host, RepoId};
    use grasp_relay::metrics::Kind;
    use grasp_sync::driver::Failed;
    use grasp_sync::engine::{Fault, PeerReliability, Request};
    use grasp_sync::limits::Refusal;

    use super::*;

    fn recorded(reports: &[Report]) -> Metrics {
        let metrics = Metrics::default();
        reports
            .iter()
            .for_each(|report| record_sync(&metrics, report));
        metrics
    }

    /// Returns the metrics of one relay with this status.
    fn shown(status: RelayStatus) -> Metrics {
        let metrics = Metrics::default();
        set_relay_gauges(&metrics, &[(relay(), status)].into());
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
        record_sync(&metrics, &Report::Retired { relay: relay() });
        set_relay_gauges(&metrics, &BTreeMap::new());
        assert_eq!(totals(), (Some(0.0), Some(0.0)));
        assert!(!metrics.render(SYNC).contains("relay.example.com"));
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
