//! Ingest with a store in memory and a scripted git backend.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use futures_util::future::BoxFuture;
use grasp_core::admission::{
    FanOut, FanOutLimits, Hold, KnownAnnouncement, MaintainedRepo, Policy, Presence, Rejection,
    Share, Verdict,
};
use grasp_core::maintainers::maintainer_lists;
use grasp_core::nip34::Announcement;
use grasp_core::resources::ClientNetwork;
use grasp_core::service::npub;
use grasp_core::{Identifier, Now, RepoId, kinds};
use grasp_relay::Clock;
use grasp_relay::ingest::{
    Budgets, GitBackend, GitFacts, Ingest, ListedMaintainers, Origin, Outcome, Pipeline, RelayOnly,
};
use grasp_relay::metrics::{Metrics, table};
use grasp_relay::nostr::Hub;
use grasp_relay::nostr::hub::{Capacity, HubMessage, Listener};
use grasp_relay::store::{self, EventStore as _, StoreError};
use nostr::event::{Event, EventBuilder, EventId, FinalizeEvent, Kind, Tag};
use nostr::filter::Filter;
use nostr::key::{Keys, PublicKey};
use nostr::types::Timestamp;

use crate::support::memory_store::MemoryStore;

const NOW: u64 = 1_800_000_000;

/// A git backend without data that records the events it was given to hold.
#[derive(Default)]
struct ScriptedGit {
    held: Mutex<Vec<(EventId, Hold)>>,
}

impl GitBackend for ScriptedGit {
    fn facts(
        &self,
        event: Arc<Event>,
        _: Option<RepoId>,
    ) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        let is_held = self
            .held
            .lock()
            .unwrap()
            .iter()
            .any(|(id, _)| *id == event.id);
        Box::pin(std::future::ready(Ok(GitFacts {
            is_held,
            ..GitFacts::default()
        })))
    }

    fn hold(
        &self,
        event: Arc<Event>,
        hold: Hold,
        _: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        self.held.lock().unwrap().push((event.id, hold.clone()));
        Box::pin(std::future::ready(Ok(Verdict::Done(Outcome::Held))))
    }
}

/// A git backend that has all data, and knows of the stored announcements.
struct CompleteGit {
    store: Arc<MemoryStore>,
    policy: Policy,
}

impl CompleteGit {
    async fn announcements(&self, identifier: &Identifier) -> Vec<Announcement> {
        let filter = Filter::new()
            .kind(kinds::ANNOUNCEMENT)
            .identifier(identifier.as_str());
        let found = store::events(&*self.store, filter, Timestamp::from_secs(NOW))
            .await
            .unwrap();
        found
            .iter()
            .map(|event| Announcement::parse(event).unwrap())
            .collect()
    }
}

impl GitBackend for CompleteGit {
    fn facts(
        &self,
        _: Arc<Event>,
        repo: Option<RepoId>,
    ) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(async move {
            let mut facts = GitFacts::default();
            let Some(repo) = repo else {
                return Ok(facts);
            };
            let known = self.announcements(&repo.identifier).await;
            let lists = maintainer_lists(&known);
            let presence = Presence::Stored;
            for announcement in known {
                let of = announcement.repo.clone();
                let maintainers = self.policy.model.maintainers(&of.owner, &lists);
                if self.policy.hosts(&announcement) && maintainers.contains(&repo.owner) {
                    facts.maintained.push(MaintainedRepo { repo: of, presence });
                }
                if announcement.repo == repo {
                    let announcement = Arc::new(announcement);
                    facts.announcements.push(KnownAnnouncement {
                        announcement,
                        presence,
                    });
                } else {
                    facts.is_listed |= announcement.maintainer_list.lists(&repo.owner);
                }
            }
            Ok(facts)
        })
    }

    fn hold(
        &self,
        _: Arc<Event>,
        _: Hold,
        _: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        Box::pin(std::future::ready(Ok(Verdict::Store { is_related: false })))
    }

    fn is_maintainer(
        &self,
        repo: RepoId,
        key: PublicKey,
    ) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let known = self.announcements(&repo.identifier).await;
            let lists = maintainer_lists(&known);
            Ok(self
                .policy
                .model
                .maintainers(&repo.owner, &lists)
                .contains(&key))
        })
    }
}

