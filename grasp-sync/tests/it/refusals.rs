//! The ways in which relays refuse, and the reactions.

use std::time::Duration;

use grasp_core::sync::ConnectionStatus;
use grasp_sync::engine::{Frame, InventoryFailed, Report, Said, SubId, SyncMethod};
use grasp_sync::limits::Refusal;

use crate::setup::{By, HOUR, MINUTE, Setup, by, defaults, secs};
use crate::sim::script::{Neg, Quirk, Script};
use crate::sim::world::{relay, repo};

/// Returns the id under which something was requested.
fn sub(frame: &Frame) -> SubId {
    match frame {
        Frame::Subscribe { sub, .. } | Frame::NegOpen { sub, .. } => *sub,
        _ => panic!("no start"),
    }
}

fn closed(frame: &Frame, text: &str) -> Quirk {
    let (sub, text) = (sub(frame), text.to_owned());
    Quirk::Says(vec![match frame {
        Frame::NegOpen { .. } => Said::NegErr { sub, text },
        _ => Said::Closed { sub, text },
    }])
}

fn is_live(frame: &Frame) -> bool {
    matches!(
        frame,
        Frame::Subscribe {
            path: grasp_core::admission::SyncPath::Live,
            ..
        }
    )
}

fn is_page(frame: &Frame) -> bool {
    matches!(frame, Frame::Subscribe { .. }) && !is_live(frame)
}

fn is_neg(frame: &Frame) -> bool {
    matches!(frame, Frame::NegOpen { .. })
}

fn with(quirk: fn(usize, &Frame) -> Quirk) -> Script {
    Script {
        quirk,
        ..Script::default()
    }
}

/// Asserts that all 30 issues of a relay with this script are here after this time.
fn has_all_after(script: Script, length: Duration) -> Setup {
    let mut setup = Setup::announced(defaults(), script, 30);
    setup.run(length);
    assert_eq!(setup.here(), 31, "{:?}", setup.sim.reports);
    setup
}

#[test]
fn without_nip77_history_is_paged_and_that_is_reported_once() {
    for neg in [Neg::Disabled, Neg::Unknown] {
        let script = Script {
            neg,
            connection_secs: Some((120, 120)),
            ..Script::default()
        };
        let setup = has_all_after(script, HOUR);
        let warned = |report: &Report| matches!(report, Report::NoNegentropy { .. });
        assert_eq!(setup.count_reports(warned), 1, "over many connections");
        let starts = setup.starts();
        assert!(by(&starts, By::Page).len() > 3);
    }
}

#[test]
fn a_batch_reports_the_method_by_which_it_was_fetched() {
    let methods = |neg| {
        let script = Script {
            neg,
            software: Some("strfry"),
            ..Script::default()
        };
        let setup = has_all_after(script, HOUR);
        let methods = setup.sim.reports.iter().filter_map(|report| match report {
            Report::BatchConfirmed {
                method, repos: 1.., ..
            } => Some(*method),
            _ => None,
        });
        methods.collect::<Vec<_>>()
    };
    assert_eq!(methods(Neg::Speaks), [SyncMethod::Negentropy]);
    assert_eq!(methods(Neg::Unknown), [SyncMethod::ReqEose]);
}

#[test]
fn no_further_page_is_requested_after_a_finish_hint() {
    let pages = |hints| {
        let script = Script {
            neg: Neg::Unknown,
            hints,
            ..Script::default()
        };
        let setup = has_all_after(script, HOUR);
        let starts = setup.starts();
        let pages = by(&starts, By::Page);
        pages
            .iter()
            .filter(|page| page.filters.iter().any(|one| one.until.is_some()))
            .count()
    };
    assert_eq!(pages(true), 0, "the first page of each was all");
    assert!(pages(false) > 0);
}

#[test]
fn new_support_of_nip77_is_reported() {
    let script = Script {
        neg: Neg::Unknown,
        connection_secs: Some((3_000, 3_000)),
        ..Script::default()
    };
    let mut setup = has_all_after(script, HOUR);
    setup.peer().script.neg = Neg::Speaks;
    setup.forget().run(50 * HOUR);
    let supported = |report: &Report| matches!(report, Report::Negentropy { .. });
    assert_eq!(setup.count_reports(supported), 1);
}

