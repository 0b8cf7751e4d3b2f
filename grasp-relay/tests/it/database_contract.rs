//! The contract of a database of refs, packs and records, run over every database.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use grasp_core::admission::Policy;
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Mono, Now, Oid, RefName, RepoId};
use grasp_purgatory::database::{
    Addition, Commit, Committed, Conflict, FamilyChange, Forget, Garbage, Generation, Pack,
    RetiredRef, Source, ViewChange,
};
use grasp_purgatory::git::{Refs, Target};
use grasp_purgatory::{CleanupTask, Config, Phase, Purgatory, PushTarget, Record};
use grasp_relay::store::Store;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::{Event, EventBuilder, EventId, FinalizeEvent as _, Kind, Tag};
use nostr::filter::Filter;
use nostr::key::{Keys, PublicKey};
use nostr::types::Timestamp;

use crate::store_contract::{block_on, rules};

/// One rule, tried on an empty database.
type Rule = for<'s> fn(&'s dyn Store) -> BoxFuture<'s, ()>;

const NOW: u64 = 1_800_000_000;
const REPOS: Endpoint = Endpoint::Repository;

macro_rules! contract {
    ($($rule:ident)*) => {
        mod sqlite {
            $(
                #[test]
                fn $rule() {
                    super::on_sqlite(|store| Box::pin(super::$rule(store)));
                }
            )*
        }

        #[cfg(feature = "postgres")]
        mod postgres {
            $(
                #[test]
                fn $rule() {
                    crate::store_postgres::on_postgres(|store| Box::pin(super::$rule(store)));
                }
            )*
        }
    };
}

fn on_sqlite(rule: Rule) {
    let dir = tempfile::tempdir().unwrap();
    let options = SqliteOptions { rules: rules(), ..SqliteOptions::default() };
    let store = SqliteStore::open(&dir.path().join("grasp.db"), options).unwrap();
    block_on(rule(&store));
}

contract! {
    a_release_is_all_or_nothing
    a_commit_on_an_outdated_view_changes_nothing
    events_that_the_store_refuses_stop_the_whole_commit
    events_that_are_stored_already_do_not_stop_a_commit
    a_commit_that_requires_a_removed_event_changes_nothing
    one_of_many_concurrent_changes_wins
    no_generation_is_given_twice
    views_are_numbered_in_the_order_of_their_creation
    refs_are_read_as_they_were_written
    packs_are_added_replaced_and_listed
    retired_refs_are_kept_until_they_are_forgotten
    the_oldest_retired_refs_of_an_owner_are_forgotten_if_there_are_too_many
    retired_refs_of_many_owners_do_not_displace_those_of_the_oldest_views
    the_more_severe_garbage_mark_stays_until_the_collection
    endpoints_are_independent
    refs_are_removed_with_the_event_that_signed_them
    rows_of_purgatory_restore_what_the_records_say
    additions_are_summed_up_by_hour_and_forgotten_after_two_days
}

