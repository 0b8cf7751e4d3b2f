//! Changes of what is wanted, from the local relay's feed, collected before they are acted on.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::limits::{Rate, TokenBucket};
use grasp_core::limits::Admit;
use grasp_core::nip34::{Announcement, References, repo_refs};
use grasp_core::nostr::event::Event;
use grasp_core::nostr::nips::nip01::Coordinate;
use grasp_core::sync::{IndexChange, RootId, SyncLevel};
use grasp_core::{Mono, RepoId, Version, kinds};

use super::Config;
use super::job::JobMethod;

/// Returns the change that an accepted or held event makes to what is wanted; `None` for most.
///
/// A held announcement is wanted at [`SyncLevel::StateOnly`], and must be passed again at [`SyncLevel::Full`] when it
/// is promoted. A root counts for every repository that it is addressed to.
pub fn index_change(event: &Event, level: SyncLevel) -> Option<IndexChange> {
    if event.kind == kinds::ANNOUNCEMENT {
        let announcement = Announcement::parse(event).ok()?;
        let Announcement { repo, relays, .. } = announcement;
        return Some(IndexChange::Announced {
            repo,
            version: Version::of(event),
            relays,
            level,
        });
    }
    if kinds::ROOT_KINDS.contains(&event.kind) {
        let repos = repo_refs(event).into_iter().collect();
        // An update is the author's own answer to their pull request.
        let is_root = event.kind != kinds::PULL_REQUEST_UPDATE;
        return Some(IndexChange::RootAdded {
            root: event.id.into(),
            repos,
            author: is_root.then_some(event.pubkey),
        });
    }
    if kinds::REPLY_KINDS.contains(&event.kind) {
        return reply(event);
    }
    let has_coordinate = event.kind.is_addressable() || kinds::is_replaceable(event.kind);
    (has_coordinate && event.kind != kinds::STATE)
        .then(|| member(event))
        .flatten()
}

/// Adds an addressable or replaceable event to what it names by coordinate.
fn member(event: &Event) -> Option<IndexChange> {
    let mut repos = Vec::new();
    let mut of = Vec::new();
    for named in References::of(event)
        .coordinates
        .into_iter()
        .take(MAX_REFERENCES)
    {
        match RepoId::try_from(&named) {
            Ok(repo) => repos.push(repo),
            Err(_) if named.kind != kinds::ANNOUNCEMENT => of.push(named),
            Err(_) => {}
        }
    }
    let identifier = event
        .tags
        .identifier()
        .filter(|_| event.kind.is_addressable());
    let member = Coordinate {
        kind: event.kind,
        public_key: event.pubkey,
        identifier: identifier.map(|d| d.to_string()).unwrap_or_default(),
    };
    let is_any = !repos.is_empty() || !of.is_empty();
    is_any.then_some(IndexChange::MemberAdded { member, repos, of })
}

/// Adds a reply to the thread that it answers; one that answers a repository itself begins a thread.
fn reply(event: &Event) -> Option<IndexChange> {
    let named = References::of(event);
    if !named.ids.is_empty() {
        let to = named
            .ids
            .into_iter()
            .take(MAX_REFERENCES)
            .map(RootId::from)
            .collect();
        return Some(IndexChange::Replied {
            reply: event.id.into(),
            to,
        });
    }
    let repos = named
        .coordinates
        .iter()
        .filter_map(|one| RepoId::try_from(one).ok());
    let repos: Vec<RepoId> = repos.take(MAX_REFERENCES).collect();
    (!repos.is_empty()).then(|| IndexChange::RootAdded {
        root: event.id.into(),
        repos,
        author: None,
    })
}

/// References of one event that are followed; honest replies have fewer.
const MAX_REFERENCES: usize = 8;

/// Changes that end the window early.
const MAX_CHANGES: usize = 2_000;
/// Replies that may wait for the end of their window. Of more, some are not followed.
const MAX_REPLIES: usize = 250_000;
/// Relays followed for an announcement that is only held: its git data is still missing.
const MAX_RELAYS_OF_HELD: usize = 8;

/// Early ends of the window that may follow one another at once.
const EARLY_BURST: u32 = 8;
/// Factor of the pause in the feed once a burst may be under way.
const BURST_QUIET: u32 = 5;

