//! Scripted git servers around a hunter, in virtual time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use grasp_core::limits::PeerText;
use grasp_core::{CloneUrl, Host, Identifier, Mono, Now, Oid};
use grasp_purgatory::hunt::{
    Advertisement, FetchError, HostClass, HuntConfig, HuntReport, Hunter, Input, Output, RequestId,
    Scope,
};
use grasp_purgatory::{Phase, Want};
use nostr::event::EventId;
use nostr::types::Timestamp;

/// How long every question takes.
pub(crate) const LATENCY: Duration = Duration::from_millis(100);

/// How long a silent server is listened to before the driver gives it up.
const LISTING_LIMIT: Duration = Duration::from_secs(60);
const FETCH_LIMIT: Duration = Duration::from_secs(5 * 60);

/// What a server does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Fine,
    /// Says nothing at all.
    Silent,
    /// Advertises, then says nothing.
    SilentWithObjects,
    /// Advertises, and takes so long with the objects.
    Slow(Duration),
    /// Not there.
    Gone,
    /// Asks for fewer requests, perhaps for this long.
    Limits(Option<Duration>),
    /// Asks for fewer requests every third time, for this long.
    LimitsEveryThird(Duration),
    /// Refuses a whole request if it lacks one of the objects, as git does.
    Lies,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) mood: Mood,
    /// Has, and says so.
    pub(crate) advertises: BTreeSet<Oid>,
    /// Has, and does not say so.
    pub(crate) hides: BTreeSet<Oid>,
    /// Says so, and has not.
    pub(crate) pretends: BTreeSet<Oid>,
}

/// One question that was put to a server.
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
    pub(crate) wants: BTreeMap<Identifier, Vec<Want>>,
    /// Objects that are here.
    pub(crate) here: BTreeSet<Oid>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) reports: Vec<(Mono, HuntReport)>,
    pub(crate) cancelled: BTreeSet<RequestId>,
    /// Conversations under way, by host, and the most there were at once.
    pub(crate) most_at_once: BTreeMap<String, usize>,
    pub(crate) most_in_all: usize,
    /// What hosts say they are.
    pub(crate) classes: BTreeMap<Host, HostClass>,
    under_way: BTreeMap<RequestId, String>,
    ends: BTreeMap<(Mono, u64), Input>,
    next_end: u64,
}

pub(crate) fn oid(n: u8) -> Oid {
    Oid::Sha1([n; 20])
}

pub(crate) fn oids(numbers: &[u8]) -> BTreeSet<Oid> {
    numbers.iter().map(|n| oid(*n)).collect()
}

pub(crate) fn url(text: &str) -> CloneUrl {
    let full = if text.contains("://") { text.to_owned() } else { format!("https://{text}/r.git") };
    full.parse().unwrap()
}

pub(crate) fn name(text: &str) -> Identifier {
    text.parse().unwrap()
}

/// An event that waits for these tips, which may be at these places.
pub(crate) fn want(tips: &[u8], places: &[&str]) -> Want {
    Want {
        id: EventId::from_slice(&[tips[0]; 32]).unwrap(),
        phase: Phase::Waiting,
        tips: tips.iter().map(|n| oid(*n)).collect(),
        trusted: places.iter().map(|place| url(place)).collect(),
        untrusted: Vec::new(),
    }
}

