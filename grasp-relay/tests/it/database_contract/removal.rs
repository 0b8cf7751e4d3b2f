//! An event takes the refs that it signed for with it.

use super::*;

const CONTRIBUTORS: Endpoint = Endpoint::PullRequests;

/// An endpoint and a repository.
type Place = (Endpoint, RepoId);

fn sign(keys: &Keys, kind: u16, at: u64, tags: &[[&str; 2]]) -> Arc<Event> {
    let tags = tags.iter().map(|tag| Tag::parse(*tag).unwrap());
    let event = EventBuilder::new(Kind::from_u16(kind), "").tags(tags);
    Arc::new(event.custom_created_at(time(at)).finalize(keys).unwrap())
}

fn announcement(keys: &Keys) -> Arc<Event> {
    sign(keys, 30617, NOW - 1, &[["d", "x"]])
}

fn pull_request(keys: &Keys, to: &RepoId, text: &str) -> Arc<Event> {
    let tip = oid(2).to_string();
    sign(
        keys,
        1618,
        NOW - 1,
        &[["a", &to.to_string()], ["c", &tip], ["subject", text]],
    )
}

fn proposed(event: &Event) -> String {
    RefName::nostr(event.id).as_str().to_owned()
}

/// Returns the repository `x` of a key.
fn repo_of(keys: &Keys) -> RepoId {
    RepoId::new(keys.public_key(), name("x"))
}

async fn save(store: &dyn Store, events: &[&Arc<Event>]) {
    let events: Vec<_> = events.iter().copied().cloned().collect();
    let count = events.len();
    let saved = store.save_events(events, time(NOW)).await.unwrap().saved;
    assert_eq!(saved, vec![Outcome::Stored; count]);
}

/// Sets all refs of a repository.
async fn show(store: &dyn Store, place: &Place, names: &[&str], state: Option<&Event>) {
    let before = store.view(place.0, place.1.clone()).await.unwrap();
    let tips: Vec<_> = names.iter().map(|name| (*name, 1)).collect();
    let to = refs(&tips);
    let mut changed = view(
        before.as_ref().map(|view| view.generation),
        Some(to.clone()),
    );
    changed.proposals = ProposalChanges::between(&before.unwrap_or_default().refs, &to);
    changed.state = state.map(|state| state.id).or(changed.state);
    changed.maintainers = BTreeSet::from([place.1.owner, owner(9)]);
    let mut change = RepoChange::new(place.0, place.1.clone());
    change.view = Some(changed);
    done(store, commit(change)).await;
}

async fn row(store: &dyn Store, place: &Place) -> RepoRow {
    store.row(place.0, place.1.clone()).await.unwrap()
}

async fn rows(store: &dyn Store, places: &[Place]) -> Vec<RepoRow> {
    let mut rows = Vec::new();
    for place in places {
        rows.push(row(store, place).await);
    }
    rows
}

/// Asserts that these refs are left of a repository, with another generation, and that what is gone was removed for
/// good. The view itself stays: purgatory removes it.
async fn assert_left(store: &dyn Store, place: &Place, before: &RepoRow, left: &[&str]) {
    let retired = store.retired(place.0, place.1.clone()).await.unwrap();
    assert!(retired.is_empty(), "nothing of it is retired");
    assert_refs_left(store, place, before, left).await;
}

/// The same, whether or not tips are retired.
async fn assert_refs_left(store: &dyn Store, place: &Place, before: &RepoRow, left: &[&str]) {
    let after = row(store, place).await;
    let old = before.view.as_ref().unwrap();
    let new = after.view.as_ref().unwrap();
    let mut expected = Refs::clone(&old.refs);
    expected
        .refs
        .retain(|name, _| left.contains(&name.as_str()));
    assert_eq!(*new.refs, expected);
    assert_eq!(new.refs.refs.len(), left.len());
    assert!(new.generation > old.generation);
    assert_eq!(new.maintainers, old.maintainers);
    assert_eq!(after.garbage, Some(Garbage::Removed));
    assert_eq!(after.packs, before.packs);
    let has_state = expected.refs.keys().any(RefName::is_branch_or_tag);
    assert_eq!(new.state, old.state.filter(|_| has_state));
}