/// The window in which changes are collected.
///
/// It opens with the first change and ends after its length at the latest. It turns a burst into a few full filters
/// instead of many small ones; so it ends early once the burst has ended: when the feed has caught up or pauses, or
/// the window is full. A repository that is announced here is then asked for at once, and so are the threads of the
/// thousand issues that come of it. The first change after a calm is acted on after a short pause in the feed, and
/// what follows within a window's length after a longer one. A steady trickle of single events must not be acted on
/// one by one: a token bucket limits early ends, and then the window has its full length.
///
/// Replies are not urgent: few are answered within seconds, and those answers are fetched later anyway. They have a
/// longer window of their own, so that a burst of threads is fetched before the replies to it.
#[derive(Debug)]
pub(super) struct Discovery {
    length: Duration,
    reply_window: Duration,
    quiet: Duration,
    relays_per_repo: usize,
    follows_user_relays: bool,
    early: TokenBucket,
    has_caught_up: bool,
    changes: Vec<IndexChange>,
    /// Replies and what they answer, and the time of the first that waits.
    replies: BTreeMap<RootId, Vec<RootId>>,
    replied: Option<Mono>,
    /// The time at which the window opened, and that of the latest change.
    open: Option<(Mono, Mono)>,
    /// The end of the last window, if any.
    ended: Option<Mono>,
}

impl Discovery {
    pub(super) fn new(config: &Config) -> Self {
        let early = Rate {
            burst: EARLY_BURST,
            every: config.discovery_window,
        };
        Self {
            length: config.discovery_window,
            reply_window: config.reply_window,
            quiet: config.discovery_quiet,
            relays_per_repo: config.relays_per_repo,
            follows_user_relays: config.follows_user_relays,
            early: TokenBucket::new(early),
            has_caught_up: false,
            changes: Vec::new(),
            replies: BTreeMap::new(),
            replied: None,
            open: None,
            ended: None,
        }
    }

    pub(super) fn offer(&mut self, now: Mono, mut change: IndexChange) {
        match &mut change {
            IndexChange::Replied { reply, to } => {
                if self.replies.len() < MAX_REPLIES {
                    self.replies.insert(*reply, std::mem::take(to));
                    self.replied.get_or_insert(now);
                }
                return;
            }
            IndexChange::RootRemoved { root } => _ = self.replies.remove(root),
            IndexChange::RootAdded { author, .. } if !self.follows_user_relays => *author = None,
            IndexChange::Announced { relays, level, .. } => {
                let max = match level {
                    SyncLevel::Full => self.relays_per_repo,
                    SyncLevel::StateOnly => self.relays_per_repo.min(MAX_RELAYS_OF_HELD),
                };
                relays.truncate(max);
            }
            _ => {}
        }
        self.changes.push(change);
        let opened = self.open.map_or(now, |(opened, _)| opened);
        self.open = Some((opened, now));
    }

    /// Ends the window: everything stored has been fed, so waiting gains nothing.
    pub(super) fn caught_up(&mut self) -> Vec<IndexChange> {
        self.has_caught_up = true;
        self.take_all()
    }

    /// Returns whether something waits for the end of a window, or the feed has not caught up.
    pub(super) fn is_collecting(&self) -> bool {
        !self.has_caught_up || self.open.is_some() || self.replied.is_some()
    }

    /// Returns the method by which the history of what was discovered is fetched. What the feed brings before it has
    /// caught up was stored earlier, so much of its history may be here. Hardly anything about new items is.
    pub(super) fn history_method(&self) -> JobMethod {
        if self.has_caught_up {
            JobMethod::Page
        } else {
            JobMethod::Reconcile
        }
    }

    pub(super) fn take_if_due(&mut self, now: Mono) -> Option<Vec<IndexChange>> {
        if self.replies_due().is_some_and(|at| now >= at) {
            return Some(self.take_all());
        }
        let (opened, latest) = self.open?;
        let is_over = now >= opened + self.length || self.changes.len() >= MAX_CHANGES;
        let is_quiet = self.has_caught_up && now >= latest + self.quiet_after(opened);
        if is_over || (is_quiet && self.early.admit(now) == Admit::Go) {
            self.ended = Some(now);
            return Some(self.take());
        }
        None
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let replies = self.replies_due();
        let window = self.open.map(|(opened, latest)| {
            let end = opened + self.length;
            match self.has_caught_up {
                true => end.min((latest + self.quiet_after(opened)).max(self.early.reopens_at())),
                false => end,
            }
        });
        window.into_iter().chain(replies).min()
    }

