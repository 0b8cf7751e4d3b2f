//! Getting a say in somebody else's repository.

use grasp_tests::Author;
use nostr::event::Event;

use super::{MAIN, Scene};

type Tags = Vec<Vec<String>>;

/// What alice says of eve, and what eve says of alice, so that eve has no say.
fn overtures(alice: &str, eve: &str) -> Vec<(&'static str, Tags, Tags)> {
    let tag = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    vec![
        ("eve lists alice, unasked", vec![], vec![tag(&["maintainers", alice])]),
        ("eve names alice her lead", vec![], vec![tag(&["M", alice]), tag(&["m", eve])]),
        ("alice invites, eve does not answer", vec![tag(&["maintainers", eve])], vec![]),
        (
            "alice invites, eve lists herself alone",
            vec![tag(&["maintainers", eve])],
            vec![tag(&["maintainers", eve])],
        ),
        ("a moderator", vec![tag(&["o", eve])], vec![tag(&["maintainers", alice])]),
        ("a term that has ended", vec![tag(&["m", eve, "0", "5"])], vec![tag(&["m", alice])]),
        ("a term that cannot be read", vec![tag(&["m", eve, "now"])], vec![tag(&["m", alice])]),
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
            "eve left by her own word",
            vec![tag(&["m", eve])],
            vec![tag(&["m", eve, "0", "5"]), tag(&["m", alice])],
        ),
    ]
}

fn announce(by: &Author, scene: &Scene, more: &[Vec<String>]) -> Event {
    let more: Vec<Vec<&str>> =
        more.iter().map(|tag| tag.iter().map(String::as_str).collect()).collect();
    let more: Vec<&[&str]> = more.iter().map(Vec::as_slice).collect();
    by.announce_with("x", &scene.instance.service(), &more)
}

#[tokio::test]
async fn no_overture_gives_a_fork_a_say_in_the_repository_it_is_named_like() {
    let scene = Scene::new().await;
    let evil = scene.work.commit("evil").await;
    let (alice, eve) = (scene.alice.key().to_string(), scene.eve.key().to_string());
    for (round, (what, by_alice, by_eve)) in (1..).zip(overtures(&alice, &eve)) {
        let at = round * 10;
        scene.send(&announce(&scene.eve.later(at), &scene, &by_eve)).await;
        assert!(scene.send(&announce(&scene.alice.later(at), &scene, &by_alice)).await.0, "{what}");
        scene.send(&scene.eve.later(at).state("x", &[(MAIN, &evil)])).await;
        scene.work.git(&["push", &scene.url(), "+main"]).await.expect_refused();
        // With the objects here, through her own endpoint, nothing changes at alice's.
        let own = scene.instance.clone_url(&scene.eve.repo("x"));
        scene.work.git(&["push", &own, "+main"]).await;
        scene.is_untouched(what).await;
    }
}

#[tokio::test]
async fn a_former_maintainer_and_old_words_have_no_say() {
    let scene = Scene::new().await;
    let (alice, bob) = (&scene.alice, &scene.eve);
    let (alices, bobs) = (alice.key().to_string(), bob.key().to_string());
    let us = scene.instance.service();
    let invitation = alice.later(1).announce_with("x", &us, &[&["maintainers", &bobs]]);
    let elsewhere = bob.sign(30617, "", &[&["d", "x"], &["maintainers", &alices]]);
    assert!(scene.send(&invitation).await.0 && scene.send(&elsewhere).await.0);
    let next = scene.work.commit("by bob").await;
    let by_bob = bob.later(2).state("x", &[(MAIN, &next)]);
    assert!(scene.send(&by_bob).await.0);
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_ok();
    assert!(scene.instance.serves(&by_bob).await, "he was a maintainer");

    // Alice ends it. Her own word counts again, and neither old nor new words of bob's do.
    assert!(scene.send(&alice.later(3).announce("x", &us)).await.0);
    scene.is_untouched("bob has left").await;
    for event in [invitation, by_bob, bob.later(4).state("x", &[(MAIN, &next)]), elsewhere] {
        scene.send(&event).await;
        scene.is_untouched("bob, once more").await;
    }
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_refused();
}

