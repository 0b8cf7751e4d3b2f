//! Metrics of the hunt for git data.

use grasp_purgatory::hunt::{FetchError, HostFigures, HuntFigures, HuntReport};
use grasp_relay::metrics::{Metric, Metrics, OTHER_LABEL};

/// Hosts with series of their own, the busiest ones; the others share one.
const MAX_NAMED_HOSTS: usize = 100;

pub(crate) const QUEUE: Metric = Metric::gauge(
    "grasp_purgatory_sync_queue_size",
    "Repository names whose git data is hunted for.",
    &[],
);
pub(crate) const IN_FLIGHT: Metric =
    Metric::gauge("grasp_purgatory_sync_in_flight", "Running visits to git servers.", &[]);
pub(crate) const ATTEMPTS: Metric = Metric::counter(
    "grasp_purgatory_sync_attempts_total",
    "Attempts to fetch a repository's git data, by result (complete, incomplete, needless).",
    &["result"],
);
pub(crate) const FETCHED: Metric = Metric::counter(
    "grasp_purgatory_sync_oids_fetched_total",
    "Tips fetched with their history from other servers.",
    &[],
);
pub(crate) const FAILURES: Metric = Metric::counter(
    "grasp_purgatory_sync_failures_total",
    "Visits that did not fetch everything, by cause.",
    &["trouble"],
);
pub(crate) const HOST_IN_FLIGHT: Metric = Metric::gauge(
    "grasp_purgatory_domain_in_flight",
    "Running visits, for each recently visited host.",
    &["domain"],
);
pub(crate) const HOST_WAITING: Metric = Metric::gauge(
    "grasp_purgatory_domain_waiting",
    "Repository names in the queue, for each recently visited host.",
    &["domain"],
);
pub(crate) const HOST_REQUESTS: Metric = Metric::counter(
    "grasp_purgatory_domain_requests_total",
    "Visits since the start, for each recently visited host.",
    &["domain"],
);
pub(crate) const HOST_PAUSES: Metric = Metric::counter(
    "grasp_purgatory_domain_pauses_total",
    "Pauses because a host asked for fewer visits.",
    &["domain"],
);

/// All metrics of the hunt, in the order of the reference.
pub(crate) const ALL: &[&Metric] = &[
    &QUEUE,
    &IN_FLIGHT,
    &ATTEMPTS,
    &FETCHED,
    &FAILURES,
    &HOST_IN_FLIGHT,
    &HOST_WAITING,
    &HOST_REQUESTS,
    &HOST_PAUSES,
];

/// Counts one report.
pub(crate) fn record(metrics: &Metrics, report: &HuntReport) {
    match report {
        HuntReport::Complete { .. } => metrics.add(&ATTEMPTS, &["complete"], 1),
        HuntReport::Needless { .. } => metrics.add(&ATTEMPTS, &["needless"], 1),
        HuntReport::Incomplete { .. } => metrics.add(&ATTEMPTS, &["incomplete"], 1),
        HuntReport::Fetched { oids, .. } => metrics.add(&FETCHED, &[], *oids as u64),
        HuntReport::Failed { error, .. } => metrics.add(&FAILURES, &[label(error)], 1),
        HuntReport::Paused { host, .. } => metrics.add(&HOST_PAUSES, &[host.as_str()], 1),
        _ => {}
    }
}

