//! Markup in foreign texts, and secrets, must not appear in public responses.

use grasp_tests::{Author, Instance};

use super::{Fixture, MAIN};

const MARKUP: &str = "\"'><img src=x onerror=alert(1)><script>alert(2)<\\/script>";

#[tokio::test]
async fn text_of_events_is_escaped_on_every_page_and_is_no_metric_label() {
    let fixture = Fixture::new().await;
    let mallory = Author::new();
    let identifier = MARKUP.replace("<\\/script>", "");
    let work = fixture.instance.host(&mallory, &identifier).await;
    let us = fixture.instance.service();
    let more: [&[&str]; 3] = [
        &["name", MARKUP],
        &["description", MARKUP],
        &["web", "javascript:alert(1)"],
    ];
    let announced = mallory.later(1).announce_with(&identifier, &us, &more);
    assert!(fixture.publish(&announced).await.0);
    let branch = "refs/heads/<script>alert(3)";
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    fixture
        .publish(
            &mallory
                .later(1)
                .state(&identifier, &[(MAIN, &tip), (branch, &tip)]),
        )
        .await;
    fixture.instance.settle(&identifier).await;
    let own = fixture.instance.path(&mallory.repo(&identifier));
    for path in [
        "/",
        "/status",
        "/metrics",
        "/status.json",
        &own,
        "/<script>alert(4)",
        "/%3Cscript%3E",
    ] {
        let answer = fixture.instance.get(path, &[]).await;
        let is_page = answer.header("content-type").contains("html");
        let body = answer.body.to_lowercase();
        if is_page {
            assert!(
                !body.contains("<img") && !body.contains("<script>alert"),
                "{path}: {body}"
            );
            assert!(!body.contains("javascript:"), "{path}: {body}");
        } else if path == "/metrics" {
            assert!(!body.contains("alert("), "{path}: {body}");
        }
    }
}

#[tokio::test]
async fn the_service_key_is_only_in_its_file() {
    let fixture = Fixture::on(Instance::single_process().await).await;
    let key = std::fs::read_to_string(fixture.instance.dir().join("service.key")).unwrap();
    let key = key.trim().to_owned();
    assert_eq!(key.len(), 64);
    let document = [("Accept", "application/nostr+json")];
    for (path, headers) in [
        ("/", &document[..]),
        ("/", &[]),
        ("/status", &[]),
        ("/status.json", &[]),
        ("/metrics", &[]),
        ("/health", &[]),
        ("/service.key", &[]),
        ("/../service.key", &[]),
        ("/%2e%2e/service.key", &[]),
        ("/admin.sock", &[]),
        ("/events.db", &[]),
    ] {
        let answer = fixture.instance.get(path, headers).await;
        assert!(!answer.body.contains(&key), "{path}");
    }
    let document: serde_json::Value =
        serde_json::from_str(&fixture.instance.get("/", &document).await.body).unwrap();
    assert_ne!(document["self"], serde_json::Value::from(key.clone()));
    for file in grasp_tests::files(fixture.instance.dir()) {
        let is_key = file.file_name().is_some_and(|name| name == "service.key");
        let bytes = std::fs::read(&file).unwrap_or_default();
        let found = bytes.windows(key.len()).any(|part| part == key.as_bytes());
        assert_eq!(found, is_key, "{}", file.display());
    }
}
