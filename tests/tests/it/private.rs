//! Private services (GRASP-08): what strangers get, what members may do, and two services that sync.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use grasp_core::ServiceIdentity;
use grasp_core::service::npub;
use grasp_relay::instance::PrivateSettings;
use grasp_tests::wire::pkt;
use grasp_tests::{Author, Instance, Settings, Workdir, eventually_async, request_head};
use nostr::event::Event;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

const MAIN: &str = "refs/heads/main";

/// The time in which a change of the members must be in force.
const IN_FORCE: Duration = Duration::from_secs(20);

/// A private service with a repository of its only member.
struct Team {
    instance: Instance,
    alice: Author,
    work: Workdir,
    /// The directory of the file with members.
    dir: tempfile::TempDir,
}

impl Team {
    async fn start() -> Self {
        Self::start_with(0).await
    }

    /// Starts it with a commit of this size.
    async fn start_with(bytes: usize) -> Self {
        let (alice, dir) = (Author::new(), tempfile::tempdir().unwrap());
        let file = dir.path().join("members");
        std::fs::write(&file, npub(&alice.key())).unwrap();
        let instance = Instance::with_settings_and(Settings::one_process(), |settings| {
            settings.private = PrivateSettings {
                enabled: true,
                members_file: Some(file),
                ..PrivateSettings::default()
            };
            settings.outbound.allow_private = true;
        })
        .await;
        let work = Workdir::init().await;
        let commit = match bytes {
            0 => work.commit("first").await,
            _ => work.commit_incompressible(bytes).await,
        };
        let state = alice.state("x", &[(MAIN, &commit)]);
        let events = vec![alice.announce("x", &instance.service()), state];
        let outcomes = instance.ingest(events).await;
        assert!(
            outcomes.iter().all(|one| one.answer().is_accepted),
            "{outcomes:?}"
        );
        let team = Self {
            instance,
            alice,
            work,
            dir,
        };
        let url = team.url();
        let header = team.header(&team.alice);
        team.work
            .git(&["-c", &header, "push", "-q", &url, "main"])
            .await
            .expect_ok();
        team
    }

    fn url(&self) -> String {
        self.instance.clone_url(&self.alice.repo("x"))
    }

    /// Returns the setting of git that sends an authorization of this author.
    fn header(&self, author: &Author) -> String {
        format!(
            "http.extraHeader=Authorization: {}",
            author.authorization(&self.url())
        )
    }

    /// Removes the only member, in favour of another key.
    fn remove_alice(&self) {
        let file = self.dir.path().join("members");
        std::fs::write(file, npub(&Author::new().key())).unwrap();
    }

    async fn socket(&self) -> Socket {
        let (socket, _) = connect_async(self.instance.relay_url()).await.unwrap();
        let mut socket = Socket(socket);
        let challenge = socket.next().await;
        assert_eq!(challenge[0], "AUTH", "the challenge is the first message");
        socket
    }

    /// Returns whether the relay lets this author in.
    async fn lets_in(&self, author: &Author) -> bool {
        self.socket_of(author).await.next().await[2] == true
    }

    async fn socket_of(&self, author: &Author) -> Socket {
        let (socket, _) = connect_async(self.instance.relay_url()).await.unwrap();
        let mut socket = Socket(socket);
        let challenge = socket.next().await;
        let challenge = challenge[1].as_str().unwrap();
        let relay = self.instance.relay_url();
        let tags: [&[&str]; 2] = [&["relay", &relay], &["challenge", challenge]];
        let now = Timestamp::now().as_secs();
        let auth = author.at(now).sign(22_242, "", &tags);
        socket.send(json!(["AUTH", auth])).await;
        socket
    }
}

