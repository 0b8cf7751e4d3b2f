//! The sandboxed fetch against real git and against servers that mean ill.

mod many;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use grasp_core::outbound::{Forbidden, OutboundPolicy};
use grasp_core::service::Endpoint;
use grasp_core::{CloneUrl, Identifier, Oid};
use grasp_purgatory::git::{FetchLimits, Fetched, Fetcher, Git, RepoStore, Slots, StagingLimits};
use grasp_purgatory::hunt::FetchError;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_tests::{Behaviour, GitServer, Workdir};
use tempfile::TempDir;

const LOOPBACK: OutboundPolicy = OutboundPolicy { allow_private: true };

struct Place {
    fetcher: Fetcher,
    store: RepoStore,
    dir: TempDir,
}

/// Fetches without listening for the first answer.
async fn fetch(fetcher: &Fetcher, url: &CloneUrl, oids: &BTreeSet<Oid>) -> Fetched {
    fetcher.fetch(&name(), url, oids, tokio::sync::oneshot::channel().0).await
}

impl Place {
    async fn new(policy: OutboundPolicy, limits: FetchLimits) -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        Self::with_git(Git::find(&path, Slots::default()).unwrap(), policy, limits).await
    }

    async fn with_git(git: Git, policy: OutboundPolicy, limits: FetchLimits) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("grasp.db");
        let database = Arc::new(SqliteStore::open(&file, SqliteOptions::default()).unwrap());
        let (root, limits_of_staging) = (dir.path().join("git"), StagingLimits::default());
        let endpoint = Endpoint::Repository;
        let store = RepoStore::open(&root, endpoint, git, limits_of_staging, database, None).await;
        let store = store.unwrap();
        Self { fetcher: Fetcher::new(store.clone(), policy, limits), store, dir }
    }

    async fn open() -> Self {
        Self::new(LOOPBACK, FetchLimits::default()).await
    }

    async fn fetch(&self, url: &str, oids: &[&str]) -> Fetched {
        fetch(&self.fetcher, &url.parse().unwrap(), &set(oids)).await
    }

    async fn list(&self, url: &str, oids: &[&str]) -> Result<BTreeSet<Oid>, FetchError> {
        let listed = self.fetcher.list(&url.parse().unwrap(), &set(oids)).await;
        listed.map(|advertised| advertised.has)
    }

    async fn lacks(&self, oid: &str) -> bool {
        !self.store.lacking(&name(), &set(&[oid])).await.unwrap().is_empty()
    }

    /// How many files there are below the families and what is on its way to them.
    fn files(&self) -> usize {
        fn count(dir: &std::path::Path) -> usize {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries.map(|e| if e.path().is_dir() { count(&e.path()) } else { 1 }).sum()
        }
        count(&self.dir.path().join("git/families")) + count(&self.dir.path().join("git/incoming"))
    }
}

fn name() -> Identifier {
    "x".parse().unwrap()
}

fn set(oids: &[&str]) -> BTreeSet<Oid> {
    oids.iter().map(|oid| oid.parse().unwrap()).collect()
}

fn url(text: &str) -> CloneUrl {
    text.parse().unwrap()
}

/// A server with a repository of two commits, and these.
async fn served(server: &GitServer) -> (Workdir, String, String) {
    let work = Workdir::init().await;
    let (first, second) = (work.commit("first").await, work.commit("second").await);
    server.host("x", &work).await;
    (work, first, second)
}

#[tokio::test]
async fn what_is_advertised_is_listed_and_fetched_whole() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (_work, first, second) = served(&server).await;
    let listed = place.list(&server.url("x"), &[&first, &second]).await.unwrap();
    assert_eq!(listed, set(&[&second]), "an older commit is not advertised");
    let fetched = place.fetch(&server.url("x"), &[&second]).await;
    assert_eq!((fetched.got, fetched.error), (set(&[&second]), None));
    assert!(!place.lacks(&second).await && !place.lacks(&first).await);
}

