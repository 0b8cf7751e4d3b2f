//! Roots: the events that begin a thread.

use std::collections::BTreeSet;

use nostr::event::{Event, EventId, Kind};
use nostr::key::PublicKey;

use super::{MAX_LABELS, ThreadScope, Tip, label, line_of};
use crate::event::Version;
use crate::nip34::tags;
use crate::repo::Oid;

/// The kind of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RootKind {
    /// A report or a question.
    Issue,
    /// Changes as the text of `git format-patch`.
    Patch,
    /// Changes as a commit to be merged.
    PullRequest,
}

impl RootKind {
    /// Returns the noun for one.
    pub fn noun(self) -> &'static str {
        match self {
            Self::Issue => "issue",
            Self::Patch => "patch",
            Self::PullRequest => "pull request",
        }
    }
}

/// The event that began a thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Root {
    /// Its kind.
    pub kind: RootKind,
    /// The id of the event.
    pub id: EventId,
    /// Its author, who decides about the thread like a maintainer.
    pub author: PublicKey,
    /// Its date.
    pub version: Version,
    /// Its first title.
    pub title: String,
    /// The text.
    pub text: String,
    /// The labels that its author gave it.
    pub labels: BTreeSet<String>,
    /// The commit that a pull request proposed first.
    pub tip: Option<Tip>,
    /// The branch that it proposes to change, if it names one.
    pub target: Option<String>,
    /// The name of the branch with the changes.
    pub branch: Option<String>,
}

impl Root {
    /// Parses the root of a thread of this repository; `None` for other events, and for patches within a series.
    pub fn parse(scope: &ThreadScope, event: &Event) -> Option<Self> {
        let kind = match event.kind {
            Kind::GitIssue => RootKind::Issue,
            Kind::GitPullRequest => RootKind::PullRequest,
            Kind::GitPatch if begins_series(event) => RootKind::Patch,
            _ => return None,
        };
        if !scope.contains(event) {
            return None;
        }
        let labels = tags::first_values(event, "t");
        // `root` and `root-revision` say where a patch is in its series.
        let labels = labels.filter(|value| kind != RootKind::Patch || !value.starts_with("root"));
        let tip = match kind {
            RootKind::PullRequest => tip(event),
            RootKind::Issue | RootKind::Patch => None,
        };
        Some(Self {
            kind,
            id: event.id,
            author: event.pubkey,
            version: Version::of(event),
            title: title(kind, event),
            text: event.content.clone(),
            labels: labels.filter_map(label).take(MAX_LABELS).collect(),
            tip,
            target: tags::first(event, "b").and_then(line_of),
            branch: tags::first(event, "branch-name").and_then(line_of),
        })
    }
}

/// Returns whether a patch is the first of a series: marked as such, or in reply to none.
fn begins_series(event: &Event) -> bool {
    let is_marked = tags::first_values(event, "t").any(|value| value == "root");
    is_marked || tags::first(event, "e").is_none()
}

/// Returns the commit that a pull request or an update proposes.
pub(super) fn tip(event: &Event) -> Option<Tip> {
    let commit: Oid = tags::first(event, "c")?.parse().ok()?;
    let merge_base = tags::first(event, "merge-base").and_then(|value| value.parse().ok());
    Some(Tip {
        commit,
        merge_base,
        version: Version::of(event),
    })
}

/// Returns the title that the author of a root gave it: its subject, or else its first line.
fn title(kind: RootKind, event: &Event) -> String {
    let tagged = tags::first(event, "subject").and_then(line_of);
    let own = tagged.or_else(|| match kind {
        RootKind::Patch => patch_subject(&event.content),
        RootKind::Issue | RootKind::PullRequest => event.content.lines().find_map(line_of),
    });
    own.unwrap_or_else(|| format!("{} without a title", kind.noun()))
}

/// Returns the subject of a patch in mail format, which may be folded, without `[PATCH 1/2]`.
fn patch_subject(text: &str) -> Option<String> {
    let mut subject: Option<String> = None;
    // The head of a mail ends with an empty line.
    for line in text.lines().take_while(|line| !line.is_empty()) {
        match &mut subject {
            Some(subject) if line.starts_with([' ', '\t']) => subject.push_str(line),
            Some(_) => break,
            None => subject = line.strip_prefix("Subject: ").map(str::to_owned),
        }
    }
    let subject = subject?;
    let mut rest = subject.trim_start();
    while let Some((_, after)) = rest.strip_prefix('[').and_then(|it| it.split_once(']')) {
        rest = after.trim_start();
    }
    line_of(rest)
}