struct Socket(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Socket {
    async fn send(&mut self, message: Value) {
        self.0
            .send(Message::text(message.to_string()))
            .await
            .unwrap();
    }

    /// Returns the next message; null if the server closed the connection.
    async fn next(&mut self) -> Value {
        loop {
            match timeout(IN_FORCE, self.0.next()).await.expect("in time") {
                Some(Ok(Message::Text(text))) => return serde_json::from_str(&text).unwrap(),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return Value::Null,
            }
        }
    }
}

/// Returns an answer without the time of day.
fn comparable(answer: &grasp_tests::HttpResponse) -> (u16, Vec<(String, String)>, String) {
    let mut headers = answer.headers.clone();
    headers.retain(|(name, _)| name != "date");
    (answer.status, headers, answer.body.clone())
}

#[tokio::test]
async fn strangers_get_one_answer_whatever_they_request() {
    let team = Team::start().await;
    let repo = team.instance.path(&team.alice.repo("x"));
    let stranger = Author::new();
    let (of_stranger, of_other_repo) = (
        stranger.authorization(&team.url()),
        team.alice
            .authorization(&team.instance.clone_url(&team.alice.repo("y"))),
    );
    let too_old = team
        .alice
        .authorization_at(&team.url(), Timestamp::now().as_secs() - 70);
    let headers: [&[(&str, &str)]; 6] = [
        &[],
        &[("Authorization", "Basic eDp5")],
        &[("Authorization", "Nostr !")],
        &[("Authorization", &of_stranger)],
        &[("Authorization", &of_other_repo)],
        &[("Authorization", &too_old)],
    ];
    let unknown = team.instance.path(&stranger.repo("nothing"));
    let mut answers = Vec::new();
    for path in [
        repo.clone(),
        format!("{repo}/info/refs?service=git-upload-pack"),
        format!("{repo}/info/refs?service=git-receive-pack"),
        format!("{repo}/tree/main"),
        unknown.clone(),
        format!("{unknown}/info/refs?service=git-upload-pack"),
        format!("/prs/{}/x.git/info/refs", npub(&stranger.key())),
        format!("/{}", npub(&team.alice.key())),
        "/status".into(),
        "/status.json".into(),
        "/metrics".into(),
        "/usage".into(),
        "/e/0".into(),
        "/no-such-page".into(),
    ] {
        for headers in headers {
            answers.push(comparable(&team.instance.get(&path, headers).await));
        }
    }
    for (service, repo) in [("git-upload-pack", &repo), ("git-receive-pack", &unknown)] {
        answers.push(comparable(
            &team
                .instance
                .request("POST", &format!("{repo}/{service}"))
                .await,
        ));
    }
    let (status, sent, body) = answers[0].clone();
    assert_eq!((status, body.as_str()), (401, ""));
    let challenge = format!(
        "Nostr realm=\"{}\", method=\"GET\"",
        team.instance.service()
    );
    assert!(
        sent.contains(&("www-authenticate".into(), challenge)),
        "{sent:?}"
    );
    let cors = ("access-control-allow-origin".into(), "*".into());
    assert!(sent.contains(&cors), "{sent:?}");
    assert!(answers.iter().all(|one| *one == answers[0]), "{answers:?}");
}

#[tokio::test]
async fn a_stranger_is_answered_before_the_body_is_read() {
    let team = Team::start().await;
    let address = team.instance.address().to_string();
    let path = format!(
        "{}/git-receive-pack",
        team.instance.path(&team.alice.repo("x"))
    );
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let head = request_head(&address, "POST", &path, &[("Content-Length", "1000000")]);
    stream.write_all(head.as_bytes()).await.unwrap();
    let answer = timeout(IN_FORCE, grasp_tests::read_response(&mut stream)).await;
    assert_eq!(answer.expect("without a byte of the body").status, 401);
}

#[tokio::test]
async fn what_describes_the_service_stays_public_and_names_no_repository() {
    let team = Team::start().await;
    let accept = [("Accept", "application/nostr+json")];
    let document: Value =
        serde_json::from_str(&team.instance.get("/", &accept).await.body).unwrap();
    let has = |name: &str, value: Value| document[name].as_array().unwrap().contains(&value);
    assert!(has("supported_grasps", "GRASP-08".into()), "{document}");
    assert!(has("supported_nips", 42.into()) && has("supported_nips", 98.into()));
    assert_eq!(document["limitation"]["auth_required"], true);
    assert_eq!(
        document["pubkey"], document["self"],
        "the key that it authenticates with"
    );
    for path in [
        "/",
        "/?q=x",
        "/health",
        "/.well-known/nostr.json?name=_",
        "/-/icon.svg",
    ] {
        let answer = team.instance.get(path, &[]).await;
        assert_eq!(answer.status, 200, "{path}");
        let names = answer.body.contains("x.git") || answer.body.contains(&npub(&team.alice.key()));
        assert!(!names, "{path}: {}", answer.body);
    }
    let repo = team.instance.path(&team.alice.repo("x"));
    let refs = format!("{repo}/info/refs");
    for path in ["/", "/status", "/no-such-page", &repo, &refs] {
        assert_eq!(
            team.instance.request("OPTIONS", path).await.status,
            204,
            "{path}"
        );
    }
}

#[tokio::test]
async fn git_of_a_member_clones_pushes_and_reads_pages_with_one_authorization_for_each() {
    let team = Team::start().await;
    let (url, header) = (team.url(), team.header(&team.alice));
    for version in ["0", "2"] {
        let version = format!("protocol.version={version}");
        let clone = Workdir::empty();
        clone
            .git(&["-c", &version, "-c", &header, "clone", "-q", &url, "."])
            .await
            .expect_ok();
        let refused = Workdir::empty();
        let refused = refused
            .git(&["-c", &version, "clone", "-q", &url, "."])
            .await;
        refused.expect_refused();
    }
    let stranger = team.header(&Author::new());
    let refused = team.work.git(&["-c", &stranger, "ls-remote", &url]).await;
    refused.expect_refused();
    let next = team.work.commit("second").await;
    let state = team.alice.later(1).state("x", &[(MAIN, &next)]);
    team.instance.ingest(vec![state]).await;
    team.work
        .git(&["-c", &header, "push", "-q", &url, "main"])
        .await
        .expect_ok();
    let authorization = team.alice.authorization(&url);
    let page = team.instance.path(&team.alice.repo("x"));
    let page = team
        .instance
        .get(&page, &[("Authorization", &authorization)])
        .await;
    assert_eq!(page.status, 200);
    let status = format!("http://{}/status", team.instance.address());
    let authorization = team.alice.authorization(&status);
    let status = team
        .instance
        .get("/status", &[("Authorization", &authorization)])
        .await;
    assert_eq!(status.status, 200);
}

#[tokio::test]
async fn the_relay_answers_members_only() {
    let team = Team::start().await;
    let mut stranger = team.socket().await;
    stranger
        .send(json!(["REQ", "s", { "kinds": [30617] }]))
        .await;
    let closed = stranger.next().await;
    assert_eq!((&closed[0], &closed[1]), (&"CLOSED".into(), &"s".into()));
    assert!(
        closed[2].as_str().unwrap().starts_with("auth-required: "),
        "{closed}"
    );
    let mut known = team.socket_of(&Author::new()).await;
    let answer = known.next().await;
    assert_eq!(answer[2], false);
    assert!(
        answer[3].as_str().unwrap().starts_with("restricted: "),
        "{answer}"
    );
    assert_eq!(known.next().await, Value::Null, "disconnected");
    let mut member = team.socket_of(&team.alice).await;
    assert_eq!(member.next().await[2], true);
    member.send(json!(["REQ", "s", { "kinds": [30617] }])).await;
    assert_eq!(member.next().await[0], "EVENT");
    assert_eq!(member.next().await[0], "EOSE");
}

#[tokio::test]
async fn the_subscription_of_a_removed_member_ends() {
    let team = Team::start().await;
    let mut member = team.socket_of(&team.alice).await;
    assert_eq!(member.next().await[2], true);
    member.send(json!(["REQ", "s", { "kinds": [1621] }])).await;
    assert_eq!(member.next().await[0], "EOSE");
    team.remove_alice();
    assert_eq!(
        member.next().await,
        Value::Null,
        "disconnected without a message"
    );
    let answer = team.instance.get("/status", &[]).await;
    assert_eq!(answer.status, 401);
    team.work
        .git(&["-c", &team.header(&team.alice), "ls-remote", &team.url()])
        .await
        .expect_refused();
}

#[tokio::test]
async fn the_open_clone_of_a_removed_member_breaks_off() {
    let team = Team::start_with(48 * 1024 * 1024).await;
    let tip = team.work.git(&["rev-parse", "HEAD"]).await.expect_ok();
    let address = team.instance.address().to_string();
    let path = format!(
        "{}/git-upload-pack",
        team.instance.path(&team.alice.repo("x"))
    );
    let body = [
        pkt(format!("want {tip}\n")),
        b"0000".to_vec(),
        pkt("done\n"),
    ]
    .concat();
    let (length, authorization) = (
        body.len().to_string(),
        team.alice.authorization(&team.url()),
    );
    let headers = [
        ("Content-Length", length.as_str()),
        ("Content-Type", "application/x-git-upload-pack-request"),
        ("Authorization", &authorization),
    ];
    let head = request_head(&address, "POST", &path, &headers);
    let mut stream = TcpStream::connect(&address).await.unwrap();
    stream
        .write_all(&[head.as_bytes(), &body].concat())
        .await
        .unwrap();
    let mut start = [0; 4096];
    stream.read_exact(&mut start).await.unwrap();
    assert!(String::from_utf8_lossy(&start).starts_with("HTTP/1.1 200"));
    team.remove_alice();
    // Once new requests are refused, the rest of the clone must not come any more either.
    eventually_async(|| async {
        let authorization = team.alice.authorization(&team.url());
        let header = [("Authorization", authorization.as_str())];
        let page = team
            .instance
            .get(&team.instance.path(&team.alice.repo("x")), &header)
            .await;
        (page.status == 401).then_some(())
    })
    .await;
    let mut rest = Vec::new();
    let _ = timeout(IN_FORCE, stream.read_to_end(&mut rest))
        .await
        .expect("an end");
    assert!(rest.len() < 40 * 1024 * 1024, "{}", rest.len());
    assert!(!rest.ends_with(b"0\r\n\r\n"), "the answer is not complete");
    team.instance.until_idle().await;
}

async fn outcomes(instance: &Instance, event: &Event) -> [(bool, String); 2] {
    let of_client = instance
        .ingest(vec![event.clone()])
        .await
        .remove(0)
        .answer();
    let of_relay = instance
        .ingest_from_relay(vec![event.clone()])
        .await
        .remove(0)
        .answer();
    [of_client, of_relay].map(|answer| (answer.is_accepted, answer.message.into_owned()))
}

#[tokio::test]
async fn a_private_service_below_a_path_is_gated_like_any_other() {
    let alice = Author::new();
    let instance = Instance::with_settings_and(Settings::one_process(), |settings| {
        settings.private.enabled = true;
        settings.private.members = [alice.key()].into();
        let mounted = format!("{}/team", settings.policy.service);
        *settings = settings.clone().reached_at(mounted.parse().unwrap());
    })
    .await;
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let state = alice.state("x", &[(MAIN, &commit)]);
    let announcement = alice.announce("x", &instance.service());
    instance.ingest(vec![announcement, state]).await;
    let url = instance.clone_url(&alice.repo("x"));
    assert!(url.contains("/team/"), "{url}");
    let header = |author: &Author| {
        let authorization = author.authorization(&url);
        format!("http.extraHeader=Authorization: {authorization}")
    };
    work.git(&["-c", &header(&alice), "push", "-q", &url, "main"])
        .await
        .expect_ok();
    let refs = work.git(&["-c", &header(&alice), "ls-remote", &url]).await;
    assert!(refs.expect_ok().contains(&commit));
    let stranger = header(&Author::new());
    work.git(&["-c", &stranger, "ls-remote", &url])
        .await
        .expect_refused();
    let repo = instance.path(&alice.repo("x"));
    for (path, status) in [
        ("/team/status", 401),
        (repo.as_str(), 401),
        ("/team/health", 200),
    ] {
        let answer = instance.get(path, &[]).await;
        assert_eq!(answer.status, status, "{path}");
    }
}

#[tokio::test]
async fn only_members_announce_repositories_on_every_path() {
    let team = Team::start().await;
    let stranger = Author::new();
    let announcement = stranger.announce("theirs", &team.instance.service());
    for (accepted, message) in outcomes(&team.instance, &announcement).await {
        assert!(
            !accepted && message.starts_with("restricted: "),
            "{message}"
        );
    }
    let own = team.alice.announce("own", &team.instance.service());
    assert!(outcomes(&team.instance, &own).await[0].0);
    // Of events of members others are no matter: an issue by anybody is related.
    let issue = stranger.issue(&team.alice.repo("x"), "hello");
    assert!(outcomes(&team.instance, &issue).await[0].0);
}

async fn holds(team: &Team, event: &Event) -> bool {
    let purgatory = team.instance.purgatory();
    let held = purgatory.ask(|held| held.held_announcements()).await;
    held.unwrap().iter().any(|one| one.id == event.id)
}

#[tokio::test]
async fn the_removal_of_a_member_is_not_retroactive_but_ends_what_is_held() {
    let team = Team::start().await;
    let served = team.alice.announce("x", &team.instance.service());
    let held = team.alice.announce("held", &team.instance.service());
    assert!(outcomes(&team.instance, &held).await[0].0);
    assert!(holds(&team, &held).await);
    team.remove_alice();
    let mut attempts = 0;
    loop {
        attempts += 1;
        let name = format!("late{attempts}");
        let late = team.alice.announce(&name, &team.instance.service());
        if !outcomes(&team.instance, &late).await[0].0 {
            break;
        }
        assert!(attempts < 1_000, "the removal is not in force");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(team.instance.serves(&served).await);
    // What it is released by would do: the next look at the repository ends it.
    let state = team.alice.state("held", &[(MAIN, &"a".repeat(40))]);
    team.instance.ingest(vec![state]).await;
    team.instance.settle("held").await;
    assert!(!holds(&team, &held).await && !team.instance.serves(&held).await);
}

/// Answers requests for a NIP-11 document as a private service with this key; returns its address.
async fn document_of_private(key: PublicKey) -> ServiceIdentity {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let document = json!({ "supported_grasps": ["GRASP-08"], "pubkey": key.to_hex() }).to_string();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
                document.len()
            );
            let _ = stream.write_all((head + &document).as_bytes()).await;
        }
    });
    address.to_string().parse().unwrap()
}

