//! Finding the repositories that the announcement of a key may matter for.
//!
//! Whoever announces a repository may list any key, so what is found has to be bounded, and others must not be able to
//! fill the bound. So what is known to be maintained by a key comes first, then what merely lists it.

use std::collections::{BTreeSet, VecDeque};

use nostr::key::PublicKey;

/// Keys that one question may find, and keys of a list that are followed.
const MAX_RELATED: usize = 128;

/// What to look up about a key, under one identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RelatedQuestion {
    /// The owners of served repositories that the key maintains, up to a number, those first that it has maintained for
    /// longest.
    Maintained(PublicKey, usize),
    /// The authors of announcements that list the key, up to a number.
    Listing(PublicKey, usize),
}

/// Finds the owners of repositories that the announcement of a key may matter for: the key itself, the keys that it lists,
/// the owners of served repositories that one of these maintains, and those who list it, directly or by others.
///
/// Each key has a share of its own, so that many others who list one of them hide nothing that another one leads to.
///
/// ```
/// use std::collections::{BTreeMap, BTreeSet};
/// use grasp_core::maintainers::{RelatedKeys, RelatedQuestion};
/// use nostr::key::PublicKey;
///
/// let [key, listed, owner, lister] = [1, 2, 3, 4].map(|n| PublicKey::from_byte_array([n; 32]));
/// // The listed key maintains a repository of the owner; another announcement lists the key.
/// let maintained = BTreeMap::from([(listed, vec![owner])]);
/// let listing = BTreeMap::from([(key, vec![lister])]);
///
/// let mut related = RelatedKeys::new(key, &BTreeSet::from([listed]));
/// while let Some(question) = related.next_question() {
///     let (known, of, most) = match question {
///         RelatedQuestion::Maintained(of, most) => (&maintained, of, most),
///         RelatedQuestion::Listing(of, most) => (&listing, of, most),
///     };
///     let keys = known.get(&of).into_iter().flatten().take(most);
///     related.answer(question, keys.copied().collect());
/// }
/// assert_eq!(related.into_found(), [key, listed, owner, lister]);
/// ```
#[derive(Clone, Debug)]
pub struct RelatedKeys {
    found: Vec<PublicKey>,
    seen: BTreeSet<PublicKey>,
    questions: VecDeque<RelatedQuestion>,
    /// Keys whose listings were followed, or will be.
    followed: BTreeSet<PublicKey>,
    /// Keys that were found by the last listings.
    next: Vec<PublicKey>,
    /// Listings of which keys are read now: of the key itself, or of those that list it.
    is_first_round: bool,
    /// Keys that listings may still find: if many list the key itself, those who list them are not looked for.
    left: usize,
}

impl RelatedKeys {
    /// Returns a search that has found a key and those that it lists.
    pub fn new(key: PublicKey, listed: &BTreeSet<PublicKey>) -> Self {
        let mut related = Self {
            found: Vec::new(),
            seen: BTreeSet::new(),
            questions: VecDeque::from([RelatedQuestion::Maintained(key, MAX_RELATED)]),
            followed: BTreeSet::from([key]),
            next: Vec::new(),
            is_first_round: true,
            left: MAX_RELATED,
        };
        related.add(key);
        let listed = listed.iter().filter(|listed| **listed != key);
        let listed: Vec<PublicKey> = listed.take(MAX_RELATED).copied().collect();
        let share = share(MAX_RELATED, listed.len());
        for listed in listed {
            related.add(listed);
            let question = RelatedQuestion::Maintained(listed, share);
            related.questions.push_back(question);
        }
        let question = RelatedQuestion::Listing(key, MAX_RELATED);
        related.questions.push_back(question);
        related
    }

    /// Returns what must be looked up next; `None` once all is found.
    pub fn next_question(&mut self) -> Option<RelatedQuestion> {
        if self.questions.is_empty() {
            let mut round = std::mem::take(&mut self.next);
            round.truncate(self.left);
            let share = share(self.left, round.len());
            self.is_first_round = false;
            for key in round {
                let question = RelatedQuestion::Listing(key, share);
                self.questions.push_back(question);
            }
        }
        if self.left == 0 {
            return None;
        }
        self.questions.pop_front()
    }

    /// Adds what was found.
    pub fn answer(&mut self, question: RelatedQuestion, keys: Vec<PublicKey>) {
        let is_listing = matches!(question, RelatedQuestion::Listing(..));
        for key in keys {
            if !is_listing {
                self.add(key);
                continue;
            }
            let is_full = self.left == 0 && !self.is_first_round;
            if is_full || !self.followed.insert(key) {
                continue;
            }
            self.left = self.left.saturating_sub(1);
            self.add(key);
            self.next.push(key);
        }
    }

