//! What operators decide, carried out upon what is stored.

use std::sync::Arc;

use grasp_core::RepoId;
use grasp_core::admission::Policy;
use grasp_core::policy::{HiddenCause, PolicySubject};
use grasp_relay::Clock;
use grasp_relay::ingest::RelayOnly;
use grasp_relay::nostr::Hub;
use grasp_relay::policy::{Enforced, Enforcer, PolicyOwner};
use grasp_relay::store::Store;
use grasp_relay::store::policy::{AuditEntry, PolicyAction, PolicyChange, PolicyChanged};
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;

use crate::store_contract::{US, block_on, rules};
use crate::store_events::{ALICE, Author, BOB, NOW, find, stored, time};

/// A store with a policy that is enforced.
struct World {
    store: Arc<dyn Store>,
    owner: Arc<PolicyOwner>,
    enforcer: Enforcer,
    _dir: tempfile::TempDir,
}

impl World {
    async fn new(settings: Policy) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = SqliteOptions {
            rules: rules(),
            ..SqliteOptions::default()
        };
        let store = SqliteStore::open(&dir.path().join("grasp.db"), options).unwrap();
        let store: Arc<dyn Store> = Arc::new(store);
        let owner = Arc::new(PolicyOwner::new(settings));
        let enforcer = Enforcer {
            store: Arc::clone(&store),
            policy: Arc::clone(&owner),
            hub: Hub::start(),
            git: Arc::new(RelayOnly),
            clock: Clock::system(),
        };
        Self {
            store,
            owner,
            enforcer,
            _dir: dir,
        }
    }

    /// Has an operator decide something, which is in force then, but not carried out.
    async fn decide(&self, actions: Vec<PolicyAction>) {
        let audit = AuditEntry {
            actor: "local:0".to_owned(),
            via: "socket".to_owned(),
            auth: None,
            method: "ban".to_owned(),
            params: "[]".to_owned(),
            error: None,
        };
        let change = PolicyChange {
            at: time(1),
            actions,
            audit,
            auth_until: None,
        };
        let changed = self.store.change_policy(change).await.unwrap();
        assert_eq!(changed, PolicyChanged::Done);
        self.owner.load(&*self.store).await.unwrap();
    }

    async fn ban(&self, subject: PolicySubject) {
        let reason = "spam".to_owned();
        self.decide(vec![PolicyAction::Add { subject, reason }])
            .await;
    }

    async fn enforce(&self) {
        let before = &mut Enforced::default();
        self.enforcer.enforce(before).await.unwrap();
    }

    async fn served(&self) -> Vec<EventId> {
        find(&*self.store, Filter::new()).await
    }

    fn withholds(&self, repo: &RepoId) -> bool {
        self.owner.live().now().withholds(repo)
    }
}

fn settings() -> Policy {
    Policy::new(US.parse().unwrap())
}

fn announcement(author: Author) -> Arc<Event> {
    author.writes(30_617).tag("d", "x").done()
}

fn repo(author: Author) -> RepoId {
    RepoId::new(author.key(), "x".parse().unwrap())
}

#[test]
fn a_ban_and_its_end_change_what_is_served_and_nothing_else() {
    block_on(async {
        let world = World::new(settings()).await;
        for event in [
            announcement(ALICE),
            ALICE.writes(1).id(1).done(),
            BOB.writes(1).id(2).done(),
        ] {
            stored(&*world.store, &event).await;
        }
        let before = world.served().await;
        let ban = PolicySubject::BannedAuthor(ALICE.key());
        world.ban(ban.clone()).await;
        assert!(world.withholds(&repo(ALICE)), "at once");
        world.enforce().await;
        assert_eq!(world.served().await.len(), 1);
        world.decide(vec![PolicyAction::Remove(ban)]).await;
        assert!(world.withholds(&repo(ALICE)), "until all is back");
        world.enforce().await;
        assert!(!world.withholds(&repo(ALICE)));
        assert_eq!(world.served().await, before);
    });
}

