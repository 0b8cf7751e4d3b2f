//! Attempts to get authority over another owner's repository.

use grasp_tests::Author;
use nostr::event::Event;

use super::{Fixture, MAIN};

type Tags = Vec<Vec<String>>;

/// Returns tags of alice's and eve's announcements with which eve is not in alice's maintainer set.
fn lists_without_authority(alice: &str, eve: &str) -> Vec<(&'static str, Tags, Tags)> {
    let tag = |values: &[&str]| {
        values
            .iter()
            .map(|value| (*value).to_owned())
            .collect::<Vec<_>>()
    };
    vec![
        (
            "only eve lists alice",
            vec![],
            vec![tag(&["maintainers", alice])],
        ),
        (
            "eve names alice as lead",
            vec![],
            vec![tag(&["M", alice]), tag(&["m", eve])],
        ),
        (
            "only alice lists eve",
            vec![tag(&["maintainers", eve])],
            vec![],
        ),
        (
            "alice lists eve, eve lists only herself",
            vec![tag(&["maintainers", eve])],
            vec![tag(&["maintainers", eve])],
        ),
        (
            "a moderator",
            vec![tag(&["o", eve])],
            vec![tag(&["maintainers", alice])],
        ),
        (
            "a term that has ended",
            vec![tag(&["m", eve, "0", "5"])],
            vec![tag(&["m", alice])],
        ),
        (
            "a term that cannot be read",
            vec![tag(&["m", eve, "now"])],
            vec![tag(&["m", alice])],
        ),
        (
            "maintainers beside roles",
            vec![tag(&["maintainers", eve]), tag(&["o", eve])],
            vec![tag(&["maintainers", alice])],
        ),
        (
            "a key in capitals",
            vec![tag(&["maintainers", &eve.to_uppercase()])],
            vec![tag(&["maintainers", alice])],
        ),
        (
            "eve ended her own term",
            vec![tag(&["m", eve])],
            vec![tag(&["m", eve, "0", "5"]), tag(&["m", alice])],
        ),
    ]
}

fn announce(by: &Author, fixture: &Fixture, more: &[Vec<String>]) -> Event {
    let more: Vec<Vec<&str>> = more
        .iter()
        .map(|tag| tag.iter().map(String::as_str).collect())
        .collect();
    let more: Vec<&[&str]> = more.iter().map(Vec::as_slice).collect();
    by.announce_with("x", &fixture.instance.service(), &more)
}

#[tokio::test]
async fn one_sided_lists_give_no_authority_over_a_repository_of_the_same_name() {
    let fixture = Fixture::new().await;
    let evil = fixture.work.commit("evil").await;
    let (alice, eve) = (
        fixture.alice.key().to_string(),
        fixture.eve.key().to_string(),
    );
    for (round, (what, by_alice, by_eve)) in (1..).zip(lists_without_authority(&alice, &eve)) {
        let at = round * 10;
        fixture
            .publish(&announce(&fixture.eve.later(at), &fixture, &by_eve))
            .await;
        assert!(
            fixture
                .publish(&announce(&fixture.alice.later(at), &fixture, &by_alice))
                .await
                .0,
            "{what}"
        );
        fixture
            .publish(&fixture.eve.later(at).state("x", &[(MAIN, &evil)]))
            .await;
        fixture
            .work
            .git(&["push", &fixture.url(), "+main"])
            .await
            .expect_refused();
        // Pushing the objects to her own endpoint changes nothing in alice's repository.
        let own = fixture.instance.clone_url(&fixture.eve.repo("x"));
        fixture.work.git(&["push", &own, "+main"]).await;
        fixture.assert_unchanged(what).await;
    }
}

#[tokio::test]
async fn a_former_maintainer_and_older_events_have_no_authority() {
    let fixture = Fixture::new().await;
    let (alice, bob) = (&fixture.alice, &fixture.eve);
    let (alices, bobs) = (alice.key().to_string(), bob.key().to_string());
    let us = fixture.instance.service();
    let invitation = alice
        .later(1)
        .announce_with("x", &us, &[&["maintainers", &bobs]]);
    let elsewhere = bob.sign(30617, "", &[&["d", "x"], &["maintainers", &alices]]);
    assert!(fixture.publish(&invitation).await.0 && fixture.publish(&elsewhere).await.0);
    let next = fixture.work.commit("by bob").await;
    let by_bob = bob.later(2).state("x", &[(MAIN, &next)]);
    assert!(fixture.publish(&by_bob).await.0);
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_ok();
    assert!(
        fixture.instance.serves(&by_bob).await,
        "bob is a maintainer"
    );

    // Alice removes him. Her own state is valid again, and neither old nor new states of bob are.
    assert!(fixture.publish(&alice.later(3).announce("x", &us)).await.0);
    fixture.assert_unchanged("bob is removed").await;
    for event in [
        invitation,
        by_bob,
        bob.later(4).state("x", &[(MAIN, &next)]),
        elsewhere,
    ] {
        fixture.publish(&event).await;
        fixture.assert_unchanged("bob publishes again").await;
    }
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_refused();
}

