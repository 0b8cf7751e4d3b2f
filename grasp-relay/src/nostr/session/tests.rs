//! The decisions of a session for its inputs.

use std::time::Duration;

use grasp_core::admission::Policy;
use grasp_core::limits::EoseHint;
use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;

use super::super::negentropy::tests::snapshot;
use super::*;
use crate::nostr::LiveInfo;

const NOW: Now = Now::new(Mono::from_secs(1_000), Timestamp::from_secs(1_700_000_000));

fn session(limits: Limits) -> Session {
    let config = Config {
        service: "grasp.example".parse().expect("an address"),
        secure: false,
        info: LiveInfo::default(),
        limits,
        trusted_proxies: Vec::new(),
        node_key: None,
        pages: Default::default(),
        private: None,
        policy: Policy::new("grasp.example".parse().expect("an address")).into(),
    };
    Session::new(NOW, Arc::new(config), "riddle".into())
}

impl Session {
    fn receive(&mut self, text: &str) -> Vec<Output> {
        self.receive_at(NOW, text)
    }

    fn receive_at(&mut self, now: Now, text: &str) -> Vec<Output> {
        let request = Request::read(text, &self.config.limits);
        self.handle(now, Input::Message(request))
    }

    /// Returns the answer to a message that has no other effect.
    fn reply_to(&mut self, text: &str) -> String {
        sent(&self.receive(text)).join(" ")
    }

    fn open_subscription(&mut self, text: &str) -> Token {
        match self.receive(text).pop() {
            Some(
                Output::Subscribe(token, ..)
                | Output::Count(token, ..)
                | Output::OpenNeg(token, ..),
            ) => token,
            other => panic!("{text}: {other:?}"),
        }
    }
}

fn sent(outputs: &[Output]) -> Vec<String> {
    outputs
        .iter()
        .filter_map(|output| match output {
            Output::Send(reply) => Some(reply.to_json()),
            _ => None,
        })
        .collect()
}

fn sub_id(text: &str) -> SubId {
    SubId(text.into())
}

/// An overflow, or another end of a subscription that the client did not ask for.
fn ended(token: Token, id: &str) -> Input {
    Input::Reply(token, Reply::closed(&sub_id(id), "error: ended"))
}

/// The answer to a negentropy message.
fn answered(token: Token, id: &str) -> Input {
    Input::Reply(token, Reply::NegMsg(sub_id(id), vec![0x61]))
}

fn after(length: Duration) -> Now {
    NOW.after(length)
}