pub(super) async fn a_deleted_announcement_takes_all_refs_of_its_own_repository(store: &dyn Store) {
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let (announced, signed) = (announcement(&alice), state(&alice, NOW - 1));
    let proposal = pull_request(&bob, &repo_of(&alice), "");
    save(
        store,
        &[&announced, &announcement(&bob), &signed, &proposal],
    )
    .await;
    let own = (REPOS, repo_of(&alice));
    let names = ["refs/heads/main", "refs/tags/v1", &proposed(&proposal)];
    let others = [
        (CONTRIBUTORS, repo_of(&alice)),
        (REPOS, repo_of(&bob)),
        (REPOS, RepoId::new(alice.public_key(), name("y"))),
    ];
    for place in [&own].into_iter().chain(&others) {
        show(store, place, &names, Some(&signed)).await;
    }
    let before = row(store, &own).await;
    let kept = rows(store, &others).await;
    delete(store, &alice, &announced).await;
    assert_refs_left(store, &own, &before, &[]).await;
    assert_eq!(rows(store, &others).await, kept);
    // The refs of the pull request are known no longer where they are gone, and still where they are not.
    let before = row(store, &own).await;
    delete(store, &bob, &proposal).await;
    assert_eq!(row(store, &own).await, before);
    for (place, kept) in others.iter().zip(&kept) {
        assert_left(store, place, kept, &names[..2]).await;
    }
}

pub(super) async fn a_deleted_announcement_ends_its_address(store: &dyn Store) {
    let alice = Keys::generate();
    let announced = announcement(&alice);
    save(store, &[&announced]).await;
    let repo = repo_of(&alice);
    let mut address = view(None, Some(refs(&[])));
    address.shows = Some(Keys::generate().public_key());
    address.maintainers = BTreeSet::from([owner(9)]);
    done(store, commit(change(&repo, Some(address)))).await;
    delete(store, &alice, &announced).await;
    let left = store.view(REPOS, repo.clone()).await.unwrap().unwrap();
    assert_eq!(left.shows, None);
    let of_maintainer = RepoId::new(owner(9), name("x"));
    let maintained = store.maintained(REPOS, of_maintainer, 9).await.unwrap();
    assert_eq!(maintained, [repo.owner]);
}

pub(super) async fn a_deleted_state_takes_the_branches_and_tags_of_the_views_that_show_it(
    store: &dyn Store,
) {
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let (signed, other) = (state(&alice, NOW - 1), state(&bob, NOW - 1));
    let proposal = pull_request(&bob, &repo_of(&alice), "");
    save(store, &[&signed, &other, &proposal]).await;
    let proposed = proposed(&proposal);
    let names = [
        "refs/heads/a",
        "refs/heads/b",
        "refs/tags/v1",
        proposed.as_str(),
    ];
    // Of its author, of one whom the author maintains, and even where it would not be expected.
    let shown = [
        (REPOS, repo_of(&alice)),
        (REPOS, repo_of(&bob)),
        (REPOS, RepoId::new(bob.public_key(), name("y"))),
    ];
    for place in &shown {
        show(store, place, &names, Some(&signed)).await;
    }
    let others = [
        (REPOS, repo(1)),
        (REPOS, repo(2)),
        (CONTRIBUTORS, repo_of(&alice)),
    ];
    for (place, state) in others.iter().zip([Some(&*other), None, None]) {
        show(store, place, &names, state).await;
    }
    // This one shows a newer state by now.
    let moved = (REPOS, repo(3));
    for state in [&signed, &other] {
        show(store, &moved, &names, Some(state)).await;
    }
    let before = rows(store, &shown).await;
    let kept = rows(store, &others).await;
    let kept_moved = row(store, &moved).await;
    delete(store, &alice, &signed).await;
    for (place, before) in shown.iter().zip(&before) {
        assert_left(store, place, before, &[&proposed]).await;
    }
    assert_eq!(rows(store, &others).await, kept);
    assert_eq!(row(store, &moved).await, kept_moved);
}

