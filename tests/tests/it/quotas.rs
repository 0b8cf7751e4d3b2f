//! Quotas of held events: per author, per name, and in total.

use grasp_core::admission::{Outcome, Rejection};
use grasp_purgatory::Bound;
use grasp_tests::{Author, Instance, Settings, Workdir};
use nostr::event::Event;

const MAIN: &str = "refs/heads/main";

async fn answer(instance: &Instance, event: &Event) -> (bool, String) {
    let answer = outcome(instance, event).await.answer();
    let prefix = answer.message.split(':').next().unwrap_or_default();
    (answer.is_accepted, prefix.to_owned())
}

async fn outcome(instance: &Instance, event: &Event) -> Outcome {
    instance.ingest(vec![event.clone()]).await.remove(0)
}

fn held() -> (bool, String) {
    (true, String::from("purgatory"))
}

fn limited() -> Outcome {
    Rejection::Quota.into()
}

async fn bounded(change: impl FnOnce(&mut grasp_purgatory::Config)) -> Instance {
    let mut settings = Settings::default();
    change(&mut settings.purgatory);
    Instance::with_settings(settings).await
}

#[tokio::test]
async fn held_events_of_one_author_are_limited() {
    let instance = bounded(|config| config.per_author.count = 3).await;
    let (alice, bob) = (Author::new(), Author::new());
    let us = instance.service();
    for name in ["a", "b", "c"] {
        assert_eq!(
            answer(&instance, &alice.announce(name, &us)).await,
            held(),
            "{name}"
        );
    }
    assert_eq!(
        outcome(&instance, &alice.announce("d", &us)).await,
        limited()
    );
    assert_eq!(
        instance
            .get(&instance.path(&alice.repo("d")), &[])
            .await
            .status,
        404
    );
    assert_eq!(answer(&instance, &bob.announce("d", &us)).await, held());
    // A replacement needs no further room, and a deletion makes room.
    assert_eq!(
        answer(&instance, &alice.later(1).announce("a", &us)).await,
        held()
    );
    let coordinate = format!("30617:{}:b", alice.key());
    instance
        .ingest(vec![alice.later(2).sign(5, "", &[&["a", &coordinate]])])
        .await;
    instance.settle("b").await;
    assert_eq!(answer(&instance, &alice.announce("d", &us)).await, held());
}

#[tokio::test]
async fn repositories_of_one_author_are_limited() {
    let (alice, bob, operator) = (Author::new(), Author::new(), Author::new());
    let instance = Instance::with(|settings| {
        settings.policy.repositories_per_author = 2;
        settings.policy.operator = Some(operator.key());
    })
    .await;
    let us = instance.service();
    for name in ["a", "b"] {
        instance.host(&alice, name).await;
        instance.host(&operator, name).await;
    }
    let refused = Outcome::from(Rejection::RepositoryQuota);
    assert_eq!(outcome(&instance, &alice.announce("c", &us)).await, refused);
    // Served repositories can be replaced, and the limit does not hold for other authors and the operator.
    let again = alice.later(1).announce("a", &us);
    assert_eq!(answer(&instance, &again).await, (true, String::new()));
    assert_eq!(answer(&instance, &bob.announce("c", &us)).await, held());
    assert_eq!(
        answer(&instance, &operator.announce("c", &us)).await,
        held()
    );
    // A deletion makes room.
    let coordinate = format!("30617:{}:b", alice.key());
    instance
        .ingest(vec![alice.later(2).sign(5, "", &[&["a", &coordinate]])])
        .await;
    instance.settle("b").await;
    assert_eq!(answer(&instance, &alice.announce("c", &us)).await, held());
}

#[tokio::test]
async fn announcements_for_discovery_do_not_count() {
    let (alice, bob) = (Author::new(), Author::new());
    let instance = Instance::with(|settings| settings.policy.repositories_per_author = 2).await;
    let us = instance.service();
    let maintainers: &[&str] = &["maintainers", &alice.key().to_hex()];
    let elsewhere = "elsewhere.example".parse().unwrap();
    for name in ["a", "b"] {
        instance.host(&bob, name).await;
        instance
            .ingest(vec![bob.later(1).announce_with(name, &us, &[maintainers])])
            .await;
        let known = alice.announce(name, &elsewhere);
        assert_eq!(answer(&instance, &known).await, (true, String::new()));
    }
    for name in ["c", "d"] {
        assert_eq!(answer(&instance, &alice.announce(name, &us)).await, held());
    }
}

#[tokio::test]
async fn held_events_of_one_repository_are_limited_and_those_of_its_name_are_not() {
    let instance = bounded(|config| config.per_repo.count = 3).await;
    let us = instance.service();
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let tip = work.commit("proposed").await;
    for n in 0..4 {
        let proposal = Author::new().pull_request(&alice.repo("x"), &tip);
        match n < 3 {
            true => assert_eq!(answer(&instance, &proposal).await, held(), "{n}"),
            false => assert_eq!(outcome(&instance, &proposal).await, limited()),
        }
    }
    for _ in 0..4 {
        assert_eq!(
            answer(&instance, &Author::new().announce("x", &us)).await,
            held()
        );
    }
}

#[tokio::test]
async fn held_events_are_limited_in_total() {
    let instance = bounded(|config| {
        config.total = Bound {
            count: 4,
            bytes: 1 << 20,
        }
    })
    .await;
    let us = instance.service();
    for n in 0..4 {
        assert_eq!(
            answer(&instance, &Author::new().announce(&n.to_string(), &us)).await,
            held()
        );
    }
    assert_eq!(
        outcome(&instance, &Author::new().announce("x", &us)).await,
        limited()
    );
    let instance = bounded(|config| {
        config.total = Bound {
            count: 100,
            bytes: 4_000,
        }
    })
    .await;
    let us = instance.service();
    let mut accepted = 0;
    while answer(&instance, &Author::new().announce("x", &us)).await == held() {
        accepted += 1;
        assert!(accepted < 10, "bytes count too");
    }
    assert!(accepted > 0);
}

#[tokio::test]
async fn a_release_makes_room() {
    let instance = bounded(|config| config.total.count = 2).await;
    let alice = Author::new();
    for name in ["a", "b", "c"] {
        instance.host(&alice, name).await;
        let state = alice.repo(name);
        assert!(instance.refs(&state).await.contains(MAIN), "{name}");
    }
}

#[tokio::test]
async fn only_the_newest_states_of_an_author_are_held() {
    let instance = bounded(|config| config.states_per_author = 2).await;
    let alice = Author::new();
    let work = Workdir::init().await;
    instance
        .ingest(vec![alice.announce("x", &instance.service())])
        .await;
    let mut commits = Vec::new();
    for n in 0..3 {
        let commit = work.commit(&format!("{n}")).await;
        let state = alice.later(n).state("x", &[(MAIN, &commit)]);
        assert_eq!(answer(&instance, &state).await, held());
        commits.push(commit);
    }
    let url = instance.clone_url(&alice.repo("x"));
    let push = async |at: usize| {
        work.git(&["push", &url, &format!("{}:{MAIN}", commits[at])])
            .await
    };
    push(0).await.expect_refused();
    push(1).await.expect_ok();
    push(2).await.expect_ok();
}
