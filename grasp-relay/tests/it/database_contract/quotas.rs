//! Quotas that the operator gives, and the git data that they limit.

use grasp_core::quota::QuotaSubject;
use grasp_purgatory::database::QuotaChange;

use super::*;

async fn give(store: &dyn Store, subject: &QuotaSubject, bytes: Option<u64>) {
    let change = QuotaChange {
        subject: subject.clone(),
        bytes,
    };
    let commit = Commit {
        quotas: vec![change],
        ..Commit::default()
    };
    let committed = store.commit(commit).await.unwrap();
    assert!(matches!(committed, Committed::Done { .. }));
}

pub(super) async fn quotas_are_given_changed_and_taken_back(store: &dyn Store) {
    assert!(store.quotas().await.unwrap().is_empty());
    let of_owner = QuotaSubject::Owner(owner(1));
    let named = RepoId::new(owner(1), name("a name: ß"));
    let of_repository = QuotaSubject::Repository(named);
    give(store, &of_owner, Some(7)).await;
    give(store, &of_repository, Some(i64::MAX.unsigned_abs())).await;
    give(store, &of_owner, Some(0)).await;
    let largest = i64::MAX.unsigned_abs();
    let expected = [(of_owner.clone(), 0), (of_repository.clone(), largest)];
    assert_eq!(store.quotas().await.unwrap(), BTreeMap::from(expected));
    give(store, &of_owner, None).await;
    give(store, &of_owner, None).await;
    let left: Vec<_> = store.quotas().await.unwrap().into_keys().collect();
    assert_eq!(left, [of_repository]);
}

pub(super) async fn git_data_is_counted_by_owner_and_repository(store: &dyn Store) {
    assert_eq!(store.git_bytes().await.unwrap(), 0);
    let y = RepoId::new(owner(1), name("y"));
    for (endpoint, repo, pack, bytes) in [
        (REPOS, repo(1), "pack-1", 100),
        (REPOS, repo(1), "pack-2", 20),
        (Endpoint::PullRequests, repo(1), "pack-1", 3),
        (REPOS, y.clone(), "pack-1", 4_000),
        (REPOS, repo(2), "pack-1", 50_000),
    ] {
        let mut change = RepoChange::new(endpoint, repo);
        change.add_packs = vec![Pack {
            name: pack.into(),
            bytes,
        }];
        let commit = Commit {
            repos: vec![change],
            ..Commit::default()
        };
        let committed = store.commit(commit).await.unwrap();
        assert!(matches!(committed, Committed::Done { .. }));
    }
    let of_first = BTreeMap::from([(repo(1), 123), (y, 4_000)]);
    assert_eq!(store.git_usage(Some(owner(1))).await.unwrap(), of_first);
    let mut all = of_first;
    all.insert(repo(2), 50_000);
    assert_eq!(store.git_usage(None).await.unwrap(), all);
    assert!(store.git_usage(Some(owner(3))).await.unwrap().is_empty());
    assert_eq!(store.git_bytes().await.unwrap(), 54_123);
}
