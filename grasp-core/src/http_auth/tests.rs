use nostr::event::{EventBuilder, FinalizeEvent, Tag};
use nostr::key::Keys;

use super::*;

const NOW: u64 = 1_000_000;
const BODY: &[u8] = br#"{"method":"listbannedpubkeys","params":[]}"#;

fn service() -> ServiceIdentity {
    "grasp.example/git".parse().unwrap()
}

fn hash(body: &[u8]) -> String {
    sha256::hash(body).to_string()
}

fn signed(kind: u16, at: u64, tags: &[&[&str]]) -> Event {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(Kind::from_u16(kind), "")
        .tags(tags)
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(&Keys::generate())
        .unwrap()
}

fn header(event: &Event) -> String {
    format!("Nostr {}", STANDARD.encode(event.as_json()))
}

fn management(at: u64, tags: &[&[&str]]) -> Result<HttpAuth, HttpAuthRefusal> {
    let rule_service = service();
    let rule = HttpAuthRule::management(&rule_service, BODY);
    let event = signed(27_235, at, tags);
    judge_header(&header(&event), &rule, Timestamp::from_secs(NOW))
}

#[test]
fn a_signed_authorization_names_its_author_and_expiry() {
    let payload = hash(BODY);
    let tags: [&[&str]; 3] = [
        &["u", "https://grasp.example/git"],
        &["method", "POST"],
        &["payload", &payload],
    ];
    let event = signed(27_235, NOW, &tags);
    let service = service();
    let rule = HttpAuthRule::management(&service, BODY);
    let auth = judge_header(&header(&event), &rule, Timestamp::from_secs(NOW)).unwrap();
    assert_eq!(auth.author, event.pubkey);
    assert_eq!(auth.id, event.id);
    assert_eq!(auth.expires_at, Timestamp::from_secs(NOW + 61));
}

#[test]
fn any_spelling_of_this_service_is_its_address() {
    let payload = hash(BODY);
    let judge = |url: &str| {
        management(
            NOW,
            &[&["u", url], &["method", "POST"], &["payload", &payload]],
        )
    };
    for url in [
        "https://grasp.example/git",
        "https://grasp.example/git/",
        "http://grasp.example/git",
        "wss://GRASP.example:443/git",
        "ws://grasp.example./git/",
    ] {
        assert!(judge(url).is_ok(), "{url}");
    }
    for url in [
        "https://grasp.example",
        "https://grasp.example/git/x",
        "https://grasp.example/git?x",
        "https://grasp.example/git#x",
        "https://grasp.example:8443/git",
        "https://other.example/git",
        "ftp://grasp.example/git",
        "grasp.example/git",
        "",
    ] {
        assert_eq!(judge(url), Err(HttpAuthRefusal::Url), "{url}");
    }
}

#[test]
fn the_window_of_management_is_60_seconds_back_and_30_ahead() {
    let payload = hash(BODY);
    let judge = |at| {
        management(
            at,
            &[
                &["u", "https://grasp.example/git"],
                &["method", "POST"],
                &["payload", &payload],
            ],
        )
    };
    assert!(judge(NOW - 60).is_ok() && judge(NOW + 30).is_ok());
    assert_eq!(judge(NOW - 61), Err(HttpAuthRefusal::TooOld));
    assert_eq!(judge(NOW + 31), Err(HttpAuthRefusal::TooFarAhead));
}

#[test]
fn management_requires_method_and_hash_of_the_body() {
    let payload = hash(BODY);
    let other = hash(b"another body");
    let url: &[&str] = &["u", "https://grasp.example/git"];
    let method: &[&str] = &["method", "POST"];
    let right: &[&str] = &["payload", &payload];
    let judge = |tags: &[&[&str]]| management(NOW, tags);
    assert_eq!(
        judge(&[url, &["method", "GET"], right]),
        Err(HttpAuthRefusal::Method)
    );
    assert_eq!(judge(&[url, right]), Err(HttpAuthRefusal::Method));
    assert_eq!(
        judge(&[url, method, method, right]),
        Err(HttpAuthRefusal::Method)
    );
    assert_eq!(judge(&[url, url, method, right]), Err(HttpAuthRefusal::Url));
    assert_eq!(judge(&[url, method]), Err(HttpAuthRefusal::Payload));
    assert_eq!(
        judge(&[url, method, &["payload", &other]]),
        Err(HttpAuthRefusal::Payload)
    );
    assert_eq!(
        judge(&[url, method, &["payload", "xx"]]),
        Err(HttpAuthRefusal::Payload)
    );
}

#[test]
fn git_takes_one_authorization_for_all_requests_of_a_repository() {
    let root = "https://grasp.example/git/npub1x/a%20b.git";
    let rule = HttpAuthRule::git(root);
    let now = Timestamp::from_secs(NOW);
    let judge = |at, tags: &[&[&str]]| judge_event(&signed(27_235, at, tags), &rule, now);
    let method: &[&str] = &["method", "GET"];
    assert!(judge(NOW - 60, &[&["u", root], method]).is_ok());
    assert!(judge(NOW + 60, &[&["u", root], method, &["payload", "any"]]).is_ok());
    assert_eq!(
        judge(NOW + 61, &[&["u", root], method]),
        Err(HttpAuthRefusal::TooFarAhead)
    );
    assert_eq!(
        judge(NOW, &[&["u", root, "more"], method]),
        Err(HttpAuthRefusal::Url)
    );
    assert_eq!(
        judge(
            NOW,
            &[&["u", "https://grasp.example/git/npub1x/a b.git"], method]
        ),
        Err(HttpAuthRefusal::Url)
    );
    assert_eq!(
        judge(NOW, &[&["u", root], &["method", "POST"]]),
        Err(HttpAuthRefusal::Method)
    );
}

#[test]
fn a_header_is_nostr_and_standard_base64_of_a_genuine_event() {
    let root = "https://grasp.example/npub1x/x.git";
    let rule = HttpAuthRule::git(root);
    let now = Timestamp::from_secs(NOW);
    let event = signed(27_235, NOW, &[&["u", root], &["method", "GET"]]);
    let good = header(&event);
    assert!(judge_header(&good, &rule, now).is_ok());
    assert!(judge_header(&good.replacen("Nostr", "nostr", 1), &rule, now).is_ok());
    let long = format!("Nostr {}", "A".repeat(MAX_HEADER_BYTES));
    for text in ["", "Nostr", "Nostr !", "Basic YTpi", &long] {
        assert_eq!(
            judge_header(text, &rule, now),
            Err(HttpAuthRefusal::NotNostr),
            "{text}"
        );
    }
    let not_json = format!("Nostr {}", STANDARD.encode("[]"));
    assert_eq!(
        judge_header(&not_json, &rule, now),
        Err(HttpAuthRefusal::NotAnEvent)
    );
    let other_kind = signed(22_242, NOW, &[&["u", root], &["method", "GET"]]);
    assert_eq!(
        judge_header(&header(&other_kind), &rule, now),
        Err(HttpAuthRefusal::Kind)
    );
    let mut forged = event;
    forged.pubkey = Keys::generate().public_key();
    assert_eq!(
        judge_header(&header(&forged), &rule, now),
        Err(HttpAuthRefusal::Forged)
    );
}
