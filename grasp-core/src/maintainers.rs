//! Maintainer sets: the keys that may sign states of a repository.
//!
//! In the **plain** model every listed key is a maintainer. In the **reciprocal** model a listed key counts only once its
//! own announcement lists a maintainer back: being listed alone does not make the listed author's fork authoritative.
//! Both models are functions of the current announcements; nothing is remembered.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};

use crate::nip34::{Announcement, MaintainerList};

/// The rule that makes maintainer sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MaintainerModel {
    /// A listed key counts once it lists back.
    #[default]
    Reciprocal,
    /// A listed key counts.
    Plain,
}

/// Keys that are considered as maintainers of one repository; those nearest to its owner come first. Without it, keys
/// that list each other cost the square of their number at each decision about their identifier.
pub const MAX_MAINTAINERS: usize = 128;

/// The maintainer lists of all announcements with one identifier, by author: each author's winning version.
pub type MaintainerLists = BTreeMap<PublicKey, MaintainerList>;

/// Collects maintainer lists from announcements of one identifier, keeping each author's winning version.
pub fn maintainer_lists<'a>(
    announcements: impl IntoIterator<Item = &'a Announcement>,
) -> MaintainerLists {
    let mut winners: BTreeMap<PublicKey, &Announcement> = BTreeMap::new();
    for announcement in announcements {
        let winner = winners.entry(announcement.repo.owner).or_insert(announcement);
        if announcement.version > winner.version {
            *winner = announcement;
        }
    }
    winners.into_iter().map(|(author, winner)| (author, winner.maintainer_list.clone())).collect()
}

impl MaintainerModel {
    /// Returns the maintainers of the repository that `selected` announced under the identifier of the lists.
    ///
    /// ```
    /// use std::collections::BTreeSet;
    /// use grasp_core::maintainers::{MaintainerLists, MaintainerModel};
    /// use grasp_core::nip34::MaintainerList;
    /// use nostr::key::PublicKey;
    ///
    /// let [alice, bob] = [1, 2].map(|n| PublicKey::from_byte_array([n; 32]));
    /// let naming = |key| MaintainerList { listed: BTreeSet::from([key]), ..MaintainerList::default() };
    /// let mut maintainer_lists = MaintainerLists::from([(alice, naming(bob))]);
    ///
    /// // Alice invites bob. By that alone he can sign for her only in the plain model.
    /// let say = MaintainerModel::Reciprocal.maintainers(&alice, &maintainer_lists);
    /// assert_eq!(say, BTreeSet::from([alice]));
    /// let say = MaintainerModel::Plain.maintainers(&alice, &maintainer_lists);
    /// assert_eq!(say, BTreeSet::from([alice, bob]));
    ///
    /// // Bob accepts by listing her back.
    /// maintainer_lists.insert(bob, naming(alice));
    /// let say = MaintainerModel::Reciprocal.maintainers(&alice, &maintainer_lists);
    /// assert_eq!(say, BTreeSet::from([alice, bob]));
    /// ```
    pub fn maintainers(
        self,
        selected: &PublicKey,
        maintainer_lists: &MaintainerLists,
    ) -> BTreeSet<PublicKey> {
        MaintainerSets::new(self, maintainer_lists).of(selected)
    }
}

/// Computes the maintainer set of every owner of an identifier; each list is read once.
#[derive(Debug)]
pub struct MaintainerSets<'a> {
    model: MaintainerModel,
    maintainer_lists: &'a MaintainerLists,
    listings: Listings,
}

impl<'a> MaintainerSets<'a> {
    /// Reads the lists of one identifier.
    pub fn new(model: MaintainerModel, maintainer_lists: &'a MaintainerLists) -> Self {
        Self { model, maintainer_lists, listings: Listings::of(maintainer_lists) }
    }

    /// Returns the maintainers of the repository that `selected` announced.
    pub fn of(&self, selected: &PublicKey) -> BTreeSet<PublicKey> {
        match self.model {
            MaintainerModel::Plain => plain(selected, self.maintainer_lists),
            MaintainerModel::Reciprocal => {
                let root = root(selected, self.maintainer_lists);
                root.map(|root| self.listings.reciprocal(&root)).unwrap_or_default()
            }
        }
    }
}