fn policy() -> Policy {
    Policy::new("us.example".parse().unwrap())
}

struct Server {
    pipeline: Pipeline,
    listener: Listener,
}

impl Server {
    /// Starts a server that has the git data of all events.
    async fn complete() -> Self {
        let store = Arc::new(MemoryStore::default());
        let git = CompleteGit {
            store: Arc::clone(&store),
            policy: policy(),
        };
        let mut server = Self::with(Arc::new(git)).await;
        server.pipeline.store = store;
        server
    }

    async fn with(git: Arc<dyn GitBackend>) -> Self {
        let hub = Hub::start();
        let listener = hub.listen(Capacity {
            events: 1_000,
            bytes: 10_000_000,
        });
        listener.subscribe(1, vec![Filter::new()].into()).await;
        let now = Now::new(grasp_core::Mono::ZERO, Timestamp::from_secs(NOW));
        let pipeline = Pipeline {
            members: None,
            maintainers: ListedMaintainers::default(),
            store: Arc::new(MemoryStore::default()),
            git,
            hub,
            policy: policy().into(),
            fan_out: std::sync::Mutex::default(),
            budgets: Budgets::default(),
            clock: Clock::new(move || now),
            metrics: Metrics::default(),
        };
        Self { pipeline, listener }
    }

    async fn ingest(&self, events: &[&Event]) -> Vec<Outcome> {
        let events = events.iter().map(|event| (*event).clone()).collect();
        self.pipeline.ingest(events, Origin::anonymous()).await
    }

    async fn is_served(&self, event: &Event) -> bool {
        let question = vec![vec![Filter::new().id(event.id)]];
        self.pipeline
            .store
            .exists(question, Timestamp::from_secs(NOW))
            .await
            .unwrap()[0]
    }

    /// Returns the events that were published so far.
    async fn published(&mut self) -> Vec<EventId> {
        // A broadcast of our own marks the end of what came before it.
        let end = Arc::new(sign(&Keys::generate(), 1, &[]));
        self.pipeline.hub.publish(end.clone()).await;
        let mut ids = Vec::new();
        loop {
            let HubMessage::Event { published, .. } = self.listener.next().await else {
                panic!()
            };
            if published.event.id == end.id {
                return ids;
            }
            ids.push(published.event.id);
        }
    }
}

fn sign_at(keys: &Keys, kind: u16, at: u64, tags: &[&[&str]]) -> Event {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).unwrap());
    EventBuilder::new(Kind::from_u16(kind), "")
        .tags(tags)
        .custom_created_at(Timestamp::from_secs(at))
        .finalize(keys)
        .unwrap()
}

fn sign(keys: &Keys, kind: u16, tags: &[&[&str]]) -> Event {
    sign_at(keys, kind, NOW, tags)
}

fn announcement(keys: &Keys) -> Event {
    let clone = format!("https://us.example/{}/x.git", npub(&keys.public_key()));
    sign(
        keys,
        30617,
        &[
            &["d", "x"],
            &["clone", &clone],
            &["relays", "wss://us.example"],
        ],
    )
}

fn announcement_listing(keys: &Keys, maintainer: &Keys) -> Event {
    let clone = format!("https://us.example/{}/x.git", npub(&keys.public_key()));
    sign(
        keys,
        30617,
        &[
            &["d", "x"],
            &["clone", &clone],
            &["relays", "wss://us.example"],
            &["maintainers", &maintainer.public_key().to_hex()],
        ],
    )
}