pub(super) async fn a_deleted_state_without_refs_is_the_state_of_no_view(store: &dyn Store) {
    let alice = Keys::generate();
    let signed = state(&alice, NOW - 1);
    let proposals = ["one", "two"].map(|text| pull_request(&alice, &repo_of(&alice), text));
    save(store, &[&signed, &proposals[0], &proposals[1]]).await;
    let place = (REPOS, repo_of(&alice));
    let names = [proposed(&proposals[0]), proposed(&proposals[1])];
    show(store, &place, &[&names[0], &names[1]], Some(&signed)).await;
    let before = row(store, &place).await.view.unwrap();
    delete(store, &alice, &proposals[0]).await;
    let between = row(store, &place).await.view.unwrap();
    assert_eq!(
        between.state,
        Some(signed.id),
        "the deletion of another event"
    );
    assert!(between.generation > before.generation);
    delete(store, &alice, &signed).await;
    let after = row(store, &place).await.view.unwrap();
    assert_eq!(after.state, None);
    assert!(after.generation > between.generation);
    let left: Vec<&str> = after.refs.refs.keys().map(RefName::as_str).collect();
    assert_eq!(left, [names[1].as_str()]);
}

/// Asserts that a pull request or an update of one takes its refs with it, and no others.
async fn assert_takes_its_refs(store: &dyn Store, author: &Keys, event: &Arc<Event>, to: &Keys) {
    let signed = state(to, NOW - 1);
    let other = pull_request(author, &repo_of(to), "another");
    save(store, &[&signed, event, &other]).await;
    let (own, other) = (proposed(event), proposed(&other));
    // Named by it, of its author at both endpoints, and ones that it does not name, of another name, too.
    let places = [
        (REPOS, repo_of(to)),
        (REPOS, repo_of(author)),
        (CONTRIBUTORS, repo_of(author)),
        (REPOS, repo(1)),
        (CONTRIBUTORS, repo(1)),
        (REPOS, RepoId::new(owner(1), name("elsewhere"))),
    ];
    for place in &places {
        show(
            store,
            place,
            &["refs/heads/main", &own, &other],
            Some(&signed),
        )
        .await;
    }
    let without = [
        (REPOS, repo(2)),
        (REPOS, RepoId::new(to.public_key(), name("y"))),
    ];
    for place in &without {
        show(store, place, &["refs/heads/main", &other], Some(&signed)).await;
    }
    let before = rows(store, &places).await;
    let kept = rows(store, &without).await;
    delete(store, author, event).await;
    for (place, before) in places.iter().zip(&before) {
        assert_left(store, place, before, &["refs/heads/main", &other]).await;
    }
    assert_eq!(rows(store, &without).await, kept);
}

pub(super) async fn a_deleted_pull_request_takes_its_refs_at_every_repository(store: &dyn Store) {
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let proposal = pull_request(&bob, &repo_of(&alice), "");
    assert_takes_its_refs(store, &bob, &proposal, &alice).await;
}

pub(super) async fn a_deleted_update_of_a_pull_request_takes_its_refs_too(store: &dyn Store) {
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let tip = oid(2).to_string();
    let updated = pull_request(&bob, &repo_of(&alice), "").id.to_hex();
    let (to, author) = (repo_of(&alice).to_string(), bob.public_key().to_hex());
    let tags = [["a", &to], ["E", &updated], ["P", &author], ["c", &tip]];
    let update = sign(&bob, 1619, NOW - 1, &tags);
    assert_takes_its_refs(store, &bob, &update, &alice).await;
}