fn auth(keys: &Keys, challenge: &str) -> String {
    let event = EventBuilder::new(Kind::Authentication, "")
        .tags([
            Tag::custom("challenge", [challenge]),
            Tag::custom("relay", ["wss://grasp.example/"]),
        ])
        .custom_created_at(NOW.unix)
        .finalize(keys)
        .expect("signed");
    format!(r#"["AUTH",{}]"#, event.as_json())
}

#[test]
fn a_subscription_of_the_same_id_is_replaced_and_its_late_results_are_ignored() {
    let mut session = session(Limits::default());
    let old = session.open_subscription(r#"["REQ","s",{}]"#);
    let outputs = session.receive(r#"["REQ","s",{"kinds":[1]}]"#);
    assert!(
        matches!(outputs[..], [Output::Unsubscribe(token), Output::Subscribe(..)] if token == old)
    );
    let eose = Reply::Eose(sub_id("s"), EoseHint::Finish);
    assert_eq!(session.handle(NOW, Input::Reply(old, eose)), []);
    assert_eq!(session.handle(NOW, ended(old, "s")), []);
}

#[test]
fn slots_are_given_back_by_close_overflow_and_an_answered_count() {
    let mut session = session(Limits {
        subscriptions: 1,
        ..Limits::default()
    });
    let refusal = r#"["CLOSED","b","rate-limited: too many REQs: 1 subscriptions may be open"]"#;
    session.open_subscription(r#"["REQ","a",{}]"#);
    assert_eq!(session.reply_to(r#"["REQ","b",{}]"#), refusal);
    assert!(matches!(
        session.receive(r#"["CLOSE","a"]"#)[..],
        [Output::Unsubscribe(_)]
    ));
    let token = session.open_subscription(r#"["REQ","b",{}]"#);
    let closed = sent(&session.handle(NOW, ended(token, "b")));
    assert_eq!(closed, [r#"["CLOSED","b","error: ended"]"#]);
    let token = session.open_subscription(r#"["COUNT","c",{}]"#);
    assert_eq!(session.reply_to(r#"["REQ","b",{}]"#), refusal);
    let counted = Input::Reply(token, Reply::Count(sub_id("c"), 7));
    let counted = sent(&session.handle(NOW, counted));
    assert_eq!(counted, [r#"["COUNT","c",{"count":7}]"#]);
    session.open_subscription(r#"["REQ","b",{}]"#);
}

#[test]
fn the_text_of_open_filters_is_bounded_together() {
    let mut session = session(Limits {
        subscription_bytes: 30,
        ..Limits::default()
    });
    session.open_subscription(r#"["REQ","a",{"kinds":[1,2,3]}]"#);
    let refusal = session.reply_to(r#"["REQ","b",{"kinds":[1,2,3]}]"#);
    assert_eq!(
        refusal,
        r#"["CLOSED","b","rate-limited: active subscriptions exceed max size 30 bytes"]"#
    );
    // Replacing frees the old text first.
    session.open_subscription(r#"["REQ","a",{"kinds":[4,5,6,7,8]}]"#);
    session.receive(r#"["CLOSE","a"]"#);
    session.open_subscription(r#"["REQ","b",{"kinds":[1,2,3]}]"#);
}

#[test]
fn too_many_queries_are_refused_each_in_its_own_form_and_continuations_are_free() {
    let mut session = session(Limits {
        queries_per_minute: 1,
        ..Limits::default()
    });
    let token = session.open_subscription(r#"["NEG-OPEN","n",{},"61"]"#);
    let why = "rate-limited: too many queries";
    assert_eq!(
        session.reply_to(r#"["REQ","s",{}]"#),
        format!(r#"["CLOSED","s","{why}"]"#)
    );
    assert_eq!(
        session.reply_to(r#"["COUNT","c",{}]"#),
        format!(r#"["CLOSED","c","{why}"]"#)
    );
    assert_eq!(
        session.reply_to(r#"["NEG-OPEN","m",{},"61"]"#),
        format!(r#"["NEG-ERR","m","{why}"]"#)
    );
    for _ in 0..20 {
        assert_eq!(
            sent(&session.handle(NOW, answered(token, "n"))),
            [r#"["NEG-MSG","n","61"]"#]
        );
        assert!(matches!(
            session.receive(r#"["NEG-MSG","n","61"]"#)[..],
            [Output::AnswerNeg(..)]
        ));
    }
    let later = after(Duration::from_secs(60));
    let outputs = session.receive_at(later, r#"["REQ","s",{}]"#);
    assert!(matches!(outputs[..], [Output::Subscribe(..)]));
}

#[test]
fn too_many_events_are_refused_by_their_ok() {
    let mut session = session(Limits {
        events_per_minute: 1,
        ..Limits::default()
    });
    let event = EventBuilder::new(Kind::from(1), "")
        .finalize(&Keys::generate())
        .expect("signed");
    let message = format!(r#"["EVENT",{}]"#, event.as_json());
    assert!(matches!(session.receive(&message)[..], [Output::Ingest(_)]));
    let id = event.id;
    assert_eq!(
        session.reply_to(&message),
        format!(r#"["OK","{id}",false,"rate-limited: too many events"]"#)
    );
}

#[test]
fn a_flood_is_refused_and_then_disconnected() {
    let mut session = session(Limits {
        messages_per_minute: 3,
        ..Limits::default()
    });
    let token = session.open_subscription(r#"["REQ","s",{}]"#);
    session.open_subscription(r#"["REQ","t",{}]"#);
    session.open_subscription(r#"["REQ","u",{}]"#);
    assert_eq!(
        session.reply_to(r#"["REQ","v",{}]"#),
        r#"["CLOSED","v","rate-limited: too many messages"]"#
    );
    // CLOSE only frees, and is handled even now.
    assert_eq!(
        session.receive(r#"["CLOSE","s"]"#),
        [Output::Unsubscribe(token)]
    );
    assert_eq!(
        session.reply_to("junk"),
        r#"["NOTICE","invalid: not a JSON array"]"#
    );
    assert_eq!(
        session.receive("junk"),
        [Output::Close(CloseReason::TOO_MANY_MESSAGES)]
    );
}

#[test]
fn a_challenge_comes_before_the_first_refusal_that_asks_for_auth_and_only_then() {
    let mut session = session(Limits::default());
    let judged = || Answer {
        is_accepted: false,
        message: "auth-required: who are you?".into(),
    };
    let id = EventId::from_byte_array([7; 32]);
    let first = sent(&session.handle(NOW, Input::Judged(id, judged())));
    assert_eq!(first[0], r#"["AUTH","riddle"]"#);
    assert!(first[1].starts_with(r#"["OK","07"#));
    assert_eq!(session.handle(NOW, Input::Judged(id, judged())).len(), 1);
}

#[test]
fn several_keys_may_be_proved_up_to_a_number() {
    let mut session = session(Limits {
        auth_keys: 2,
        ..Limits::default()
    });
    let [a, b, c] = [Keys::generate(), Keys::generate(), Keys::generate()];
    for keys in [&a, &a, &b] {
        assert!(
            session
                .reply_to(&auth(keys, "riddle"))
                .ends_with(r#",true,""]"#)
        );
    }
    assert!(
        session
            .reply_to(&auth(&c, "riddle"))
            .contains("rate-limited: ")
    );
    assert_eq!(session.authenticated(), [a.public_key(), b.public_key()]);
}

#[test]
fn failed_auths_are_answered_and_then_disconnected() {
    let mut session = session(Limits {
        auth_failures: 2,
        ..Limits::default()
    });
    let keys = Keys::generate();
    assert!(
        session
            .reply_to(&auth(&keys, "wrong"))
            .contains(r#"false,"invalid: the challenge"#)
    );
    let last = session.receive(&auth(&keys, "wrong"));
    assert!(matches!(
        last[..],
        [Output::Send(_), Output::Close(CloseReason::TOO_MANY_AUTHS)]
    ));
    assert!(session.authenticated().is_empty());
}

#[test]
fn negentropy_sessions_are_bounded_in_number_and_in_items() {
    let limits = Limits {
        neg_sessions: 2,
        neg_connection_items: 10,
        ..Limits::default()
    };
    let mut session = session(limits);
    let first = session.open_subscription(r#"["NEG-OPEN","a",{},"61"]"#);
    let second = session.open_subscription(r#"["NEG-OPEN","b",{},"61"]"#);
    let full = session.reply_to(r#"["NEG-OPEN","c",{},"61"]"#);
    assert_eq!(
        full,
        r#"["NEG-ERR","c","rate-limited: too many negentropy subscriptions"]"#
    );
    let opened = |token, id: &str, items| {
        Input::NegOpened(
            token,
            snapshot(items),
            Reply::NegMsg(sub_id(id), vec![0x61]),
        )
    };
    assert_eq!(
        sent(&session.handle(NOW, opened(first, "a", 6))),
        [r#"["NEG-MSG","a","61"]"#]
    );
    assert_eq!(
        session
            .snapshot(&sub_id("a"))
            .map(|snapshot| snapshot.len()),
        Some(6)
    );
    let outputs = session.handle(NOW, opened(second, "b", 6));
    assert!(session.snapshot(&sub_id("b")).is_none());
    assert!(sent(&outputs)[0].starts_with(r#"["NEG-ERR","b","rate-limited: "#));
    session.receive(r#"["NEG-CLOSE","a"]"#);
    assert!(session.snapshot(&sub_id("a")).is_none());
    let third = session.open_subscription(r#"["NEG-OPEN","b",{},"61"]"#);
    assert_eq!(sent(&session.handle(NOW, opened(third, "b", 10))).len(), 1);
}

#[test]
fn a_negentropy_session_ends_with_its_refusal_and_a_set_that_comes_later_is_dropped() {
    let mut session = session(Limits::default());
    let token = session.open_subscription(r#"["NEG-OPEN","n",{},"61"]"#);
    let refusal = Reply::neg_err(&sub_id("n"), "invalid: not a negentropy message");
    let outputs = session.handle(NOW, Input::Reply(token, refusal.clone()));
    assert_eq!(outputs, [Output::Send(refusal)]);
    let again = session.reply_to(r#"["NEG-MSG","n","61"]"#);
    assert_eq!(again, r#"["NEG-ERR","n","closed: no such session"]"#);
    let late = snapshot(1);
    let answer = Reply::NegMsg(sub_id("n"), vec![0x61]);
    assert_eq!(
        session.handle(NOW, Input::NegOpened(token, late.clone(), answer)),
        []
    );
    assert_eq!(Arc::strong_count(&late), 1);
}

#[test]
fn a_second_message_before_the_answer_ends_the_session() {
    let mut session = session(Limits::default());
    let token = session.open_subscription(r#"["NEG-OPEN","n",{},"61"]"#);
    let outputs = session.receive(r#"["NEG-MSG","n","61"]"#);
    assert!(sent(&outputs)[0].starts_with(r#"["NEG-ERR","n","invalid: "#));
    assert_eq!(session.handle(NOW, answered(token, "n")), []);
}

#[test]
fn an_unused_negentropy_session_is_closed_when_its_time_is_over_and_not_before() {
    let idle = Duration::from_secs(20);
    let mut session = session(Limits {
        neg_idle: idle,
        ..Limits::default()
    });
    let token = session.open_subscription(r#"["NEG-OPEN","n",{},"61"]"#);
    let _ = session.handle(NOW, answered(token, "n"));
    assert_eq!(session.next_deadline(), NOW.mono + idle);
    assert_eq!(
        session.handle(after(idle - Duration::from_millis(1)), Input::Tick),
        []
    );
    let outputs = session.handle(after(idle), Input::Tick);
    assert_eq!(
        sent(&outputs),
        [r#"["NEG-ERR","n","closed: idle for too long"]"#]
    );
}

#[test]
fn an_idle_client_is_pinged_and_disconnected_unless_it_answers() {
    let limits = Limits::default();
    let (ping, idle) = (limits.ping_after, limits.idle_timeout);
    let mut session = session(limits);
    assert_eq!(session.next_deadline(), NOW.mono + ping);
    assert_eq!(session.handle(after(ping), Input::Tick), [Output::Ping]);
    assert_eq!(session.handle(after(ping), Input::Tick), []);
    assert_eq!(session.next_deadline(), NOW.mono + idle);
    assert_eq!(
        session.handle(after(idle), Input::Tick),
        [Output::Close(CloseReason::IDLE)]
    );

    let _ = session.handle(after(idle), Input::Activity);
    assert_eq!(session.next_deadline(), NOW.mono + idle + ping);
    assert_eq!(session.handle(after(idle), Input::Tick), []);
}

#[test]
fn close_and_neg_close_without_a_subscription_are_ignored() {
    let mut session = session(Limits::default());
    assert_eq!(session.receive(r#"["CLOSE","x"]"#), []);
    assert_eq!(session.receive(r#"["NEG-CLOSE","x"]"#), []);
}

fn auth_event(kind: Kind, challenge: &str, relay: &str, at: u64) -> Event {
    EventBuilder::new(kind, "")
        .tags([
            Tag::custom("challenge", [challenge]),
            Tag::custom("relay", [relay]),
        ])
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(&Keys::generate())
        .expect("signed")
}

fn proven(event: &Event) -> Result<PublicKey, &'static str> {
    let service = "grasp.example:7334/git".parse().expect("an address");
    authentication::prove(event, "c", &service, false, NOW.unix)
}

#[test]
fn proves_the_key_that_signed_our_challenge_for_our_address() {
    let (kind, now) = (Kind::Authentication, NOW.unix.as_secs());
    for (url, at) in [
        ("ws://grasp.example:7334/git", now),
        ("wss://GRASP.example.:7334/git/", now + 600),
        ("wss://grasp.example:7334//git", now - 600),
    ] {
        let event = auth_event(kind, "c", url, at);
        assert_eq!(proven(&event), Ok(event.pubkey), "{url}");
    }
}

#[test]
fn anything_else_proves_nothing() {
    let (kind, now) = (Kind::Authentication, NOW.unix.as_secs());
    let us = "ws://grasp.example:7334/git";
    for (event, fault) in [
        (auth_event(Kind::from(1), "c", us, now), "kind 22242"),
        (auth_event(kind, "d", us, now), "challenge"),
        (
            auth_event(kind, "c", "ws://grasp.example/git", now),
            "relay tag",
        ),
        (
            auth_event(kind, "c", "ws://grasp.example:7334/gitx", now),
            "relay tag",
        ),
        (
            auth_event(kind, "c", "ws://evil.org/grasp.example:7334/git", now),
            "relay tag",
        ),
        (auth_event(kind, "c", us, now + 601), "created_at"),
        (auth_event(kind, "c", us, now - 601), "created_at"),
    ] {
        assert!(
            proven(&event).is_err_and(|reason| reason.contains(fault)),
            "{fault}"
        );
    }
    let mut forged = auth_event(kind, "c", us, now);
    forged.pubkey = Keys::generate().public_key();
    assert_eq!(proven(&forged), Err("bad id or signature"));
}
