use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::management::rules::Method;
use axum::body::Body;
use axum::extract::Request as HttpRequest;
use axum::http::StatusCode;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bitcoin_hashes::sha256;
use futures_util::FutureExt as _;
use grasp_core::resources::ClientNetwork;
use grasp_core::{Mono, Now};
use nostr::event::{Event, EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::Keys;
use nostr::types::Timestamp;
use serde_json::json;

use super::*;
use crate::nostr::RelayInfo;
use crate::store::sqlite::{SqliteOptions, SqliteStore};

const URL: &str = "https://git.example/m";

/// A server without git data, which may be a reader.
#[derive(Default)]
struct Nothing {
    is_reader: AtomicBool,
}

fn said(value: Value) -> BoxFuture<'static, Result<Value, String>> {
    async move { Ok(value) }.boxed()
}

impl ManagedServer for Nothing {
    fn may_change(&self) -> Result<(), String> {
        match self.is_reader.load(Ordering::Relaxed) {
            true => Err("this node is a reader; ask node-b".to_owned()),
            false => Ok(()),
        }
    }

    fn status(&self) -> BoxFuture<'_, Result<Value, String>> {
        said(json!({"ready": true}))
    }

    fn repositories(&self, query: RepoQuery) -> BoxFuture<'_, Result<Value, String>> {
        said(json!({"repos": [], "owner": query.owner}))
    }

    fn usage(&self, owner: Option<PublicKey>) -> BoxFuture<'_, Result<Value, String>> {
        said(json!({"rows": [], "owner": owner}))
    }

    fn set_quota(
        &self,
        subject: QuotaSubject,
        bytes: Option<u64>,
    ) -> BoxFuture<'_, Result<Value, String>> {
        said(json!({"subject": subject, "quota": bytes}))
    }

    fn repair(&self, _: RepoId) -> BoxFuture<'_, Result<Value, String>> {
        said(json!(false))
    }

    fn footprint(&self, _: ChangeTarget) -> BoxFuture<'_, Result<Footprint, String>> {
        async {
            Ok(Footprint {
                repositories: 3,
                ..Footprint::default()
            })
        }
        .boxed()
    }
}

/// The administration of a server at a time that the test sets.
struct Trial {
    management: Management,
    operator: Keys,
    now: Arc<Mutex<Now>>,
    service: Keys,
    server: Arc<Nothing>,
    _dir: tempfile::TempDir,
}

/// A request before it is sent.
struct Draft {
    event: Event,
    body: Vec<u8>,
    content_type: &'static str,
    from: [u8; 4],
}

