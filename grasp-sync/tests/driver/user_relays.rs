//! Events that are found at the relays that users name.

use grasp_core::RelayUrl;
use grasp_core::nostr::event::{Event, Kind};
use grasp_core::sync::ConnectionStatus;
use grasp_sync::driver::{Settings, Syncer};
use grasp_sync::outbox::OutboxConfig;
use serde_json::json;

use crate::events::Author;
use crate::local::Local;
use crate::scripted::{HonestRelay, Scripted};
use crate::trial::relay;

/// A repository of Alice with an issue of Bob, here and nowhere else.
struct Repository {
    local: Local,
    bob: Author,
    issue: Event,
}

impl Repository {
    fn new() -> Self {
        let (alice, bob) = (Author::new(), Author::new());
        let local = Local::new();
        let _ = local.publish(&alice.announcement("grasp", &[]));
        let issue = bob.issue(&alice.repo("grasp"), "it fails");
        let _ = local.publish(&issue);
        Self { local, bob, issue }
    }

    fn settings(index: &RelayUrl) -> Settings {
        let mut outbox = OutboxConfig::new("us.example".parse().unwrap());
        outbox.index_relays = vec![index.clone()];
        Local::settings(&[]).with_outbox(outbox)
    }

    async fn sync(&self, index: &Scripted) -> Syncer {
        let settings = Self::settings(&index.url());
        let local = std::sync::Arc::new(self.local.clone());
        Syncer::start(local, settings).await.unwrap()
    }
}

fn relay_list(author: &Author, relay: &RelayUrl, marker: &str) -> Event {
    author.sign(Kind::RelayList, "", &[&["r", relay.as_str(), marker]])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comment_that_only_the_relay_of_its_author_has_arrives() {
    let here = Repository::new();
    let comment = here.bob.comment(here.issue.id, "it fails for me, too");
    let home = HonestRelay::new([comment.clone()]).start().await;
    let list = relay_list(&here.bob, &home.url(), "write");
    let profile = here.bob.sign(Kind::Metadata, "{}", &[]);
    let index = HonestRelay::new([list.clone(), profile.clone()]);
    let index = index.start().await;
    let _syncer = here.sync(&index).await;
    here.local.until_has(&[&list, &profile, &comment]).await;
    let is_live = |messages: &[(usize, serde_json::Value)]| {
        messages.iter().any(|(_, message)| message[2]["limit"] == 0)
    };
    assert!(!is_live(&home.received().messages), "history only");
    assert!(!is_live(&index.received().messages));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_comment_arrives_live_from_where_the_author_of_the_issue_reads() {
    let here = Repository::new();
    let inbox = HonestRelay::new([]);
    let mut inbox_relay = inbox.start().await;
    let list = relay_list(&here.bob, &inbox_relay.url(), "read");
    let index = HonestRelay::new([list]).start().await;
    let _syncer = here.sync(&index).await;
    let root = here.issue.id.to_hex();
    let is_live = |message: &serde_json::Value| {
        message[0] == "REQ" && message[2]["limit"] == 0 && message.to_string().contains(&root)
    };
    inbox_relay
        .until(|received| {
            received
                .messages
                .iter()
                .any(|(_, message)| is_live(message))
        })
        .await;
    let comment = Author::new().comment(here.issue.id, "it fails for me, too");
    inbox.publish(comment.clone());
    here.local.until_has(&[&comment]).await;
    // Threads of this author are all that it is asked for.
    let asked = inbox_relay.received().messages;
    assert!(
        asked
            .iter()
            .all(|(_, message)| !message.to_string().contains("30617"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn only_events_that_were_asked_for_are_offered() {
    let here = Repository::new();
    let home = HonestRelay::new([]).start().await;
    let older = here.bob.sign_at(1_000.into(), Kind::RelayList, "", &[]);
    let list = relay_list(&here.bob, &home.url(), "write");
    let stranger = relay_list(&Author::new(), &home.url(), "write");
    let issue = here.bob.comment(here.issue.id, "nobody asked");
    let stored = vec![older.clone(), stranger.clone(), issue.clone(), list.clone()];
    let index = relay(None, stored, |message, stored, _| {
        let mut answers = Vec::new();
        if message[0] == "REQ" {
            answers.extend(
                stored
                    .iter()
                    .map(|event| json!(["EVENT", message[1], event])),
            );
            answers.push(json!(["EOSE", message[1]]));
        }
        answers
    })
    .await;
    let _syncer = here.sync(&index).await;
    here.local.until_has(&[&list]).await;
    let offered = here.local.offered.lock().unwrap().clone();
    for event in [&older, &stranger, &issue] {
        assert!(offered.iter().all(|(id, _)| *id != event.id));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_service_is_not_asked() {
    let here = Repository::new();
    let info = json!({"supported_grasps": ["GRASP-01", "GRASP-08"]});
    let mut index = relay(Some(info), Vec::new(), |_, _, _| Vec::new()).await;
    let _syncer = here.sync(&index).await;
    let received = index.until(|received| received.documents > 0).await;
    assert_eq!(received.connections, 0);
    assert!(index.received().messages.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_private_service_asks_nobody() {
    let here = Repository::new();
    let index = HonestRelay::new([]).start().await;
    let bootstrap = HonestRelay::new([]).start().await;
    let mut settings = Repository::settings(&index.url());
    settings.engine.is_private = true;
    settings.engine.bootstrap = vec![bootstrap.url()];
    let local = std::sync::Arc::new(here.local.clone());
    let syncer = Syncer::start(local, settings).await.unwrap();
    Local::until_status(&syncer, &bootstrap.url(), |status| {
        status.connection == ConnectionStatus::Connected
    })
    .await;
    assert_eq!(syncer.status().await.outbox, None);
    assert_eq!(index.received().documents + index.received().connections, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn fallback_relays_may_be_at_private_addresses() {
    let here = Repository::new();
    let comment = here.bob.comment(here.issue.id, "it fails for me, too");
    let index = HonestRelay::new([]).start().await;
    let fallback = HonestRelay::new([comment.clone()]).start().await;
    let mut settings = Repository::settings(&index.url());
    settings.outbound.allow_private = false;
    let outbox = settings.outbox.as_mut().unwrap();
    outbox.fallback_relays = vec![fallback.url()];
    let local = std::sync::Arc::new(here.local.clone());
    let _syncer = Syncer::start(local, settings).await.unwrap();
    here.local.until_has(&[&comment]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_with_private_addresses_lead_nowhere() {
    let here = Repository::new();
    let mut home = HonestRelay::new([]).start().await;
    let list = relay_list(&here.bob, &home.url(), "write");
    let mut index = HonestRelay::new([list.clone()]).start().await;
    let mut settings = Repository::settings(&index.url());
    settings.outbound.allow_private = false;
    let local = std::sync::Arc::new(here.local.clone());
    let syncer = Syncer::start(local, settings).await.unwrap();
    here.local.until_has(&[&list]).await;
    index.until(|received| received.count("CLOSE") > 0).await;
    let outbox = syncer.status().await.outbox.unwrap();
    assert_eq!((outbox.authors, outbox.relays), (2, 0));
    assert_eq!(home.until(|_| true).await.connections, 0);
}
