//! The tasks of a hunt: it continues however a task ends, and ends with its handles.

use std::time::Duration;

use grasp_purgatory::hunt::{FetchError, HuntReport};

use crate::hunt_sim::{Behaviour, Sim, want};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn a_request_that_panics_is_a_failure_and_the_next_server_is_asked() {
    let sim =
        Sim::new()
            .server("a.com", Behaviour::Panics, &[])
            .server("b.com", Behaviour::Fine, &[1]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], None);
    sim.run_for(SECOND).await;
    assert!(sim.has_everything("r"));
    let ours = |r: &HuntReport| {
        matches!(
            r,
            HuntReport::Failed {
                error: FetchError::Internal(_),
                ..
            }
        )
    };
    assert_eq!(sim.reports(ours).len(), 1);
    let figures = sim.hunting.figures().await.unwrap();
    let permits = figures.hosts.iter().map(|(_, host)| host.in_flight);
    assert_eq!((figures.in_flight, permits.sum::<usize>()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lookup_in_the_store_that_panics_is_retried() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.world().panicking_lookups = 2;
    sim.wanted("r", vec![want(&[1], &["a.com"])], None);
    sim.run_for(59 * SECOND).await;
    assert!(!sim.has_everything("r"));
    sim.run_for(2 * SECOND).await;
    assert!(sim.has_everything("r"), "after 20 and 40 seconds");
}

#[tokio::test(start_paused = true)]
async fn the_hunt_and_its_requests_end_with_the_last_handle() {
    let sim = Sim::new().server("a.com", Behaviour::Silent, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], None);
    sim.run_for(SECOND).await;
    let other = sim.hunting.clone();
    drop(other);
    assert_eq!(sim.in_flight().await, 1);
    let net = sim.end();
    tokio::time::sleep(SECOND).await;
    assert_eq!(net.lock().unwrap().cancelled, 1);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_repositories_are_looked_up_a_few_at_a_time() {
    let sim = Sim::new().server("a.com", Behaviour::Silent, &[]);
    for n in 0..1_000_u64 {
        let wants = vec![want(&[1 + (n % 200) as u8], &["a.com"])];
        sim.wanted(&format!("r{n}"), wants, None);
    }
    sim.run_for(SECOND).await;
    assert_eq!(sim.world().max_lookups, 8);
    let figures = sim.hunting.figures().await.unwrap();
    let (host, figures) = &figures.hosts[0];
    assert_eq!((host.as_str(), figures.in_flight), ("a.com", 5));
    assert_eq!(figures.waiting, 995);
}

#[tokio::test(start_paused = true)]
async fn a_hunt_without_wants_reports_no_completion() {
    let sim = Sim::new();
    sim.wanted("r", Vec::new(), None);
    sim.run_for(SECOND).await;
    let needless = |r: &HuntReport| matches!(r, HuntReport::Needless { .. });
    let complete = |r: &HuntReport| matches!(r, HuntReport::Complete { .. });
    assert_eq!(sim.reports(needless).len(), 1);
    assert!(sim.reports(complete).is_empty());
}
