//! The rules of the hunt, one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::Mono;
use grasp_purgatory::hunt::HostLimits;
use grasp_purgatory::hunt::{FetchError, HostClass, HuntConfig, HuntReport, Input};
use grasp_purgatory::{Phase, Want};

use crate::hunt_sim::*;

const USER: Duration = Duration::from_secs(180);
const SYNC: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn complete(sim: &Sim) -> Vec<(Mono, String)> {
    let reports = sim.reports.iter();
    let complete = reports.filter_map(|(at, report)| match report {
        HuntReport::Complete { identifier } => Some((*at, identifier.to_string())),
        _ => None,
    });
    complete.collect()
}

fn starts(sim: &Sim) -> Vec<Mono> {
    let reports = sim.reports.iter();
    reports.filter(|(_, r)| matches!(r, HuntReport::Started { .. })).map(|(at, _)| *at).collect()
}

#[test]
fn servers_are_tried_until_everything_is_here() {
    let mut sim = Sim::new()
        .server("a.com", Mood::Fine, &[])
        .server("b.com", Mood::Gone, &[])
        .server("c.com", Mood::Fine, &[1])
        .server("d.com", Mood::Fine, &[1]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com", "c.com", "d.com"])], SYNC);
    sim.run_for(2 * SECOND);
    assert!(sim.has_everything("r"));
    assert!(sim.asked_of("d.com").is_empty(), "nothing was left to ask for");
    assert_eq!(complete(&sim).len(), 1);
    assert_eq!(sim.hunter.schedule_at(Mono::ZERO).count(), 0);
}

#[test]
fn objects_of_several_servers_add_up() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[1]).server("b.com", Mood::Fine, &[2]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com", "b.com"])], SYNC);
    sim.run_for(2 * SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn partial_success_keeps_the_rest_wanted() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[1]);
    sim.wanted("r", vec![want(&[1], &["a.com"]), want(&[2], &["a.com"])], SYNC);
    sim.run_for(2 * SECOND);
    assert_eq!(sim.here, oids(&[1]), "what there is comes at once");
    assert!(complete(&sim).is_empty());
    sim.at("a.com").advertises = oids(&[1, 2]);
    sim.run_for(30 * SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn a_failed_fetch_brings_nothing_and_is_told() {
    let mut sim = Sim::new().server("a.com", Mood::Lies, &[]);
    sim.at("a.com").pretends = oids(&[1]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC);
    sim.run_for(2 * SECOND);
    assert!(sim.here.is_empty());
    let failed =
        |r: &HuntReport| matches!(r, HuntReport::Failed { error: FetchError::Refused(_), .. });
    assert!(sim.reports.iter().any(|(_, report)| failed(report)));
    assert!(!sim.reports.iter().any(|(_, report)| matches!(report, HuntReport::Fetched { .. })));
}

#[test]
fn user_events_wait_three_minutes_and_synced_ones_half_a_second() {
    for (after, begins) in [(USER, Mono::from_secs(180)), (SYNC, Mono::from_millis(500))] {
        let mut sim = Sim::new().server("a.com", Mood::Fine, &[1]);
        sim.wanted("r", vec![want(&[1], &["a.com"])], after);
        sim.run_for(5 * MINUTE);
        assert_eq!(sim.asked[0].at, begins);
    }
}

#[test]
fn a_burst_is_one_visit_with_one_batch() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[1, 2, 3]);
    for n in 1..=3 {
        sim.wanted("r", vec![want(&[n], &["a.com"])], SYNC);
        sim.run_for(SYNC / 5);
    }
    sim.run_for(5 * SECOND);
    let asked: Vec<_> = sim.asked.iter().map(|asked| asked.oids.clone()).collect();
    assert_eq!(asked, [Some(oids(&[1, 2, 3]))]);
}

#[test]
fn known_objects_are_asked_for_without_an_advertisement() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[]);
    sim.at("a.com").hides = oids(&[1, 2]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com"])], None);
    sim.run_for(SECOND);
    assert!(sim.has_everything("r"));
    assert_eq!(sim.asked.len(), 1, "{:?}", sim.asked);
    assert_eq!(sim.asked[0].at, Mono::from_millis(20), "the first event does not wait for others");
}

#[test]
fn a_refusal_is_followed_by_the_advertisement_and_is_remembered() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[1]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com"])], Duration::ZERO);
    sim.run_for(SECOND);
    let asked: Vec<_> = sim.asked.iter().map(|asked| asked.oids.clone()).collect();
    assert_eq!(asked[..3], [Some(oids(&[1, 2])), None, Some(oids(&[1]))], "one turn");
    sim.run_for(30 * SECOND);
    let later: Vec<_> = sim.asked.iter().skip(4).map(|asked| asked.oids.clone()).collect();
    assert_eq!(later, [None], "it is not asked again for what it refused");
    sim.at("a.com").advertises = oids(&[1, 2]);
    sim.run_for(MINUTE);
    assert!(sim.has_everything("r"));
}

