//! Limits related events per author and per root within a day.
//!
//! An event that names a stored one is stored, and may be named in turn: without a limit, one note admits chains of any
//! length from any author. Each related event is therefore charged to its author and to the roots that it is accepted
//! for; an event accepted recently passes its root on to the events that name it. Confirmed maintainers are charged as
//! authors only, so that other authors who fill a thread do not lock them out of it.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;

use crate::kinds;
use crate::nip34::References;
use crate::time::Mono;

/// Limits for one author and for one root within the window. The defaults are far above what the busiest known
/// repositories have in total.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FanOutLimits {
    /// Time after which counting begins anew.
    pub window: Duration,
    /// Limit of one author.
    pub author: Share,
    /// Limit of one root: a repository, or the first event of a thread.
    pub root: Share,
}

/// A number of events and their total size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Share {
    pub count: usize,
    pub bytes: u64,
}

impl Default for FanOutLimits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            window: Duration::from_secs(24 * 60 * 60),
            author: Share {
                count: 100_000,
                bytes: 256 * MIB,
            },
            root: Share {
                count: 200_000,
                bytes: 1_024 * MIB,
            },
        }
    }
}

impl Share {
    fn plus(self, bytes: u64) -> Self {
        Self {
            count: self.count.saturating_add(1),
            bytes: self.bytes.saturating_add(bytes),
        }
    }

    fn is_within(self, limit: Self) -> bool {
        self.count <= limit.count && self.bytes <= limit.bytes
    }
}

/// Accounts that are kept; beyond it, those no heavier than the median are dropped.
const MAX_ACCOUNTS: usize = 1 << 16;

/// Events whose root is remembered.
const MAX_THREADS: usize = 1 << 16;

/// Roots of one event that are charged, of those that are here.
const MAX_ROOTS: usize = 8;

/// The hash of a root's id or coordinate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Root(u64);

impl Root {
    /// The common root of events that are accepted because stored events name them.
    const NAMED_BY_OTHERS: Self = Self(0);

