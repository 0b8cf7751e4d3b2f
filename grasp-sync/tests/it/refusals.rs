//! The ways in which relays refuse, and the reactions.

use std::time::Duration;

use grasp_sync::engine::{Frame, Report, Said, SubId, SyncMethod};
use grasp_sync::index::ConnectionStatus;
use grasp_sync::limits::Refusal;

use crate::sim::script::{Neg, Quirk, Script};
use crate::sim::world::{relay, repo};
use crate::stage::{By, HOUR, MINUTE, Stage, by, defaults, secs};

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
    matches!(frame, Frame::Subscribe { path: grasp_core::admission::SyncPath::Live, .. })
}

fn is_page(frame: &Frame) -> bool {
    matches!(frame, Frame::Subscribe { .. }) && !is_live(frame)
}

fn is_neg(frame: &Frame) -> bool {
    matches!(frame, Frame::NegOpen { .. })
}

fn with(quirk: fn(usize, &Frame) -> Quirk) -> Script {
    Script { quirk, ..Script::default() }
}

/// Expects a relay that refuses like this to have delivered all of its 30 issues after this time.
fn has_all_after(script: Script, length: Duration) -> Stage {
    let mut stage = Stage::announced(defaults(), script, 30);
    stage.run(length);
    assert_eq!(stage.here(), 31, "{:?}", stage.sim.reports);
    stage
}

#[test]
fn without_reconciliation_history_comes_by_pages_and_it_is_said_once() {
    for neg in [Neg::Disabled, Neg::Unknown] {
        let script = Script { neg, life_secs: Some((120, 120)), ..Script::default() };
        let stage = has_all_after(script, HOUR);
        let warned = |report: &Report| matches!(report, Report::NoNegentropy { .. });
        assert_eq!(stage.count_reports(warned), 1, "over many connections");
        let starts = stage.starts();
        assert!(by(&starts, By::Page).len() > 3);
    }
}

