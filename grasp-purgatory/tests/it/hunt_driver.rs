//! The driver of the hunt with scripted servers: the hunt continues however a task ends.

use std::sync::Arc;
use std::time::Duration;

use grasp_purgatory::hunt::{FetchError, HuntConfig, HuntHandle, HuntReport, hunt};

use crate::hunt_script::{Act, Script};
use crate::hunt_sim::{name, oids, url, want};

const HUNT_DELAY: Duration = Duration::from_millis(5);

/// Starts a hunter with short timeouts for these repositories.
fn start_hunt(script: Script, names: &[&str]) -> (Arc<Script>, HuntHandle) {
    let mut config = HuntConfig {
        answer_is_late: Duration::from_millis(30),
        fetch_is_late: Duration::from_millis(30),
        ..HuntConfig::default()
    };
    config.backoff.first = Duration::from_millis(20);
    config.backoff.cap = Duration::from_millis(40);
    let script = Arc::new(script);
    let hunting = hunt(config, Arc::clone(&script));
    names
        .iter()
        .for_each(|repo| hunting.want(name(repo), Some(HUNT_DELAY)));
    (script, hunting)
}

fn is_complete(script: &Script) -> bool {
    script.seen(|seen| {
        seen.reports
            .iter()
            .any(|r| matches!(r, HuntReport::Complete { .. }))
    })
}

#[tokio::test]
async fn two_servers_have_half_each_and_a_third_is_not_asked() {
    let wants = vec![want(&[1, 2], &["a.com", "b.com", "c.com"])];
    let script = Script::new()
        .wants("r", wants)
        .has("a.com", &[1])
        .has("b.com", &[2]);
    let (script, hunting) = start_hunt(script.has("c.com", &[1, 2]), &["r"]);
    script.until(is_complete).await;
    assert!(script.has_everything("r"));
    let asked = script.seen(|seen| seen.asked.clone());
    assert!(
        asked.iter().all(|(address, _)| *address != url("c.com")),
        "{asked:?}"
    );
    assert_eq!(hunting.schedule().await.len(), 0);
}

#[tokio::test]
async fn successful_and_failed_fetches_are_reported() {
    let wants = vec![want(&[1], &["a.com", "b.com"])];
    let script = Script::new()
        .wants("r", wants)
        .does("a.com", Act::Refuses)
        .has("b.com", &[1]);
    let (script, _hunting) = start_hunt(script, &["r"]);
    script.until(is_complete).await;
    script.seen(|seen| {
        let by = |address: &str| {
            let of = move |r: &&HuntReport| match r {
                HuntReport::Failed { url: at, .. } | HuntReport::Fetched { url: at, .. } => {
                    *at == url(address)
                }
                _ => false,
            };
            seen.reports.iter().find(of).cloned()
        };
        assert!(matches!(by("a.com"), Some(HuntReport::Failed { .. })));
        assert!(matches!(
            by("b.com"),
            Some(HuntReport::Fetched { oids: 1, .. })
        ));
        assert_eq!(seen.here, oids(&[1]));
    });
}

#[tokio::test]
async fn a_request_that_is_no_longer_needed_is_dropped() {
    let wants = vec![want(&[1], &["a.com", "b.com"])];
    let script = Script::new()
        .wants("r", wants)
        .does("a.com", Act::Silent)
        .has("b.com", &[1]);
    let (script, hunting) = start_hunt(script, &["r"]);
    script.until(is_complete).await;
    script.until(|script| script.open() == 0).await;
    assert_eq!(hunting.figures().await.unwrap().in_flight, 0);
}

#[tokio::test]
async fn a_task_that_panics_is_a_failed_fetch() {
    let wants = vec![want(&[1], &["a.com", "b.com"])];
    let script = Script::new()
        .wants("r", wants)
        .does("a.com", Act::Panics)
        .has("b.com", &[1]);
    let (script, _hunting) = start_hunt(script, &["r"]);
    script.until(is_complete).await;
    let ours = |r: &HuntReport| {
        matches!(
            r,
            HuntReport::Failed {
                error: FetchError::Internal(_),
                ..
            }
        )
    };
    assert!(script.seen(|seen| seen.reports.iter().any(ours)));
}

#[tokio::test]
async fn a_lookup_in_the_store_that_panics_is_retried() {
    let script = Script::new()
        .wants("r", vec![want(&[1], &["a.com"])])
        .has("a.com", &[1]);
    let (script, _hunting) = start_hunt(script.panicking_lookups(2), &["r"]);
    script.until(is_complete).await;
    assert!(script.seen(|seen| seen.lookups) >= 3);
}

#[tokio::test]
async fn the_hunt_and_its_requests_end_with_the_last_handle() {
    let script = Script::new().wants("r", vec![want(&[1], &["a.com"])]);
    let (script, hunting) = start_hunt(script.does("a.com", Act::Silent), &["r"]);
    script.until(|script| script.open() == 1).await;
    let other = hunting.clone();
    drop(hunting);
    assert!(other.figures().await.is_some());
    drop(other);
    script.until(|script| script.open() == 0).await;
}

#[tokio::test]
async fn a_thousand_repositories_are_looked_up_a_few_at_a_time() {
    let names: Vec<String> = (0..1_000).map(|n| format!("r{n}")).collect();
    let mut script = Script::new().lookup_takes(Duration::from_millis(1));
    for (n, name) in names.iter().enumerate() {
        script = script.wants(name, vec![want(&[1 + (n % 200) as u8], &["a.com"])]);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (script, hunting) = start_hunt(script.does("a.com", Act::Silent), &names);
    script
        .until(|script| script.seen(|seen| seen.lookups) >= 1_000)
        .await;
    assert!(script.seen(|seen| seen.max_lookups) <= 8);
    let hunt = hunting.figures().await.unwrap();
    let (host, figures) = &hunt.hosts[0];
    assert_eq!((host.as_str(), figures.in_flight), ("a.com", 5));
    assert_eq!(
        script.open(),
        5,
        "requests to the server are within its limit"
    );
}

#[tokio::test]
async fn a_hunt_without_wants_reports_no_completion() {
    let (script, _hunting) = start_hunt(Script::new(), &["r"]);
    let needless = |r: &HuntReport| matches!(r, HuntReport::Needless { .. });
    script
        .until(|script| script.seen(|seen| seen.reports.iter().any(needless)))
        .await;
    assert!(!is_complete(&script));
}