#[test]
fn attempts_that_find_nothing_come_after_20_40_80_120_120_seconds() {
    let mut sim = Sim::new().server("a.com", Mood::Gone, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
    sim.run_for(8 * MINUTE);
    let starts = starts(&sim);
    let rests: Vec<_> = starts.windows(2).map(|two| (two[1] - two[0]).as_secs()).collect();
    assert_eq!(rests, [20, 40, 80, 120, 120]);
}

#[test]
fn a_new_event_is_a_fresh_start() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], USER);
    sim.run_for(USER + 65 * SECOND);
    assert_eq!(starts(&sim).len(), 3, "at 180, 200 and 240 seconds");
    sim.at("a.com").advertises = oids(&[1, 2]);
    sim.wanted("r", vec![want(&[2], &["a.com"])], SYNC);
    sim.run_for(SECOND);
    assert!(sim.has_everything("r"), "without waiting for the next rest to end");
}

#[test]
fn data_that_appears_after_ten_minutes_is_found_within_two() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC);
    sim.run_for(10 * MINUTE);
    sim.at("a.com").advertises = oids(&[1]);
    sim.run_for(2 * MINUTE + SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn what_nobody_wants_any_more_is_hunted_for_no_longer() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC);
    sim.run_for(MINUTE);
    sim.wants.clear();
    sim.run_for(3 * MINUTE);
    let asked = sim.asked.len();
    assert_eq!(sim.hunter.schedule_at(Mono::ZERO).count(), 0);
    sim.run_for(60 * MINUTE);
    assert_eq!(sim.asked.len(), asked);
}

#[test]
fn what_was_given_up_is_looked_for_once_an_hour() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[]);
    let expired = Want { phase: Phase::Expired, ..want(&[1], &["a.com"]) };
    sim.wants.insert(name("r"), vec![expired]);
    sim.tell(Input::Tick);
    sim.run_for(5 * 60 * MINUTE);
    let listed = sim.asked.iter().filter(|asked| asked.oids.is_none()).count();
    assert!((4..=6).contains(&listed), "{listed} times in five hours");
    sim.at("a.com").advertises = oids(&[1]);
    sim.run_for(60 * MINUTE);
    assert!(sim.has_everything("r"));
}

#[test]
fn a_throttled_server_is_left_to_its_line_and_others_are_asked_at_once() {
    let one = HostLimits { at_once: 1.try_into().unwrap(), ..HostLimits::default() };
    let config = HuntConfig {
        hosts: BTreeMap::from([("a.com".parse().unwrap(), one)]),
        ..HuntConfig::default()
    };
    let mut sim = Sim::with(config).server("a.com", Mood::Silent, &[]);
    for n in 1..=9 {
        sim = sim.server(&format!("https://b.com/{n}"), Mood::Fine, &[n]);
        let places = ["a.com", &format!("https://b.com/{n}")];
        sim.wanted(&format!("r{n}"), vec![want(&[n], &places)], SYNC);
    }
    sim.run_for(3 * SECOND);
    assert_eq!(sim.asked_of("a.com").len(), 1, "the line moves when a conversation ends");
    assert_eq!(sim.here.len(), 8, "everybody but the one who waits for the silent server");
    sim.run_for(5 * SECOND);
    assert_eq!(sim.here.len(), 9, "who waits too long asks another beside it");
}

#[test]
fn what_could_not_be_asked_is_asked_when_the_line_comes_to_it() {
    let config = HuntConfig {
        per_host: HostLimits { starts: 2.try_into().unwrap(), ..HostLimits::default() },
        ..HuntConfig::default()
    };
    let mut sim = Sim::with(config);
    for n in 1..=4 {
        let place = format!("https://a.com/{n}");
        sim = sim.server(&place, Mood::Fine, &[n]);
        sim.wanted(&format!("r{n}"), vec![want(&[n], &[&place])], Duration::ZERO);
    }
    sim.run_for(5 * MINUTE);
    assert_eq!(sim.here, oids(&[1, 2, 3, 4]));
    let at: Vec<_> = sim.asked.iter().map(|asked| asked.at).collect();
    assert!(at.windows(3).all(|three| three[2] - three[0] >= MINUTE), "two per minute: {at:?}");
    assert_eq!(sim.hunter.schedule_at(Mono::ZERO).count(), 0);
}