/// Returns the keys that are reachable by listing, up to [`MAX_MAINTAINERS`]. An author that left by
/// its own announcement is not included and its list is not followed.
fn plain(selected: &PublicKey, maintainer_lists: &MaintainerLists) -> BTreeSet<PublicKey> {
    let mut confirmed = BTreeSet::new();
    let mut seen = BTreeSet::from([*selected]);
    let mut open = VecDeque::from([*selected]);
    if !maintainer_lists.contains_key(selected) {
        return BTreeSet::new();
    }
    while let Some(key) = open.pop_front() {
        let list = maintainer_lists.get(&key);
        let active = list.is_none_or(|list| !list.author_left);
        if active {
            confirmed.insert(key);
        }
        // The selected author's list counts even after that author left: it names the successors.
        if active || key == *selected {
            let listed = list.into_iter().flat_map(|list| &list.listed).copied();
            let room = MAX_MAINTAINERS.saturating_sub(seen.len());
            open.extend(listed.filter(|key| seen.insert(*key)).take(room));
        }
    }
    confirmed
}

/// Lists among authors of announcements, by position; other keys cannot list back.
#[derive(Debug)]
struct Listings {
    authors: Vec<PublicKey>,
    listed: Vec<Vec<usize>>,
    is_active: Vec<bool>,
}

impl Listings {
    fn of(maintainer_lists: &MaintainerLists) -> Self {
        let authors: Vec<PublicKey> = maintainer_lists.keys().copied().collect();
        let places = |list: &MaintainerList| {
            list.listed.iter().filter_map(|key| authors.binary_search(key).ok()).collect()
        };
        Self {
            listed: maintainer_lists.values().map(places).collect(),
            is_active: maintainer_lists.values().map(|list| !list.author_left).collect(),
            authors,
        }
    }

    /// Returns the root and, repeatedly, each key that a maintainer lists and that lists a maintainer back.
    ///
    /// Considers [`MAX_MAINTAINERS`] keys at most. Each list is read once when its author is listed and once when it is
    /// confirmed: a long chain of keys does not cost the square of its length.
    fn reciprocal(&self, root: &PublicKey) -> BTreeSet<PublicKey> {
        let Ok(root) = self.authors.binary_search(root) else { return BTreeSet::new() };
        let none = || vec![false; self.authors.len()];
        let (mut confirmed, mut invited) = (none(), none());
        // Listed keys that wait, by the key whose confirmation confirms them.
        let mut accepting: Vec<Vec<usize>> = vec![Vec::new(); self.authors.len()];
        let (mut members, mut next) = (vec![root], 0);
        let mut considered = 1;
        (confirmed[root], invited[root]) = (true, true);
        while let Some(member) = members.get(next).copied() {
            next += 1;
            let mut accepted = std::mem::take(&mut accepting[member]);
            for &key in &self.listed[member] {
                let is_new = !invited[key] && self.is_active[key];
                if !is_new || considered == MAX_MAINTAINERS {
                    continue;
                }
                (invited[key], considered) = (true, considered + 1);
                let back = &self.listed[key];
                if back.iter().any(|other| confirmed[*other]) {
                    accepted.push(key);
                } else {
                    back.iter().for_each(|other| accepting[*other].push(key));
                }
            }
            for key in accepted {
                if !std::mem::replace(&mut confirmed[key], true) {
                    members.push(key);
                }
            }
        }
        members.into_iter().map(|member| self.authors[member]).collect()
    }
}

