//! The users who take part equal a derivation from scratch.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::outbox::{Fact, Named, People};
use grasp_core::{RepoId, Version};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::types::Timestamp;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

use crate::events::key;

fn id(n: u8) -> EventId {
    EventId::from_byte_array([n; 32])
}

fn any_repo() -> impl Strategy<Value = RepoId> {
    (1u8..4).prop_map(|owner| RepoId::new(key(owner), "x".parse().unwrap()))
}

fn any_key() -> impl Strategy<Value = PublicKey> {
    (1u8..9).prop_map(key)
}

fn any_fact() -> impl Strategy<Value = Fact> {
    let announced = (any_repo(), 0u64..4, btree_set(any_key(), 0..3));
    let root = (0u8..8, any_key(), btree_set(any_repo(), 1..3));
    // What an event names never changes.
    let descendant = (8u8..40, any_key());
    prop_oneof![
        3 => announced.prop_map(|(repo, at, maintainers)| Fact::Announced {
            repo,
            version: Version { created_at: Timestamp::from_secs(at), id: id(0) },
            maintainers,
        }),
        2 => any_repo().prop_map(|repo| Fact::Retired { repo }),
        4 => root.prop_map(|(n, author, repos)| Fact::Root {
            id: id(n),
            author,
            at: Timestamp::from_secs(u64::from(n)),
            repos: repos.into_iter().collect(),
        }),
        6 => descendant.prop_map(|(n, author)| Fact::Descendant {
            id: id(n),
            author,
            coordinate: None,
            names: vec![Named::Event(id(n / 3))],
        }),
        // Only of roots: what is below a removed answer depends on the order of arrival.
        1 => (0u8..8).prop_map(|n| Fact::Removed { id: id(n) }),
    ]
}

/// All that was told, without any index.
#[derive(Default)]
struct Model {
    served: BTreeMap<RepoId, (Version, BTreeSet<PublicKey>)>,
    roots: BTreeMap<EventId, (PublicKey, Vec<RepoId>)>,
    answers: BTreeMap<EventId, (PublicKey, EventId)>,
    removed: BTreeSet<EventId>,
}

impl Model {
    /// Notes a fact; false if it is about an event that was removed, which never comes back.
    fn note(&mut self, fact: &Fact) -> bool {
        match fact.clone() {
            Fact::Announced {
                repo,
                version,
                maintainers,
            } => {
                let is_newer = self
                    .served
                    .get(&repo)
                    .is_none_or(|(known, _)| version > *known);
                if is_newer {
                    self.served.insert(repo, (version, maintainers));
                }
            }
            Fact::Retired { repo } => _ = self.served.remove(&repo),
            Fact::Root { id, .. } if self.removed.contains(&id) => return false,
            Fact::Root {
                id, author, repos, ..
            } => _ = self.roots.entry(id).or_insert((author, repos)),
            Fact::Descendant {
                id, author, names, ..
            } => {
                let [Named::Event(to)] = names[..] else {
                    panic!()
                };
                self.answers.entry(id).or_insert((author, to));
            }
            Fact::Removed { id } => {
                self.roots.remove(&id);
                self.removed.insert(id);
            }
        }
        true
    }

    fn root_of(&self, answer: &EventId) -> Option<&(PublicKey, Vec<RepoId>)> {
        let mut at = *answer;
        for _ in 0..=self.answers.len() {
            if let Some(root) = self.roots.get(&at) {
                return Some(root);
            }
            at = self.answers.get(&at)?.1;
        }
        None
    }

    fn is_served(&self, root: &(PublicKey, Vec<RepoId>)) -> bool {
        root.1.iter().any(|repo| self.served.contains_key(repo))
    }

    fn eligible(&self) -> BTreeSet<PublicKey> {
        let maintainers = self.served.values().flat_map(|(_, keys)| keys);
        let mut eligible: BTreeSet<PublicKey> = maintainers.copied().collect();
        let roots = self.roots.values().filter(|root| self.is_served(root));
        eligible.extend(roots.map(|(author, _)| *author));
        for (id, (author, _)) in &self.answers {
            if self.root_of(id).is_some_and(|root| self.is_served(root)) {
                eligible.insert(*author);
            }
        }
        eligible
    }

    fn has_root(&self, key: &PublicKey) -> bool {
        let mut roots = self.roots.values().filter(|root| self.is_served(root));
        roots.any(|(author, _)| author == key)
    }
}

proptest! {
    #[test]
    fn people_equal_a_derivation_from_scratch(facts in vec(any_fact(), 1..60)) {
        let mut people = People::default();
        let mut model = Model::default();
        // What callers know from the reported changes alone.
        let mut known: BTreeMap<PublicKey, bool> = BTreeMap::new();
        for fact in facts {
            if !model.note(&fact) {
                continue;
            }
            for key in people.apply(fact) {
                match people.is_eligible(&key) {
                    true => _ = known.insert(key, people.has_root(&key)),
                    false => _ = known.remove(&key),
                }
            }
            let eligible = model.eligible();
            prop_assert_eq!(people.len(), eligible.len());
            let wanted: BTreeMap<_, _> = eligible.into_iter().map(|key| (key, model.has_root(&key))).collect();
            prop_assert_eq!(&known, &wanted);
        }
    }
}
