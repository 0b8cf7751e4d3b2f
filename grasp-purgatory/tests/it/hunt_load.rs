//! The hunt under load: many repositories, many addresses, silent servers.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::time::Duration;

use grasp_core::{CloneUrl, Mono, Oid};
use grasp_purgatory::Want;
use grasp_purgatory::hunt::HostLimits;
use grasp_purgatory::hunt::{FetchError, HostClass, HuntConfig, HuntReport};

use crate::hunt_sim::*;
use crate::model_events::{ALICE, announcement, state};
use crate::model_world::World;

const SYNC_DELAY: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn with_fetch_slots(at_once: usize) -> HuntConfig {
    HuntConfig {
        at_once: NonZeroUsize::new(at_once).unwrap(),
        ..HuntConfig::default()
    }
}

/// Returns the time at which everything for a repository was here.
fn completed(sim: &Sim, repo: &str) -> Option<Mono> {
    let is_meant = |report: &HuntReport| matches!(report, HuntReport::Complete { repo: one } if *one == name(repo));
    sim.reports(is_meant).first().copied()
}

#[tokio::test(start_paused = true)]
async fn requests_stay_within_the_fetch_slots_and_all_are_served() {
    let mut sim = Sim::with(with_fetch_slots(4));
    for n in 0..50_u8 {
        let address = format!("h{n}.com");
        sim = sim.server(&address, Behaviour::Fine, &[n]);
        sim.wanted(&format!("r{n}"), vec![want(&[n], &[&address])], SYNC_DELAY);
    }
    sim.run_for(10 * SECOND).await;
    assert_eq!(sim.world().max_in_flight, 4);
    assert_eq!(sim.here(), 50);
    assert_eq!(sim.in_flight().await, 0);
}