fn time(secs: u64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn name(text: &str) -> Identifier {
    text.parse().unwrap()
}

fn owner(n: u8) -> PublicKey {
    PublicKey::from_byte_array([n; 32])
}

fn oid(n: u8) -> Oid {
    Oid::Sha1([n; 20])
}

fn refs(tips: &[(&str, u8)]) -> Arc<Refs> {
    let target = |n: &u8| Target { oid: oid(*n), peeled: None };
    let refs = tips.iter().map(|(name, n)| (name.parse().unwrap(), target(n))).collect();
    Arc::new(Refs { refs, ..Refs::default() })
}

fn change(owner: PublicKey, from: Option<Generation>, to: Option<Arc<Refs>>) -> ViewChange {
    ViewChange { owner, from, to, state: None, retired: Vec::new() }
}

fn family(views: Vec<ViewChange>) -> FamilyChange {
    let mut family = FamilyChange::new(REPOS, name("x"));
    family.views = views;
    family
}

fn commit(family: FamilyChange) -> Commit {
    Commit { families: vec![family], now: time(NOW), ..Commit::default() }
}

async fn done(store: &dyn Store, commit: Commit) {
    let committed = store.commit(commit).await.unwrap();
    assert!(matches!(committed, Committed::Done { .. }), "{committed:?}");
}

async fn generation(store: &dyn Store, owner: PublicKey) -> Option<Generation> {
    let view = store.view(REPOS, RepoId::new(owner, name("x"))).await.unwrap();
    view.map(|view| view.generation)
}

fn state(keys: &Keys, at: u64) -> Arc<Event> {
    let event = EventBuilder::new(Kind::from_u16(30618), "").tag(Tag::identifier("x"));
    Arc::new(event.custom_created_at(time(at)).finalize(keys).unwrap())
}

fn held(event: &Arc<Event>) -> Record {
    let (since, until) = (time(NOW), time(NOW + 60));
    Record::Held { event: event.clone(), phase: Phase::Waiting, since, until }
}

async fn is_served(store: &dyn Store, event: &Event) -> bool {
    store.count(vec![Filter::new().id(event.id)], time(NOW)).await.unwrap() == 1
}

async fn a_release_is_all_or_nothing(store: &dyn Store) {
    let (keys, main) = (Keys::generate(), refs(&[("refs/heads/main", 1)]));
    let event = state(&keys, NOW);
    done(store, Commit { records: vec![held(&event)], ..Commit::default() }).await;
    let mut release = commit(family(vec![change(owner(1), None, Some(main.clone()))]));
    release.save = vec![event.clone()];
    release.records = vec![Record::Gone { id: event.id }];
    done(store, release).await;
    assert!(is_served(store, &event).await && store.records().await.unwrap().is_empty());
    let view = store.view(REPOS, RepoId::new(owner(1), name("x"))).await.unwrap().unwrap();
    assert_eq!(view.refs, main);
    // And back: the event is withdrawn, held again, and the view is gone.
    let mut back = commit(family(vec![change(owner(1), Some(view.generation), None)]));
    (back.withdraw, back.records) = (vec![event.id], vec![held(&event)]);
    done(store, back).await;
    assert!(!is_served(store, &event).await);
    assert_eq!(store.records().await.unwrap(), [held(&event)]);
    assert_eq!(generation(store, owner(1)).await, None);
}

async fn a_commit_on_an_outdated_view_changes_nothing(store: &dyn Store) {
    let event = state(&Keys::generate(), NOW);
    let main = Some(refs(&[("refs/heads/main", 1)]));
    done(store, commit(family(vec![change(owner(1), None, main.clone())]))).await;
    let before = generation(store, owner(1)).await;
    for (from, to) in [(None, main.clone()), (Some(Generation(99)), main.clone()), (None, None)] {
        let views = vec![change(owner(2), None, main.clone()), change(owner(1), from, to)];
        let mut outdated = commit(family(views));
        outdated.save = vec![event.clone()];
        outdated.records = vec![held(&event)];
        let moved = Conflict::Moved(REPOS, RepoId::new(owner(1), name("x")));
        assert_eq!(store.commit(outdated).await.unwrap(), Committed::Conflict(moved));
    }
    assert!(!is_served(store, &event).await && store.records().await.unwrap().is_empty());
    assert_eq!(generation(store, owner(1)).await, before);
    assert_eq!(generation(store, owner(2)).await, None);
}

async fn events_that_the_store_refuses_stop_the_whole_commit(store: &dyn Store) {
    let keys = Keys::generate();
    let (older, newer, deleted) = (state(&keys, NOW), state(&keys, NOW + 1), {
        let other = Keys::generate();
        let event = state(&other, NOW);
        let request = EventBuilder::new(Kind::EventDeletion, "").tag(Tag::event(event.id));
        let request = request.custom_created_at(time(NOW)).finalize(&other).unwrap();
        store.save_events(vec![Arc::new(request)], time(NOW)).await.unwrap();
        event
    });
    store.save_events(vec![newer.clone()], time(NOW)).await.unwrap();
    let fine = state(&Keys::generate(), NOW);
    let main = Some(refs(&[("refs/heads/main", 1)]));
    let mut release = commit(family(vec![change(owner(1), None, main)]));
    release.save = vec![fine.clone(), older.clone(), deleted.clone()];
    let refused = Conflict::Refused(BTreeSet::from([older.id, deleted.id]));
    assert_eq!(store.commit(release).await.unwrap(), Committed::Conflict(refused));
    assert!(!is_served(store, &fine).await && generation(store, owner(1)).await.is_none());
}

async fn events_that_are_stored_already_do_not_stop_a_commit(store: &dyn Store) {
    let event = state(&Keys::generate(), NOW);
    for _ in 0..2 {
        let save = vec![event.clone()];
        done(store, Commit { save, now: time(NOW), ..Commit::default() }).await;
    }
    assert!(is_served(store, &event).await);
}

async fn a_commit_that_requires_a_removed_event_changes_nothing(store: &dyn Store) {
    let keys = Keys::generate();
    let (kept, deleted) = (state(&Keys::generate(), NOW), state(&keys, NOW));
    store.save_events(vec![kept.clone(), deleted.clone()], time(NOW)).await.unwrap();
    let saved = state(&Keys::generate(), NOW);
    let release = |require: [&Event; 2], from| {
        let main = Some(refs(&[("refs/heads/main", 1)]));
        let mut release = commit(family(vec![change(owner(1), from, main)]));
        release.save = vec![saved.clone()];
        release.require = [saved.id].into_iter().chain(require.map(|event| event.id)).collect();
        release
    };
    delete(store, &keys, &deleted).await;
    let refused = Conflict::Refused(BTreeSet::from([deleted.id]));
    let outdated = store.commit(release([&kept, &deleted], None)).await.unwrap();
    assert_eq!(outdated, Committed::Conflict(refused));
    assert!(!is_served(store, &saved).await && generation(store, owner(1)).await.is_none());
    done(store, release([&kept, &kept], None)).await;
    assert!(is_served(store, &saved).await && generation(store, owner(1)).await.is_some());
}

async fn one_of_many_concurrent_changes_wins(store: &dyn Store) {
    done(store, commit(family(vec![change(owner(1), None, Some(refs(&[])))]))).await;
    for round in 0..4 {
        let from = generation(store, owner(1)).await;
        let changes = (0..16).map(|n| {
            let to = refs(&[("refs/heads/main", 16 * round + n)]);
            store.commit(commit(family(vec![change(owner(1), from, Some(to))])))
        });
        let ended = join_all(changes).await.into_iter().map(Result::unwrap);
        assert_eq!(ended.filter(|it| matches!(it, Committed::Done { .. })).count(), 1);
    }
}

async fn no_generation_is_given_twice(store: &dyn Store) {
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        for key in [owner(1), owner(2)] {
            let from = generation(store, key).await;
            done(store, commit(family(vec![change(key, from, Some(refs(&[])))]))).await;
            assert!(seen.insert(generation(store, key).await));
        }
        let from = generation(store, owner(1)).await;
        done(store, commit(family(vec![change(owner(1), from, None)]))).await;
    }
}

