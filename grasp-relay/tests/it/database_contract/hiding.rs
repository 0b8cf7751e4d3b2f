//! Events that are taken out of service for a while.

use grasp_core::policy::{HiddenCause, PolicySubject};
use grasp_relay::store::policy::{HideStep, RestoreStep};
use nostr::nips::nip01::Coordinate;

use super::*;
use crate::store_events::{ALICE, BOB, NOW as WRITTEN, find, save, serves, stored};

const UNTIL: u64 = WRITTEN + 1_000;

fn policy() -> Policy {
    Policy::new("us.example".parse().unwrap())
}

/// Hides all that a cause hides; returns the steps.
async fn hide(store: &dyn Store, cause: &HiddenCause) -> Vec<HideStep> {
    let mut steps: Vec<HideStep> = Vec::new();
    while steps.last().is_none_or(|last| !last.is_done) {
        let step = store.hide(cause.clone(), time(UNTIL), time(WRITTEN));
        steps.push(step.await.unwrap());
    }
    steps
}

/// Restores all that a cause has hidden and this policy does not; returns the steps.
async fn restore(store: &dyn Store, cause: &HiddenCause, policy: &Policy) -> Vec<RestoreStep> {
    let policy = Arc::new(policy.clone());
    let mut steps: Vec<RestoreStep> = Vec::new();
    while steps.last().is_none_or(|last| !last.is_done) {
        let step = store.restore(cause.clone(), Arc::clone(&policy), time(WRITTEN));
        steps.push(step.await.unwrap());
    }
    steps
}

async fn is_hidden(store: &dyn Store, event: &Event) -> bool {
    !store.hidden(vec![event.id]).await.unwrap().is_empty()
}

pub(super) async fn events_of_an_author_are_hidden_and_restored_as_they_were(store: &dyn Store) {
    let theirs = [
        ALICE.writes(30_617).tag("d", "x").done(),
        ALICE.writes(30_618).tag("d", "x").done(),
        ALICE.writes(1).tag("t", "x").done(),
        ALICE.writes(5).tag("e", crate::store_events::id(9)).done(),
    ];
    let other = BOB.writes(1).tag("t", "x").done();
    for event in theirs.iter().chain([&other]) {
        stored(store, event).await;
    }
    let before = find(store, Filter::new()).await;
    let cause = HiddenCause::Author(ALICE.key());
    let steps = hide(store, &cause).await;
    assert_eq!(steps.len(), 1);
    assert_eq!(
        steps[0].removed,
        theirs.iter().map(|event| event.id).collect()
    );
    let named = RepoId::new(ALICE.key(), name("x"));
    assert_eq!(steps[0].affected, BTreeSet::from([named.clone()]));
    assert_eq!(find(store, Filter::new()).await, [other.id]);
    assert_eq!(
        store.hidden_causes().await.unwrap(),
        BTreeSet::from([cause.clone()])
    );
    let version = store.policy_version().await.unwrap();
    let steps = restore(store, &cause, &policy()).await;
    // What refers to an announcement is back before it.
    let kinds: Vec<_> = steps[0]
        .restored
        .iter()
        .map(|event| event.kind.as_u16())
        .collect();
    assert_eq!(kinds[2..], [30_618, 30_617]);
    assert_eq!(steps[0].affected, BTreeSet::from([named]));
    assert_eq!(find(store, Filter::new()).await, before);
    for event in &theirs {
        assert!(!is_hidden(store, event).await);
    }
    assert!(store.hidden_causes().await.unwrap().is_empty());
    assert!(store.policy_version().await.unwrap() > version);
}

pub(super) async fn an_author_with_many_events_is_hidden_and_restored_in_steps(store: &dyn Store) {
    let many = (0..1_200).map(|n| ALICE.writes(1).id(10_000 + n).tag("t", n % 7).done());
    store.save(many.collect(), time(WRITTEN)).await.unwrap();
    let before = find(store, Filter::new().hashtag("3")).await;
    let cause = HiddenCause::Author(ALICE.key());
    let steps = hide(store, &cause).await;
    assert!(steps.len() > 2, "a step is short");
    assert_eq!(
        steps.iter().map(|step| step.removed.len()).sum::<usize>(),
        1_200
    );
    assert!(find(store, Filter::new()).await.is_empty());
    let steps = restore(store, &cause, &policy()).await;
    assert!(steps.len() > 2, "a step is short");
    assert_eq!(
        steps.iter().map(|step| step.restored.len()).sum::<usize>(),
        1_200
    );
    assert_eq!(find(store, Filter::new().hashtag("3")).await, before);
}