impl Trial {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(&dir.path().join("x.db"), SqliteOptions::default()).unwrap();
        let start = Now {
            mono: Mono::from_secs(1_000),
            unix: Timestamp::now(),
        };
        let (operator, now) = (Keys::generate(), Arc::new(Mutex::new(start)));
        let clock = Arc::clone(&now);
        let service: ServiceIdentity = "git.example/m".parse().unwrap();
        let mut policy = grasp_core::admission::Policy::new(service.clone());
        policy.bans.names.insert("fixed".parse().unwrap());
        let service_keys = Keys::generate();
        let server = Arc::new(Nothing::default());
        let facts = RightsFacts {
            operator: Some(operator.public_key()),
            fixed: [(RelayText::Icon, "grasp.toml, line 3".to_owned())].into(),
            ..RightsFacts::of_service(service_keys.public_key())
        };
        let parts = ManagementParts {
            service,
            facts,
            store: Arc::new(store),
            policy: Arc::new(PolicyOwner::new(policy)),
            info: Arc::new(InfoOwner::new(RelayInfo::default())),
            server: Arc::clone(&server) as Arc<dyn ManagedServer>,
            node_key: None,
            clock: Clock::new(move || *clock.lock().unwrap()),
        };
        Self {
            management: Management::new(parts).unwrap(),
            operator,
            now,
            service: service_keys,
            server,
            _dir: dir,
        }
    }

    fn pass(&self, seconds: u64) {
        let mut now = self.now.lock().unwrap();
        now.mono = now.mono + Duration::from_secs(seconds);
        now.unix = now.unix + Duration::from_secs(seconds);
    }

    fn unix(&self) -> Timestamp {
        self.now.lock().unwrap().unix
    }

    /// Returns a call of a key with the tags of its authorization changed.
    fn draft(&self, by: &Keys, method: &str, params: Value, adjust: impl Fn(&mut Auth)) -> Draft {
        let body = json!({"method": method, "params": params})
            .to_string()
            .into_bytes();
        let mut auth = Auth {
            kind: 27_235,
            at: self.unix(),
            url: URL.to_owned(),
            method: "POST",
            payload: Some(sha256::Hash::hash(&body).to_string()),
        };
        adjust(&mut auth);
        Draft {
            event: auth.sign(by),
            body,
            content_type: "application/nostr+json+rpc; charset=utf-8",
            from: [192, 0, 2, 1],
        }
    }

    async fn send(&self, draft: &Draft) -> (StatusCode, Value) {
        let authorization = format!("Nostr {}", STANDARD.encode(draft.event.as_json()));
        self.send_as(draft, Some(&authorization)).await
    }

    async fn send_as(&self, draft: &Draft, authorization: Option<&str>) -> (StatusCode, Value) {
        let mut request = HttpRequest::post("/m/").header(CONTENT_TYPE, draft.content_type);
        if let Some(authorization) = authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let mut request = request.body(Body::from(draft.body.clone())).unwrap();
        let network = ClientNetwork::of(draft.from.into());
        request.extensions_mut().insert(network);
        let response = self.management.answer(request).await;
        assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await;
        (status, serde_json::from_slice(&body.unwrap()).unwrap())
    }

    async fn call(&self, by: &Keys, method: &str, params: Value) -> (StatusCode, Value) {
        self.send(&self.draft(by, method, params, |_| ())).await
    }

    async fn result(&self, by: &Keys, method: &str, params: Value) -> Value {
        let (status, answer) = self.call(by, method, params).await;
        assert_eq!(status, StatusCode::OK, "{method}: {answer}");
        assert!(answer.get("error").is_none(), "{method}: {answer}");
        answer["result"].clone()
    }

    async fn error(&self, by: &Keys, method: &str, params: Value) -> String {
        let (_, answer) = self.call(by, method, params).await;
        assert_eq!(answer["result"], Value::Null);
        answer["error"].as_str().unwrap().to_owned()
    }

    /// Returns actor, method and error of the rows of the log, newest first.
    async fn audit(&self) -> Vec<(String, String, bool)> {
        let rows = self
            .result(&self.operator, "grasp.listaudit", json!([]))
            .await;
        let rows = rows.as_array().unwrap().iter().map(|row| {
            let text = |name: &str| row[name].as_str().unwrap().to_owned();
            (text("actor"), text("method"), row.get("error").is_some())
        });
        rows.collect()
    }

    /// Stores an event of a key, and returns its id.
    async fn stored(&self, by: &Keys, kind: u16) -> String {
        let tags = [Tag::parse(["d", "x"]).unwrap()];
        let event = EventBuilder::new(Kind::from_u16(kind), "").tags(tags);
        let event = event.custom_created_at(self.unix()).finalize(by).unwrap();
        let id = event.id.to_hex();
        let store = &self.management.0.parts.store;
        let saved = store.save(vec![Arc::new(event)], self.unix()).await;
        assert_eq!(saved.unwrap(), [grasp_core::admission::Outcome::Stored]);
        id
    }

    async fn with_role(&self, role: &str) -> Keys {
        let keys = Keys::generate();
        let params = json!([keys.public_key().to_hex(), role]);
        self.result(&self.operator, "assignrole", params).await;
        keys
    }
}

/// What an authorization says.
struct Auth {
    kind: u16,
    at: Timestamp,
    url: String,
    method: &'static str,
    payload: Option<String>,
}

impl Auth {
    fn sign(&self, by: &Keys) -> Event {
        let mut tags = vec![
            Tag::parse(["u", &self.url]).unwrap(),
            Tag::parse(["method", self.method]).unwrap(),
        ];
        if let Some(payload) = &self.payload {
            tags.push(Tag::parse(["payload", payload]).unwrap());
        }
        let event = EventBuilder::new(Kind::from_u16(self.kind), "").tags(tags);
        event.custom_created_at(self.at).finalize(by).unwrap()
    }
}

