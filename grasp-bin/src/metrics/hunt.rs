//! What the hunt for git data reports, as metrics.

use grasp_purgatory::hunt::{HostFigures, HuntFigures, Report, Trouble};
use grasp_relay::metrics::{Metric, Metrics, REST};

/// Hosts that are shown by their names, the busiest; the others are shown together.
const MOST_HOSTS: usize = 100;

pub(crate) const QUEUE: Metric = Metric::gauge(
    "grasp_purgatory_sync_queue_size",
    "Repository names whose git data is hunted for.",
    &[],
);
pub(crate) const IN_FLIGHT: Metric = Metric::gauge(
    "grasp_purgatory_sync_in_flight",
    "Conversations with git servers under way.",
    &[],
);
pub(crate) const ATTEMPTS: Metric = Metric::counter(
    "grasp_purgatory_sync_attempts_total",
    "Attempts to get a repository's git data, by how they ended (complete, incomplete, needless).",
    &["result"],
);
pub(crate) const FETCHED: Metric = Metric::counter(
    "grasp_purgatory_sync_oids_fetched_total",
    "Tips that were fetched with their history from other servers.",
    &[],
);
pub(crate) const FAILURES: Metric = Metric::counter(
    "grasp_purgatory_sync_failures_total",
    "Conversations that brought less than was asked for, by what was wrong.",
    &["trouble"],
);
pub(crate) const HOST_IN_FLIGHT: Metric = Metric::gauge(
    "grasp_purgatory_domain_in_flight",
    "Conversations under way, for each host that was asked lately.",
    &["domain"],
);
pub(crate) const HOST_WAITING: Metric = Metric::gauge(
    "grasp_purgatory_domain_waiting",
    "Repository names that wait for their turn, for each host that was asked lately.",
    &["domain"],
);
pub(crate) const HOST_REQUESTS: Metric = Metric::counter(
    "grasp_purgatory_domain_requests_total",
    "Conversations ever begun, for each host that was asked lately.",
    &["domain"],
);
pub(crate) const HOST_PAUSES: Metric = Metric::counter(
    "grasp_purgatory_domain_pauses_total",
    "Times that a host asked for less and was left alone.",
    &["domain"],
);

/// All of them, in the order of the reference.
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

/// Notes one report.
pub(crate) fn note(metrics: &Metrics, report: &Report) {
    match report {
        Report::Complete { .. } => metrics.add(&ATTEMPTS, &["complete"], 1),
        Report::Needless { .. } => metrics.add(&ATTEMPTS, &["needless"], 1),
        Report::Incomplete { .. } => metrics.add(&ATTEMPTS, &["incomplete"], 1),
        Report::Fetched { oids, .. } => metrics.add(&FETCHED, &[], *oids as u64),
        Report::Failed { trouble, .. } => metrics.add(&FAILURES, &[word(trouble)], 1),
        Report::Paused { host, .. } => metrics.add(&HOST_PAUSES, &[host.as_str()], 1),
        _ => {}
    }
}

/// Shows how things stand, in all and with each host. Hosts that are no longer remembered are not shown.
pub(crate) fn expose(metrics: &Metrics, figures: &HuntFigures) {
    let HuntFigures { in_flight, hosts, .. } = figures;
    metrics.set(&IN_FLIGHT, &[], *in_flight as f64);
    for metric in [&HOST_IN_FLIGHT, &HOST_WAITING, &HOST_REQUESTS] {
        metrics.clear(metric);
    }
    let mut busiest: Vec<_> = hosts.iter().collect();
    busiest.sort_by_key(|(_, f)| std::cmp::Reverse((f.in_flight + f.waiting, f.requests)));
    let (named, others) = busiest.split_at(busiest.len().min(MOST_HOSTS));
    for (host, figures) in named {
        expose_host(metrics, host.as_str(), figures);
    }
    if !others.is_empty() {
        let together = others.iter().fold(HostFigures::default(), |sum, (_, one)| HostFigures {
            in_flight: sum.in_flight + one.in_flight,
            waiting: sum.waiting + one.waiting,
            requests: sum.requests.saturating_add(one.requests),
            ..sum
        });
        expose_host(metrics, REST, &together);
    }
}

