//! The rules of the hunt, one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::Mono;
use grasp_purgatory::hunt::HostLimits;
use grasp_purgatory::hunt::{FetchError, HostClass, HuntConfig, HuntReport};
use grasp_purgatory::{Phase, Want};

use crate::hunt_sim::*;

const CLIENT_DELAY: Duration = Duration::from_secs(180);
const SYNC_DELAY: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn complete(sim: &Sim) -> usize {
    let is_complete = |report: &HuntReport| matches!(report, HuntReport::Complete { .. });
    sim.reports(is_complete).len()
}

fn starts(sim: &Sim) -> Vec<Mono> {
    sim.reports(|report| matches!(report, HuntReport::Started { .. }))
}

#[tokio::test(start_paused = true)]
async fn servers_are_tried_until_everything_is_here() {
    let sim = Sim::new()
        .server("a.com", Behaviour::Fine, &[])
        .server("b.com", Behaviour::Gone, &[])
        .server("c.com", Behaviour::Fine, &[1])
        .server("d.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "r",
        vec![want(&[1], &["a.com", "b.com", "c.com", "d.com"])],
        SYNC_DELAY,
    );
    sim.run_for(2 * SECOND).await;
    assert!(sim.has_everything("r"));
    assert!(
        sim.asked_of("d.com").is_empty(),
        "nothing was left to ask for"
    );
    assert_eq!(complete(&sim), 1);
    assert_eq!(sim.scheduled().await, 0);
}

#[tokio::test(start_paused = true)]
async fn objects_of_several_servers_add_up() {
    let sim =
        Sim::new()
            .server("a.com", Behaviour::Fine, &[1])
            .server("b.com", Behaviour::Fine, &[2]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com", "b.com"])], SYNC_DELAY);
    sim.run_for(2 * SECOND).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn partial_success_keeps_the_rest_wanted() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "r",
        vec![want(&[1], &["a.com"]), want(&[2], &["a.com"])],
        SYNC_DELAY,
    );
    sim.run_for(2 * SECOND).await;
    assert_eq!(
        sim.fetched(),
        oids(&[1]),
        "available objects are fetched at once"
    );
    assert!(complete(&sim) == 0);
    sim.at("a.com", |server| server.advertises = oids(&[1, 2]));
    sim.run_for(30 * SECOND).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_fetch_brings_nothing_and_is_reported() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.at("a.com", |server| server.pretends = oids(&[1]));
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC_DELAY);
    sim.run_for(2 * SECOND).await;
    assert!(sim.here() == 0);
    let failed = |r: &HuntReport| {
        matches!(
            r,
            HuntReport::Failed {
                error: FetchError::Refused(_),
                ..
            }
        )
    };
    assert!(!sim.reports(failed).is_empty());
    let fetched = |r: &HuntReport| matches!(r, HuntReport::Fetched { .. });
    assert!(sim.reports(fetched).is_empty());
}

#[tokio::test(start_paused = true)]
async fn hunts_for_client_events_begin_after_three_minutes_and_for_synced_ones_after_half_a_second()
{
    for (after, begins) in [
        (CLIENT_DELAY, Mono::from_secs(180)),
        (SYNC_DELAY, Mono::from_millis(500)),
    ] {
        let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
        sim.wanted("r", vec![want(&[1], &["a.com"])], after);
        sim.run_for(5 * MINUTE).await;
        assert_eq!(sim.asked()[0].at, begins);
    }
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_one_visit_with_one_batch() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1, 2, 3]);
    for n in 1..=3 {
        sim.wanted("r", vec![want(&[n], &["a.com"])], SYNC_DELAY);
        sim.run_for(SYNC_DELAY / 5).await;
    }
    sim.run_for(5 * SECOND).await;
    let asked: Vec<_> = sim.asked().iter().map(|asked| asked.oids.clone()).collect();
    assert_eq!(asked, [Some(oids(&[1, 2, 3]))]);
}