    /// Returns the pause that ends a window which opened then.
    fn quiet_after(&self, opened: Mono) -> Duration {
        match self.ended {
            Some(ended) if opened < ended + self.length => self.quiet.saturating_mul(BURST_QUIET),
            _ => self.quiet,
        }
    }

    /// Returns when replies are due. Not before the feed has caught up: what they answer is older and comes later.
    fn replies_due(&self) -> Option<Mono> {
        self.replied
            .filter(|_| self.has_caught_up)
            .map(|since| since + self.reply_window)
    }

    fn take(&mut self) -> Vec<IndexChange> {
        self.open = None;
        std::mem::take(&mut self.changes)
    }

    /// Takes the changes, then the replies: what they answer may be among the changes.
    fn take_all(&mut self) -> Vec<IndexChange> {
        self.replied = None;
        let replies = std::mem::take(&mut self.replies).into_iter();
        let replies = replies.map(|(reply, to)| IndexChange::Replied { reply, to });
        self.take().into_iter().chain(replies).collect()
    }
}

#[cfg(test)]
mod tests {
    use grasp_core::RelayUrl;
    use grasp_core::nostr::event::{EventBuilder, EventId, FinalizeEvent, Tag};
    use grasp_core::nostr::key::Keys;

    use super::*;

    fn change(n: u8) -> IndexChange {
        IndexChange::RootRemoved {
            root: EventId::from_byte_array([n; 32]).into(),
        }
    }

    fn ms(ms: u64) -> Mono {
        Mono::from_millis(ms)
    }

    fn discovery() -> Discovery {
        Discovery::new(&Config::new("us.example".parse().unwrap()))
    }

    #[test]
    fn the_window_runs_from_the_first_event_and_never_starts_over() {
        let mut discovery = discovery();
        for at in (1_000..6_000).step_by(100) {
            discovery.offer(ms(at), change(1));
            assert_eq!(discovery.deadline(), Some(ms(6_000)));
            assert_eq!(discovery.take_if_due(ms(at)), None);
        }
        assert_eq!(discovery.take_if_due(ms(6_000)).unwrap().len(), 50);
        assert_eq!(discovery.deadline(), None);
    }

    #[test]
    fn catching_up_ends_the_window() {
        let mut discovery = discovery();
        discovery.offer(ms(0), change(1));
        assert_eq!(discovery.caught_up(), [change(1)]);
        assert_eq!(discovery.deadline(), None);
    }

    #[test]
    fn a_pause_ends_the_window_early_once_the_feed_has_caught_up() {
        let mut discovery = discovery();
        discovery.offer(ms(0), change(1));
        assert_eq!(discovery.take_if_due(ms(4_999)), None);
        let _ = discovery.caught_up();
        discovery.offer(ms(5_000), change(2));
        discovery.offer(ms(5_040), change(3));
        assert_eq!(discovery.deadline(), Some(ms(5_090)));
        assert_eq!(discovery.take_if_due(ms(5_089)), None);
        assert_eq!(
            discovery.take_if_due(ms(5_090)),
            Some(vec![change(2), change(3)])
        );
    }

    #[test]
    fn later_changes_are_collected_for_longer_until_a_calm() {
        let mut discovery = discovery();
        let _ = discovery.caught_up();
        discovery.offer(ms(1_000), change(1));
        assert_eq!(
            discovery.take_if_due(ms(1_050)),
            Some(vec![change(1)]),
            "the leading edge"
        );
        discovery.offer(ms(1_100), change(2));
        discovery.offer(ms(1_300), change(3));
        assert_eq!(discovery.deadline(), Some(ms(1_550)));
        assert_eq!(discovery.take_if_due(ms(1_549)), None);
        assert_eq!(
            discovery.take_if_due(ms(1_550)),
            Some(vec![change(2), change(3)])
        );
        discovery.offer(ms(6_549), change(4));
        assert_eq!(discovery.deadline(), Some(ms(6_799)));
        let _ = discovery.take_if_due(ms(6_799));
        discovery.offer(ms(11_799), change(5));
        assert_eq!(
            discovery.deadline(),
            Some(ms(11_849)),
            "a window's length of calm"
        );
    }

