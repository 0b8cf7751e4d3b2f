//! Scripted git servers around a hunter, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::{CloneUrl, Host, Mono, Now, Oid, RepoId};
use grasp_purgatory::hunt::{
    Advertisement, FetchError, HostClass, HuntConfig, HuntReport, Hunter, Input, Output, RequestId,
    Scope,
};
use grasp_purgatory::{Phase, Want};
use nostr::event::EventId;
use nostr::types::Timestamp;

use crate::model_events::ALICE;

/// The duration of every request.
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// The time after which the driver cancels a request for an advertisement to a silent server.
const LISTING_TIMEOUT: Duration = Duration::from_secs(60);
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
    /// Refuses a whole request if it lacks one of the objects, as git does.
    Lies,
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

pub(crate) struct Sim {
    pub(crate) hunter: Hunter,
    pub(crate) now: Now,
    pub(crate) servers: BTreeMap<CloneUrl, Server>,
    pub(crate) wants: BTreeMap<RepoId, Vec<Want>>,
    /// Objects that are here, each with its repository.
    pub(crate) here: BTreeSet<(RepoId, Oid)>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) reports: Vec<(Mono, HuntReport)>,
    pub(crate) cancelled: BTreeSet<RequestId>,
    /// The largest number of concurrent requests, by host.
    pub(crate) max_concurrent: BTreeMap<String, usize>,
    pub(crate) max_in_flight: usize,
    /// The classes that hosts report.
    pub(crate) classes: BTreeMap<Host, HostClass>,
    in_flight: BTreeMap<RequestId, (RepoId, String)>,
    scheduled: BTreeMap<(Mono, u64), Input>,
    next_number: u64,
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

/// The end of a request for an advertisement.
pub(crate) fn listed(request_id: RequestId, result: Result<Advertisement, FetchError>) -> Input {
    match result {
        Ok(advertised) => Input::Listed {
            request_id,
            advertised,
        },
        Err(error) => Input::Ended {
            request_id,
            got: BTreeSet::new(),
            error: Some(error),
        },
    }
}

impl Sim {
    pub(crate) fn new() -> Self {
        Self::with(HuntConfig::default())
    }

    pub(crate) fn with(config: HuntConfig) -> Self {
        let now = Now::new(Mono::ZERO, Timestamp::from_secs(1_800_000_000));
        Self {
            hunter: Hunter::new(config, now),
            now,
            servers: BTreeMap::new(),
            wants: BTreeMap::new(),
            here: BTreeSet::new(),
            asked: Vec::new(),
            reports: Vec::new(),
            cancelled: BTreeSet::new(),
            max_concurrent: BTreeMap::new(),
            max_in_flight: 0,
            classes: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            scheduled: BTreeMap::new(),
            next_number: 0,
        }
    }

    pub(crate) fn server(mut self, address: &str, behaviour: Behaviour, advertises: &[u8]) -> Self {
        let server = Server {
            behaviour,
            advertises: oids(advertises),
            hides: BTreeSet::new(),
            pretends: BTreeSet::new(),
        };
        self.servers.insert(url(address), server);
        self
    }

    pub(crate) fn at(&mut self, address: &str) -> &mut Server {
        self.servers.get_mut(&url(address)).unwrap()
    }

    /// Adds wants to a repository.
    pub(crate) fn wanted(
        &mut self,
        repo: &str,
        wants: Vec<Want>,
        after: impl Into<Option<Duration>>,
    ) {
        let after = after.into();
        self.wants.entry(name(repo)).or_default().extend(wants);
        self.handle(Input::Wanted {
            repo: name(repo),
            after,
        });
    }

    pub(crate) fn handle(&mut self, input: Input) {
        for output in self.hunter.handle(self.now, input) {
            self.perform(output);
        }
    }

    pub(crate) fn run_for(&mut self, length: Duration) {
        let end = self.now.mono + length;
        loop {
            let deadline = self.hunter.next_deadline().map(|at| at.max(self.now.mono));
            let task = self.scheduled.keys().next().map(|(at, _)| *at);
            let next = deadline
                .into_iter()
                .chain(task)
                .min()
                .filter(|at| *at <= end);
            let Some(at) = next else { break };
            self.now = self.now.after(at - self.now.mono);
            match self
                .scheduled
                .first_key_value()
                .filter(|((task, _), _)| *task <= at)
            {
                Some(_) => {
                    let (_, input) = self.scheduled.pop_first().unwrap();
                    self.finish(&input);
                    self.handle(input);
                }
                None => self.handle(Input::Tick),
            }
        }
        self.now = self.now.after(end - self.now.mono);
    }