fn issue(keys: &Keys, owner: &Keys) -> Event {
    let a = format!("30617:{}:x", owner.public_key());
    sign(keys, 1621, &[&["a", &a]])
}

#[tokio::test]
async fn the_order_inside_a_batch_does_not_matter() {
    let mut server = Server::with(Arc::new(RelayOnly)).await;
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let announcement = announcement(&alice);
    let issue = issue(&bob, &alice);
    let comment = sign(&bob, 1111, &[&["E", &issue.id.to_hex()]]);
    let reply = sign(&bob, 1111, &[&["e", &comment.id.to_hex()]]);
    let noise = sign(&bob, 1, &[]);
    let verdicts = server
        .ingest(&[&reply, &comment, &noise, &issue, &announcement])
        .await;
    let accepted: Vec<_> = verdicts
        .iter()
        .map(|verdict| verdict.answer().is_accepted)
        .collect();
    assert_eq!(accepted, [true, true, false, true, true]);
    let published: BTreeSet<_> = server.published().await.into_iter().collect();
    assert_eq!(
        published,
        BTreeSet::from([announcement.id, issue.id, comment.id, reply.id])
    );
}

#[tokio::test]
async fn an_event_that_a_stored_event_names_is_accepted() {
    let server = Server::with(Arc::new(RelayOnly)).await;
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let note = sign(&bob, 1, &[]);
    let a = format!("30617:{}:x", alice.public_key());
    let issue = sign(&alice, 1621, &[&["a", &a], &["q", &note.id.to_hex()]]);
    server.ingest(&[&announcement(&alice)]).await;
    assert!(!server.ingest(&[&note]).await[0].answer().is_accepted);
    server.ingest(&[&issue]).await;
    assert!(server.ingest(&[&note]).await[0].answer().is_accepted);
}

#[tokio::test]
async fn forged_copies_are_refused_and_do_not_affect_the_genuine_one() {
    let server = Server::with(Arc::new(RelayOnly)).await;
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let genuine = announcement(&alice);
    let mut tampered = genuine.clone();
    tampered.content = "tampered".into();
    let mut resigned = genuine.clone();
    resigned.sig = announcement(&bob).sig;
    let verdicts = server
        .ingest(&[&tampered, &resigned, &genuine, &tampered])
        .await;
    let forged = Outcome::from(Rejection::Forged);
    assert_eq!(
        (&verdicts[0], &verdicts[1], &verdicts[3]),
        (&forged, &forged, &forged)
    );
    let metrics = &server.pipeline.metrics;
    assert_eq!(metrics.value(&table::REJECTIONS, &["forged"]), Some(3.0));
    assert_eq!(
        metrics.value(&table::EVENTS, &["client", "stored"]),
        Some(1.0)
    );
    assert!(verdicts[2].answer().is_accepted && server.is_served(&genuine).await);
}

#[tokio::test]
async fn a_held_event_is_neither_served_nor_published() {
    let git = Arc::new(ScriptedGit::default());
    let mut server = Server::with(git.clone()).await;
    let alice = Keys::generate();
    let announcement = announcement(&alice);
    let verdicts = server.ingest(&[&announcement]).await;
    assert_eq!(verdicts, [Outcome::Held]);
    assert_eq!(
        *git.held.lock().unwrap(),
        [(announcement.id, Hold::Announcement)]
    );
    assert!(!server.is_served(&announcement).await);
    let issue = issue(&alice, &alice);
    assert!(
        !server.ingest(&[&issue]).await[0].answer().is_accepted,
        "held announcements admit nothing"
    );
    assert_eq!(
        server.ingest(&[&announcement]).await,
        [Outcome::Duplicate(Presence::Held)]
    );
    assert_eq!(server.published().await, []);
}