#[test]
fn an_unsupported_session_is_not_tried_again_on_the_same_connection() {
    let setup = has_all_after(
        Script {
            neg: Neg::Unknown,
            ..Script::default()
        },
        HOUR,
    );
    let starts = setup.starts();
    // The requests that were open together when the first answer came.
    assert!(by(&starts, By::Neg).len() <= 4);
}

#[test]
fn an_unanswered_session_ends_after_fifteen_seconds_and_is_followed_by_pages() {
    let script = Script {
        neg: Neg::Silent,
        software: Some("strfry"),
        ..Script::default()
    };
    let setup = has_all_after(script, 2 * MINUTE);
    let starts = setup.starts();
    let (sessions, pages) = (by(&starts, By::Neg), by(&starts, By::Page));
    let waited = pages[0].at - sessions[0].at;
    assert!((secs(15)..secs(17)).contains(&waited), "{waited:?}");
}

#[test]
fn a_set_that_is_too_large_is_compared_in_parts() {
    let script = Script {
        neg: Neg::Small(10),
        software: Some("strfry"),
        ..Script::default()
    };
    let setup = has_all_after(script, 5 * MINUTE);
    let starts = setup.starts();
    let windows = by(&starts, By::Neg);
    assert!(
        windows
            .iter()
            .any(|session| session.filters[0].until.is_some())
    );
}

/// Returns a setup of a relay with NIP-77, here with a local relay that lists nothing for this reason.
fn not_listed(why: InventoryFailed) -> Setup {
    let script = Script {
        software: Some("strfry"),
        ..Script::default()
    };
    let mut setup = Setup::new(defaults(), script, 30);
    setup.sim.local.not_listed = Some(why);
    setup.announce(&[relay(0)]);
    setup
}

#[test]
fn a_history_that_cannot_be_listed_here_is_paged() {
    for (why, limit) in [
        (InventoryFailed::TooLarge, MINUTE),
        // Asked for once more, after 65 seconds.
        (InventoryFailed::Unreadable, 5 * MINUTE),
    ] {
        let mut setup = not_listed(why);
        setup.run(limit);
        assert_eq!(setup.here(), 31, "{why:?}");
        assert_eq!(setup.status(), Some(ConnectionStatus::Connected), "{why:?}");
        let starts = setup.starts();
        assert!(by(&starts, By::Neg).is_empty(), "nothing to compare");
    }
}

#[test]
fn a_history_is_compared_once_it_can_be_listed_here() {
    let mut setup = not_listed(InventoryFailed::Unreadable);
    setup.run(MINUTE);
    assert_eq!(setup.here(), 1, "nothing is paged yet");
    setup.sim.local.not_listed = None;
    setup.run(5 * MINUTE);
    assert_eq!(setup.here(), 31);
    let starts = setup.starts();
    assert_eq!(by(&starts, By::Neg).len(), 4, "{starts:#?}");
}

#[test]
fn malformed_messages_in_a_session_lead_to_pages() {
    let setup = has_all_after(
        Script {
            neg: Neg::Garbles,
            ..Script::default()
        },
        MINUTE,
    );
    assert!(by(&setup.starts(), By::Page).len() >= 4);
}

#[test]
fn an_idle_session_is_opened_once_more() {
    let setup = has_all_after(
        with(|_, frame| match frame {
            Frame::NegOpen { .. } => closed(frame, "closed: idle"),
            _ => Quirk::None,
        }),
        5 * MINUTE,
    );
    let starts = setup.starts();
    let announcements = by(&starts, By::Neg);
    assert_eq!(
        announcements
            .iter()
            .filter(|session| session.is_layer_one())
            .count(),
        2
    );
}

