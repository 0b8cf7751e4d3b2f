//! The repositories that a key maintains are found without reading all of the name.

use super::*;

/// Gives a repository a view with these maintainers, or takes it away.
async fn maintain(store: &dyn Store, repo: &RepoId, maintainers: Option<&[u8]>) {
    set(store, repo, maintainers, None).await;
}

async fn set(store: &dyn Store, repo: &RepoId, maintainers: Option<&[u8]>, shows: Option<u8>) {
    let before = store.view(REPOS, repo.clone()).await.unwrap();
    let from = before.as_ref().map(|view| view.generation);
    let mut changed = view(from, maintainers.map(|_| refs(&[])));
    changed.maintainers = maintainers
        .unwrap_or_default()
        .iter()
        .map(|n| owner(*n))
        .collect();
    changed.shows = shows.map(owner);
    changed.maintained =
        MaintainerChanges::between(before.as_ref(), &changed.maintainers, changed.shows);
    done(store, commit(change(repo, Some(changed)))).await;
}

async fn maintained(store: &dyn Store, key: u8, most: usize) -> Vec<PublicKey> {
    store.maintained(REPOS, repo(key), most).await.unwrap()
}

fn owners(numbers: &[u8]) -> Vec<PublicKey> {
    numbers.iter().map(|n| owner(*n)).collect()
}

pub(super) async fn repositories_that_a_key_maintains_are_found_longest_first(store: &dyn Store) {
    for (n, maintainers) in [(5, &[5, 1][..]), (3, &[3]), (9, &[9, 1]), (4, &[4, 1])] {
        maintain(store, &repo(n), Some(maintainers)).await;
    }
    maintain(store, &RepoId::new(owner(2), name("y")), Some(&[2, 1])).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[5, 9, 4]));
    assert_eq!(maintained(store, 1, 2).await, owners(&[5, 9]));
    assert_eq!(maintained(store, 3, 9).await, owners(&[3]));
    assert_eq!(maintained(store, 2, 9).await, []);
    let elsewhere = store.maintained(Endpoint::PullRequests, repo(1), 9).await;
    assert_eq!(elsewhere.unwrap(), []);
}

pub(super) async fn a_maintainer_who_stays_keeps_the_age_and_one_who_returns_does_not(
    store: &dyn Store,
) {
    for n in [5, 9, 4] {
        maintain(store, &repo(n), Some(&[n, 1])).await;
    }
    maintain(store, &repo(5), Some(&[5, 1, 2])).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[5, 9, 4]));
    assert_eq!(maintained(store, 2, 9).await, owners(&[5]));
    maintain(store, &repo(9), Some(&[9])).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[5, 4]));
    maintain(store, &repo(9), Some(&[9, 1])).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[5, 4, 9]));
    maintain(store, &repo(5), None).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[4, 9]));
    assert_eq!(maintained(store, 2, 9).await, []);
}

pub(super) async fn an_address_is_maintained_at_the_repository_that_it_shows(store: &dyn Store) {
    maintain(store, &repo(5), Some(&[5, 1])).await;
    set(store, &repo(4), Some(&[5, 1]), Some(5)).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[5]));
    // It becomes a repository of its own, and an address again.
    maintain(store, &repo(4), Some(&[4, 1])).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[5, 4]));
    set(store, &repo(4), Some(&[4, 1]), Some(5)).await;
    assert_eq!(maintained(store, 1, 9).await, owners(&[5]));
}