#[test]
fn an_attempt_does_not_wait_for_a_server_that_becomes_throttled_half_way() {
    let mut sim = Sim::new()
        .server("a.com", Mood::Fine, &[1])
        .server("https://a.com/angry", Mood::Limits(Some(60 * MINUTE)), &[])
        .server("b.com", Mood::Fine, &[1]);
    sim.wanted("angry", vec![want(&[9], &["https://a.com/angry"])], Duration::ZERO);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], Duration::ZERO);
    sim.run_for(SECOND);
    assert!(sim.has_everything("r"), "{:?}", sim.asked);
    assert_eq!(sim.asked_of("a.com").len(), 1, "nothing more during its pause");
}

#[test]
fn repositories_take_turns_at_a_throttled_server() {
    let config = HuntConfig {
        per_host: HostLimits { at_once: 1.try_into().unwrap(), ..HostLimits::default() },
        ..HuntConfig::default()
    };
    let mut sim = Sim::with(config);
    let places: Vec<String> = (0..5).map(|n| format!("https://a.com/greedy{n}")).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    sim = sim.server("https://a.com/modest", Mood::Fine, &[9]);
    for place in &places {
        sim = sim.server(place, Mood::Fine, &[]);
    }
    sim.wanted("greedy", vec![want(&[1], &places)], Duration::ZERO);
    sim.wanted("modest", vec![want(&[9], &["https://a.com/modest"])], Duration::ZERO);
    sim.run_for(LATENCY * 5);
    assert!(sim.has_everything("modest"), "{:?}", sim.asked);
}

#[test]
fn a_host_that_asks_for_less_is_left_alone_as_long_as_it_says() {
    for (says, waits) in [(None, 60), (Some(90 * SECOND), 90), (Some(9_999 * SECOND), 3_600)] {
        let mut sim = Sim::new().server("a.com", Mood::Limits(says), &[1]);
        sim = sim.server("https://a.com/other", Mood::Fine, &[2]);
        sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
        sim.run_for(SECOND);
        sim.at("a.com").mood = Mood::Fine;
        sim.wanted("other", vec![want(&[2], &["https://a.com/other"])], Duration::ZERO);
        sim.run_for(2 * 60 * MINUTE);
        let second = sim.asked[1].at - (Mono::ZERO + LATENCY);
        assert!(second >= Duration::from_secs(waits), "{second:?} for {says:?}");
        assert!(second <= Duration::from_secs(waits + 60), "{second:?} for {says:?}");
        assert!(sim.has_everything("r") && sim.has_everything("other"));
    }
}

#[test]
fn unadvertised_objects_are_asked_for_one_by_one_and_few_at_a_time() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[1]);
    sim.at("a.com").hides = oids(&[2, 3, 4, 5]);
    // It lacks one of them, and so refuses all when asked for all.
    sim.wanted("r", vec![want(&[1, 2, 3, 4, 5, 6], &["a.com"])], Duration::ZERO);
    sim.run_for(SECOND);
    let asked: Vec<_> = sim.asked.iter().filter_map(|asked| asked.oids.clone()).collect();
    assert_eq!(asked, [oids(&[1, 2, 3, 4, 5, 6]), oids(&[1]), oids(&[2]), oids(&[3])]);
    sim.run_for(MINUTE);
    assert_eq!(sim.here, oids(&[1, 2, 3, 4, 5]));
}

#[test]
fn phantom_tips_do_not_stall_the_rest() {
    let phantoms: Vec<u8> = (100..200).collect();
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[1]);
    sim.wanted("r", vec![want(&phantoms, &["a.com"]), want(&[1], &["a.com"])], Duration::ZERO);
    sim.run_for(30 * MINUTE);
    assert!(sim.here.contains(&oid(1)));
    let mut guesses = BTreeMap::new();
    for asked in sim.asked.iter().filter_map(|asked| asked.oids.as_ref()) {
        *guesses.entry(asked.clone()).or_insert(0) += 1;
    }
    assert!(guesses.values().all(|times| *times == 1), "what is missed is remembered");
}

#[test]
fn a_ref_that_lies_costs_its_neighbours_one_try() {
    let mut sim = Sim::new().server("a.com", Mood::Lies, &[1, 2]);
    sim.at("a.com").pretends = oids(&[3]);
    sim.wanted("r", vec![want(&[1, 2, 3], &["a.com"])], Duration::ZERO);
    sim.run_for(2 * MINUTE);
    assert_eq!(sim.here, oids(&[1, 2]));
}

