//! Maintainer sets: the keys that may sign states of a repository.
//!
//! In the **plain** model every listed key is a maintainer. In the **reciprocal** model a listed key counts only once its
//! own announcement lists a maintainer back: being listed alone does not make the listed author's fork authoritative.
//! Both models are functions of the current announcements; nothing is remembered.

mod related;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use nostr::key::PublicKey;
use serde::{Deserialize, Serialize};

pub use self::related::{RelatedKeys, RelatedQuestion};
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

/// Keys with an announcement that are considered as maintainers of one repository; those nearest to its owner come
/// first. Without it, keys that list each other cost the square of their number at each decision.
pub const MAX_MAINTAINERS: usize = 128;

/// Keys whose announcements are looked up for one repository.
const MAX_LOOKED_UP: usize = 1_024;

/// The maintainer lists of all announcements with one identifier, by author: each author's winning version.
pub type MaintainerLists = BTreeMap<PublicKey, MaintainerList>;

/// Collects maintainer lists from announcements of one identifier, keeping each author's winning version.
pub fn maintainer_lists<'a>(
    announcements: impl IntoIterator<Item = &'a Announcement>,
) -> MaintainerLists {
    let mut winners: BTreeMap<PublicKey, &Announcement> = BTreeMap::new();
    for announcement in announcements {
        let winner = winners
            .entry(announcement.repo.owner)
            .or_insert(announcement);
        if announcement.version > winner.version {
            *winner = announcement;
        }
    }
    winners
        .into_iter()
        .map(|(author, winner)| (author, winner.maintainer_list.clone()))
        .collect()
}

impl MaintainerModel {
    /// Returns the maintainers of the repository that `selected` announced under the identifier of the lists.
    ///
    /// ```
    /// use std::collections::BTreeSet;
    /// use grasp_core::maintainers::{Lookup, MAX_MAINTAINERS, MaintainerLists, MaintainerModel, Reach};
    /// use grasp_core::nip34::MaintainerList;
    /// use nostr::key::PublicKey;
    ///
    /// assert!(MAX_MAINTAINERS >= 2);
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
    ///
    /// // Lists may also be looked up one by one. Those that were not read yet are named.
    /// let reach: Reach = MaintainerModel::Reciprocal.reach(&alice, |key| match maintainer_lists.get(key) {
    ///     Some(list) if *key == alice => Lookup::Read(list),
    ///     _ => Lookup::Unread,
    /// });
    /// assert_eq!(reach.unread, BTreeSet::from([bob]));
    /// ```
    pub fn maintainers(
        self,
        selected: &PublicKey,
        maintainer_lists: &MaintainerLists,
    ) -> BTreeSet<PublicKey> {
        let reach = self.reach(selected, |key| match maintainer_lists.get(key) {
            Some(list) => Lookup::Read(list),
            None => Lookup::Absent,
        });
        reach.maintainers
    }

    /// Returns the reach of the repository that `owner` announced, as far as announcements were looked up.
    pub fn reach<'a>(self, owner: &PublicKey, look_up: impl Fn(&PublicKey) -> Lookup<'a>) -> Reach {
        match self {
            Self::Plain => plain(owner, look_up),
            Self::Reciprocal => reciprocal(owner, look_up),
        }
    }
}

/// What is known of the announcement of a key.
#[derive(Clone, Copy, Debug)]
pub enum Lookup<'a> {
    /// It was not looked up yet.
    Unread,
    /// There is none.
    Absent,
    /// Its maintainer list.
    Read(&'a MaintainerList),
}

/// The keys whose announcements decide who maintains a repository: from its owner outward.
///
/// It depends only on announcements of these keys. What others announce under the same identifier changes nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// The maintainers. Final once nothing is unread.
    pub maintainers: BTreeSet<PublicKey>,
    /// Keys whose announcements must be looked up before the maintainers are known.
    pub unread: BTreeSet<PublicKey>,
    /// The owner of the repository whose maintainers these are, if that is another one: the lead of the announcement.
    pub lead: Option<PublicKey>,
}

