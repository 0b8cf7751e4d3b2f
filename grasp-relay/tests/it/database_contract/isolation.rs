//! Repositories of one name share nothing if they have different owners.

use super::*;

const CONTRIBUTORS: Endpoint = Endpoint::PullRequests;

/// All that is committed about a repository.
#[derive(Debug, PartialEq)]
struct Content {
    rows: [RepoRow; 2],
    retired: [Vec<RetiredRef>; 2],
    packs: Option<BTreeSet<Pack>>,
    additions: Vec<Addition>,
}

async fn content(store: &dyn Store, repo: &RepoId) -> Content {
    let mut additions = store.additions(time(0)).await.unwrap();
    additions.retain(|addition| addition.repo == *repo);
    Content {
        rows: [
            store.row(REPOS, repo.clone()).await.unwrap(),
            store.row(CONTRIBUTORS, repo.clone()).await.unwrap(),
        ],
        retired: [
            store.retired(REPOS, repo.clone()).await.unwrap(),
            store.retired(CONTRIBUTORS, repo.clone()).await.unwrap(),
        ],
        packs: store.packs(REPOS).await.unwrap().remove(repo),
        additions,
    }
}

fn addition(repo: &RepoId, bytes: u64) -> Addition {
    Addition {
        at: time(NOW),
        repo: repo.clone(),
        author: Some(owner(9)),
        has_authority: true,
        source: DataSource::Hunted,
        bytes,
    }
}

/// Gives a repository something of everything, at both endpoints. All repositories get the same.
async fn fill(store: &dyn Store, repo: &RepoId) {
    for endpoint in [REPOS, CONTRIBUTORS] {
        let proposed = RefName::nostr(EventId::from_byte_array([7; 32]));
        let shown = refs(&[("refs/heads/main", 1), (proposed.as_str(), 2)]);
        let mut first = view(None, Some(shown));
        first.state = Some(EventId::from_byte_array([8; 32]));
        first.maintainers = BTreeSet::from([owner(8)]);
        first.retired = vec![retired(1, 10), retired(2, 20), retired(3, 30)];
        let mut filling = RepoChange::new(endpoint, repo.clone());
        filling.view = Some(first);
        filling.add_packs = vec![pack(1), pack(2)];
        filling.garbage = Some(Garbage::Moved);
        let mut commit = commit(filling);
        commit.additions = vec![addition(repo, 5)];
        done(store, commit).await;
    }
}

/// Returns changes of everything that [`fill`] sets, one after the other.
fn changes(repo: &RepoId) -> Vec<RepoChange> {
    let mut packed = change(repo, None);
    packed.add_packs = vec![
        Pack {
            bytes: 9,
            ..pack(1)
        },
        pack(3),
    ];
    packed.verified = Some((pack(1).name, time(7)));
    let mut unpacked = change(repo, None);
    unpacked.remove_packs = vec![pack(2)];
    let mut marked = change(repo, None);
    marked.garbage = Some(Garbage::Removed);
    let mut collected = change(repo, None);
    collected.is_collected = true;
    let mut changes = vec![packed, unpacked, marked, collected];
    let tips = BTreeSet::from([retired(2, 20).tip]);
    for forget in [Forget::Before(time(15)), Forget::Tips(tips), Forget::All] {
        let mut forgetting = change(repo, None);
        forgetting.forget = forget;
        changes.push(forgetting);
    }
    changes
}

pub(super) async fn a_change_of_one_owner_changes_nothing_of_another_owner_of_the_name(
    store: &dyn Store,
) {
    // Also not of other names of the same owner.
    let other_name = RepoId::new(owner(1), name("y"));
    for one in [&repo(1), &repo(2), &other_name] {
        fill(store, one).await;
    }
    let before = [
        content(store, &repo(2)).await,
        content(store, &other_name).await,
    ];
    let mut own = content(store, &repo(1)).await;
    let own_contributions = own.rows[1].clone();
    for changed in changes(&repo(1)) {
        done(store, commit(changed.clone())).await;
        let present = content(store, &repo(1)).await;
        assert_ne!(present, own, "{changed:?}");
        own = present;
        let after = [
            content(store, &repo(2)).await,
            content(store, &other_name).await,
        ];
        assert_eq!(after, before, "{changed:?}");
    }
    let from = generation(store, &repo(1)).await;
    let mut moved = view(from, Some(refs(&[("refs/heads/main", 9)])));
    moved.retired = vec![retired(1, 99)];
    done(store, commit(change(&repo(1), Some(moved)))).await;
    let after = [
        content(store, &repo(2)).await,
        content(store, &other_name).await,
    ];
    assert_eq!(after, before);
    assert_eq!(content(store, &repo(1)).await.rows[1], own_contributions);
}

