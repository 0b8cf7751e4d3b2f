//! The sandboxed fetch, from real git and from hostile servers.

mod object_limit;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use grasp_core::outbound::{Forbidden, OutboundPolicy};
use grasp_core::service::Endpoint;
use grasp_core::{CloneUrl, Oid, RepoId};
use grasp_purgatory::git::{FetchLimits, Fetched, Fetcher, Git, RepoStore, Slots, StagingLimits};
use grasp_purgatory::hunt::FetchError;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use grasp_tests::{Behaviour, GitServer, Workdir};
use nostr::key::PublicKey;
use tempfile::TempDir;

const LOOPBACK: OutboundPolicy = OutboundPolicy::everywhere();

struct FetchFixture {
    fetcher: Fetcher,
    store: RepoStore,
    dir: TempDir,
}

/// Fetches without waiting for the first answer.
async fn fetch(fetcher: &Fetcher, url: &CloneUrl, oids: &BTreeSet<Oid>) -> Fetched {
    fetcher
        .fetch(&repo(), url, oids, tokio::sync::oneshot::channel().0)
        .await
}

impl FetchFixture {
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
        Self {
            fetcher: Fetcher::new(store.clone(), policy, limits),
            store,
            dir,
        }
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
        !self
            .store
            .repository(&repo())
            .lacking(&set(&[oid]))
            .await
            .unwrap()
            .is_empty()
    }

    /// Returns the number of files below the repositories and incoming directories.
    fn files(&self) -> usize {
        fn count(dir: &std::path::Path) -> usize {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            entries
                .map(|e| {
                    if e.path().is_dir() {
                        count(&e.path())
                    } else {
                        1
                    }
                })
                .sum()
        }
        count(&self.dir.path().join("git/repositories"))
            + count(&self.dir.path().join("git/incoming"))
    }
}

fn repo() -> RepoId {
    RepoId::new(PublicKey::from_byte_array([1; 32]), "x".parse().unwrap())
}

fn set(oids: &[&str]) -> BTreeSet<Oid> {
    oids.iter().map(|oid| oid.parse().unwrap()).collect()
}

fn url(text: &str) -> CloneUrl {
    text.parse().unwrap()
}

/// Hosts a repository of two commits on a server, and returns the commits.
async fn host_two_commits(server: &GitServer) -> (Workdir, String, String) {
    let work = Workdir::init().await;
    let (first, second) = (work.commit("first").await, work.commit("second").await);
    server.host("x", &work).await;
    (work, first, second)
}

#[tokio::test]
async fn advertised_commits_are_listed_and_fetched_completely() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (_work, first, second) = host_two_commits(&server).await;
    let listed = fixture
        .list(&server.url("x"), &[&first, &second])
        .await
        .unwrap();
    assert_eq!(listed, set(&[&second]), "an older commit is not advertised");
    let fetched = fixture.fetch(&server.url("x"), &[&second]).await;
    assert_eq!((fetched.got, fetched.error), (set(&[&second]), None));
    assert!(!fixture.lacks(&second).await && !fixture.lacks(&first).await);
}

#[tokio::test]
async fn a_commit_that_is_not_advertised_can_be_fetched_by_its_id() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (_work, first, second) = host_two_commits(&server).await;
    let fetched = fixture.fetch(&server.url("x"), &[&first]).await;
    assert_eq!(fetched.got, set(&[&first]));
    assert!(
        fixture.lacks(&second).await,
        "only the requested commit came"
    );
}

#[tokio::test]
async fn an_update_fetches_only_new_objects() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (work, _, second) = host_two_commits(&server).await;
    fixture.fetch(&server.url("x"), &[&second]).await;
    let third = work.commit("third").await;
    server.host("x", &work).await;
    let fetched = fixture.fetch(&server.url("x"), &[&third]).await;
    assert_eq!(fetched.got, set(&[&third]));
    let haves = server.requests();
    assert!(haves.len() >= 4, "{haves:?}");
}