    fn of(what: &impl Hash) -> Self {
        let mut hasher = DefaultHasher::new();
        what.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// The account that is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExceededLimit {
    /// The author's account.
    Author,
    /// The account of a root, which does not bind [maintainers](FanOut::admit_maintainer).
    Root,
}

/// The accounts of authors and roots.
///
/// ```
/// use grasp_core::admission::{FanOut, FanOutLimits, Share};
/// use grasp_core::Mono;
/// use grasp_core::nip34::References;
/// use nostr::event::{EventBuilder, FinalizeEvent, Kind};
/// use nostr::key::Keys;
///
/// let mut limits = FanOutLimits::default();
/// limits.author = Share { count: 1, bytes: 1_000 };
/// let (mut fan_out, alice) = (FanOut::new(limits), Keys::generate());
/// let note = |text| EventBuilder::new(Kind::TextNote, text).finalize(&alice).unwrap();
/// let named = References::default();
/// assert!(fan_out.admit(Mono::ZERO, &note("one"), &named).is_ok());
/// assert!(fan_out.admit(Mono::ZERO, &note("two"), &named).is_err());
/// assert!(fan_out.admit(Mono::ZERO + limits.window, &note("three"), &named).is_ok());
/// ```
#[derive(Debug, Default)]
pub struct FanOut {
    limits: FanOutLimits,
    began: Mono,
    authors: BTreeMap<PublicKey, Share>,
    roots: BTreeMap<Root, Share>,
    threads: BTreeMap<EventId, Root>,
    /// The same events, the earliest first.
    order: VecDeque<EventId>,
}

impl FanOut {
    /// Creates empty accounts.
    pub fn new(limits: FanOutLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Charges a related event to its author and to the roots of the stored events that it names, if all of them are
    /// within their limits.
    pub fn admit(
        &mut self,
        now: Mono,
        event: &Event,
        named: &References,
    ) -> Result<(), ExceededLimit> {
        let roots = self.roots_of(event, named);
        self.charge(now, event, &roots)?;
        self.remember_root(event.id, roots.first().copied());
        Ok(())
    }

    /// Charges an event of a confirmed maintainer to its author alone.
    pub fn admit_maintainer(
        &mut self,
        now: Mono,
        event: &Event,
        named: &References,
    ) -> Result<(), ExceededLimit> {
        self.charge(now, event, &[])?;
        // Replies of others are charged to its root.
        self.remember_root(event.id, self.roots_of(event, named).first().copied());
        Ok(())
    }

    fn charge(&mut self, now: Mono, event: &Event, roots: &[Root]) -> Result<(), ExceededLimit> {
        if now - self.began >= self.limits.window {
            self.began = now;
            self.authors.clear();
            self.roots.clear();
        }
        let bytes = size(event);
        let author = self
            .authors
            .get(&event.pubkey)
            .copied()
            .unwrap_or_default()
            .plus(bytes);
        let charged: Vec<_> = roots
            .iter()
            .map(|root| {
                (
                    *root,
                    self.roots
                        .get(root)
                        .copied()
                        .unwrap_or_default()
                        .plus(bytes),
                )
            })
            .collect();
        if !author.is_within(self.limits.author) {
            return Err(ExceededLimit::Author);
        }
        if !charged
            .iter()
            .all(|(_, share)| share.is_within(self.limits.root))
        {
            return Err(ExceededLimit::Root);
        }
        self.authors.insert(event.pubkey, author);
        self.roots.extend(charged);
        shrink(&mut self.authors);
        shrink(&mut self.roots);
        Ok(())
    }

    /// Returns the roots of an event, coordinates first: a repository is the root of its threads.
    fn roots_of(&self, event: &Event, named: &References) -> Vec<Root> {
        if needs_no_root(event.kind) {
            return Vec::new();
        }
        let References { ids, coordinates } = named;
        let of_event = |id: &EventId| self.threads.get(id).copied().unwrap_or(Root::of(id));
        let mut roots = Vec::new();
        let named = coordinates
            .iter()
            .map(Root::of)
            .chain(ids.iter().map(of_event));
        for root in named {
            if roots.len() < MAX_ROOTS && !roots.contains(&root) {
                roots.push(root);
            }
        }
        if roots.is_empty() {
            vec![Root::NAMED_BY_OTHERS]
        } else {
            roots
        }
    }

    fn remember_root(&mut self, id: EventId, root: Option<Root>) {
        let Some(root) = root else { return };
        if self.threads.insert(id, root).is_none() {
            self.order.push_back(id);
        }
        while self.order.len() > MAX_THREADS {
            let oldest = self.order.pop_front();
            oldest.map(|oldest| self.threads.remove(&oldest));
        }
    }
}

/// Returns whether the kind belongs to its author alone.
fn needs_no_root(kind: Kind) -> bool {
    [
        kinds::DELETION,
        kinds::VANISH,
        kinds::GRASP_LIST,
        kinds::PRIVATE_GRASP_LIST,
        Kind::Metadata,
        Kind::RelayList,
    ]
    .contains(&kind)
}

/// Drops all accounts that are no heavier than the median when there are too many.
fn shrink<K: Ord>(accounts: &mut BTreeMap<K, Share>) {
    if accounts.len() <= MAX_ACCOUNTS {
        return;
    }
    let mut counts: Vec<usize> = accounts.values().map(|share| share.count).collect();
    let middle = counts.len() / 2;
    let (_, median, _) = counts.select_nth_unstable(middle);
    let median = *median;
    accounts.retain(|_, share| share.count > median);
}

/// Returns roughly what an event takes, in bytes.
pub(super) fn size(event: &Event) -> u64 {
    const FIXED: usize = 256;
    let values = event.tags.iter().flat_map(|tag| tag.as_slice());
    (FIXED + event.content.len() + values.map(|value| value.len() + 4).sum::<usize>()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Unsigned, key};

    const REPO: &str = "30617:0101010101010101010101010101010101010101010101010101010101010101:x";

    fn limits(author: usize, root: usize) -> FanOutLimits {
        let share = |count| Share {
            count,
            bytes: u64::MAX,
        };
        FanOutLimits {
            author: share(author),
            root: share(root),
            ..FanOutLimits::default()
        }
    }

    fn note(id: u8, by: u8, tags: &[&[&str]]) -> Event {
        Unsigned::kind(1).tags(tags).id(id).by(key(by))
    }

    fn admitted(fan_out: &mut FanOut, events: impl IntoIterator<Item = Event>) -> usize {
        events
            .into_iter()
            .filter(|event| admits(fan_out, Mono::ZERO, event))
            .count()
    }

    /// Admits an event whose references are all known.
    fn admits(fan_out: &mut FanOut, now: Mono, event: &Event) -> bool {
        fan_out.admit(now, event, &References::of(event)).is_ok()
    }

    #[test]
    fn references_to_unknown_repositories_are_not_charged() {
        let mut fan_out = FanOut::new(limits(100, 5));
        let here = References::of(&note(0, 0, &[&["a", REPO]]));
        // Eight names that come first and do not exist.
        let made_up: Vec<String> = (0..8)
            .map(|n| REPO.replace("30617:01", "30617:00") + &n.to_string())
            .collect();
        let names: Vec<[&str; 2]> = made_up.iter().map(|name| ["a", name.as_str()]).collect();
        let mut tags: Vec<&[&str]> = names.iter().map(|tag| &tag[..]).collect();
        tags.push(&["a", REPO]);
        let event = |n: u8| note(n, n, &tags);
        let admitted = (0..9).filter(|n| fan_out.admit(Mono::ZERO, &event(*n), &here).is_ok());
        assert_eq!(admitted.count(), 5);
    }

    #[test]
    fn a_full_root_admits_only_its_maintainers() {
        let mut fan_out = FanOut::new(limits(3, 2));
        let event = |n: u8, by: u8| note(n, by, &[&["a", REPO]]);
        assert_eq!(admitted(&mut fan_out, (0..9).map(|n| event(n, n + 10))), 2);
        let named = References::of(&event(50, 1));
        assert_eq!(
            fan_out.admit(Mono::ZERO, &event(50, 1), &named),
            Err(ExceededLimit::Root)
        );
        let own = |n: u8| fan_out.admit_maintainer(Mono::ZERO, &event(n, 1), &named);
        assert_eq!(
            (60..64).map(own).collect::<Vec<_>>(),
            [Ok(()), Ok(()), Ok(()), Err(ExceededLimit::Author)]
        );
        // A reply to a maintainer's event is charged to the same root.
        let below = note(70, 30, &[&["e", &"3c".repeat(32)]]);
        assert_eq!(
            fan_out.admit(Mono::ZERO, &below, &References::of(&below)),
            Err(ExceededLimit::Root)
        );
    }

    #[test]
    fn the_limit_per_author_does_not_affect_other_authors() {
        let mut fan_out = FanOut::new(limits(3, 100));
        assert_eq!(
            admitted(&mut fan_out, (0..9).map(|n| note(n, 1, &[&["a", REPO]]))),
            3
        );
        assert!(admits(
            &mut fan_out,
            Mono::ZERO,
            &note(20, 2, &[&["a", REPO]])
        ));
        let later = Mono::ZERO + FanOutLimits::default().window;
        assert!(
            admits(&mut fan_out, later, &note(21, 1, &[&["a", REPO]])),
            "the next day"
        );
    }

    #[test]
    fn the_limit_per_root_counts_events_of_all_authors() {
        let mut fan_out = FanOut::new(limits(100, 5));
        assert_eq!(
            admitted(&mut fan_out, (0..9).map(|n| note(n, n, &[&["a", REPO]]))),
            5
        );
        let other = REPO.replace(":x", ":y");
        assert!(admits(
            &mut fan_out,
            Mono::ZERO,
            &note(20, 1, &[&["a", &other]])
        ));
        // Naming another repository as well does not avoid the limit.
        assert!(!admits(
            &mut fan_out,
            Mono::ZERO,
            &note(21, 1, &[&["a", &other], &["q", REPO]])
        ));
    }

    #[test]
    fn a_chain_of_replies_is_charged_to_its_first_event() {
        let mut fan_out = FanOut::new(limits(100, 10));
        let hex = |n: u8| format!("{:02x}", n).repeat(32);
        let link = |n: u8| match n {
            0 => note(0, 0, &[&["a", REPO]]),
            n => note(n, n, &[&["e", &hex(n - 1)]]),
        };
        // An event that was refused is not stored, so nothing is related to it.
        let admitted = (0..30)
            .map(link)
            .take_while(|link| admits(&mut fan_out, Mono::ZERO, link));
        assert_eq!(admitted.count(), 10);
    }

    #[test]
    fn events_without_a_root_share_one_account_and_deletions_have_none() {
        let mut fan_out = FanOut::new(limits(100, 4));
        assert_eq!(admitted(&mut fan_out, (0..9).map(|n| note(n, n, &[]))), 4);
        let request = |n: u8| Unsigned::kind(5).tags(&[&["a", REPO]]).id(n).by(key(n));
        assert_eq!(admitted(&mut fan_out, (0..9).map(request)), 9);
    }

    #[test]
    fn bytes_count_and_memory_is_bounded() {
        let author = Share {
            count: 100,
            bytes: 2_000,
        };
        let mut fan_out = FanOut::new(FanOutLimits {
            author,
            ..FanOutLimits::default()
        });
        let long = "x".repeat(900);
        let long_event = |n: u8| note(n, 1, &[&["a", REPO], &["t", &long]]);
        assert_eq!(admitted(&mut fan_out, (0..9).map(long_event)), 1);

        let mut accounts: BTreeMap<usize, Share> = (0..=MAX_ACCOUNTS)
            .map(|n| {
                (
                    n,
                    Share {
                        count: n % 5,
                        bytes: 0,
                    },
                )
            })
            .collect();
        shrink(&mut accounts);
        assert!(accounts.len() <= MAX_ACCOUNTS / 2);
        assert!(
            accounts.values().all(|share| share.count > 2),
            "the heavier ones are kept"
        );
        let mut fan_out = FanOut::new(limits(1, 1));
        (0..2 * MAX_THREADS).for_each(|n| {
            let mut id = [0; 32];
            id[..8].copy_from_slice(&n.to_be_bytes());
            fan_out.remember_root(EventId::from_byte_array(id), Some(Root(7)));
        });
        assert_eq!(
            (fan_out.threads.len(), fan_out.order.len()),
            (MAX_THREADS, MAX_THREADS)
        );
    }
}