pub(super) async fn everything_of_one_owner_is_removed_and_another_owner_of_the_name_keeps_all(
    store: &dyn Store,
) {
    for one in [&repo(1), &repo(2)] {
        fill(store, one).await;
    }
    let before = content(store, &repo(2)).await;
    for endpoint in [REPOS, CONTRIBUTORS] {
        let present = store.view(endpoint, repo(1)).await.unwrap().unwrap();
        let mut gone = view(Some(present.generation), None);
        gone.proposals = ProposalChanges::between(&present.refs, &Refs::default());
        let mut removal = RepoChange::new(endpoint, repo(1));
        removal.view = Some(gone);
        removal.remove_packs = vec![pack(1), pack(2)];
        removal.forget = Forget::All;
        removal.is_collected = true;
        done(store, commit(removal)).await;
        assert_eq!(
            store.row(endpoint, repo(1)).await.unwrap(),
            RepoRow::default()
        );
        assert!(store.retired(endpoint, repo(1)).await.unwrap().is_empty());
        assert_eq!(
            store.all(endpoint).await.unwrap(),
            BTreeSet::from([repo(2)])
        );
        assert_eq!(store.repositories(endpoint).await.unwrap(), [repo(2)]);
        let packs = BTreeMap::from([(repo(2), BTreeSet::from([pack(1), pack(2)]))]);
        assert_eq!(store.packs(endpoint).await.unwrap(), packs);
    }
    assert_eq!(content(store, &repo(2)).await, before);
}

pub(super) async fn retired_refs_of_one_owner_displace_none_of_another(store: &dyn Store) {
    let mut retire = view(None, None);
    retire.retired = vec![retired(1, 5)];
    done(store, commit(change(&repo(1), Some(retire)))).await;
    for since in [10, 20] {
        let mut retire = view(None, None);
        retire.retired = (0..10_000)
            .map(|n| retired(100_000 * since + n, since))
            .collect();
        done(store, commit(change(&repo(2), Some(retire)))).await;
    }
    assert_eq!(
        store.retired(REPOS, repo(1)).await.unwrap(),
        [retired(1, 5)]
    );
    let left = store.retired(REPOS, repo(2)).await.unwrap();
    assert!(left.len() == 10_000 && left.iter().all(|one| one.since == time(20)));
}

pub(super) async fn additions_of_owners_of_one_name_are_counted_separately(store: &dyn Store) {
    for additions in [
        vec![addition(&repo(1), 1 << 40), addition(&repo(2), 5)],
        vec![addition(&repo(2), 6)],
    ] {
        done(
            store,
            Commit {
                additions,
                ..Commit::default()
            },
        )
        .await;
    }
    let all = store.additions(time(0)).await.unwrap();
    assert_eq!(all, [addition(&repo(1), 1 << 40), addition(&repo(2), 11)]);
}

pub(super) async fn the_generation_of_another_owner_is_outdated(store: &dyn Store) {
    for one in [&repo(1), &repo(2)] {
        done(
            store,
            commit(change(one, Some(view(None, Some(refs(&[])))))),
        )
        .await;
    }
    let from = generation(store, &repo(1)).await;
    let outdated = commit(change(&repo(2), Some(view(from, Some(refs(&[]))))));
    let moved = Committed::Conflict(Conflict::Moved(REPOS, repo(2)));
    assert_eq!(store.commit(outdated).await.unwrap(), moved);
}

pub(super) async fn changes_of_different_owners_at_once_do_not_conflict(store: &dyn Store) {
    for round in 0..3 {
        let mut changes = Vec::new();
        for n in 0..16 {
            let from = generation(store, &repo(n)).await;
            let moved = view(from, Some(refs(&[("refs/heads/main", 16 * round + n)])));
            changes.push(store.commit(commit(change(&repo(n), Some(moved)))));
        }
        for ended in join_all(changes).await {
            assert!(matches!(ended.unwrap(), Committed::Done { .. }));
        }
    }
    for n in 0..16 {
        let shown = store.view(REPOS, repo(n)).await.unwrap().unwrap();
        assert_eq!(shown.refs, refs(&[("refs/heads/main", 32 + n)]));
    }
}