/// Sets the gauges, in total and by host. Series of hosts that the hunt has forgotten are removed.
pub(crate) fn set_gauges(metrics: &Metrics, figures: &HuntFigures) {
    let HuntFigures { in_flight, hosts, .. } = figures;
    metrics.set(&IN_FLIGHT, &[], *in_flight as f64);
    for metric in [&HOST_IN_FLIGHT, &HOST_WAITING, &HOST_REQUESTS] {
        metrics.clear(metric);
    }
    let mut busiest: Vec<_> = hosts.iter().collect();
    busiest.sort_by_key(|(_, f)| std::cmp::Reverse((f.in_flight + f.waiting, f.requests)));
    let (named, others) = busiest.split_at(busiest.len().min(MAX_NAMED_HOSTS));
    for (host, figures) in named {
        set_host_gauges(metrics, host.as_str(), figures);
    }
    if !others.is_empty() {
        let total = others.iter().fold(HostFigures::default(), |sum, (_, one)| HostFigures {
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

fn label(error: &FetchError) -> &'static str {
    match error {
        FetchError::Forbidden(_) => "forbidden",
        FetchError::Unreachable(_) => "unreachable",
        FetchError::RateLimited { .. } => "limited",
        FetchError::Answered(_) => "answered",
        FetchError::Refused(_) => "refused",
        FetchError::Broken(_) => "broken",
        FetchError::TooLarge => "too_large",
        FetchError::TooManyRefs => "long_list",
        FetchError::TooManyObjects { .. } => "too_many",
        FetchError::Stalled => "stalled",
        FetchError::Cancelled => "cancelled",
        FetchError::Internal(_) => "ours",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::Host;

    use super::*;

    #[test]
    fn reports_are_counted_and_error_texts_are_no_labels() {
        let metrics = Metrics::default();
        let identifier: grasp_core::Identifier = "x".parse().unwrap();
        let url: grasp_core::CloneUrl = "https://git.example.com/x.git".parse().unwrap();
        record(&metrics, &HuntReport::Complete { identifier: identifier.clone() });
        record(
            &metrics,
            &HuntReport::Fetched { identifier: identifier.clone(), url: url.clone(), oids: 3 },
        );
        let error = FetchError::Internal("words".into());
        record(&metrics, &HuntReport::Failed { identifier, url, error });
        assert_eq!(metrics.value(&ATTEMPTS, &["complete"]), Some(1.0));
        assert_eq!(metrics.value(&FETCHED, &[]), Some(3.0));
        assert_eq!(metrics.value(&FAILURES, &["ours"]), Some(1.0));
    }

    #[test]
    fn series_of_forgotten_hosts_are_removed() {
        let metrics = Metrics::default();
        let host: Host = "git.example.com".parse().unwrap();
        let figures =
            HostFigures { in_flight: 2, waiting: 1, requests: 9, ..HostFigures::default() };
        let hosts = vec![(host.clone(), figures)];
        set_gauges(&metrics, &HuntFigures { in_flight: 2, hosts, ..HuntFigures::default() });
        assert_eq!(metrics.value(&HOST_REQUESTS, &[host.as_str()]), Some(9.0));
        set_gauges(&metrics, &HuntFigures::default());
        assert_eq!(metrics.value(&HOST_REQUESTS, &[host.as_str()]), None);
    }

    #[test]
    fn ten_thousand_hosts_have_a_hundred_and_one_series() {
        let metrics = Metrics::default();
        let host = |n: u32| format!("h{n}.example.com").parse::<Host>().unwrap();
        let one = HostFigures { in_flight: 1, waiting: 2, requests: 3, ..HostFigures::default() };
        let busy = HostFigures { requests: 99, ..one };
        let mut hosts: Vec<_> = (0..10_000).map(|n| (host(n), one)).collect();
        hosts.push((host(10_000), busy));
        set_gauges(&metrics, &HuntFigures { hosts, ..HuntFigures::default() });
        let text = metrics.render(&[&HOST_REQUESTS]);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), MAX_NAMED_HOSTS + 1);
        assert_eq!(metrics.value(&HOST_REQUESTS, &["h10000.example.com"]), Some(99.0));
        assert_eq!(metrics.value(&HOST_WAITING, &[OTHER_LABEL]), Some(2.0 * 9_901.0));
    }

    #[test]
    fn metrics_have_the_names_of_the_design() {
        let names = [
            ("purgatory_sync_queue_size", &QUEUE),
            ("purgatory_sync_attempts_total", &ATTEMPTS),
            ("purgatory_sync_oids_fetched_total", &FETCHED),
            ("purgatory_domain_in_flight", &HOST_IN_FLIGHT),
            ("purgatory_domain_requests_total", &HOST_REQUESTS),
        ];
        for (name, metric) in names {
            assert_eq!(metric.name, format!("grasp_{name}"));
            assert!(!metric.labels.contains(&"identifier"), "any author can choose identifiers");
        }
    }
}
