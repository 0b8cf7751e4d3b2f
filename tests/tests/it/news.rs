//! What a server tells its own parts about the repositories it keeps.

use grasp_relay::keeper::News;
use grasp_tests::{Instance, Maker};

#[tokio::test]
async fn a_repository_is_news_when_it_waits_and_when_it_is_gone() {
    let instance = Instance::start().await;
    let alice = Maker::new();
    let keeper = instance.server().keeper();
    let mut news = keeper.news();
    let announcement = alice.announce("x", &instance.service());
    instance.take(vec![announcement.clone()]).await;
    assert_eq!(news.recv().await, Ok(News::Held(announcement.clone().into())));
    let held = keeper.ask(|purgatory| purgatory.held_announcements()).await.unwrap();
    assert_eq!(held, [announcement.into()]);

    let elsewhere = "elsewhere.example".parse().unwrap();
    instance.take(vec![alice.later(1).announce("x", &elsewhere)]).await;
    assert_eq!(news.recv().await, Ok(News::Gone(alice.repo("x"))));
    let held = keeper.ask(|purgatory| purgatory.held_announcements()).await.unwrap();
    assert!(held.is_empty());
}

#[tokio::test]
async fn a_served_repository_that_is_delisted_is_news() {
    let instance = Instance::start().await;
    let alice = Maker::new();
    instance.host(&alice, "x").await;
    let mut news = instance.server().keeper().news();

    let elsewhere = "elsewhere.example".parse().unwrap();
    instance.take(vec![alice.later(1).announce("x", &elsewhere)]).await;
    assert_eq!(news.recv().await, Ok(News::Gone(alice.repo("x"))));
}
