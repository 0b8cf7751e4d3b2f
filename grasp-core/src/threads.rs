//! Issues, patches and pull requests: what a thread says now, from its events in any order.
//!
//! Only the author of a root and the maintainers of the repository change its status, title, labels, cover note and tip;
//! events of others that try to are ignored. Everybody may comment. All functions are total, and their results bounded:
//! texts in length, comments in number and depth.
//!
//! ```
//! use std::collections::BTreeSet;
//! use grasp_core::threads::{
//!     Check, CheckOutcome, Comment, Comments, Note, Root, RootKind, Status, StatusChange, Summary, Thread,
//!     ThreadScope, Tip, checks, root_named_by,
//! };
//! use grasp_core::{Oid, RepoId};
//! use nostr::event::{EventBuilder, FinalizeEvent, Kind, Tag};
//! use nostr::key::Keys;
//!
//! let keys = [Keys::generate(), Keys::generate()];
//! let [maintainer, author] = &keys;
//! let repo = RepoId::new(maintainer.public_key(), "x".parse()?);
//! let scope = ThreadScope::new(&repo, BTreeSet::from([maintainer.public_key()]));
//! let address = Tag::parse(["a", &repo.to_string()])?;
//! let commit = "c".repeat(40);
//!
//! let request = EventBuilder::new(Kind::GitPullRequest, "It did not compile.")
//!     .tags([address, Tag::parse(["subject", "Mend it"])?, Tag::parse(["c", &commit])?])
//!     .finalize(author)?;
//! let root = Root::parse(&scope, &request).expect("it is addressed to the repository");
//! assert_eq!((root.kind, root.title.as_str()), (RootKind::PullRequest, "Mend it"));
//!
//! let about = Tag::parse(["E", &request.id.to_hex()])?;
//! let comment = EventBuilder::new(Kind::Comment, "Thanks!").tag(about).finalize(maintainer)?;
//! let named = Tag::parse(["e", &request.id.to_hex(), "", "root"])?;
//! let applied = EventBuilder::new(Kind::GitStatusApplied, "").tag(named).finalize(maintainer)?;
//! assert_eq!(root_named_by(&applied), Some(request.id));
//!
//! // In any order.
//! let events = [applied, comment];
//! let change: Option<StatusChange> = Summary::of(&scope, &root, &events).change;
//! assert!(change.is_some_and(|change| change.status == Status::Applied && change.by == maintainer.public_key()));
//! let thread = Thread::of(&scope, root, &events);
//! let Comments { shown, omitted } = &thread.comments;
//! let first: &Comment = &shown[0];
//! assert_eq!((first.text.as_str(), *omitted), ("Thanks!", 0));
//! let cover: Option<Note> = thread.cover.clone();
//! assert_eq!(cover, None);
//! let tip: &Tip = thread.tip().expect("it names a commit");
//!
//! // Results of continuous integration belong to the commit.
//! let results: Vec<Check> = checks(&scope, &tip.commit, &events);
//! assert!(!results.iter().any(|result| result.outcome == CheckOutcome::Failed));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checks;
mod comments;
mod root;

use std::collections::BTreeSet;

use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;
use nostr::types::Timestamp;

pub use self::checks::{Check, CheckOutcome, checks};
pub use self::comments::{Comment, Comments};
pub use self::root::{Root, RootKind};

use crate::event::Version;
use crate::kinds;
use crate::nip34::{self, tags};
use crate::repo::{Identifier, Oid, RepoId};
use crate::text::parse_event_id;

/// The characters of a title.
const MAX_TITLE_CHARS: usize = 200;

/// The labels of one thread.
const MAX_LABELS: usize = 32;

/// The characters of a label.
const MAX_LABEL_CHARS: usize = 60;

/// The tips of one pull request, and the patches of one series.
const MAX_PARTS: usize = 100;

/// The repository whose threads are read: its addresses, and the keys that decide about every thread of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadScope {
    coordinates: BTreeSet<RepoId>,
    maintainers: BTreeSet<PublicKey>,
}

impl ThreadScope {
    /// Returns the scope of a repository: threads are addressed to the announcement of its owner or of a maintainer.
    pub fn new(repo: &RepoId, maintainers: BTreeSet<PublicKey>) -> Self {
        let identifier: &Identifier = &repo.identifier;
        let mut coordinates = BTreeSet::from([repo.clone()]);
        for key in &maintainers {
            coordinates.insert(RepoId::new(*key, identifier.clone()));
        }
        Self {
            coordinates,
            maintainers,
        }
    }

    /// Returns the announcements that threads of the repository name.
    pub fn coordinates(&self) -> &BTreeSet<RepoId> {
        &self.coordinates
    }

    /// Returns the keys that decide about every thread.
    pub fn maintainers(&self) -> &BTreeSet<PublicKey> {
        &self.maintainers
    }