/// Follows listings, up to [`MAX_MAINTAINERS`] keys. An author that left by its own announcement is not included and
/// its list is not followed.
fn plain<'a>(owner: &PublicKey, look_up: impl Fn(&PublicKey) -> Lookup<'a>) -> Reach {
    let mut reach = Reach::default();
    let mut seen = BTreeSet::from([*owner]);
    let mut open = VecDeque::from([*owner]);
    while let Some(key) = open.pop_front() {
        let list = match look_up(&key) {
            Lookup::Unread => {
                reach.unread.insert(key);
                continue;
            }
            Lookup::Absent if key == *owner => return reach,
            Lookup::Absent => {
                reach.maintainers.insert(key);
                continue;
            }
            Lookup::Read(list) => list,
        };
        if !list.author_left {
            reach.maintainers.insert(key);
        } else if key != *owner {
            continue;
        }
        // The owner's list counts even after the owner left: it names the successors.
        for listed in &list.listed {
            if seen.len() < MAX_MAINTAINERS && seen.insert(*listed) {
                open.push_back(*listed);
            }
        }
    }
    reach
}

/// Returns the lead and, repeatedly, each key that a maintainer lists and that lists a maintainer back.
///
/// Counts [`MAX_MAINTAINERS`] keys with an announcement and looks up [`MAX_LOOKED_UP`] at most. Each list is read once
/// when its author is listed and once when it is confirmed: a long chain of keys does not cost the square of its length.
fn reciprocal<'a>(owner: &PublicKey, look_up: impl Fn(&PublicKey) -> Lookup<'a>) -> Reach {
    let mut reach = Reach::default();
    let root = match root(owner, &look_up) {
        Root::Found(root) => root,
        Root::Unread(key) => {
            reach.unread.insert(key);
            return reach;
        }
        Root::None => return reach,
    };
    reach.lead = Some(root).filter(|root| root != owner);
    reach.maintainers.insert(root);
    let mut seen = BTreeSet::from([root]);
    let mut counted = 1;
    // Listed keys that wait, by the key whose confirmation confirms them.
    let mut accepting: BTreeMap<PublicKey, Vec<PublicKey>> = BTreeMap::new();
    let mut members = VecDeque::from([root]);
    while let Some(member) = members.pop_front() {
        let mut accepted = accepting.remove(&member).unwrap_or_default();
        let Lookup::Read(list) = look_up(&member) else {
            continue;
        };
        for key in &list.listed {
            if counted == MAX_MAINTAINERS || seen.len() == MAX_LOOKED_UP || !seen.insert(*key) {
                continue;
            }
            let back = match look_up(key) {
                Lookup::Unread => {
                    reach.unread.insert(*key);
                    continue;
                }
                Lookup::Absent => continue,
                Lookup::Read(back) => back,
            };
            if back.author_left {
                continue;
            }
            counted += 1;
            if !back.listed.is_disjoint(&reach.maintainers) {
                accepted.push(*key);
                continue;
            }
            for other in &back.listed {
                accepting.entry(*other).or_default().push(*key);
            }
        }
        for key in accepted {
            if reach.maintainers.insert(key) {
                members.push_back(key);
            }
        }
    }
    reach
}

/// The lead whose announcement counts.
enum Root {
    Found(PublicKey),
    /// The announcement of this key must be looked up first.
    Unread(PublicKey),
    /// An announcement is missing, names two leads, the path is a cycle or too long, or it ends at an author that does
    /// not name itself as lead.
    None,
}