async fn views_are_numbered_in_the_order_of_their_creation(store: &dyn Store) {
    let numbers = async || {
        let views = store.family(REPOS, name("x")).await.unwrap().views;
        [3, 1, 2].map(|n| views.get(&owner(n)).map(|view| view.number))
    };
    for n in [3, 1, 2] {
        let created = change(owner(n), None, Some(Arc::default()));
        done(store, commit(family(vec![created]))).await;
    }
    let before = numbers().await;
    assert!(before.is_sorted() && before.iter().all(Option::is_some), "{before:?}");
    let from = generation(store, owner(3)).await;
    let moved = change(owner(3), from, Some(refs(&[("refs/heads/main", 1)])));
    done(store, commit(family(vec![moved]))).await;
    assert_eq!(numbers().await, before, "a change of its refs does not make a view younger");
    let view = store.view(REPOS, RepoId::new(owner(3), name("x"))).await.unwrap();
    assert_eq!(view.map(|view| view.number), before[0]);
}

async fn refs_are_read_as_they_were_written(store: &dyn Store) {
    let mut written = Refs::clone(&refs(&[("refs/heads/a/ü", 1), ("refs/tags/v1", 2)]));
    let tag: RefName = "refs/tags/v1".parse().unwrap();
    written.refs.get_mut(&tag).unwrap().peeled = Some(oid(1));
    written.head = "refs/heads/a/ü".parse().unwrap();
    let change = change(owner(1), None, Some(Arc::new(written.clone())));
    done(store, commit(family(vec![change]))).await;
    let row = store.family(REPOS, name("x")).await.unwrap();
    assert_eq!(*row.views[&owner(1)].refs, written);
}

fn pack(n: u8, is_attic: bool) -> Pack {
    Pack { name: format!("pack-{n}"), bytes: 1 << 40, is_attic }
}