#[tokio::test]
async fn only_a_served_announcement_makes_the_services_that_it_names_members() {
    let team = Team::start().await;
    let (peer, bob) = (Author::new(), Author::new());
    let other = document_of_private(peer.key()).await;
    let services = [team.instance.service(), other];
    let commit = team.work.commit("second").await;
    let events = vec![
        team.alice.announce_on("y", &services),
        team.alice.state("y", &[(MAIN, &commit)]),
    ];
    team.instance.ingest(events).await;
    // Once a later change of the members is in force, the announcements were read, too.
    let members = format!("{}\n{}", npub(&team.alice.key()), npub(&bob.key()));
    std::fs::write(team.dir.path().join("members"), members).unwrap();
    eventually_async(|| async { team.lets_in(&bob).await.then_some(()) }).await;
    assert!(!team.lets_in(&peer).await, "the announcement is only held");
    let url = team.instance.clone_url(&team.alice.repo("y"));
    let header = format!(
        "http.extraHeader=Authorization: {}",
        team.alice.authorization(&url)
    );
    team.work
        .git(&["-c", &header, "push", "-q", &url, "main"])
        .await
        .expect_ok();
    eventually_async(|| async { team.lets_in(&peer).await.then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_private_services_sync_events_and_git_data() {
    let alice = Author::new();
    let start = async || {
        Instance::with_settings_and(Settings::one_process(), |settings| {
            settings.private.enabled = true;
            settings.private.members = [alice.key()].into();
            settings.outbound.allow_private = true;
        })
        .await
    };
    let (a, b) = (start().await, start().await);
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let announced = alice.announce_on("x", &[a.service(), b.service()]);
    let state = alice.state("x", &[(MAIN, &commit)]);
    for server in [&a, &b] {
        server.ingest(vec![announced.clone()]).await;
    }
    a.ingest(vec![state.clone()]).await;
    let url = a.clone_url(&alice.repo("x"));
    let header = format!(
        "http.extraHeader=Authorization: {}",
        alice.authorization(&url)
    );
    work.git(&["-c", &header, "push", "-q", &url, "main"])
        .await
        .expect_ok();
    // The announcement at B is held until A lets B in, which it does once it has read B's document.
    b.until_serves(&state).await;
    let issue = alice.later(1).issue(&alice.repo("x"), "hello");
    a.ingest(vec![issue.clone()]).await;
    b.until_serves(&issue).await;
    let url = b.clone_url(&alice.repo("x"));
    let header = format!(
        "http.extraHeader=Authorization: {}",
        alice.authorization(&url)
    );
    let cloned = Workdir::empty();
    cloned
        .git(&["-c", &header, "clone", "-q", &url, "."])
        .await
        .expect_ok();
    assert_eq!(cloned.git(&["rev-parse", "HEAD"]).await.expect_ok(), commit);
    a.stop().await;
    b.stop().await;
}

/// Changes the settings of a private service.
type Change = fn(&mut grasp_relay::instance::Settings);

#[tokio::test]
async fn a_service_that_could_not_be_private_is_refused() {
    let key = Author::new().key();
    let cases: [(&str, Change); 5] = [
        ("private: nobody could use it", |settings| {
            settings.private.members.clear()
        }),
        ("members: only a private service", |settings| {
            settings.private.enabled = false
        }),
        ("contributor_proposals: ", |settings| {
            settings.policy.contributor_proposals = true
        }),
        ("public_origin: ", |settings| {
            settings.private.enabled = false;
            settings.private.members.clear();
            settings.private.origin = Some("https://git.example".parse().unwrap());
        }),
        ("expected a public key", |settings| {
            let file = settings.data_dir.join("members");
            std::fs::write(&file, "npub1bad").unwrap();
            settings.private.members_file = Some(file);
        }),
    ];
    for (expected, change) in cases {
        let dir = tempfile::tempdir().unwrap();
        let service = "127.0.0.1:7334".parse().unwrap();
        let mut settings = grasp_relay::instance::Settings::new(service, dir.path());
        settings.private.enabled = true;
        settings.private.members = [key].into();
        change(&mut settings);
        let store = grasp_relay::instance::open_store(&settings).await.unwrap();
        let opened =
            grasp_relay::instance::Server::open_on(&settings, store, grasp_relay::Clock::system());
        let error = opened.await.err().map(|error| format!("{error:#}"));
        assert!(
            error.as_ref().is_some_and(|error| error.contains(expected)),
            "{expected}: {error:?}"
        );
    }
}
