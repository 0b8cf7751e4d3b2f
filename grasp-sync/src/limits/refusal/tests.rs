use super::*;
use Heard::{Closed, LiveClosed, NegErr, Notice};

fn assert_all(expected: Refusal, said: &[(Heard, &str)]) {
    for (heard, text) in said {
        assert_eq!(Refusal::read(*heard, text), expected, "{heard:?} {text:?}");
    }
}

#[test]
fn too_many_requests_pause_the_requests() {
    assert_all(
        Refusal::Rate,
        &[
            (Closed, "rate-limited: too many queries"),
            (NegErr, "rate-limited: too many queries"),
            (Closed, "rate-limited: wait a little"),
            (Notice, "Slow down, please!"),
            (Notice, "you are being throttled"),
            (Notice, "error: Rate limit reached"),
            (Notice, "you have been rate-limited."),
            (Closed, "rate-limited"),
        ],
    );
}

#[test]
fn too_many_subscriptions_lower_the_slot_limit() {
    assert_all(
        Refusal::SlotCount,
        &[
            (Closed, "rate-limited: too many REQs"),
            (LiveClosed, "blocked: too many subscriptions"),
            (Closed, "ERROR: too many concurrent REQs"),
            (
                Closed,
                "error: Maximum concurrent subscription count reached",
            ),
        ],
    );
}

#[test]
fn a_notice_about_concurrency_means_a_dropped_request() {
    assert_all(
        Refusal::DroppedStart,
        &[
            (Notice, "ERROR: too many concurrent REQs"),
            (Notice, "ERROR: too many concurrent NEG requests"),
        ],
    );
}

#[test]
fn too_many_sessions_differ_from_too_many_items() {
    assert_all(
        Refusal::NegSessions,
        &[(NegErr, "rate-limited: too many negentropy subscriptions")],
    );
    assert_all(
        Refusal::SetTooLarge,
        &[
            (NegErr, "rate-limited: too many negentropy items"),
            (NegErr, "blocked: too many query results: 1000001"),
            (NegErr, "blocked: this query is too big"),
        ],
    );
}

#[test]
fn only_an_idle_session_is_reopened() {
    assert_all(
        Refusal::NegClosed,
        &[(NegErr, "closed: unknown subscription handle")],
    );
    assert_all(Refusal::Unknown, &[(Closed, "closed: good night")]);
}

#[test]
fn a_protocol_error_differs_from_a_missing_feature() {
    assert_all(
        Refusal::NegProtocol,
        &[
            (NegErr, "PROTOCOL-ERROR"),
            (NegErr, "error: invalid negentropy message"),
            (Notice, "ERROR: negentropy error: parse ends prematurely"),
        ],
    );
    assert_all(
        Refusal::NegUnsupported,
        &[
            (Notice, "ERROR: bad msg: negentropy disabled"),
            (NegErr, "error: negentropy disabled"),
            (NegErr, "unsupported: negentropy is switched off"),
            (Notice, "error: negentropy is not supported here"),
            (Notice, "unknown message type: NEG-OPEN"),
            (Notice, "ERROR: bad msg: unknown cmd"),
            (Notice, "could not parse command"),
        ],
    );
}

#[test]
fn too_many_filters_halve_the_filters_per_req() {
    assert_all(
        Refusal::FilterCount,
        &[
            (Closed, "rate-limited: REQ exceeds max filter count 20"),
            (Closed, "ERROR: bad req: invalid number of filters: 11"),
            (Notice, "ERROR: bad req: arr too big"),
        ],
    );
}

#[test]
fn the_stated_byte_limit_is_parsed() {
    let said = |text: &str| Refusal::read(LiveClosed, text);
    let stated = Some(1_048_576);
    assert_eq!(
        said("rate-limited: active subscriptions exceed max size 1048576 bytes"),
        Refusal::RetainedBytes { stated }
    );
    for text in ["", " many", " 99999999999999999999999999 bytes"] {
        let text = format!("rate-limited: active subscriptions exceed max size{text}");
        assert_eq!(said(&text), Refusal::RetainedBytes { stated: None });
    }
}

#[test]
fn an_invalid_message_is_not_sent_again() {
    assert_all(
        Refusal::Malformed,
        &[
            (Closed, "ERROR: bad req: filter item too large"),
            (Closed, "filter item too small"),
            (Closed, "ERROR: bad req: total filter items too large"),
            (Closed, "unrecognised filter item"),
            (Closed, "unsupported: search"),
            (Closed, "invalid: something about tags"),
            (Notice, "ERROR: bad req: subscription id too long"),
        ],
    );
}