#[tokio::test]
async fn only_requested_objects_are_kept() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (work, first, _) = host_two_commits(&server).await;
    work.git(&["checkout", "-q", "-b", "other", &first])
        .await
        .expect_ok();
    let other = work.commit("other").await;
    server.host("x", &work).await;
    fixture.fetch(&server.url("x"), &[&other]).await;
    assert!(!fixture.lacks(&other).await);
    assert!(
        fixture
            .lacks(&work.git(&["rev-parse", "main"]).await.expect_ok())
            .await
    );
}

#[tokio::test]
async fn one_missing_object_fails_the_whole_batch_as_in_git() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (_work, _, second) = host_two_commits(&server).await;
    let fetched = fixture
        .fetch(&server.url("x"), &[&second, &"d".repeat(40)])
        .await;
    assert!(
        matches!(fetched.error, Some(FetchError::Refused(_))),
        "{fetched:?}"
    );
    assert!(fetched.got.is_empty());
    until(|| fixture.files() == 0).await;
}

#[tokio::test]
async fn shallow_history_is_refused() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (work, _, second) = host_two_commits(&server).await;
    let from = format!("file://{}", work.path().display());
    let to = server.path("shallow");
    work.git(&[
        "clone",
        "-q",
        "--bare",
        "--depth=1",
        &from,
        &to.to_string_lossy(),
    ])
    .await
    .expect_ok();
    let fetched = fixture.fetch(&server.url("shallow"), &[&second]).await;
    assert!(fetched.got.is_empty());
    assert!(
        matches!(fetched.error, Some(FetchError::Broken(_))),
        "{fetched:?}"
    );
    assert!(fixture.lacks(&second).await);
    let complete = fixture.fetch(&server.url("x"), &[&second]).await;
    assert_eq!(complete.got, set(&[&second]), "another source still works");
}

#[tokio::test]
async fn damaged_packs_are_refused() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (_work, _, second) = host_two_commits(&server).await;
    server.set_behaviour(Behaviour::DamagedPack);
    let fetched = fixture.fetch(&server.url("x"), &[&second]).await;
    assert!(fetched.got.is_empty());
    assert!(
        matches!(fetched.error, Some(FetchError::Broken(_))),
        "{fetched:?}"
    );
    until(|| fixture.files() == 0).await;
}

#[tokio::test]
async fn a_fetch_beyond_the_byte_limit_is_refused() {
    let limits = FetchLimits {
        bytes: 256 * 1024,
        ..FetchLimits::default()
    };
    let (server, fixture) = (
        GitServer::start().await,
        FetchFixture::new(LOOPBACK, limits).await,
    );
    let work = Workdir::init().await;
    // Incompressible, so that it is large in transfer too.
    let mut random = 1_u64;
    let text: Vec<u8> = std::iter::repeat_with(|| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 56) as u8
    })
    .take(1024 * 1024)
    .collect();
    std::fs::write(work.path().join("random"), text).unwrap();
    work.git(&["add", "random"]).await.expect_ok();
    let commit = work.commit("large").await;
    server.host("x", &work).await;
    let fetched = fixture.fetch(&server.url("x"), &[&commit]).await;
    assert_eq!(fetched.error, Some(FetchError::TooLarge));
    assert!(fixture.lacks(&commit).await);
}

#[tokio::test]
async fn a_small_pack_of_a_huge_object_cannot_fill_memory() {
    const MIB: u64 = 1024 * 1024;
    let limits = FetchLimits {
        memory: 192 * MIB,
        ..FetchLimits::default()
    };
    let (server, fixture) = (
        GitServer::start().await,
        FetchFixture::new(LOOPBACK, limits).await,
    );
    let work = Workdir::init().await;
    let file = std::fs::File::create(work.path().join("zeros")).unwrap();
    file.set_len(400 * MIB).unwrap();
    work.git(&["-c", "core.bigFileThreshold=1m", "add", "zeros"])
        .await
        .expect_ok();
    let commit = work.commit("bomb").await;
    server.host("x", &work).await;
    let start = Instant::now();
    let fetched = fixture.fetch(&server.url("x"), &[&commit]).await;
    // The object may be streamed or refused.
    assert!(
        fetched.got.len() + usize::from(fetched.error.is_some()) == 1,
        "{fetched:?}"
    );
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn an_endless_advertisement_is_cut_off() {
    let fixture = FetchFixture::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::EndlessRefs).await;
    let listed = fixture.list(&server.url("x"), &[]).await;
    assert_eq!(listed, Err(FetchError::TooManyRefs));
    let fetched = fixture.fetch(&server.url("x"), &[&"a".repeat(40)]).await;
    assert_eq!(fetched.error, Some(FetchError::TooManyRefs));
}