    #[test]
    fn a_thousand_changes_in_a_minute_become_one_batch_per_window() {
        let mut discovery = discovery();
        let _ = discovery.caught_up();
        let (mut batches, mut changes) = (0, 0);
        for at in (0..70_000).step_by(10) {
            if at % 60 == 0 && at < 60_000 {
                discovery.offer(ms(at), change(1));
            }
            if let Some(batch) = discovery.take_if_due(ms(at)) {
                (batches, changes) = (batches + 1, changes + batch.len());
            }
        }
        assert_eq!(changes, 1_000);
        assert!((12..=14).contains(&batches), "{batches}");
    }

    #[test]
    fn a_full_window_does_not_wait() {
        let mut discovery = discovery();
        (0..2_000).for_each(|_| discovery.offer(ms(0), change(1)));
        assert_eq!(discovery.take_if_due(ms(0)).unwrap().len(), 2_000);
    }

    #[test]
    fn a_steady_trickle_ends_up_with_one_batch_per_window() {
        let mut discovery = discovery();
        let _ = discovery.caught_up();
        let mut batches = 0;
        for at in (0..100_000).step_by(50) {
            if at % 500 == 0 {
                discovery.offer(ms(at), change(1));
            }
            batches += usize::from(discovery.take_if_due(ms(at)).is_some());
        }
        // The burst, one per five seconds, and what the windows' own ends add.
        assert!(
            (20..=36).contains(&batches),
            "{batches} batches of 200 events in 100 seconds"
        );
    }

    #[test]
    fn relays_per_announcement_are_limited() {
        let mut discovery = discovery();
        let keys = Keys::generate();
        let relays: Vec<_> = (0..1_000).map(|n| format!("wss://r{n}.example")).collect();
        let event = EventBuilder::new(kinds::ANNOUNCEMENT, "")
            .tag(Tag::identifier("x"))
            .tag(Tag::parse(["relays".to_owned()].into_iter().chain(relays)).unwrap())
            .finalize(&keys)
            .unwrap();
        discovery.offer(ms(0), index_change(&event, SyncLevel::Full).unwrap());
        let changes = discovery.take_if_due(ms(5_000)).unwrap();
        let IndexChange::Announced { relays, level, .. } = &changes[0] else {
            panic!()
        };
        assert_eq!((relays.len(), *level), (64, SyncLevel::Full));
        discovery.offer(
            ms(9_000),
            index_change(&event, SyncLevel::StateOnly).unwrap(),
        );
        let changes = discovery.take_if_due(ms(14_000)).unwrap();
        let IndexChange::Announced { relays, .. } = &changes[0] else {
            panic!()
        };
        assert_eq!(relays.len(), 8, "its git data is missing");
    }

    #[test]
    fn the_first_announced_relays_are_followed() {
        let mut discovery = discovery();
        let keys = Keys::generate();
        let names = ["z", "y", "x", "w", "v", "u", "t", "s", "b", "a"];
        let listed = names.map(|name| format!("wss://{name}.example"));
        let tag = ["relays".to_owned()].into_iter().chain(listed.clone());
        let event = EventBuilder::new(kinds::ANNOUNCEMENT, "")
            .tags([Tag::identifier("x"), Tag::parse(tag).unwrap()])
            .finalize(&keys)
            .unwrap();
        discovery.offer(ms(0), index_change(&event, SyncLevel::StateOnly).unwrap());
        let changes = discovery.take_if_due(ms(5_000)).unwrap();
        let IndexChange::Announced { relays, .. } = &changes[0] else {
            panic!()
        };
        let followed: Vec<_> = relays.iter().map(RelayUrl::as_str).collect();
        assert_eq!(followed, listed[..8]);
    }