async fn packs_are_added_replaced_and_listed(store: &dyn Store) {
    let mut add = family(vec![]);
    add.add_packs = vec![pack(1, false), pack(2, false), pack(2, true)];
    done(store, commit(add)).await;
    let mut replace = family(vec![]);
    replace.add_packs = vec![pack(3, false)];
    replace.remove_packs = vec![pack(1, false), pack(2, true)];
    replace.verified = Some((pack(2, false).name, time(7)));
    done(store, commit(replace)).await;
    let row = store.family(REPOS, name("x")).await.unwrap();
    assert_eq!(row.packs, BTreeSet::from([pack(2, false), pack(3, false)]));
    assert_eq!(row.verified["pack-2"], time(7));
    let all = store.packs(REPOS).await.unwrap();
    assert_eq!(all, BTreeMap::from([(name("x"), row.packs)]));
    let asked = BTreeSet::from([name("x"), name("y")]);
    assert_eq!(store.existing(REPOS, asked).await.unwrap(), BTreeSet::from([name("x")]));
    assert!(store.repositories(REPOS).await.unwrap().is_empty());
}

async fn retired_refs_are_kept_until_they_are_forgotten(store: &dyn Store) {
    let retired = |n: u8, since| RetiredRef {
        owner: owner(n),
        tip: oid(n),
        name: "refs/heads/main".parse().unwrap(),
        since: time(since),
    };
    let all = [retired(1, 10), retired(2, 20), retired(3, 30)];
    let mut retire = change(owner(9), None, None);
    retire.retired = all.to_vec();
    done(store, commit(family(vec![retire]))).await;
    let retained = async || store.retired(REPOS, name("x")).await.unwrap();
    assert_eq!(retained().await, all);
    let forgotten = [
        (Forget::Before(time(20)), &all[1..]),
        (Forget::Of(owner(2)), &all[2..]),
        (Forget::Tips(BTreeSet::from([oid(3)])), &[][..]),
    ];
    for (forget, left) in forgotten {
        let mut change = family(vec![]);
        change.forget = forget;
        done(store, commit(change)).await;
        assert_eq!(retained().await, left);
    }
    assert!(store.identifiers(REPOS).await.unwrap().is_empty());
}

async fn the_oldest_retired_refs_of_an_owner_are_forgotten_if_there_are_too_many(
    store: &dyn Store,
) {
    let retired = |owner: PublicKey, n: u64, since| RetiredRef {
        owner,
        tip: format!("{n:040x}").parse().unwrap(),
        name: "refs/heads/main".parse().unwrap(),
        since: time(since),
    };
    // Those of one push are kept or forgotten together.
    let pushes = [(1, 10, 3), (1, 20, 4_000), (2, 10, 1), (1, 30, 8_000), (1, 40, 1)];
    for (number, (n, since, count)) in pushes.into_iter().enumerate() {
        let mut retire = change(owner(n), None, None);
        let tips = (0..count).map(|tip| number as u64 * 100_000 + tip);
        retire.retired = tips.map(|tip| retired(owner(n), tip, since)).collect();
        done(store, commit(family(vec![retire]))).await;
    }
    let left = store.retired(REPOS, name("x")).await.unwrap();
    let count = |n, since| {
        left.iter().filter(|one| (one.owner, one.since) == (owner(n), time(since))).count()
    };
    assert_eq!(pushes.map(|(n, since, _)| count(n, since)), [0, 4_000, 1, 8_000, 1]);
}

async fn retired_refs_of_many_owners_do_not_displace_those_of_the_oldest_views(store: &dyn Store) {
    let retired = |owner: PublicKey, n: u64, since| RetiredRef {
        owner,
        tip: format!("{n:040x}").parse().unwrap(),
        name: "refs/heads/main".parse().unwrap(),
        since: time(since),
    };
    let mut retire = change(owner(1), None, Some(refs(&[("refs/heads/main", 1)])));
    retire.retired = vec![retired(owner(1), 1, 5)];
    done(store, commit(family(vec![retire]))).await;
    for n in 2..14 {
        let mut retire = change(owner(n), None, None);
        let since = u64::from(n) * 10;
        retire.retired = (0..9_999).map(|tip| retired(owner(n), tip, since)).collect();
        done(store, commit(family(vec![retire]))).await;
    }
    let left = store.retired(REPOS, name("x")).await.unwrap();
    let count = |n| left.iter().filter(|one| one.owner == owner(n)).count();
    assert_eq!([1, 2, 3, 13].map(count), [1, 0, 9_999, 9_999]);
}

