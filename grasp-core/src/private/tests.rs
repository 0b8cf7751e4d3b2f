use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use nostr::event::{Event, EventBuilder, FinalizeEvent, Kind, Tag};
use nostr::key::Keys;

use super::*;

const ROOT: &str = "https://git.example/npub1x/a.git";

fn header(event: &Event) -> String {
    format!("Nostr {}", STANDARD.encode(event.as_json()))
}

fn authorization(keys: &Keys, kind: u16, tags: &[&[&str]], at: u64) -> String {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    let event = EventBuilder::new(Kind::from_u16(kind), "")
        .tags(tags)
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(keys)
        .unwrap();
    header(&event)
}

fn is_let_in(keys: &Keys, authorization: &str, now: u64) -> bool {
    let members = BTreeSet::from([keys.public_key()]);
    let member = member_of_request(authorization, ROOT, &members, Timestamp::from_secs(now));
    assert!(member.is_none_or(|member| member == keys.public_key()));
    member.is_some()
}

const GOOD: [&[&str]; 2] = [&["u", ROOT], &["method", "GET"]];

#[test]
fn a_member_is_let_in_for_a_minute_before_and_after() {
    let keys = Keys::generate();
    let good = authorization(&keys, 27_235, &GOOD, 1_000);
    for (now, expected) in [
        (939, false),
        (940, true),
        (1_000, true),
        (1_060, true),
        (1_061, false),
    ] {
        assert_eq!(is_let_in(&keys, &good, now), expected, "{now}");
    }
}

#[test]
fn one_authorization_serves_all_requests_of_a_clone() {
    let keys = Keys::generate();
    let good = authorization(&keys, 27_235, &GOOD, 1_000);
    assert!((0..3).all(|_| is_let_in(&keys, &good, 1_000)));
}

#[test]
fn a_payload_is_ignored() {
    let keys = Keys::generate();
    let tags: [&[&str]; 3] = [GOOD[0], GOOD[1], &["payload", "0000"]];
    assert!(is_let_in(
        &keys,
        &authorization(&keys, 27_235, &tags, 1_000),
        1_000
    ));
}

#[test]
fn strangers_are_not_let_in() {
    let (keys, stranger) = (Keys::generate(), Keys::generate());
    let theirs = authorization(&stranger, 27_235, &GOOD, 1_000);
    assert!(!is_let_in(&keys, &theirs, 1_000));
}

#[test]
fn an_event_that_a_member_did_not_sign_is_worth_nothing() {
    let (keys, stranger) = (Keys::generate(), Keys::generate());
    let theirs = authorization(&stranger, 27_235, &GOOD, 1_000);
    let encoded = theirs.strip_prefix("Nostr ").unwrap();
    let json = String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap();
    let forged = json.replace(&stranger.public_key().to_hex(), &keys.public_key().to_hex());
    let forged = format!("Nostr {}", STANDARD.encode(forged));
    assert!(!is_let_in(&keys, &forged, 1_000));
}

#[test]
fn only_the_exact_form_is_valid() {
    let keys = Keys::generate();
    let u: &[&str] = &["u", ROOT];
    let method: &[&str] = &["method", "GET"];
    let elsewhere: &[&str] = &["u", "https://git.example/npub1x/b.git"];
    let bad: [&[&[&str]]; 10] = [
        &[],
        &[u],
        &[method],
        &[u, u, method],
        &[u, elsewhere, method],
        &[u, method, method],
        &[&["u", ROOT, "x"], method],
        &[u, &["method", "POST"]],
        &[&["u", "http://git.example/npub1x/a.git"], method],
        &[&["u", "https://git.example/npub1x/a.git/"], method],
    ];
    for tags in bad {
        let given = authorization(&keys, 27_235, tags, 1_000);
        assert!(!is_let_in(&keys, &given, 1_000), "{tags:?}");
    }
    let other_kind = authorization(&keys, 22_242, &GOOD, 1_000);
    assert!(!is_let_in(&keys, &other_kind, 1_000));
    for text in ["", "Nostr", "Nostr ", "Nostr !", "Bearer x", "Nostr e30="] {
        assert!(!is_let_in(&keys, text, 1_000), "{text}");
    }
}

#[test]
fn the_root_ends_at_the_last_git_of_the_path() {
    let origin: PublicOrigin = "https://git.example".parse().unwrap();
    for (path, expected) in [
        ("/n/a.git", "/n/a.git"),
        ("/n/a.git/", "/n/a.git"),
        ("/n/a.git/info/refs", "/n/a.git"),
        ("/m/n/a.git/git-receive-pack", "/m/n/a.git"),
        ("/n/a.git.git/HEAD", "/n/a.git.git"),
        ("/n/a%20b.git/info/refs", "/n/a%20b.git"),
        ("/n/a.git/blob/main/.gitignore", "/n/a.git"),
        ("/status", "/status"),
        ("/status/", "/status"),
        ("/n/a.github", "/n/a.github"),
    ] {
        assert_eq!(
            origin.root_of(path),
            format!("https://git.example{expected}"),
            "{path}"
        );
    }
}

#[test]
fn the_root_of_a_url_is_what_its_server_expects() {
    for (url, root) in [
        ("https://git.example/n/a.git", "https://git.example/n/a.git"),
        (
            "https://git.example/n/a.git/",
            "https://git.example/n/a.git",
        ),
        (
            "http://127.0.0.1:1/m/n/a.git?x#y",
            "http://127.0.0.1:1/m/n/a.git",
        ),
    ] {
        assert_eq!(root_of_url(&url.parse().unwrap()), root, "{url}");
    }
}

#[test]
fn only_loopback_is_reached_without_tls_unless_an_origin_is_set() {
    for (service, origin) in [
        ("git.example", "https://git.example"),
        ("git.example:8443", "https://git.example:8443"),
        ("127.0.0.1:7334", "http://127.0.0.1:7334"),
        ("[::1]:7334", "http://[::1]:7334"),
        ("localhost", "http://localhost"),
        ("localhost.example", "https://localhost.example"),
        ("192.168.1.5:7334", "https://192.168.1.5:7334"),
    ] {
        let of = PublicOrigin::of(&service.parse().unwrap(), false);
        assert_eq!(of.to_string(), origin);
    }
    let with_tls = PublicOrigin::of(&"127.0.0.1:7334".parse().unwrap(), true);
    assert_eq!(with_tls.to_string(), "https://127.0.0.1:7334");
    let onion: PublicOrigin = "http://example.onion:81".parse().unwrap();
    assert_eq!(onion.to_string(), "http://example.onion:81");
}

#[test]
fn an_origin_has_no_path_query_fragment_or_credentials() {
    for bad in [
        "",
        "https://",
        "https://h/",
        "https://h/x",
        "https://h?x",
        "https://h#x",
        "https://u:p@h",
        "wss://h",
    ] {
        assert!(bad.parse::<PublicOrigin>().is_err(), "{bad}");
    }
}
