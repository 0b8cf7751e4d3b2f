//! The contract of a database of refs, packs and records, run over every database.

mod hiding;
mod isolation;
mod maintained;
mod policy;
mod quotas;
mod removal;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bitcoin_hashes::sha256;
use futures_util::future::{BoxFuture, join_all};
use grasp_core::admission::{Outcome, Policy};
use grasp_core::service::Endpoint;
use grasp_core::{Identifier, Mono, Now, Oid, RefName, RepoId, Version};
use grasp_purgatory::database::{
    Addition, Commit, Committed, Conflict, DataSource, Forget, Garbage, Generation,
    MaintainerChanges, Pack, ProposalChanges, RepoChange, RepoRow, RetiredRef, ViewChange,
};
use grasp_purgatory::git::{Refs, Target};
use grasp_purgatory::{CleanupTask, Config, Phase, Purgatory, PushTarget, Record};
use grasp_relay::store::Store;
use grasp_relay::store::sqlite::{SqliteOptions, SqliteStore};
use nostr::event::{Event, EventBuilder, EventId, FinalizeEvent as _, Kind, Tag};
use nostr::filter::Filter;
use nostr::key::{Keys, PublicKey};
use nostr::types::Timestamp;

use self::hiding::*;
use self::isolation::*;
use self::maintained::*;
use self::policy::*;
use self::quotas::*;
use self::removal::*;
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
    let options = SqliteOptions {
        rules: rules(),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(&dir.path().join("grasp.db"), options).unwrap();
    block_on(rule(&store));
}

contract! {
    a_release_is_all_or_nothing
    a_commit_on_an_outdated_view_changes_nothing
    events_that_the_store_refuses_stop_the_whole_commit
    events_that_are_stored_already_do_not_stop_a_commit
    a_commit_that_requires_a_removed_event_changes_nothing
    a_version_older_than_an_expired_one_is_saved
    one_of_many_concurrent_changes_wins
    no_generation_is_given_twice
    refs_are_read_as_they_were_written
    repositories_that_show_one_state_have_the_same_branches_and_tags
    branches_without_a_state_are_refused
    maintainers_are_remembered_with_the_refs
    packs_are_added_replaced_and_listed
    retired_refs_are_kept_until_they_are_forgotten
    a_tip_is_retired_once_since_the_last_time
    the_oldest_retired_refs_of_a_repository_are_forgotten_if_there_are_too_many
    the_more_severe_garbage_mark_stays_until_the_collection
    endpoints_are_independent
    a_change_of_one_owner_changes_nothing_of_another_owner_of_the_name
    everything_of_one_owner_is_removed_and_another_owner_of_the_name_keeps_all
    retired_refs_of_one_owner_displace_none_of_another
    additions_of_owners_of_one_name_are_counted_separately
    the_generation_of_another_owner_is_outdated
    changes_of_different_owners_at_once_do_not_conflict
    a_deleted_announcement_takes_all_refs_of_its_own_repository
    a_deleted_announcement_ends_its_address
    a_deleted_state_takes_the_branches_and_tags_of_the_views_that_show_it
    a_deleted_state_without_refs_is_the_state_of_no_view
    a_deleted_pull_request_takes_its_refs_at_every_repository
    a_deleted_update_of_a_pull_request_takes_its_refs_too
    a_deleted_pull_request_takes_only_refs_that_are_still_set
    a_deleted_event_of_another_kind_takes_no_refs
    a_replaced_event_takes_no_refs
    one_request_takes_the_refs_of_all_events_that_it_deletes
    refs_go_with_their_event_however_it_is_removed
    a_deletion_at_the_same_time_as_a_change_leaves_no_signed_refs
    rows_of_purgatory_restore_what_the_records_say
    additions_are_summed_up_by_hour_and_forgotten_after_two_days
    quotas_are_given_changed_and_taken_back
    repositories_that_a_key_maintains_are_found_longest_first
    a_maintainer_who_stays_keeps_the_age_and_one_who_returns_does_not
    an_address_is_maintained_at_the_repository_that_it_shows
    git_data_is_counted_by_owner_and_repository
    entries_of_the_policy_are_added_replaced_and_removed
    each_change_raises_the_version_and_a_refused_call_does_not
    an_authorization_changes_something_once
    repositories_are_held_and_restored
    a_removed_role_is_taken_from_its_members
    a_text_replaces_a_setting_until_it_is_taken_back
    the_log_is_read_by_pages_newest_first
    events_of_an_author_are_hidden_and_restored_as_they_were
    an_author_with_many_events_is_hidden_and_restored_in_steps
    what_another_cause_hides_stays_hidden
    a_hidden_repository_loses_its_announcement_and_state_only
    what_its_author_deletes_while_it_is_hidden_is_gone
    what_is_hidden_is_kept_until_its_time_is_over
    what_vanishes_while_it_is_hidden_is_gone
    hidden_events_are_dropped_after_their_time
    a_removed_announcement_is_noted_until_nothing_is_hidden_for_it
    what_depends_on_an_announced_repository_is_not_hidden
    a_deleted_announcement_retires_its_tips_and_a_deleted_state_does_not
    a_withdrawn_state_is_kept_as_a_version
    an_event_that_came_again_or_ended_is_restored_once_or_not
    hiding_leaves_the_refs_of_its_author_and_takes_those_elsewhere
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
    let target = |n: &u8| Target {
        oid: oid(*n),
        peeled: None,
    };
    let refs = tips
        .iter()
        .map(|(name, n)| (name.parse().unwrap(), target(n)))
        .collect();
    Arc::new(Refs {
        refs,
        ..Refs::default()
    })
}