#[test]
fn sessions_above_the_limit_wait() {
    let quirk = |n, frame: &Frame| {
        let refuses = is_neg(frame) && n < 12;
        if refuses {
            closed(frame, "rate-limited: too many negentropy subscriptions")
        } else {
            Quirk::None
        }
    };
    let setup = has_all_after(with(quirk), 5 * MINUTE);
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn a_rate_refusal_pauses_all_requests_for_65_seconds_and_repeats_do_not_extend_it() {
    let quirk = |n, frame: &Frame| {
        let refuses = !is_live(frame) && n < 7;
        if refuses {
            closed(frame, "rate-limited: too many queries")
        } else {
            Quirk::None
        }
    };
    let setup = has_all_after(with(quirk), 5 * MINUTE);
    let starts = setup.starts();
    let gaps = starts.windows(2).map(|pair| pair[1].at - pair[0].at);
    let longest = gaps.max().unwrap();
    assert!((secs(64)..secs(66)).contains(&longest), "{longest:?}");
}

#[test]
fn a_rate_limit_in_a_notice_pauses_queued_requests() {
    let quirk = |n, frame: &Frame| {
        let text = "ERROR: slow down, please".to_owned();
        if n == 3 && !is_live(frame) {
            Quirk::Says(vec![Said::Notice { text }])
        } else {
            Quirk::None
        }
    };
    let setup = has_all_after(with(quirk), 10 * MINUTE);
    let starts = setup.starts();
    let gaps = starts.windows(2).map(|pair| pair[1].at - pair[0].at);
    assert!(gaps.max().unwrap() >= secs(60));
}

#[test]
fn the_number_of_filters_is_halved_after_a_refusal_and_stays_so() {
    let script = Script {
        filters: 2,
        ..Script::default()
    };
    let mut setup = has_all_after(script, MINUTE);
    let before = by(&setup.starts(), By::Live).len();
    setup.forget().publish_issue();
    setup.run(MINUTE);
    let starts = setup.starts();
    let live = by(&starts, By::Live);
    assert!(before > 2 && live.iter().all(|start| start.filters.len() <= 2));
}

#[test]
fn limit_zero_becomes_one_after_a_refusal() {
    let mut setup = has_all_after(
        Script {
            takes_zero: false,
            ..Script::default()
        },
        MINUTE,
    );
    let issue = setup.publish_issue();
    setup.run(secs(5));
    assert!(
        setup.sim.local.stored.contains_key(&issue.id),
        "it came live"
    );
    let starts = setup.starts();
    assert!(by(&starts, By::Live).last().unwrap().filters[0].limit != Some(0));
}

#[test]
fn authentication_is_sent_once_and_refused_requests_are_repeated_once() {
    let setup = has_all_after(
        Script {
            wants_auth: true,
            ..Script::default()
        },
        MINUTE,
    );
    let is_auth = |frame: &Frame| matches!(frame, Frame::Authenticate);
    let sent = setup
        .sim
        .frames
        .iter()
        .filter(|(_, _, frame)| is_auth(frame))
        .count();
    assert_eq!(sent, 1);
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn a_second_demand_for_authentication_suspends_requests_for_a_day() {
    let quirk = |_, frame: &Frame| {
        let (sub, text) = (sub(frame), "auth-required: still no".to_owned());
        let refusal = match frame {
            Frame::NegOpen { .. } => Said::NegErr { sub, text },
            _ => Said::Closed { sub, text },
        };
        Quirk::Says(vec![Said::Challenge, refusal])
    };
    let mut setup = Setup::announced(defaults(), with(quirk), 5);
    setup.run(20 * HOUR);
    let auths = setup
        .sim
        .frames
        .iter()
        .filter(|(_, _, f)| matches!(f, Frame::Authenticate))
        .count();
    assert_eq!(auths, 1);
    let late = setup
        .starts()
        .into_iter()
        .filter(|start| start.at.since_start() > MINUTE);
    assert_eq!(late.count(), 0, "nothing for a day");
}

#[test]
fn forbidden_requests_are_suspended_for_a_day_and_probed_once() {
    let quirk = |_, frame: &Frame| {
        if is_page(frame) || is_neg(frame) {
            closed(frame, "restricted: members only")
        } else {
            Quirk::None
        }
    };
    let mut setup = Setup::announced(defaults(), with(quirk), 5);
    setup.run(MINUTE);
    assert_eq!(
        setup.status(),
        Some(ConnectionStatus::ConnectedHistoricSyncFailures)
    );
    let issue = setup.publish_issue();
    setup.run(MINUTE);
    assert!(
        setup.sim.local.stored.contains_key(&issue.id),
        "live events still arrive"
    );
    setup.forget().run(22 * HOUR);
    let fetched = |setup: &Setup| {
        setup
            .starts()
            .iter()
            .filter(|start| start.by != By::Live)
            .count()
    };
    assert_eq!(fetched(&setup), 0);
    setup.run(2 * HOUR);
    // One probe for each layer that was refused; the daily pass that is due by then asks no further.
    assert!((1..=4).contains(&fetched(&setup)), "{:#?}", setup.starts());
}

#[test]
fn a_filter_that_is_too_large_is_split_and_never_repeated() {
    let quirk = |_, frame: &Frame| {
        let is_long = |frame: &Frame| match frame {
            Frame::Subscribe { filters, .. } => filters
                .iter()
                .flat_map(|one| one.generic_tags.values())
                .any(|v| v.len() > 4),
            _ => false,
        };
        match frame {
            Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
            _ if is_long(frame) => closed(frame, "ERROR: bad req: total filter items too large"),
            _ => Quirk::None,
        }
    };
    let setup = has_all_after(with(quirk), 10 * MINUTE);
    let starts = setup.starts();
    let mut refused: Vec<String> = Vec::new();
    for page in by(&starts, By::Page)
        .iter()
        .filter(|page| page.filters[0].generic_tags.values().any(|v| v.len() > 4))
    {
        let text: String = page.filters.iter().map(|filter| filter.as_json()).collect();
        assert!(!refused.contains(&text), "sent again: {text}");
        refused.push(text);
    }
    assert!(!refused.is_empty());
}

#[test]
fn a_transient_failure_is_retried_with_growing_pauses() {
    let quirk = |_, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        _ if is_page(frame) => closed(frame, "error: database is busy"),
        _ => Quirk::None,
    };
    let mut setup = Setup::announced(defaults(), with(quirk), 5);
    setup.run(3 * HOUR);
    let starts = setup.starts();
    let pages = by(&starts, By::Page);
    let first: Vec<_> = pages.iter().filter(|page| page.is_layer_one()).collect();
    let gaps: Vec<_> = first
        .windows(2)
        .map(|pair| (pair[1].at - pair[0].at).as_secs())
        .collect();
    assert_eq!(gaps[..6], [65, 65, 130, 260, 520, 1_040], "{gaps:?}");
}

#[test]
fn an_unanswered_request_is_closed_after_two_minutes_and_repeated() {
    let quirk = |n, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        _ if is_page(frame) && n < 12 => Quirk::Says(vec![]),
        _ => Quirk::None,
    };
    let setup = has_all_after(with(quirk), HOUR);
    let closes = setup
        .sim
        .frames
        .iter()
        .filter(|(_, _, f)| matches!(f, Frame::Unsubscribe { .. }));
    let first = closes.map(|(at, _, _)| at.since_start()).min().unwrap();
    assert!(first < secs(125));
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn an_unknown_refusal_suspends_that_filter_and_is_reported() {
    let quirk = |_, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        _ if is_page(frame) => closed(frame, "computer says no"),
        _ => Quirk::None,
    };
    let mut setup = Setup::announced(defaults(), with(quirk), 5);
    setup.run(20 * HOUR);
    let starts = setup.starts();
    assert_eq!(by(&starts, By::Page).len(), 4, "each once");
    let shown = |report: &Report| {
        matches!(
            report,
            Report::Refused {
                refusal: Refusal::Unknown,
                ..
            }
        )
    };
    assert_eq!(setup.count_reports(shown), 1);
}

