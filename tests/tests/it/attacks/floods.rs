//! Much of something, so that others get nothing.

use grasp_core::admission::Share;
use grasp_purgatory::Bound;
use grasp_tests::{Author, Fault, Instance, Settings};

use super::{MAIN, Scene};

#[tokio::test]
async fn one_author_and_one_root_bring_only_so_many_events() {
    let instance = Instance::with(|settings| {
        settings.fan_out.author = Share { count: 5, bytes: 1 << 20 };
        settings.fan_out.root = Share { count: 12, bytes: 1 << 20 };
    });
    let scene = Scene::on(instance.await).await;
    let other = scene.instance.host(&scene.alice, "y").await;
    drop(other);
    let mut accepted = 0;
    for n in 0..8 {
        accepted += usize::from(scene.send(&scene.eve.issue(&scene.repo, &n.to_string())).await.0);
    }
    assert_eq!(accepted, 5, "one author");
    // A chain of notes by ever new people, each naming only the one before.
    let mut last = Author::new().issue(&scene.repo, "a chain");
    let mut said = scene.send(&last).await;
    for n in 0..20 {
        accepted += usize::from(said.0);
        last = Author::new().sign(1, &n.to_string(), &[&["e", &last.id.to_hex()]]);
        said = scene.send(&last).await;
        if !said.0 {
            break;
        }
    }
    assert_eq!(accepted, 12, "one root");
    assert!(said.1.starts_with("rate-limited: "), "{said:?}");
    let bob = Author::new();
    let (accepted, said) = scene.send(&bob.issue(&scene.alice.repo("y"), "elsewhere")).await;
    assert!(accepted, "{said}");
    // Whoever keeps the repository is not kept from it.
    let next = scene.work.commit("next").await;
    let state = scene.alice.later(1).state("x", &[(MAIN, &next)]);
    assert!(scene.send(&state).await.0);
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_ok();
}

#[tokio::test]
async fn strangers_who_fill_purgatory_lock_nobody_out_of_a_served_repository() {
    let mut settings = Settings::default();
    settings.purgatory.per_identifier.count = 3;
    settings.purgatory.total = Bound { count: 8, bytes: 1 << 20 };
    let scene = Scene::set(settings).await;
    let us = scene.instance.service();
    let mut held = 0;
    for n in 0..20 {
        let name = if n < 6 { String::from("x") } else { n.to_string() };
        held += usize::from(scene.send(&Author::new().announce(&name, &us)).await.0);
    }
    assert_eq!(held, 8, "three of the name, and no more than there is room for");
    let next = scene.work.commit("next").await;
    let (accepted, said) = scene.send(&scene.alice.later(1).state("x", &[(MAIN, &next)])).await;
    assert!(accepted, "{said}");
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_ok();
}

#[tokio::test]
async fn a_deletion_of_thousands_of_names_that_are_not_here_costs_a_few_questions() {
    let fault = Fault::default();
    let scene =
        Scene::set(Settings { store: Some(fault.store_wrapper()), ..Settings::default() }).await;
    let own = |n: usize| format!("30617:{}:name-{n}", scene.eve.key());
    let coordinates: Vec<String> = (0..2_000).map(own).collect();
    let tags: Vec<[&str; 2]> = coordinates.iter().map(|c| ["a", c.as_str()]).collect();
    let tags: Vec<&[&str]> = tags.iter().map(|tag| &tag[..]).collect();
    let before = fault.queries();
    assert!(scene.send(&scene.eve.sign(5, "", &tags)).await.0);
    for name in ["name-0", "name-1999", "x"] {
        scene.instance.settle(name).await;
    }
    let asked = fault.queries() - before;
    assert!(asked < 100, "{asked} questions for one event");
}

#[tokio::test]
async fn many_of_one_name_slow_nobody_down_for_long() {
    let scene = Scene::new().await;
    let us = scene.instance.service();
    // Others host under the same name, without any git data: an empty state is complete.
    let mut events = Vec::new();
    for _ in 0..20 {
        let somebody = Author::new();
        events.extend([somebody.announce("x", &us), somebody.state("x", &[])]);
    }
    scene.instance.ingest(events).await;
    scene.instance.settle("x").await;
    let next = scene.work.commit("next").await;
    let state = scene.alice.later(1).state("x", &[(MAIN, &next)]);
    assert!(scene.send(&state).await.0);
    scene.work.git(&["push", &scene.url(), "main"]).await.expect_ok();
    assert!(scene.instance.serves(&state).await);
}