#[tokio::test]
async fn an_object_that_is_not_advertised_may_be_had_by_its_id() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (_work, first, second) = served(&server).await;
    let fetched = place.fetch(&server.url("x"), &[&first]).await;
    assert_eq!(fetched.got, set(&[&first]));
    assert!(place.lacks(&second).await, "nothing else came");
}

#[tokio::test]
async fn an_update_sends_only_what_is_new() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (work, _, second) = served(&server).await;
    place.fetch(&server.url("x"), &[&second]).await;
    let third = work.commit("third").await;
    server.host("x", &work).await;
    let fetched = place.fetch(&server.url("x"), &[&third]).await;
    assert_eq!(fetched.got, set(&[&third]));
    let haves = server.requests();
    assert!(haves.len() >= 4, "{haves:?}");
}

#[tokio::test]
async fn nothing_is_kept_that_was_not_asked_for() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (work, first, _) = served(&server).await;
    work.git(&["checkout", "-q", "-b", "other", &first]).await.expect_ok();
    let other = work.commit("other").await;
    server.host("x", &work).await;
    place.fetch(&server.url("x"), &[&other]).await;
    assert!(!place.lacks(&other).await);
    assert!(place.lacks(&work.git(&["rev-parse", "main"]).await.expect_ok()).await);
}

#[tokio::test]
async fn one_object_that_is_missing_fails_the_whole_batch_as_git_does() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (_work, _, second) = served(&server).await;
    let fetched = place.fetch(&server.url("x"), &[&second, &"d".repeat(40)]).await;
    assert!(matches!(fetched.error, Some(FetchError::Refused(_))), "{fetched:?}");
    assert!(fetched.got.is_empty());
    until(|| place.files() == 0).await;
}

#[tokio::test]
async fn shallow_history_does_not_enter() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (work, _, second) = served(&server).await;
    let from = format!("file://{}", work.path().display());
    let to = server.path("shallow");
    work.git(&["clone", "-q", "--bare", "--depth=1", &from, &to.to_string_lossy()])
        .await
        .expect_ok();
    let fetched = place.fetch(&server.url("shallow"), &[&second]).await;
    assert!(fetched.got.is_empty());
    assert!(matches!(fetched.error, Some(FetchError::Broken(_))), "{fetched:?}");
    assert!(place.lacks(&second).await);
    let whole = place.fetch(&server.url("x"), &[&second]).await;
    assert_eq!(whole.got, set(&[&second]), "another source is not harmed by it");
}

#[tokio::test]
async fn damaged_packs_do_not_enter() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (_work, _, second) = served(&server).await;
    server.set_behaviour(Behaviour::DamagedPack);
    let fetched = place.fetch(&server.url("x"), &[&second]).await;
    assert!(fetched.got.is_empty());
    assert!(matches!(fetched.error, Some(FetchError::Broken(_))), "{fetched:?}");
    until(|| place.files() == 0).await;
}

#[tokio::test]
async fn more_than_may_come_does_not_come() {
    let limits = FetchLimits { bytes: 256 * 1024, ..FetchLimits::default() };
    let (server, place) = (GitServer::start().await, Place::new(LOOPBACK, limits).await);
    let work = Workdir::init().await;
    // What cannot be compressed, so that it is large on the way too.
    let mut noise = 1_u64;
    let text: Vec<u8> = std::iter::repeat_with(|| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (noise >> 56) as u8
    })
    .take(1024 * 1024)
    .collect();
    std::fs::write(work.path().join("noise"), text).unwrap();
    work.git(&["add", "noise"]).await.expect_ok();
    let commit = work.commit("large").await;
    server.host("x", &work).await;
    let fetched = place.fetch(&server.url("x"), &[&commit]).await;
    assert_eq!(fetched.error, Some(FetchError::TooLarge));
    assert!(place.lacks(&commit).await);
}