/// Returns the repository `x` of an owner.
fn repo(n: u8) -> RepoId {
    RepoId::new(owner(n), name("x"))
}

/// Returns the id of a state that declares these branches and tags; `None` if there are none.
fn state_of(refs: &Refs) -> Option<EventId> {
    let declared = refs.encode_declared();
    let id = sha256::Hash::hash(declared.as_bytes()).to_byte_array();
    (!declared.is_empty()).then(|| EventId::from_byte_array(id))
}

/// Returns the change of a view without refs of pull requests before it.
fn view(from: Option<Generation>, to: Option<Arc<Refs>>) -> ViewChange {
    let state = to.as_deref().and_then(state_of);
    let proposals = to
        .as_ref()
        .map(|to| ProposalChanges::between(&Refs::default(), to));
    ViewChange {
        from,
        to,
        state,
        maintainers: BTreeSet::new(),
        shows: None,
        retired: Vec::new(),
        proposals: proposals.unwrap_or_default(),
        maintained: MaintainerChanges::default(),
    }
}

/// Returns the change of a repository that changes its view, if there is one.
fn change(repo: &RepoId, view: Option<ViewChange>) -> RepoChange {
    let mut change = RepoChange::new(REPOS, repo.clone());
    change.view = view;
    change
}

fn commit(change: RepoChange) -> Commit {
    Commit {
        repos: vec![change],
        now: time(NOW),
        ..Commit::default()
    }
}

async fn done(store: &dyn Store, commit: Commit) {
    let committed = store.commit(commit).await.unwrap();
    assert!(matches!(committed, Committed::Done { .. }), "{committed:?}");
}

async fn generation(store: &dyn Store, repo: &RepoId) -> Option<Generation> {
    let view = store.view(REPOS, repo.clone()).await.unwrap();
    let head = store.view_head(REPOS, repo.clone()).await.unwrap();
    let generation = head.map(|head| head.generation);
    assert_eq!(view.map(|view| view.generation), generation);
    generation
}

fn retired(n: u64, since: u64) -> RetiredRef {
    RetiredRef {
        tip: format!("{n:040x}").parse().unwrap(),
        name: "refs/heads/main".parse().unwrap(),
        since: time(since),
    }
}

fn state(keys: &Keys, at: u64) -> Arc<Event> {
    let event = EventBuilder::new(Kind::from_u16(30618), "").tag(Tag::identifier("x"));
    Arc::new(event.custom_created_at(time(at)).finalize(keys).unwrap())
}

fn held(event: &Arc<Event>) -> Record {
    let (since, until) = (time(NOW), time(NOW + 60));
    Record::Held {
        event: event.clone(),
        phase: Phase::Waiting,
        since,
        until,
    }
}

async fn is_served(store: &dyn Store, event: &Event) -> bool {
    store
        .count(vec![Filter::new().id(event.id)], time(NOW))
        .await
        .unwrap()
        == 1
}