pub(super) async fn what_another_cause_hides_stays_hidden(store: &dyn Store) {
    let announcement = ALICE.writes(30_617).tag("d", "x").done();
    let note = ALICE.writes(1).id(1).done();
    let banned = ALICE.writes(1).id(2).done();
    for event in [&announcement, &note, &banned] {
        stored(store, event).await;
    }
    let author = HiddenCause::Author(ALICE.key());
    hide(store, &author).await;
    let repo = RepoId::new(ALICE.key(), name("x"));
    let left = [
        PolicySubject::BannedRepo(repo.clone()),
        PolicySubject::BannedEvent(banned.id),
    ];
    restore(store, &author, &policy().with(&left)).await;
    assert_eq!(find(store, Filter::new()).await, [note.id]);
    let causes = [HiddenCause::Event(banned.id), HiddenCause::Repo(repo)];
    assert_eq!(
        store.hidden_causes().await.unwrap(),
        BTreeSet::from(causes.clone())
    );
    for cause in &causes {
        restore(store, cause, &policy()).await;
    }
    assert_eq!(find(store, Filter::new()).await.len(), 3);
}

pub(super) async fn a_hidden_repository_loses_its_announcement_and_state_only(store: &dyn Store) {
    let hidden = [
        ALICE.writes(30_617).tag("d", "x").done(),
        ALICE.writes(30_618).tag("d", "x").done(),
    ];
    let others = [
        ALICE.writes(30_617).tag("d", "y").done(),
        BOB.writes(30_617).tag("d", "x").done(),
        ALICE.writes(1).done(),
    ];
    for event in hidden.iter().chain(&others) {
        stored(store, event).await;
    }
    hide(
        store,
        &HiddenCause::Repo(RepoId::new(ALICE.key(), name("x"))),
    )
    .await;
    for event in &hidden {
        assert!(!serves(store, event).await && is_hidden(store, event).await);
    }
    for event in &others {
        assert!(serves(store, event).await);
    }
}

pub(super) async fn what_is_hidden_is_kept_until_its_time_is_over(store: &dyn Store) {
    let announcement = ALICE.writes(30_617).tag("d", "x").done();
    let coordinate = || Coordinate::new(Kind::from(30_617), ALICE.key()).identifier("x");
    assert!(!store.keeps(coordinate()).await.unwrap());
    stored(store, &announcement).await;
    assert!(store.keeps(coordinate()).await.unwrap(), "it is served");
    hide(store, &HiddenCause::Author(ALICE.key())).await;
    assert!(store.keeps(coordinate()).await.unwrap(), "it is hidden");
    store.sweep(time(UNTIL)).await.unwrap();
    assert!(!store.keeps(coordinate()).await.unwrap());
}

pub(super) async fn what_its_author_deletes_while_it_is_hidden_is_gone(store: &dyn Store) {
    let by_id = ALICE.writes(1).id(1).done();
    let version = ALICE.writes(30_617).tag("d", "x").at(100).done();
    let newer = ALICE.writes(30_618).tag("d", "x").at(NOW_AFTER).done();
    for event in [&by_id, &version, &newer] {
        stored(store, event).await;
    }
    let cause = HiddenCause::Author(ALICE.key());
    hide(store, &cause).await;
    let at = |kind: u16| {
        let coordinate = Coordinate::new(Kind::from(kind), ALICE.key()).identifier("x");
        format!("{kind}:{}:{}", coordinate.public_key, coordinate.identifier)
    };
    let request = ALICE.writes(5).at(NOW_BETWEEN);
    let request = request
        .tag("e", by_id.id)
        .tag("a", at(30_617))
        .tag("a", at(30_618));
    stored(store, &request.done()).await;
    for gone in [&by_id, &version] {
        assert!(!is_hidden(store, gone).await);
    }
    assert!(
        is_hidden(store, &newer).await,
        "it is newer than the request"
    );
    restore(store, &cause, &policy()).await;
    assert!(serves(store, &newer).await);
    assert!(!serves(store, &by_id).await && !serves(store, &version).await);
}

/// Times between a version and a newer one.
const NOW_BETWEEN: u64 = 500;
const NOW_AFTER: u64 = 1_000;