/// The end of a request for an advertisement.
pub(crate) fn listed(request_id: RequestId, result: Result<Advertisement, FetchError>) -> Input {
    match result {
        Ok(advertised) => Input::Listed { request_id, advertised },
        Err(error) => Input::Ended { request_id, got: BTreeSet::new(), error: Some(error) },
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
            most_at_once: BTreeMap::new(),
            most_in_all: 0,
            classes: BTreeMap::new(),
            under_way: BTreeMap::new(),
            ends: BTreeMap::new(),
            next_end: 0,
        }
    }

    pub(crate) fn server(mut self, place: &str, mood: Mood, advertises: &[u8]) -> Self {
        let server = Server {
            mood,
            advertises: oids(advertises),
            hides: BTreeSet::new(),
            pretends: BTreeSet::new(),
        };
        self.servers.insert(url(place), server);
        self
    }

    pub(crate) fn at(&mut self, place: &str) -> &mut Server {
        self.servers.get_mut(&url(place)).unwrap()
    }

    /// Events come to wait under an identifier.
    pub(crate) fn wanted(
        &mut self,
        identifier: &str,
        wants: Vec<Want>,
        after: impl Into<Option<Duration>>,
    ) {
        let after = after.into();
        self.wants.entry(name(identifier)).or_default().extend(wants);
        self.tell(Input::Wanted { identifier: name(identifier), after });
    }

    pub(crate) fn tell(&mut self, input: Input) {
        for output in self.hunter.handle(self.now, input) {
            self.perform(output);
        }
    }

    pub(crate) fn run_for(&mut self, length: Duration) {
        let end = self.now.mono + length;
        loop {
            let deadline = self.hunter.next_deadline().map(|at| at.max(self.now.mono));
            let task = self.ends.keys().next().map(|(at, _)| *at);
            let next = deadline.into_iter().chain(task).min().filter(|at| *at <= end);
            let Some(at) = next else { break };
            self.now = self.now.after(at - self.now.mono);
            match self.ends.first_key_value().filter(|((task, _), _)| *task <= at) {
                Some(_) => {
                    let (_, input) = self.ends.pop_first().unwrap();
                    self.land(&input);
                    self.tell(input);
                }
                None => self.tell(Input::Tick),
            }
        }
        self.now = self.now.after(end - self.now.mono);
    }

    /// The questions to a place, in their order.
    pub(crate) fn asked_of(&self, place: &str) -> Vec<&Asked> {
        self.asked.iter().filter(|asked| asked.url == url(place)).collect()
    }

    pub(crate) fn has_everything(&self, identifier: &str) -> bool {
        self.brief(&name(identifier)).is_empty()
    }

    fn brief(&self, identifier: &Identifier) -> Vec<Want> {
        let wants = self.wants.get(identifier).into_iter().flatten().cloned();
        let lacking = wants.map(|mut want| {
            want.tips.retain(|tip| !self.here.contains(tip));
            want
        });
        lacking.filter(|want| !want.tips.is_empty()).collect()
    }

    fn land(&mut self, input: &Input) {
        if let Input::Listed { request_id, .. } | Input::Ended { request_id, .. } = input {
            self.under_way.remove(request_id);
        }
        if let Input::Ended { got, .. } = input {
            self.here.extend(got);
        }
    }

    fn later(&mut self, after: Duration, input: Input) {
        self.ends.insert((self.now.mono + after, self.next_end), input);
        self.next_end += 1;
    }

    fn perform(&mut self, output: Output) {
        match output {
            Output::ReadWants { identifier, scope } => {
                let mut wants = self.brief(&identifier);
                wants.retain(|want| scope == Scope::Everything || want.phase == Phase::Waiting);
                self.later(Duration::ZERO, Input::WantsRead { identifier, wants: Some(wants) });
            }
            Output::List { request_id, url, wanted, .. } => {
                self.ask(request_id, &url, None);
                let (after, result) = self.list(&url, &wanted);
                self.later(after, listed(request_id, result));
            }
            Output::Fetch { request_id, url, oids, .. } => {
                assert!(oids.is_disjoint(&self.here), "what is here is not asked for");
                self.ask(request_id, &url, Some(oids.clone()));
                if self.answers(&url) {
                    self.later(LATENCY / 2, Input::Answered { request_id });
                }
                let (after, got, error) = self.fetch(&url, &oids);
                self.later(after, Input::Ended { request_id, got, error });
            }
            Output::Classify { host, .. } => {
                let class = self.classes.get(&host).copied();
                self.later(LATENCY, Input::Classified { host, class });
            }
            Output::Cancel { request_id } => self.cancel(request_id),
            Output::ListIdentifiers => {
                let identifiers = self.wants.keys().cloned().collect();
                self.later(Duration::ZERO, Input::IdentifiersListed { identifiers });
            }
            Output::Report(report) => self.reports.push((self.now.mono, report)),
        }
    }

    fn ask(&mut self, request_id: RequestId, url: &CloneUrl, oids: Option<BTreeSet<Oid>>) {
        self.asked.push(Asked { at: self.now.mono, url: url.clone(), oids });
        let host = url.host().to_string();
        self.under_way.insert(request_id, host.clone());
        self.most_in_all = self.most_in_all.max(self.under_way.len());
        let now = self.under_way.values().filter(|other| **other == host).count();
        let most = self.most_at_once.entry(host).or_default();
        *most = now.max(*most);
    }

    /// A conversation that is given up ends at once.
    fn cancel(&mut self, given_up: RequestId) {
        self.cancelled.insert(given_up);
        let of_it = |input: &Input| match input {
            Input::Listed { request_id, .. } | Input::Ended { request_id, .. } => {
                *request_id == given_up
            }
            _ => false,
        };
        let key = self.ends.iter().find(|(_, input)| of_it(input)).map(|(key, _)| *key);
        let end = match key.and_then(|key| self.ends.remove(&key)) {
            Some(Input::Listed { request_id, .. } | Input::Ended { request_id, .. }) => {
                listed(request_id, Err(FetchError::Cancelled))
            }
            _ => panic!("nothing to give up"),
        };
        self.later(Duration::ZERO, end);
    }

    /// Whether a server begins to answer.
    fn answers(&self, url: &CloneUrl) -> bool {
        let silent = |server: &Server| matches!(server.mood, Mood::Silent | Mood::Gone);
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
        match server.mood {
            Mood::Fine | Mood::Lies | Mood::Slow(_) | Mood::SilentWithObjects => {
                (LATENCY, Ok(Advertisement::read(refs, wanted)))
            }
            Mood::Silent => (LISTING_LIMIT, Err(FetchError::Stalled)),
            Mood::Gone => (LATENCY, Err(FetchError::Unreachable(PeerText::new("no route")))),
            Mood::Limits(retry_after) => (LATENCY, Err(FetchError::RateLimited { retry_after })),
            Mood::LimitsEveryThird(length) if self.asked.len().is_multiple_of(3) => {
                (LATENCY, Err(FetchError::RateLimited { retry_after: Some(length) }))
            }
            Mood::LimitsEveryThird(_) => (LATENCY, Ok(Advertisement::read(refs, wanted))),
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
        match server.mood {
            Mood::Silent => (FETCH_LIMIT, BTreeSet::new(), Some(FetchError::Stalled)),
            Mood::Gone => {
                (LATENCY, BTreeSet::new(), Some(FetchError::Unreachable(PeerText::new("no route"))))
            }
            Mood::Limits(retry_after) => {
                (LATENCY, BTreeSet::new(), Some(FetchError::RateLimited { retry_after }))
            }
            Mood::LimitsEveryThird(length) if self.asked.len().is_multiple_of(3) => (
                LATENCY,
                BTreeSet::new(),
                Some(FetchError::RateLimited { retry_after: Some(length) }),
            ),
            Mood::SilentWithObjects => (FETCH_LIMIT, BTreeSet::new(), Some(FetchError::Stalled)),
            _ if got.len() < oids.len() => (LATENCY, BTreeSet::new(), refused()),
            Mood::Slow(length) => (length, got, None),
            _ => (LATENCY, got, None),
        }
    }
}
