//! What is not served is on no page: what is held, unsigned, hidden, replaced, or of another repository.
//!
//! Each secret has a word of its own, ids of commits and events, and perhaps a repository. Every route is asked for all of
//! them; of what is hidden later, some page has shown the word before, so that the test can fail.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::RepoId;
use grasp_core::policy::PolicySubject;
use grasp_core::service::npub;
use grasp_relay::store::policy::PolicyAction;
use grasp_relay::web::Confirm;
use grasp_tests::{Author, HttpResponse, Instance, Settings, Workdir, eventually_async};
use nostr::event::Event;
use nostr::nips::nip19::{Nip19Event, ToBech32 as _};
use nostr::types::Timestamp;

use crate::moderation::{add, decide};

const MAIN: &str = "refs/heads/main";

/// The pages of a repository that name nothing in it but its branch.
const PAGES: [&str; 22] = [
    "",
    "/refs",
    "/refs?skip=1",
    "/tree/main",
    "/file/main/file",
    "/file/main/file?plain",
    "/raw/main/file",
    "/log/main",
    "/issues",
    "/issues?state=closed",
    "/issues?label=secret",
    "/pulls",
    "/pulls?state=closed",
    "/pulls?label=secret",
    "/servers",
    "/servers.json",
    "/badge.svg",
    "/feed/commits.atom",
    "/feed/tags.atom",
    "/feed/issues.atom",
    "/feed/pulls.atom",
    "/feed/releases.atom",
];

/// The pages of the server.
const SERVER_PAGES: [&str; 8] = [
    "/",
    "/status",
    "/status.json",
    "/metrics",
    "/health",
    "/robots.txt",
    "/sitemap.xml",
    "/.well-known/nostr.json?name=_",
];

/// The pages by the id of a commit.
const OF_COMMIT: [&str; 7] = [
    "/commit/{}",
    "/commit/{}.patch",
    "/tree/{}",
    "/file/{}/file",
    "/raw/{}/file",
    "/log/{}",
    "/log/main?from={}",
];

/// The pages by the id of an event.
const OF_EVENT: [&str; 2] = ["/issues/{}", "/pulls/{}"];

/// The names under which metrics count the pages of repositories: of all routes.
const NAMES: [&str; 13] = [
    "overview", "refs", "tree", "file", "raw", "log", "commit", "patch", "threads", "thread",
    "servers", "badge", "feed",
];

/// Something that no page shows, or none any more.
struct Secret {
    /// Is in every text of it.
    word: &'static str,
    commits: Vec<String>,
    events: Vec<Event>,
    /// It is of a repository that has no pages.
    repo: Option<RepoId>,
}

impl Secret {
    fn new(word: &'static str) -> Self {
        Self {
            word,
            commits: Vec::new(),
            events: Vec::new(),
            repo: None,
        }
    }

    fn with_commit(mut self, id: &str) -> Self {
        self.commits.push(id.to_owned());
        self
    }

    fn with_events(mut self, events: &[&Event]) -> Self {
        self.events
            .extend(events.iter().map(|event| (*event).clone()));
        self
    }

    fn in_repo(mut self, repo: RepoId) -> Self {
        self.repo = Some(repo);
        self
    }
}

/// A server with a repository that everybody may read.
struct World {
    instance: Instance,
    alice: Author,
    /// The repository that is shown.
    repo: RepoId,
    work: Workdir,
    /// Its newest commit.
    tip: String,
    /// An issue in it.
    issue: Event,
    secrets: Vec<Secret>,
}

impl World {
    async fn new() -> Self {
        // Nobody confirms: every page is shown that there is.
        let never = |settings: &mut grasp_relay::instance::Settings| {
            settings.pages.confirm = Confirm::Never
        };
        let instance = Instance::with_settings_and(Settings::one_process(), never).await;
        let alice = Author::new();
        let work = instance.host(&alice, "x").await;
        let repo = alice.repo("x");
        let tip = work.git(&["rev-parse", "HEAD"]).await.expect_ok();
        let issue = alice.issue(&repo, "an issue that is shown");
        instance.ingest(vec![issue.clone()]).await;
        assert!(instance.serves(&issue).await);
        Self {
            instance,
            alice,
            repo,
            work,
            tip,
            issue,
            secrets: Vec::new(),
        }
    }