#[tokio::test]
async fn an_event_deleted_before_it_arrived_is_not_held() {
    let git = Arc::new(ScriptedGit::default());
    let server = Server::with(git.clone()).await;
    let alice = Keys::generate();
    let announcement = announcement(&alice);
    let deletion = sign(&alice, 5, &[&["e", &announcement.id.to_hex()]]);
    assert!(server.ingest(&[&deletion]).await[0].answer().is_accepted);
    assert_eq!(
        server.ingest(&[&announcement]).await,
        [Outcome::from(Rejection::Deleted)]
    );
    assert!(git.held.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_delisted_repository_is_no_longer_served() {
    let server = Server::complete().await;
    let alice = Keys::generate();
    let here = announcement(&alice);
    let delisting = sign_at(
        &alice,
        30617,
        NOW + 1,
        &[&["d", "x"], &["clone", "https://them.example/x"]],
    );
    assert!(server.ingest(&[&here]).await[0].answer().is_accepted);
    assert_eq!(
        server.ingest(&[&delisting]).await,
        [Outcome::from(Rejection::Delisted)]
    );
    assert!(!server.is_served(&here).await && !server.is_served(&delisting).await);
    // Any client can send the older version again.
    assert_eq!(server.ingest(&[&here]).await, [Outcome::Superseded]);
    assert!(!server.is_served(&here).await);
    let clone = format!("https://us.example/{}/x.git", npub(&alice.public_key()));
    let tags: &[&[&str]] = &[
        &["d", "x"],
        &["clone", &clone],
        &["relays", "wss://us.example"],
    ];
    let back = sign_at(&alice, 30617, NOW + 2, tags);
    assert!(server.ingest(&[&back]).await[0].answer().is_accepted && server.is_served(&back).await);
}

#[tokio::test]
async fn versions_of_one_announcement_in_one_batch_end_with_the_winner() {
    let server = Server::with(Arc::new(RelayOnly)).await;
    let alice = Keys::generate();
    let clone = format!("https://us.example/{}/x.git", npub(&alice.public_key()));
    let version = |at| {
        sign_at(
            &alice,
            30617,
            at,
            &[
                &["d", "x"],
                &["clone", &clone],
                &["relays", "ws://us.example"],
            ],
        )
    };
    let versions = [version(NOW - 2), version(NOW), version(NOW - 1)];
    let verdicts = server.ingest(&versions.each_ref()).await;
    assert_eq!(verdicts[2], Outcome::Superseded);
    assert!(server.is_served(&versions[1]).await && !server.is_served(&versions[0]).await);
}

#[tokio::test]
async fn a_state_is_judged_by_the_repositories_that_its_author_maintains() {
    let server = Server::complete().await;
    let (alice, eve) = (Keys::generate(), Keys::generate());
    let state = |keys: &Keys| {
        sign(
            keys,
            30618,
            &[&["d", "x"], &["refs/heads/main", &"a".repeat(40)]],
        )
    };
    let (ours, theirs) = (state(&alice), state(&eve));
    assert_eq!(
        server.ingest(&[&ours]).await,
        [Outcome::from(Rejection::NoAnnouncement)]
    );
    server.ingest(&[&announcement(&alice)]).await;
    assert!(server.ingest(&[&ours]).await[0].answer().is_accepted);
    // An announcement of the name by another owner is none of hers.
    assert_eq!(
        server.ingest(&[&theirs]).await,
        [Outcome::from(Rejection::NoAnnouncement)]
    );
    let clone = format!("https://us.example/{}/x.git", npub(&alice.public_key()));
    let inviting: &[&[&str]] = &[
        &["d", "x"],
        &["maintainers", &eve.public_key().to_hex()],
        &["clone", &clone],
        &["relays", "wss://us.example"],
    ];
    assert!(
        server
            .ingest(&[&sign_at(&alice, 30617, NOW + 1, inviting)])
            .await[0]
            .answer()
            .is_accepted
    );
    // She has not accepted.
    let refused = Outcome::from(Rejection::NotMaintainer(eve.public_key()));
    assert_eq!(server.ingest(&[&theirs]).await, [refused]);
    let accepting = &[
        &["d", "x"][..],
        &["maintainers", &alice.public_key().to_hex()],
    ];
    for event in [&sign(&eve, 30617, accepting), &theirs] {
        assert!(server.ingest(&[event]).await[0].answer().is_accepted);
    }
}

#[tokio::test]
async fn a_profile_needs_an_author_with_stored_events() {
    let server = Server::with(Arc::new(RelayOnly)).await;
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let profile = sign(&bob, 0, &[]);
    server.ingest(&[&announcement(&alice)]).await;
    assert!(!server.ingest(&[&profile]).await[0].answer().is_accepted);
    server.ingest(&[&issue(&bob, &alice)]).await;
    assert!(server.ingest(&[&profile]).await[0].answer().is_accepted);
}

#[tokio::test]
async fn profiles_and_relay_lists_of_listed_maintainers_are_stored() {
    let server = Server::complete().await;
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let profile = sign(&bob, 0, &[]);
    let list = sign(&bob, 10_002, &[&["r", "wss://inbox.example.com"]]);
    for event in [&profile, &list] {
        assert!(!server.ingest(&[event]).await[0].answer().is_accepted);
    }
    let listing = announcement_listing(&alice, &bob);
    assert!(server.ingest(&[&listing]).await[0].answer().is_accepted);
    for event in [&profile, &list] {
        assert!(server.ingest(&[event]).await[0].answer().is_accepted);
    }
}

#[tokio::test]
async fn a_deletion_that_names_another_authors_event_is_refused() {
    let server = Server::with(Arc::new(RelayOnly)).await;
    let (alice, eve) = (Keys::generate(), Keys::generate());
    let announcement = announcement(&alice);
    server.ingest(&[&announcement]).await;
    let deletion = sign(&eve, 5, &[&["e", &announcement.id.to_hex()]]);
    assert_eq!(
        server.ingest(&[&deletion]).await,
        [Outcome::from(Rejection::ForeignDeletion)]
    );
    assert!(server.is_served(&announcement).await && !server.is_served(&deletion).await);
}

#[tokio::test]
async fn requests_of_unknown_authors_are_bounded_and_those_of_known_ones_are_not() {
    let server = Server::with(Arc::new(RelayOnly)).await;
    let alice = Keys::generate();
    assert!(
        server.ingest(&[&announcement(&alice)]).await[0]
            .answer()
            .is_accepted
    );
    let network = Some(ClientNetwork::of("198.51.100.1".parse().unwrap()));
    let origin = || Origin::Client {
        authenticated: Vec::new(),
        network,
    };
    let request = |keys: &Keys, n: u64| {
        let tag = |m: u64| Tag::parse(["e", &format!("{:064x}", n << 32 | m)]).unwrap();
        let request = EventBuilder::new(Kind::EventDeletion, "").tags((0..1_900).map(tag));
        request
            .custom_created_at(Timestamp::from_secs(NOW))
            .finalize(keys)
            .unwrap()
    };
    let mut refused = None;
    for n in 0..200 {
        let verdicts = server
            .pipeline
            .ingest(vec![request(&Keys::generate(), n)], origin())
            .await;
        refused = verdicts
            .into_iter()
            .find(|verdict| !verdict.answer().is_accepted);
        if refused.is_some() {
            break;
        }
    }
    assert_eq!(refused, Some(Outcome::from(Rejection::RateLimited)));
    let own = request(&alice, 1_000);
    assert!(
        server.pipeline.ingest(vec![own], origin()).await[0]
            .answer()
            .is_accepted
    );
}

#[tokio::test]
async fn a_full_repository_still_admits_its_maintainers() {
    let mut server = Server::complete().await;
    let root = Share {
        count: 5,
        bytes: 1 << 20,
    };
    let mut limits = FanOutLimits::default();
    limits.root = root;
    server.pipeline.fan_out = Mutex::new(FanOut::new(limits));
    let (alice, bob, eve) = (Keys::generate(), Keys::generate(), Keys::generate());
    let clone = format!("https://us.example/{}/x.git", npub(&alice.public_key()));
    let [by_alice, by_bob] = [&bob, &alice].map(|keys| keys.public_key().to_hex());
    let announced: &[&[&str]] = &[
        &["d", "x"],
        &["maintainers", &by_alice],
        &["clone", &clone],
        &["relays", "wss://us.example"],
    ];
    let accepted = sign(&bob, 30617, &[&["d", "x"], &["maintainers", &by_bob]]);
    for event in [sign(&alice, 30617, announced), accepted] {
        assert!(server.ingest(&[&event]).await[0].answer().is_accepted);
    }
    let issue = issue(&eve, &alice);
    assert!(server.ingest(&[&issue]).await[0].answer().is_accepted);
    // Naming repositories that do not exist does not avoid the limit.
    let made_up: Vec<String> = (0..8).map(|n| format!("30617:{:064x}:x", n)).collect();
    let mut tags: Vec<Vec<String>> = made_up
        .iter()
        .map(|at| vec!["a".into(), at.clone()])
        .collect();
    tags.push(vec!["e".into(), issue.id.to_hex()]);
    let tags: Vec<Vec<&str>> = tags
        .iter()
        .map(|t| t.iter().map(String::as_str).collect())
        .collect();
    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
    let mut verdicts = Vec::new();
    for _ in 0..10 {
        verdicts.extend(server.ingest(&[&sign(&Keys::generate(), 1, &tags)]).await);
    }
    let accepted = verdicts
        .iter()
        .filter(|verdict| verdict.answer().is_accepted)
        .count();
    assert_eq!(accepted, 4);
    for maintainer in [&alice, &bob] {
        assert!(
            server.ingest(&[&sign(maintainer, 1, &tags)]).await[0]
                .answer()
                .is_accepted
        );
    }
    let rate_limited = Outcome::from(Rejection::RateLimited);
    assert_eq!(
        server.ingest(&[&sign(&eve, 1, &tags)]).await,
        [rate_limited]
    );
}

/// Sends events of new keys until one is refused without a lookup, and returns whether one was.
async fn use_up_lookups(server: &Server, address: &str) -> bool {
    let network = Some(ClientNetwork::of(address.parse().unwrap()));
    for _ in 0..100 {
        let origin = Origin::Client {
            authenticated: Vec::new(),
            network,
        };
        let note = sign(&Keys::generate(), 1, &[&["e", &"a".repeat(64)]]);
        if server.pipeline.ingest(vec![note], origin).await == [Outcome::from(Rejection::Busy)] {
            return true;
        }
    }
    false
}

#[tokio::test]
async fn maintainers_are_admitted_when_all_lookups_are_used_up() {
    let mut server = Server::complete().await;
    server.pipeline.budgets = Budgets::new(1_000);
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let state = |keys: &Keys, at: u64| {
        sign_at(
            keys,
            30618,
            at,
            &[&["d", "x"], &["refs/heads/main", &"a".repeat(40)]],
        )
    };
    for event in [announcement(&alice), state(&alice, NOW - 9)] {
        assert!(server.ingest(&[&event]).await[0].answer().is_accepted);
    }
    let from = |address: &str, event: Event| {
        let network = Some(ClientNetwork::of(address.parse().unwrap()));
        server.pipeline.ingest(
            vec![event],
            Origin::Client {
                authenticated: Vec::new(),
                network,
            },
        )
    };
    // First the lookups of her own network, then all.
    assert!(use_up_lookups(&server, "198.51.100.1").await);
    assert!(
        from("198.51.100.1", state(&alice, NOW - 8)).await[0]
            .answer()
            .is_accepted
    );
    for network in 0..24 {
        assert!(use_up_lookups(&server, &format!("203.0.{network}.1")).await);
    }
    let busy = Outcome::from(Rejection::Busy);
    assert_eq!(from("192.0.2.1", issue(&bob, &alice)).await, [busy]);
    for at in NOW - 7..NOW {
        assert!(
            from("192.0.2.1", state(&alice, at)).await[0]
                .answer()
                .is_accepted
        );
    }
}

#[tokio::test]
async fn authority_is_looked_up_when_lookups_are_used_up() {
    let mut server = Server::complete().await;
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let state = sign_at(&alice, 30618, NOW - 9, &[&["d", "x"]]);
    for event in [announcement(&alice), state, issue(&bob, &alice)] {
        assert!(server.ingest(&[&event]).await[0].answer().is_accepted);
    }
    // As after a restart: no authority is remembered.
    server.pipeline.budgets = Budgets::new(1_000);
    assert!(use_up_lookups(&server, "198.51.100.1").await);
    let network = Some(ClientNetwork::of("198.51.100.1".parse().unwrap()));
    let origin = || Origin::Client {
        authenticated: Vec::new(),
        network,
    };
    let note = |keys: &Keys| {
        sign(
            keys,
            1621,
            &[&["a", &format!("30617:{}:x", alice.public_key())]],
        )
    };
    assert!(
        server.pipeline.ingest(vec![note(&alice)], origin()).await[0]
            .answer()
            .is_accepted
    );
    let busy = Outcome::from(Rejection::Busy);
    assert_eq!(
        server.pipeline.ingest(vec![note(&bob)], origin()).await,
        [busy]
    );
}

/// A git backend that releases an announcement when facts are requested.
struct ReleasingGit {
    store: Arc<MemoryStore>,
    announcement: Arc<Event>,
}

impl GitBackend for ReleasingGit {
    fn facts(
        &self,
        _: Arc<Event>,
        _: Option<RepoId>,
    ) -> BoxFuture<'_, Result<GitFacts, StoreError>> {
        Box::pin(async {
            let released = vec![Arc::clone(&self.announcement)];
            self.store
                .save_events(released, Timestamp::from_secs(NOW))
                .await?;
            Ok(GitFacts::default())
        })
    }

    fn hold(
        &self,
        _: Arc<Event>,
        _: Hold,
        _: Origin,
    ) -> BoxFuture<'_, Result<Verdict, StoreError>> {
        unreachable!("nothing here needs git data")
    }
}