/// Closes every live request for an overflow in which an event of this age was lost; returns whether it arrived
/// nevertheless, and the requests.
fn overflown(script: Script, age: u64) -> (bool, Vec<crate::setup::Start>, usize) {
    let mut setup = has_all_after(script, MINUTE);
    setup.forget();
    let conn = conn_of(&setup);
    let live = setup.live_subs();
    let count = live.len();
    // Events that the relay accepted meanwhile never came live.
    let lost = setup.chance_issue_dated(age);
    setup.peer().events.insert(lost.id, lost.clone());
    for sub in live {
        let text = "error: live event buffer overflow".to_owned();
        setup.receive(conn, Said::Closed { sub, text });
    }
    setup.run(secs(10));
    (setup.has(&lost), setup.starts(), count)
}

#[test]
fn events_of_any_date_lost_by_an_overflow_are_found_by_a_comparison() {
    let (came, starts, count) = overflown(Script::default(), 7 * 24 * 60 * 60);
    assert!(came);
    assert!(by(&starts, By::Live).len() >= count, "all are open again");
    let compared = by(&starts, By::Neg);
    assert!(!compared.is_empty() && compared.iter().all(|one| one.filters[0].since.is_none()));
}

#[test]
fn events_lost_by_an_overflow_are_fetched_by_date_without_nip77() {
    let pages = || Script {
        neg: Neg::Disabled,
        ..Script::default()
    };
    let (came, starts, count) = overflown(pages(), 0);
    assert!(came);
    let pages_since = by(&starts, By::Page);
    assert!(
        pages_since
            .iter()
            .filter(|page| page.filters[0].since.is_some())
            .count()
            >= count
    );
}