    /// Publishes what has to be served.
    async fn publish(&self, events: &[&Event]) {
        for event in events {
            let outcomes = self.instance.ingest(vec![(*event).clone()]).await;
            assert!(self.instance.serves(event).await, "{event:?}: {outcomes:?}");
        }
    }

    /// Pushes the commit of a pull request, and waits until it is served.
    async fn propose(&self, pull: &Event, commit: &str) {
        self.instance.ingest(vec![pull.clone()]).await;
        let to = format!("{commit}:refs/nostr/{}", pull.id);
        let url = self.instance.clone_url(&self.repo);
        self.work.git(&["push", "-q", &url, &to]).await.expect_ok();
        let is_served = async || self.instance.serves(pull).await.then_some(());
        eventually_async(is_served).await;
    }

    /// Hosts another repository with a commit of this text, which it returns.
    async fn host(&self, owner: &Author, name: &str, text: &str) -> String {
        let work = self.instance.host(owner, name).await;
        let commit = work.commit(text).await;
        let state = owner.later(1).state(name, &[(MAIN, &commit)]);
        self.instance.ingest(vec![state]).await;
        let url = self.instance.clone_url(&owner.repo(name));
        work.git(&["push", "-q", &url, "main"]).await.expect_ok();
        commit
    }

    /// Signs a state of the repository and pushes it.
    async fn move_main(&self, tip: &str, later: u64) {
        let state = self.alice.later(later).state("x", &[(MAIN, tip)]);
        self.instance.ingest(vec![state]).await;
        let url = self.instance.clone_url(&self.repo);
        let push = ["push", "-q", "-f", &url, &format!("{tip}:{MAIN}")];
        self.work.git(&push).await.expect_ok();
    }

    /// Returns all addresses, of pages and of what secrets are, with whether there must be no page.
    fn addresses(&self) -> Vec<(String, bool)> {
        let base = self.instance.path(&self.repo);
        let mut all: Vec<(String, bool)> = Vec::new();
        let mut add = |path: String, is_secret| all.push((path, is_secret));
        SERVER_PAGES
            .iter()
            .for_each(|page| add((*page).to_owned(), false));
        PAGES
            .iter()
            .for_each(|page| add(format!("{base}{page}"), false));
        for page in OF_COMMIT {
            add(format!("{base}{}", page.replace("{}", &self.tip)), false);
        }
        add(format!("{base}/issues/{}", self.issue.id), false);
        add(format!("/{}", npub(&self.repo.owner)), false);
        add(format!("/{}/no-such", npub(&self.repo.owner)), false);
        for secret in &self.secrets {
            add(format!("/?q={}", secret.word), false);
            let ids = secret.commits.iter().map(|id| (&OF_COMMIT[..], id.clone()));
            let events = secret.events.iter().flat_map(|event| {
                let named = Nip19Event::new(event.id).to_bech32().unwrap();
                [(&OF_EVENT[..], event.id.to_hex()), (&OF_EVENT[..], named)]
            });
            for (pages, id) in ids.chain(events) {
                pages
                    .iter()
                    .for_each(|page| add(format!("{base}{}", page.replace("{}", &id)), true));
            }
            if let Some(repo) = &secret.repo {
                let (own, owner) = (self.instance.path(repo), npub(&repo.owner));
                let without = own.trim_end_matches(".git").to_owned();
                PAGES
                    .iter()
                    .for_each(|page| add(format!("{own}{page}"), true));
                let events = secret
                    .events
                    .iter()
                    .flat_map(|event| OF_EVENT.map(|page| page.replace("{}", &event.id.to_hex())));
                let commits = secret
                    .commits
                    .iter()
                    .flat_map(|id| OF_COMMIT.map(|page| page.replace("{}", id)));
                events
                    .chain(commits)
                    .for_each(|page| add(format!("{own}{page}"), true));
                add(without, true);
                add(format!("/{owner}"), false);
                add(format!("/{owner}/{}", secret.word), true);
            }
        }
        all
    }