#[test]
fn a_relay_without_limit_zero_is_recognised() {
    assert_all(
        Refusal::LimitZero,
        &[(
            LiveClosed,
            "invalid: Filter 'limit' must be a positive integer, got 0",
        )],
    );
}

#[test]
fn auth_required_is_found_behind_the_capital_error() {
    assert_all(
        Refusal::AuthRequired,
        &[
            (Closed, "auth-required: sign in"),
            (Closed, "ERROR: auth-required: sign in"),
            (NegErr, "error: auth-required: sign in"),
        ],
    );
}

#[test]
fn a_refusal_by_policy_suspends_requests() {
    assert_all(
        Refusal::Policy,
        &[
            (Closed, "restricted: members only"),
            (Closed, "blocked: pubkey banned"),
            (Closed, "You are not a member of this relay"),
            (Closed, "pow: 28 bits needed"),
            (Closed, "mute: not requested"),
        ],
    );
}

#[test]
fn lost_live_events_are_fetched_again() {
    let text = "error: live event buffer overflow; subscribe again";
    assert_all(Refusal::LiveOverflow, &[(LiveClosed, text)]);
}

#[test]
fn a_vague_error_is_retried_once() {
    assert_all(
        Refusal::Transient,
        &[
            (Closed, "error: shutting down"),
            (LiveClosed, "bye"),
            (LiveClosed, ""),
        ],
    );
}

#[test]
fn unknown_texts_are_not_interpreted() {
    assert_all(
        Refusal::Unknown,
        &[
            (Closed, "bye"),
            (Closed, "ERROR: bye"),
            (NegErr, ""),
            (Closed, "too many cooks"),
            (Closed, "duplicate: of what?"),
        ],
    );
    assert_all(
        Refusal::Remark,
        &[
            (Notice, "welcome to this relay"),
            (Notice, "ERROR: we moved house"),
            (Notice, "down on Sunday; thank you for your support"),
        ],
    );
}

#[test]
fn repository_names_decide_nothing() {
    assert_all(
        Refusal::Transient,
        &[
            (Closed, "error: openssl-test: too many queries"),
            (Closed, "error: no repository 'throttle' in rate-limited"),
            (Notice, "error: cannot serve slow-down/throttle.git"),
            (Notice, "error: throttle-rs is broken"),
            (Notice, "error: `throttle` is broken"),
            (NegErr, "error: repository not-supported is broken"),
        ],
    );
    assert_all(
        Refusal::Unknown,
        &[
            (Closed, "repository auth-required: is gone"),
            (Closed, "openssl-test: negentropy disabled"),
        ],
    );
}

#[test]
fn texts_of_other_versions_of_this_server_mean_the_same() {
    use grasp_core::admission::Rejection;

    let earlier = [
        (
            Rejection::RepositoryQuota,
            "rate-limited: too much is waiting for git data already",
        ),
        (
            Rejection::Quota,
            "rate-limited: too much is waiting for git data already",
        ),
        (
            Rejection::Busy,
            "rate-limited: this network uses its share of this relay, try again in a minute",
        ),
        (
            Rejection::Banned,
            "blocked: this author or repository is not welcome here",
        ),
        (
            Rejection::NeverStored,
            "invalid: events of this kind are not kept",
        ),
        (
            Rejection::UnknownAuthor,
            "restricted: profiles and relay lists are kept only of authors who own a repository here",
        ),
    ];
    for (rejection, earlier) in earlier {
        for heard in [Closed, LiveClosed, NegErr, Notice] {
            let current = Refusal::read(heard, &rejection.to_string());
            assert_eq!(
                current,
                Refusal::read(heard, earlier),
                "{heard:?} {rejection}"
            );
            assert!(
                !matches!(current, Refusal::Unknown | Refusal::Remark),
                "{rejection}"
            );
        }
    }
}

#[test]
fn labels_are_distinct() {
    let all = [
        Refusal::Rate,
        Refusal::SlotCount,
        Refusal::DroppedStart,
        Refusal::NegSessions,
        Refusal::SetTooLarge,
        Refusal::NegClosed,
        Refusal::NegProtocol,
        Refusal::NegUnsupported,
        Refusal::FilterCount,
        Refusal::RetainedBytes { stated: None },
        Refusal::Malformed,
        Refusal::LimitZero,
        Refusal::AuthRequired,
        Refusal::Policy,
        Refusal::LiveOverflow,
        Refusal::Transient,
        Refusal::Silent,
        Refusal::Remark,
        Refusal::Unknown,
    ];
    let labels: std::collections::BTreeSet<_> = all.iter().map(|r| r.label()).collect();
    assert_eq!(labels.len(), all.len());
}