pub(super) async fn what_vanishes_while_it_is_hidden_is_gone(store: &dyn Store) {
    let note = ALICE.writes(1).at(5).done();
    let later = ALICE.writes(1).at(15).done();
    let other = BOB.writes(1).at(5).done();
    for event in [&note, &later, &other] {
        stored(store, event).await;
    }
    hide(store, &HiddenCause::Author(ALICE.key())).await;
    hide(store, &HiddenCause::Author(BOB.key())).await;
    let request = ALICE.writes(62).at(10).tag("relay", "ALL_RELAYS").done();
    stored(store, &request).await;
    assert!(!is_hidden(store, &note).await);
    assert!(is_hidden(store, &later).await && is_hidden(store, &other).await);
}

pub(super) async fn hidden_events_are_dropped_after_their_time(store: &dyn Store) {
    let note = ALICE.writes(1).done();
    stored(store, &note).await;
    hide(store, &HiddenCause::Author(ALICE.key())).await;
    store.sweep(time(UNTIL - 1)).await.unwrap();
    assert!(is_hidden(store, &note).await);
    store.sweep(time(UNTIL)).await.unwrap();
    assert!(!is_hidden(store, &note).await);
}

pub(super) async fn an_event_that_came_again_or_ended_is_restored_once_or_not(store: &dyn Store) {
    let again = ALICE.writes(1).id(1).done();
    let ended = ALICE.writes(1).id(2).tag("expiration", WRITTEN + 10).done();
    for event in [&again, &ended] {
        stored(store, event).await;
    }
    let cause = HiddenCause::Author(ALICE.key());
    hide(store, &cause).await;
    stored(store, &again).await;
    let late = time(WRITTEN + 10);
    let step = store
        .restore(cause, Arc::new(policy()), late)
        .await
        .unwrap();
    assert!(step.restored.is_empty() && step.is_done);
    assert_eq!(find(store, Filter::new()).await, [again.id]);
    assert!(!is_hidden(store, &ended).await);
    assert_ne!(save(store, &again).await, Outcome::Stored);
}

pub(super) async fn hiding_leaves_the_refs_of_its_author_and_takes_those_elsewhere(
    store: &dyn Store,
) {
    let signed = ALICE.writes(30_618).tag("d", "x").done();
    stored(store, &signed).await;
    let (own, others) = (RepoId::new(ALICE.key(), name("x")), repo(2));
    for repo in [&own, &others] {
        let mut shown = view(None, Some(refs(&[("refs/heads/main", 1)])));
        shown.state = Some(signed.id);
        done(store, commit(change(repo, Some(shown)))).await;
    }
    let before = store.view(REPOS, own.clone()).await.unwrap();
    hide(store, &HiddenCause::Author(ALICE.key())).await;
    assert_eq!(store.view(REPOS, own).await.unwrap(), before);
    let taken = store.view(REPOS, others.clone()).await.unwrap().unwrap();
    assert!(taken.refs.refs.is_empty() && taken.state.is_none());
    let retired = store.retired(REPOS, others).await.unwrap();
    assert_eq!(retired.len(), 1, "its objects are kept");
}

/// Hides events because the repository of an announcement is not announced.
async fn hide_dependents(store: &dyn Store, repo: &RepoId, events: &[&Event]) -> HideStep {
    let ids = events.iter().map(|event| event.id).collect();
    let step = store.hide_dependents(repo.clone(), ids, time(UNTIL), time(WRITTEN));
    step.await.unwrap()
}

