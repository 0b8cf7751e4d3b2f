use super::*;
use crate::testing::key;

fn id(n: u32) -> EventId {
    let mut bytes = [0; 32];
    bytes[..4].copy_from_slice(&n.to_be_bytes());
    EventId::from_byte_array(bytes)
}

fn repo(owner: u8) -> RepoId {
    RepoId::new(key(owner), "x".parse().unwrap())
}

fn announced(owner: u8, maintainers: &[u8]) -> Fact {
    announced_at(1, owner, maintainers)
}

fn announced_at(at: u64, owner: u8, maintainers: &[u8]) -> Fact {
    let maintainers = maintainers.iter().chain([&owner]).map(|n| key(*n));
    Fact::Announced {
        repo: repo(owner),
        version: Version {
            created_at: Timestamp::from_secs(at),
            id: id(0),
        },
        maintainers: maintainers.collect(),
    }
}

fn root(n: u32, author: u8, owner: u8) -> Fact {
    Fact::Root {
        id: id(n),
        author: key(author),
        at: Timestamp::from_secs(u64::from(n)),
        repos: vec![repo(owner)],
    }
}

fn answer(n: u32, author: u8, to: u32) -> Fact {
    Fact::Descendant {
        id: id(n),
        author: key(author),
        coordinate: None,
        names: vec![Named::Event(id(to))],
    }
}

fn eligible(people: &People) -> Vec<u8> {
    let is_eligible = |n: &u8| people.is_eligible(&key(*n));
    (1..=20).filter(is_eligible).collect()
}

fn after(facts: impl IntoIterator<Item = Fact>) -> People {
    let mut people = People::default();
    for fact in facts {
        people.apply(fact);
    }
    people
}

#[test]
fn owners_maintainers_and_authors_in_threads_are_eligible_in_any_order() {
    let facts = || {
        vec![
            announced(1, &[2]),
            root(10, 3, 1),
            answer(11, 4, 10),
            answer(12, 5, 11),
        ]
    };
    let mut people = after(facts());
    assert_eq!(eligible(&people), [1, 2, 3, 4, 5]);
    let mut reversed = facts();
    reversed.reverse();
    assert_eq!(eligible(&after(reversed)), [1, 2, 3, 4, 5]);
    people.apply(Fact::Retired { repo: repo(1) });
    assert!(people.is_empty());
    people.apply(announced(1, &[]));
    assert_eq!(eligible(&people), [1, 3, 4, 5]);
}

#[test]
fn threads_of_repositories_that_are_not_served_make_nobody_eligible() {
    let people = after([announced(1, &[]), root(10, 3, 2), answer(11, 4, 10)]);
    assert_eq!(eligible(&people), [1]);
}

#[test]
fn a_thread_counts_while_one_of_its_repositories_is_served() {
    let both = Fact::Root {
        id: id(10),
        author: key(3),
        at: Timestamp::from_secs(1),
        repos: vec![repo(1), repo(2)],
    };
    let mut people = after([both, announced(1, &[]), announced(2, &[])]);
    people.apply(Fact::Retired { repo: repo(1) });
    assert_eq!(eligible(&people), [2, 3]);
    people.apply(Fact::Retired { repo: repo(2) });
    assert!(people.is_empty());
}

#[test]
fn the_greatest_version_names_the_maintainers() {
    let mut people = after([announced_at(5, 1, &[2]), announced_at(4, 1, &[3])]);
    assert_eq!(eligible(&people), [1, 2]);
    let changed = people.apply(announced_at(6, 1, &[4]));
    assert_eq!(changed, [key(2), key(4)].into());
    assert_eq!(eligible(&people), [1, 4]);
}

#[test]
fn answers_by_coordinate_belong_to_the_thread() {
    let at = Box::new(Coordinate {
        kind: crate::kinds::SOFTWARE_RELEASE,
        public_key: key(4),
        identifier: "app".to_owned(),
    });
    let release = Fact::Descendant {
        id: id(11),
        author: key(4),
        coordinate: Some(at.clone()),
        names: vec![Named::Event(id(10))],
    };
    let about_it = Fact::Descendant {
        id: id(12),
        author: key(5),
        coordinate: None,
        names: vec![Named::Coordinate(at.clone())],
    };
    let mut people = after([about_it, release, root(10, 3, 1), announced(1, &[])]);
    assert_eq!(eligible(&people), [1, 3, 4, 5]);
    let thread = people.threads_of(&key(5)).next().unwrap();
    assert_eq!(people.coordinates(thread).collect::<Vec<_>>(), [&*at]);
    people.apply(Fact::Removed { id: id(10) });
    assert_eq!(eligible(&people), [1]);
    assert!(people.thread_of_coordinate.is_empty() && people.thread_of.is_empty());
}

fn release(n: u32, identifier: &str, to: u32) -> (Fact, Box<Coordinate>) {
    let at = Box::new(Coordinate {
        kind: crate::kinds::SOFTWARE_RELEASE,
        public_key: key(4),
        identifier: identifier.to_owned(),
    });
    let fact = Fact::Descendant {
        id: id(n),
        author: key(4),
        coordinate: Some(at.clone()),
        names: vec![Named::Event(id(to))],
    };
    (fact, at)
}

#[test]
fn coordinates_are_as_many_as_descendants_have() {
    let mut people = after([announced(1, &[]), root(10, 3, 1)]);
    let thread = people.threads_of(&key(3)).next().unwrap();
    for n in 11..1_000 {
        people.apply(release(n, &n.to_string(), 10).0);
        people.apply(Fact::Removed { id: id(n) });
    }
    assert_eq!(people.coordinates(thread).count(), 0);
    assert!(people.thread_of_coordinate.is_empty());
    for n in 11..1_000 {
        people.apply(release(n, &n.to_string(), 10).0);
    }
    let count = people.descendants(thread).count();
    assert_eq!(people.coordinates(thread).count(), count);
    assert_eq!(people.thread_of_coordinate.len(), count);
}

