//! Scripted git servers around a hunt, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::{CloneUrl, Host, Mono, Now, Oid, RelayUrl, RepoId};
use grasp_purgatory::git::Fetched;
use grasp_purgatory::hunt::{
    Advertisement, FetchError, HostClass, HuntConfig, HuntHandle, HuntReport, Scope, SyncContext,
    hunt,
};
use grasp_purgatory::{Phase, Want};
use nostr::event::EventId;
use nostr::types::Timestamp;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::model_events::ALICE;

/// The duration of every request.
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// The time after which git gives up a silent transfer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5 * 60);

/// The behaviour of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    Fine,
    /// Never answers.
    Silent,
    /// Advertises, then never sends objects.
    SilentWithObjects,
    /// Advertises, and sends objects after this time.
    Slow(Duration),
    /// Is unreachable.
    Gone,
    /// Answers that requests are rate limited, with this `Retry-After`.
    Limits(Option<Duration>),
    /// Answers that every third request is rate limited, with this `Retry-After`.
    LimitsEveryThird(Duration),
    /// Makes the requesting task panic.
    Panics,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) behaviour: Behaviour,
    /// Objects that it has and advertises.
    pub(crate) advertises: BTreeSet<Oid>,
    /// Objects that it has and does not advertise.
    pub(crate) hides: BTreeSet<Oid>,
    /// Objects that it advertises and does not have.
    pub(crate) pretends: BTreeSet<Oid>,
}

/// One request to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) at: Mono,
    pub(crate) url: CloneUrl,
    /// None for the advertisement.
    pub(crate) oids: Option<BTreeSet<Oid>>,
}

/// A hunt among scripted servers.
pub(crate) struct Sim {
    net: Arc<Net>,
    pub(crate) hunting: HuntHandle,
}

/// The scripted servers, and what is wanted.
struct Net {
    start: Instant,
    world: Arc<Mutex<World>>,
}

/// The script, and the events of the test so far.
#[derive(Debug, Default)]
pub(crate) struct World {
    pub(crate) servers: BTreeMap<CloneUrl, Server>,
    pub(crate) wants: BTreeMap<RepoId, Vec<Want>>,
    /// The classes that hosts report.
    pub(crate) classes: BTreeMap<Host, HostClass>,
    /// The number of lookups of wants that panic, and of those that fail, before one succeeds.
    pub(crate) panicking_lookups: usize,
    pub(crate) failing_lookups: usize,
    /// Objects that are here, each with its repository.
    pub(crate) here: BTreeSet<(RepoId, Oid)>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) reports: Vec<(Mono, HuntReport)>,
    /// Requests that were cancelled.
    pub(crate) cancelled: usize,
    /// The open requests, and the largest number of them, by host.
    open: BTreeMap<String, usize>,
    pub(crate) max_open: BTreeMap<String, usize>,
    pub(crate) max_in_flight: usize,
    open_lookups: usize,
    pub(crate) max_lookups: usize,
    /// Violations of what a hunt promises.
    violations: Vec<String>,
}

pub(crate) fn oid(n: u8) -> Oid {
    Oid::Sha1([n; 20])
}

pub(crate) fn oids(numbers: &[u8]) -> BTreeSet<Oid> {
    numbers.iter().map(|n| oid(*n)).collect()
}

pub(crate) fn url(text: &str) -> CloneUrl {
    let full = if text.contains("://") {
        text.to_owned()
    } else {
        format!("https://{text}/r.git")
    };
    full.parse().unwrap()
}

/// Returns the repository of this name.
pub(crate) fn name(text: &str) -> RepoId {
    ALICE.repo(text)
}

/// Returns the wants of an event that is held for these tips, at these addresses.
pub(crate) fn want(tips: &[u8], addresses: &[&str]) -> Want {
    Want {
        id: EventId::from_slice(&[tips[0]; 32]).unwrap(),
        phase: Phase::Waiting,
        tips: tips.iter().map(|n| oid(*n)).collect(),
        trusted: addresses.iter().map(|address| url(address)).collect(),
        untrusted: Vec::new(),
    }
}

impl Sim {
    pub(crate) fn new() -> Self {
        Self::with(HuntConfig::default())
    }

    pub(crate) fn with(config: HuntConfig) -> Self {
        let net = Arc::new(Net {
            start: Instant::now(),
            world: Arc::default(),
        });
        let hunting = hunt(config, net.clone());
        Self { net, hunting }
    }