#[test]
fn what_a_process_left_undone_is_done_by_the_next() {
    block_on(async {
        let world = World::new(settings()).await;
        let many = (0..1_200).map(|n| ALICE.writes(1).id(10_000 + n).done());
        let now = time(1_700_000_000);
        world.store.save(many.collect(), now).await.unwrap();
        let ban = PolicySubject::BannedAuthor(ALICE.key());
        let cause = HiddenCause::Author(ALICE.key());
        world.ban(ban.clone()).await;
        let step = world.store.hide(cause.clone(), time(u64::MAX >> 2), now);
        assert!(!step.await.unwrap().is_done);
        world.enforce().await;
        assert!(world.served().await.is_empty());
        world.decide(vec![PolicyAction::Remove(ban)]).await;
        let policy = world.owner.live().now();
        let step = world.store.restore(cause, policy, now).await.unwrap();
        assert!(!step.is_done);
        assert!(world.withholds(&repo(ALICE)));
        world.enforce().await;
        assert_eq!(world.served().await.len(), 1_200);
        assert!(!world.withholds(&repo(ALICE)));
    });
}

#[test]
fn a_held_repository_is_out_of_service_until_it_is_restored() {
    block_on(async {
        let world = World::new(settings()).await;
        for author in [ALICE, BOB] {
            stored(&*world.store, &announcement(author)).await;
        }
        let hold = PolicyAction::Hold {
            repo: repo(ALICE),
            reason: String::new(),
            until: time(2_000_000_000),
        };
        world.decide(vec![hold]).await;
        world.enforce().await;
        assert_eq!(world.served().await, [announcement(BOB).id]);
        world.decide(vec![PolicyAction::Restore(repo(ALICE))]).await;
        world.enforce().await;
        assert_eq!(world.served().await.len(), 2);
    });
}

#[test]
fn an_allow_list_takes_the_rest_out_of_service_but_what_it_needs() {
    block_on(async {
        let mut settings = settings();
        settings.allowed.only = true;
        settings.allowed.authors.insert(ALICE.key());
        let world = World::new(settings).await;
        let carol = Author(3);
        let listing = ALICE.writes(30_617).tag("d", "x");
        let listing = listing.tag("maintainers", BOB.key()).done();
        for event in [&listing, &announcement(BOB), &announcement(carol)] {
            stored(&*world.store, event).await;
        }
        world.enforce().await;
        let served = world.served().await;
        assert_eq!(served.len(), 2);
        assert!(!served.contains(&announcement(carol).id));
        assert!(world.withholds(&repo(BOB)), "it is kept, and not hosted");
        world.ban(PolicySubject::AllowedAuthor(carol.key())).await;
        world.enforce().await;
        assert_eq!(world.served().await.len(), 3);
    });
}

#[test]
fn what_is_banned_again_is_hidden_again() {
    block_on(async {
        let world = World::new(settings()).await;
        let note = BOB.writes(1).id(2).done();
        for event in [&announcement(ALICE), &note] {
            stored(&*world.store, event).await;
        }
        let name = PolicySubject::BannedName("x".parse().unwrap());
        for ban in [
            PolicySubject::BannedAuthor(ALICE.key()),
            PolicySubject::BannedEvent(note.id),
            name,
        ] {
            world.ban(ban.clone()).await;
            world.enforce().await;
            assert_eq!(world.served().await.len(), 1);
            let mut enforced = Enforced::of(world.owner.live().now());
            world.decide(vec![PolicyAction::Remove(ban.clone())]).await;
            world.enforcer.enforce(&mut enforced).await.unwrap();
            assert_eq!(world.served().await.len(), 2);
            world.ban(ban.clone()).await;
            world.enforcer.enforce(&mut enforced).await.unwrap();
            assert_eq!(world.served().await.len(), 1, "{ban:?}");
            world.decide(vec![PolicyAction::Remove(ban)]).await;
            world.enforce().await;
        }
    });
}

/// Deletes the announcement of a repository, as its owner does.
fn deletion(author: Author) -> Arc<Event> {
    author.writes(5).tag("a", repo(author)).done()
}

/// Looks at what is announced, as a process does after its start.
async fn look(world: &World) {
    let seen = &mut grasp_relay::policy::Seen::default();
    world.enforcer.look_at_unannounced(seen).await.unwrap();
}

/// A repository of Alice with a thread, and what belongs to Bob's as well.
struct Threads {
    dependent: Vec<Arc<Event>>,
    independent: Vec<Arc<Event>>,
}