#[test]
fn a_coordinate_stays_while_a_version_of_it_does() {
    let mut people = after([announced(1, &[]), root(10, 3, 1), root(20, 3, 1)]);
    let (first, at) = release(11, "app", 10);
    people.apply(first);
    people.apply(release(12, "app", 10).0);
    people.apply(Fact::Removed { id: id(11) });
    assert!(people.thread_of_coordinate.contains_key(&at));
    // A version that answers another root.
    people.apply(release(13, "app", 20).0);
    people.apply(Fact::Removed { id: id(12) });
    let thread = people.thread_of_coordinate[&at];
    assert_eq!(people.root(thread), Some(id(20)));
    people.apply(Fact::Removed { id: id(13) });
    assert!(people.thread_of_coordinate.is_empty());
}

#[test]
fn who_has_nothing_left_leaves() {
    let mut people = after([
        announced(1, &[]),
        root(10, 3, 1),
        answer(11, 4, 10),
        answer(12, 4, 10),
        answer(13, 3, 10),
    ]);
    assert_eq!(people.apply(Fact::Removed { id: id(11) }), [].into());
    assert_eq!(eligible(&people), [1, 3, 4]);
    assert_eq!(people.apply(Fact::Removed { id: id(12) }), [key(4)].into());
    assert_eq!(eligible(&people), [1, 3]);
    people.apply(Fact::Removed { id: id(13) });
    assert_eq!(eligible(&people), [1, 3]);
    assert_eq!(people.apply(Fact::Removed { id: id(10) }), [key(3)].into());
    assert_eq!(eligible(&people), [1]);
}

#[test]
fn a_removed_answer_that_waits_is_forgotten() {
    let people = after([
        answer(11, 4, 10),
        Fact::Removed { id: id(11) },
        root(10, 3, 1),
        announced(1, &[]),
    ]);
    assert_eq!(eligible(&people), [1, 3]);
}

#[test]
fn only_authors_whose_part_changes_are_reported() {
    let mut people = after([announced(1, &[])]);
    assert_eq!(people.apply(root(10, 3, 1)), [key(3)].into());
    assert!(people.has_root(&key(3)));
    assert_eq!(people.apply(answer(11, 3, 10)), [].into());
    assert_eq!(people.apply(answer(12, 4, 10)), [key(4)].into());
    assert!(!people.has_root(&key(4)));
    assert_eq!(people.apply(answer(13, 4, 10)), [].into());
    assert_eq!(
        people.apply(root(14, 4, 1)),
        [key(4)].into(),
        "its first root"
    );
    assert_eq!(people.apply(root(14, 4, 1)), [].into());
}

#[test]
fn the_newest_threads_of_an_author_are_asked_for() {
    let most = People::MAX_THREADS_PER_AUTHOR as u32;
    let mut people = after([announced(1, &[])]);
    for n in 1..=most + 5 {
        people.apply(root(n, 3, 1));
    }
    let roots: Vec<_> = people.threads_of(&key(3)).collect();
    let roots: Vec<_> = roots
        .into_iter()
        .filter_map(|one| people.root(one))
        .collect();
    assert_eq!(roots.len(), People::MAX_THREADS_PER_AUTHOR);
    assert_eq!((roots[0], roots[255]), (id(most + 5), id(6)));
    let of_repo: Vec<_> = people.threads_of_repo(&repo(1), None).collect();
    assert_eq!(of_repo.len(), People::MAX_THREADS_PER_AUTHOR + 5);
    let of_one = repo(1);
    let rest = people.threads_of_repo(&of_one, Some(of_repo[99]));
    assert_eq!(rest.collect::<Vec<_>>(), of_repo[100..]);
}

#[test]
fn a_thread_has_a_limited_number_of_descendants() {
    let mut people = after([announced(1, &[]), root(1, 3, 1)]);
    for n in 2..=People::MAX_DESCENDANTS as u32 + 1 {
        people.apply(answer(n, 4, n - 1));
    }
    people.apply(answer(9_999, 5, 1));
    assert_eq!(eligible(&people), [1, 3, 4]);
    let thread = people.threads_of(&key(3)).next().unwrap();
    assert_eq!(people.descendants(thread).count(), People::MAX_DESCENDANTS);
}

#[test]
fn participants_leave_capacity_for_maintainers() {
    let author = |n: u32| {
        let mut bytes = [9; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_byte_array(bytes)
    };
    let mut people = after([announced(1, &[])]);
    for n in 0..MAX_PARTICIPANTS as u32 + 5 {
        people.apply(Fact::Root {
            id: id(n),
            author: author(n),
            at: Timestamp::from_secs(1),
            repos: vec![repo(1)],
        });
    }
    assert_eq!(people.len(), MAX_PARTICIPANTS);
    people.apply(announced(2, &[]));
    assert!(people.is_eligible(&key(2)));
}

#[test]
fn listed_maintainers_leave_capacity_for_owners() {
    let author = |n: u32| {
        let mut bytes = [9; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_byte_array(bytes)
    };
    let mut people = after([Fact::Announced {
        repo: repo(1),
        version: Version {
            created_at: Timestamp::from_secs(1),
            id: id(0),
        },
        maintainers: (0..MAX_AUTHORS as u32 + 5).map(author).collect(),
    }]);
    assert_eq!(people.len(), MAX_MAINTAINERS);
    people.apply(announced(2, &[3]));
    assert_eq!(eligible(&people), [2]);
}
