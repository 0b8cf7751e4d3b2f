//! The rules of the hunt, one by one.

use std::collections::BTreeMap;
use std::time::Duration;

use grasp_core::Mono;
use grasp_purgatory::hunt::HostLimits;
use grasp_purgatory::hunt::{FetchError, HostClass, HuntConfig, HuntReport, Input};
use grasp_purgatory::{Phase, Want};

use crate::hunt_sim::*;

const CLIENT_DELAY: Duration = Duration::from_secs(180);
const SYNC_DELAY: Duration = Duration::from_millis(500);
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn complete(sim: &Sim) -> Vec<(Mono, String)> {
    let reports = sim.reports.iter();
    let complete = reports.filter_map(|(at, report)| match report {
        HuntReport::Complete { repo } => Some((*at, repo.identifier.to_string())),
        _ => None,
    });
    complete.collect()
}

fn starts(sim: &Sim) -> Vec<Mono> {
    let reports = sim.reports.iter();
    reports
        .filter(|(_, r)| matches!(r, HuntReport::Started { .. }))
        .map(|(at, _)| *at)
        .collect()
}

#[test]
fn servers_are_tried_until_everything_is_here() {
    let mut sim = Sim::new()
        .server("a.com", Behaviour::Fine, &[])
        .server("b.com", Behaviour::Gone, &[])
        .server("c.com", Behaviour::Fine, &[1])
        .server("d.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "r",
        vec![want(&[1], &["a.com", "b.com", "c.com", "d.com"])],
        SYNC_DELAY,
    );
    sim.run_for(2 * SECOND);
    assert!(sim.has_everything("r"));
    assert!(
        sim.asked_of("d.com").is_empty(),
        "nothing was left to ask for"
    );
    assert_eq!(complete(&sim).len(), 1);
    assert_eq!(sim.hunter.schedule_at(Mono::ZERO).count(), 0);
}

#[test]
fn objects_of_several_servers_add_up() {
    let mut sim =
        Sim::new()
            .server("a.com", Behaviour::Fine, &[1])
            .server("b.com", Behaviour::Fine, &[2]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com", "b.com"])], SYNC_DELAY);
    sim.run_for(2 * SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn partial_success_keeps_the_rest_wanted() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "r",
        vec![want(&[1], &["a.com"]), want(&[2], &["a.com"])],
        SYNC_DELAY,
    );
    sim.run_for(2 * SECOND);
    assert_eq!(
        sim.fetched(),
        oids(&[1]),
        "available objects are fetched at once"
    );
    assert!(complete(&sim).is_empty());
    sim.at("a.com").advertises = oids(&[1, 2]);
    sim.run_for(30 * SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn a_failed_fetch_brings_nothing_and_is_reported() {
    let mut sim = Sim::new().server("a.com", Behaviour::Lies, &[]);
    sim.at("a.com").pretends = oids(&[1]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC_DELAY);
    sim.run_for(2 * SECOND);
    assert!(sim.here.is_empty());
    let failed = |r: &HuntReport| {
        matches!(
            r,
            HuntReport::Failed {
                error: FetchError::Refused(_),
                ..
            }
        )
    };
    assert!(sim.reports.iter().any(|(_, report)| failed(report)));
    assert!(
        !sim.reports
            .iter()
            .any(|(_, report)| matches!(report, HuntReport::Fetched { .. }))
    );
}

#[test]
fn hunts_for_client_events_begin_after_three_minutes_and_for_synced_ones_after_half_a_second() {
    for (after, begins) in [
        (CLIENT_DELAY, Mono::from_secs(180)),
        (SYNC_DELAY, Mono::from_millis(500)),
    ] {
        let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
        sim.wanted("r", vec![want(&[1], &["a.com"])], after);
        sim.run_for(5 * MINUTE);
        assert_eq!(sim.asked[0].at, begins);
    }
}

#[test]
fn a_burst_is_one_visit_with_one_batch() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1, 2, 3]);
    for n in 1..=3 {
        sim.wanted("r", vec![want(&[n], &["a.com"])], SYNC_DELAY);
        sim.run_for(SYNC_DELAY / 5);
    }
    sim.run_for(5 * SECOND);
    let asked: Vec<_> = sim.asked.iter().map(|asked| asked.oids.clone()).collect();
    assert_eq!(asked, [Some(oids(&[1, 2, 3]))]);
}

#[test]
fn known_objects_are_asked_for_without_an_advertisement() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.at("a.com").hides = oids(&[1, 2]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com"])], None);
    sim.run_for(SECOND);
    assert!(sim.has_everything("r"));
    assert_eq!(sim.asked.len(), 1, "{:?}", sim.asked);
    assert_eq!(
        sim.asked[0].at,
        Mono::from_millis(20),
        "the first event does not wait for others"
    );
}