/// Returns the lead whose announcement counts, following `M` from the selected author.
///
/// `None` if an announcement is missing, names two leads, the path is a cycle, or it ends at an author that does not
/// name itself as lead.
fn root(selected: &PublicKey, maintainer_lists: &MaintainerLists) -> Option<PublicKey> {
    let mut at = *selected;
    let mut seen = BTreeSet::new();
    while seen.insert(at) {
        let list = maintainer_lists.get(&at)?;
        let mut leads = list.leads.iter();
        match (leads.next(), leads.next()) {
            (None, _) if at == *selected && !list.author_left => return Some(at),
            (Some(lead), None) if *lead == at => return Some(at),
            (Some(lead), None) => at = *lead,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::key;

    const ALICE: u8 = 1;
    const BOB: u8 = 2;
    const CAROL: u8 = 3;
    const EVE: u8 = 9;

    fn listed(keys: &[u8]) -> MaintainerList {
        let listed = keys.iter().map(|n| key(*n)).collect();
        MaintainerList { listed, ..MaintainerList::default() }
    }

    /// Returns the list of an announcement with role tags for leads and for other maintainers.
    fn roles(leads: &[u8], maintainers: &[u8]) -> MaintainerList {
        let leads = leads.iter().map(|n| key(*n)).collect();
        let mut list = MaintainerList { leads, ..listed(maintainers) };
        list.listed.extend(&list.leads);
        list
    }

    fn with_author_left(list: MaintainerList) -> MaintainerList {
        MaintainerList { author_left: true, ..list }
    }

    fn confirmed(
        model: MaintainerModel,
        selected: u8,
        maintainer_lists: &[(u8, MaintainerList)],
    ) -> Vec<u8> {
        let maintainer_lists = maintainer_lists
            .iter()
            .map(|(n, maintainer_list)| (key(*n), maintainer_list.clone()))
            .collect();
        let maintainers = model.maintainers(&key(selected), &maintainer_lists);
        maintainers.iter().map(|key| key.to_bytes()[0]).collect()
    }

    use MaintainerModel::{Plain, Reciprocal};

    #[test]
    fn plain_follows_listings_of_listed_keys() {
        let maintainer_lists = [(ALICE, listed(&[BOB])), (BOB, listed(&[CAROL]))];
        assert_eq!(confirmed(Plain, ALICE, &maintainer_lists), [ALICE, BOB, CAROL]);
        assert_eq!(confirmed(Plain, BOB, &maintainer_lists), [BOB, CAROL]);
    }

    #[test]
    fn reciprocal_needs_acceptance_along_the_whole_chain() {
        let accepted =
            [(ALICE, listed(&[BOB])), (BOB, listed(&[ALICE, CAROL])), (CAROL, listed(&[BOB]))];
        assert_eq!(confirmed(Reciprocal, ALICE, &accepted), [ALICE, BOB, CAROL]);
        let carol_silent = &accepted[..2];
        assert_eq!(confirmed(Reciprocal, ALICE, carol_silent), [ALICE, BOB]);
        let bob_elsewhere =
            [(ALICE, listed(&[BOB])), (BOB, listed(&[CAROL])), (CAROL, listed(&[BOB]))];
        assert_eq!(confirmed(Reciprocal, ALICE, &bob_elsewhere), [ALICE]);
    }

    #[test]
    fn an_invited_fork_owner_takes_nothing_over() {
        // Eve already has a fork under the same identifier when alice invites her.
        let maintainer_lists = [(ALICE, listed(&[EVE])), (EVE, listed(&[]))];
        assert_eq!(confirmed(Reciprocal, ALICE, &maintainer_lists), [ALICE]);
        assert_eq!(confirmed(Plain, ALICE, &maintainer_lists), [ALICE, EVE]);
    }

    #[test]
    fn listing_oneself_into_a_repository_gives_nothing() {
        let maintainer_lists = [(ALICE, listed(&[])), (EVE, listed(&[ALICE]))];
        assert_eq!(confirmed(Reciprocal, ALICE, &maintainer_lists), [ALICE]);
        assert_eq!(confirmed(Plain, ALICE, &maintainer_lists), [ALICE]);
    }

    #[test]
    fn the_lead_is_found_by_following_m() {
        let maintainer_lists = [
            (ALICE, roles(&[BOB], &[])),
            (BOB, roles(&[BOB], &[CAROL])),
            (CAROL, roles(&[BOB], &[CAROL])),
        ];
        assert_eq!(confirmed(Reciprocal, ALICE, &maintainer_lists), [BOB, CAROL]);
    }

    #[test]
    fn an_ambiguous_lead_gives_an_empty_set() {
        let two = [(ALICE, roles(&[ALICE, BOB], &[])), (BOB, roles(&[BOB], &[]))];
        let missing = [(ALICE, roles(&[BOB], &[]))];
        let cycle = [(ALICE, roles(&[BOB], &[])), (BOB, roles(&[ALICE], &[]))];
        let no_self_lead = [(ALICE, roles(&[BOB], &[])), (BOB, listed(&[ALICE]))];
        for maintainer_lists in [&two[..], &missing, &cycle, &no_self_lead, &[]] {
            assert_eq!(
                confirmed(Reciprocal, ALICE, maintainer_lists),
                [0u8; 0],
                "{maintainer_lists:?}"
            );
        }
        assert_eq!(confirmed(Plain, ALICE, &[]), [0u8; 0]);
    }

    #[test]
    fn a_key_that_left_is_not_a_maintainer() {
        let left = with_author_left(roles(&[], &[ALICE]));
        let maintainer_lists = [(ALICE, listed(&[BOB])), (BOB, left)];
        assert_eq!(confirmed(Reciprocal, ALICE, &maintainer_lists), [ALICE]);
        assert_eq!(confirmed(Plain, ALICE, &maintainer_lists), [ALICE]);
        let alone = [(ALICE, with_author_left(roles(&[], &[])))];
        assert_eq!(confirmed(Reciprocal, ALICE, &alone), [0u8; 0]);
        assert_eq!(confirmed(Plain, ALICE, &alone), [0u8; 0]);
    }

    #[test]
    fn the_winning_version_of_each_author_counts() {
        use crate::testing::Unsigned;
        let version = |at, id, other: u8| {
            let event = Unsigned::kind(30617)
                .tags(&[&["d", "x"], &["maintainers", &key(other).to_string()]])
                .at(at)
                .id(id)
                .by(key(ALICE));
            Announcement::parse(&event).unwrap()
        };
        let all = [version(5, 1, BOB), version(7, 9, CAROL), version(7, 3, EVE)];
        let won = maintainer_lists(&all);
        assert!(won[&key(ALICE)].lists(&key(EVE)));
        assert_eq!(won, maintainer_lists(all.iter().rev()));
    }

    fn numbered(n: usize) -> PublicKey {
        let mut bytes = [7; 32];
        bytes[..8].copy_from_slice(&n.to_be_bytes());
        PublicKey::from_byte_array(bytes)
    }

    #[test]
    fn long_listings_do_not_exceed_the_maximum_number_of_maintainers() {
        // A thousand authors; each lists the next one and a hundred that never announce.
        let lists = |n: usize| {
            let silent = (0..100).map(move |m| numbered(10_000 + n * 100 + m));
            let listed = silent.chain([numbered(n + 1), numbered(n.saturating_sub(1))]).collect();
            (numbered(n), MaintainerList { listed, ..MaintainerList::default() })
        };
        let maintainer_lists: MaintainerLists = (0..1_000).map(lists).collect();
        let sets = MaintainerSets::new(Plain, &maintainer_lists);
        for n in 0..1_000 {
            let set = sets.of(&numbered(n));
            assert!(set.len() <= MAX_MAINTAINERS, "{}", set.len());
            // Keys that the owner lists are included, independent of the lists of others.
            assert!(set.contains(&numbered(n)) && set.contains(&numbered(n + 1)));
        }
    }

    #[test]
    fn keys_that_list_each_other_do_not_exceed_the_maximum_number_of_maintainers() {
        // A thousand authors, each of whom lists the next hundred and the hundred before.
        let lists = |n: usize| {
            let listed = (0..=200).map(|m| numbered((n + 900 + m) % 1_000)).collect();
            (numbered(n), MaintainerList { listed, ..MaintainerList::default() })
        };
        let maintainer_lists: MaintainerLists = (0..1_000).map(lists).collect();
        for model in [Plain, Reciprocal] {
            let sets = MaintainerSets::new(model, &maintainer_lists);
            let set = sets.of(&numbered(500));
            assert_eq!(set.len(), MAX_MAINTAINERS, "{model:?}");
            assert!(set.contains(&numbered(500)));
        }
    }

    #[test]
    fn every_key_that_lists_back_is_included_for_every_owner() {
        // Each lists its neighbours, but for one with an empty list.
        let around = |n: usize| {
            let listed = (0..=20).map(|m| numbered((n + 90 + m) % 100)).collect();
            MaintainerList { listed, ..MaintainerList::default() }
        };
        let mut maintainer_lists: MaintainerLists =
            (0..100).map(|n| (numbered(n), around(n))).collect();
        maintainer_lists.insert(numbered(5), MaintainerList::default());
        let sets = MaintainerSets::new(MaintainerModel::Reciprocal, &maintainer_lists);
        let all_but_one: BTreeSet<_> = (0..100).filter(|n| *n != 5).map(numbered).collect();
        for n in 0..100 {
            let expected = if n == 5 { BTreeSet::from([numbered(5)]) } else { all_but_one.clone() };
            assert_eq!(sets.of(&numbered(n)), expected, "{n}");
        }
    }
}