#[tokio::test]
async fn an_old_delisting_replayed_does_nothing_and_within_a_second_the_lower_id_decides() {
    let scene = Scene::new().await;
    let (alice, us) = (&scene.alice, scene.instance.service());
    let leaving = |by: &Author, words: &str| {
        by.sign(30617, words, &[&["d", "x"], &["clone", "https://b.example/x.git"]])
    };
    assert!(scene.send(&alice.later(20).announce("x", &us)).await.0);
    for seconds in [10, 15, 19] {
        scene.send(&leaving(&alice.later(seconds), "old")).await;
        scene.is_untouched("an old delisting").await;
    }
    // Two of one second, in both orders: the lower id decides, and it is here that the repository stays or goes.
    for (seconds, stays) in [(30, true), (40, false)] {
        let by = alice.later(seconds);
        let stay = by.announce("x", &us);
        let wanted = |id: &nostr::event::EventId| (stay.id < *id) == stays;
        let go = (0..).map(|n| leaving(&by, &n.to_string())).find(|go| wanted(&go.id)).unwrap();
        let batch = if stays { [go, stay] } else { [stay, go] };
        for event in batch {
            scene.send(&event).await;
            scene.instance.settle("x").await;
        }
        if stays {
            scene.is_untouched("the lower id asks us to stay").await;
        } else {
            scene.is_gone().await;
        }
    }
}

#[tokio::test]
async fn a_repository_that_was_taken_from_us_does_not_come_back_with_an_older_announcement() {
    let scene = Scene::new().await;
    let (alice, us) = (&scene.alice, scene.instance.service());
    let old = alice.later(5).announce("x", &us);
    assert!(scene.send(&old).await.0);
    scene.is_untouched("announced again").await;
    let tags: &[&[&str]] = &[&["d", "x"], &["clone", "https://b.example/x.git"]];
    scene.send(&alice.later(10).sign(30617, "", tags)).await;
    scene.is_gone().await;
    let (accepted, why) = scene.send(&old).await;
    assert!(!accepted && why.starts_with("replaced: "), "{why}");
    scene.instance.settle("x").await;
    scene.is_gone().await;
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_refused();
}

#[tokio::test]
async fn a_repository_that_left_before_its_data_came_does_not_come_back_either() {
    let scene = Scene::new().await;
    let old = scene.eve.announce("waiting", &scene.instance.service());
    assert!(scene.send(&old).await.0);
    let tags: &[&[&str]] = &[&["d", "waiting"], &["clone", "https://b.example/x.git"]];
    scene.send(&scene.eve.later(10).sign(30617, "", tags)).await;
    scene.instance.settle("waiting").await;
    assert!(!scene.send(&old).await.0);
}

#[tokio::test]
async fn whoever_vanishes_takes_the_repository_along_at_once_and_it_stays_away() {
    let scene = Scene::new().await;
    let (alice, us) = (&scene.alice, scene.instance.service());
    let relay = format!("ws://{us}");
    for address in ["wss://elsewhere.example", &format!("{relay}.evil.example"), ""] {
        assert!(scene.send(&alice.later(5).sign(62, "", &[&["relay", address]])).await.0);
        scene.is_untouched(address).await;
    }
    assert!(scene.send(&alice.later(5).sign(62, "", &[&["relay", &relay]])).await.0);
    // Without anybody giving it another thought.
    scene.is_gone().await;
    scene.instance.settle("x").await;
    let families = scene.instance.repositories().join("families");
    let left = || (!grasp_tests::files(&families).is_empty()).then_some(());
    assert_eq!(left(), None, "nothing is kept of somebody who wants to be forgotten");
    let (accepted, said) = scene.send(&alice.announce("x", &us)).await;
    assert!(!accepted && said.contains("vanish"), "{said}");
    assert!(scene.send(&alice.later(6).announce("x", &us)).await.0, "later words are welcome");
}