pub(super) async fn a_deleted_pull_request_takes_only_refs_that_are_still_set(store: &dyn Store) {
    let bob = Keys::generate();
    let proposal = pull_request(&bob, &repo(1), "");
    save(store, &[&proposal]).await;
    let (with, without) = (
        ["refs/heads/main", &proposed(&proposal)],
        ["refs/heads/main"],
    );
    let [unset, set_again, removed, recreated] = [1, 2, 3, 4].map(|n| (REPOS, repo(n)));
    for place in [&unset, &set_again, &removed, &recreated] {
        show(store, place, &with, None).await;
    }
    show(store, &unset, &without, None).await;
    show(store, &set_again, &without, None).await;
    show(store, &set_again, &with, None).await;
    for place in [&removed, &recreated] {
        let present = row(store, place).await.view.unwrap();
        let mut gone = view(Some(present.generation), None);
        gone.proposals = ProposalChanges::between(&present.refs, &Refs::default());
        done(store, commit(change(&place.1, Some(gone)))).await;
    }
    show(store, &recreated, &without, None).await;
    let others = [unset, removed, recreated];
    let kept = rows(store, &others).await;
    let before = row(store, &set_again).await;
    delete(store, &bob, &proposal).await;
    assert_left(store, &set_again, &before, &without).await;
    assert_eq!(rows(store, &others).await, kept);
}

pub(super) async fn a_deleted_event_of_another_kind_takes_no_refs(store: &dyn Store) {
    let alice = Keys::generate();
    let issue = sign(
        &alice,
        1621,
        NOW - 1,
        &[["a", &repo_of(&alice).to_string()]],
    );
    save(store, &[&announcement(&alice), &issue]).await;
    let place = (REPOS, repo_of(&alice));
    show(store, &place, &["refs/heads/main"], None).await;
    let before = row(store, &place).await;
    delete(store, &alice, &issue).await;
    assert_eq!(row(store, &place).await, before);
}

pub(super) async fn a_replaced_event_takes_no_refs(store: &dyn Store) {
    let alice = Keys::generate();
    let (announced, signed) = (announcement(&alice), state(&alice, NOW - 1));
    save(store, &[&announced, &signed]).await;
    let place = (REPOS, repo_of(&alice));
    show(store, &place, &["refs/heads/main"], Some(&signed)).await;
    let before = row(store, &place).await;
    let newer = sign(&alice, 30617, NOW, &[["d", "x"]]);
    save(store, &[&newer, &state(&alice, NOW)]).await;
    assert_eq!(row(store, &place).await, before);
    // Nor does the deletion of an announcement that is only kept for rollback.
    delete(store, &alice, &announced).await;
    assert_eq!(row(store, &place).await, before);
}

pub(super) async fn one_request_takes_the_refs_of_all_events_that_it_deletes(store: &dyn Store) {
    let (alice, bob) = (Keys::generate(), Keys::generate());
    let (announced, signed) = (announcement(&alice), state(&alice, NOW - 1));
    let own = pull_request(&alice, &repo_of(&bob), "");
    let other = pull_request(&bob, &repo_of(&alice), "");
    save(store, &[&announced, &signed, &own, &other]).await;
    let names = ["refs/heads/main", &proposed(&own), &proposed(&other)];
    let places = [
        (REPOS, repo_of(&alice)),
        (REPOS, repo_of(&bob)),
        (CONTRIBUTORS, repo_of(&alice)),
    ];
    for place in &places {
        show(store, place, &names, Some(&signed)).await;
    }
    let before = rows(store, &places).await;
    let targets = [&signed, &own, &announced].map(|event| Tag::event(event.id));
    let request = EventBuilder::new(Kind::EventDeletion, "").tags(targets);
    let request = Arc::new(
        request
            .custom_created_at(time(NOW))
            .finalize(&alice)
            .unwrap(),
    );
    let report = store.save_events(vec![request], time(NOW)).await.unwrap();
    assert!(
        report
            .affected
            .is_superset(&BTreeSet::from([repo_of(&alice), repo_of(&bob)]))
    );
    assert_refs_left(store, &places[0], &before[0], &[]).await;
    for (place, before) in places.iter().zip(&before).skip(1) {
        assert_left(store, place, before, &[&proposed(&other)]).await;
    }
    // The generation that is read is the one that the next change is based on.
    for place in &places {
        show(store, place, &["refs/heads/main"], None).await;
    }
}

