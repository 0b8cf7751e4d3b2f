//! Events with a wrong author, signature or content.

use grasp_tests::Author;
use nostr::event::{Event, EventId, Signature};
use nostr::types::Timestamp;

use super::{Fixture, MAIN};

/// Returns copies of a signed event, each with one field changed.
fn copies(genuine: &Event, other: &Event) -> Vec<(&'static str, Event)> {
    let copy = |change: &dyn Fn(&mut Event)| {
        let mut event = genuine.clone();
        change(&mut event);
        event
    };
    vec![
        ("other content", copy(&|event| event.content.push('!'))),
        ("other tags", copy(&|event| event.tags = other.tags.clone())),
        ("another kind", copy(&|event| event.kind = other.kind)),
        (
            "another time",
            copy(&|event| event.created_at = Timestamp::from_secs(1)),
        ),
        ("another author", copy(&|event| event.pubkey = other.pubkey)),
        ("another's signature", copy(&|event| event.sig = other.sig)),
        (
            "no signature",
            copy(&|event| event.sig = Signature::from_slice(&[0; 64]).unwrap()),
        ),
        ("another id", copy(&|event| event.id = other.id)),
        (
            "no id",
            copy(&|event| event.id = EventId::from_byte_array([0; 32])),
        ),
    ]
}

#[tokio::test]
async fn a_forged_copy_is_refused_and_the_genuine_event_is_accepted_after_it() {
    let fixture = Fixture::new().await;
    let next = fixture.work.commit("next").await;
    let other = Author::new().sign(1111, "mine", &[&["A", &fixture.repo.to_string()]]);
    for genuine in [
        fixture.eve.issue(&fixture.repo, "an issue"),
        fixture.alice.later(1).state("x", &[(MAIN, &next)]),
        fixture.alice.announce("y", &fixture.instance.service()),
        fixture.eve.pull_request(&fixture.repo, &"c".repeat(40)),
    ] {
        for (what, forged) in copies(&genuine, &other) {
            for outcome in [
                fixture
                    .instance
                    .ingest(vec![forged.clone()])
                    .await
                    .remove(0),
                fixture
                    .instance
                    .ingest_from_relay(vec![forged.clone()])
                    .await
                    .remove(0),
            ] {
                let answer = outcome.answer();
                assert!(!answer.is_accepted, "{what}: {answer:?}");
                assert!(
                    answer.message.starts_with("invalid: "),
                    "{what}: {answer:?}"
                );
            }
        }
        // Side by side in one batch, the forged one first.
        let mut batch: Vec<Event> = copies(&genuine, &other)
            .into_iter()
            .map(|it| it.1)
            .collect();
        batch.push(genuine.clone());
        let outcomes = fixture.instance.ingest(batch).await;
        let (last, before) = outcomes.split_last().unwrap();
        assert!(last.answer().is_accepted, "{last:?}");
        assert!(!before.iter().any(|outcome| outcome.answer().is_accepted));
    }
    fixture.assert_unchanged("forged states").await;
}

#[tokio::test]
async fn another_owners_repository_cannot_be_deleted_moved_or_emptied() {
    let fixture = Fixture::new().await;
    let (alice, eve, us) = (&fixture.alice, &fixture.eve, fixture.instance.service());
    let coordinate = fixture.repo.to_string();
    let evil = fixture.work.commit("evil").await;
    let theirs = eve.key().to_string();
    let states = [(MAIN, evil.as_str())];
    // Events that alice could publish, with eve's signature.
    let events_of_alice = [
        alice.later(9).sign(5, "", &[&["a", &coordinate]]),
        alice.later(9).sign(62, "", &[&["relay", "ALL_RELAYS"]]),
        alice.later(9).sign(
            30617,
            "",
            &[&["d", "x"], &["clone", "https://evil.example/x.git"]],
        ),
        alice
            .later(9)
            .announce_with("x", &us, &[&["maintainers", &theirs]]),
        alice.later(9).state("x", &states),
    ];
    for genuine in events_of_alice {
        let tags: Vec<Vec<&str>> = genuine
            .tags
            .iter()
            .map(|tag| tag.as_slice().iter().map(String::as_str).collect())
            .collect();
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        let mut forged = eve.later(9).sign(genuine.kind.as_u16(), "", &tags);
        forged.pubkey = alice.key();
        assert!(!fixture.publish(&forged).await.0, "{forged:?}");
        let mut forged = genuine.clone();
        forged.sig = eve.issue(&fixture.repo, "a signature").sig;
        assert!(!fixture.publish(&forged).await.0, "{forged:?}");
        fixture.assert_unchanged("an event in alice's name").await;
    }
    // The same, signed by eve under her own key.
    let served = fixture.instance.refs(&fixture.repo).await;
    for own in [
        eve.later(9).sign(5, "", &[&["a", &coordinate]]),
        eve.later(9)
            .sign(5, "", &[&["a", &format!("30618:{}:x", alice.key())]]),
        eve.later(9).sign(
            62,
            "",
            &[&["relay", "ALL_RELAYS"], &["p", &alice.key().to_string()]],
        ),
        eve.later(10).state("x", &states),
        eve.later(10).sign(
            30617,
            "",
            &[&["d", "x"], &["maintainers", &alice.key().to_string()]],
        ),
    ] {
        fixture.publish(&own).await;
        fixture.assert_unchanged("an event of eve").await;
    }
    assert!(served.contains(&fixture.tip));
    assert_eq!(
        fixture
            .instance
            .get(&fixture.instance.path(&fixture.repo), &[])
            .await
            .status,
        200
    );
}

#[tokio::test]
async fn held_events_of_another_author_cannot_be_deleted() {
    let fixture = Fixture::new().await;
    let (alice, eve) = (&fixture.alice, &fixture.eve);
    let next = fixture.work.commit("next").await;
    let held = alice.later(1).state("x", &[(MAIN, &next)]);
    let announced = alice.announce("y", &fixture.instance.service());
    assert!(fixture.publish(&held).await.1.starts_with("purgatory: "));
    assert!(
        fixture
            .publish(&announced)
            .await
            .1
            .starts_with("purgatory: ")
    );
    for tags in [
        [&["e", &held.id.to_hex()][..], &["k", "30618"]],
        [&["e", &announced.id.to_hex()], &["k", "30617"]],
        [
            &["a", &format!("30618:{}:x", alice.key())],
            &["p", &alice.key().to_string()],
        ],
        [
            &["a", &alice.repo("y").to_string()],
            &["e", &held.id.to_hex()],
        ],
    ] {
        fixture.publish(&eve.later(5).sign(5, "", &tags)).await;
    }
    fixture
        .publish(&eve.later(5).sign(62, "", &[&["relay", "ALL_RELAYS"]]))
        .await;
    fixture.instance.settle("y").await;
    assert_eq!(
        fixture
            .instance
            .get(&fixture.instance.path(&alice.repo("y")), &[])
            .await
            .status,
        200
    );
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_ok();
    assert!(fixture.instance.serves(&held).await);
}