async fn a_release_is_all_or_nothing(store: &dyn Store) {
    let (keys, main) = (Keys::generate(), refs(&[("refs/heads/main", 1)]));
    let event = state(&keys, NOW);
    done(
        store,
        Commit {
            records: vec![held(&event)],
            ..Commit::default()
        },
    )
    .await;
    let mut release = commit(change(&repo(1), Some(view(None, Some(main.clone())))));
    release.save = vec![event.clone()];
    release.records = vec![Record::Gone { id: event.id }];
    done(store, release).await;
    assert!(is_served(store, &event).await && store.records().await.unwrap().is_empty());
    let shown = store.view(REPOS, repo(1)).await.unwrap().unwrap();
    assert_eq!(shown.refs, main);
    // And back: the event is withdrawn, held again, and the view is gone.
    let mut back = commit(change(&repo(1), Some(view(Some(shown.generation), None))));
    (back.withdraw, back.records) = (vec![event.id], vec![held(&event)]);
    done(store, back).await;
    assert!(!is_served(store, &event).await);
    assert_eq!(store.records().await.unwrap(), [held(&event)]);
    assert_eq!(generation(store, &repo(1)).await, None);
}

async fn a_commit_on_an_outdated_view_changes_nothing(store: &dyn Store) {
    let event = state(&Keys::generate(), NOW);
    let main = Some(refs(&[("refs/heads/main", 1)]));
    done(
        store,
        commit(change(&repo(1), Some(view(None, main.clone())))),
    )
    .await;
    let before = generation(store, &repo(1)).await;
    for (from, to) in [
        (None, main.clone()),
        (Some(Generation(99)), main.clone()),
        (None, None),
    ] {
        let mut outdated = commit(change(&repo(2), Some(view(None, main.clone()))));
        outdated.repos.push(change(&repo(1), Some(view(from, to))));
        outdated.save = vec![event.clone()];
        outdated.records = vec![held(&event)];
        let moved = Conflict::Moved(REPOS, repo(1));
        assert_eq!(
            store.commit(outdated).await.unwrap(),
            Committed::Conflict(moved)
        );
    }
    assert!(!is_served(store, &event).await && store.records().await.unwrap().is_empty());
    assert_eq!(generation(store, &repo(1)).await, before);
    assert_eq!(generation(store, &repo(2)).await, None);
}

async fn events_that_the_store_refuses_stop_the_whole_commit(store: &dyn Store) {
    let keys = Keys::generate();
    let (older, newer, deleted) = (state(&keys, NOW), state(&keys, NOW + 1), {
        let other = Keys::generate();
        let event = state(&other, NOW);
        let request = EventBuilder::new(Kind::EventDeletion, "").tag(Tag::event(event.id));
        let request = request
            .custom_created_at(time(NOW))
            .finalize(&other)
            .unwrap();
        store
            .save_events(vec![Arc::new(request)], time(NOW))
            .await
            .unwrap();
        event
    });
    store
        .save_events(vec![newer.clone()], time(NOW))
        .await
        .unwrap();
    let fine = state(&Keys::generate(), NOW);
    let main = Some(refs(&[("refs/heads/main", 1)]));
    let mut release = commit(change(&repo(1), Some(view(None, main))));
    release.save = vec![fine.clone(), older.clone(), deleted.clone()];
    let refused = Conflict::Refused(BTreeSet::from([older.id, deleted.id]));
    assert_eq!(
        store.commit(release).await.unwrap(),
        Committed::Conflict(refused)
    );
    assert!(!is_served(store, &fine).await && generation(store, &repo(1)).await.is_none());
}

async fn events_that_are_stored_already_do_not_stop_a_commit(store: &dyn Store) {
    let event = state(&Keys::generate(), NOW);
    for _ in 0..2 {
        let save = vec![event.clone()];
        done(
            store,
            Commit {
                save,
                now: time(NOW),
                ..Commit::default()
            },
        )
        .await;
    }
    assert!(is_served(store, &event).await);
}