#[test]
fn who_goes_silent_with_objects_is_hedged_on_another_host_after_half_a_minute() {
    let mut sim = Sim::new()
        .server("a.com", Mood::SilentWithObjects, &[1])
        .server("https://a.com/again", Mood::Fine, &[1])
        .server("b.com", Mood::Fine, &[1]);
    let places = ["a.com", "https://a.com/again", "b.com"];
    sim.wanted("r", vec![want(&[1], &places)], Duration::ZERO);
    sim.run_for(29 * SECOND);
    assert!(sim.asked_of("b.com").is_empty());
    sim.run_for(3 * SECOND);
    assert!(sim.has_everything("r"));
    assert!(sim.asked_of("https://a.com/again").is_empty(), "a different host");
    assert_eq!(sim.cancelled.len(), 1, "the silent one is given up");
    assert_eq!(sim.hunter.in_flight(), 0);
}

#[test]
fn many_silent_servers_in_a_row_cannot_hide_an_honest_one() {
    let mut sim = Sim::new().server("z.com", Mood::Fine, &[1]);
    let places: Vec<String> = (0..9).map(|n| format!("s{n}.com")).collect();
    for place in &places {
        sim = sim.server(place, Mood::Silent, &[]);
    }
    let places: Vec<&str> = places.iter().map(String::as_str).chain(["z.com"]).collect();
    sim.wanted("r", vec![want(&[1], &places)], Duration::ZERO);
    sim.run_for(19 * SECOND);
    assert_eq!(sim.asked.len(), 4, "three are late, and one is waited for");
    sim.run_for(3 * MINUTE);
    assert!(sim.has_everything("r"), "{:?}", sim.asked);
}

#[test]
fn a_server_that_is_late_delays_neither_the_next_attempt_nor_new_events() {
    let mut sim =
        Sim::new().server("a.com", Mood::SilentWithObjects, &[1]).server("b.com", Mood::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], Duration::ZERO);
    sim.run_for(40 * SECOND);
    sim.at("b.com").advertises = oids(&[1]);
    sim.run_for(30 * SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn hunting_never_exceeds_what_a_host_is_asked_for() {
    let mut sim = Sim::new();
    for n in 0..200_u8 {
        let place = format!("https://a.com/{n}");
        sim = sim.server(&place, Mood::Fine, &[n]);
        sim.wanted(&format!("r{n}"), vec![want(&[n], &[&place])], SYNC);
    }
    sim.run_for(20 * MINUTE);
    assert_eq!(sim.here.len(), 200);
    assert!(sim.most_at_once["a.com"] <= 5);
    let at: Vec<_> = sim.asked.iter().map(|asked| asked.at).collect();
    assert!(at.windows(31).all(|some| some[30] - some[0] >= MINUTE));
}

#[test]
fn what_cannot_be_learned_is_asked_for_again() {
    let mut sim = Sim::new();
    sim.tell(Input::Wanted { identifier: name("r"), after: Some(Duration::ZERO) });
    sim.tell(Input::WantsRead { identifier: name("r"), wants: None });
    let incomplete = |r: &HuntReport| matches!(r, HuntReport::Incomplete { next: Some(_), .. });
    assert!(sim.reports.iter().any(|(_, report)| incomplete(report)));
}

#[test]
fn answers_to_questions_that_nobody_asked_change_nothing() {
    let mut sim = Sim::new().server("a.com", Mood::Fine, &[1]);
    sim.tell(Input::WantsRead { identifier: name("r"), wants: Some(vec![want(&[1], &["a.com"])]) });
    assert!(sim.asked.is_empty());
}

#[test]
fn a_server_that_always_asks_for_less_keeps_no_other_from_being_asked_again() {
    let mut sim = Sim::new().server("a.com", Mood::Limits(Some(10 * MINUTE)), &[]).server(
        "b.com",
        Mood::Fine,
        &[],
    );
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], None);
    sim.run_for(30 * SECOND);
    assert!(!sim.has_everything("r"));
    sim.at("b.com").advertises = oids(&[1]);
    sim.run_for(2 * MINUTE);
    assert!(sim.has_everything("r"), "{:?}", sim.asked);
    assert!(sim.asked_of("a.com").len() <= 2);
}

#[test]
fn documents_below_the_root_of_a_host_do_not_say_what_it_is() {
    let npub = grasp_core::service::npub(&crate::model_events::ALICE.key());
    let classes = |place: &str| {
        let mut sim = Sim::new().server(place, Mood::Fine, &[1]);
        sim.classes.insert("forge.example".parse().unwrap(), HostClass::Grasp);
        sim.wanted("r", vec![want(&[1], &[place])], None);
        sim.run_for(SECOND);
        sim.hunter.hosts().map(|(_, figures)| figures.class).collect::<Vec<_>>()
    };
    let root = format!("https://forge.example/{npub}/r.git");
    let below = format!("https://forge.example/me/raw/{npub}/r.git");
    assert_eq!(classes(&root), [HostClass::Grasp]);
    assert_eq!(classes(&below), [HostClass::Unknown]);
}