    /// Returns whether an event is addressed to this repository.
    pub fn contains(&self, event: &Event) -> bool {
        let named = nip34::repo_refs(event);
        named.iter().any(|repo| self.coordinates.contains(repo))
    }

    /// Returns whether a key decides about a thread.
    fn may_decide(&self, root: &Root, key: &PublicKey) -> bool {
        *key == root.author || self.maintainers.contains(key)
    }
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// To be dealt with; every thread without another status.
    #[default]
    Open,
    /// Merged, applied or resolved.
    Applied,
    /// Closed without that.
    Closed,
    /// Not ready yet.
    Draft,
}

impl Status {
    /// Returns the status that an event of this kind sets.
    pub fn of_kind(kind: Kind) -> Option<Self> {
        match kind {
            Kind::GitStatusOpen => Some(Self::Open),
            Kind::GitStatusApplied => Some(Self::Applied),
            Kind::GitStatusClosed => Some(Self::Closed),
            Kind::GitStatusDraft => Some(Self::Draft),
            _ => None,
        }
    }

    /// Returns whether a thread with this status waits for its maintainers.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Draft)
    }

    /// Returns the word for the status of a thread of this kind.
    pub fn word(self, kind: RootKind) -> &'static str {
        match (self, kind) {
            (Self::Open, _) => "open",
            (Self::Applied, RootKind::Issue) => "resolved",
            (Self::Applied, RootKind::Patch) => "applied",
            (Self::Applied, RootKind::PullRequest) => "merged",
            (Self::Closed, _) => "closed",
            (Self::Draft, _) => "draft",
        }
    }
}

/// The event that set the status of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct StatusChange {
    pub status: Status,
    pub by: PublicKey,
    pub version: Version,
}

/// What a list of threads shows of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Its title: the newest that was decided on, or that of the root. One line, and never empty.
    pub title: String,
    /// Its labels, sorted.
    pub labels: BTreeSet<String>,
    /// The event that set its status, if one did.
    pub change: Option<StatusChange>,
    /// The number of comments that are shown or left out.
    pub comments: usize,
}

impl Summary {
    /// Returns the status.
    pub fn status(&self) -> Status {
        self.change.map_or(Status::Open, |change| change.status)
    }

    /// Summarises a thread. Events that do not belong to it are ignored.
    pub fn of(scope: &ThreadScope, root: &Root, events: &[Event]) -> Self {
        let mut change: Option<StatusChange> = None;
        let mut title: Option<(Version, String)> = None;
        let mut labels = root.labels.clone();
        for event in events {
            if !scope.may_decide(root, &event.pubkey) {
                continue;
            }
            let version = Version::of(event);
            if let Some(status) = Status::of_kind(event.kind) {
                let is_newer = change.is_none_or(|known| version > known.version);
                if is_newer && root_of(event) == Some(root.id) {
                    change = Some(StatusChange {
                        status,
                        by: event.pubkey,
                        version,
                    });
                }
            }
            if event.kind != Kind::Label || !names(event, "e", &root.id) {
                continue;
            }
            labels.extend(values_in(event, "#t").filter_map(label));
            let given = values_in(event, "#subject").find_map(line_of);
            let is_newer = title.as_ref().is_none_or(|(known, _)| version > *known);
            if let Some(given) = given.filter(|_| is_newer) {
                title = Some((version, given));
            }
        }
        while labels.len() > MAX_LABELS {
            labels.pop_last();
        }
        Self {
            title: title.map_or_else(|| root.title.clone(), |(_, title)| title),
            labels,
            change,
            comments: comments::count(root, events),
        }
    }
}

/// A commit that was proposed to be merged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tip {
    /// The commit.
    pub commit: Oid,
    /// The commit that its changes are compared with, if its author named one.
    pub merge_base: Option<Oid>,
    /// The event that proposed it.
    pub version: Version,
}

/// A text that somebody wrote about a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Note {
    pub version: Version,
    pub author: PublicKey,
    pub text: String,
}

/// A thread as its page shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// The event that began it.
    pub root: Root,
    /// Title, labels and status.
    pub summary: Summary,
    /// The newest cover note, which is shown before the text of the root.
    pub cover: Option<Note>,
    /// The proposed commits of a pull request, oldest first; the last one counts.
    pub tips: Vec<Tip>,
    /// The further patches of a series, oldest first.
    pub patches: Vec<Note>,
    /// The comments.
    pub comments: Comments,
}

