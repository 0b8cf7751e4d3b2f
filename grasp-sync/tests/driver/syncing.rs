//! Events of an honest relay arrive; events that a dishonest one adds do not.

use std::sync::Arc;
use std::time::Duration;

use grasp_core::admission::{Origin, SyncPath};
use grasp_core::limits::Health;
use grasp_core::sync::ConnectionStatus;
use grasp_sync::driver::{RecordFile, RelayStatus, Syncer};
use grasp_sync::engine::Fault;
use serde_json::json;

use crate::events::Author;
use crate::local::Local;
use crate::scripted::{HonestRelay, Scripted};

fn is_synced(status: &RelayStatus) -> bool {
    status.connection == ConnectionStatus::Connected && status.backlog == 0
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_of_announced_repositories_are_fetched() {
    let author = Author::new();
    let issue = author.issue(&author.repo("grasp"), "it does not work");
    let comment = author.comment(issue.id, "it does for me");
    let honest = HonestRelay::new([issue.clone(), comment.clone()]);
    let relay = honest.start().await;
    let announcement = author.announcement("grasp", &[&relay.url()]);
    let foreign = Author::new().sign(announcement.kind, "", &[&["d", "elsewhere"]]);
    honest.publish(announcement.clone());
    honest.publish(foreign.clone());

    let local = Local::new();
    let syncer = local.sync(&[relay.url()]).await;
    local.until_has(&[&announcement, &issue, &comment]).await;
    let is_done = |status: &RelayStatus| is_synced(status) && status.counts.stored() == 3;
    let status = Local::until_status(&syncer, &relay.url(), is_done).await;
    assert!(!local.has(&foreign));
    assert_eq!(status.gaps, 0);
    assert!(status.synced_at.is_some());
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn events_published_at_another_relay_arrive_live() {
    let author = Author::new();
    let honest = HonestRelay::new([]);
    let relay = honest.start().await;
    let local = Local::new();
    let announcement = author.announcement("grasp", &[&relay.url()]);
    let _ = local.publish(&announcement);
    let syncer = local.sync(&[]).await;
    local.until_has(&[&announcement]).await;
    let mut relay = relay;
    // Announcements, events that tag the repository and events that quote it are all subscribed to.
    relay.until(|received| received.count("REQ") >= 3).await;
    Local::until_status(&syncer, &relay.url(), is_synced).await;

    let issue = author.issue(&author.repo("grasp"), "live");
    honest.publish(issue.clone());
    local.until_has(&[&issue]).await;
    let offered = local.offered.lock().unwrap().clone();
    let origin = Origin::Sync {
        relay: relay.url(),
        path: SyncPath::Live,
    };
    assert!(offered.contains(&(issue.id, origin)), "{offered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_and_unrequested_events_are_not_ingested() {
    let author = Author::new();
    let good = author.announcement("good", &[]);
    let mut forged = author.announcement("forged", &[]);
    forged.content = "tampered with".into();
    let unrequested = author.issue(&author.repo("good"), "not requested");
    let sent = [forged.clone(), unrequested.clone(), good.clone()];
    let mut relay = Scripted::start(move |mut client| {
        let sent = sent.clone();
        async move {
            while let Some(message) = client.next().await {
                if message[0] != "REQ" {
                    client
                        .send(json!(["NEG-ERR", message[1], "blocked: no"]))
                        .await;
                    continue;
                }
                for event in &sent {
                    client.send(json!(["EVENT", message[1], event])).await;
                    client.send(json!(["EVENT", "unknown", event])).await;
                    client.send(json!(["EVENT", "g99999", event])).await;
                }
                client.send(json!(["EOSE", message[1]])).await;
            }
        }
    })
    .await;
    let local = Local::new();
    let syncer = local.sync(&[relay.url()]).await;
    local.until_has(&[&good]).await;
    relay.until(|received| received.count("REQ") >= 2).await;
    let is_done = |status: &RelayStatus| status.counts.forged >= 1 && status.counts.known >= 1;
    let status = Local::until_status(&syncer, &relay.url(), is_done).await;
    let offered = local.offered.lock().unwrap().clone();
    assert!(
        offered
            .iter()
            .all(|(id, _)| *id != forged.id && *id != unrequested.id),
        "{offered:?}"
    );
    assert_eq!(status.counts.stored(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_is_answered_once_and_refused_requests_are_repeated() {
    let author = Author::new();
    let announcement = author.announcement("members-only", &[]);
    let sent = announcement.clone();
    let document = json!({ "name": "challenges everybody" });
    let relay = Scripted::with_info(Some(document), move |mut client| {
        let sent = vec![sent.clone()];
        async move {
            client.send(json!(["AUTH", "first"])).await;
            let mut is_member = false;
            while let Some(message) = client.next().await {
                match message[0].as_str() {
                    Some("AUTH") => {
                        is_member = true;
                        client.send(json!(["OK", message[1]["id"], true, ""])).await;
                    }
                    Some("REQ") if is_member => client.answer(&message, &sent).await,
                    Some("REQ") => {
                        client
                            .send(json!(["CLOSED", message[1], "auth-required: who?"]))
                            .await;
                        client.send(json!(["AUTH", "again"])).await;
                    }
                    Some("NEG-OPEN") => {
                        client
                            .send(json!(["NEG-ERR", message[1], "blocked: no"]))
                            .await;
                    }
                    _ => {}
                }
            }
        }
    })
    .await;
    let local = Local::new();
    let mut settings = Local::settings(&[relay.url()]);
    settings.keys = Some(author.0.clone());
    let syncer = Syncer::start(Arc::new(local.clone()), settings)
        .await
        .unwrap();
    local.until_has(&[&announcement]).await;
    let received = relay.received();
    assert_eq!(received.count("AUTH"), 1);
    let (_, message) = received
        .messages
        .iter()
        .find(|(_, message)| message[0] == "AUTH")
        .unwrap();
    assert_eq!(message[1]["pubkey"], author.0.public_key().to_hex());
    let tags = message[1]["tags"].as_array().unwrap();
    assert!(
        tags.contains(&json!(["relay", relay.url().as_str()])),
        "{tags:?}"
    );
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn private_addresses_in_events_are_not_connected() {
    let relay = HonestRelay::new([]).start().await;
    let author = Author::new();
    let local = Local::new();
    let _ = local.publish(&author.announcement("trap", &[&relay.url()]));
    let mut settings = Local::settings(&[]);
    settings.outbound.allow_private = false;
    let syncer = Syncer::start(Arc::new(local), settings).await.unwrap();
    let has_failed = |status: &RelayStatus| status.health != Health::Healthy;
    Local::until_status(&syncer, &relay.url(), has_failed).await;
    assert_eq!(relay.received().connections, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_document_of_a_relay_is_read_before_its_websocket_is_opened() {
    let document = json!({ "supported_grasps": ["GRASP-01"] });
    for info in [None, Some(document)] {
        let mut relay = Scripted::with_info(info, |mut client| async move {
            while client.next().await.is_some() {}
        })
        .await;
        let syncer = Local::new().sync(&[relay.url()]).await;
        let received = relay.until(|received| received.connections == 1).await;
        assert_eq!(received.documents_before, [1]);
        syncer.stop().await;
    }
}

/// Returns how often the document of a relay was asked for before its first websocket.
async fn asked_before_the_websocket(answer: Option<(&'static str, String)>) -> usize {
    let local = Local::new();
    let mut relay = Scripted::answering(answer, |mut client| async move {
        while client.next().await.is_some() {}
    })
    .await;
    let mut settings = Local::settings(&[relay.url()]);
    settings.engine.backoff.first = Duration::from_millis(1);
    let syncer = Syncer::start(Arc::new(local), settings).await.unwrap();
    let received = relay.until(|received| received.connections > 0).await;
    syncer.stop().await;
    received.documents_before[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_document_cannot_be_read_is_connected_to_at_the_third_attempt() {
    for answer in [None, Some(("503 Service Unavailable", String::new()))] {
        assert_eq!(asked_before_the_websocket(answer).await, 3);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_answers_without_a_document_is_connected_to_at_once() {
    let no_document = [
        ("404 Not Found", String::new()),
        ("200 OK", "<html>".to_owned()),
    ];
    for answer in no_document {
        assert_eq!(asked_before_the_websocket(Some(answer)).await, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_websocket_to_a_private_service_is_opened() {
    let document = json!({ "supported_grasps": ["GRASP-01", "GRASP-08"] });
    let relay = Scripted::with_info(Some(document), |mut client| async move {
        while client.next().await.is_some() {}
    })
    .await;
    let syncer = Local::new().sync(&[relay.url()]).await;
    let has_failed = |status: &RelayStatus| status.failed.is_some();
    let status = Local::until_status(&syncer, &relay.url(), has_failed).await;
    assert_eq!(status.failed.map(|failed| failed.why), Some(Fault::Private));
    let received = relay.received();
    assert_eq!((received.documents, received.connections), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_too_long_ends_the_connection_and_nothing_else() {
    let author = Author::new();
    let announcement = author.announcement("fine", &[]);
    let honest = HonestRelay::new([announcement.clone()]);
    let good = honest.start().await;
    let mut bad = Scripted::start(|mut client| async move {
        client.next().await;
        client
            .send_text(format!("[\"NOTICE\",\"{}\"]", "x".repeat(3 * 1024 * 1024)))
            .await;
        while client.next().await.is_some() {}
    })
    .await;
    let local = Local::new();
    let syncer = local.sync(&[bad.url(), good.url()]).await;
    local.until_has(&[&announcement]).await;
    bad.until(|received| received.connections == 1).await;
    let is_lost = |status: &RelayStatus| status.health != Health::Healthy;
    Local::until_status(&syncer, &bad.url(), is_lost).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn proven_history_is_not_fetched_again_after_a_restart() {
    let author = Author::new();
    let announcement = author.announcement("grasp", &[]);
    let honest = HonestRelay::new([announcement.clone()]);
    let relay = honest.start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("relays.jsonl");
    let local = Local::new();
    for _ in 0..2 {
        let mut settings = Local::settings(&[relay.url()]);
        settings.records = Box::new(RecordFile::new(&file));
        let syncer = Syncer::start(Arc::new(local.clone()), settings)
            .await
            .unwrap();
        local.until_has(&[&announcement]).await;
        Local::until_status(&syncer, &relay.url(), is_synced).await;
        syncer.stop().await;
    }
    let received = relay.received();
    let of_second: Vec<_> = received
        .messages
        .iter()
        .filter(|(number, _)| *number == 1)
        .collect();
    assert!(
        of_second
            .iter()
            .all(|(_, message)| message[0] != "NEG-OPEN"),
        "{of_second:?}"
    );
    let mut pages = of_second
        .iter()
        .filter(|(_, message)| message[0] == "REQ" && message[2]["limit"] != 0);
    assert!(
        pages.all(|(_, message)| message[2]["since"].is_u64()),
        "{of_second:?}"
    );
}