#[tokio::test]
async fn a_small_pack_of_something_huge_cannot_fill_memory() {
    const MIB: u64 = 1024 * 1024;
    let limits = FetchLimits { memory: 192 * MIB, ..FetchLimits::default() };
    let (server, place) = (GitServer::start().await, Place::new(LOOPBACK, limits).await);
    let work = Workdir::init().await;
    let file = std::fs::File::create(work.path().join("zeros")).unwrap();
    file.set_len(400 * MIB).unwrap();
    work.git(&["-c", "core.bigFileThreshold=1m", "add", "zeros"]).await.expect_ok();
    let commit = work.commit("bomb").await;
    server.host("x", &work).await;
    let start = Instant::now();
    let fetched = place.fetch(&server.url("x"), &[&commit]).await;
    // Either is fine: it is taken piece by piece, or refused.
    assert!(fetched.got.len() + usize::from(fetched.error.is_some()) == 1, "{fetched:?}");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn an_advertisement_without_end_has_one_here() {
    let place = Place::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::EndlessRefs).await;
    let listed = place.list(&server.url("x"), &[]).await;
    assert_eq!(listed, Err(FetchError::TooManyRefs));
    let fetched = place.fetch(&server.url("x"), &[&"a".repeat(40)]).await;
    assert_eq!(fetched.error, Some(FetchError::TooManyRefs));
}

#[tokio::test]
async fn a_long_advertisement_is_read_with_more_memory() {
    let place = Place::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::ManyRefs(100_000)).await;
    let last = format!("{:040x}", 100_000);
    let listed = place.list(&server.url("x"), &[&last]).await;
    assert_eq!(listed, Ok(set(&[&last])));
    // The second time with more.
    assert_eq!(server.requests().len(), 2, "{:?}", server.requests());
}

#[tokio::test]
async fn who_says_nothing_is_given_up() {
    let limits = FetchLimits {
        listing: Duration::from_millis(300),
        silence: Duration::from_secs(1),
        ..FetchLimits::default()
    };
    let place = Place::new(LOOPBACK, limits).await;
    let server = GitServer::at("127.0.0.1", Behaviour::Unresponsive).await;
    assert_eq!(place.list(&server.url("x"), &[]).await, Err(FetchError::Stalled));
    let fetched = place.fetch(&server.url("x"), &[&"a".repeat(40)]).await;
    assert_eq!(fetched.error, Some(FetchError::Stalled));
    server.set_behaviour(Behaviour::SlowBytes);
    let fetched = place.fetch(&server.url("x"), &[&"a".repeat(40)]).await;
    assert_eq!(fetched.error, Some(FetchError::Stalled), "ten bytes a second are silence");
}

#[tokio::test]
async fn who_asks_for_less_says_for_how_long() {
    let place = Place::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::RateLimited(77)).await;
    let retry_after = Some(Duration::from_secs(77));
    assert_eq!(
        place.list(&server.url("x"), &[]).await,
        Err(FetchError::RateLimited { retry_after })
    );
}

#[tokio::test]
async fn a_redirect_leads_nowhere() {
    let (place, other) = (Place::open().await, GitServer::start().await);
    let (_work, _, second) = served(&other).await;
    let to = format!("http://{}", other.address());
    let server = GitServer::at("127.0.0.1", Behaviour::Redirects(to)).await;
    let listed = place.list(&server.url("x"), &[&second]).await;
    assert!(matches!(listed, Err(FetchError::Answered(_))), "{listed:?}");
    let fetched = place.fetch(&server.url("x"), &[&second]).await;
    assert!(fetched.got.is_empty());
    assert!(other.requests().is_empty(), "{:?}", other.requests());
}

#[tokio::test]
async fn strangers_cannot_send_us_to_private_places() {
    let place = Place::new(OutboundPolicy::default(), FetchLimits::default()).await;
    let server = GitServer::start().await;
    let port = server.address().port();
    for host in ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]", "0x7f.1"] {
        let listed = place.list(&format!("http://{host}:{port}/x.git"), &[]).await;
        assert!(matches!(listed, Err(FetchError::Forbidden(_))), "{host}: {listed:?}");
    }
    assert!(server.requests().is_empty());
}