#[tokio::test]
async fn a_long_advertisement_is_read_again_with_more_memory() {
    let fixture = FetchFixture::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::ManyRefs(100_000)).await;
    let last = format!("{:040x}", 100_000);
    let listed = fixture.list(&server.url("x"), &[&last]).await;
    assert_eq!(listed, Ok(set(&[&last])));
    assert_eq!(server.requests().len(), 2, "{:?}", server.requests());
}

#[tokio::test]
async fn an_unresponsive_server_times_out() {
    let limits = FetchLimits {
        listing: Duration::from_millis(300),
        silence: Duration::from_secs(1),
        ..FetchLimits::default()
    };
    let fixture = FetchFixture::new(LOOPBACK, limits).await;
    let server = GitServer::at("127.0.0.1", Behaviour::Unresponsive).await;
    assert_eq!(
        fixture.list(&server.url("x"), &[]).await,
        Err(FetchError::Stalled)
    );
    let fetched = fixture.fetch(&server.url("x"), &[&"a".repeat(40)]).await;
    assert_eq!(fetched.error, Some(FetchError::Stalled));
    server.set_behaviour(Behaviour::SlowBytes);
    let fetched = fixture.fetch(&server.url("x"), &[&"a".repeat(40)]).await;
    assert_eq!(
        fetched.error,
        Some(FetchError::Stalled),
        "ten bytes per second count as a stall"
    );
}

#[tokio::test]
async fn retry_after_of_a_rate_limit_is_reported() {
    let fixture = FetchFixture::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::RateLimited(77)).await;
    let retry_after = Some(Duration::from_secs(77));
    assert_eq!(
        fixture.list(&server.url("x"), &[]).await,
        Err(FetchError::RateLimited { retry_after })
    );
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let (fixture, other) = (FetchFixture::open().await, GitServer::start().await);
    let (_work, _, second) = host_two_commits(&other).await;
    let to = format!("http://{}", other.address());
    let server = GitServer::at("127.0.0.1", Behaviour::Redirects(to)).await;
    let listed = fixture.list(&server.url("x"), &[&second]).await;
    assert!(matches!(listed, Err(FetchError::Answered(_))), "{listed:?}");
    let fetched = fixture.fetch(&server.url("x"), &[&second]).await;
    assert!(fetched.got.is_empty());
    assert!(other.requests().is_empty(), "{:?}", other.requests());
}

#[tokio::test]
async fn private_addresses_are_forbidden() {
    let fixture = FetchFixture::new(OutboundPolicy::default(), FetchLimits::default()).await;
    let server = GitServer::start().await;
    let port = server.address().port();
    for host in [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "[::ffff:127.0.0.1]",
        "0x7f.1",
    ] {
        let listed = fixture
            .list(&format!("http://{host}:{port}/x.git"), &[])
            .await;
        assert!(
            matches!(listed, Err(FetchError::Forbidden(_))),
            "{host}: {listed:?}"
        );
    }
    assert!(server.requests().is_empty());
}

/// Resolves every name to these addresses.
fn resolving_to(addresses: Vec<IpAddr>) -> impl Fn(&str) -> Vec<IpAddr> {
    move |_| addresses.clone()
}

