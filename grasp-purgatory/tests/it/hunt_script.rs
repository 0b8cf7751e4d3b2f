//! A world by script: what is wanted, what each server does, and what was asked of whom.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use grasp_core::limits::PeerText;
use grasp_core::{CloneUrl, Identifier, Mono, Now, Oid, RelayUrl};
use grasp_purgatory::Want;
use grasp_purgatory::git::Fetched;
use grasp_purgatory::hunt::{Advertisement, FetchError, HostClass, HuntReport, Scope, SyncContext};
use nostr::types::Timestamp;
use tokio::sync::oneshot;

use crate::hunt_sim::{name, oids, url};

/// What a server does with a question.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// Advertises and gives these.
    Has(BTreeSet<Oid>),
    /// Never answers.
    Silent,
    /// Has the task that asks break.
    Breaks,
    /// Refuses.
    Refuses,
}

/// The scripted [`SyncContext`].
pub(crate) struct Script {
    start: Instant,
    wants: BTreeMap<Identifier, Vec<Want>>,
    servers: BTreeMap<CloneUrl, Act>,
    brief_takes: Duration,
    seen: Mutex<Seen>,
    open: Arc<AtomicUsize>,
}

/// What has happened so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Objects that are here.
    pub(crate) here: BTreeSet<Oid>,
    /// Whom was asked, and for which objects, if for any.
    pub(crate) asked: Vec<(CloneUrl, Option<BTreeSet<Oid>>)>,
    pub(crate) reports: Vec<HuntReport>,
    pub(crate) briefs: usize,
    pub(crate) most_briefs: usize,
    open_briefs: usize,
    breaks: usize,
}

/// A question that is open until this is dropped, by whomever.
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
            brief_takes: Duration::ZERO,
            seen: Mutex::default(),
            open: Arc::default(),
        }
    }

    pub(crate) fn wants(mut self, identifier: &str, wants: Vec<Want>) -> Self {
        self.wants.insert(name(identifier), wants);
        self
    }

    pub(crate) fn has(self, place: &str, objects: &[u8]) -> Self {
        self.does(place, Act::Has(oids(objects)))
    }

    pub(crate) fn does(mut self, place: &str, act: Act) -> Self {
        self.servers.insert(url(place), act);
        self
    }

    /// The first so many looks into our own store break.
    pub(crate) fn breaking(self, times: usize) -> Self {
        self.seen.lock().unwrap().breaks = times;
        self
    }

    pub(crate) fn brief_takes(mut self, length: Duration) -> Self {
        self.brief_takes = length;
        self
    }

    /// What has happened so far.
    pub(crate) fn seen<T>(&self, look: impl FnOnce(&Seen) -> T) -> T {
        look(&self.seen.lock().unwrap())
    }

    /// Questions that are open.
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    pub(crate) fn has_everything(&self, identifier: &str) -> bool {
        self.lacking(&name(identifier)).is_empty()
    }

    /// Waits until something is so.
    pub(crate) async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", self.seen.lock());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn lacking(&self, identifier: &Identifier) -> Vec<Want> {
        let seen = self.seen.lock().unwrap();
        let mut wants = self.wants.get(identifier).cloned().unwrap_or_default();
        wants.iter_mut().for_each(|want| want.tips.retain(|tip| !seen.here.contains(tip)));
        wants.retain(|want| !want.tips.is_empty());
        wants
    }

    /// Puts a question to a server; what it has, if it answers.
    async fn ask(&self, url: &CloneUrl, oids: Option<BTreeSet<Oid>>) -> Option<BTreeSet<Oid>> {
        self.open.fetch_add(1, Ordering::SeqCst);
        let _open = Open(Arc::clone(&self.open));
        self.seen.lock().unwrap().asked.push((url.clone(), oids));
        match self.servers.get(url) {
            Some(Act::Has(oids)) => Some(oids.clone()),
            Some(Act::Silent) => std::future::pending().await,
            Some(Act::Breaks) => panic!("a task breaks, as the script says"),
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

    async fn wants(&self, identifier: &Identifier, _: Scope) -> Option<Vec<Want>> {
        {
            let mut seen = self.seen.lock().unwrap();
            seen.briefs += 1;
            seen.open_briefs += 1;
            seen.most_briefs = seen.most_briefs.max(seen.open_briefs);
        }
        tokio::time::sleep(self.brief_takes).await;
        let breaks = {
            let mut seen = self.seen.lock().unwrap();
            seen.open_briefs -= 1;
            let breaks = seen.breaks > 0;
            seen.breaks -= usize::from(breaks);
            breaks
        };
        assert!(!breaks, "a look breaks, as the script says");
        Some(self.lacking(identifier))
    }

    async fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> Result<Advertisement, FetchError> {
        let has = self.ask(url, None).await;
        let has = has.ok_or_else(|| FetchError::Answered(PeerText::new("404")))?;
        Ok(Advertisement::read(has.iter().map(|oid| ("refs/heads/x", *oid)), wanted))
    }

    async fn classify(&self, _: &RelayUrl) -> Option<HostClass> {
        None
    }

    async fn fetch(
        &self,
        _: &Identifier,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        _: oneshot::Sender<()>,
    ) -> Fetched {
        let has = self.ask(url, Some(oids.clone())).await.unwrap_or_default();
        let got: BTreeSet<Oid> = oids.intersection(&has).copied().collect();
        self.seen.lock().unwrap().here.extend(&got);
        let refused = || FetchError::Refused(PeerText::new("not our ref"));
        let error = (got.len() < oids.len()).then(refused);
        Fetched { got, error, bytes: 0 }
    }

    async fn identifiers(&self) -> BTreeSet<Identifier> {
        BTreeSet::new()
    }

    fn report(&self, report: &HuntReport) {
        self.seen.lock().unwrap().reports.push(report.clone());
    }
}
