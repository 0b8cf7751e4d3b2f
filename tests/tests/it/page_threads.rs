//! Pages of issues and pull requests, feeds, the search, and the servers that are in step.

use std::time::Duration;

use grasp_core::service::npub;
use grasp_core::{RepoId, kinds};
use grasp_relay::store::events;
use grasp_tests::{Author, Instance, Workdir, eventually_async};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;
use nostr::nips::nip01::Coordinate;
use nostr::nips::nip19::ToBech32 as _;

/// A server with a repository of Alice.
pub(crate) struct Hosted {
    pub(crate) server: Instance,
    pub(crate) alice: Author,
    pub(crate) repo: RepoId,
    pub(crate) work: Workdir,
}

impl Hosted {
    pub(crate) async fn start() -> Self {
        let server = Instance::start().await;
        let alice = Author::new();
        let work = server.host(&alice, "x").await;
        let repo = alice.repo("x");
        Self {
            server,
            alice,
            repo,
            work,
        }
    }

    pub(crate) async fn get(&self, page: &str) -> (u16, String) {
        let path = format!("{}/{page}", self.server.path(&self.repo));
        let response = self.server.get(&path, &[]).await;
        (response.status, response.body)
    }

    /// Publishes events that must be stored.
    pub(crate) async fn publish(&self, events: &[&Event]) {
        for event in events {
            self.server.ingest(vec![(*event).clone()]).await;
            assert!(self.server.serves(event).await, "{event:?}");
        }
    }

    pub(crate) fn issue(&self, by: &Author, subject: &str) -> Event {
        let address = self.repo.to_string();
        by.sign(1621, "the text", &[&["a", &address], &["subject", subject]])
    }
}

pub(crate) fn about(by: &Author, kind: u16, root: &EventId, more: &[&[&str]]) -> Event {
    let root = root.to_hex();
    let tag: &[&str] = &["e", &root, "", "root"];
    by.sign(kind, "a status", &[&[tag], more].concat())
}

fn comment(by: &Author, root: &EventId, text: &str) -> Event {
    let root = root.to_hex();
    let tags: [&[&str]; 4] = [&["E", &root], &["K", "1621"], &["e", &root], &["k", "1621"]];
    by.sign(1111, text, &tags)
}