#[test]
fn a_refusal_is_followed_by_the_advertisement_and_is_remembered() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted("r", vec![want(&[1, 2], &["a.com"])], Duration::ZERO);
    sim.run_for(SECOND);
    let asked: Vec<_> = sim.asked.iter().map(|asked| asked.oids.clone()).collect();
    assert_eq!(
        asked[..3],
        [Some(oids(&[1, 2])), None, Some(oids(&[1]))],
        "within one visit"
    );
    sim.run_for(30 * SECOND);
    let later: Vec<_> = sim
        .asked
        .iter()
        .skip(4)
        .map(|asked| asked.oids.clone())
        .collect();
    assert_eq!(later, [None], "it is not asked again for what it refused");
    sim.at("a.com").advertises = oids(&[1, 2]);
    sim.run_for(MINUTE);
    assert!(sim.has_everything("r"));
}

#[test]
fn attempts_that_find_nothing_are_repeated_after_20_40_80_120_120_seconds() {
    let mut sim = Sim::new().server("a.com", Behaviour::Gone, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
    sim.run_for(8 * MINUTE);
    let starts = starts(&sim);
    let pauses: Vec<_> = starts
        .windows(2)
        .map(|two| (two[1] - two[0]).as_secs())
        .collect();
    assert_eq!(pauses, [20, 40, 80, 120, 120]);
}

#[test]
fn a_new_event_is_a_fresh_start() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], CLIENT_DELAY);
    sim.run_for(CLIENT_DELAY + 65 * SECOND);
    assert_eq!(starts(&sim).len(), 3, "at 180, 200 and 240 seconds");
    sim.at("a.com").advertises = oids(&[1, 2]);
    sim.wanted("r", vec![want(&[2], &["a.com"])], SYNC_DELAY);
    sim.run_for(SECOND);
    assert!(
        sim.has_everything("r"),
        "without waiting for the next pause to end"
    );
}

#[test]
fn data_that_appears_after_ten_minutes_is_found_within_two() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC_DELAY);
    sim.run_for(10 * MINUTE);
    sim.at("a.com").advertises = oids(&[1]);
    sim.run_for(2 * MINUTE + SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn a_hunt_ends_when_its_objects_are_no_longer_wanted() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], SYNC_DELAY);
    sim.run_for(MINUTE);
    sim.wants.clear();
    sim.run_for(3 * MINUTE);
    let asked = sim.asked.len();
    assert_eq!(sim.hunter.schedule_at(Mono::ZERO).count(), 0);
    sim.run_for(60 * MINUTE);
    assert_eq!(sim.asked.len(), asked);
}

#[test]
fn objects_of_expired_events_are_looked_for_once_an_hour() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[]);
    let expired = Want {
        phase: Phase::Expired,
        ..want(&[1], &["a.com"])
    };
    sim.wants.insert(name("r"), vec![expired]);
    sim.handle(Input::Tick);
    sim.run_for(5 * 60 * MINUTE);
    let listed = sim
        .asked
        .iter()
        .filter(|asked| asked.oids.is_none())
        .count();
    assert!((4..=6).contains(&listed), "{listed} times in five hours");
    sim.at("a.com").advertises = oids(&[1]);
    sim.run_for(60 * MINUTE);
    assert!(sim.has_everything("r"));
}

#[test]
fn a_throttled_server_is_queued_for_and_others_are_asked_at_once() {
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
    sim.run_for(3 * SECOND);
    assert_eq!(
        sim.asked_of("a.com").len(),
        1,
        "the queue moves when a request ends"
    );
    assert_eq!(
        sim.here.len(),
        8,
        "all but the one that waits for the silent server"
    );
    sim.run_for(5 * SECOND);
    assert_eq!(
        sim.here.len(),
        9,
        "after a slow answer another server is asked"
    );
}

#[test]
fn requests_above_the_rate_limit_are_sent_in_order_of_the_queue() {
    let config = HuntConfig {
        per_host: HostLimits {
            starts: 2.try_into().unwrap(),
            ..HostLimits::default()
        },
        ..HuntConfig::default()
    };
    let mut sim = Sim::with(config);
    for n in 1..=4 {
        let address = format!("https://a.com/{n}");
        sim = sim.server(&address, Behaviour::Fine, &[n]);
        sim.wanted(
            &format!("r{n}"),
            vec![want(&[n], &[&address])],
            Duration::ZERO,
        );
    }
    sim.run_for(5 * MINUTE);
    assert_eq!(sim.fetched(), oids(&[1, 2, 3, 4]));
    let at: Vec<_> = sim.asked.iter().map(|asked| asked.at).collect();
    assert!(
        at.windows(3).all(|three| three[2] - three[0] >= MINUTE),
        "two per minute: {at:?}"
    );
    assert_eq!(sim.hunter.schedule_at(Mono::ZERO).count(), 0);
}