impl Threads {
    async fn store(world: &World) -> Self {
        let carol = Author(3);
        let issue = carol.writes(1_621).tag("a", repo(ALICE)).done();
        let comment = BOB
            .writes(1_111)
            .tag("E", issue.id)
            .tag("e", issue.id)
            .done();
        let quoted = carol.writes(1).id(7).done();
        let dependent = vec![
            carol.writes(1).tag("q", announcement(ALICE).id).done(),
            BOB.writes(7).tag("e", comment.id).done(),
            BOB.writes(1_630).tag("e", issue.id).done(),
            BOB.writes(1)
                .tag("e", comment.id)
                .tag("q", quoted.id)
                .done(),
            quoted,
            issue,
            comment,
        ];
        let shared = carol.writes(1_621).tag("a", repo(ALICE));
        let shared = shared.tag("a", repo(BOB)).done();
        let linked = carol.writes(1_621).tag("a", repo(ALICE)).id(20).done();
        let independent = vec![
            announcement(BOB),
            BOB.writes(1_111).tag("E", shared.id).done(),
            shared,
            // A comment on an issue of Bob's repository names it, too.
            BOB.writes(1_111)
                .tag("A", repo(BOB))
                .tag("q", linked.id)
                .done(),
            linked,
            carol.writes(0).done(),
        ];
        stored(&*world.store, &announcement(ALICE)).await;
        for event in dependent.iter().chain(&independent) {
            stored(&*world.store, event).await;
        }
        Self {
            dependent,
            independent,
        }
    }

    async fn assert_served(&self, world: &World, are_dependent_served: bool) {
        let served = world.served().await;
        for event in &self.dependent {
            assert_eq!(
                served.contains(&event.id),
                are_dependent_served,
                "{event:?}"
            );
        }
        for event in &self.independent {
            assert!(served.contains(&event.id), "{event:?}");
        }
    }
}

#[test]
fn what_depends_on_a_deleted_repository_alone_goes_and_comes_back() {
    block_on(async {
        let world = World::new(settings()).await;
        let threads = Threads::store(&world).await;
        look(&world).await;
        threads.assert_served(&world, true).await;
        stored(&*world.store, &deletion(ALICE)).await;
        look(&world).await;
        threads.assert_served(&world, false).await;
        look(&world).await;
        threads.assert_served(&world, false).await;
        let again = ALICE.writes(30_617).tag("d", "x").at(NOW).done();
        stored(&*world.store, &again).await;
        look(&world).await;
        threads.assert_served(&world, true).await;
        assert!(world.store.unannounced().await.unwrap().is_empty());
    });
}

#[test]
fn what_depends_on_a_banned_or_held_repository_is_hidden_as_long_as_that_is() {
    let hold = PolicyAction::Hold {
        repo: repo(ALICE),
        reason: String::new(),
        until: time(2_000_000_000),
    };
    let subject = PolicySubject::BannedAuthor(ALICE.key());
    let ban = PolicyAction::Add {
        subject: subject.clone(),
        reason: String::new(),
    };
    let ways = [
        (hold, PolicyAction::Restore(repo(ALICE))),
        (ban, PolicyAction::Remove(subject)),
    ];
    for (begin, end) in ways {
        block_on(async {
            let world = World::new(settings()).await;
            let threads = Threads::store(&world).await;
            world.decide(vec![begin]).await;
            world.enforce().await;
            look(&world).await;
            threads.assert_served(&world, false).await;
            world.decide(vec![end]).await;
            world.enforce().await;
            look(&world).await;
            threads.assert_served(&world, true).await;
        });
    }
}

#[test]
fn many_dependents_are_hidden_by_the_next_process_if_one_ends_in_the_middle() {
    block_on(async {
        let world = World::new(settings()).await;
        stored(&*world.store, &announcement(ALICE)).await;
        let issues = (0..1_200).map(|n| BOB.writes(1_621).tag("a", repo(ALICE)).id(10_000 + n));
        let issues: Vec<_> = issues.map(|draft| draft.done()).collect();
        let now = time(NOW);
        world.store.save(issues.clone(), now).await.unwrap();
        stored(&*world.store, &deletion(ALICE)).await;
        let some = issues.iter().take(400).map(|event| event.id).collect();
        let step = world
            .store
            .hide_dependents(repo(ALICE), some, now + 1_000_u64, now);
        assert!(step.await.unwrap().is_done);
        look(&world).await;
        assert_eq!(world.served().await, [deletion(ALICE).id]);
    });
}