    #[test]
    fn stored_replies_wait_until_the_feed_has_caught_up() {
        let mut discovery = discovery();
        let id = |n| RootId::from(EventId::from_byte_array([n; 32]));
        let reply = IndexChange::Replied {
            reply: id(1),
            to: vec![id(0)],
        };
        discovery.offer(ms(0), reply.clone());
        assert_eq!(
            (discovery.deadline(), discovery.take_if_due(ms(60_000))),
            (None, None)
        );
        discovery.offer(ms(60_000), change(2));
        assert_eq!(discovery.caught_up(), [change(2), reply]);
    }

    #[test]
    fn a_root_counts_for_every_repository_it_tags() {
        let keys = Keys::generate();
        let repos = ["x", "y"].map(|d| RepoId::new(keys.public_key(), d.parse().unwrap()));
        let tags = repos
            .iter()
            .map(|repo| Tag::parse(["a".to_owned(), repo.to_string()]).unwrap());
        for kind in kinds::ROOT_KINDS {
            let event = EventBuilder::new(kind, "")
                .tags(tags.clone())
                .finalize(&keys)
                .unwrap();
            let found = index_change(&event, SyncLevel::Full);
            let root = event.id.into();
            assert_eq!(
                found,
                Some(IndexChange::RootAdded {
                    root,
                    repos: repos.to_vec(),
                    author: (kind != kinds::PULL_REQUEST_UPDATE).then_some(keys.public_key()),
                })
            );
        }
        let status = EventBuilder::new(grasp_core::nostr::event::Kind::GitStatusOpen, "")
            .tags(tags)
            .finalize(&keys)
            .unwrap();
        assert_eq!(index_change(&status, SyncLevel::Full), None);
    }

    #[test]
    fn replies_have_a_longer_window_of_their_own() {
        let mut discovery = discovery();
        discovery.caught_up();
        let id = |n| RootId::from(EventId::from_byte_array([n; 32]));
        let reply = |n| IndexChange::Replied {
            reply: id(n),
            to: vec![id(0)],
        };
        discovery.offer(ms(1_000), reply(1));
        discovery.offer(ms(1_000), reply(2));
        discovery.offer(ms(2_000), change(2));
        assert_eq!(discovery.deadline(), Some(ms(2_050)));
        assert_eq!(discovery.take_if_due(ms(2_050)).unwrap(), [change(2)]);
        assert_eq!(discovery.deadline(), Some(ms(16_000)));
        assert_eq!(discovery.take_if_due(ms(15_999)), None);
        discovery.offer(ms(15_999), change(3));
        assert_eq!(
            discovery.take_if_due(ms(16_000)).unwrap(),
            [change(3), reply(1)]
        );
        assert_eq!(discovery.deadline(), None);
    }

    #[test]
    fn a_reply_names_what_it_answers_and_one_to_a_repository_begins_a_thread() {
        let author = Keys::generate();
        let sign = |kind, tags: &[[&str; 2]]| {
            let tags = tags.iter().map(|tag| Tag::parse(*tag).unwrap());
            EventBuilder::new(kind, "")
                .tags(tags)
                .finalize(&author)
                .unwrap()
        };
        let comment = grasp_core::nostr::event::Kind::Comment;
        let (issue, parent) = ("ab".repeat(32), "cd".repeat(32));
        let event = sign(comment, &[["E", &issue], ["e", &parent]]);
        let to = [issue, parent]
            .map(|id| EventId::from_hex(&id).unwrap().into())
            .to_vec();
        let wanted = IndexChange::Replied {
            reply: event.id.into(),
            to,
        };
        assert_eq!(index_change(&event, SyncLevel::Full), Some(wanted));

        let repo: RepoId = format!("30617:{}:r", author.public_key()).parse().unwrap();
        let event = sign(comment, &[["A", &repo.to_string()]]);
        let wanted = IndexChange::RootAdded {
            root: event.id.into(),
            repos: vec![repo],
            author: None,
        };
        assert_eq!(index_change(&event, SyncLevel::Full), Some(wanted));
        let reaction = sign(
            grasp_core::nostr::event::Kind::Reaction,
            &[["e", &"ab".repeat(32)]],
        );
        assert_eq!(index_change(&reaction, SyncLevel::Full), None);
    }
}