    async fn get(&self, path: &str, tag: Option<&String>) -> HttpResponse {
        let tag = tag.map(|tag| ("If-None-Match", tag.as_str()));
        self.instance.get(path, tag.as_slice()).await
    }

    /// Returns the words of secrets that pages show, and the tag of each page with one.
    async fn shown(&self) -> (BTreeSet<&'static str>, BTreeMap<String, String>) {
        let (mut words, mut tags) = (BTreeSet::new(), BTreeMap::new());
        for (path, _) in self.addresses() {
            let answer = self.get(&path, None).await;
            for secret in &self.secrets {
                // The page of a search repeats the word.
                if answer.status == 200
                    && !path.contains("?q=")
                    && answer.body.contains(secret.word)
                {
                    words.insert(secret.word);
                    tags.insert(path.clone(), answer.header("etag").to_owned());
                }
            }
        }
        (words, tags)
    }

    /// Checks that no page shows anything of a secret, also to those who have seen it.
    async fn check_that_nothing_is_shown(&self, tags: &BTreeMap<String, String>) {
        for (path, is_secret) in self.addresses() {
            let answer = self.get(&path, tags.get(&path)).await;
            assert_ne!(answer.status, 304, "{path}");
            assert!(answer.status < 500, "{path}: {answer:?}");
            if is_secret {
                assert_eq!(answer.status, 404, "{path}: {answer:?}");
            }
            let body = match path.split_once("?q=") {
                Some((_, word)) => answer
                    .body
                    .replace(&format!("value=\"{word}\""), "")
                    .replace(&format!("<bdi>{word}</bdi>"), ""),
                None => answer.body.clone(),
            };
            // An address that is guessed is not repeated.
            for secret in &self.secrets {
                assert!(
                    !body.contains(secret.word),
                    "{path} has {}: {body}",
                    secret.word
                );
                let ids = secret.events.iter().map(|event| event.id.to_hex());
                for id in ids.chain(secret.commits.iter().cloned()) {
                    assert!(
                        !body.contains(&id),
                        "{path} has {id} of {}: {body}",
                        secret.word
                    );
                }
            }
        }
        for event in self.secrets.iter().flat_map(|secret| &secret.events) {
            let lead = self.get(&format!("/e/{}", event.id), None).await;
            let place = lead.header("location");
            assert!(
                lead.status == 302 && place.starts_with("https://gitworkshop.dev/"),
                "{event:?}: {lead:?}"
            );
        }
    }
}