pub(super) async fn refs_go_with_their_event_however_it_is_removed(store: &dyn Store) {
    let end = (NOW + 10).to_string();
    for way in ["id", "coordinate", "vanishing", "sweep", "expiry"] {
        let alice = Keys::generate();
        let signed = match way {
            "sweep" | "expiry" => sign(&alice, 30618, NOW - 1, &[["d", "x"], ["expiration", &end]]),
            _ => state(&alice, NOW - 1),
        };
        save(store, &[&signed]).await;
        let place = (REPOS, repo_of(&alice));
        show(store, &place, &["refs/heads/main"], Some(&signed)).await;
        let before = row(store, &place).await;
        let coordinate = format!("30618:{}:x", alice.public_key());
        match way {
            "id" => delete(store, &alice, &signed).await,
            "coordinate" => save(store, &[&sign(&alice, 5, NOW, &[["a", &coordinate]])]).await,
            "vanishing" => {
                save(store, &[&sign(&alice, 62, NOW, &[["relay", "ALL_RELAYS"]])]).await;
            }
            "sweep" => assert_eq!(store.sweep(time(NOW + 10)).await.unwrap().events, 1),
            _ => {
                let report = store
                    .save_events(vec![state(&alice, NOW - 2)], time(NOW + 10))
                    .await;
                assert_eq!(report.unwrap().affected, BTreeSet::from([repo_of(&alice)]));
            }
        }
        assert_left(store, &place, &before, &[]).await;
    }
    let alice = Keys::generate();
    save(store, &[&announcement(&alice)]).await;
    let place = (REPOS, repo_of(&alice));
    show(store, &place, &["refs/heads/main"], None).await;
    let before = row(store, &place).await;
    let by = Version::of(&sign(&alice, 30617, NOW, &[["d", "x"]]));
    let gone = store
        .delist(repo_of(&alice).coordinate(), by, time(NOW))
        .await
        .unwrap();
    assert_eq!(gone, 1);
    let after = row(store, &place).await;
    assert!(after.view.unwrap().refs.refs.is_empty());
    assert_eq!(after.packs, before.packs);
    let retired = store.retired(place.0, place.1.clone()).await.unwrap();
    assert_eq!(retired.len(), 1, "its owner may come back");
    assert_eq!(retired[0].since, time(NOW));
}

pub(super) async fn a_deletion_at_the_same_time_as_a_change_leaves_no_signed_refs(
    store: &dyn Store,
) {
    for round in 0..8 {
        let alice = Keys::generate();
        let signed = state(&alice, NOW - 1);
        save(store, &[&signed]).await;
        let place = (REPOS, repo_of(&alice));
        show(store, &place, &["refs/heads/main"], Some(&signed)).await;
        let from = generation(store, &place.1).await;
        let mut moved = view(
            from,
            Some(refs(&[("refs/heads/main", 7), ("refs/heads/new", 7)])),
        );
        moved.state = Some(signed.id);
        let mut release = commit(change(&place.1, Some(moved)));
        release.require = vec![signed.id];
        if round % 2 == 0 {
            let (released, ()) =
                tokio::join!(store.commit(release), delete(store, &alice, &signed));
            let _ = released.unwrap();
        } else {
            let ((), released) =
                tokio::join!(delete(store, &alice, &signed), store.commit(release));
            let _ = released.unwrap();
        }
        let left = row(store, &place).await;
        assert!(left.view.unwrap().refs.refs.is_empty());
        assert_eq!(left.garbage, Some(Garbage::Removed));
        show(store, &place, &["refs/heads/main"], None).await;
    }
}