async fn a_commit_that_requires_a_removed_event_changes_nothing(store: &dyn Store) {
    let keys = Keys::generate();
    let (kept, deleted) = (state(&Keys::generate(), NOW), state(&keys, NOW));
    store
        .save_events(vec![kept.clone(), deleted.clone()], time(NOW))
        .await
        .unwrap();
    let saved = state(&Keys::generate(), NOW);
    let release = |require: [&Event; 2], from| {
        let main = Some(refs(&[("refs/heads/main", 1)]));
        let mut release = commit(change(&repo(1), Some(view(from, main))));
        release.save = vec![saved.clone()];
        release.require = [saved.id]
            .into_iter()
            .chain(require.map(|event| event.id))
            .collect();
        release
    };
    delete(store, &keys, &deleted).await;
    let refused = Conflict::Refused(BTreeSet::from([deleted.id]));
    let outdated = store
        .commit(release([&kept, &deleted], None))
        .await
        .unwrap();
    assert_eq!(outdated, Committed::Conflict(refused));
    assert!(!is_served(store, &saved).await && generation(store, &repo(1)).await.is_none());
    done(store, release([&kept, &kept], None)).await;
    assert!(is_served(store, &saved).await && generation(store, &repo(1)).await.is_some());
}

async fn a_version_older_than_an_expired_one_is_saved(store: &dyn Store) {
    let keys = Keys::generate();
    let older = state(&keys, NOW);
    let end = (NOW + 10).to_string();
    let brief = EventBuilder::new(older.kind, "")
        .tags(
            older
                .tags
                .iter()
                .cloned()
                .chain([Tag::parse(["expiration", &end]).unwrap()]),
        )
        .custom_created_at(time(NOW + 1))
        .finalize(&keys)
        .unwrap();
    store
        .save_events(vec![Arc::new(brief)], time(NOW + 1))
        .await
        .unwrap();
    let save = |now| Commit {
        save: vec![older.clone()],
        now: time(now),
        ..Commit::default()
    };
    let refused = Conflict::Refused(BTreeSet::from([older.id]));
    let early = store.commit(save(NOW + 9)).await.unwrap();
    assert_eq!(early, Committed::Conflict(refused));
    done(store, save(NOW + 10)).await;
    assert!(is_served(store, &older).await);
}

async fn one_of_many_concurrent_changes_wins(store: &dyn Store) {
    done(
        store,
        commit(change(&repo(1), Some(view(None, Some(refs(&[])))))),
    )
    .await;
    for round in 0..4 {
        let from = generation(store, &repo(1)).await;
        let changes = (0..16).map(|n| {
            let to = refs(&[("refs/heads/main", 16 * round + n)]);
            store.commit(commit(change(&repo(1), Some(view(from, Some(to))))))
        });
        let ended = join_all(changes).await.into_iter().map(Result::unwrap);
        assert_eq!(
            ended
                .filter(|it| matches!(it, Committed::Done { .. }))
                .count(),
            1
        );
    }
}

async fn no_generation_is_given_twice(store: &dyn Store) {
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        for one in [repo(1), repo(2)] {
            let from = generation(store, &one).await;
            done(
                store,
                commit(change(&one, Some(view(from, Some(refs(&[])))))),
            )
            .await;
            assert!(seen.insert(generation(store, &one).await));
        }
        let from = generation(store, &repo(1)).await;
        done(store, commit(change(&repo(1), Some(view(from, None))))).await;
    }
}

async fn refs_are_read_as_they_were_written(store: &dyn Store) {
    let mut written = Refs::clone(&refs(&[("refs/heads/a/ü", 1), ("refs/tags/v1", 2)]));
    let tag: RefName = "refs/tags/v1".parse().unwrap();
    written.refs.get_mut(&tag).unwrap().peeled = Some(oid(1));
    written.head = "refs/heads/a/ü".parse().unwrap();
    let state = EventId::from_byte_array([8; 32]);
    let mut first = view(None, Some(Arc::new(written.clone())));
    first.state = Some(state);
    done(store, commit(change(&repo(1), Some(first)))).await;
    let read = store.row(REPOS, repo(1)).await.unwrap().view.unwrap();
    assert_eq!(*read.refs, written);
    assert_eq!(read.state, Some(state));
    assert_eq!(store.view(REPOS, repo(1)).await.unwrap(), Some(read));
}