/// Says that every name is at these addresses.
fn everywhere(addresses: Vec<IpAddr>) -> impl Fn(&str) -> Vec<IpAddr> {
    move |_| addresses.clone()
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_place_is_not_gone_to() {
    let server = GitServer::start().await;
    let port = server.address().port();
    // Loopback, beside a public one too; inside NAT64, well-known and local; carriers' own; link-local; 6to4.
    let private = [
        &["127.0.0.1"][..],
        &["1.1.1.1", "127.0.0.1"],
        &["64:ff9b::7f00:1"],
        &["64:ff9b:1::1"],
        &["100.64.0.1"],
        &["169.254.169.254"],
        &["2002:7f00:1::1"],
        &["fc00::1"],
        &["0.0.0.0"],
    ];
    for addresses in private {
        let place = Place::new(OutboundPolicy::default(), FetchLimits::default()).await;
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let fetcher = place.fetcher.resolving(everywhere(addresses));
        let at = url(&format!("http://git.example.com:{port}/x.git"));
        let listed = fetcher.list(&at, &BTreeSet::new()).await;
        assert!(matches!(listed, Err(FetchError::Forbidden(_))), "{listed:?}");
    }
    assert!(server.requests().is_empty());
}

/// Says where the server is unless it has moved, and somewhere private from then on.
fn rebinding(has_moved: bool) -> impl Fn(&str) -> Vec<IpAddr> {
    let has_moved = AtomicBool::new(has_moved);
    move |_| {
        let moved = has_moved.swap(true, Ordering::SeqCst);
        vec![if moved { "10.0.0.1" } else { "127.0.0.1" }.parse().unwrap()]
    }
}

#[tokio::test]
async fn a_name_is_looked_up_once_for_a_conversation_so_nobody_can_move_it_meanwhile() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (_work, _, second) = served(&server).await;
    let fetcher = place.fetcher.resolving(rebinding(false));
    let at = url(&format!("http://git.invalid:{}/x.git", server.address().port()));
    // Git asks more than once in a fetch, and each time at the address that was judged.
    let fetched = fetch(&fetcher, &at, &set(&[&second])).await;
    assert_eq!(fetched.got, set(&[&second]));
    assert!(server.requests().len() > 1);
}

#[tokio::test]
async fn a_name_that_has_moved_to_a_private_place_is_judged_anew() {
    let place = Place::new(OutboundPolicy::default(), FetchLimits::default()).await;
    let fetcher = place.fetcher.resolving(rebinding(true));
    let at = url("http://git.example.com/x.git");
    let listed = fetcher.list(&at, &BTreeSet::new()).await;
    assert_eq!(listed, Err(FetchError::Forbidden(Forbidden::Address)));
}

#[tokio::test]
async fn git_connects_to_the_address_that_was_judged_and_looks_up_nothing() {
    let (server, place) = (GitServer::start().await, Place::open().await);
    let (_work, _, second) = served(&server).await;
    let fetcher = place.fetcher.resolving(everywhere(vec!["127.0.0.1".parse().unwrap()]));
    // Nobody but our own lookup knows this name.
    let at = url(&format!("http://git.invalid:{}/x.git", server.address().port()));
    let listed = fetcher.list(&at, &set(&[&second])).await.unwrap();
    assert_eq!(listed.has, set(&[&second]));
    let fetched = fetch(&fetcher, &at, &set(&[&second])).await;
    assert_eq!(fetched.got, set(&[&second]));
}

#[tokio::test]
async fn giving_up_stops_everything_that_git_started() {
    let place = Place::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::Unresponsive).await;
    let (at, oids) = (url(&server.url("given-up")), set(&[&"a".repeat(40)]));
    let fetch = tokio::spawn({
        let fetcher = place.fetcher.clone();
        async move { fetch(&fetcher, &at, &oids).await }
    });
    until(|| !server.requests().is_empty()).await;
    assert!(processes("given-up") > 0);
    fetch.abort();
    until(|| processes("given-up") == 0).await;
}

/// How many processes have a word in their command line.
fn processes(word: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

async fn until(mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