fn somebody() -> String {
    Keys::generate().public_key().to_hex()
}

#[tokio::test]
async fn a_wrong_authorization_is_refused_and_changes_nothing() {
    let trial = Trial::new().await;
    let by = trial.operator.clone();
    let params = json!([somebody()]);
    type Adjust = fn(&mut Auth);
    let wrong: [(&str, Adjust); 9] = [
        ("kind", |auth| auth.kind = 1),
        ("too old", |auth| {
            auth.at = auth.at - Duration::from_secs(61)
        }),
        ("too far ahead", |auth| {
            auth.at = auth.at + Duration::from_secs(31)
        }),
        ("another server", |auth| {
            auth.url = "https://other.example/m".into()
        }),
        ("a path below", |auth| {
            auth.url = format!("{URL}/npub1x/a.git")
        }),
        ("a query", |auth| auth.url = format!("{URL}?x")),
        ("method", |auth| auth.method = "GET"),
        ("no payload", |auth| auth.payload = None),
        ("another payload", |auth| {
            auth.payload = Some("00".repeat(32))
        }),
    ];
    for (what, adjust) in wrong {
        let draft = trial.draft(&by, "banpubkey", params.clone(), adjust);
        assert_eq!(
            trial.send(&draft).await.0,
            StatusCode::UNAUTHORIZED,
            "{what}"
        );
    }
    // What a member of a private service shows to read git.
    let of_member = trial.draft(&by, "banpubkey", params.clone(), |auth| {
        auth.method = "GET";
        auth.url = format!("{URL}/npub1x/a.git");
        auth.payload = None;
    });
    assert_eq!(trial.send(&of_member).await.0, StatusCode::UNAUTHORIZED);
    let mut forged = trial.draft(&by, "banpubkey", params.clone(), |_| ());
    forged.event.pubkey = Keys::generate().public_key();
    assert_eq!(trial.send(&forged).await.0, StatusCode::UNAUTHORIZED);
    let none = trial.draft(&by, "banpubkey", params, |_| ());
    for authorization in [
        None,
        Some("Nostr"),
        Some("Basic YTpi"),
        Some("Bearer x.1.y"),
    ] {
        let (status, _) = trial.send_as(&none, authorization).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{authorization:?}");
    }
    assert!(trial.audit().await.is_empty());
}

#[tokio::test]
async fn addresses_are_compared_by_their_parts() {
    let trial = Trial::new().await;
    for url in [
        "https://git.example/m/",
        "wss://GIT.example/m",
        "http://git.example/m",
    ] {
        let draft = trial.draft(&trial.operator, "grasp.whoami", json!([]), |auth| {
            auth.url = url.to_owned();
        });
        let (status, answer) = trial.send(&draft).await;
        assert_eq!(status, StatusCode::OK, "{url}: {answer}");
        assert_eq!(answer["result"]["roles"], json!(["operator"]));
    }
}

#[tokio::test]
async fn a_repeated_change_is_refused_and_made_once() {
    let trial = Trial::new().await;
    let ban = trial.draft(
        &trial.operator,
        "banpubkey",
        json!([somebody(), "spam"]),
        |_| (),
    );
    assert_eq!(trial.send(&ban).await.0, StatusCode::OK);
    let (status, answer) = trial.send(&ban).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(
        answer["error"].as_str().unwrap().contains("used before"),
        "{answer}"
    );
    assert_eq!(trial.audit().await.len(), 1);
}

#[tokio::test]
async fn a_change_is_in_force_when_it_is_answered_and_logged() {
    let trial = Trial::new().await;
    let (target, operator) = (Keys::generate().public_key(), &trial.operator);
    let live = trial.management.0.parts.policy.live();
    let ban = json!([target.to_hex(), "spam"]);
    assert_eq!(trial.result(operator, "banpubkey", ban).await, json!(true));
    assert!(live.now().bans.authors.contains(&target));
    let listed = trial.result(operator, "listbannedpubkeys", json!([])).await;
    assert_eq!(listed[0]["pubkey"], target.to_hex());
    assert_eq!(listed[0]["reason"], "spam");
    assert_eq!(listed[0]["by"], operator.public_key().to_hex());
    trial
        .result(operator, "unbanpubkey", json!([target.to_hex()]))
        .await;
    assert!(live.now().bans.authors.is_empty());
    let actor = operator.public_key().to_hex();
    let row = |method: &str| (actor.clone(), method.to_owned(), false);
    assert_eq!(trial.audit().await, [row("unbanpubkey"), row("banpubkey")]);
}