    pub(crate) fn server(self, address: &str, behaviour: Behaviour, advertises: &[u8]) -> Self {
        let server = Server {
            behaviour,
            advertises: oids(advertises),
            hides: BTreeSet::new(),
            pretends: BTreeSet::new(),
        };
        self.world().servers.insert(url(address), server);
        self
    }

    /// Changes a server.
    pub(crate) fn at(&self, address: &str, change: impl FnOnce(&mut Server)) {
        change(self.world().servers.get_mut(&url(address)).unwrap());
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.net.world.lock().unwrap()
    }

    /// Adds wants to a repository.
    pub(crate) fn wanted(&self, repo: &str, wants: Vec<Want>, after: impl Into<Option<Duration>>) {
        let repo = name(repo);
        self.world()
            .wants
            .entry(repo.clone())
            .or_default()
            .extend(wants);
        self.hunting.want(repo, after.into());
    }

    pub(crate) async fn run_for(&self, length: Duration) {
        sleep(length).await;
        // Everything that is due at the same time happens before.
        sleep(Duration::ZERO).await;
        let violations = self.world().violations.clone();
        assert!(violations.is_empty(), "{violations:?}");
    }

    /// Returns all requests, in their order.
    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.world().asked.clone()
    }

    /// Returns the requests to an address, in their order.
    pub(crate) fn asked_of(&self, address: &str) -> Vec<Asked> {
        let mut asked = self.asked();
        asked.retain(|asked| asked.url == url(address));
        asked
    }

    /// Returns the reports of a kind.
    pub(crate) fn reports(&self, is_meant: impl Fn(&HuntReport) -> bool) -> Vec<Mono> {
        let world = self.world();
        let meant = world.reports.iter().filter(|(_, report)| is_meant(report));
        meant.map(|(at, _)| *at).collect()
    }

    /// Returns the objects that are here, of all repositories.
    pub(crate) fn fetched(&self) -> BTreeSet<Oid> {
        self.world().here.iter().map(|(_, oid)| *oid).collect()
    }

    /// Returns the number of objects that are here, counted for each repository.
    pub(crate) fn here(&self) -> usize {
        self.world().here.len()
    }

    pub(crate) fn has_everything(&self, repo: &str) -> bool {
        self.world().missing(&name(repo)).is_empty()
    }

    /// Drops the handle of the hunt, and returns the record of its events.
    pub(crate) fn end(self) -> Arc<Mutex<World>> {
        self.net.world.clone()
    }

    /// Returns the number of repositories that are hunted for.
    pub(crate) async fn scheduled(&self) -> usize {
        self.hunting.schedule().await.len()
    }

    pub(crate) async fn in_flight(&self) -> usize {
        self.hunting.figures().await.unwrap().in_flight
    }
}

impl World {
    fn missing(&self, repo: &RepoId) -> Vec<Want> {
        let mut wants = self.wants.get(repo).cloned().unwrap_or_default();
        for want in &mut wants {
            want.tips
                .retain(|tip| !self.here.contains(&(repo.clone(), *tip)));
        }
        wants.retain(|want| !want.tips.is_empty());
        wants
    }
}

/// Counts a request as open until it is dropped, and as cancelled if it has not ended by then.
struct Open<'a> {
    net: &'a Net,
    host: String,
    has_ended: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut world = self.net.world.lock().unwrap();
        world.cancelled += usize::from(!self.has_ended);
        *world.open.get_mut(&self.host).unwrap() -= 1;
    }
}

impl Net {
    /// Begins a request, and returns the server and the number of the request.
    fn ask(
        &self,
        url: &CloneUrl,
        oids: Option<&BTreeSet<Oid>>,
    ) -> (Open<'_>, Option<Server>, usize) {
        let host = url.host().to_string();
        let mut world = self.world.lock().unwrap();
        world.asked.push(Asked {
            at: self.now().mono,
            url: url.clone(),
            oids: oids.cloned(),
        });
        let open = world.open.entry(host.clone()).or_default();
        *open += 1;
        let open = *open;
        let most = world.max_open.entry(host.clone()).or_default();
        *most = open.max(*most);
        world.max_in_flight = world.max_in_flight.max(world.open.values().sum());
        let server = world.servers.get(url).cloned();
        let open = Open {
            net: self,
            host,
            has_ended: false,
        };
        (open, server, world.asked.len())
    }
}