/// Follows `M` from the owner.
fn root<'a>(owner: &PublicKey, look_up: &impl Fn(&PublicKey) -> Lookup<'a>) -> Root {
    let mut at = *owner;
    let mut seen = BTreeSet::new();
    while seen.len() < MAX_MAINTAINERS && seen.insert(at) {
        let list = match look_up(&at) {
            Lookup::Unread => return Root::Unread(at),
            Lookup::Absent => return Root::None,
            Lookup::Read(list) => list,
        };
        let mut leads = list.leads.iter();
        match (leads.next(), leads.next()) {
            (None, _) if at == *owner && !list.author_left => return Root::Found(at),
            (Some(lead), None) if *lead == at => return Root::Found(at),
            (Some(lead), None) => at = *lead,
            _ => return Root::None,
        }
    }
    Root::None
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
        MaintainerList {
            listed,
            ..MaintainerList::default()
        }
    }

    /// Returns the list of an announcement with role tags for leads and for other maintainers.
    fn roles(leads: &[u8], maintainers: &[u8]) -> MaintainerList {
        let leads = leads.iter().map(|n| key(*n)).collect();
        let mut list = MaintainerList {
            leads,
            ..listed(maintainers)
        };
        list.listed.extend(&list.leads);
        list
    }

    fn with_author_left(list: MaintainerList) -> MaintainerList {
        MaintainerList {
            author_left: true,
            ..list
        }
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
        assert_eq!(
            confirmed(Plain, ALICE, &maintainer_lists),
            [ALICE, BOB, CAROL]
        );
        assert_eq!(confirmed(Plain, BOB, &maintainer_lists), [BOB, CAROL]);
    }

    #[test]
    fn reciprocal_needs_acceptance_along_the_whole_chain() {
        let accepted = [
            (ALICE, listed(&[BOB])),
            (BOB, listed(&[ALICE, CAROL])),
            (CAROL, listed(&[BOB])),
        ];
        assert_eq!(confirmed(Reciprocal, ALICE, &accepted), [ALICE, BOB, CAROL]);
        let carol_silent = &accepted[..2];
        assert_eq!(confirmed(Reciprocal, ALICE, carol_silent), [ALICE, BOB]);
        let bob_elsewhere = [
            (ALICE, listed(&[BOB])),
            (BOB, listed(&[CAROL])),
            (CAROL, listed(&[BOB])),
        ];
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
        assert_eq!(
            confirmed(Reciprocal, ALICE, &maintainer_lists),
            [BOB, CAROL]
        );
    }

    #[test]
    fn an_ambiguous_lead_gives_an_empty_set() {
        let two = [
            (ALICE, roles(&[ALICE, BOB], &[])),
            (BOB, roles(&[BOB], &[])),
        ];
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
            let listed = silent
                .chain([numbered(n + 1), numbered(n.saturating_sub(1))])
                .collect();
            (
                numbered(n),
                MaintainerList {
                    listed,
                    ..MaintainerList::default()
                },
            )
        };
        let maintainer_lists: MaintainerLists = (0..1_000).map(lists).collect();
        for n in 0..1_000 {
            let set = Plain.maintainers(&numbered(n), &maintainer_lists);
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
            (
                numbered(n),
                MaintainerList {
                    listed,
                    ..MaintainerList::default()
                },
            )
        };
        let maintainer_lists: MaintainerLists = (0..1_000).map(lists).collect();
        for model in [Plain, Reciprocal] {
            let set = model.maintainers(&numbered(500), &maintainer_lists);
            assert_eq!(set.len(), MAX_MAINTAINERS, "{model:?}");
            assert!(set.contains(&numbered(500)));
        }
    }

    #[test]
    fn every_key_that_lists_back_is_included_for_every_owner() {
        // Each lists its neighbours, but for one with an empty list.
        let around = |n: usize| {
            let listed = (0..=20).map(|m| numbered((n + 90 + m) % 100)).collect();
            MaintainerList {
                listed,
                ..MaintainerList::default()
            }
        };
        let mut maintainer_lists: MaintainerLists =
            (0..100).map(|n| (numbered(n), around(n))).collect();
        maintainer_lists.insert(numbered(5), MaintainerList::default());
        let all_but_one: BTreeSet<_> = (0..100).filter(|n| *n != 5).map(numbered).collect();
        for n in 0..100 {
            let expected = if n == 5 {
                BTreeSet::from([numbered(5)])
            } else {
                all_but_one.clone()
            };
            let set = Reciprocal.maintainers(&numbered(n), &maintainer_lists);
            assert_eq!(set, expected, "{n}");
        }
    }
}
