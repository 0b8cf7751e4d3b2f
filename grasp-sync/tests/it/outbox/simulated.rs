//! The outbox and the engine together, in virtual time, with relays of users: honest ones, silent ones, and lists that
//! lie.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_core::nostr::event::{Event, EventId};
use grasp_core::nostr::key::PublicKey;
use grasp_core::{RelayUrl, RepoId};
use grasp_sync::engine::{Config, Input};
use grasp_sync::outbox::OutboxConfig;

use crate::setup::{HOUR, MINUTE, defaults, secs};
use crate::sim::chance::Chance;
use crate::sim::local::our_url;
use crate::sim::peer::Peer;
use crate::sim::script::{Neg, Script};
use crate::sim::world::{relay, repo};
use crate::sim::{START, Sim, event};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn url(name: &str) -> RelayUrl {
    format!("wss://{name}.example.com").parse().unwrap()
}

/// Returns the behaviour of a relay that takes connections and answers nothing.
fn silent() -> Script {
    Script {
        neg: Neg::Silent,
        silent_one_in: Some(1),
        ..Script::default()
    }
}

/// Returns the behaviour of a relay that keeps up, whatever else it does.
fn calm(chance: &mut Chance) -> Script {
    Script {
        subs: 200,
        is_open: true,
        connection_secs: None,
        starts_per_minute: None,
        silent_one_in: None,
        down_secs: None,
        ..Script::random(chance)
    }
}

/// One repository, its relay 0, an index relay and a fallback relay.
struct World {
    sim: Sim,
    chance: Chance,
    repo: RepoId,
}

impl World {
    fn new(seed: u64, change: impl FnOnce(&mut Config)) -> Self {
        let mut chance = Chance::seeded(seed ^ 0x0b0c);
        let mut config = defaults();
        config.follows_user_relays = true;
        change(&mut config);
        let mut sim = Sim::new(seed, config);
        let mut outbox = OutboxConfig::new("us.example".parse().unwrap());
        outbox.index_relays = vec![url("index")];
        outbox.fallback_relays = vec![url("fallback")];
        sim.run_outbox(outbox);
        for peer in [relay(0), url("index"), url("fallback")] {
            sim.peers.insert(peer, Peer::new(Script::default(), []));
        }
        let repo = repo(&mut chance, "grasp");
        let listed = [our_url(), relay(0)];
        sim.accept(event::announcement(&mut chance, &repo, START - 9, &listed));
        Self { sim, chance, repo }
    }

    fn user(&mut self) -> PublicKey {
        PublicKey::from_byte_array(self.chance.bytes())
    }

    fn put(&mut self, at: &RelayUrl, event: &Event) {
        let peer = self.sim.peers.get_mut(at).unwrap();
        peer.events.insert(event.id, event.clone());
    }

    /// Puts a user's relay list on a relay.
    fn list(&mut self, at: &RelayUrl, user: PublicKey, relays: &[(&RelayUrl, &str)]) {
        let tags = relays.iter().map(|(url, marker)| (url.as_str(), *marker));
        let list = event::relay_list(&mut self.chance, user, tags);
        self.put(at, &list);
    }

    /// Accepts an issue here.
    fn issue(&mut self, by: PublicKey) -> EventId {
        let repos = std::slice::from_ref(&self.repo);
        let issue = event::issue_by(&mut self.chance, by, START - 8, repos);
        let id = issue.id;
        self.sim.accept(issue);
        id
    }

    fn comment(&mut self, by: PublicKey, about: EventId) -> Event {
        let tag = *self.chance.pick(&["E", "e", "q"]);
        event::comment_by(&mut self.chance, by, START - 7, about, tag)
    }

    /// Puts an event on a relay of a user, at once or later.
    fn scatter(&mut self, at: &RelayUrl, event: &Event) {
        if self.chance.one_in(2) {
            return self.put(at, event);
        }
        let wait = secs(self.chance.within(0, 4 * 60 * 60));
        self.sim.publish_after(wait, at, event.clone());
    }

    fn lacks(&self, wanted: &BTreeSet<EventId>) -> usize {
        let stored = &self.sim.local.stored;
        wanted.iter().filter(|id| !stored.contains_key(id)).count()
    }

    /// Returns the relays that have what is not here, with their behaviour.
    fn sources_of_missing(&self, wanted: &BTreeSet<EventId>) -> Vec<String> {
        let is_missing =
            |id: &EventId| wanted.contains(id) && !self.sim.local.stored.contains_key(id);
        let has_missing = |peer: &Peer| peer.events.keys().filter(|id| is_missing(id)).count();
        let peers = self.sim.peers.iter();
        let peers = peers.filter(|(_, peer)| has_missing(peer) > 0);
        peers
            .map(|(url, peer)| format!("{url} has {}: {:?}", has_missing(peer), peer.script))
            .collect()
    }
}