#[tokio::test]
async fn what_is_held_unsigned_replaced_or_of_another_repository_is_on_no_page() {
    let mut world = World::new().await;
    let (alice, bob) = (world.alice.clone(), Author::new());
    let address = world.repo.to_string();
    let about: &[&str] = &["a", &address];

    // Held: a pull request, a state and an announcement that nothing was pushed for.
    let missing = "ab".repeat(20);
    let held = bob.sign(
        1618,
        "zq-held",
        &[about, &["c", &missing], &["subject", "zq-held"]],
    );
    let state = alice.later(5).state(
        "x",
        &[
            (MAIN, &missing),
            ("refs/heads/zq-held", &missing),
            ("refs/tags/zq-held", &missing),
        ],
    );
    let described: &[&str] = &["description", "zq-held"];
    let announced = bob.announce_with("zq-unpushed", &world.instance.service(), &[described]);
    world
        .instance
        .ingest(vec![held.clone(), announced.clone()])
        .await;
    // Replaced by a forced push: kept for a while.
    let replaced = world.work.commit("zq-replaced").await;
    world.move_main(&replaced, 1).await;
    world
        .work
        .git(&["reset", "-q", "--hard", &world.tip])
        .await
        .expect_ok();
    world.move_main(&world.tip, 2).await;
    // Uploaded, and nobody signed for it.
    let unsigned = world.work.commit("zq-unsigned").await;
    let pull = bob.pull_request(&world.repo, &unsigned);
    let url = world.instance.clone_url(&world.repo);
    let to = format!("{unsigned}:refs/nostr/{}", pull.id);
    world.work.git(&["push", "-q", &url, &to]).await;
    world.instance.ingest(vec![state.clone()]).await;
    // Of other repositories, one with the same name.
    let mut foreign = Secret::new("zq-foreign");
    for (owner, name) in [(&bob, "x"), (&alice, "other")] {
        let repo = owner.repo(name);
        let commit = world.host(owner, name, "zq-foreign").await;
        let to = repo.to_string();
        let to: &[&str] = &["a", &to];
        let issue = bob.sign(
            1621,
            "zq-foreign",
            &[to, &["subject", "zq-foreign"], &["t", "secret"]],
        );
        let patch = bob.sign(1617, "Subject: zq-foreign\n", &[to, &["t", "root"]]);
        world.publish(&[&issue, &patch]).await;
        let id = issue.id.to_hex();
        let root: &[&[&str]] = &[&["E", &id], &["K", "1621"], &["e", &id], &["k", "1621"]];
        let comment = alice.sign(1111, "zq-foreign", root);
        world.publish(&[&comment]).await;
        foreign = foreign.with_commit(&commit).with_events(&[&issue, &patch]);
    }
    let foreign_events = std::mem::take(&mut foreign.events);
    world.secrets = vec![
        Secret::new("zq-held").with_events(&[&held, &state]),
        Secret::new("zq-replaced").with_commit(&replaced),
        Secret::new("zq-unsigned")
            .with_commit(&unsigned)
            .with_events(&[&pull]),
        foreign,
    ];
    for event in [&held, &state, &announced, &pull] {
        assert!(!world.instance.serves(event).await, "{event:?}");
    }
    world.check_that_nothing_is_shown(&BTreeMap::new()).await;
    // Those of other repositories have pages there, and none here.
    for event in &foreign_events {
        for page in OF_EVENT {
            let path = format!(
                "{}{}",
                world.instance.path(&world.repo),
                page.replace("{}", &event.id.to_hex())
            );
            assert_eq!(world.get(&path, None).await.status, 404, "{path}");
        }
    }
    for page in PAGES {
        let path = format!("{}{page}", world.instance.path(&bob.repo("zq-unpushed")));
        let answer = world.get(&path, None).await;
        assert!(!answer.body.contains("zq-held"), "{path}: {}", answer.body);
    }
    world.check_that_every_page_was_asked_for().await;
}

impl World {
    async fn check_that_every_page_was_asked_for(&self) {
        let metrics = self.instance.get("/metrics", &[]).await.body;
        let lines = metrics
            .lines()
            .filter_map(|line| line.strip_prefix("grasp_pages_total{page=\""));
        let counted: BTreeSet<&str> = lines.filter_map(|line| line.split('"').next()).collect();
        for name in NAMES {
            assert!(counted.contains(name), "{name}: {counted:?}");
        }
    }
}