#[tokio::test]
async fn an_event_about_a_repository_that_is_released_meanwhile_is_accepted() {
    let owner = Keys::generate();
    let announcement = Arc::new(announcement(&owner));
    let store = Arc::new(MemoryStore::default());
    let git = ReleasingGit {
        store: Arc::clone(&store),
        announcement,
    };
    let mut server = Server::with(Arc::new(git)).await;
    server.pipeline.store = store;
    assert_eq!(
        server.ingest(&[&issue(&owner, &owner)]).await,
        [Outcome::Stored]
    );
}

#[tokio::test]
async fn a_deletion_request_of_a_banned_author_is_carried_out_and_never_served() {
    let mut server = Server::with(Arc::new(RelayOnly)).await;
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let (announcement, issue) = (announcement(&alice), issue(&bob, &alice));
    let stored = server.ingest(&[&announcement, &issue]).await;
    assert_eq!(stored, [Outcome::Stored, Outcome::Stored]);
    server.published().await;
    let mut banned = policy();
    banned.bans.authors.insert(bob.public_key());
    server.pipeline.policy = banned.into();
    let request = sign(&bob, 5, &[&["e", &issue.id.to_hex()]]);
    assert!(server.ingest(&[&request]).await[0].answer().is_accepted);
    assert!(!server.is_served(&issue).await && !server.is_served(&request).await);
    assert!(server.published().await.is_empty());
    server.pipeline.policy = policy().into();
    let again = server.ingest(&[&issue]).await;
    assert_eq!(again, [Outcome::from(Rejection::Deleted)]);
}
