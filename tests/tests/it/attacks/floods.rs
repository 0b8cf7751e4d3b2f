//! Floods of events, beside which other clients must be served.

use grasp_core::admission::Share;
use grasp_purgatory::Bound;
use grasp_tests::{Author, Fault, Instance, Settings};

use super::{Fixture, MAIN};

#[tokio::test]
async fn events_of_one_author_and_about_one_root_are_limited() {
    let instance = Instance::with(|settings| {
        settings.fan_out.author = Share {
            count: 5,
            bytes: 1 << 20,
        };
        settings.fan_out.root = Share {
            count: 12,
            bytes: 1 << 20,
        };
    });
    let fixture = Fixture::on(instance.await).await;
    let other = fixture.instance.host(&fixture.alice, "y").await;
    drop(other);
    let mut accepted = 0;
    for n in 0..8 {
        accepted += usize::from(
            fixture
                .publish(&fixture.eve.issue(&fixture.repo, &n.to_string()))
                .await
                .0,
        );
    }
    assert_eq!(accepted, 5, "one author");
    // A chain of notes by new authors, each naming only the note before it.
    let mut last = Author::new().issue(&fixture.repo, "a chain");
    let mut answer = fixture.publish(&last).await;
    for n in 0..20 {
        accepted += usize::from(answer.0);
        last = Author::new().sign(1, &n.to_string(), &[&["e", &last.id.to_hex()]]);
        answer = fixture.publish(&last).await;
        if !answer.0 {
            break;
        }
    }
    assert_eq!(accepted, 12, "one root");
    assert!(answer.1.starts_with("rate-limited: "), "{answer:?}");
    let bob = Author::new();
    let (accepted, message) = fixture
        .publish(&bob.issue(&fixture.alice.repo("y"), "elsewhere"))
        .await;
    assert!(accepted, "{message}");
    // The maintainer is not limited.
    let next = fixture.work.commit("next").await;
    let state = fixture.alice.later(1).state("x", &[(MAIN, &next)]);
    assert!(fixture.publish(&state).await.0);
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_ok();
}

#[tokio::test]
async fn a_full_purgatory_does_not_block_the_maintainer_of_a_served_repository() {
    let mut settings = Settings::default();
    settings.purgatory.per_repo.count = 3;
    settings.purgatory.total = Bound {
        count: 8,
        bytes: 1 << 20,
    };
    let fixture = Fixture::with_settings(settings).await;
    let us = fixture.instance.service();
    let mut held = 0;
    for n in 0..20 {
        let name = if n < 6 {
            String::from("x")
        } else {
            n.to_string()
        };
        held += usize::from(fixture.publish(&Author::new().announce(&name, &us)).await.0);
    }
    assert_eq!(held, 8, "the maximum in total");
    let next = fixture.work.commit("next").await;
    let (accepted, message) = fixture
        .publish(&fixture.alice.later(1).state("x", &[(MAIN, &next)]))
        .await;
    assert!(accepted, "{message}");
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_ok();
}

#[tokio::test]
async fn a_deletion_of_thousands_of_unknown_names_costs_few_queries() {
    let fault = Fault::default();
    let fixture = Fixture::with_settings(Settings {
        store: Some(fault.store_wrapper()),
        ..Settings::default()
    })
    .await;
    let own = |n: usize| format!("30617:{}:name-{n}", fixture.eve.key());
    let coordinates: Vec<String> = (0..2_000).map(own).collect();
    let tags: Vec<[&str; 2]> = coordinates.iter().map(|c| ["a", c.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    let before = fault.queries();
    assert!(fixture.publish(&fixture.eve.sign(5, "", &tags)).await.0);
    for name in ["name-0", "name-1999", "x"] {
        fixture.instance.settle(name).await;
    }
    let queries = fault.queries() - before;
    assert!(queries < 100, "{queries} queries for one event");
}

#[tokio::test]
async fn many_repositories_of_one_name_do_not_block_a_push() {
    let fixture = Fixture::new().await;
    let us = fixture.instance.service();
    // Other owners host repositories of the same name without any git data: an empty state is complete.
    let mut events = Vec::new();
    for _ in 0..20 {
        let owner = Author::new();
        events.extend([owner.announce("x", &us), owner.state("x", &[])]);
    }
    fixture.instance.ingest(events).await;
    fixture.instance.settle("x").await;
    let next = fixture.work.commit("next").await;
    let state = fixture.alice.later(1).state("x", &[(MAIN, &next)]);
    assert!(fixture.publish(&state).await.0);
    fixture
        .work
        .git(&["push", &fixture.url(), "main"])
        .await
        .expect_ok();
    assert!(fixture.instance.serves(&state).await);
}