#[tokio::test(start_paused = true)]
async fn known_objects_are_asked_for_without_an_advertisement() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.at("a.com", |server| server.hides = oids(&[1, 2]));
    sim.wanted("r", vec![want(&[1, 2], &["a.com"])], None);
    sim.run_for(SECOND).await;
    assert!(sim.has_everything("r"));
    assert_eq!(sim.asked().len(), 1, "{:?}", sim.asked());
    assert_eq!(
        sim.asked()[0].at,
        Mono::from_millis(20),
        "the first event does not wait for others"
    );
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_followed_by_the_advertisement_and_is_remembered() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com"])], Duration::ZERO);
    sim.run_for(SECOND).await;
    let asked: Vec<_> = sim.asked().iter().map(|asked| asked.oids.clone()).collect();
    assert_eq!(
        asked[..3],
        [Some(oids(&[1, 2])), None, Some(oids(&[1]))],
        "within one visit"
    );
    sim.run_for(30 * SECOND).await;
    let later: Vec<_> = sim
        .asked()
        .iter()
        .skip(4)
        .map(|asked| asked.oids.clone())
        .collect();
    assert_eq!(later, [None], "it is not asked again for what it refused");
    sim.at("a.com", |server| server.advertises = oids(&[1, 2]));
    sim.run_for(MINUTE).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn attempts_that_find_nothing_are_repeated_after_20_40_80_120_120_seconds() {
    let sim = Sim::new().server("a.com", Behaviour::Gone, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
    sim.run_for(8 * MINUTE).await;
    let starts = starts(&sim);
    let pauses: Vec<_> = starts
        .windows(2)
        .map(|two| (two[1] - two[0]).as_secs())
        .collect();
    assert_eq!(pauses, [20, 40, 80, 120, 120]);
}

#[tokio::test(start_paused = true)]
async fn a_new_event_is_a_fresh_start() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], CLIENT_DELAY);
    sim.run_for(CLIENT_DELAY + 65 * SECOND).await;
    assert_eq!(starts(&sim).len(), 3, "at 180, 200 and 240 seconds");
    sim.at("a.com", |server| server.advertises = oids(&[1, 2]));
    sim.wanted("r", vec![want(&[2], &["a.com"])], SYNC_DELAY);
    sim.run_for(SECOND).await;
    assert!(
        sim.has_everything("r"),
        "without waiting for the next pause to end"
    );
}

#[tokio::test(start_paused = true)]
async fn data_that_appears_after_ten_minutes_is_found_within_two() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC_DELAY);
    sim.run_for(10 * MINUTE).await;
    sim.at("a.com", |server| server.advertises = oids(&[1]));
    sim.run_for(2 * MINUTE + SECOND).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn a_hunt_ends_when_its_objects_are_no_longer_wanted() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC_DELAY);
    sim.run_for(MINUTE).await;
    sim.world().wants.clear();
    sim.run_for(3 * MINUTE).await;
    let asked = sim.asked().len();
    assert_eq!(sim.scheduled().await, 0);
    sim.run_for(60 * MINUTE).await;
    assert_eq!(sim.asked().len(), asked);
}

#[tokio::test(start_paused = true)]
async fn objects_of_expired_events_are_looked_for_once_an_hour() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    let expired = Want {
        phase: Phase::Expired,
        ..want(&[1], &["a.com"])
    };
    sim.world().wants.insert(name("r"), vec![expired]);
    sim.run_for(5 * 60 * MINUTE).await;
    let listed = sim
        .asked()
        .iter()
        .filter(|asked| asked.oids.is_none())
        .count();
    assert!((4..=6).contains(&listed), "{listed} times in five hours");
    sim.at("a.com", |server| server.advertises = oids(&[1]));
    sim.run_for(60 * MINUTE).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn a_throttled_server_is_queued_for_and_others_are_asked_at_once() {
    let one = HostLimits {
        at_once: 1.try_into().unwrap(),
        ..HostLimits::default()
    };
    let config = HuntConfig {
        hosts: BTreeMap::from([("a.com".parse().unwrap(), one)]),
        ..HuntConfig::default()
    };
    let mut sim = Sim::with(config).server("a.com", Behaviour::Silent, &[]);
    for n in 1..=9 {
        sim = sim.server(&format!("https://b.com/{n}"), Behaviour::Fine, &[n]);
        let addresses = ["a.com", &format!("https://b.com/{n}")];
        sim.wanted(&format!("r{n}"), vec![want(&[n], &addresses)], SYNC_DELAY);
    }
    sim.run_for(3 * SECOND).await;
    assert_eq!(
        sim.asked_of("a.com").len(),
        1,
        "the queue moves when a request ends"
    );
    assert_eq!(
        sim.here(),
        8,
        "all but the one that waits for the silent server"
    );
    sim.run_for(5 * SECOND).await;
    assert_eq!(sim.here(), 9, "after a slow answer another server is asked");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_does_not_wait_for_a_server_that_becomes_throttled() {
    let sim = Sim::new()
        .server("a.com", Behaviour::Fine, &[1])
        .server(
            "https://a.com/angry",
            Behaviour::Limits(Some(60 * MINUTE)),
            &[],
        )
        .server("b.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "angry",
        vec![want(&[9], &["https://a.com/angry"])],
        Duration::ZERO,
    );
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], Duration::ZERO);
    sim.run_for(SECOND).await;
    assert!(sim.has_everything("r"), "{:?}", sim.asked());
    assert_eq!(
        sim.asked_of("a.com").len(),
        1,
        "nothing more during its pause"
    );
}

