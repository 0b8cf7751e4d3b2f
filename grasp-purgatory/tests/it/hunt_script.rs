//! A scripted [`SyncContext`]: the wants, the behaviour of each server, and a record of the requests.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use grasp_core::limits::PeerText;
use grasp_core::{CloneUrl, Mono, Now, Oid, RelayUrl, RepoId};
use grasp_purgatory::Want;
use grasp_purgatory::git::Fetched;
use grasp_purgatory::hunt::{Advertisement, FetchError, HostClass, HuntReport, Scope, SyncContext};
use nostr::types::Timestamp;
use tokio::sync::oneshot;

use crate::hunt_sim::{name, oids, url};

/// The behaviour of a server.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Advertises and sends these objects.
    Has(BTreeSet<Oid>),
    /// Never answers.
    Silent,
    /// Makes the requesting task panic.
    Panics,
    /// Refuses.
    Refuses,
}

/// The scripted [`SyncContext`].
pub(crate) struct Script {
    start: Instant,
    wants: BTreeMap<RepoId, Vec<Want>>,
    servers: BTreeMap<CloneUrl, Act>,
    lookup_takes: Duration,
    seen: Mutex<Seen>,
    open: Arc<AtomicUsize>,
}

/// The events of the test so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Objects that are here.
    pub(crate) here: BTreeSet<Oid>,
    /// The requests: the address, and the objects unless it was for the advertisement.
    pub(crate) asked: Vec<(CloneUrl, Option<BTreeSet<Oid>>)>,
    pub(crate) reports: Vec<HuntReport>,
    pub(crate) lookups: usize,
    pub(crate) max_lookups: usize,
    open_lookups: usize,
    panics: usize,
}

/// Counts a request as open until it is dropped.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Script {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            wants: BTreeMap::new(),
            servers: BTreeMap::new(),
            lookup_takes: Duration::ZERO,
            seen: Mutex::default(),
            open: Arc::default(),
        }
    }

    pub(crate) fn wants(mut self, repo: &str, wants: Vec<Want>) -> Self {
        self.wants.insert(name(repo), wants);
        self
    }

    pub(crate) fn has(self, address: &str, objects: &[u8]) -> Self {
        self.does(address, Act::Has(oids(objects)))
    }

    pub(crate) fn does(mut self, address: &str, act: Act) -> Self {
        self.servers.insert(url(address), act);
        self
    }

    /// Makes the first `times` lookups in the store panic.
    pub(crate) fn panicking_lookups(self, times: usize) -> Self {
        self.seen.lock().unwrap().panics = times;
        self
    }

    pub(crate) fn lookup_takes(mut self, length: Duration) -> Self {
        self.lookup_takes = length;
        self
    }

    /// Reads the events of the test so far.
    pub(crate) fn seen<T>(&self, read: impl FnOnce(&Seen) -> T) -> T {
        read(&self.seen.lock().unwrap())
    }

    /// Returns the number of open requests.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub(crate) fn has_everything(&self, repo: &str) -> bool {
        self.lacking(&name(repo)).is_empty()
    }

    /// Waits until a condition is true.
    pub(crate) async fn until(&self, condition: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !condition(self) {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{:?}",
                self.seen.lock()
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn lacking(&self, repo: &RepoId) -> Vec<Want> {
        let seen = self.seen.lock().unwrap();
        let mut wants = self.wants.get(repo).cloned().unwrap_or_default();
        wants
            .iter_mut()
            .for_each(|want| want.tips.retain(|tip| !seen.here.contains(tip)));
        wants.retain(|want| !want.tips.is_empty());
        wants
    }

    /// Sends a request to a server, and returns its objects if it answers.
    async fn ask(&self, url: &CloneUrl, oids: Option<BTreeSet<Oid>>) -> Option<BTreeSet<Oid>> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let _open = Open(Arc::clone(&self.open));
        self.seen.lock().unwrap().asked.push((url.clone(), oids));
        match self.servers.get(url) {
            Some(Act::Has(oids)) => Some(oids.clone()),
            Some(Act::Silent) => std::future::pending().await,
            Some(Act::Panics) => panic!("a scripted panic of a request"),
            Some(Act::Refuses) | None => None,
        }
    }
}

impl SyncContext for Script {
    fn now(&self) -> Now {
        let passed = self.start.elapsed();
        let unix = Timestamp::from_secs(1_800_000_000 + passed.as_secs());
        Now::new(Mono::ZERO + passed, unix)
    }

    async fn wants(&self, repo: &RepoId, _: Scope) -> Option<Vec<Want>> {
        {
            let mut seen = self.seen.lock().unwrap();
            seen.lookups += 1;
            seen.open_lookups += 1;
            seen.max_lookups = seen.max_lookups.max(seen.open_lookups);
        }
        tokio::time::sleep(self.lookup_takes).await;
        let panics = {
            let mut seen = self.seen.lock().unwrap();
            seen.open_lookups -= 1;
            let panics = seen.panics > 0;
            seen.panics -= usize::from(panics);
            panics
        };
        assert!(!panics, "a scripted panic of a lookup");
        Some(self.lacking(repo))
    }

    async fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> Result<Advertisement, FetchError> {
        let has = self.ask(url, None).await;
        let has = has.ok_or_else(|| FetchError::Answered(PeerText::new("404")))?;
        Ok(Advertisement::read(
            has.iter().map(|oid| ("refs/heads/x", *oid)),
            wanted,
        ))
    }

    async fn classify(&self, _: &RelayUrl) -> Option<HostClass> {
        None
    }

    async fn fetch(
        &self,
        _: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        _: oneshot::Sender<()>,
    ) -> Fetched {
        let has = self.ask(url, Some(oids.clone())).await.unwrap_or_default();
        let got: BTreeSet<Oid> = oids.intersection(&has).copied().collect();
        self.seen.lock().unwrap().here.extend(&got);
        let refused = || FetchError::Refused(PeerText::new("not our ref"));
        let error = (got.len() < oids.len()).then(refused);
        Fetched {
            got,
            error,
            bytes: 0,
        }
    }

    async fn repos(&self) -> BTreeSet<RepoId> {
        BTreeSet::new()
    }

    fn report(&self, report: &HuntReport) {
        self.seen.lock().unwrap().reports.push(report.clone());
    }
}
