//! Comments as a tree of bounded depth and number.

use std::collections::{BTreeMap, BTreeSet};

use nostr::event::{Event, EventId};
use nostr::key::PublicKey;

use super::{Root, ThreadScope, line_of, marker, root_of};
use crate::event::Version;
use crate::kinds;
use crate::nip34::tags;
use crate::repo::Oid;
use crate::text::parse_event_id;

/// A comment on a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Its event.
    pub version: Version,
    /// Its author.
    pub author: PublicKey,
    /// Its text.
    pub text: String,
    /// 0 for a comment on the root, and one more than the comment that it replies to, up to [`Comments::MAX_DEPTH`].
    pub depth: usize,
    /// The file that it is about.
    pub file: Option<String>,
    /// The line of that file, or the first and last one.
    pub lines: Option<String>,
    /// The commit that the file is of.
    pub commit: Option<Oid>,
}

/// The comments of a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comments {
    /// Each comment before its replies, the oldest first.
    pub shown: Vec<Comment>,
    /// The number of comments that are left out because there are too many.
    pub omitted: usize,
}

impl Comments {
    /// The comments of one thread that are shown.
    pub const MAX: usize = 500;

    /// The depth of the deepest reply; replies to that one have the same.
    pub const MAX_DEPTH: usize = 3;

    /// Collects the comments of a thread.
    ///
    /// If there are too many, those by people who decide about it stay, and then the oldest: a flood of comments hides
    /// none that were there before. A reply to a comment that is not there stands on its own.
    pub(super) fn of(scope: &ThreadScope, root: &Root, events: &[Event]) -> Self {
        let mut found: BTreeMap<EventId, &Event> = BTreeMap::new();
        for event in events.iter().filter(|event| is_comment(root, event)) {
            found.insert(event.id, event);
        }
        let all = found.len();
        let mut kept: Vec<&Event> = found.into_values().collect();
        kept.sort_by_key(|event| (!scope.may_decide(root, &event.pubkey), Version::of(event)));
        kept.truncate(Self::MAX);
        kept.sort_by_key(|event| Version::of(event));
        let omitted = all - kept.len();
        Self {
            shown: ordered(root, &kept),
            omitted,
        }
    }
}

/// Counts the comments of a thread.
pub(super) fn count(root: &Root, events: &[Event]) -> usize {
    let comments = events.iter().filter(|event| is_comment(root, event));
    let ids: BTreeSet<EventId> = comments.map(|event| event.id).collect();
    ids.len()
}

fn is_comment(root: &Root, event: &Event) -> bool {
    kinds::REPLY_KINDS.contains(&event.kind)
        && event.id != root.id
        && root_of(event) == Some(root.id)
}

/// Returns each comment before its replies. Every comment is returned once, also of a circle of replies.
fn ordered(root: &Root, comments: &[&Event]) -> Vec<Comment> {
    let ids: BTreeSet<EventId> = comments.iter().map(|event| event.id).collect();
    let mut replies: BTreeMap<EventId, Vec<&Event>> = BTreeMap::new();
    let mut first: Vec<&Event> = Vec::new();
    for event in comments {
        match parent_of(event).filter(|parent| *parent != root.id && ids.contains(parent)) {
            Some(parent) => replies.entry(parent).or_default().push(event),
            None => first.push(event),
        }
    }
    // Comments in a circle are below none of these; they follow as if they replied to the root.
    first.extend(comments);
    let mut seen: BTreeSet<EventId> = BTreeSet::new();
    let mut shown = Vec::new();
    for top in first {
        let mut open: Vec<(&Event, usize)> = vec![(top, 0)];
        while let Some((event, depth)) = open.pop() {
            if !seen.insert(event.id) {
                continue;
            }
            shown.push(comment(event, depth));
            let below = (depth + 1).min(Comments::MAX_DEPTH);
            for reply in replies.get(&event.id).into_iter().flatten().rev() {
                open.push((reply, below));
            }
        }
    }
    shown
}

/// Returns the event that a comment replies to: its `e` marked as reply, or else its last one.
fn parent_of(event: &Event) -> Option<EventId> {
    let marked = tags::named(event, "e").find(|tag| marker(tag) == Some("reply"));
    let parent = marked.or_else(|| tags::named(event, "e").last());
    parent
        .and_then(|tag| tag.content())
        .and_then(parse_event_id)
}

fn comment(event: &Event, depth: usize) -> Comment {
    Comment {
        version: Version::of(event),
        author: event.pubkey,
        text: event.content.clone(),
        depth,
        file: tags::first(event, "f").and_then(line_of),
        lines: tags::first(event, "line").and_then(line_of),
        commit: tags::first(event, "c").and_then(|value| value.parse().ok()),
    }
}