async fn the_more_severe_garbage_mark_stays_until_the_collection(store: &dyn Store) {
    let marked = async || store.family(REPOS, name("x")).await.unwrap().garbage;
    for (garbage, is_collected, left) in [
        (Some(Garbage::Moved), false, Some(Garbage::Moved)),
        (Some(Garbage::Removed), false, Some(Garbage::Removed)),
        (Some(Garbage::Moved), false, Some(Garbage::Removed)),
        (None, true, None),
    ] {
        let mut change = family(vec![]);
        (change.garbage, change.is_collected) = (garbage, is_collected);
        done(store, commit(change)).await;
        assert_eq!(marked().await, left);
    }
}

/// Deletes an event as its author would.
async fn delete(store: &dyn Store, keys: &Keys, event: &Event) {
    let request = EventBuilder::new(Kind::EventDeletion, "").tag(Tag::event(event.id));
    let request = request.custom_created_at(time(NOW)).finalize(keys).unwrap();
    store.save_events(vec![Arc::new(request)], time(NOW)).await.unwrap();
}

async fn refs_are_removed_with_the_event_that_signed_them(store: &dyn Store) {
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let repo = RepoId::new(alice.public_key(), name("x"));
    let sign = |keys: &Keys, kind, tags: Vec<Tag>| {
        let event = EventBuilder::new(Kind::from_u16(kind), "").tags(tags);
        Arc::new(event.custom_created_at(time(NOW)).finalize(keys).unwrap())
    };
    let announcement = sign(&alice, 30617, vec![Tag::identifier("x")]);
    let state = state(&alice, NOW);
    let tip = oid(2).to_string();
    let tags = [["a", &repo.to_string()], ["c", &tip]].map(|tag| Tag::parse(tag).unwrap());
    let proposal = sign(&bob, 1618, tags.to_vec());
    let proposed = RefName::nostr(proposal.id);
    let shown = refs(&[("refs/heads/main", 1), (proposed.as_str(), 2)]);
    let mut view = change(repo.owner, None, Some(shown));
    view.state = Some(state.id);
    let other = change(bob.public_key(), None, Some(refs(&[("refs/heads/main", 3)])));
    let mut release = commit(family(vec![view, other]));
    release.save = vec![announcement.clone(), state.clone(), proposal.clone()];
    done(store, release).await;
    let names = async || {
        let view = store.view(REPOS, repo.clone()).await.unwrap()?;
        Some(view.refs.refs.keys().cloned().collect::<Vec<_>>())
    };
    let main: RefName = "refs/heads/main".parse().unwrap();
    assert_eq!(names().await, Some(vec![main.clone(), proposed.clone()]));
    let before = generation(store, repo.owner).await;
    delete(store, &bob, &proposal).await;
    assert_eq!(names().await, Some(vec![main]));
    assert!(generation(store, repo.owner).await > before);
    delete(store, &alice, &state).await;
    assert_eq!(names().await, Some(vec![]));
    let from = generation(store, repo.owner).await;
    let again = change(repo.owner, from, Some(refs(&[("refs/heads/main", 1)])));
    done(store, commit(family(vec![again]))).await;
    delete(store, &alice, &announcement).await;
    assert_eq!(names().await, Some(vec![]), "purgatory removes the view itself");
    let row = store.family(REPOS, name("x")).await.unwrap();
    assert_eq!(
        row.views[&bob.public_key()].refs.refs.len(),
        1,
        "other views of the identifier stay"
    );
    let retired = store.retired(REPOS, name("x")).await.unwrap();
    let retired: Vec<_> = retired.iter().map(|it| (it.tip, it.since)).collect();
    assert_eq!(retired, [(oid(1), time(NOW))], "since the time of the deletion");
    assert_eq!(row.garbage, Some(Garbage::Removed));
}

