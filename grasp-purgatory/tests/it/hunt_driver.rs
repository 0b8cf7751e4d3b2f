//! The hunter at work in a scripted world: whatever becomes of a task, the hunt goes on.

use std::sync::Arc;
use std::time::Duration;

use grasp_purgatory::hunt::{FetchError, HuntConfig, HuntHandle, HuntReport, hunt};

use crate::hunt_script::{Act, Script};
use crate::hunt_sim::{name, oids, url, want};

const SOON: Duration = Duration::from_millis(5);

/// A hunter in a hurry, told of these names.
fn begin(script: Script, names: &[&str]) -> (Arc<Script>, HuntHandle) {
    let mut config = HuntConfig {
        answer_is_late: Duration::from_millis(30),
        fetch_is_late: Duration::from_millis(30),
        ..HuntConfig::default()
    };
    config.backoff.first = Duration::from_millis(20);
    config.backoff.cap = Duration::from_millis(40);
    let script = Arc::new(script);
    let hunting = hunt(config, Arc::clone(&script));
    names.iter().for_each(|identifier| hunting.want(name(identifier), Some(SOON)));
    (script, hunting)
}

fn is_complete(script: &Script) -> bool {
    script.seen(|seen| seen.reports.iter().any(|r| matches!(r, HuntReport::Complete { .. })))
}

#[tokio::test]
async fn two_servers_have_half_each_and_a_third_is_not_asked() {
    let wants = vec![want(&[1, 2], &["a.com", "b.com", "c.com"])];
    let script = Script::new().wants("r", wants).has("a.com", &[1]).has("b.com", &[2]);
    let (script, hunting) = begin(script.has("c.com", &[1, 2]), &["r"]);
    script.until(is_complete).await;
    assert!(script.has_everything("r"));
    let asked = script.seen(|seen| seen.asked.clone());
    assert!(asked.iter().all(|(place, _)| *place != url("c.com")), "{asked:?}");
    assert_eq!(hunting.schedule().await.len(), 0);
}

#[tokio::test]
async fn a_successful_fetch_is_told_of_and_a_failed_one_as_failed() {
    let wants = vec![want(&[1], &["a.com", "b.com"])];
    let script = Script::new().wants("r", wants).does("a.com", Act::Refuses).has("b.com", &[1]);
    let (script, _hunting) = begin(script, &["r"]);
    script.until(is_complete).await;
    script.seen(|seen| {
        let by = |place: &str| {
            let of = move |r: &&HuntReport| match r {
                HuntReport::Failed { url: at, .. } | HuntReport::Fetched { url: at, .. } => {
                    *at == url(place)
                }
                _ => false,
            };
            seen.reports.iter().find(of).cloned()
        };
        assert!(matches!(by("a.com"), Some(HuntReport::Failed { .. })));
        assert!(matches!(by("b.com"), Some(HuntReport::Fetched { oids: 1, .. })));
        assert_eq!(seen.here, oids(&[1]));
    });
}

#[tokio::test]
async fn a_conversation_that_is_no_longer_needed_is_dropped() {
    let wants = vec![want(&[1], &["a.com", "b.com"])];
    let script = Script::new().wants("r", wants).does("a.com", Act::Silent).has("b.com", &[1]);
    let (script, hunting) = begin(script, &["r"]);
    script.until(is_complete).await;
    script.until(|script| script.open() == 0).await;
    assert_eq!(hunting.figures().await.unwrap().in_flight, 0);
}

#[tokio::test]
async fn a_task_that_breaks_is_an_end_like_any_other() {
    let wants = vec![want(&[1], &["a.com", "b.com"])];
    let script = Script::new().wants("r", wants).does("a.com", Act::Breaks).has("b.com", &[1]);
    let (script, _hunting) = begin(script, &["r"]);
    script.until(is_complete).await;
    let ours =
        |r: &HuntReport| matches!(r, HuntReport::Failed { error: FetchError::Internal(_), .. });
    assert!(script.seen(|seen| seen.reports.iter().any(ours)));
}

#[tokio::test]
async fn a_look_into_our_own_store_that_breaks_is_tried_again() {
    let script = Script::new().wants("r", vec![want(&[1], &["a.com"])]).has("a.com", &[1]);
    let (script, _hunting) = begin(script.breaking(2), &["r"]);
    script.until(is_complete).await;
    assert!(script.seen(|seen| seen.briefs) >= 3);
}

#[tokio::test]
async fn the_hunt_ends_with_its_last_handle_and_so_does_all_that_is_under_way() {
    let script = Script::new().wants("r", vec![want(&[1], &["a.com"])]);
    let (script, hunting) = begin(script.does("a.com", Act::Silent), &["r"]);
    script.until(|script| script.open() == 1).await;
    let other = hunting.clone();
    drop(hunting);
    assert!(other.figures().await.is_some());
    drop(other);
    script.until(|script| script.open() == 0).await;
}

#[tokio::test]
async fn a_thousand_names_are_looked_up_a_few_at_a_time() {
    let names: Vec<String> = (0..1_000).map(|n| format!("r{n}")).collect();
    let mut script = Script::new().brief_takes(Duration::from_millis(1));
    for (n, name) in names.iter().enumerate() {
        script = script.wants(name, vec![want(&[1 + (n % 200) as u8], &["a.com"])]);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (script, hunting) = begin(script.does("a.com", Act::Silent), &names);
    script.until(|script| script.seen(|seen| seen.briefs) >= 1_000).await;
    assert!(script.seen(|seen| seen.most_briefs) <= 8);
    let hunt = hunting.figures().await.unwrap();
    let (host, figures) = &hunt.hosts[0];
    assert_eq!((host.as_str(), figures.in_flight), ("a.com", 5));
    assert_eq!(script.open(), 5, "and servers within their limits");
}

#[tokio::test]
async fn nothing_wanted_is_nothing_achieved() {
    let (script, _hunting) = begin(Script::new(), &["r"]);
    let needless = |r: &HuntReport| matches!(r, HuntReport::Needless { .. });
    script.until(|script| script.seen(|seen| seen.reports.iter().any(needless))).await;
    assert!(!is_complete(&script));
}