#[tokio::test]
async fn names_that_resolve_to_private_addresses_are_forbidden() {
    let server = GitServer::start().await;
    let port = server.address().port();
    // Loopback, also beside a public address; NAT64, well-known and local; carrier-grade NAT; link-local; 6to4.
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
        let fixture = FetchFixture::new(OutboundPolicy::default(), FetchLimits::default()).await;
        let addresses = addresses
            .iter()
            .map(|address| address.parse().unwrap())
            .collect();
        let fetcher = fixture.fetcher.resolving(resolving_to(addresses));
        let at = url(&format!("http://git.example.com:{port}/x.git"));
        let listed = fetcher.list(&at, &BTreeSet::new()).await;
        assert!(
            matches!(listed, Err(FetchError::Forbidden(_))),
            "{listed:?}"
        );
    }
    assert!(server.requests().is_empty());
}

/// Resolves a name to the server's address unless it has moved, and to a private one from then on.
fn rebinding(has_moved: bool) -> impl Fn(&str) -> Vec<IpAddr> {
    let has_moved = AtomicBool::new(has_moved);
    move |_| {
        let moved = has_moved.swap(true, Ordering::SeqCst);
        vec![
            if moved { "10.0.0.1" } else { "127.0.0.1" }
                .parse()
                .unwrap(),
        ]
    }
}

#[tokio::test]
async fn a_name_is_resolved_once_per_request_so_that_it_cannot_be_rebound() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (_work, _, second) = host_two_commits(&server).await;
    let fetcher = fixture.fetcher.resolving(rebinding(false));
    let at = url(&format!(
        "http://git.invalid:{}/x.git",
        server.address().port()
    ));
    // Git sends more than one request in a fetch, each to the address that was checked.
    let fetched = fetch(&fetcher, &at, &set(&[&second])).await;
    assert_eq!(fetched.got, set(&[&second]));
    assert!(server.requests().len() > 1);
}

#[tokio::test]
async fn a_name_that_now_resolves_to_a_private_address_is_checked_again() {
    let fixture = FetchFixture::new(OutboundPolicy::default(), FetchLimits::default()).await;
    let fetcher = fixture.fetcher.resolving(rebinding(true));
    let at = url("http://git.example.com/x.git");
    let listed = fetcher.list(&at, &BTreeSet::new()).await;
    assert_eq!(listed, Err(FetchError::Forbidden(Forbidden::Address)));
}

#[tokio::test]
async fn git_connects_to_the_checked_address_without_a_lookup() {
    let (server, fixture) = (GitServer::start().await, FetchFixture::open().await);
    let (_work, _, second) = host_two_commits(&server).await;
    let fetcher = fixture
        .fetcher
        .resolving(resolving_to(vec!["127.0.0.1".parse().unwrap()]));
    // Only the resolver of this test knows the name.
    let at = url(&format!(
        "http://git.invalid:{}/x.git",
        server.address().port()
    ));
    let listed = fetcher.list(&at, &set(&[&second])).await.unwrap();
    assert_eq!(listed.has, set(&[&second]));
    let fetched = fetch(&fetcher, &at, &set(&[&second])).await;
    assert_eq!(fetched.got, set(&[&second]));
}

#[tokio::test]
async fn an_aborted_fetch_stops_all_processes_of_git() {
    let fixture = FetchFixture::open().await;
    let server = GitServer::at("127.0.0.1", Behaviour::Unresponsive).await;
    let (at, oids) = (url(&server.url("fetched-in-vain")), set(&[&"a".repeat(40)]));
    let fetch = tokio::spawn({
        let fetcher = fixture.fetcher.clone();
        async move { fetch(&fetcher, &at, &oids).await }
    });
    until(|| !server.requests().is_empty()).await;
    assert!(processes("fetched-in-vain") > 0);
    fetch.abort();
    until(|| processes("fetched-in-vain") == 0).await;
}

/// Returns the number of processes with this text in their command line.
fn processes(text: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines
        .filter(|line| String::from_utf8_lossy(line).contains(text))
        .count()
}

async fn until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
