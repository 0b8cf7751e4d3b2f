//! What a session of a private service (GRASP-08) decides.

use std::time::Duration;

use grasp_core::admission::Policy;
use grasp_core::private::PublicOrigin;
use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;

use super::*;
use crate::nostr::LiveInfo;
use crate::private::{MemberList, Private};

const NOW: Now = Now::new(Mono::from_secs(1_000), Timestamp::from_secs(1_700_000_000));

const RELAY: &str = "wss://grasp.example";

/// A session of a service with one member.
struct Gated {
    session: Session,
    member: Keys,
    list: MemberList,
}

impl Gated {
    fn open() -> Self {
        let member = Keys::generate();
        let list = MemberList::new([member.public_key()].into());
        let config = Config {
            service: "grasp.example".parse().expect("an address"),
            secure: true,
            info: LiveInfo::default(),
            limits: Limits::default(),
            trusted_proxies: Vec::new(),
            node_key: None,
            pages: Default::default(),
            policy: Policy::new("grasp.example".parse().expect("an address")).into(),
            private: Some(Private {
                members: list.members(),
                origin: "https://grasp.example"
                    .parse::<PublicOrigin>()
                    .expect("an origin"),
            }),
        };
        let mut session = Session::new(NOW, Arc::new(config), "riddle".into());
        let challenge = sent(&session.handle(NOW, Input::Opened));
        assert_eq!(
            challenge,
            [r#"["AUTH","riddle"]"#],
            "the challenge is the first message"
        );
        Self {
            session,
            member,
            list,
        }
    }

    fn let_in() -> Self {
        let mut gated = Self::open();
        let answer = gated.receive(&auth(&gated.member, RELAY, 0));
        assert!(sent(&answer)[0].contains(",true,"), "{answer:?}");
        gated
    }

    fn receive(&mut self, text: &str) -> Vec<Output> {
        let request = Request::read(text, &Limits::default());
        self.session.handle(NOW, Input::Message(request))
    }

    fn remove(&mut self, keys: &Keys) -> Vec<Output> {
        let mut members = (*self.list.members().current()).clone();
        members.remove(&keys.public_key());
        self.list.replace(members);
        let members = self.list.members().current();
        self.session.handle(NOW, Input::Members(members))
    }
}

fn sent(outputs: &[Output]) -> Vec<String> {
    let replies = outputs.iter().filter_map(|output| match output {
        Output::Send(reply) => Some(reply.to_json()),
        _ => None,
    });
    replies.collect()
}

/// Returns an AUTH that is this many seconds late.
fn auth(keys: &Keys, relay: &str, late: i64) -> String {
    auth_with(keys, 22_242, "riddle", relay, late)
}

fn auth_with(keys: &Keys, kind: u16, challenge: &str, relay: &str, late: i64) -> String {
    let at = NOW.unix.as_secs().saturating_add_signed(-late);
    let event = EventBuilder::new(Kind::from(kind), "")
        .tags([
            Tag::custom("challenge", [challenge]),
            Tag::custom("relay", [relay]),
        ])
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(keys)
        .expect("signed");
    format!(r#"["AUTH",{}]"#, event.as_json())
}

fn event(keys: &Keys) -> Event {
    EventBuilder::new(Kind::from(1), "hello")
        .finalize(keys)
        .expect("signed")
}

#[test]
fn every_message_but_auth_is_refused_in_its_form() {
    let mut gated = Gated::open();
    let note = event(&gated.member);
    for (text, start) in [
        (
            format!(r#"["EVENT",{}]"#, note.as_json()),
            format!(r#"["OK","{}",false,"#, note.id),
        ),
        (r#"["EVENT",{"id":"x"}]"#.into(), r#"["NOTICE","#.into()),
        (r#"["REQ","s",{}]"#.into(), r#"["CLOSED","s","#.into()),
        (
            r#"["REQ","s",{"search":1}]"#.into(),
            r#"["CLOSED","s","#.into(),
        ),
        (r#"["COUNT","s",{}]"#.into(), r#"["CLOSED","s","#.into()),
        (
            r#"["NEG-OPEN","s",{},"61"]"#.into(),
            r#"["NEG-ERR","s","#.into(),
        ),
        (r#"["NEG-MSG","s","61"]"#.into(), r#"["NOTICE","#.into()),
        (r#"["NEG-CLOSE","s"]"#.into(), r#"["NOTICE","#.into()),
        (r#"["CLOSE","s"]"#.into(), r#"["NOTICE","#.into()),
        (r#"["X"]"#.into(), r#"["NOTICE","#.into()),
        ("nonsense".into(), r#"["NOTICE","#.into()),
    ] {
        let outputs = gated.receive(&text);
        let [Output::Send(_)] = outputs.as_slice() else {
            panic!("{text}: {outputs:?}");
        };
        let reply = sent(&outputs).remove(0);
        assert!(
            reply.starts_with(&start) && reply.contains(AUTH_REQUIRED),
            "{text}: {reply}"
        );
    }
}

#[test]
fn a_member_is_let_in_by_ws_or_wss_within_two_minutes() {
    for (relay, late) in [
        ("wss://grasp.example", 0),
        ("ws://grasp.example/", 0),
        (RELAY, 120),
        (RELAY, -120),
    ] {
        let mut gated = Gated::open();
        let answer = gated.receive(&auth(&gated.member, relay, late));
        assert!(
            sent(&answer)[0].contains(",true,"),
            "{relay} {late}: {answer:?}"
        );
        let opened = gated.receive(r#"["REQ","s",{}]"#);
        assert!(matches!(opened.as_slice(), [Output::Subscribe(..)]));
        assert_eq!(gated.session.authenticated(), [gated.member.public_key()]);
    }
}

#[test]
fn an_invalid_auth_is_refused_and_the_third_ends_the_connection() {
    let gated = Gated::open();
    let member = gated.member.clone();
    let forged = auth(&Keys::generate(), RELAY, 0);
    let forged = forged.replacen(
        &forged[forged.len() - 20..forged.len() - 10],
        "0123456789",
        1,
    );
    for bad in [
        auth_with(&member, 22_242, "wrong", RELAY, 0),
        auth_with(&member, 27_235, "riddle", RELAY, 0),
        auth(&member, "wss://other.example", 0),
        auth(&member, "wss://grasp.example/x", 0),
        auth(&member, "https://grasp.example", 0),
        auth(&member, RELAY, 121),
        auth(&member, RELAY, -121),
        forged,
    ] {
        let mut gated = Gated::open();
        for attempt in 1..=3 {
            let outputs = gated.receive(&bad);
            let reply = sent(&outputs).remove(0);
            assert!(
                reply.contains(r#",false,"auth-required: "#),
                "{bad}: {reply}"
            );
            let is_closed = outputs.contains(&Output::Close(CloseReason::TOO_MANY_AUTHS));
            assert_eq!(is_closed, attempt == 3, "{bad}");
        }
    }
}

#[test]
fn a_stranger_with_a_valid_auth_is_told_so_and_disconnected() {
    let mut gated = Gated::open();
    let outputs = gated.receive(&auth(&Keys::generate(), RELAY, 0));
    assert!(
        sent(&outputs)[0].contains(r#",false,"restricted: "#),
        "{outputs:?}"
    );
    assert_eq!(outputs[1], Output::Close(CloseReason::NOT_A_MEMBER));
}

#[test]
fn who_does_not_authenticate_is_disconnected_after_half_a_minute() {
    let mut gated = Gated::open();
    let until = NOW.after(Duration::from_secs(30));
    assert_eq!(gated.session.next_deadline(), until.mono);
    let early = NOW.after(Duration::from_secs(29));
    assert_eq!(gated.session.handle(early, Input::Tick), []);
    // Messages and pings do not extend it.
    let _ = gated.session.handle(early, Input::Activity);
    let ended = gated.session.handle(until, Input::Tick);
    assert_eq!(ended, [Output::Close(CloseReason::NO_AUTH)]);
    let mut member = Gated::let_in();
    assert!(member.session.next_deadline() > until.mono);
    assert_eq!(member.session.handle(until, Input::Tick), []);
}

#[test]
fn a_removed_member_is_disconnected_at_once() {
    let mut gated = Gated::let_in();
    let other = Keys::generate();
    assert_eq!(gated.remove(&other), [], "of other members nothing follows");
    let member = gated.member.clone();
    assert_eq!(gated.remove(&member), [Output::Close(CloseReason::REMOVED)]);
    let note = event(&member);
    let late = gated.receive(&format!(r#"["EVENT",{}]"#, note.as_json()));
    assert!(sent(&late)[0].contains("auth-required"), "{late:?}");
}

#[test]
fn a_connection_with_several_members_lives_as_long_as_one_of_them() {
    let mut gated = Gated::open();
    let second = Keys::generate();
    let both = [gated.member.public_key(), second.public_key()];
    gated.list.replace(both.into());
    let members = gated.list.members().current();
    assert_eq!(gated.session.handle(NOW, Input::Members(members)), []);
    for keys in [gated.member.clone(), second.clone()] {
        gated.receive(&auth(&keys, RELAY, 0));
    }
    let first = gated.member.clone();
    assert_eq!(gated.remove(&first), []);
    assert_eq!(gated.session.authenticated(), [second.public_key()]);
    assert_eq!(gated.remove(&second), [Output::Close(CloseReason::REMOVED)]);
}

#[test]
fn a_key_that_becomes_a_member_may_authenticate_on_an_open_connection() {
    let mut gated = Gated::open();
    let late = Keys::generate();
    gated.list.replace([late.public_key()].into());
    let members = gated.list.members().current();
    assert_eq!(gated.session.handle(NOW, Input::Members(members)), []);
    assert!(sent(&gated.receive(&auth(&late, RELAY, 0)))[0].contains(",true,"));
}