impl Thread {
    /// Reads a thread from its events in any order. Events that do not belong to it are ignored.
    pub fn of(scope: &ThreadScope, root: Root, events: &[Event]) -> Self {
        let summary = Summary::of(scope, &root, events);
        let mut cover: Option<Note> = None;
        let mut tips: Vec<Tip> = root.tip.clone().into_iter().collect();
        let mut patches: Vec<Note> = Vec::new();
        for event in events {
            if event.id == root.id || !scope.may_decide(&root, &event.pubkey) {
                continue;
            }
            let version = Version::of(event);
            if event.kind == kinds::COVER_NOTE && names(event, "e", &root.id) {
                let is_newer = cover.as_ref().is_none_or(|known| version > known.version);
                cover = if is_newer { Some(note(event)) } else { cover };
            }
            if root_of(event) != Some(root.id) {
                continue;
            }
            if event.kind == kinds::PULL_REQUEST_UPDATE {
                tips.extend(root::tip(event));
            }
            if event.kind == kinds::PATCH {
                patches.push(note(event));
            }
        }
        let has_tips = root.kind == RootKind::PullRequest;
        tips.retain(|_| has_tips);
        tips.sort_by_key(|tip| tip.version);
        tips.dedup_by_key(|tip| tip.version);
        tips.drain(..tips.len().saturating_sub(MAX_PARTS));
        patches.sort_by_key(|patch| patch.version);
        patches.dedup_by_key(|patch| patch.version);
        patches.truncate(MAX_PARTS);
        let comments = Comments::of(scope, &root, events);
        Self {
            root,
            summary,
            cover,
            tips,
            patches,
            comments,
        }
    }

    /// Returns the commit that is proposed at present.
    pub fn tip(&self) -> Option<&Tip> {
        self.tips.last()
    }

    /// Returns the date of the newest event that the page shows.
    pub fn changed_at(&self) -> Timestamp {
        let mut newest = self.root.version.created_at;
        newest = newest.max(self.tip().map_or(newest, |tip| tip.version.created_at));
        newest = newest.max(self.cover.as_ref().map_or(newest, |n| n.version.created_at));
        let change = self.summary.change;
        newest = newest.max(change.map_or(newest, |change| change.version.created_at));
        let last = self.comments.shown.iter().map(|c| c.version.created_at);
        newest.max(last.max().unwrap_or(newest))
    }
}

fn note(event: &Event) -> Note {
    Note {
        version: Version::of(event),
        author: event.pubkey,
        text: event.content.clone(),
    }
}

/// Returns the event that an event names as the root of its thread.
pub fn root_named_by(event: &Event) -> Option<EventId> {
    root_of(event)
}

/// Returns the root that an event names: by `E` (NIP-22), by an `e` marked as root (NIP-10), or by its first `e`.
fn root_of(event: &Event) -> Option<EventId> {
    if let Some(root) = tags::first(event, "E") {
        return parse_event_id(root);
    }
    let marked = tags::named(event, "e").find(|tag| marker(tag) == Some("root"));
    let root = marked.or_else(|| tags::named(event, "e").next());
    root.and_then(|tag| tag.content()).and_then(parse_event_id)
}

/// Returns the marker of an `e` tag (NIP-10).
fn marker(tag: &nostr::event::Tag) -> Option<&str> {
    tag.as_slice().get(3).map(String::as_str)
}

/// Returns whether a tag of this name has this event as its first value.
fn names(event: &Event, tag: &str, id: &EventId) -> bool {
    tags::first_values(event, tag).any(|value| parse_event_id(value) == Some(*id))
}

/// Returns the labels of an event in one namespace (NIP-32).
fn values_in<'a>(event: &'a Event, namespace: &'a str) -> impl Iterator<Item = &'a str> {
    let labels = tags::named(event, "l").filter(move |tag| {
        let given = tag.as_slice().get(2);
        given.is_some_and(|given| given == namespace)
    });
    labels.filter_map(|tag| tag.content())
}

/// Returns a label as one line; `None` if nothing is left of it.
fn label(text: &str) -> Option<String> {
    one_line(text, MAX_LABEL_CHARS)
}

/// Returns a title as one line; `None` if nothing is left of it.
fn line_of(text: &str) -> Option<String> {
    one_line(text, MAX_TITLE_CHARS)
}

/// Returns the words of a text in one line, without characters that control a terminal or the direction of text.
fn one_line(text: &str, max_chars: usize) -> Option<String> {
    let mut line = String::new();
    // A text may be long, and its beginning is enough.
    for c in text.chars().take(4 * max_chars) {
        let c = if c.is_whitespace() || c.is_control() {
            ' '
        } else {
            c
        };
        let is_repeated = c == ' ' && (line.is_empty() || line.ends_with(' '));
        if !is_repeated && !directs_text(c) {
            line.push(c);
        }
    }
    let line = line.trim_end();
    let cut = match line.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", line.get(..end).unwrap_or_default()),
        None => line.to_owned(),
    };
    (!cut.is_empty()).then_some(cut)
}

/// Returns whether a character changes the direction of the text around it, or is invisible.
fn directs_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