#[tokio::test]
async fn what_the_operator_hides_is_on_no_page_from_then_on() {
    let mut world = World::new().await;
    let (alice, bob, carol, eve) = (
        world.alice.clone(),
        Author::new(),
        Author::new(),
        Author::new(),
    );
    let address = world.repo.to_string();
    let about: &[&str] = &["a", &address];
    let root = world.issue.id.to_hex();
    let root: &[&[&str]] = &[&["E", &root], &["K", "1621"], &["e", &root], &["k", "1621"]];

    // All that an author who will be banned has here.
    let mut by_author = Secret::new("zq-author").in_repo(eve.repo("zq-author"));
    let name = eve.sign(0, r#"{"name":"zq-author"}"#, &[]);
    let issue = eve.sign(
        1621,
        "zq-author",
        &[about, &["subject", "zq-author"], &["t", "secret"]],
    );
    let patch = eve.sign(1617, "Subject: zq-author\n", &[about, &["t", "root"]]);
    let comment = eve.sign(1111, "zq-author", root);
    let check = eve.sign(
        9842,
        "zq-author",
        &[&["c", &world.tip], &["status", "zq-author"]],
    );
    let own = world.host(&eve, "zq-author", "zq-author").await;
    let about_own: &[&str] = &["a", &eve.repo("zq-author").to_string()];
    let of_own = bob.sign(1621, "zq-author", &[about_own, &["subject", "zq-author"]]);
    world.publish(&[&issue, &patch, &comment, &of_own]).await;
    world.instance.ingest(vec![name, check]).await;
    let commit = world.work.commit("zq-author").await;
    let pull = eve.sign(
        1618,
        "zq-author",
        &[about, &["c", &commit], &["subject", "zq-author"]],
    );
    world.propose(&pull, &commit).await;
    by_author = by_author.with_commit(&commit).with_commit(&own);
    by_author = by_author.with_events(&[&issue, &patch, &pull, &comment]);

    // Single events, that will be banned one by one.
    let mut single = Secret::new("zq-event");
    let issue = bob.sign(1621, "zq-event", &[about, &["subject", "zq-event"]]);
    let comment = bob.sign(1111, "zq-event", root);
    world.publish(&[&issue, &comment]).await;
    world
        .work
        .git(&["reset", "-q", "--hard", &world.tip])
        .await
        .expect_ok();
    let commit = world.work.commit("zq-event").await;
    let pull = bob.sign(
        1618,
        "zq-event",
        &[about, &["c", &commit], &["subject", "zq-event"]],
    );
    world.propose(&pull, &commit).await;
    single = single
        .with_commit(&commit)
        .with_events(&[&issue, &comment, &pull]);

    // Whole repositories, that will be held or banned.
    let mut whole = Vec::new();
    for (word, owner) in [
        ("zq-held", &carol),
        ("zq-banned", &carol),
        ("zq-name", &alice),
    ] {
        let commit = world.host(owner, word, word).await;
        let repo = owner.repo(word);
        let to = repo.to_string();
        let issue = bob.sign(1621, word, &[&["a", &to], &["subject", word]]);
        world.publish(&[&issue]).await;
        whole.push(
            Secret::new(word)
                .with_commit(&commit)
                .in_repo(repo)
                .with_events(&[&issue]),
        );
    }
    let until = Timestamp::now() + 3_600_u64;
    let mut decisions = vec![
        add(PolicySubject::BannedAuthor(eve.key())),
        PolicyAction::Hold {
            repo: carol.repo("zq-held"),
            reason: String::new(),
            until,
        },
        add(PolicySubject::BannedRepo(carol.repo("zq-banned"))),
        add(PolicySubject::BannedName("zq-name".parse().unwrap())),
    ];
    decisions.extend(
        single
            .events
            .iter()
            .map(|event| add(PolicySubject::BannedEvent(event.id))),
    );
    world.secrets = vec![by_author, single];
    world.secrets.append(&mut whole);

    let (words, tags) = world.shown().await;
    let all: BTreeSet<&str> = world.secrets.iter().map(|secret| secret.word).collect();
    assert_eq!(words, all, "all of it is shown before");
    for decision in decisions {
        decide(&world.instance, decision).await;
    }
    for event in world
        .secrets
        .iter()
        .take(2)
        .flat_map(|secret| &secret.events)
    {
        eventually_async(async || (!world.instance.serves(event).await).then_some(())).await;
    }
    world.instance.settle("x").await;
    world.check_that_nothing_is_shown(&tags).await;
}