    /// Returns the requests to an address, in their order.
    pub(crate) fn asked_of(&self, address: &str) -> Vec<&Asked> {
        self.asked
            .iter()
            .filter(|asked| asked.url == url(address))
            .collect()
    }

    /// Returns the objects that are here, of all repositories.
    pub(crate) fn fetched(&self) -> BTreeSet<Oid> {
        self.here.iter().map(|(_, oid)| *oid).collect()
    }

    pub(crate) fn has_everything(&self, repo: &str) -> bool {
        self.missing(&name(repo)).is_empty()
    }

    fn missing(&self, repo: &RepoId) -> Vec<Want> {
        let wants = self.wants.get(repo).into_iter().flatten().cloned();
        let lacking = wants.map(|mut want| {
            want.tips
                .retain(|tip| !self.here.contains(&(repo.clone(), *tip)));
            want
        });
        lacking.filter(|want| !want.tips.is_empty()).collect()
    }

    fn finish(&mut self, input: &Input) {
        let (Input::Listed { request_id, .. } | Input::Ended { request_id, .. }) = input else {
            return;
        };
        let Some((repo, _)) = self.in_flight.remove(request_id) else {
            return;
        };
        if let Input::Ended { got, .. } = input {
            self.here.extend(got.iter().map(|oid| (repo.clone(), *oid)));
        }
    }