/// Returns the error of a server that serves nobody.
fn refusal(server: Option<&Server>, number: usize) -> Option<FetchError> {
    let Some(server) = server else {
        return Some(FetchError::Answered(PeerText::new("404")));
    };
    match server.behaviour {
        Behaviour::Gone => Some(FetchError::Unreachable(PeerText::new("no route"))),
        Behaviour::Limits(retry_after) => Some(FetchError::RateLimited { retry_after }),
        Behaviour::LimitsEveryThird(length) if number.is_multiple_of(3) => {
            Some(FetchError::RateLimited {
                retry_after: Some(length),
            })
        }
        Behaviour::Panics => panic!("a scripted panic of a request"),
        _ => None,
    }
}

impl SyncContext for Net {
    fn now(&self) -> Now {
        let passed = self.start.elapsed();
        let unix = Timestamp::from_secs(1_800_000_000 + passed.as_secs());
        Now::new(Mono::ZERO + passed, unix)
    }

    async fn wants(&self, repo: &RepoId, scope: Scope) -> Option<Vec<Want>> {
        {
            let mut world = self.world.lock().unwrap();
            world.open_lookups += 1;
            world.max_lookups = world.max_lookups.max(world.open_lookups);
        }
        tokio::task::yield_now().await;
        let (mut wants, panics, fails) = {
            let mut world = self.world.lock().unwrap();
            world.open_lookups -= 1;
            let panics = world.panicking_lookups > 0;
            world.panicking_lookups -= usize::from(panics);
            let fails = world.failing_lookups > 0;
            world.failing_lookups -= usize::from(fails);
            (world.missing(repo), panics, fails)
        };
        assert!(!panics, "a scripted panic of a lookup");
        wants.retain(|want| scope == Scope::Everything || want.phase == Phase::Waiting);
        (!fails).then_some(wants)
    }

    async fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> Result<Advertisement, FetchError> {
        let (mut open, server, number) = self.ask(url, None);
        sleep(LATENCY).await;
        if let Some(Behaviour::Silent) = server.as_ref().map(|server| server.behaviour) {
            return std::future::pending().await;
        }
        open.has_ended = true;
        if let Some(error) = refusal(server.as_ref(), number) {
            return Err(error);
        }
        let server = server.unwrap();
        let refs = server.advertises.iter().chain(&server.pretends);
        let refs = refs.map(|oid| ("refs/heads/x", *oid));
        Ok(Advertisement::read(refs, wanted))
    }

    async fn classify(&self, relay: &RelayUrl) -> Option<HostClass> {
        sleep(LATENCY).await;
        let world = self.world.lock().unwrap();
        let mut classes = world.classes.iter();
        let class = classes.find(|(host, _)| relay.as_str().contains(host.as_str()));
        class.map(|(_, class)| *class)
    }

    async fn fetch(
        &self,
        repo: &RepoId,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
        answered: oneshot::Sender<()>,
    ) -> Fetched {
        let (mut open, server, number) = self.ask(url, Some(oids));
        {
            let mut world = self.world.lock().unwrap();
            for oid in oids {
                if world.here.contains(&(repo.clone(), *oid)) {
                    world
                        .violations
                        .push(format!("requested {oid}, which is here"));
                }
            }
        }
        sleep(LATENCY / 2).await;
        let behaviour = server.as_ref().map(|server| server.behaviour);
        match behaviour {
            Some(Behaviour::Silent) => return std::future::pending().await,
            Some(Behaviour::Gone) => {}
            _ => answered.send(()).unwrap_or_default(),
        }
        sleep(match behaviour {
            Some(Behaviour::SilentWithObjects) => FETCH_TIMEOUT,
            Some(Behaviour::Slow(length)) => length,
            _ => LATENCY / 2,
        })
        .await;
        open.has_ended = true;
        if behaviour == Some(Behaviour::SilentWithObjects) {
            return Fetched::nothing(FetchError::Stalled);
        }
        if let Some(error) = refusal(server.as_ref(), number) {
            return Fetched::nothing(error);
        }
        // As git does, it refuses all objects if it lacks one.
        let server = server.unwrap();
        let has = |oid: &Oid| server.advertises.contains(oid) || server.hides.contains(oid);
        if !oids.iter().all(has) {
            return Fetched::nothing(FetchError::Refused(PeerText::new("not our ref")));
        }
        let mut world = self.world.lock().unwrap();
        world
            .here
            .extend(oids.iter().map(|oid| (repo.clone(), *oid)));
        Fetched {
            got: oids.clone(),
            error: None,
            bytes: 0,
        }
    }

    async fn repos(&self) -> BTreeSet<RepoId> {
        self.world.lock().unwrap().wants.keys().cloned().collect()
    }

    fn report(&self, report: &HuntReport) {
        let at = self.now().mono;
        let mut world = self.world.lock().unwrap();
        world.reports.push((at, report.clone()));
    }
}