#[tokio::test]
async fn refused_calls_of_keys_with_rights_are_logged_and_of_others_are_not() {
    let trial = Trial::new().await;
    let (moderator, stranger) = (trial.with_role("moderator").await, Keys::generate());
    let operator = trial.operator.public_key().to_hex();
    let mut answers = Vec::new();
    for target in [operator.clone(), somebody()] {
        answers.push(trial.call(&stranger, "banpubkey", json!([target])).await);
    }
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].0, StatusCode::FORBIDDEN);
    let (status, answer) = trial.call(&moderator, "banpubkey", json!([operator])).await;
    assert_eq!(status, StatusCode::OK);
    assert!(
        answer["error"].as_str().unwrap().contains("the operator"),
        "{answer}"
    );
    let (status, _) = trial
        .call(&moderator, "blockip", json!(["198.51.100.1"]))
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    let rows = trial.audit().await;
    let by = moderator.public_key().to_hex();
    let expected = [
        (by.clone(), "blockip".to_owned(), true),
        (by, "banpubkey".to_owned(), true),
        (operator, "assignrole".to_owned(), false),
    ];
    assert_eq!(rows, expected);
}

#[tokio::test]
async fn a_role_gives_rights_until_it_is_taken() {
    let trial = Trial::new().await;
    let moderator = trial.with_role("moderator").await;
    trial
        .result(&moderator, "grasp.banrepo", json!(["spam"]))
        .await;
    let listed = trial.result(&moderator, "grasp.listroles", json!([])).await;
    let row = listed
        .as_array()
        .unwrap()
        .iter()
        .find(|row| row["id"] == "moderator");
    let member = moderator.public_key().to_hex();
    assert_eq!(row.unwrap()["members"], json!([member]));
    let take = json!([member, "moderator"]);
    trial.result(&trial.operator, "unassignrole", take).await;
    let (status, _) = trial
        .call(&moderator, "grasp.banrepo", json!(["spam"]))
        .await;
    assert_eq!(status, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn labels_are_created_before_they_are_given() {
    let trial = Trial::new().await;
    let operator = &trial.operator;
    let give = json!([somebody(), "friend"]);
    let error = trial.error(operator, "assignrole", give.clone()).await;
    assert!(error.contains("no such role"), "{error}");
    let role = json!(["friend", "Friend", "of us", "#00f", 2]);
    assert!(
        trial
            .error(operator, "editrole", role.clone())
            .await
            .contains("no such role")
    );
    trial.result(operator, "createrole", role.clone()).await;
    assert!(
        trial
            .error(operator, "createrole", role)
            .await
            .contains("there is such a role")
    );
    trial.result(operator, "assignrole", give).await;
    trial
        .result(operator, "deleterole", json!(["friend"]))
        .await;
    let listed = trial.result(operator, "grasp.listroles", json!([])).await;
    assert_eq!(listed.as_array().unwrap().len(), 3);
}

#[tokio::test]
async fn a_session_reads_for_a_quarter_of_an_hour_and_changes_nothing() {
    let trial = Trial::new().await;
    let operator = &trial.operator;
    let session = trial.result(operator, "grasp.session", json!([])).await;
    let bearer = format!("Bearer {}", session["token"].as_str().unwrap());
    let read = trial.draft(operator, "listbannedpubkeys", json!([]), |_| ());
    let (status, answer) = trial.send_as(&read, Some(&bearer)).await;
    assert_eq!((status, &answer["result"]), (StatusCode::OK, &json!([])));
    for method in ["banpubkey", "grasp.session"] {
        let params = match method {
            "banpubkey" => json!([somebody()]),
            _ => json!([]),
        };
        let change = trial.draft(operator, method, params, |_| ());
        let (status, _) = trial.send_as(&change, Some(&bearer)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{method}");
    }
    trial.pass(15 * 60);
    assert_eq!(
        trial.send_as(&read, Some(&bearer)).await.0,
        StatusCode::UNAUTHORIZED
    );
}

#[tokio::test]
async fn one_key_and_one_network_call_so_often() {
    let trial = Trial::new().await;
    let (stranger, operator) = (Keys::generate(), trial.operator.clone());
    for n in 0..60 {
        let (status, _) = trial.call(&stranger, "grasp.whoami", json!([])).await;
        assert_eq!(status, StatusCode::OK, "{n}");
    }
    let (status, _) = trial.call(&stranger, "grasp.whoami", json!([])).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    // Whoever repeats its calls elsewhere takes nothing from it.
    let mut elsewhere = trial.draft(&stranger, "grasp.whoami", json!([]), |_| ());
    elsewhere.from = [203, 0, 113, 1];
    assert_eq!(trial.send(&elsewhere).await.0, StatusCode::OK);
    trial.result(&operator, "grasp.whoami", json!([])).await;
    for n in 0..20 {
        let wrong = trial.draft(&operator, "grasp.whoami", json!([]), |auth| auth.kind = 1);
        assert_eq!(trial.send(&wrong).await.0, StatusCode::UNAUTHORIZED, "{n}");
    }
    let mut right = trial.draft(&operator, "grasp.whoami", json!([]), |_| ());
    assert_eq!(trial.send(&right).await.0, StatusCode::TOO_MANY_REQUESTS);
    right.from = [198, 51, 100, 1];
    assert_eq!(trial.send(&right).await.0, StatusCode::OK);
    trial.pass(60);
    trial.result(&operator, "grasp.whoami", json!([])).await;
}

#[tokio::test]
async fn what_is_no_call_is_refused_by_its_status() {
    let trial = Trial::new().await;
    let operator = &trial.operator;
    let mut draft = trial.draft(operator, "grasp.whoami", json!([]), |_| ());
    draft.content_type = "application/json";
    assert_eq!(
        trial.send(&draft).await.0,
        StatusCode::UNSUPPORTED_MEDIA_TYPE
    );
    let mut large = trial.draft(operator, "grasp.whoami", json!([]), |_| ());
    large.body = vec![b' '; 64 * 1024 + 1];
    assert_eq!(trial.send(&large).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    let hash = sha256::Hash::hash(b"no JSON").to_string();
    let mut text = trial.draft(operator, "grasp.whoami", json!([]), |auth| {
        auth.payload = Some(hash.clone());
    });
    text.body = b"no JSON".to_vec();
    assert_eq!(trial.send(&text).await.0, StatusCode::BAD_REQUEST);
    let error = trial
        .error(operator, "listmoderatedkittens", json!([]))
        .await;
    assert!(error.contains("supportedmethods"), "{error}");
    let error = trial.error(operator, "banpubkey", json!(["x"])).await;
    assert!(error.contains("public key"), "{error}");
}

#[tokio::test]
async fn supported_methods_are_those_that_the_caller_may_call() {
    let trial = Trial::new().await;
    let supported = async |by: &Keys| {
        let listed = trial.result(by, "supportedmethods", json!([])).await;
        listed.as_array().unwrap().len()
    };
    let count = |rank| {
        let callable = Method::ALL
            .iter()
            .filter(|method| method.info().rank <= rank);
        callable.count()
    };
    let (moderator, stranger) = (trial.with_role("moderator").await, Keys::generate());
    assert_eq!(supported(&stranger).await, count(Rank::Anyone));
    assert_eq!(supported(&moderator).await, count(Rank::Moderator));
    assert_eq!(supported(&trial.operator).await, Method::ALL.len());
}

#[tokio::test]
async fn any_key_reads_what_is_its_own() {
    let trial = Trial::new().await;
    let stranger = Keys::generate();
    let own = json!(stranger.public_key());
    for method in ["grasp.getusage", "grasp.listrepos"] {
        let read = trial.result(&stranger, method, json!([])).await;
        assert_eq!(read["owner"], own, "{method}");
    }
    let other = trial
        .call(&stranger, "grasp.getusage", json!([somebody()]))
        .await;
    assert_eq!(other.0, StatusCode::FORBIDDEN);
    let quota = json!([somebody(), 7]);
    let set = trial.result(&trial.operator, "grasp.setquota", quota).await;
    assert_eq!(set["quota"], 7);
}

#[tokio::test]
async fn texts_of_nip11_change_at_once_unless_a_setting_fixes_them() {
    let trial = Trial::new().await;
    let operator = &trial.operator;
    let live = trial.management.0.parts.info.live();
    let of_settings = live.now().name.clone();
    trial
        .result(operator, "changerelayname", json!(["another"]))
        .await;
    assert_eq!(live.now().name, "another");
    assert!(live.now().supported_nips.contains(&86));
    trial.result(operator, "changerelayname", json!([""])).await;
    assert_eq!(live.now().name, of_settings);
    let icon = json!(["https://example.com/a.png"]);
    let error = trial.error(operator, "changerelayicon", icon).await;
    assert!(error.contains("grasp.toml, line 3"), "{error}");
    assert_eq!(live.now().icon, None);
}

#[tokio::test]
async fn a_held_repository_is_restored_and_no_other() {
    let trial = Trial::new().await;
    let operator = &trial.operator;
    let repo = json!([format!("30617:{}:x", somebody()), "a copy"]);
    let error = trial
        .error(operator, "grasp.restorerepo", repo.clone())
        .await;
    assert!(error.contains("its author deleted"), "{error}");
    trial.result(operator, "grasp.holdrepo", repo.clone()).await;
    // The same call in the same second would be the same event.
    trial.pass(1);
    let held = trial.result(operator, "grasp.listheld", json!([])).await;
    assert_eq!(held[0]["repo"], repo[0]);
    assert_eq!(held[0]["reason"], "a copy");
    let kept = held[0]["until"].as_u64().unwrap() - held[0]["since"].as_u64().unwrap();
    assert_eq!(kept, 90 * 24 * 60 * 60);
    trial.result(operator, "grasp.restorerepo", repo).await;
    let held = trial.result(operator, "grasp.listheld", json!([])).await;
    assert_eq!(held, json!([]));
    let errors: Vec<bool> = trial.audit().await.iter().map(|row| row.2).collect();
    assert_eq!(errors, [false, false, true]);
}

#[tokio::test]
async fn a_preview_changes_nothing_and_is_not_logged() {
    let trial = Trial::new().await;
    let params = json!(["banpubkey", [somebody()]]);
    let preview = trial.result(&trial.operator, "grasp.preview", params).await;
    let text = preview["text"].as_str().unwrap();
    assert!(text.starts_with("3 repositories, "), "{text}");
    assert!(trial.audit().await.is_empty());
}

#[tokio::test]
async fn users_of_the_machine_call_as_the_operator_and_are_logged_by_number() {
    let trial = Trial::new().await;
    let request = |method: &str, params: Value| {
        Request::parse(
            json!({"method": method, "params": params})
                .to_string()
                .as_bytes(),
        )
        .unwrap()
    };
    let ban = request("banpubkey", json!([somebody()]));
    for _ in 0..2 {
        // It carries no authorization that could be repeated.
        assert_eq!(
            trial.management.call_locally(1_000, &ban).await,
            Ok(json!(true))
        );
    }
    let operator = json!([trial.operator.public_key().to_hex()]);
    let refused = trial
        .management
        .call_locally(1_000, &request("banpubkey", operator))
        .await;
    assert!(refused.unwrap_err().contains("the operator"));
    let actors: Vec<String> = trial.audit().await.into_iter().map(|row| row.0).collect();
    assert_eq!(actors, ["local:1000", "local:1000", "local:1000"]);
}

#[tokio::test]
async fn events_that_make_a_repository_are_not_banned() {
    let trial = Trial::new().await;
    let (operator, author) = (&trial.operator, Keys::generate());
    for kind in [30_617, 30_618] {
        let id = trial.stored(&author, kind).await;
        let error = trial.error(operator, "banevent", json!([id])).await;
        assert!(error.contains("grasp.banrepo"), "{kind}: {error}");
        let preview = json!(["banevent", [id]]);
        let error = trial.error(operator, "grasp.preview", preview).await;
        assert!(error.contains("grasp.banrepo"), "{kind}: {error}");
    }
    let note = trial.stored(&author, 1).await;
    trial.result(operator, "banevent", json!([note])).await;
    assert_eq!(
        trial
            .management
            .0
            .parts
            .policy
            .live()
            .now()
            .bans
            .events
            .len(),
        1
    );
}

#[tokio::test]
async fn an_event_that_another_ban_hides_is_not_banned() {
    let trial = Trial::new().await;
    let (operator, author) = (&trial.operator, Keys::generate());
    let id = trial.stored(&author, 30_617).await;
    let store = &trial.management.0.parts.store;
    let cause = grasp_core::policy::HiddenCause::Author(author.public_key());
    let until = trial.unix() + Duration::from_secs(60);
    assert!(
        store
            .hide(cause, until, trial.unix())
            .await
            .unwrap()
            .is_done
    );
    let error = trial.error(operator, "banevent", json!([id])).await;
    assert!(error.contains("hides this event already"), "{error}");
}

#[tokio::test]
async fn events_of_operator_server_and_higher_ranks_are_not_banned() {
    let trial = Trial::new().await;
    let (admin, moderator) = (
        trial.with_role("admin").await,
        trial.with_role("moderator").await,
    );
    for (author, expected) in [
        (&trial.operator, "the operator cannot be banned"),
        (&trial.service, "the server itself cannot be banned"),
        (&admin, "with fewer rights"),
    ] {
        let id = trial.stored(author, 1).await;
        let error = trial.error(&moderator, "banevent", json!([id])).await;
        assert!(error.contains(expected), "{error}");
    }
    let own = trial.stored(&moderator, 1).await;
    trial.result(&moderator, "banevent", json!([own])).await;
}

#[tokio::test]
async fn a_banned_key_has_no_role_until_the_ban_ends() {
    let trial = Trial::new().await;
    let moderator = trial.with_role("moderator").await;
    let key = json!([moderator.public_key().to_hex()]);
    trial
        .result(&trial.operator, "banpubkey", key.clone())
        .await;
    for (method, params) in [("unbanpubkey", key.clone()), ("grasp.listheld", json!([]))] {
        let (status, _) = trial.call(&moderator, method, params).await;
        assert_eq!(status, StatusCode::FORBIDDEN, "{method}");
    }
    trial.result(&trial.operator, "unbanpubkey", key).await;
    trial.pass(1);
    trial.result(&moderator, "grasp.listheld", json!([])).await;
}

#[tokio::test]
async fn a_repeated_request_opens_no_second_session() {
    let trial = Trial::new().await;
    let open = trial.draft(&trial.operator, "grasp.session", json!([]), |_| ());
    assert_eq!(trial.send(&open).await.0, StatusCode::OK);
    let (status, answer) = trial.send(&open).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    assert!(answer["error"].as_str().unwrap().contains("used before"));
    trial.pass(1);
    trial
        .result(&trial.operator, "grasp.session", json!([]))
        .await;
}

#[tokio::test]
async fn what_the_settings_ban_is_unbanned_there() {
    let trial = Trial::new().await;
    let operator = &trial.operator;
    let error = trial
        .error(operator, "grasp.unbanrepo", json!(["fixed"]))
        .await;
    assert_eq!(error, "it is set in the settings; change it there");
    trial
        .result(operator, "grasp.banrepo", json!(["spam"]))
        .await;
    trial
        .result(operator, "grasp.unbanrepo", json!(["spam"]))
        .await;
}

#[tokio::test]
async fn a_reader_says_which_node_makes_changes() {
    let trial = Trial::new().await;
    trial.server.is_reader.store(true, Ordering::Relaxed);
    let body = json!({"method": "banpubkey", "params": [somebody()]}).to_string();
    let ban = Request::parse(body.as_bytes()).unwrap();
    let answered = trial.management.call_locally(1_000, &ban).await;
    assert_eq!(
        answered,
        Err("this node is a reader; ask node-b".to_owned())
    );
    trial
        .result(&trial.operator, "listbannedpubkeys", json!([]))
        .await;
    assert!(trial.audit().await.is_empty());
}
