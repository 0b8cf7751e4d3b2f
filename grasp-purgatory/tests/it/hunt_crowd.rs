//! The hunt when there is too much of everything: names, addresses, servers that say nothing.

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

const SYNC: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn hands(at_once: usize) -> HuntConfig {
    HuntConfig { at_once: NonZeroUsize::new(at_once).unwrap(), ..HuntConfig::default() }
}

/// When everything for a name was here.
fn completed(sim: &Sim, identifier: &str) -> Option<Mono> {
    let mut reports = sim.reports.iter();
    reports.find_map(|(at, report)| match report {
        HuntReport::Complete { identifier: one } if one.as_str() == identifier => Some(*at),
        _ => None,
    })
}

#[test]
fn there_are_never_more_conversations_than_hands_and_everybody_is_served() {
    let mut sim = Sim::with(hands(4));
    for n in 0..50_u8 {
        let place = format!("h{n}.com");
        sim = sim.server(&place, Mood::Fine, &[n]);
        sim.wanted(&format!("r{n}"), vec![want(&[n], &[&place])], SYNC);
    }
    sim.run_for(10 * SECOND);
    assert_eq!(sim.most_in_all, 4);
    assert_eq!(sim.here.len(), 50);
    assert_eq!(sim.hunter.in_flight(), 0);
}

#[test]
fn silent_servers_cannot_take_every_hand() {
    let mut sim = Sim::with(hands(4)).server("fine.com", Mood::Fine, &[200]);
    for n in 0..40_u8 {
        let place = format!("s{n}.com");
        sim = sim.server(&place, Mood::Silent, &[]);
        sim.wanted(&format!("r{n}"), vec![want(&[n], &[&place])], Duration::ZERO);
    }
    sim.run_for(SECOND);
    sim.wanted("honest", vec![want(&[200], &["fine.com"])], SYNC);
    sim.run_for(3 * MINUTE);
    let took = completed(&sim, "honest").expect("it is found") - Mono::from_secs(1);
    assert!(took <= 60 * SECOND, "each silent server has 5 seconds, four at a time: {took:?}");
    let stalled =
        |r: &HuntReport| matches!(r, HuntReport::Failed { error: FetchError::Stalled, .. });
    assert!(sim.reports.iter().any(|(_, report)| stalled(report)), "and that is told");
}

#[test]
fn a_late_server_has_all_its_time_while_nobody_waits() {
    let mut sim = Sim::with(hands(1)).server("s.com", Mood::Silent, &[]);
    sim.wanted("r", vec![want(&[1], &["s.com"])], Duration::ZERO);
    sim.run_for(59 * SECOND);
    assert!(sim.cancelled.is_empty());
    assert_eq!(sim.hunter.in_flight(), 1);
}