pub(super) async fn a_removed_announcement_is_noted_until_nothing_is_hidden_for_it(
    store: &dyn Store,
) {
    let repo = RepoId::new(ALICE.key(), name("x"));
    let announcement = ALICE.writes(30_617).tag("d", "x").at(WRITTEN - 10).done();
    let issue = BOB.writes(1_621).tag("a", &repo).done();
    let note = BOB.writes(1).done();
    for event in [&announcement, &issue, &note] {
        stored(store, event).await;
    }
    let before = find(
        store,
        Filter::new().kinds([Kind::from(1_621), Kind::from(1)]),
    )
    .await;
    assert!(store.unannounced().await.unwrap().is_empty());
    let deletion = ALICE.writes(5).tag("a", &repo).at(WRITTEN - 5).done();
    stored(store, &deletion).await;
    let noted = BTreeMap::from([(repo.clone(), announcement.id)]);
    assert_eq!(store.unannounced().await.unwrap(), noted);

    let step = hide_dependents(store, &repo, &[&issue, &note]).await;
    assert!(step.is_done);
    assert_eq!(step.removed, BTreeSet::from([issue.id, note.id]));
    for event in [&issue, &note] {
        assert!(!serves(store, event).await && is_hidden(store, event).await);
    }
    assert!(
        store.hidden_causes().await.unwrap().is_empty(),
        "no operator decided it"
    );
    store.forget_unannounced(repo.clone()).await.unwrap();
    assert_eq!(
        store.unannounced().await.unwrap(),
        noted,
        "events are hidden for it"
    );

    // Its author may delete what is hidden.
    let deletion = BOB.writes(5).tag("e", note.id).done();
    stored(store, &deletion).await;
    let again = ALICE.writes(30_617).tag("d", "x").done();
    stored(store, &again).await;
    restore(store, &HiddenCause::Unannounced(repo), &policy()).await;
    let after = find(
        store,
        Filter::new().kinds([Kind::from(1_621), Kind::from(1)]),
    )
    .await;
    let expected: Vec<_> = before.into_iter().filter(|id| *id != note.id).collect();
    assert_eq!(after, expected);
    assert!(store.unannounced().await.unwrap().is_empty());
}

pub(super) async fn what_depends_on_an_announced_repository_is_not_hidden(store: &dyn Store) {
    let repo = RepoId::new(ALICE.key(), name("x"));
    let announcement = ALICE.writes(30_617).tag("d", "x").done();
    let issue = BOB.writes(1_621).tag("a", &repo).done();
    for event in [&announcement, &issue] {
        stored(store, event).await;
    }
    let step = hide_dependents(store, &repo, &[&issue]).await;
    assert!(step.is_done && step.removed.is_empty());
    assert!(serves(store, &issue).await);
    // A newer version is no removal, and neither is one that an older server forgot to forget.
    stored(
        store,
        &ALICE.writes(30_617).tag("d", "x").at(WRITTEN).done(),
    )
    .await;
    assert!(store.unannounced().await.unwrap().is_empty());
}

pub(super) async fn a_deleted_announcement_retires_its_tips_and_a_deleted_state_does_not(
    store: &dyn Store,
) {
    for (kind, is_retired) in [(30_617, true), (30_618, false)] {
        let author = crate::store_events::Author(u8::try_from(kind - 30_600).unwrap());
        let repo = RepoId::new(author.key(), name("x"));
        let at = WRITTEN - 10;
        let events = [30_617, 30_618].map(|kind| author.writes(kind).tag("d", "x").at(at).done());
        for event in &events {
            stored(store, event).await;
        }
        let proposed = format!("refs/nostr/{}", "a".repeat(64));
        let tips = refs(&[("refs/heads/main", 1), (&proposed, 2)]);
        let mut change = RepoChange::new(REPOS, repo.clone());
        let mut shown = view(None, Some(tips));
        shown.state = Some(events[1].id);
        change.view = Some(shown);
        done(store, commit(change)).await;
        let target = events
            .iter()
            .find(|event| event.kind == Kind::from(kind))
            .unwrap();
        stored(store, &author.writes(5).tag("e", target.id).done()).await;
        let retired = store.retired(REPOS, repo).await.unwrap();
        let retired: BTreeSet<Oid> = retired.into_iter().map(|retired| retired.tip).collect();
        let expected = match is_retired {
            true => BTreeSet::from([oid(1), oid(2)]),
            false => BTreeSet::new(),
        };
        assert_eq!(retired, expected, "{kind}");
    }
}

pub(super) async fn a_withdrawn_state_is_kept_as_a_version(store: &dyn Store) {
    let announcement = ALICE.writes(30_617).tag("d", "x").done();
    let state = ALICE.writes(30_618).tag("d", "x").done();
    for event in [&announcement, &state] {
        stored(store, event).await;
    }
    let withdraw = Commit {
        withdraw: vec![announcement.id, state.id],
        now: time(WRITTEN),
        ..Commit::default()
    };
    done(store, withdraw).await;
    assert!(!serves(store, &state).await && !serves(store, &announcement).await);
    let kept = |kind| Coordinate::new(Kind::from(kind), ALICE.key()).identifier("x");
    let versions = store.superseded(kept(30_618)).await.unwrap();
    assert_eq!(versions, [Event::clone(&state)]);
    assert!(store.superseded(kept(30_617)).await.unwrap().is_empty());
    assert!(store.unannounced().await.unwrap().is_empty(), "it is held");
}