/// Closes every live request of relay 0 for an overflow.
fn overflow(setup: &mut Setup) {
    let conn = conn_of(setup);
    for sub in setup.live_subs() {
        let text = "error: live event buffer overflow".to_owned();
        setup.receive(conn, Said::Closed { sub, text });
    }
}

#[test]
fn events_arrive_by_comparison_while_repeated_overflows_pause_live_requests() {
    let mut setup = has_all_after(Script::default(), MINUTE);
    overflow(&mut setup);
    setup.run(secs(5));
    for _ in 0..6 {
        let open = setup.live_subs().len();
        overflow(&mut setup);
        setup.run(secs(2));
        let paused = setup.live_subs().len();
        assert!(
            paused + 2 <= open,
            "a relay that cannot keep up is given a pause"
        );
        let lost = setup.publish_old_issue();
        setup.run(secs(45));
        assert!(setup.has(&lost), "compared meanwhile");
        setup.run(secs(90));
        assert!(setup.live_subs().len() >= open, "the pause does not grow");
    }
    setup.run(secs(10));
    let issue = setup.publish_old_issue();
    setup.run(secs(2));
    assert!(setup.has(&issue), "live again");
}

fn conn_of(setup: &Setup) -> grasp_sync::engine::ConnId {
    setup.sim.conns.last().unwrap().1
}

#[test]
fn a_start_dropped_with_a_notice_is_sent_again_within_a_smaller_budget() {
    let script = Script {
        subs: 8,
        is_open: false,
        hides_refusals: true,
        ..Script::default()
    };
    let mut setup = has_all_after(script, 10 * MINUTE);
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
    let issue = setup.publish_issue();
    setup.run(15 * MINUTE);
    assert!(setup.sim.local.stored.contains_key(&issue.id));
}

#[test]
fn a_relay_that_always_refuses_is_not_asked_in_a_loop() {
    let quirks: [fn(usize, &Frame) -> Quirk; 3] = [
        |_, frame| closed(frame, "rate-limited: too many REQs"),
        |_, frame| {
            closed(
                frame,
                "rate-limited: active subscriptions exceed max size 400000 bytes",
            )
        },
        |_, frame| closed(frame, "rate-limited: too many negentropy subscriptions"),
    ];
    for quirk in quirks {
        let mut setup = Setup::announced(defaults(), with(quirk), 5);
        setup.run(10 * MINUTE);
        assert!(
            setup.starts().len() <= 60,
            "{} starts",
            setup.starts().len()
        );
    }
}