#[test]
fn a_transfer_gives_way_after_five_minutes_if_others_wait_and_not_before() {
    let config = HuntConfig { fetch_is_late: 60 * MINUTE, ..hands(1) };
    let mut sim = Sim::with(config).server("slow.com", Mood::SilentWithObjects, &[1]).server(
        "fine.com",
        Mood::Fine,
        &[2],
    );
    sim.wanted("slow", vec![want(&[1], &["slow.com"])], Duration::ZERO);
    sim.run_for(SECOND);
    sim.wanted("r", vec![want(&[2], &["fine.com"])], Duration::ZERO);
    sim.run_for(298 * SECOND);
    assert!(sim.asked_of("fine.com").is_empty());
    sim.run_for(5 * SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn what_is_large_comes_some_day_however_many_wait() {
    let mut sim = Sim::with(HuntConfig { fetch_is_late: 60 * MINUTE, ..hands(1) })
        .server("large.com", Mood::Slow(12 * MINUTE), &[1])
        .server("silent.com", Mood::Silent, &[]);
    sim.wanted("large", vec![want(&[1], &["large.com"])], Duration::ZERO);
    sim.wanted("small", vec![want(&[2], &["silent.com"])], Duration::ZERO);
    sim.run_for(2 * 60 * MINUTE);
    assert!(sim.has_everything("large"));
    let times = sim.asked_of("large.com").iter().filter(|asked| asked.oids.is_some()).count();
    assert_eq!(times, 3, "after five minutes, after ten, and then it had twenty");
}

#[test]
fn waiting_for_a_hand_makes_nobody_late() {
    let mut sim = Sim::with(hands(1))
        .server("slow.com", Mood::SilentWithObjects, &[1])
        .server("a.com", Mood::Fine, &[2])
        .server("b.com", Mood::Fine, &[2]);
    sim.wanted("slow", vec![want(&[1], &["slow.com"])], Duration::ZERO);
    sim.run_for(SECOND);
    sim.wanted("r", vec![want(&[2], &["a.com", "b.com"])], Duration::ZERO);
    sim.run_for(10 * MINUTE);
    assert!(sim.has_everything("r"));
    assert!(sim.asked_of("b.com").is_empty(), "a.com had not even been asked");
}

#[test]
fn what_others_brought_meanwhile_is_not_asked_for() {
    // The sim sees to it that nothing is asked for that is here.
    let one = HostLimits { starts: 2.try_into().unwrap(), ..HostLimits::default() };
    let hosts = [("slow.com".parse().unwrap(), one)].into();
    let mut sim = Sim::with(HuntConfig { hosts, ..HuntConfig::default() })
        .server("https://slow.com/1", Mood::Fine, &[9])
        .server("https://slow.com/2", Mood::Fine, &[1, 2])
        .server("b.com", Mood::Fine, &[1]);
    sim.wanted("first", vec![want(&[9], &["https://slow.com/1"])], Duration::ZERO);
    sim.run_for(LATENCY / 2);
    let places = ["https://slow.com/2", "b.com"];
    sim.wanted("r", vec![want(&[1], &places), want(&[2], &places)], Duration::ZERO);
    sim.run_for(5 * MINUTE);
    assert!(sim.has_everything("r"), "{:?}", sim.asked);
}

#[test]
fn a_thousand_names_that_waited_for_a_start_are_asked_for_one_after_another() {
    let mut sim = Sim::new();
    for n in 0..1_000_u64 {
        let wants = vec![want(&[(n % 250) as u8], &[&format!("https://h{}.com/{n}", n % 3)])];
        // What purgatory says after a start: see the test below.
        sim.wanted(&format!("r{n}"), wants, SYNC + Duration::from_millis(50 * n));
    }
    sim.run_for(2 * SECOND);
    assert!(sim.asked.len() <= 32, "{} conversations in two seconds", sim.asked.len());
    sim.run_for(2 * MINUTE);
    assert!(sim.most_at_once.values().all(|most| *most <= 5), "{:?}", sim.most_at_once);
}

#[test]
fn a_start_has_everything_that_waits_hunted_for() {
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

#[test]
fn a_thousand_bad_addresses_take_bounded_time_and_hide_nobody() {
    let mut sim = Sim::new().server("good.com", Mood::Fine, &[1]);
    let bad: Vec<CloneUrl> = (0..1_000).map(|n| url(&format!("bad{n}.com"))).collect();
    let hostile = Want { untrusted: bad, ..want(&[1], &[]) };
    sim.wanted(
        "r",
        vec![hostile, Want { untrusted: vec![url("good.com")], ..want(&[1], &[]) }],
        SYNC,
    );
    sim.run_for(30 * SECOND);
    assert!(sim.asked.len() <= 2 * 64, "{}", sim.asked.len());
    sim.run_for(60 * MINUTE);
    assert!(sim.has_everything("r"));
}

#[test]
fn the_same_story_twice_is_told_in_the_same_words() {
    let tell = || {
        let mut sim = Sim::with(hands(2));
        for n in 0..20_u8 {
            let place = format!("h{}.com", n % 7);
            let mood = if n % 3 == 0 { Mood::Silent } else { Mood::Fine };
            sim = sim.server(&place, mood, &[n]);
            sim.wanted(&format!("r{n}"), vec![want(&[n], &[&place])], SYNC);
        }
        sim.run_for(10 * MINUTE);
        sim.asked
    };
    assert_eq!(tell(), tell());
}

/// A thousand names, each with an object of its own at one host whose addresses are those of a GRASP server.
fn thousand_names(mood: Mood, names: usize) -> Sim {
    let npub = grasp_core::service::npub(&ALICE.key());
    let mut sim = Sim::new();
    for n in 0..names {
        let place = format!("https://one.example/{npub}/r{n}.git");
        let tip = numbered(n);
        sim = sim.server(&place, mood, &[]);
        sim.at(&place).advertises = BTreeSet::from([tip]);
        let want = Want { tips: vec![tip], ..want(&[1], &[&place]) };
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
    let counts = sim.asked.iter().step_by(7);
    counts.map(|asked| sim.asked.iter().filter(within(asked.at)).count()).max().unwrap_or(0)
}

fn incomplete(sim: &Sim) -> usize {
    sim.reports.iter().filter(|(_, r)| matches!(r, HuntReport::Incomplete { .. })).count()
}

#[test]
fn a_thousand_names_at_one_unknown_host_take_what_its_rate_allows() {
    let mut sim = thousand_names(Mood::Fine, 1_000);
    sim.run_for(SECOND);
    let waiting = sim.hunter.schedule_at(sim.now.mono).filter(|(_, turn)| turn.position.is_some());
    assert!(waiting.count() > 900, "each knows its place in line");
    sim.run_for(33 * MINUTE + 10 * SECOND);
    assert_eq!(sim.here.len(), 1_000, "a thousand at thirty per minute");
    assert_eq!(sim.asked.len(), 1_000, "one conversation each");
    assert_eq!(incomplete(&sim), 0, "waiting is not failing");
    assert!(busiest_minute(&sim) <= 30, "{}", busiest_minute(&sim));
}

#[test]
fn a_thousand_names_at_a_grasp_server_take_two_minutes() {
    let mut sim = thousand_names(Mood::Fine, 1_000);
    sim.classes.insert("one.example".parse().unwrap(), HostClass::Grasp);
    sim.run_for(75 * SECOND);
    assert_eq!(sim.here.len(), 1_000);
    assert_eq!((sim.asked.len(), incomplete(&sim)), (1_000, 0));
    assert!(busiest_minute(&sim) <= 600, "{}", busiest_minute(&sim));
    assert!(sim.most_at_once["one.example"] <= 8);
}

#[test]
fn each_name_has_its_turn_within_names_by_rate_and_latecomers_overtake_none() {
    let mut sim = thousand_names(Mood::Fine, 300);
    sim.run_for(MINUTE / 2);
    sim = sim.server("https://one.example/late.git", Mood::Fine, &[9]);
    sim.wanted("a-late", vec![want(&[9], &["https://one.example/late.git"])], None);
    sim.run_for(9 * MINUTE + SECOND);
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    sim.asked.iter().for_each(|asked| *times.entry(asked.url.as_str()).or_default() += 1);
    assert!(times.len() >= 300 && times.values().all(|times| *times == 1), "{}", times.len());
    assert!(!times.contains_key("https://one.example/late.git"));
    sim.run_for(MINUTE);
    assert!(sim.has_everything("a-late"));
}

#[test]
fn a_visit_that_needs_the_advertisement_is_finished_before_another_begins() {
    let mut sim = thousand_names(Mood::Fine, 100);
    for n in 0..100 {
        // Two objects are wanted, and one of them is nowhere, so that every visit takes several questions.
        let wants = sim.wants.get_mut(&name(&format!("r{n}"))).unwrap();
        wants[0].tips.push(numbered(n + 5_000));
    }
    sim.run_for(4 * MINUTE);
    assert!(sim.here.len() >= 25, "{} after {} questions", sim.here.len(), sim.asked.len());
    assert!(busiest_minute(&sim) <= 30);
}

#[test]
fn a_server_that_limits_every_third_request_is_obeyed_and_gives_everything() {
    let pause = Duration::from_secs(2);
    let mut sim = thousand_names(Mood::LimitsEveryThird(pause), 200);
    sim.classes.insert("one.example".parse().unwrap(), HostClass::Grasp);
    sim.run_for(30 * MINUTE);
    assert_eq!(sim.here.len(), 200);
    assert_eq!(incomplete(&sim), 0, "being asked to wait is not failing");
    let pauses = sim.reports.iter().filter_map(|(at, report)| match report {
        HuntReport::Paused { .. } => Some(*at),
        _ => None,
    });
    for began in pauses {
        let during = sim.asked.iter().filter(|asked| asked.at > began && asked.at < began + pause);
        assert_eq!(during.count(), 0, "asked during a pause that began at {began:?}");
    }
}

#[test]
fn ten_thousand_names_at_a_grasp_server_take_what_its_rate_allows() {
    let mut sim = thousand_names(Mood::Fine, 10_000);
    sim.classes.insert("one.example".parse().unwrap(), HostClass::Grasp);
    sim.run_for(17 * MINUTE);
    assert_eq!(sim.here.len(), 10_000);
    assert_eq!((sim.asked.len(), incomplete(&sim)), (10_000, 0));
}