    fn schedule(&mut self, after: Duration, input: Input) {
        self.scheduled
            .insert((self.now.mono + after, self.next_number), input);
        self.next_number += 1;
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::ReadWants { repo, scope } => {
                let mut wants = self.missing(&repo);
                wants.retain(|want| scope == Scope::Everything || want.phase == Phase::Waiting);
                self.schedule(
                    Duration::ZERO,
                    Input::WantsRead {
                        repo,
                        wants: Some(wants),
                    },
                );
            }
            Output::List {
                request_id,
                repo,
                url,
                wanted,
            } => {
                self.ask(request_id, repo, &url, None);
                let (after, result) = self.list(&url, &wanted);
                self.schedule(after, listed(request_id, result));
            }
            Output::Fetch {
                request_id,
                repo,
                url,
                oids,
            } => {
                let is_here = |oid: &Oid| self.here.contains(&(repo.clone(), *oid));
                assert!(
                    !oids.iter().any(is_here),
                    "requested an object that is here"
                );
                self.ask(request_id, repo, &url, Some(oids.clone()));
                if self.answers(&url) {
                    self.schedule(LATENCY / 2, Input::Answered { request_id });
                }
                let (after, got, error) = self.fetch(&url, &oids);
                self.schedule(
                    after,
                    Input::Ended {
                        request_id,
                        got,
                        error,
                    },
                );
            }
            Output::Classify { host, .. } => {
                let class = self.classes.get(&host).copied();
                self.schedule(LATENCY, Input::Classified { host, class });
            }
            Output::Cancel { request_id } => self.cancel(request_id),
            Output::ListRepos => {
                let repos = self.wants.keys().cloned().collect();
                self.schedule(Duration::ZERO, Input::ReposListed { repos });
            }
            Output::Report(report) => self.reports.push((self.now.mono, report)),
        }
    }

    fn ask(
        &mut self,
        request_id: RequestId,
        repo: RepoId,
        url: &CloneUrl,
        oids: Option<BTreeSet<Oid>>,
    ) {
        self.asked.push(Asked {
            at: self.now.mono,
            url: url.clone(),
            oids,
        });
        let host = url.host().to_string();
        self.in_flight.insert(request_id, (repo, host.clone()));
        self.max_in_flight = self.max_in_flight.max(self.in_flight.len());
        let now = self
            .in_flight
            .values()
            .filter(|(_, other)| *other == host)
            .count();
        let most = self.max_concurrent.entry(host).or_default();
        *most = now.max(*most);
    }

    /// Ends a cancelled request at once.
    fn cancel(&mut self, cancelled: RequestId) {
        self.cancelled.insert(cancelled);
        let is_end = |input: &Input| match input {
            Input::Listed { request_id, .. } | Input::Ended { request_id, .. } => {
                *request_id == cancelled
            }
            _ => false,
        };
        let key = self
            .scheduled
            .iter()
            .find(|(_, input)| is_end(input))
            .map(|(key, _)| *key);
        let end = match key.and_then(|key| self.scheduled.remove(&key)) {
            Some(Input::Listed { request_id, .. } | Input::Ended { request_id, .. }) => {
                listed(request_id, Err(FetchError::Cancelled))
            }
            _ => panic!("nothing to cancel"),
        };
        self.schedule(Duration::ZERO, end);
    }

    /// Returns whether a server begins to answer.
    fn answers(&self, url: &CloneUrl) -> bool {
        let silent =
            |server: &Server| matches!(server.behaviour, Behaviour::Silent | Behaviour::Gone);
        !self.servers.get(url).is_some_and(silent)
    }

    fn list(
        &self,
        url: &CloneUrl,
        wanted: &BTreeSet<Oid>,
    ) -> (Duration, Result<Advertisement, FetchError>) {
        let Some(server) = self.servers.get(url) else {
            return (LATENCY, Err(FetchError::Answered(PeerText::new("404"))));
        };
        let refs = server.advertises.iter().chain(&server.pretends);
        let refs = refs.map(|oid| ("refs/heads/x", *oid));
        match server.behaviour {
            Behaviour::Fine
            | Behaviour::Lies
            | Behaviour::Slow(_)
            | Behaviour::SilentWithObjects => (LATENCY, Ok(Advertisement::read(refs, wanted))),
            Behaviour::Silent => (LISTING_TIMEOUT, Err(FetchError::Stalled)),
            Behaviour::Gone => (
                LATENCY,
                Err(FetchError::Unreachable(PeerText::new("no route"))),
            ),
            Behaviour::Limits(retry_after) => {
                (LATENCY, Err(FetchError::RateLimited { retry_after }))
            }
            Behaviour::LimitsEveryThird(length) if self.asked.len().is_multiple_of(3) => (
                LATENCY,
                Err(FetchError::RateLimited {
                    retry_after: Some(length),
                }),
            ),
            Behaviour::LimitsEveryThird(_) => (LATENCY, Ok(Advertisement::read(refs, wanted))),
        }
    }

    fn fetch(
        &self,
        url: &CloneUrl,
        oids: &BTreeSet<Oid>,
    ) -> (Duration, BTreeSet<Oid>, Option<FetchError>) {
        let Some(server) = self.servers.get(url) else {
            let error = FetchError::Answered(PeerText::new("404"));
            return (LATENCY, BTreeSet::new(), Some(error));
        };
        let refused = || Some(FetchError::Refused(PeerText::new("not our ref")));
        let has = |oid: &&Oid| server.advertises.contains(*oid) || server.hides.contains(*oid);
        let got: BTreeSet<Oid> = oids.iter().filter(has).copied().collect();
        match server.behaviour {
            Behaviour::Silent => (FETCH_TIMEOUT, BTreeSet::new(), Some(FetchError::Stalled)),
            Behaviour::Gone => (
                LATENCY,
                BTreeSet::new(),
                Some(FetchError::Unreachable(PeerText::new("no route"))),
            ),
            Behaviour::Limits(retry_after) => (
                LATENCY,
                BTreeSet::new(),
                Some(FetchError::RateLimited { retry_after }),
            ),
            Behaviour::LimitsEveryThird(length) if self.asked.len().is_multiple_of(3) => (
                LATENCY,
                BTreeSet::new(),
                Some(FetchError::RateLimited {
                    retry_after: Some(length),
                }),
            ),
            Behaviour::SilentWithObjects => {
                (FETCH_TIMEOUT, BTreeSet::new(), Some(FetchError::Stalled))
            }
            _ if got.len() < oids.len() => (LATENCY, BTreeSet::new(), refused()),
            Behaviour::Slow(length) => (length, got, None),
            _ => (LATENCY, got, None),
        }
    }
}
