//! Administration by key (NIP-86) of whole servers: of one process, and of three nodes behind a proxy that takes turns.

use grasp_tests::{Author, Instance, SignedCall, Workdir, eventually_async};
use nostr::key::Keys;
use serde_json::{Value, json};

/// Makes a call, and returns the status and the answer.
async fn call(instance: &Instance, by: &Keys, method: &str, params: Value) -> (u16, Value) {
    let address = instance.address().to_string();
    SignedCall::new(by, &address, method, params)
        .send(&address)
        .await
}

async fn result(instance: &Instance, by: &Keys, method: &str, params: Value) -> Value {
    let (status, answer) = call(instance, by, method, params).await;
    assert_eq!(status, 200, "{method}: {answer}");
    assert!(answer.get("error").is_none(), "{method}: {answer}");
    answer["result"].clone()
}

async fn start(operator: &Keys) -> Instance {
    let key = operator.public_key();
    Instance::with(|settings| settings.policy.operator = Some(key)).await
}

async fn clones(instance: &Instance, author: &Author, name: &str) -> bool {
    let url = instance.clone_url(&author.repo(name));
    Workdir::empty().git(&["ls-remote", &url]).await.ok
}

#[tokio::test]
async fn a_banned_repository_is_not_available_and_comes_back_as_it_was() {
    let (operator, alice) = (Keys::generate(), Author::new());
    let instance = start(&operator).await;
    let _work = instance.host(&alice, "x").await;
    let before = instance.refs(&alice.repo("x")).await;
    let repo = json!([alice.repo("x").to_string(), "spam"]);
    let preview = json!(["grasp.banrepo", repo]);
    let preview = result(&instance, &operator, "grasp.preview", preview).await;
    let text = preview["text"].as_str().unwrap();
    assert!(text.starts_with("1 repository, "), "{text}");
    result(&instance, &operator, "grasp.banrepo", repo.clone()).await;
    eventually_async(async || (!clones(&instance, &alice, "x").await).then_some(())).await;
    let listed = result(
        &instance,
        &operator,
        "grasp.listrepos",
        json!([{"state": "held"}]),
    )
    .await;
    assert_eq!(listed["repos"][0]["repo"], repo[0]);
    result(&instance, &operator, "grasp.unbanrepo", repo).await;
    // Each request may be answered by another node, which follows within a second.
    let url = instance.clone_url(&alice.repo("x"));
    let after = eventually_async(async || {
        let listed = Workdir::empty().git(&["ls-remote", &url]).await;
        listed.ok.then_some(listed.out)
    });
    assert_eq!(after.await, before);
    eventually_async(async || clones(&instance, &alice, "x").await.then_some(())).await;
}

#[tokio::test]
async fn a_repeated_change_is_refused_at_every_node() {
    let (operator, mallory) = (Keys::generate(), Keys::generate());
    let instance = start(&operator).await;
    let address = instance.address().to_string();
    let params = json!([Keys::generate().public_key().to_hex()]);
    let ban = SignedCall::new(&operator, &address, "banpubkey", params.clone());
    assert_eq!(ban.send(&address).await.0, 200);
    for _ in 0..3 {
        let (status, answer) = ban.send(&address).await;
        assert_eq!(status, 401, "{answer}");
    }
    let (status, _) = call(&instance, &mallory, "unbanpubkey", params).await;
    assert_eq!(status, 403);
    let rows = result(&instance, &operator, "grasp.listaudit", json!([])).await;
    assert_eq!(rows.as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn roles_names_and_the_log_survive_a_restart() {
    let (operator, moderator) = (Keys::generate(), Keys::generate());
    let instance = start(&operator).await;
    let key = moderator.public_key().to_hex();
    result(
        &instance,
        &operator,
        "assignrole",
        json!([key, "moderator"]),
    )
    .await;
    result(
        &instance,
        &operator,
        "changerelayname",
        json!(["another name"]),
    )
    .await;
    let banned = Keys::generate().public_key().to_hex();
    result(&instance, &moderator, "banpubkey", json!([banned, "spam"])).await;
    let instance = instance.restart().await;
    let listed = result(&instance, &moderator, "listbannedpubkeys", json!([])).await;
    assert_eq!(
        (&listed[0]["pubkey"], &listed[0]["by"]),
        (&json!(banned), &json!(key))
    );
    let rows = result(&instance, &operator, "grasp.listaudit", json!([])).await;
    assert_eq!(rows.as_array().unwrap().len(), 3);
    let accept = [("Accept", "application/nostr+json")];
    let is_named = async || {
        let document = instance.get("/", &accept).await.body;
        let document: Value = serde_json::from_str(&document).unwrap();
        let has_nip = document["supported_nips"]
            .as_array()
            .unwrap()
            .contains(&json!(86));
        (document["name"] == "another name" && has_nip).then_some(())
    };
    eventually_async(is_named).await;
}

#[tokio::test]
async fn a_session_is_valid_at_every_node() {
    let operator = Keys::generate();
    let instance = start(&operator).await;
    let session = result(&instance, &operator, "grasp.session", json!([])).await;
    let address = instance.address().to_string();
    let read = SignedCall {
        authorization: format!("Bearer {}", session["token"].as_str().unwrap()),
        ..SignedCall::new(&operator, &address, "grasp.whoami", json!([]))
    };
    for _ in 0..3 {
        let (status, answer) = read.send(&address).await;
        assert_eq!(status, 200, "{answer}");
        assert_eq!(answer["result"]["roles"], json!(["operator"]));
    }
}