    /// Returns all that was found, each once, what is nearest first.
    pub fn into_found(self) -> Vec<PublicKey> {
        self.found
    }

    fn add(&mut self, key: PublicKey) {
        if self.seen.insert(key) {
            self.found.push(key);
        }
    }
}

/// Returns what each of a number of keys may find.
fn share(total: usize, keys: usize) -> usize {
    (total / keys.max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Returns a key of its own.
    fn key(n: u16) -> PublicKey {
        let mut bytes = [0; 32];
        bytes[..2].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_byte_array(bytes)
    }

    /// Who maintains a repository of whom, and who is listed by whom, in the order in which they are found.
    #[derive(Default)]
    struct Known {
        maintained: BTreeMap<u16, Vec<u16>>,
        listing: BTreeMap<u16, Vec<u16>>,
    }

    impl Known {
        /// Returns what is found for a key that lists others, and the number of questions.
        fn related(&self, of: u16, listed: &[u16]) -> (Vec<PublicKey>, usize) {
            let listed = listed.iter().map(|n| key(*n)).collect();
            let mut related = RelatedKeys::new(key(of), &listed);
            let mut questions = 0;
            while let Some(question) = related.next_question() {
                questions += 1;
                let (of, map, most) = match question {
                    RelatedQuestion::Maintained(of, most) => (of, &self.maintained, most),
                    RelatedQuestion::Listing(of, most) => (of, &self.listing, most),
                };
                let found = map.iter().find(|(n, _)| key(**n) == of);
                let found = found.into_iter().flat_map(|(_, found)| found).take(most);
                related.answer(question, found.map(|n| key(*n)).collect());
            }
            (related.into_found(), questions)
        }
    }

    fn keys(numbers: impl IntoIterator<Item = u16>) -> Vec<PublicKey> {
        numbers.into_iter().map(key).collect()
    }

    #[test]
    fn it_finds_listed_keys_and_those_who_list_the_key_directly_or_by_others() {
        let mut known = Known::default();
        known.maintained.insert(1, vec![7]);
        known.maintained.insert(2, vec![8, 1]);
        known.listing.insert(1, vec![3, 2]);
        known.listing.insert(3, vec![4, 1]);
        known.listing.insert(2, vec![5]);
        known.listing.insert(5, vec![6]);
        let (found, _) = known.related(1, &[1, 2]);
        assert_eq!(found, keys([1, 2, 7, 8, 3, 4, 5, 6]));
        assert_eq!(Known::default().related(1, &[]), (keys([1]), 2));
    }

    #[test]
    fn many_who_list_the_keys_hide_no_repository_that_one_of_them_maintains() {
        let crowd: Vec<u16> = (1_000..1_500).collect();
        let mut known = Known::default();
        for listed in [1, 2, 3].into_iter().chain(crowd.iter().copied()) {
            known.listing.insert(listed, crowd.clone());
        }
        known.maintained.insert(1, vec![7]);
        known.maintained.insert(2, vec![8]);
        let (found, _) = known.related(1, &[2, 3]);
        assert_eq!(found[..5], keys([1, 2, 3, 7, 8]));
    }

    #[test]
    fn each_listed_key_has_a_share_of_what_is_found() {
        let mut known = Known::default();
        for listed in 2..10 {
            let first = 1_000 * listed;
            known
                .maintained
                .insert(listed, (first..first + 500).collect());
        }
        let listed: Vec<u16> = (2..10).collect();
        let (found, _) = known.related(1, &listed);
        assert_eq!(found.len(), 1 + 8 + MAX_RELATED);
        assert!((2..10).all(|n| found.contains(&key(1_000 * n))));
    }

    #[test]
    fn those_who_list_a_key_by_others_have_a_share_each() {
        let mut known = Known::default();
        known.listing.insert(1, (100..132).collect());
        for n in 100..132 {
            known.listing.insert(n, (10 * n..10 * n + 10).collect());
        }
        let (found, _) = known.related(1, &[]);
        assert_eq!(found.len(), 1 + MAX_RELATED);
        assert!((100..132).all(|n| found.contains(&key(10 * n + 2))));
    }

    #[test]
    fn what_is_found_and_asked_is_bounded() {
        let mut known = Known::default();
        for n in 0..2_000 {
            known
                .maintained
                .insert(n, (0..2_000).map(|m| m % 1_900).collect());
            known.listing.insert(n, (n..2_000).chain(0..n).collect());
        }
        let listed: Vec<u16> = (1..2_000).collect();
        let (found, questions) = known.related(0, &listed);
        assert!(found.len() <= 1 + 4 * MAX_RELATED, "{}", found.len());
        assert!(questions <= 3 + MAX_RELATED, "{questions}");
    }
}