async fn repositories_that_show_one_state_have_the_same_branches_and_tags(store: &dyn Store) {
    let proposal = RefName::nostr(EventId::from_byte_array([7; 32]));
    let [main, tag] = ["refs/heads/main", "refs/tags/v1"];
    let one = refs(&[(main, 1), (tag, 2)]);
    let two = refs(&[(main, 1), (proposal.as_str(), 3), (tag, 2)]);
    for (owner, shown) in [(1, &one), (2, &two)] {
        done(
            store,
            commit(change(&repo(owner), Some(view(None, Some(shown.clone()))))),
        )
        .await;
    }
    let shown = async |n| store.view(REPOS, repo(n)).await.unwrap().unwrap();
    assert_eq!(shown(1).await.state, shown(2).await.state);
    assert_eq!(
        (shown(1).await.refs, shown(2).await.refs),
        (one.clone(), two.clone())
    );
    // One shows another state, then none: the other shows what it did.
    for next in [refs(&[(main, 9)]), refs(&[])] {
        let from = generation(store, &repo(1)).await;
        done(
            store,
            commit(change(&repo(1), Some(view(from, Some(next.clone()))))),
        )
        .await;
        assert_eq!(shown(1).await.refs, next);
        assert_eq!(shown(2).await.refs, two);
    }
    // One returns to the state of the other, which then goes.
    let from = generation(store, &repo(1)).await;
    done(
        store,
        commit(change(&repo(1), Some(view(from, Some(one.clone()))))),
    )
    .await;
    let from = generation(store, &repo(2)).await;
    done(store, commit(change(&repo(2), Some(view(from, None))))).await;
    assert_eq!(shown(1).await.refs, one);
}

async fn branches_without_a_state_are_refused(store: &dyn Store) {
    let mut unsigned = view(None, Some(refs(&[("refs/heads/main", 1)])));
    unsigned.state = None;
    let error = store.commit(commit(change(&repo(1), Some(unsigned)))).await;
    assert!(error.is_err(), "{error:?}");
    assert_eq!(generation(store, &repo(1)).await, None);
}

async fn maintainers_are_remembered_with_the_refs(store: &dyn Store) {
    // Some, more, fewer and none; each change says who they are.
    let sets = [vec![1], (1..=100).collect(), vec![7, 3], vec![]];
    for set in sets {
        let maintainers: BTreeSet<PublicKey> = set.into_iter().map(owner).collect();
        let mut changed = view(generation(store, &repo(1)).await, Some(refs(&[])));
        changed.maintainers = maintainers.clone();
        changed.shows = maintainers.first().copied();
        done(store, commit(change(&repo(1), Some(changed)))).await;
        let shown = store.view(REPOS, repo(1)).await.unwrap().unwrap();
        assert_eq!(shown.maintainers, maintainers);
        assert_eq!(shown.shows, maintainers.first().copied());
        assert_eq!(store.row(REPOS, repo(1)).await.unwrap().view, Some(shown));
    }
}

fn pack(n: u8) -> Pack {
    Pack {
        name: format!("pack-{n}"),
        bytes: 1 << 40,
    }
}

async fn packs_are_added_replaced_and_listed(store: &dyn Store) {
    let mut add = change(&repo(1), None);
    add.add_packs = vec![pack(1), pack(2)];
    done(store, commit(add)).await;
    let mut replace = change(&repo(1), None);
    replace.add_packs = vec![pack(3)];
    replace.remove_packs = vec![pack(1)];
    replace.verified = Some((pack(2).name, time(7)));
    done(store, commit(replace)).await;
    let row = store.row(REPOS, repo(1)).await.unwrap();
    assert_eq!(row.packs, BTreeSet::from([pack(2), pack(3)]));
    assert_eq!(row.verified["pack-2"], time(7));
    assert_eq!(row.view, None, "objects may come before an announcement");
    let all = store.packs(REPOS).await.unwrap();
    assert_eq!(all, BTreeMap::from([(repo(1), row.packs)]));
    assert_eq!(store.all(REPOS).await.unwrap(), BTreeSet::from([repo(1)]));
    assert!(store.repositories(REPOS).await.unwrap().is_empty());
}