#[tokio::test(start_paused = true)]
async fn a_rate_limited_host_is_paused_for_its_retry_after() {
    for (says, waits) in [
        (None, 60),
        (Some(90 * SECOND), 90),
        (Some(9_999 * SECOND), 3_600),
    ] {
        let mut sim = Sim::new().server("a.com", Behaviour::Limits(says), &[1]);
        sim = sim.server("https://a.com/other", Behaviour::Fine, &[2]);
        sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
        sim.run_for(SECOND).await;
        sim.at("a.com", |server| server.behaviour = Behaviour::Fine);
        sim.wanted(
            "other",
            vec![want(&[2], &["https://a.com/other"])],
            Duration::ZERO,
        );
        sim.run_for(2 * 60 * MINUTE).await;
        let second = sim.asked()[1].at - (Mono::ZERO + LATENCY);
        assert!(
            second >= Duration::from_secs(waits),
            "{second:?} for {says:?}"
        );
        assert!(
            second <= Duration::from_secs(waits + 60),
            "{second:?} for {says:?}"
        );
        assert!(sim.has_everything("r") && sim.has_everything("other"));
    }
}

#[tokio::test(start_paused = true)]
async fn unadvertised_objects_are_asked_for_one_by_one_and_few_at_a_time() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.at("a.com", |server| server.hides = oids(&[2, 3, 4, 5]));
    // It lacks one of them, and so refuses all when asked for all.
    sim.wanted(
        "r",
        vec![want(&[1, 2, 3, 4, 5, 6], &["a.com"])],
        Duration::ZERO,
    );
    sim.run_for(SECOND).await;
    let asked: Vec<_> = sim
        .asked()
        .iter()
        .filter_map(|asked| asked.oids.clone())
        .collect();
    assert_eq!(
        asked,
        [
            oids(&[1, 2, 3, 4, 5, 6]),
            oids(&[1]),
            oids(&[2]),
            oids(&[3])
        ]
    );
    sim.run_for(MINUTE).await;
    assert_eq!(sim.fetched(), oids(&[1, 2, 3, 4, 5]));
}

#[tokio::test(start_paused = true)]
async fn phantom_tips_do_not_stall_the_rest() {
    let phantoms: Vec<u8> = (100..200).collect();
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "r",
        vec![want(&phantoms, &["a.com"]), want(&[1], &["a.com"])],
        Duration::ZERO,
    );
    sim.run_for(30 * MINUTE).await;
    assert!(sim.fetched().contains(&oid(1)));
    let mut guesses = BTreeMap::new();
    for asked in sim.asked().iter().filter_map(|asked| asked.oids.as_ref()) {
        *guesses.entry(asked.clone()).or_insert(0) += 1;
    }
    assert!(
        guesses.values().all(|times| *times == 1),
        "objects that a server lacks are remembered"
    );
}

#[tokio::test(start_paused = true)]
async fn a_ref_without_its_object_delays_other_refs_by_one_attempt() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1, 2]);
    sim.at("a.com", |server| server.pretends = oids(&[3]));
    sim.wanted("r", vec![want(&[1, 2, 3], &["a.com"])], Duration::ZERO);
    sim.run_for(2 * MINUTE).await;
    assert_eq!(sim.fetched(), oids(&[1, 2]));
}

#[tokio::test(start_paused = true)]
async fn a_stalled_transfer_is_hedged_on_another_host_after_half_a_minute() {
    let sim = Sim::new()
        .server("a.com", Behaviour::SilentWithObjects, &[1])
        .server("https://a.com/again", Behaviour::Fine, &[1])
        .server("b.com", Behaviour::Fine, &[1]);
    let addresses = ["a.com", "https://a.com/again", "b.com"];
    sim.wanted("r", vec![want(&[1], &addresses)], Duration::ZERO);
    sim.run_for(29 * SECOND).await;
    assert!(sim.asked_of("b.com").is_empty());
    sim.run_for(3 * SECOND).await;
    assert!(sim.has_everything("r"));
    assert!(
        sim.asked_of("https://a.com/again").is_empty(),
        "a different host"
    );
    assert_eq!(sim.world().cancelled, 1, "the silent one is cancelled");
    assert_eq!(sim.in_flight().await, 0);
}

