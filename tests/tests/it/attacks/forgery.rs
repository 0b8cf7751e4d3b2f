//! Events that are not by whom they say, or not what was signed.

use grasp_tests::Author;
use nostr::event::{Event, EventId, Signature};
use nostr::types::Timestamp;

use super::{MAIN, Scene};

/// Every way to change a signed event and keep the rest.
fn copies(genuine: &Event, other: &Event) -> Vec<(&'static str, Event)> {
    let copy = |change: &dyn Fn(&mut Event)| {
        let mut event = genuine.clone();
        change(&mut event);
        event
    };
    vec![
        ("other words", copy(&|event| event.content.push('!'))),
        ("other tags", copy(&|event| event.tags = other.tags.clone())),
        ("another kind", copy(&|event| event.kind = other.kind)),
        ("another time", copy(&|event| event.created_at = Timestamp::from_secs(1))),
        ("another author", copy(&|event| event.pubkey = other.pubkey)),
        ("another's signature", copy(&|event| event.sig = other.sig)),
        ("no signature", copy(&|event| event.sig = Signature::from_slice(&[0; 64]).unwrap())),
        ("another id", copy(&|event| event.id = other.id)),
        ("no id", copy(&|event| event.id = EventId::from_byte_array([0; 32]))),
    ]
}

#[tokio::test]
async fn a_forged_copy_is_refused_and_the_genuine_event_is_welcome_after_it() {
    let scene = Scene::new().await;
    let next = scene.work.commit("next").await;
    let other = Author::new().sign(1111, "mine", &[&["A", &scene.repo.to_string()]]);
    for genuine in [
        scene.eve.issue(&scene.repo, "an issue"),
        scene.alice.later(1).state("x", &[(MAIN, &next)]),
        scene.alice.announce("y", &scene.instance.service()),
        scene.eve.pull_request(&scene.repo, &"c".repeat(40)),
    ] {
        for (what, forged) in copies(&genuine, &other) {
            for verdict in [
                scene.instance.ingest(vec![forged.clone()]).await.remove(0),
                scene.instance.ingest_from_relay(vec![forged.clone()]).await.remove(0),
            ] {
                let answer = verdict.answer();
                assert!(!answer.accepted, "{what}: {answer:?}");
                assert!(answer.message.starts_with("invalid: "), "{what}: {answer:?}");
            }
        }
        // Side by side in one batch, the forged one first.
        let mut batch: Vec<Event> = copies(&genuine, &other).into_iter().map(|it| it.1).collect();
        batch.push(genuine.clone());
        let verdicts = scene.instance.ingest(batch).await;
        let (last, before) = verdicts.split_last().unwrap();
        assert!(last.answer().accepted, "{last:?}");
        assert!(!before.iter().any(|verdict| verdict.answer().accepted));
    }
    scene.is_untouched("forged states").await;
}

#[tokio::test]
async fn nobody_takes_back_moves_or_empties_what_is_anothers_with_a_signature_of_their_own() {
    let scene = Scene::new().await;
    let (alice, eve, us) = (&scene.alice, &scene.eve, scene.instance.service());
    let coordinate = scene.repo.to_string();
    let evil = scene.work.commit("evil").await;
    let theirs = eve.key().to_string();
    let states = [(MAIN, evil.as_str())];
    // What alice could say, signed by eve in her name.
    let said_by_alice = [
        alice.later(9).sign(5, "", &[&["a", &coordinate]]),
        alice.later(9).sign(62, "", &[&["relay", "ALL_RELAYS"]]),
        alice.later(9).sign(30617, "", &[&["d", "x"], &["clone", "https://evil.example/x.git"]]),
        alice.later(9).announce_with("x", &us, &[&["maintainers", &theirs]]),
        alice.later(9).state("x", &states),
    ];
    for said in said_by_alice {
        let tags: Vec<Vec<&str>> = said
            .tags
            .iter()
            .map(|tag| tag.as_slice().iter().map(String::as_str).collect())
            .collect();
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        let mut forged = eve.later(9).sign(said.kind.as_u16(), "", &tags);
        forged.pubkey = alice.key();
        assert!(!scene.send(&forged).await.0, "{forged:?}");
        let mut forged = said.clone();
        forged.sig = eve.issue(&scene.repo, "a signature").sig;
        assert!(!scene.send(&forged).await.0, "{forged:?}");
        scene.is_untouched("an event in alice's name").await;
    }
    // The same with her own name under it.
    let served = scene.instance.refs(&scene.repo).await;
    for own in [
        eve.later(9).sign(5, "", &[&["a", &coordinate]]),
        eve.later(9).sign(5, "", &[&["a", &format!("30618:{}:x", alice.key())]]),
        eve.later(9).sign(62, "", &[&["relay", "ALL_RELAYS"], &["p", &alice.key().to_string()]]),
        eve.later(10).state("x", &states),
        eve.later(10).sign(30617, "", &[&["d", "x"], &["maintainers", &alice.key().to_string()]]),
    ] {
        scene.send(&own).await;
        scene.is_untouched("an event in eve's own name").await;
    }
    assert!(served.contains(&scene.tip));
    assert_eq!(scene.instance.get(&scene.instance.path(&scene.repo), &[]).await.status, 200);
}

#[tokio::test]
async fn what_others_have_waiting_cannot_be_deleted() {
    let scene = Scene::new().await;
    let (alice, eve) = (&scene.alice, &scene.eve);
    let next = scene.work.commit("next").await;
    let held = alice.later(1).state("x", &[(MAIN, &next)]);
    let announced = alice.announce("y", &scene.instance.service());
    assert!(scene.send(&held).await.1.starts_with("purgatory: "));
    assert!(scene.send(&announced).await.1.starts_with("purgatory: "));
    for tags in [
        [&["e", &held.id.to_hex()][..], &["k", "30618"]],
        [&["e", &announced.id.to_hex()], &["k", "30617"]],
        [&["a", &format!("30618:{}:x", alice.key())], &["p", &alice.key().to_string()]],
        [&["a", &alice.repo("y").to_string()], &["e", &held.id.to_hex()]],
    ] {
        scene.send(&eve.later(5).sign(5, "", &tags)).await;
    }
    scene.send(&eve.later(5).sign(62, "", &[&["relay", "ALL_RELAYS"]])).await;
    scene.instance.settle("y").await;
    assert_eq!(scene.instance.get(&scene.instance.path(&alice.repo("y")), &[]).await.status, 200);
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_ok();
    assert!(scene.instance.serves(&held).await);
}