#[tokio::test(flavor = "multi_thread")]
async fn issue_is_shown_with_comments_and_closed_by_those_who_decide() {
    let hosted = Hosted::start().await;
    let (alice, bob, eve) = (&hosted.alice, Author::new(), Author::new());
    let issue = hosted.issue(&bob, "It <b>breaks</b>");
    let reply = comment(&eve, &issue.id, "me too <script>");
    let closed = about(&eve, 1632, &issue.id, &[]);
    let labels: &[&[&str]] = &[&["L", "#t"], &["l", "urgent", "#t"]];
    let label = about(alice, 1985, &issue.id, labels);
    hosted.publish(&[&issue, &reply, &closed, &label]).await;
    let (status, list) = hosted.get("issues").await;
    assert_eq!(status, 200, "{list}");
    assert!(list.contains("It &lt;b&gt;breaks&lt;/b&gt;"), "{list}");
    assert!(list.contains("1 open") && list.contains("urgent"), "{list}");
    let page = format!("issues/{}", issue.id.to_hex());
    let (status, shown) = hosted.get(&page).await;
    assert_eq!(status, 200, "{shown}");
    assert!(shown.contains("me too &lt;script&gt;"), "{shown}");
    assert!(
        shown.contains("1 comment") && shown.contains("nostr:nevent1"),
        "{shown}"
    );
    assert!(shown.contains("○ open"), "a stranger closed it: {shown}");
    let closed = about(&alice.later(1), 1632, &issue.id, &[]);
    hosted.publish(&[&closed]).await;
    let (_, shown) = hosted.get(&page).await;
    assert!(shown.contains("✗ closed"), "{shown}");
    let (_, list) = hosted.get("issues").await;
    assert!(
        list.contains("0 open") && !list.contains("breaks"),
        "{list}"
    );
    let (_, list) = hosted.get("issues?state=closed&label=urgent").await;
    assert!(list.contains("breaks"), "{list}");
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn overview_counts_the_threads_of_the_lists_and_has_the_newest_names() {
    let hosted = Hosted::start().await;
    let (alice, bob) = (&hosted.alice, Author::new());
    let address = hosted.repo.to_string();
    let about: &[&str] = &["a", &address];
    let first = bob.sign(1617, "Subject: one\n", &[about, &["t", "root"]]);
    let id = first.id.to_hex();
    let reply: &[&str] = &["e", &id, "", "root"];
    let second = bob.later(1).sign(1617, "Subject: two\n", &[about, reply]);
    let issue = hosted.issue(&bob, "to be closed");
    let other = hosted.issue(&bob.later(1), "open");
    let closed = self::about(alice, 1632, &issue.id, &[]);
    hosted
        .publish(&[&first, &second, &issue, &other, &closed])
        .await;
    let path = hosted.server.path(&hosted.repo);
    let before = hosted.server.get(&path, &[]).await;
    for text in [
        ">1 open issue<",
        ", 1 closed<",
        ">1 open pull request or patch<",
    ] {
        assert!(before.body.contains(text), "{text}: {}", before.body);
    }
    let tag = before.header("etag");
    let given = [("If-None-Match", tag)];
    assert_eq!(hosted.server.get(&path, &given).await.status, 304);
    let name = alice
        .later(2)
        .sign(0, r#"{"name":"Alice of the hill"}"#, &[]);
    hosted.publish(&[&name]).await;
    let after = hosted.server.get(&path, &given).await;
    assert_eq!(after.status, 200);
    assert!(after.body.contains("Alice of the hill"), "{}", after.body);
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn held_deleted_and_foreign_events_are_on_no_page() {
    let hosted = Hosted::start().await;
    let (alice, bob) = (&hosted.alice, Author::new());
    let _other = hosted.server.host(alice, "y").await;
    let foreign = bob.issue(&alice.repo("y"), "of the other repository");
    let issue = hosted.issue(&bob, "to be deleted");
    hosted.publish(&[&foreign, &issue]).await;
    let held = bob.pull_request(&hosted.repo, &"ab".repeat(20));
    hosted.server.ingest(vec![held.clone()]).await;
    assert!(!hosted.server.serves(&held).await);
    let (_, overview) = hosted.get("").await;
    let counts = ["1 open issue<", "0 open pull requests and patches<"];
    assert!(
        counts.iter().all(|count| overview.contains(count)),
        "{overview}"
    );
    // The page of a held event is nowhere, as if the event were unknown.
    let lead = hosted
        .server
        .get(&format!("/e/{}", held.id.to_hex()), &[])
        .await;
    assert!(lead.header("location").starts_with("https://"), "{lead:?}");
    for (list, event) in [("pulls", &held), ("issues", &foreign)] {
        let (status, page) = hosted.get(&format!("{list}/{}", event.id.to_hex())).await;
        assert_eq!(status, 404, "{page}");
        for page in [list.to_owned(), format!("feed/{list}.atom")] {
            let (status, page) = hosted.get(&page).await;
            assert_eq!(status, 200, "{page}");
            assert!(
                !page.contains("please pull") && !page.contains("other repository"),
                "{page}"
            );
        }
    }
    let path = format!("{}/issues", hosted.server.path(&hosted.repo));
    let before = hosted.server.get(&path, &[]).await;
    assert!(before.body.contains("to be deleted"), "{}", before.body);
    let tag = before.header("etag").to_owned();
    let unchanged = hosted.server.get(&path, &[("If-None-Match", &tag)]).await;
    assert_eq!(unchanged.status, 304);
    let id = issue.id.to_hex();
    let deletion = bob.later(1).sign(5, "", &[&["e", &id], &["k", "1621"]]);
    hosted.server.ingest(vec![deletion]).await;
    let after = hosted.server.get(&path, &[("If-None-Match", &tag)]).await;
    assert_eq!(after.status, 200);
    assert!(!after.body.contains("to be deleted"), "{}", after.body);
    let (status, _) = hosted.get(&format!("issues/{id}")).await;
    assert_eq!(status, 404);
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pull_request_names_its_commit_and_how_to_fetch_it() {
    let hosted = Hosted::start().await;
    let bob = Author::new();
    let tip = hosted.work.commit("proposal").await;
    let pull = bob.pull_request(&hosted.repo, &tip);
    hosted.server.ingest(vec![pull.clone()]).await;
    let name = pull.id.to_hex();
    let target = format!("{tip}:refs/nostr/{name}");
    let url = hosted.server.clone_url(&hosted.repo);
    hosted.work.git(&["push", &url, &target]).await.expect_ok();
    hosted.server.until_serves(&pull).await;
    let (status, page) = hosted.get(&format!("pulls/{name}")).await;
    assert_eq!(status, 200, "{page}");
    assert!(page.contains(&format!("{url} refs/nostr/{name}")), "{page}");
    let work = Workdir::init().await;
    work.git(&["fetch", &url, &format!("refs/nostr/{name}")])
        .await
        .expect_ok();
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn address_of_an_event_leads_to_its_page_or_to_a_client() {
    let hosted = Hosted::start().await;
    let bob = Author::new();
    let issue = hosted.issue(&bob, "first");
    let reply = comment(&bob, &issue.id, "second");
    hosted.publish(&[&issue, &reply]).await;
    let lead = async |name: &str| {
        let response = hosted.server.get(&format!("/e/{name}"), &[]).await;
        (response.status, response.header("location").to_owned())
    };
    let (status, place) = lead(&issue.id.to_hex()).await;
    assert_eq!(status, 302);
    assert!(place.starts_with(&format!(
        "{}/issues/nevent1",
        hosted.server.path(&hosted.repo)
    )));
    assert_eq!(hosted.server.get(&place, &[]).await.status, 200);
    let (_, comment_place) = lead(&reply.id.to_hex()).await;
    let anchor = format!("{place}#e-{}", &reply.id.to_hex()[..16]);
    assert_eq!(comment_place, anchor);
    let (_, elsewhere) = lead(&"ab".repeat(32)).await;
    assert!(
        elsewhere.starts_with("https://gitworkshop.dev/nevent1"),
        "{elsewhere}"
    );
    let path = hosted.server.path(&hosted.repo);
    let repository = |author: &Author, name: &str, kind| {
        let coordinate = Coordinate::new(kind, author.key()).identifier(name);
        coordinate.to_bech32().unwrap()
    };
    for kind in [kinds::ANNOUNCEMENT, kinds::STATE] {
        let (status, place) = lead(&repository(&hosted.alice, "x", kind)).await;
        assert_eq!((status, &place), (302, &path));
        let filter = Filter::new().kind(kind).author(hosted.alice.key());
        let parts = hosted.server.server().parts();
        let events = events(&*parts.store, filter, parts.clock.now().unix).await;
        let id = events.unwrap()[0].id.to_hex();
        assert_eq!(lead(&id).await.1, path);
    }
    // Held: announced, and never pushed to.
    let held = bob.announce("held", &hosted.server.service());
    hosted.server.ingest(vec![held.clone()]).await;
    for name in [
        repository(&bob, "held", kinds::ANNOUNCEMENT),
        held.id.to_hex(),
    ] {
        let (_, place) = lead(&name).await;
        assert!(place.starts_with("https://gitworkshop.dev/n"), "{place}");
    }
    for name in ["x", "nsec1abc", "a%0d%0ab1", "..%2f1"] {
        assert_eq!(lead(name).await.0, 404, "{name}");
    }
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repositories_are_found_by_word_and_the_service_has_a_name() {
    let server = Instance::start().await;
    let alice = Author::new();
    let _work = server.host(&alice, "needle").await;
    let _work = server.host(&alice, "hay").await;
    let found = async |query: &str| server.get(&format!("/?q={query}"), &[]).await.body;
    let page = found("NEEDLE").await;
    assert!(
        page.contains("needle.git") && !page.contains("hay.git"),
        "{page}"
    );
    assert!(page.contains("noindex"), "{page}");
    let page = found(&npub(&alice.key())).await;
    assert!(
        page.contains("needle.git") && page.contains("hay.git"),
        "{page}"
    );
    let page = found("%22%3E%3Cscript%3E").await;
    assert!(
        page.contains("0 repositories") && !page.contains("<script>"),
        "{page}"
    );
    let named = server.get("/.well-known/nostr.json?name=_", &[]).await;
    assert_eq!(named.header("access-control-allow-origin"), "*");
    let document = server
        .get("/", &[("Accept", "application/nostr+json")])
        .await;
    let document: serde_json::Value = serde_json::from_str(&document.body).unwrap();
    let names: serde_json::Value = serde_json::from_str(&named.body).unwrap();
    assert_eq!(names["names"]["_"], document["self"], "{names} {document}");
    let other = server.get("/.well-known/nostr.json?name=bob", &[]).await;
    assert_eq!(other.body, r#"{"names":{}}"#);
    server.stop().await;
}

async fn server_that_compares() -> Instance {
    Instance::with(|settings| {
        settings.outbound.allow_private = true;
        settings.sync.enabled = false;
        let policy = &mut settings.in_step.policy;
        policy.busy = Duration::ZERO;
        policy.pace = Duration::ZERO;
        policy.settle = Duration::ZERO;
    })
    .await
}

/// Waits until the JSON about the servers of a repository meets a condition.
async fn until_servers(
    at: &Instance,
    repo: &RepoId,
    wanted: impl Fn(&serde_json::Value) -> bool,
) -> serde_json::Value {
    let path = format!("{}/servers.json", at.path(repo));
    eventually_async(async || {
        let response = at.get(&path, &[]).await;
        let rows = serde_json::from_str(&response.body).ok()?;
        Some(rows).filter(|rows| wanted(rows))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_are_in_step_until_one_stops_or_moves_a_ref() {
    let a = server_that_compares().await;
    let b = server_that_compares().await;
    let c = server_that_compares().await;
    let (alice, work) = (Author::new(), Workdir::init().await);
    let repo = alice.repo("x");
    let first = work.commit("first").await;
    let announced = alice.announce_on("x", &[a.service(), b.service(), c.service()]);
    let state = alice.state("x", &[("refs/heads/main", &first)]);
    for server in [&a, &b, &c] {
        server.ingest(vec![announced.clone(), state.clone()]).await;
        let url = server.clone_url(&repo);
        work.git(&["push", &url, "main"]).await.expect_ok();
    }
    until_servers(&a, &repo, |rows| rows["in_step"] == 3).await;
    let badge = a.get(&format!("{}/badge.svg", a.path(&repo)), &[]).await;
    assert_eq!(badge.header("content-type"), "image/svg+xml");
    assert!(
        badge.body.contains("3 of 3 servers in step"),
        "{}",
        badge.body
    );

    c.stop().await;
    let rows = until_servers(&a, &repo, |rows| rows["in_step"] == 2).await;
    let is_unreachable = |row: &serde_json::Value| row["refs"]["state"] == "unreachable";
    let servers = rows["servers"].as_array().unwrap();
    assert_eq!(
        servers.iter().filter(|row| is_unreachable(row)).count(),
        1,
        "{rows}"
    );

    let second = work.commit("second").await;
    let state = alice.later(5).state("x", &[("refs/heads/main", &second)]);
    a.ingest(vec![state]).await;
    let url = a.clone_url(&repo);
    work.git(&["push", &url, "main"]).await.expect_ok();
    let rows = until_servers(&a, &repo, |rows| rows["in_step"] == 1).await;
    let servers = rows["servers"].as_array().unwrap();
    let differs =
        |row: &serde_json::Value| row["refs"]["state"] == "different" && row["refs"]["refs"] == 1;
    assert_eq!(
        servers.iter().filter(|row| differs(row)).count(),
        1,
        "{rows}"
    );
    let overview = a.get(&a.path(&repo), &[]).await.body;
    let badge = format!("src=\"{}/badge.svg\"", a.path(&repo));
    assert!(overview.contains(&badge), "{overview}");
    let page = a.get(&format!("{}/servers", a.path(&repo)), &[]).await;
    assert!(page.body.contains("≠ 1 ref differs"), "{}", page.body);
    let status = a.get("/status", &[]).await.body;
    assert!(status.contains("Servers around this one"), "{status}");
    a.stop().await;
    b.stop().await;
}

/// Signs events of every kind that pages show, with a script and a character that turns the direction in every field.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_text_in_any_field_of_an_event_is_shown_as_text() {
    const HOSTILE: &str =
        "</title><script>alert(1)</script>\"'>\u{202e}<img src=x onerror=alert(1)>";
    let hosted = Hosted::start().await;
    let (alice, bob) = (hosted.alice.later(1), Author::new());
    let service = hosted.server.service();
    let more: [&[&str]; 6] = [
        &["name", HOSTILE],
        &["description", HOSTILE],
        &["web", HOSTILE],
        &["web", "javascript:alert(1)"],
        &["t", HOSTILE],
        &["alt", HOSTILE],
    ];
    let announcement = alice.announce_with("x", &service, &more);
    let profile = alice.sign(0, &serde_json::json!({"name": HOSTILE}).to_string(), &[]);
    let address = hosted.repo.to_string();
    let about: &[&str] = &["a", &address];
    let (subject, label): (&[&str], &[&str]) = (&["subject", HOSTILE], &["t", HOSTILE]);
    let issue = bob.sign(1621, HOSTILE, &[about, subject, label]);
    let id = issue.id.to_hex();
    let patch = bob.sign(1617, &format!("Subject: {HOSTILE}\n\n---\n diff --git a/{HOSTILE} b/{HOSTILE}\n@@ -1 +1 @@\n-{HOSTILE}\n+{HOSTILE}\n"), &[about, &["t", "root"], label]);
    let reply = comment(&bob, &issue.id, HOSTILE);
    let file: [&[&str]; 7] = [
        &["E", &id],
        &["K", "1621"],
        &["e", &id],
        &["k", "1621"],
        &["f", HOSTILE],
        &["line", HOSTILE],
        &["c", HOSTILE],
    ];
    let at_line = bob.later(1).sign(1111, HOSTILE, &file);
    let closed = bob.later(1).sign(1632, HOSTILE, &[&["e", &id, "", "root"]]);
    let renamed = bob.later(2).sign(
        1985,
        HOSTILE,
        &[&["e", &id], &["L", "#subject"], &["l", HOSTILE, "#subject"]],
    );
    let note = bob.later(2).sign(1624, HOSTILE, &[&["e", &id, "", "root"]]);
    for event in [
        announcement,
        profile,
        issue.clone(),
        patch.clone(),
        reply,
        at_line,
        closed,
        renamed,
        note,
    ] {
        // What the server does not accept is on no page either.
        hosted.server.ingest(vec![event]).await;
    }
    assert!(hosted.server.serves(&issue).await && hosted.server.serves(&patch).await);
    let owner = npub(&alice.key());
    let below = hosted.server.path(&hosted.repo);
    let label: String = HOSTILE.bytes().map(|byte| format!("%{byte:02X}")).collect();
    for path in [
        "/".to_owned(),
        format!("/?q={label}"),
        format!("/{owner}"),
        below.clone(),
        format!("{below}/issues?state=closed"),
        format!("{below}/issues?label={label}"),
        format!("{below}/issues/{id}"),
        format!("{below}/pulls"),
        format!("{below}/pulls/{}", patch.id.to_hex()),
        format!("{below}/servers"),
        format!("{below}/feed/issues.atom"),
        format!("{below}/feed/pulls.atom"),
        format!("{below}/{label}"),
        "/status".to_owned(),
    ] {
        let page = hosted.server.get(&path, &[]).await;
        assert!([200, 404].contains(&page.status), "{path}: {page:?}");
        let body = page.body.split("<script>").collect::<Vec<_>>();
        // The status page has a script of its own.
        assert!(
            body.len() <= if path == "/status" { 2 } else { 1 },
            "{path}: {}",
            page.body
        );
        for bad in [
            "alert(1)</script>",
            "<img src=x",
            "\u{202e}",
            "href=\"javascript:",
        ] {
            assert!(!page.body.contains(bad), "{path}: {bad}: {}", page.body);
        }
    }
    hosted.server.stop().await;
}