async fn retired_refs_are_kept_until_they_are_forgotten(store: &dyn Store) {
    let all = [1, 2, 3, 4, 5].map(|n| retired(n, 10 * n));
    let mut retire = view(None, None);
    retire.retired = all.to_vec();
    done(store, commit(change(&repo(1), Some(retire)))).await;
    let retained = async || store.retired(REPOS, repo(1)).await.unwrap();
    assert_eq!(retained().await, all);
    assert_eq!(store.all(REPOS).await.unwrap(), BTreeSet::from([repo(1)]));
    let forgotten = [
        (Forget::Nothing, &all[..]),
        (Forget::Before(time(20)), &all[1..]),
        (
            Forget::Tips(BTreeSet::from([all[1].tip, all[2].tip])),
            &all[3..],
        ),
        (Forget::All, &[][..]),
    ];
    for (forget, left) in forgotten {
        let mut forgetting = change(&repo(1), None);
        forgetting.forget = forget;
        done(store, commit(forgetting)).await;
        assert_eq!(retained().await, left);
    }
    assert!(store.all(REPOS).await.unwrap().is_empty());
}

async fn a_tip_is_retired_once_since_the_last_time(store: &dyn Store) {
    let again = RetiredRef {
        name: "refs/tags/v1".parse().unwrap(),
        ..retired(1, 20)
    };
    for one in [retired(1, 10), again.clone()] {
        let mut retire = view(None, None);
        retire.retired = vec![one];
        done(store, commit(change(&repo(1), Some(retire)))).await;
    }
    assert_eq!(store.retired(REPOS, repo(1)).await.unwrap(), [again]);
}

async fn the_oldest_retired_refs_of_a_repository_are_forgotten_if_there_are_too_many(
    store: &dyn Store,
) {
    // Those of one push are kept or forgotten together.
    let pushes = [(10, 3), (20, 4_000), (30, 8_000), (40, 1)];
    for (number, (since, count)) in pushes.into_iter().enumerate() {
        let mut retire = view(None, None);
        let tips = (0..count).map(|tip| number as u64 * 100_000 + tip);
        retire.retired = tips.map(|tip| retired(tip, since)).collect();
        done(store, commit(change(&repo(1), Some(retire)))).await;
    }
    let left = store.retired(REPOS, repo(1)).await.unwrap();
    let count = |since| left.iter().filter(|one| one.since == time(since)).count();
    assert_eq!(pushes.map(|(since, _)| count(since)), [0, 4_000, 8_000, 1]);
}

async fn the_more_severe_garbage_mark_stays_until_the_collection(store: &dyn Store) {
    let marked = async || store.row(REPOS, repo(1)).await.unwrap().garbage;
    for (garbage, is_collected, left) in [
        (Some(Garbage::Moved), false, Some(Garbage::Moved)),
        (Some(Garbage::Removed), false, Some(Garbage::Removed)),
        (Some(Garbage::Moved), false, Some(Garbage::Removed)),
        (None, true, None),
        (Some(Garbage::Removed), false, Some(Garbage::Removed)),
        // The old mark is cleared before the new one is set.
        (Some(Garbage::Moved), true, Some(Garbage::Moved)),
    ] {
        let mut marking = change(&repo(1), None);
        (marking.garbage, marking.is_collected) = (garbage, is_collected);
        done(store, commit(marking)).await;
        assert_eq!(marked().await, left);
    }
}

/// Deletes an event as its author would.
async fn delete(store: &dyn Store, keys: &Keys, event: &Event) {
    let request = EventBuilder::new(Kind::EventDeletion, "").tag(Tag::event(event.id));
    let request = request.custom_created_at(time(NOW)).finalize(keys).unwrap();
    store
        .save_events(vec![Arc::new(request)], time(NOW))
        .await
        .unwrap();
}