#[tokio::test]
async fn an_older_delisting_changes_nothing_and_within_a_second_the_lower_id_wins() {
    let fixture = Fixture::new().await;
    let (alice, us) = (&fixture.alice, fixture.instance.service());
    let delist = |by: &Author, content: &str| {
        by.sign(
            30617,
            content,
            &[&["d", "x"], &["clone", "https://b.example/x.git"]],
        )
    };
    assert!(fixture.publish(&alice.later(20).announce("x", &us)).await.0);
    for seconds in [10, 15, 19] {
        fixture.publish(&delist(&alice.later(seconds), "old")).await;
        fixture.assert_unchanged("an old delisting").await;
    }
    // Two of one second, in both orders: the lower id wins and decides whether the repository is hosted here.
    for (seconds, stays) in [(30, true), (40, false)] {
        let by = alice.later(seconds);
        let stay = by.announce("x", &us);
        let wanted = |id: &nostr::event::EventId| (stay.id < *id) == stays;
        let go = (0..)
            .map(|n| delist(&by, &n.to_string()))
            .find(|go| wanted(&go.id))
            .unwrap();
        let batch = if stays { [go, stay] } else { [stay, go] };
        for event in batch {
            fixture.publish(&event).await;
            fixture.instance.settle("x").await;
        }
        if stays {
            fixture
                .assert_unchanged("the lower id lists this service")
                .await;
        } else {
            fixture.until_gone().await;
        }
    }
}

#[tokio::test]
async fn a_delisted_repository_does_not_return_with_an_older_announcement() {
    let fixture = Fixture::new().await;
    let (alice, us) = (&fixture.alice, fixture.instance.service());
    let old = alice.later(5).announce("x", &us);
    assert!(fixture.publish(&old).await.0);
    fixture.assert_unchanged("announced again").await;
    let tags: &[&[&str]] = &[&["d", "x"], &["clone", "https://b.example/x.git"]];
    fixture
        .publish(&alice.later(10).sign(30617, "", tags))
        .await;
    fixture.until_gone().await;
    let (accepted, message) = fixture.publish(&old).await;
    assert!(!accepted && message.starts_with("replaced: "), "{message}");
    fixture.instance.settle("x").await;
    fixture.until_gone().await;
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_refused();
}

#[tokio::test]
async fn a_repository_delisted_before_its_data_came_does_not_return_with_an_older_announcement() {
    let fixture = Fixture::new().await;
    let old = fixture.eve.announce("waiting", &fixture.instance.service());
    assert!(fixture.publish(&old).await.0);
    let tags: &[&[&str]] = &[&["d", "waiting"], &["clone", "https://b.example/x.git"]];
    fixture
        .publish(&fixture.eve.later(10).sign(30617, "", tags))
        .await;
    fixture.instance.settle("waiting").await;
    assert!(!fixture.publish(&old).await.0);
}

#[tokio::test]
async fn a_vanish_request_removes_the_repository_for_good() {
    let fixture = Fixture::new().await;
    let (alice, us) = (&fixture.alice, fixture.instance.service());
    let relay = format!("ws://{us}");
    for address in [
        "wss://elsewhere.example",
        &format!("{relay}.evil.example"),
        "",
    ] {
        assert!(
            fixture
                .publish(&alice.later(5).sign(62, "", &[&["relay", address]]))
                .await
                .0
        );
        fixture.assert_unchanged(address).await;
    }
    assert!(
        fixture
            .publish(&alice.later(5).sign(62, "", &[&["relay", &relay]]))
            .await
            .0
    );
    fixture.until_gone().await;
    fixture.instance.settle("x").await;
    let repositories = fixture.instance.repositories().join("repositories");
    // No file of a vanished owner is kept.
    let is_gone = || grasp_tests::files(&repositories).is_empty().then_some(());
    grasp_tests::eventually(is_gone).await;
    let (accepted, message) = fixture.publish(&alice.announce("x", &us)).await;
    assert!(!accepted && message.contains("vanish"), "{message}");
    assert!(
        fixture.publish(&alice.later(6).announce("x", &us)).await.0,
        "later events are accepted"
    );
}