#[test]
fn a_batch_tells_by_which_method_it_was_had() {
    let methods = |neg| {
        let script = Script { neg, software: Some("strfry"), ..Script::default() };
        let stage = has_all_after(script, HOUR);
        let told = stage.sim.reports.iter().filter_map(|report| match report {
            Report::BatchConfirmed { method, repos: 1.., .. } => Some(*method),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    assert_eq!(methods(Neg::Speaks), [SyncMethod::Negentropy]);
    assert_eq!(methods(Neg::Unknown), [SyncMethod::ReqEose]);
}

#[test]
fn a_relay_that_says_that_it_sent_everything_is_asked_for_no_page_more() {
    let pages = |hints| {
        let script = Script { neg: Neg::Unknown, hints, ..Script::default() };
        let stage = has_all_after(script, HOUR);
        let starts = stage.starts();
        let pages = by(&starts, By::Page);
        pages.iter().filter(|page| page.filters.iter().any(|one| one.until.is_some())).count()
    };
    assert_eq!(pages(true), 0, "the first page of each was all");
    assert!(pages(false) > 0);
}

#[test]
fn a_relay_that_learns_to_reconcile_is_told_of() {
    let script = Script { neg: Neg::Unknown, life_secs: Some((3_000, 3_000)), ..Script::default() };
    let mut stage = has_all_after(script, HOUR);
    stage.peer().script.neg = Neg::Speaks;
    stage.forget().run(50 * HOUR);
    let told = |report: &Report| matches!(report, Report::Negentropy { .. });
    assert_eq!(stage.count_reports(told), 1);
}

#[test]
fn an_unsupported_session_is_not_tried_again_on_the_same_connection() {
    let stage = has_all_after(Script { neg: Neg::Unknown, ..Script::default() }, HOUR);
    let starts = stage.starts();
    // The requests that were open together when the first answer came.
    assert!(by(&starts, By::Neg).len() <= 4);
}

#[test]
fn silence_about_a_session_ends_it_after_fifteen_seconds_and_rests_reconciliation() {
    let script = Script { neg: Neg::Silent, software: Some("strfry"), ..Script::default() };
    let stage = has_all_after(script, 2 * MINUTE);
    let starts = stage.starts();
    let (sessions, pages) = (by(&starts, By::Neg), by(&starts, By::Page));
    let waited = pages[0].at - sessions[0].at;
    assert!((secs(15)..secs(17)).contains(&waited), "{waited:?}");
}

#[test]
fn a_set_that_is_too_large_is_compared_in_parts() {
    let script = Script { neg: Neg::Small(10), software: Some("strfry"), ..Script::default() };
    let stage = has_all_after(script, 5 * MINUTE);
    let starts = stage.starts();
    let windows = by(&starts, By::Neg);
    assert!(windows.iter().any(|session| session.filters[0].until.is_some()));
}

#[test]
fn nonsense_in_a_session_leads_to_pages() {
    let stage = has_all_after(Script { neg: Neg::Garbles, ..Script::default() }, MINUTE);
    assert!(by(&stage.starts(), By::Page).len() >= 4);
}

#[test]
fn an_idle_session_is_opened_once_more() {
    let stage = has_all_after(
        with(|_, frame| match frame {
            Frame::NegOpen { .. } => closed(frame, "closed: idle"),
            _ => Quirk::None,
        }),
        5 * MINUTE,
    );
    let starts = stage.starts();
    let announcements = by(&starts, By::Neg);
    assert_eq!(announcements.iter().filter(|session| session.is_layer_one()).count(), 2);
}

#[test]
fn too_many_sessions_wait_for_one_another() {
    let quirk = |n, frame: &Frame| {
        let refuses = is_neg(frame) && n < 12;
        if refuses {
            closed(frame, "rate-limited: too many negentropy subscriptions")
        } else {
            Quirk::None
        }
    };
    let stage = has_all_after(with(quirk), 5 * MINUTE);
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn a_rate_refusal_pauses_all_starts_for_65_seconds_and_repeats_extend_nothing() {
    let quirk = |n, frame: &Frame| {
        let refuses = !is_live(frame) && n < 7;
        if refuses { closed(frame, "rate-limited: too many queries") } else { Quirk::None }
    };
    let stage = has_all_after(with(quirk), 5 * MINUTE);
    let starts = stage.starts();
    let gaps = starts.windows(2).map(|pair| pair[1].at - pair[0].at);
    let longest = gaps.max().unwrap();
    assert!((secs(64)..secs(66)).contains(&longest), "{longest:?}");
}

#[test]
fn a_pause_heard_in_a_notice_holds_back_what_is_in_line() {
    let quirk = |n, frame: &Frame| {
        let text = "ERROR: slow down, please".to_owned();
        if n == 3 && !is_live(frame) {
            Quirk::Says(vec![Said::Notice { text }])
        } else {
            Quirk::None
        }
    };
    let stage = has_all_after(with(quirk), 10 * MINUTE);
    let starts = stage.starts();
    let gaps = starts.windows(2).map(|pair| pair[1].at - pair[0].at);
    assert!(gaps.max().unwrap() >= secs(60));
}

#[test]
fn too_many_filters_are_halved_and_stay_so() {
    let script = Script { filters: 2, ..Script::default() };
    let mut stage = has_all_after(script, MINUTE);
    let before = by(&stage.starts(), By::Live).len();
    stage.forget().publish_issue();
    stage.run(MINUTE);
    let starts = stage.starts();
    let live = by(&starts, By::Live);
    assert!(before > 2 && live.iter().all(|start| start.filters.len() <= 2));
}

#[test]
fn a_limit_of_zero_that_is_not_understood_becomes_one() {
    let mut stage = has_all_after(Script { takes_zero: false, ..Script::default() }, MINUTE);
    let issue = stage.publish_issue();
    stage.run(secs(5));
    assert!(stage.sim.local.stored.contains_key(&issue.id), "it came live");
    let starts = stage.starts();
    assert!(by(&starts, By::Live).last().unwrap().filters[0].limit != Some(0));
}

#[test]
fn who_we_are_is_said_once_and_what_waited_is_sent_again_once() {
    let stage = has_all_after(Script { wants_auth: true, ..Script::default() }, MINUTE);
    let is_auth = |frame: &Frame| matches!(frame, Frame::Authenticate);
    let said = stage.sim.frames.iter().filter(|(_, _, frame)| is_auth(frame)).count();
    assert_eq!(said, 1);
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn a_second_demand_for_authentication_is_policy() {
    let quirk = |_, frame: &Frame| {
        let (sub, text) = (sub(frame), "auth-required: still no".to_owned());
        let refusal = match frame {
            Frame::NegOpen { .. } => Said::NegErr { sub, text },
            _ => Said::Closed { sub, text },
        };
        Quirk::Says(vec![Said::Challenge, refusal])
    };
    let mut stage = Stage::announced(defaults(), with(quirk), 5);
    stage.run(20 * HOUR);
    let auths =
        stage.sim.frames.iter().filter(|(_, _, f)| matches!(f, Frame::Authenticate)).count();
    assert_eq!(auths, 1);
    let late = stage.starts().into_iter().filter(|start| start.at.since_start() > MINUTE);
    assert_eq!(late.count(), 0, "nothing for a day");
}

#[test]
fn forbidden_coverage_is_parked_for_a_day_and_probed_once() {
    let quirk = |_, frame: &Frame| {
        if is_page(frame) || is_neg(frame) {
            closed(frame, "restricted: members only")
        } else {
            Quirk::None
        }
    };
    let mut stage = Stage::announced(defaults(), with(quirk), 5);
    stage.run(MINUTE);
    assert_eq!(stage.status(), Some(ConnectionStatus::ConnectedHistoricSyncFailures));
    let issue = stage.publish_issue();
    stage.run(MINUTE);
    assert!(stage.sim.local.stored.contains_key(&issue.id), "live goes on");
    stage.forget().run(22 * HOUR);
    let fetched =
        |stage: &Stage| stage.starts().iter().filter(|start| start.by != By::Live).count();
    assert_eq!(fetched(&stage), 0);
    stage.run(2 * HOUR);
    // One probe for each layer that was refused; the daily pass that is due by then asks no further.
    assert!((1..=4).contains(&fetched(&stage)), "{:#?}", stage.starts());
}

#[test]
fn a_filter_that_cannot_be_taken_is_cut_and_never_sent_again_as_it_was() {
    let quirk = |_, frame: &Frame| {
        let is_long = |frame: &Frame| match frame {
            Frame::Subscribe { filters, .. } => {
                filters.iter().flat_map(|one| one.generic_tags.values()).any(|v| v.len() > 4)
            }
            _ => false,
        };
        match frame {
            Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
            _ if is_long(frame) => closed(frame, "ERROR: bad req: total filter items too large"),
            _ => Quirk::None,
        }
    };
    let stage = has_all_after(with(quirk), 10 * MINUTE);
    let starts = stage.starts();
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
fn a_passing_fault_is_tried_once_more_and_then_ever_less_often() {
    let quirk = |_, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        _ if is_page(frame) => closed(frame, "error: database is busy"),
        _ => Quirk::None,
    };
    let mut stage = Stage::announced(defaults(), with(quirk), 5);
    stage.run(3 * HOUR);
    let starts = stage.starts();
    let pages = by(&starts, By::Page);
    let first: Vec<_> = pages.iter().filter(|page| page.is_layer_one()).collect();
    let gaps: Vec<_> = first.windows(2).map(|pair| (pair[1].at - pair[0].at).as_secs()).collect();
    assert_eq!(gaps[..6], [65, 65, 130, 260, 520, 1_040], "{gaps:?}");
}

#[test]
fn a_silent_request_is_closed_after_two_minutes_and_asked_again() {
    let quirk = |n, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        _ if is_page(frame) && n < 12 => Quirk::Says(vec![]),
        _ => Quirk::None,
    };
    let stage = has_all_after(with(quirk), HOUR);
    let closes = stage.sim.frames.iter().filter(|(_, _, f)| matches!(f, Frame::Unsubscribe { .. }));
    let first = closes.map(|(at, _, _)| at.since_start()).min().unwrap();
    assert!(first < secs(125));
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn an_unknown_refusal_parks_that_filter_and_is_shown() {
    let quirk = |_, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        _ if is_page(frame) => closed(frame, "computer says no"),
        _ => Quirk::None,
    };
    let mut stage = Stage::announced(defaults(), with(quirk), 5);
    stage.run(20 * HOUR);
    let starts = stage.starts();
    assert_eq!(by(&starts, By::Page).len(), 4, "each once");
    let shown =
        |report: &Report| matches!(report, Report::Refused { refusal: Refusal::Unknown, .. });
    assert_eq!(stage.count_reports(shown), 1);
}

/// Closes every live request for an overflow in which an event of this age was lost; returns whether it arrived
/// nevertheless, and the requests.
fn overflown(script: Script, age: u64) -> (bool, Vec<crate::stage::Start>, usize) {
    let mut stage = has_all_after(script, MINUTE);
    stage.forget();
    let conn = conn_of(&stage);
    let live = stage.live_subs();
    let count = live.len();
    // Events that the relay accepted meanwhile never came live.
    let lost = stage.chance_issue_dated(age);
    stage.peer().events.insert(lost.id, lost.clone());
    for sub in live {
        let text = "error: live event buffer overflow".to_owned();
        stage.hear(conn, Said::Closed { sub, text });
    }
    stage.run(secs(10));
    (stage.has(&lost), stage.starts(), count)
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
fn events_lost_by_an_overflow_are_caught_up_with_by_date_where_nothing_else_works() {
    let pages = || Script { neg: Neg::Disabled, ..Script::default() };
    let (came, starts, count) = overflown(pages(), 0);
    assert!(came);
    let pages_since = by(&starts, By::Page);
    assert!(pages_since.iter().filter(|page| page.filters[0].since.is_some()).count() >= count);
}

fn conn_of(stage: &Stage) -> grasp_sync::engine::ConnId {
    stage.sim.conns.last().unwrap().1
}

#[test]
fn a_start_dropped_with_a_notice_is_sent_again_within_a_smaller_budget() {
    let script = Script { subs: 8, is_open: false, hides_refusals: true, ..Script::default() };
    let mut stage = has_all_after(script, 10 * MINUTE);
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
    let issue = stage.publish_issue();
    stage.run(15 * MINUTE);
    assert!(stage.sim.local.stored.contains_key(&issue.id));
}

#[test]
fn a_relay_that_never_has_room_is_not_asked_round_and_round() {
    let quirks: [fn(usize, &Frame) -> Quirk; 3] = [
        |_, frame| closed(frame, "rate-limited: too many REQs"),
        |_, frame| closed(frame, "rate-limited: active subscriptions exceed max size 400000 bytes"),
        |_, frame| closed(frame, "rate-limited: too many negentropy subscriptions"),
    ];
    for quirk in quirks {
        let mut stage = Stage::announced(defaults(), with(quirk), 5);
        stage.run(10 * MINUTE);
        assert!(stage.starts().len() <= 60, "{} starts", stage.starts().len());
    }
}

#[test]
fn pages_that_are_refused_together_are_asked_for_one_by_one() {
    let quirk = |_, frame: &Frame| match frame {
        Frame::NegOpen { .. } => closed(frame, "error: negentropy disabled"),
        Frame::Subscribe { filters, .. } if is_page(frame) && filters.len() > 1 => {
            closed(frame, "computer says no")
        }
        _ => Quirk::None,
    };
    let stage = has_all_after(with(quirk), 5 * MINUTE);
    let starts = stage.starts();
    let packed = by(&starts, By::Page).into_iter().filter(|page| page.filters.len() > 1);
    assert_eq!(packed.count(), 1, "once was enough");
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
}

#[test]
fn ids_that_are_offered_and_never_served_are_given_up_by_name() {
    let mut stage = Stage::new(defaults(), Script::default(), 5);
    let phantom = grasp_core::nostr::event::EventId::from_byte_array([9; 32]);
    stage.peer().phantoms.insert(phantom);
    stage.announce(&[crate::sim::world::relay(0)]);
    stage.run(MINUTE);
    assert_eq!(stage.here(), 6);
    assert_eq!(stage.status(), Some(ConnectionStatus::ConnectedHistoricSyncFailures));
    stage.run(4 * HOUR);
    let asked = stage
        .starts()
        .iter()
        .filter(|start| start.filters[0].ids.as_ref().is_some_and(|ids| ids.contains(&phantom)))
        .count();
    assert_eq!(asked, 12);
    let gave_up = Report::GaveUp { relay: crate::sim::world::relay(0), event: phantom };
    assert_eq!(stage.count_reports(|report| *report == gave_up), 1);
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected), "the rest is complete");
}

#[test]
fn a_relay_that_offers_much_and_serves_little_is_paged() {
    let mut stage = Stage::new(defaults(), Script::default(), 5);
    for n in 0..60 {
        let phantom = grasp_core::nostr::event::EventId::from_byte_array([n + 100; 32]);
        stage.peer().phantoms.insert(phantom);
    }
    stage.announce(&[crate::sim::world::relay(0)]);
    stage.run(MINUTE);
    assert_eq!(stage.status(), Some(ConnectionStatus::Connected));
    assert!(!by(&stage.starts(), By::Page).is_empty());
}

#[test]
fn what_a_request_did_not_get_to_send_is_asked_for_again_from_where_it_began() {
    let script = Script { neg: Neg::Disabled, ..Script::default() };
    let mut stage = has_all_after(script, MINUTE);
    let conn = conn_of(&stage);
    let close = |stage: &mut Stage, subs: Vec<SubId>| {
        for sub in subs {
            let text = "error: live event buffer overflow".to_owned();
            stage.hear(conn, Said::Closed { sub, text });
        }
    };
    let first_asked_for = |stage: &Stage| {
        let starts = stage.starts();
        let pages = by(&starts, By::Page);
        pages.iter().flat_map(|page| &page.filters).filter_map(|one| one.since).min().unwrap()
    };
    // From now on no stored event is sent.
    stage.forget().peer().script.quirk = |_, frame| match frame {
        frame if is_page(frame) => Quirk::Says(vec![]),
        _ => Quirk::None,
    };
    let live = stage.live_subs();
    close(&mut stage, live);
    stage.run(MINUTE);
    let asked = first_asked_for(&stage);
    stage.forget();
    let live = stage.live_subs();
    close(&mut stage, live);
    stage.run(5 * MINUTE);
    assert_eq!(first_asked_for(&stage), asked);
}

#[test]
fn a_relay_is_not_silent_while_our_own_has_its_events_before_it() {
    let mut stage = Stage::announced(defaults(), Script::default(), 3);
    stage.run(MINUTE);
    let conn = conn_of(&stage);
    // Events arrive, the local relay does not judge them, and the answers to an open session are not read.
    let sub = stage.live_subs()[0];
    let issue = stage.chance_issue_dated(0);
    let places = [true].into_iter().collect();
    let rows = vec![grasp_sync::engine::Delivered { row: crate::sim::row(&issue), places }];
    stage.hear(conn, Said::Delivered { sub, rows });
    stage.forget().peer().script.silent_one_in = Some(1);
    let another = repo(&mut stage.chance, "another");
    let listed = [relay(0), crate::sim::local::our_url()];
    let at = stage.sim.now.unix.as_secs();
    let announced = crate::sim::event::announcement(&mut stage.chance, &another, at, &listed);
    stage.sim.accept(announced);
    stage.run(5 * MINUTE);
    let refused = |report: &Report| matches!(report, Report::Refused { .. });
    assert_eq!(stage.count_reports(refused), 0);
    stage.run(6 * MINUTE);
    assert!(stage.count_reports(refused) > 0, "but not for ever");
}