#[test]
fn an_attempt_does_not_wait_for_a_server_that_becomes_throttled() {
    let mut sim = Sim::new()
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
    sim.run_for(SECOND);
    assert!(sim.has_everything("r"), "{:?}", sim.asked);
    assert_eq!(
        sim.asked_of("a.com").len(),
        1,
        "nothing more during its pause"
    );
}

#[test]
fn repositories_take_turns_at_a_throttled_server() {
    let config = HuntConfig {
        per_host: HostLimits {
            at_once: 1.try_into().unwrap(),
            ..HostLimits::default()
        },
        ..HuntConfig::default()
    };
    let mut sim = Sim::with(config);
    let addresses: Vec<String> = (0..5).map(|n| format!("https://a.com/greedy{n}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    sim = sim.server("https://a.com/modest", Behaviour::Fine, &[9]);
    for address in &addresses {
        sim = sim.server(address, Behaviour::Fine, &[]);
    }
    sim.wanted("greedy", vec![want(&[1], &addresses)], Duration::ZERO);
    sim.wanted(
        "modest",
        vec![want(&[9], &["https://a.com/modest"])],
        Duration::ZERO,
    );
    sim.run_for(LATENCY * 5);
    assert!(sim.has_everything("modest"), "{:?}", sim.asked);
}

#[test]
fn a_rate_limited_host_is_paused_for_its_retry_after() {
    for (says, waits) in [
        (None, 60),
        (Some(90 * SECOND), 90),
        (Some(9_999 * SECOND), 3_600),
    ] {
        let mut sim = Sim::new().server("a.com", Behaviour::Limits(says), &[1]);
        sim = sim.server("https://a.com/other", Behaviour::Fine, &[2]);
        sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
        sim.run_for(SECOND);
        sim.at("a.com").behaviour = Behaviour::Fine;
        sim.wanted(
            "other",
            vec![want(&[2], &["https://a.com/other"])],
            Duration::ZERO,
        );
        sim.run_for(2 * 60 * MINUTE);
        let second = sim.asked[1].at - (Mono::ZERO + LATENCY);
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

#[test]
fn unadvertised_objects_are_asked_for_one_by_one_and_few_at_a_time() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.at("a.com").hides = oids(&[2, 3, 4, 5]);
    // It lacks one of them, and so refuses all when asked for all.
    sim.wanted(
        "r",
        vec![want(&[1, 2, 3, 4, 5, 6], &["a.com"])],
        Duration::ZERO,
    );
    sim.run_for(SECOND);
    let asked: Vec<_> = sim
        .asked
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
    sim.run_for(MINUTE);
    assert_eq!(sim.fetched(), oids(&[1, 2, 3, 4, 5]));
}

#[test]
fn phantom_tips_do_not_stall_the_rest() {
    let phantoms: Vec<u8> = (100..200).collect();
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted(
        "r",
        vec![want(&phantoms, &["a.com"]), want(&[1], &["a.com"])],
        Duration::ZERO,
    );
    sim.run_for(30 * MINUTE);
    assert!(sim.fetched().contains(&oid(1)));
    let mut guesses = BTreeMap::new();
    for asked in sim.asked.iter().filter_map(|asked| asked.oids.as_ref()) {
        *guesses.entry(asked.clone()).or_insert(0) += 1;
    }
    assert!(
        guesses.values().all(|times| *times == 1),
        "objects that a server lacks are remembered"
    );
}

#[test]
fn a_ref_without_its_object_delays_other_refs_by_one_attempt() {
    let mut sim = Sim::new().server("a.com", Behaviour::Lies, &[1, 2]);
    sim.at("a.com").pretends = oids(&[3]);
    sim.wanted("r", vec![want(&[1, 2, 3], &["a.com"])], Duration::ZERO);
    sim.run_for(2 * MINUTE);
    assert_eq!(sim.fetched(), oids(&[1, 2]));
}

#[test]
fn a_stalled_transfer_is_hedged_on_another_host_after_half_a_minute() {
    let mut sim = Sim::new()
        .server("a.com", Behaviour::SilentWithObjects, &[1])
        .server("https://a.com/again", Behaviour::Fine, &[1])
        .server("b.com", Behaviour::Fine, &[1]);
    let addresses = ["a.com", "https://a.com/again", "b.com"];
    sim.wanted("r", vec![want(&[1], &addresses)], Duration::ZERO);
    sim.run_for(29 * SECOND);
    assert!(sim.asked_of("b.com").is_empty());
    sim.run_for(3 * SECOND);
    assert!(sim.has_everything("r"));
    assert!(
        sim.asked_of("https://a.com/again").is_empty(),
        "a different host"
    );
    assert_eq!(sim.cancelled.len(), 1, "the silent one is cancelled");
    assert_eq!(sim.hunter.in_flight(), 0);
}

#[test]
fn many_silent_servers_in_a_row_cannot_hide_an_honest_one() {
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
    sim.run_for(19 * SECOND);
    assert_eq!(sim.asked.len(), 4, "three are late, and one is waited for");
    sim.run_for(3 * MINUTE);
    assert!(sim.has_everything("r"), "{:?}", sim.asked);
}

#[test]
fn a_slow_server_delays_neither_the_next_attempt_nor_new_events() {
    let mut sim = Sim::new()
        .server("a.com", Behaviour::SilentWithObjects, &[1])
        .server("b.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], Duration::ZERO);
    sim.run_for(40 * SECOND);
    sim.at("b.com").advertises = oids(&[1]);
    sim.run_for(30 * SECOND);
    assert!(sim.has_everything("r"));
}

#[test]
fn hunting_stays_within_the_limits_of_a_host() {
    let mut sim = Sim::new();
    for n in 0..200_u8 {
        let address = format!("https://a.com/{n}");
        sim = sim.server(&address, Behaviour::Fine, &[n]);
        sim.wanted(&format!("r{n}"), vec![want(&[n], &[&address])], SYNC_DELAY);
    }
    sim.run_for(20 * MINUTE);
    assert_eq!(sim.here.len(), 200);
    assert!(sim.max_concurrent["a.com"] <= 5);
    let at: Vec<_> = sim.asked.iter().map(|asked| asked.at).collect();
    assert!(at.windows(31).all(|some| some[30] - some[0] >= MINUTE));
}

#[test]
fn a_failed_lookup_of_wants_is_retried() {
    let mut sim = Sim::new();
    sim.handle(Input::Wanted {
        repo: name("r"),
        after: Some(Duration::ZERO),
    });
    sim.handle(Input::WantsRead {
        repo: name("r"),
        wants: None,
    });
    let incomplete = |r: &HuntReport| matches!(r, HuntReport::Incomplete { next: Some(_), .. });
    assert!(sim.reports.iter().any(|(_, report)| incomplete(report)));
}

#[test]
fn unrequested_answers_change_nothing() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.handle(Input::WantsRead {
        repo: name("r"),
        wants: Some(vec![want(&[1], &["a.com"])]),
    });
    assert!(sim.asked.is_empty());
}

#[test]
fn a_server_that_is_always_rate_limited_does_not_delay_requests_to_others() {
    let mut sim = Sim::new()
        .server("a.com", Behaviour::Limits(Some(10 * MINUTE)), &[])
        .server("b.com", Behaviour::Fine, &[]);
    sim.wanted("r", vec![want(&[1], &["a.com", "b.com"])], None);
    sim.run_for(30 * SECOND);
    assert!(!sim.has_everything("r"));
    sim.at("b.com").advertises = oids(&[1]);
    sim.run_for(2 * MINUTE);
    assert!(sim.has_everything("r"), "{:?}", sim.asked);
    assert!(sim.asked_of("a.com").len() <= 2);
}

#[test]
fn documents_below_the_root_of_a_host_do_not_set_its_class() {
    let npub = grasp_core::service::npub(&crate::model_events::ALICE.key());
    let classes = |address: &str| {
        let mut sim = Sim::new().server(address, Behaviour::Fine, &[1]);
        sim.classes
            .insert("forge.example".parse().unwrap(), HostClass::Grasp);
        sim.wanted("r", vec![want(&[1], &[address])], None);
        sim.run_for(SECOND);
        sim.hunter
            .hosts()
            .map(|(_, figures)| figures.class)
            .collect::<Vec<_>>()
    };
    let root = format!("https://forge.example/{npub}/r.git");
    let below = format!("https://forge.example/me/raw/{npub}/r.git");
    assert_eq!(classes(&root), [HostClass::Grasp]);
    assert_eq!(classes(&below), [HostClass::Unknown]);
}

#[test]
fn each_repository_fetches_an_object_that_another_has_for_itself() {
    let mut sim = Sim::new().server("a.com", Behaviour::Fine, &[1]);
    sim.wanted("r", vec![want(&[1], &["a.com"])], Duration::ZERO);
    sim.run_for(10 * SECOND);
    assert!(sim.has_everything("r"));
    sim.wanted("other", vec![want(&[1], &["a.com"])], Duration::ZERO);
    assert!(!sim.has_everything("other"));
    sim.run_for(10 * SECOND);
    assert!(sim.has_everything("other"));
    let fetches = sim
        .asked_of("a.com")
        .iter()
        .filter(|asked| asked.oids.is_some())
        .count();
    assert_eq!(fetches, 2);
}