/// Events that are to arrive, because a rule says that their relay is asked for them; and those that are not.
#[derive(Default)]
struct Expected {
    wanted: BTreeSet<EventId>,
    unwanted: BTreeSet<EventId>,
}

/// Creates users with relays, and scatters what concerns them.
fn populate(world: &mut World, relays: &[RelayUrl]) -> Expected {
    let mut expected = Expected::default();
    let owner = world.repo.owner;
    let inbox = world.chance.pick(relays).clone();
    world.list(&url("index"), owner, &[(&inbox, "read")]);
    let stranger = world.user();
    // An issue that only the owner's inbox has.
    let repos = [world.repo.clone()];
    let issue = event::issue_by(&mut world.chance, stranger, START - 6, &repos);
    world.scatter(&inbox, &issue);
    expected.wanted.insert(issue.id);
    for _ in 0..world.chance.within(1, 6) {
        let author = world.user();
        let issue = world.issue(author);
        let reads_at = world.chance.pick(relays).clone();
        let has_list = !world.chance.one_in(4);
        let asked = if has_list { reads_at } else { url("fallback") };
        if has_list {
            world.list(&url("index"), author, &[(&asked, "read")]);
        }
        // A stranger answers where the author reads, and where maintainers do.
        for at in [&asked, &inbox] {
            let stranger = world.user();
            let answer = world.comment(stranger, issue);
            world.scatter(at, &answer);
            expected.wanted.insert(answer.id);
        }
        // A participant answers again where participants write.
        let participant = world.user();
        let first = world.comment(participant, issue);
        world.sim.accept(first);
        let writes_at = world.chance.pick(relays).clone();
        world.list(&url("index"), participant, &[(&writes_at, "write")]);
        let second = world.comment(participant, issue);
        world.scatter(&writes_at, &second);
        expected.wanted.insert(second.id);
    }
    // A thread of no repository, and an answer at a relay that no user names.
    let unknown = EventId::from_byte_array(world.chance.bytes());
    let stray = world.comment(stranger, unknown);
    world.scatter(&inbox, &stray);
    let outside = world.comment(stranger, issue.id);
    world.put(&url("outside"), &outside);
    expected.unwanted.extend([stray.id, outside.id]);
    expected
}

#[test]
fn what_users_keep_at_their_relays_arrives_in_random_worlds() {
    for seed in 0..60 {
        let mut world = World::new(seed, |_| {});
        world.sim.handle(Input::FeedCaughtUp);
        let count = world.chance.within(1, 5);
        let relays: Vec<RelayUrl> = (0..count).map(|n| url(&format!("home-{n}"))).collect();
        for home in &relays {
            let script = calm(&mut world.chance);
            world.sim.peers.insert(home.clone(), Peer::new(script, []));
        }
        let outside = Peer::new(Script::default(), []);
        world.sim.peers.insert(url("outside"), outside);
        let expected = populate(&mut world, &relays);
        world.sim.run_for(2 * DAY);
        let missing = world.sources_of_missing(&expected.wanted);
        assert!(missing.is_empty(), "seed {seed}: {missing:#?}");
        let strays = expected.unwanted.len();
        assert_eq!(world.lacks(&expected.unwanted), strays, "seed {seed}");
        let is_outside = |(_, at): &(_, RelayUrl)| *at == url("outside");
        assert!(!world.sim.dials.iter().any(is_outside), "seed {seed}");
    }
}

#[test]
fn relays_that_fail_and_limit_are_asked_until_they_have_answered() {
    for seed in 0..20 {
        let mut world = World::new(seed, |_| {});
        world.sim.handle(Input::FeedCaughtUp);
        let relays: Vec<RelayUrl> = (0..3).map(|n| url(&format!("home-{n}"))).collect();
        for home in &relays {
            let mut script = Script::random(&mut world.chance);
            script.silent_one_in = None;
            // A relay that ends each connection within seconds may never come to the end of a group.
            script.connection_secs = script.connection_secs.filter(|(min, _)| *min >= 600);
            world.sim.peers.insert(home.clone(), Peer::new(script, []));
        }
        let outside = Peer::new(Script::default(), []);
        world.sim.peers.insert(url("outside"), outside);
        let expected = populate(&mut world, &relays);
        world.sim.run_for(7 * DAY);
        let missing = world.sources_of_missing(&expected.wanted);
        assert!(missing.is_empty(), "seed {seed}: {missing:#?}");
    }
}