#[tokio::test(start_paused = true)]
async fn silent_servers_do_not_occupy_every_fetch_slot() {
    let mut sim = Sim::with(with_fetch_slots(4)).server("fine.com", Behaviour::Fine, &[200]);
    for n in 0..40_u8 {
        let address = format!("s{n}.com");
        sim = sim.server(&address, Behaviour::Silent, &[]);
        sim.wanted(
            &format!("r{n}"),
            vec![want(&[n], &[&address])],
            Duration::ZERO,
        );
    }
    sim.run_for(SECOND).await;
    sim.wanted("honest", vec![want(&[200], &["fine.com"])], SYNC_DELAY);
    sim.run_for(3 * MINUTE).await;
    let took = completed(&sim, "honest").expect("it is found") - Mono::from_secs(1);
    assert!(
        took <= 60 * SECOND,
        "each silent server has 5 seconds, four at a time: {took:?}"
    );
    let stalled = |r: &HuntReport| {
        matches!(
            r,
            HuntReport::Failed {
                error: FetchError::Stalled,
                ..
            }
        )
    };
    assert!(
        !sim.reports(stalled).is_empty(),
        "silent servers are reported"
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_server_is_not_cancelled_while_no_other_request_waits() {
    let sim = Sim::with(with_fetch_slots(1)).server("s.com", Behaviour::Silent, &[]);
    sim.wanted("r", vec![want(&[1], &["s.com"])], Duration::ZERO);
    sim.run_for(59 * SECOND).await;
    assert!(sim.world().cancelled == 0);
    assert_eq!(sim.in_flight().await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_transfer_is_interrupted_after_five_minutes_if_others_wait() {
    let config = HuntConfig {
        fetch_is_late: 60 * MINUTE,
        ..with_fetch_slots(1)
    };
    let sim = Sim::with(config)
        .server("slow.com", Behaviour::SilentWithObjects, &[1])
        .server("fine.com", Behaviour::Fine, &[2]);
    sim.wanted("slow", vec![want(&[1], &["slow.com"])], Duration::ZERO);
    sim.run_for(SECOND).await;
    sim.wanted("r", vec![want(&[2], &["fine.com"])], Duration::ZERO);
    sim.run_for(298 * SECOND).await;
    assert!(sim.asked_of("fine.com").is_empty());
    sim.run_for(5 * SECOND).await;
    assert!(sim.has_everything("r"));
}

#[tokio::test(start_paused = true)]
async fn a_large_transfer_completes_in_the_end_although_others_wait() {
    let sim = Sim::with(HuntConfig {
        fetch_is_late: 60 * MINUTE,
        ..with_fetch_slots(1)
    })
    .server("large.com", Behaviour::Slow(12 * MINUTE), &[1])
    .server("silent.com", Behaviour::Silent, &[]);
    sim.wanted("large", vec![want(&[1], &["large.com"])], Duration::ZERO);
    sim.wanted("small", vec![want(&[2], &["silent.com"])], Duration::ZERO);
    sim.run_for(2 * 60 * MINUTE).await;
    assert!(sim.has_everything("large"));
    let times = sim
        .asked_of("large.com")
        .iter()
        .filter(|asked| asked.oids.is_some())
        .count();
    assert_eq!(times, 3, "limited to 5, then 10, then 20 minutes");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_fetch_slot_does_not_count_as_slow() {
    let sim = Sim::with(with_fetch_slots(1))
        .server("slow.com", Behaviour::SilentWithObjects, &[1])
        .server("a.com", Behaviour::Fine, &[2])
        .server("b.com", Behaviour::Fine, &[2]);
    sim.wanted("slow", vec![want(&[1], &["slow.com"])], Duration::ZERO);
    sim.run_for(SECOND).await;
    sim.wanted("r", vec![want(&[2], &["a.com", "b.com"])], Duration::ZERO);
    sim.run_for(10 * MINUTE).await;
    assert!(sim.has_everything("r"));
    assert!(
        sim.asked_of("b.com").is_empty(),
        "a.com had not even been asked"
    );
}

#[tokio::test(start_paused = true)]
async fn objects_that_arrived_meanwhile_are_not_requested() {
    // The simulation asserts that no request is for an object that is here.
    let one = HostLimits {
        starts: 2.try_into().unwrap(),
        ..HostLimits::default()
    };
    let hosts = [("slow.com".parse().unwrap(), one)].into();
    let sim = Sim::with(HuntConfig {
        hosts,
        ..HuntConfig::default()
    })
    .server("https://slow.com/1", Behaviour::Fine, &[9])
    .server("https://slow.com/2", Behaviour::Fine, &[1, 2])
    .server("b.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "first",
        vec![want(&[9], &["https://slow.com/1"])],
        Duration::ZERO,
    );
    sim.run_for(LATENCY / 2).await;
    let addresses = ["https://slow.com/2", "b.com"];
    sim.wanted(
        "r",
        vec![want(&[1], &addresses), want(&[2], &addresses)],
        Duration::ZERO,
    );
    sim.run_for(5 * MINUTE).await;
    assert!(sim.has_everything("r"), "{:?}", sim.asked());
}

#[tokio::test(start_paused = true)]
async fn hunts_for_a_thousand_repositories_after_a_start_are_spread_over_time() {
    let sim = Sim::new();
    for n in 0..1_000_u64 {
        let wants = vec![want(
            &[(n % 250) as u8],
            &[&format!("https://h{}.com/{n}", n % 3)],
        )];
        // The delays that purgatory gives after a start: see the test below.
        sim.wanted(
            &format!("r{n}"),
            wants,
            SYNC_DELAY + Duration::from_millis(50 * n),
        );
    }
    sim.run_for(2 * SECOND).await;
    assert!(
        sim.asked().len() <= 32,
        "{} requests in two seconds",
        sim.asked().len()
    );
    sim.run_for(2 * MINUTE).await;
    assert!(
        sim.world().max_open.values().all(|most| *most <= 5),
        "{:?}",
        sim.world().max_open
    );
}

#[test]
fn a_start_begins_hunts_for_everything_that_is_held() {
    let mut world = World::new();
    for n in 0..200 {
        let name = format!("r{n}");
        world.sync(&announcement(ALICE, &name, 0, &[])).unwrap();
        world.sync(&state(ALICE, &name, 3, &[("main", 1)])).unwrap();
    }
    world.hunts.clear();
    world.restart(MINUTE);
    assert!(world.hunts.len() >= 50, "{}", world.hunts.len());
    assert!(world.hunts.iter().all(|(_, after)| after.is_none()));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_bad_addresses_take_bounded_time_and_hide_no_good_one() {
    let sim = Sim::new().server("good.com", Behaviour::Fine, &[1]);
    let bad: Vec<CloneUrl> = (0..1_000).map(|n| url(&format!("bad{n}.com"))).collect();
    let hostile = Want {
        untrusted: bad,
        ..want(&[1], &[])
    };
    sim.wanted(
        "r",
        vec![
            hostile,
            Want {
                untrusted: vec![url("good.com")],
                ..want(&[1], &[])
            },
        ],
        SYNC_DELAY,
    );
    sim.run_for(30 * SECOND).await;
    assert!(sim.asked().len() <= 2 * 64, "{}", sim.asked().len());
    sim.run_for(60 * MINUTE).await;
    assert!(sim.has_everything("r"));
}

/// Returns a simulation with repositories that each want an object of their own at one host, by addresses of a GRASP server.
fn repositories_at_one_host(behaviour: Behaviour, count: usize) -> Sim {
    let npub = grasp_core::service::npub(&ALICE.key());
    let mut sim = Sim::new();
    for n in 0..count {
        let address = format!("https://one.example/{npub}/r{n}.git");
        let tip = numbered(n);
        sim = sim.server(&address, behaviour, &[]);
        sim.at(&address, |server| server.advertises = BTreeSet::from([tip]));
        let want = Want {
            tips: vec![tip],
            ..want(&[1], &[&address])
        };
        sim.wanted(&format!("r{n}"), vec![want], None);
    }
    sim
}

fn numbered(n: usize) -> Oid {
    let mut bytes = [7; 20];
    bytes[..8].copy_from_slice(&(n as u64).to_be_bytes());
    Oid::Sha1(bytes)
}

fn busiest_minute(sim: &Sim) -> usize {
    let within = |from: Mono| move |asked: &&Asked| asked.at >= from && asked.at < from + MINUTE;
    let all = sim.asked();
    let counts = all.iter().step_by(7);
    counts
        .map(|asked| all.iter().filter(within(asked.at)).count())
        .max()
        .unwrap_or(0)
}

fn incomplete(sim: &Sim) -> usize {
    sim.reports(|report| matches!(report, HuntReport::Incomplete { .. }))
        .len()
}

#[tokio::test(start_paused = true)]
async fn a_thousand_repositories_at_one_unknown_host_follow_its_rate_limit() {
    let sim = repositories_at_one_host(Behaviour::Fine, 1_000);
    sim.run_for(SECOND).await;
    let schedule = sim.hunting.schedule().await;
    let waiting = schedule.values().filter(|turn| turn.position.is_some());
    assert!(waiting.count() > 900, "each has a position in the queue");
    sim.run_for(33 * MINUTE + 10 * SECOND).await;
    assert_eq!(sim.here(), 1_000, "a thousand at thirty per minute");
    assert_eq!(sim.asked().len(), 1_000, "one request each");
    assert_eq!(incomplete(&sim), 0, "waiting is not failing");
    assert!(busiest_minute(&sim) <= 30, "{}", busiest_minute(&sim));
}

#[tokio::test(start_paused = true)]
async fn a_thousand_repositories_at_a_grasp_server_take_two_minutes() {
    let sim = repositories_at_one_host(Behaviour::Fine, 1_000);
    sim.world()
        .classes
        .insert("one.example".parse().unwrap(), HostClass::Grasp);
    sim.run_for(75 * SECOND).await;
    assert_eq!(sim.here(), 1_000);
    assert_eq!((sim.asked().len(), incomplete(&sim)), (1_000, 0));
    assert!(busiest_minute(&sim) <= 600, "{}", busiest_minute(&sim));
    assert!(sim.world().max_open["one.example"] <= 8);
}

#[tokio::test(start_paused = true)]
async fn repositories_at_one_host_are_served_in_order_of_arrival() {
    let mut sim = repositories_at_one_host(Behaviour::Fine, 300);
    sim.run_for(MINUTE / 2).await;
    sim = sim.server("https://one.example/late.git", Behaviour::Fine, &[9]);
    sim.wanted(
        "a-late",
        vec![want(&[9], &["https://one.example/late.git"])],
        None,
    );
    sim.run_for(9 * MINUTE + SECOND).await;
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    let asked = sim.asked();
    asked
        .iter()
        .for_each(|asked| *times.entry(asked.url.as_str()).or_default() += 1);
    assert!(
        times.len() >= 300 && times.values().all(|times| *times == 1),
        "{}",
        times.len()
    );
    assert!(!times.contains_key("https://one.example/late.git"));
    sim.run_for(MINUTE).await;
    assert!(sim.has_everything("a-late"));
}

#[tokio::test(start_paused = true)]
async fn a_visit_that_needs_the_advertisement_is_finished_before_another_begins() {
    let sim = repositories_at_one_host(Behaviour::Fine, 100);
    for n in 0..100 {
        // Two objects are wanted and one of them is nowhere, so that every visit takes several requests.
        let mut world = sim.world();
        let wants = world.wants.get_mut(&name(&format!("r{n}"))).unwrap();
        wants[0].tips.push(numbered(n + 5_000));
    }
    sim.run_for(4 * MINUTE).await;
    assert!(
        sim.here() >= 25,
        "{} after {} requests",
        sim.here(),
        sim.asked().len()
    );
    assert!(busiest_minute(&sim) <= 30);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_limits_every_third_request_is_paused_and_gives_everything() {
    let pause = Duration::from_secs(2);
    let sim = repositories_at_one_host(Behaviour::LimitsEveryThird(pause), 200);
    sim.world()
        .classes
        .insert("one.example".parse().unwrap(), HostClass::Grasp);
    sim.run_for(30 * MINUTE).await;
    assert_eq!(sim.here(), 200);
    assert_eq!(incomplete(&sim), 0, "being asked to wait is not failing");
    let pauses = sim.reports(|report| matches!(report, HuntReport::Paused { .. }));
    let asked = sim.asked();
    for began in pauses {
        let during = asked
            .iter()
            .filter(|asked| asked.at > began && asked.at < began + pause);
        assert_eq!(
            during.count(),
            0,
            "asked during a pause that began at {began:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_repositories_at_a_grasp_server_follow_its_rate_limit() {
    let sim = repositories_at_one_host(Behaviour::Fine, 10_000);
    sim.world()
        .classes
        .insert("one.example".parse().unwrap(), HostClass::Grasp);
    sim.run_for(17 * MINUTE).await;
    assert_eq!(sim.here(), 10_000);
    assert_eq!((sim.asked().len(), incomplete(&sim)), (10_000, 0));
}