async fn additions_are_summed_up_by_hour_and_forgotten_after_two_days(store: &dyn Store) {
    const HOUR: u64 = 3600;
    let addition = |hour: u64, author: Option<u8>, bytes| Addition {
        at: time(NOW + hour * HOUR),
        identifier: name("x"),
        author: author.map(owner),
        has_authority: false,
        source: Source::Pushed,
        bytes,
    };
    let add = async |additions: Vec<Addition>| {
        done(store, Commit { additions, ..Commit::default() }).await;
    };
    let hunted = Addition { source: Source::Hunted, ..addition(0, Some(1), 1) };
    let maintained = Addition { has_authority: true, ..addition(0, Some(1), 1) };
    let elsewhere = Addition { identifier: name("y"), ..addition(0, Some(1), 1) };
    let others = [hunted, maintained, elsewhere, addition(0, None, 1), addition(0, Some(2), 1)];
    add(others.to_vec()).await;
    add(vec![addition(0, Some(1), 1 << 40), addition(1, Some(1), 5)]).await;
    add(vec![addition(0, Some(1), 7)]).await;
    let all = store.additions(time(NOW)).await.unwrap();
    assert_eq!(all.last(), Some(&addition(1, Some(1), 5)), "oldest first");
    let sum = addition(0, Some(1), (1 << 40) + 7);
    let expected = others.into_iter().chain([sum, addition(1, Some(1), 5)]);
    assert_eq!(BTreeSet::from_iter(all), expected.collect());
    assert_eq!(store.additions(time(NOW + 1)).await.unwrap(), [addition(1, Some(1), 5)]);
    add(vec![addition(49, None, 1)]).await;
    let left = store.additions(time(0)).await.unwrap();
    assert_eq!(left, [addition(1, Some(1), 5), addition(49, None, 1)]);
    // An addition is part of its commit.
    let mut outdated = commit(family(vec![change(owner(1), Some(Generation(9)), None)]));
    outdated.additions = vec![addition(49, None, 1)];
    let refused = store.commit(outdated).await.unwrap();
    assert!(matches!(refused, Committed::Conflict(_)));
    assert_eq!(store.additions(time(0)).await.unwrap(), left);
}

async fn endpoints_are_independent(store: &dyn Store) {
    let mut other = FamilyChange::new(Endpoint::PullRequests, name("x"));
    other.views = vec![change(owner(1), None, Some(refs(&[])))];
    other.add_packs = vec![pack(1, false)];
    done(store, commit(other)).await;
    assert_eq!(generation(store, owner(1)).await, None);
    assert!(store.identifiers(REPOS).await.unwrap().is_empty());
    assert!(store.packs(REPOS).await.unwrap().is_empty());
    let there = store.repositories(Endpoint::PullRequests).await.unwrap();
    assert_eq!(there, [RepoId::new(owner(1), name("x"))]);
}

async fn rows_of_purgatory_restore_what_the_records_say(store: &dyn Store) {
    let keys = Keys::generate();
    let [one, two] = [state(&keys, NOW), state(&keys, NOW + 1)];
    let id = EventId::from_byte_array([7; 32]);
    let repo = |n| RepoId::new(owner(n), name("x"));
    let staged = |n, tip, until| Record::Staged {
        id,
        tip: oid(tip),
        target: PushTarget::Repository(repo(n)),
        bytes: u64::from(n),
        until: time(until),
    };
    let (create, remove) = (
        CleanupTask::CreateView { repo: repo(1) },
        CleanupTask::RemoveView { repo: repo(1), is_immediate: true },
    );
    let contributor = Record::Staged {
        id,
        tip: oid(1),
        target: PushTarget::Contributor(repo(1)),
        bytes: 5,
        until: time(4),
    };
    let records = vec![
        held(&one),
        held(&two),
        Record::Moved { id: one.id, phase: Phase::Expired, until: time(NOW + 99) },
        Record::Moved { id, phase: Phase::Expired, until: time(1) },
        Record::Gone { id: two.id },
        staged(1, 1, 1),
        staged(2, 1, 2),
        staged(1, 2, 3),
        contributor,
        Record::Unstaged { id, keep: Some(oid(1)) },
        Record::TaskAdded { task: create.clone() },
        Record::TaskAdded { task: remove.clone() },
        Record::TaskDone { task: create },
        Record::TaskAdded { task: CleanupTask::CreateView { repo: repo(2) } },
        Record::TaskDone { task: CleanupTask::CreateView { repo: repo(2) } },
    ];
    for record in &records {
        done(store, Commit { records: vec![record.clone()], ..Commit::default() }).await;
    }
    let restored = |records: Vec<Record>| {
        let now = Now::new(Mono::ZERO, time(NOW));
        let policy = Policy::new("grasp.example".parse().unwrap());
        format!("{:?}", Purgatory::restore(Config::default(), policy, records, now))
    };
    assert_eq!(restored(store.records().await.unwrap()), restored(records));
}