const USERS: usize = 10_000;
const HONEST_USERS: usize = 7_000;
const HONEST_RELAYS: usize = 12;

/// Adds ten thousand users with an issue each: those of whom the lists are honest, with comments at their relays, and
/// those of whom they lie, with these relays that never answer. Returns the comments.
fn crowd(world: &mut World, never_answer: &[RelayUrl]) -> BTreeSet<EventId> {
    let homes: Vec<RelayUrl> = (0..HONEST_RELAYS)
        .map(|n| url(&format!("home-{n}")))
        .collect();
    for home in &homes {
        let peer = Peer::new(Script::default(), []);
        world.sim.peers.insert(home.clone(), peer);
    }
    let many: Vec<RelayUrl> = (0..10_000).map(|n| url(&format!("one-of-{n}"))).collect();
    let lies = [
        "wss://us.example",
        "ws://us.example/below",
        "ws://127.0.0.1:7334",
        "wss://10.0.0.7",
        "wss://[fd00::1]",
        "wss://router.local",
        "wss://x.onion",
    ];
    let index = url("index");
    let mut comments = BTreeSet::new();
    for n in 0..USERS {
        let user = world.user();
        let issue = world.issue(user);
        if n < HONEST_USERS {
            let home = &homes[n % HONEST_RELAYS];
            // As after a restart: their lists are stored.
            let tags = [(home.as_str(), "write")];
            let list = event::relay_list(&mut world.chance, user, tags);
            world.sim.accept(list);
            if n % 10 == 0 {
                let comment = world.comment(user, issue);
                world.put(home, &comment);
                comments.insert(comment.id);
            }
        } else if n < HONEST_USERS + 1_000 {
            let list = event::relay_list(&mut world.chance, user, lies.map(|url| (url, "")));
            world.put(&index, &list);
        } else if n < HONEST_USERS + 1_005 {
            let all: Vec<_> = many.iter().map(|url| (url, "")).collect();
            world.list(&index, user, &all);
        } else if let Some(four) = never_answer.chunks(4).nth(n - HONEST_USERS - 1_005) {
            let four: Vec<_> = four.iter().map(|url| (url, "")).collect();
            world.list(&index, user, &four);
        }
    }
    comments
}

#[test]
fn ten_thousand_users_with_lists_that_lie_delay_no_honest_one() {
    let mut world = World::new(1, |config| config.connections = 64);
    world.sim.checks_invariants = false;
    let never_answer: Vec<RelayUrl> = (0..1_200).map(|n| url(&format!("a-{n}"))).collect();
    for url in &never_answer {
        world.sim.peers.insert(url.clone(), Peer::new(silent(), []));
    }
    let comments = crowd(&mut world, &never_answer);
    assert_eq!(comments.len(), 700);
    world.sim.handle(Input::FeedCaughtUp);
    // Those of whom no list is stored are asked for at the index relay, a hundred at a time, although relays that never
    // answer are asked too.
    world.sim.run_for(15 * MINUTE);
    let lists = world.sim.local.stored.values();
    let lists = lists.filter(|event| event.kind == grasp_core::nostr::event::Kind::RelayList);
    assert_eq!(lists.count(), HONEST_USERS + 1_005 + 300);
    for _ in 0..12 {
        world.sim.run_for(5 * MINUTE);
        world.sim.engine.check_invariants();
        let peers = world.sim.peers.values();
        let open = peers.filter(|peer| peer.has_connection()).count();
        assert!(open <= 64, "{open} connections");
    }
    assert_eq!(world.lacks(&comments), 0);
    // And no relay that no list may name.
    let mut asked: BTreeSet<&RelayUrl> = world.sim.dials.iter().map(|(_, url)| url).collect();
    asked.extend(world.sim.asked_for_lists.iter().map(|(_, url, _)| url));
    let is_known = |url: &&RelayUrl| {
        let host = url.host().to_string();
        host == "r0.example" || host.ends_with(".example.com")
    };
    assert!(asked.iter().all(is_known));
    let named_by_thousands = asked.iter().filter(|url| url.as_str().contains("one-of"));
    assert_eq!(named_by_thousands.count(), 4, "of ten thousand");
    world.sim.run_for(HOUR);
    let stats = world.sim.outbox.as_ref().unwrap().stats();
    assert_eq!(stats.authors, USERS + 1);
}