#[test]
fn pages_that_are_refused_together_are_requested_one_by_one() {
    let quirk = |_, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        Frame::Subscribe { filters, .. } if is_page(frame) && filters.len() > 1 => {
            closed(frame, "computer says no")
        }
        _ => Quirk::None,
    };
    let setup = has_all_after(with(quirk), 5 * MINUTE);
    let starts = setup.starts();
    let packed = by(&starts, By::Page)
        .into_iter()
        .filter(|page| page.filters.len() > 1);
    assert_eq!(packed.count(), 1, "the refused request is not repeated");
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn ids_that_are_offered_and_never_served_are_given_up_with_a_report() {
    let mut setup = Setup::new(defaults(), Script::default(), 5);
    let phantom = grasp_core::nostr::event::EventId::from_byte_array([9; 32]);
    setup.peer().phantoms.insert(phantom);
    setup.announce(&[crate::sim::world::relay(0)]);
    setup.run(MINUTE);
    assert_eq!(setup.here(), 6);
    assert_eq!(
        setup.status(),
        Some(ConnectionStatus::ConnectedHistoricSyncFailures)
    );
    setup.run(4 * HOUR);
    let asked = setup
        .starts()
        .iter()
        .filter(|start| {
            start.filters[0]
                .ids
                .as_ref()
                .is_some_and(|ids| ids.contains(&phantom))
        })
        .count();
    assert_eq!(asked, 12);
    let gave_up = Report::GaveUp {
        relay: crate::sim::world::relay(0),
        event: phantom,
    };
    assert_eq!(setup.count_reports(|report| *report == gave_up), 1);
    assert_eq!(
        setup.status(),
        Some(ConnectionStatus::Connected),
        "all other events are here"
    );
}

#[test]
fn a_relay_that_offers_many_ids_and_serves_few_is_paged() {
    let mut setup = Setup::new(defaults(), Script::default(), 5);
    for n in 0..60 {
        let phantom = grasp_core::nostr::event::EventId::from_byte_array([n + 100; 32]);
        setup.peer().phantoms.insert(phantom);
    }
    setup.announce(&[crate::sim::world::relay(0)]);
    setup.run(MINUTE);
    assert_eq!(setup.status(), Some(ConnectionStatus::Connected));
    assert!(!by(&setup.starts(), By::Page).is_empty());
}

#[test]
fn an_interrupted_catch_up_is_repeated_from_its_start() {
    let script = Script {
        neg: Neg::Disabled,
        ..Script::default()
    };
    let mut setup = has_all_after(script, MINUTE);
    let conn = conn_of(&setup);
    let close = |setup: &mut Setup, subs: Vec<SubId>| {
        for sub in subs {
            let text = "error: live event buffer overflow".to_owned();
            setup.receive(conn, Said::Closed { sub, text });
        }
    };
    let first_asked_for = |setup: &Setup| {
        let starts = setup.starts();
        let pages = by(&starts, By::Page);
        pages
            .iter()
            .flat_map(|page| &page.filters)
            .filter_map(|one| one.since)
            .min()
            .unwrap()
    };
    // From now on no stored event is sent.
    setup.forget().peer().script.quirk = |_, frame| match frame {
        frame if is_page(frame) => Quirk::Says(vec![]),
        _ => Quirk::None,
    };
    let live = setup.live_subs();
    close(&mut setup, live);
    setup.run(MINUTE);
    let asked = first_asked_for(&setup);
    setup.forget();
    let live = setup.live_subs();
    close(&mut setup, live);
    setup.run(5 * MINUTE);
    assert_eq!(first_asked_for(&setup), asked);
}

#[test]
fn a_relay_is_not_timed_out_while_the_local_relay_judges_its_events() {
    let mut setup = Setup::announced(defaults(), Script::default(), 3);
    setup.run(MINUTE);
    let conn = conn_of(&setup);
    // Events arrive, the local relay does not judge them, and the answers to an open session are not read.
    let sub = setup.live_subs()[0];
    let issue = setup.chance_issue_dated(0);
    let places = [true].into_iter().collect();
    let rows = vec![grasp_sync::engine::Delivered {
        row: crate::sim::row(&issue),
        places,
    }];
    setup.receive(conn, Said::Delivered { sub, rows });
    setup.forget().peer().script.silent_one_in = Some(1);
    let another = repo(&mut setup.chance, "another");
    let listed = [relay(0), crate::sim::local::our_url()];
    let at = setup.sim.now.unix.as_secs();
    let announced = crate::sim::event::announcement(&mut setup.chance, &another, at, &listed);
    setup.sim.accept(announced);
    setup.run(5 * MINUTE);
    let refused = |report: &Report| matches!(report, Report::Refused { .. });
    assert_eq!(setup.count_reports(refused), 0);
    setup.run(6 * MINUTE);
    assert!(setup.count_reports(refused) > 0, "but not forever");
}