async fn additions_are_summed_up_by_hour_and_forgotten_after_two_days(store: &dyn Store) {
    const HOUR: u64 = 3600;
    let addition = |hour: u64, author: Option<u8>, bytes| Addition {
        at: time(NOW + hour * HOUR),
        repo: repo(1),
        author: author.map(owner),
        has_authority: false,
        source: DataSource::Pushed,
        bytes,
    };
    let add = async |additions: Vec<Addition>| {
        done(
            store,
            Commit {
                additions,
                ..Commit::default()
            },
        )
        .await;
    };
    let hunted = Addition {
        source: DataSource::Hunted,
        ..addition(0, Some(1), 1)
    };
    let maintained = Addition {
        has_authority: true,
        ..addition(0, Some(1), 1)
    };
    let elsewhere = Addition {
        repo: RepoId::new(owner(1), name("y")),
        ..addition(0, Some(1), 1)
    };
    let others = [
        hunted,
        maintained,
        elsewhere,
        addition(0, None, 1),
        addition(0, Some(2), 1),
    ];
    add(others.to_vec()).await;
    add(vec![addition(0, Some(1), 1 << 40), addition(1, Some(1), 5)]).await;
    add(vec![addition(0, Some(1), 7)]).await;
    let all = store.additions(time(NOW)).await.unwrap();
    assert_eq!(all.last(), Some(&addition(1, Some(1), 5)), "oldest first");
    let sum = addition(0, Some(1), (1 << 40) + 7);
    let expected = others.into_iter().chain([sum, addition(1, Some(1), 5)]);
    assert_eq!(BTreeSet::from_iter(all), expected.collect());
    assert_eq!(
        store.additions(time(NOW + 1)).await.unwrap(),
        [addition(1, Some(1), 5)]
    );
    add(vec![addition(49, None, 1)]).await;
    let left = store.additions(time(0)).await.unwrap();
    assert_eq!(left, [addition(1, Some(1), 5), addition(49, None, 1)]);
    // An addition is part of its commit.
    let mut outdated = commit(change(&repo(1), Some(view(Some(Generation(9)), None))));
    outdated.additions = vec![addition(49, None, 1)];
    let refused = store.commit(outdated).await.unwrap();
    assert!(matches!(refused, Committed::Conflict(_)));
    assert_eq!(store.additions(time(0)).await.unwrap(), left);
}

async fn endpoints_are_independent(store: &dyn Store) {
    let mut other = RepoChange::new(Endpoint::PullRequests, repo(1));
    let mut shown = view(None, Some(refs(&[])));
    shown.retired = vec![retired(1, 10)];
    other.view = Some(shown);
    other.add_packs = vec![pack(1)];
    other.garbage = Some(Garbage::Moved);
    done(store, commit(other)).await;
    assert_eq!(store.row(REPOS, repo(1)).await.unwrap(), RepoRow::default());
    assert!(store.retired(REPOS, repo(1)).await.unwrap().is_empty());
    assert!(store.all(REPOS).await.unwrap().is_empty());
    assert!(store.packs(REPOS).await.unwrap().is_empty());
    assert!(store.repositories(REPOS).await.unwrap().is_empty());
    let there = store.repositories(Endpoint::PullRequests).await.unwrap();
    assert_eq!(there, [repo(1)]);
}

async fn rows_of_purgatory_restore_what_the_records_say(store: &dyn Store) {
    let keys = Keys::generate();
    let [one, two] = [state(&keys, NOW), state(&keys, NOW + 1)];
    let id = EventId::from_byte_array([7; 32]);
    let staged = |n, tip, until| Record::Staged {
        id,
        tip: oid(tip),
        target: PushTarget::Repository(repo(n)),
        bytes: u64::from(n),
        until: time(until),
    };
    let (create, remove) = (
        CleanupTask::CreateView { repo: repo(1) },
        CleanupTask::RemoveView {
            repo: repo(1),
            is_immediate: true,
        },
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
        Record::Moved {
            id: one.id,
            phase: Phase::Expired,
            until: time(NOW + 99),
        },
        Record::Moved {
            id,
            phase: Phase::Expired,
            until: time(1),
        },
        Record::Gone { id: two.id },
        staged(1, 1, 1),
        staged(2, 1, 2),
        staged(1, 2, 3),
        contributor,
        Record::Unstaged {
            id,
            keep: Some(oid(1)),
        },
        Record::TaskAdded {
            task: create.clone(),
        },
        Record::TaskAdded {
            task: remove.clone(),
        },
        Record::TaskDone { task: create },
        Record::TaskAdded {
            task: CleanupTask::CreateView { repo: repo(2) },
        },
        Record::TaskDone {
            task: CleanupTask::CreateView { repo: repo(2) },
        },
    ];
    for record in &records {
        done(
            store,
            Commit {
                records: vec![record.clone()],
                ..Commit::default()
            },
        )
        .await;
    }
    let restored = |records: Vec<Record>| {
        let now = Now::new(Mono::ZERO, time(NOW));
        let policy = Policy::new("grasp.example".parse().unwrap());
        format!(
            "{:?}",
            Purgatory::restore(Config::default(), policy, records, now)
        )
    };
    assert_eq!(restored(store.records().await.unwrap()), restored(records));
}