fn expose_host(metrics: &Metrics, host: &str, figures: &HostFigures) {
    metrics.set(&HOST_IN_FLIGHT, &[host], figures.in_flight as f64);
    metrics.set(&HOST_WAITING, &[host], figures.waiting as f64);
    metrics.set(&HOST_REQUESTS, &[host], figures.requests as f64);
}

fn word(trouble: &Trouble) -> &'static str {
    match trouble {
        Trouble::Forbidden(_) => "forbidden",
        Trouble::Unreachable(_) => "unreachable",
        Trouble::Limited { .. } => "limited",
        Trouble::Answered(_) => "answered",
        Trouble::Refused(_) => "refused",
        Trouble::Broken(_) => "broken",
        Trouble::TooLarge => "too_large",
        Trouble::TooMany { .. } => "too_many",
        Trouble::Stalled => "stalled",
        Trouble::Cancelled => "cancelled",
        Trouble::Ours(_) => "ours",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::Host;

    use super::*;

    #[test]
    fn reports_are_counted_and_strangers_words_are_no_labels() {
        let metrics = Metrics::default();
        let identifier: grasp_core::Identifier = "x".parse().unwrap();
        let url: grasp_core::CloneUrl = "https://git.example.com/x.git".parse().unwrap();
        note(&metrics, &Report::Complete { identifier: identifier.clone() });
        note(
            &metrics,
            &Report::Fetched { identifier: identifier.clone(), url: url.clone(), oids: 3 },
        );
        let trouble = Trouble::Ours("words".into());
        note(&metrics, &Report::Failed { identifier, url, trouble });
        assert_eq!(metrics.value(&ATTEMPTS, &["complete"]), Some(1.0));
        assert_eq!(metrics.value(&FETCHED, &[]), Some(3.0));
        assert_eq!(metrics.value(&FAILURES, &["ours"]), Some(1.0));
    }

    #[test]
    fn hosts_are_shown_as_long_as_they_are_remembered() {
        let metrics = Metrics::default();
        let host: Host = "git.example.com".parse().unwrap();
        let figures =
            HostFigures { in_flight: 2, waiting: 1, requests: 9, ..HostFigures::default() };
        let hosts = vec![(host.clone(), figures)];
        expose(&metrics, &HuntFigures { in_flight: 2, hosts, ..HuntFigures::default() });
        assert_eq!(metrics.value(&HOST_REQUESTS, &[host.as_str()]), Some(9.0));
        expose(&metrics, &HuntFigures::default());
        assert_eq!(metrics.value(&HOST_REQUESTS, &[host.as_str()]), None);
    }

    #[test]
    fn ten_thousand_hosts_are_a_hundred_and_the_rest() {
        let metrics = Metrics::default();
        let host = |n: u32| format!("h{n}.example.com").parse::<Host>().unwrap();
        let one = HostFigures { in_flight: 1, waiting: 2, requests: 3, ..HostFigures::default() };
        let busy = HostFigures { requests: 99, ..one };
        let mut hosts: Vec<_> = (0..10_000).map(|n| (host(n), one)).collect();
        hosts.push((host(10_000), busy));
        expose(&metrics, &HuntFigures { hosts, ..HuntFigures::default() });
        let text = metrics.render(&[&HOST_REQUESTS]);
        assert_eq!(text.lines().filter(|line| !line.starts_with('#')).count(), MOST_HOSTS + 1);
        assert_eq!(metrics.value(&HOST_REQUESTS, &["h10000.example.com"]), Some(99.0));
        assert_eq!(metrics.value(&HOST_WAITING, &[REST]), Some(2.0 * 9_901.0));
    }

    #[test]
    fn the_design_names_are_kept() {
        let names = [
            ("purgatory_sync_queue_size", &QUEUE),
            ("purgatory_sync_attempts_total", &ATTEMPTS),
            ("purgatory_sync_oids_fetched_total", &FETCHED),
            ("purgatory_domain_in_flight", &HOST_IN_FLIGHT),
            ("purgatory_domain_requests_total", &HOST_REQUESTS),
        ];
        for (name, metric) in names {
            assert_eq!(metric.name, format!("grasp_{name}"));
            assert!(!metric.labels.contains(&"identifier"), "strangers choose identifiers");
        }
    }
}
