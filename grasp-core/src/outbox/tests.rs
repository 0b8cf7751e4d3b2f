use super::*;
use crate::testing::{Unsigned, key};

const US: &str = "us.example.com";

fn parsed(tags: &[&[&str]]) -> RelayList {
    let event = Unsigned::kind(10_002).tags(tags).by(key(1));
    parse(&event, &[])
}

fn parse(event: &Event, operator: &[&str]) -> RelayList {
    let operator = operator.iter().map(|url| url.parse().unwrap()).collect();
    let own = US.parse().unwrap();
    RelayList::parse(event, &own, OutboundPolicy::default(), &operator)
}

fn texts(relays: &[RelayUrl]) -> Vec<&str> {
    relays.iter().map(RelayUrl::as_str).collect()
}

#[test]
fn markers_say_what_a_relay_is_for() {
    let list = parsed(&[
        &["r", "wss://both.example.com"],
        &["r", "wss://empty.example.com", ""],
        &["r", "wss://in.example.com", "read"],
        &["r", "wss://out.example.com", "write"],
        &["r", "wss://unknown.example.com", "other"],
        &["r"],
        &["x", "wss://tag.example.com"],
    ]);
    let [both, empty] = ["wss://both.example.com", "wss://empty.example.com"];
    assert_eq!(texts(&list.read), [both, empty, "wss://in.example.com"]);
    assert_eq!(texts(&list.write), [both, empty, "wss://out.example.com"]);
}

#[test]
fn a_relay_with_both_markers_is_for_both() {
    let list = parsed(&[
        &["r", "wss://a.example.com", "read"],
        &["r", "WSS://A.example.com:443/", "write"],
    ]);
    assert_eq!(texts(&list.read), ["wss://a.example.com"]);
    assert_eq!(list.read, list.write);
}

#[test]
fn unusable_addresses_are_dropped_one_by_one() {
    let long = format!("wss://long.example.com/{}", "x".repeat(MAX_WRITTEN_BYTES));
    let key = "ab".repeat(32);
    let unusable = [
        "",
        "nonsense",
        "https://web.example.com",
        "wss://user:word@a.example.com",
        long.as_str(),
        "ws://127.0.0.1:7777",
        "wss://10.0.0.1",
        "wss://[::1]",
        "wss://localhost",
        "wss://printer",
        "wss://a.local",
        "wss://-a.example.com",
        "wss://hidden.onion",
        &format!("wss://a.example.com/{key}"),
        &format!("wss://a.example.com/{}/inbox", key.to_uppercase()),
        "wss://a.example.com/a.example.com",
        "wss://a.example.com/x/A.example.com/y",
        "wss://a.example.com/alpha",
        "wss://a.example.com/x/Zulu-xray",
        "wss://a.example.com/anchor-%6auliet-zenith/",
        "wss://us.example.com",
        "ws://us.example.com:80/below",
    ];
    for text in unusable {
        let list = parsed(&[&["r", text], &["r", "wss://good.example.com"]]);
        assert_eq!(texts(&list.write), ["wss://good.example.com"], "{text}");
    }
}

#[test]
fn ordinary_paths_are_kept() {
    for text in [
        "wss://a.example.com/inbox",
        "wss://a.example.com/alpha/x",
        "wss://a.example.com/alpha-other",
        "wss://a.example.com/alpha-bravo-charlie-delta",
        "wss://a.example.com/alphabravo",
        "wss://a.example.com/abcd",
        "wss://alpha.example.com",
    ] {
        assert_eq!(texts(&parsed(&[&["r", text]]).write), [text]);
    }
}

#[test]
fn all_words_are_found() {
    assert!(CODE_WORDS.is_sorted());
    let phonetic = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar papa \
                    quebec romeo sierra tango uniform victor whiskey xray yankee zulu";
    let other = "anchor beacon cipher dynamo ember flint glyph haven ivory jade karma lantern marble nexus onyx prism \
                 quartz raven sable titan umbra vertex warden xenon yonder zenith";
    let words: Vec<&str> = phonetic.split(' ').chain(other.split(' ')).collect();
    assert_eq!(words.len(), CODE_WORDS.len());
    assert!(words.into_iter().all(is_code_name));
}

#[test]
fn the_relays_of_the_operator_may_be_anywhere_but_here() {
    let event = Unsigned::kind(10_002)
        .tags(&[
            &["r", "ws://127.0.0.1:7777/alpha"],
            &["r", "ws://127.0.0.1:8888"],
            &["r", "wss://us.example.com"],
        ])
        .by(key(1));
    let list = parse(
        &event,
        &["ws://127.0.0.1:7777/alpha", "wss://us.example.com"],
    );
    assert_eq!(texts(&list.write), ["ws://127.0.0.1:7777/alpha"]);
}

#[test]
fn four_relays_per_purpose_are_kept_in_the_order_of_the_tags() {
    let urls: Vec<String> = (0..9).map(|n| format!("wss://{n}.example.com")).collect();
    let mut tags = vec![
        ["r", "wss://0.example.com", "read"],
        ["r", "wss://0.example.com", "read"],
        ["r", "ws://127.0.0.1", "read"],
    ];
    tags.extend(urls[1..].iter().map(|url| ["r", url.as_str(), "write"]));
    tags.extend(urls[5..].iter().map(|url| ["r", url.as_str(), "read"]));
    let tags: Vec<&[&str]> = tags.iter().map(<[&str; 3]>::as_slice).collect();
    let list = parsed(&tags);
    assert_eq!(texts(&list.write), urls[1..5]);
    assert_eq!(texts(&list.read), [&urls[0], &urls[5], &urls[6], &urls[7]]);
}

#[test]
fn a_participant_is_looked_for_where_it_writes_first() {
    let list = parsed(&[
        &["r", "wss://1.example.com", "read"],
        &["r", "wss://2.example.com"],
        &["r", "wss://3.example.com", "write"],
        &["r", "wss://4.example.com", "read"],
        &["r", "wss://5.example.com", "read"],
    ]);
    let relays: Vec<&str> = list.of_participant().map(RelayUrl::as_str).collect();
    let wanted = [2, 3, 1, 4].map(|n| format!("wss://{n}.example.com"));
    assert_eq!(relays, wanted);
    assert_eq!(list.all().len(), 5);
}

#[test]
fn other_events_are_no_relay_lists() {
    let event = Unsigned::kind(10_003)
        .tags(&[&["r", "wss://a.example.com"]])
        .by(key(1));
    assert!(parse(&event, &[]).is_empty());
}