#[tokio::test(start_paused = true)]
async fn many_silent_servers_in_a_row_cannot_hide_an_honest_one() {
    let mut sim = Sim::new().server("z.com", Behaviour::Fine, &[1]);
    let addresses: Vec<String> = (0..9).map(|n| format!("s{n}.com")).collect();
    for address in &addresses {
        sim = sim.server(address, Behaviour::Silent, &[]);
    }
    let addresses: Vec<&str> = addresses
        .iter()
        .map(String::as_str)
        .chain(["z.com"])
        .collect();
    sim.wanted("r", vec![want(&[1], &addresses)], Duration::ZERO);
    sim.run_for(19 * SECOND).await;
    assert_eq!(
        sim.asked().len(),
        4,
        "three are late, and one is waited for"
    );
    sim.run_for(3 * MINUTE).await;
    assert!(sim.has_everything("r"), "{:?}", sim.asked());
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_delays_neither_the_next_attempt_nor_new_events() {
    let sim = Sim::new()
        .server("a.com", Behaviour::SilentWithObjects, &[1])
        .server("b.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], Duration::ZERO);
    sim.run_for(40 * SECOND).await;
    sim.at("b.com", |server| server.advertises = oids(&[1]));
    sim.run_for(30 * SECOND).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn a_failed_lookup_of_wants_is_retried() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.world().failing_lookups = 1;
    sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
    sim.run_for(SECOND).await;
    let incomplete = |r: &HuntReport| matches!(r, HuntReport::Incomplete { next: Some(_), .. });
    assert_eq!(sim.reports(incomplete).len(), 1);
    sim.run_for(20 * SECOND).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_always_rate_limited_does_not_delay_requests_to_others() {
    let sim = Sim::new()
        .server("a.com", Behaviour::Limits(Some(10 * MINUTE)), &[])
        .server("b.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], None);
    sim.run_for(30 * SECOND).await;
    assert!(!sim.has_everything("r"));
    sim.at("b.com", |server| server.advertises = oids(&[1]));
    sim.run_for(2 * MINUTE).await;
    assert!(sim.has_everything("r"), "{:?}", sim.asked());
    assert!(sim.asked_of("a.com").len() <= 2);
}

#[tokio::test(start_paused = true)]
async fn a_repository_that_has_everything_leaves_the_queues_of_hosts() {
    let sim = Sim::new()
        .server("a.com", Behaviour::Limits(Some(60 * MINUTE)), &[])
        .server("b.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], None);
    sim.wanted("other", vec![want(&[2], &["a.com"])], None);
    sim.run_for(SECOND).await;
    assert_eq!(waiting_at_a(&sim).await, 2);
    sim.at("b.com", |server| server.advertises = oids(&[1]));
    sim.run_for(MINUTE).await;
    assert!(sim.has_everything("r"));
    assert_eq!(waiting_at_a(&sim).await, 1);
}

async fn waiting_at_a(sim: &Sim) -> usize {
    let figures = sim.hunting.figures().await.unwrap();
    figures.hosts[0].1.waiting
}

#[tokio::test(start_paused = true)]
async fn documents_below_the_root_of_a_host_do_not_set_its_class() {
    let npub = grasp_core::service::npub(&crate::model_events::ALICE.key());
    let root = format!("https://forge.example/{npub}/r.git");
    let below = format!("https://forge.example/me/raw/{npub}/r.git");
    for (address, class) in [(root, HostClass::Grasp), (below, HostClass::Unknown)] {
        let sim = Sim::new().server(&address, Behaviour::Fine, &[1]);
        let host = "forge.example".parse().unwrap();
        sim.world().classes.insert(host, HostClass::Grasp);
        sim.wanted("r", vec![want(&[1], &[&address])], None);
        sim.run_for(SECOND).await;
        let hosts = sim.hunting.figures().await.unwrap().hosts;
        assert_eq!(hosts[0].1.class, class, "{address}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_repository_fetches_an_object_that_another_has_for_itself() {
    let sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
    sim.run_for(10 * SECOND).await;
    assert!(sim.has_everything("r"));
    sim.wanted("other", vec![want(&[1], &["a.com"])], Duration::ZERO);
    assert!(!sim.has_everything("other"));
    sim.run_for(10 * SECOND).await;
    assert!(sim.has_everything("other"));
    let fetches = sim
        .asked_of("a.com")
        .iter()
        .filter(|asked| asked.oids.is_some())
        .count();
    assert_eq!(fetches, 2);
}
