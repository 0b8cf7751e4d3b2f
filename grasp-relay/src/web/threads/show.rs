//! What the list of threads and the page of one show.

use std::collections::{BTreeMap, BTreeSet};

use grasp_core::service::npub;
use grasp_core::threads::{Check, CheckOutcome, Comment, Note, Root, RootKind, Status, Thread};
use maud::{Markup, html};
use nostr::event::EventId;
use nostr::key::PublicKey;
use nostr::types::Timestamp;

use super::{MailPatch, ThreadKind, ThreadList, nevent};
use crate::web::names::Names;
use crate::web::{date, format_count, shortened, shown};

/// Threads on one page of a list.
pub(crate) const PAGE: usize = 50;

/// Characters of a text that are shown.
const MAX_TEXT_CHARS: usize = 64 * 1024;

/// The part of a list that somebody asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListQuery {
    /// Threads that are done with instead of open ones.
    pub(crate) closed: bool,
    /// Only those with this label.
    pub(crate) label: Option<String>,
    /// The threads before the first one that is shown.
    pub(crate) skip: usize,
}

impl ListQuery {
    /// Reads a query such as `state=closed&label=bug&skip=50`.
    pub(crate) fn parse(query: &str) -> Self {
        let mut parsed = Self::default();
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "state" => parsed.closed = value == "closed",
                "label" => parsed.label = Some(value.into_owned()).filter(|it| !it.is_empty()),
                "skip" => parsed.skip = value.parse().unwrap_or(0),
                _ => {}
            }
        }
        parsed
    }

    /// Returns the query that asks for it.
    fn link(&self) -> String {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        if self.closed {
            query.append_pair("state", "closed");
        }
        if let Some(label) = &self.label {
            query.append_pair("label", label);
        }
        if self.skip > 0 {
            query.append_pair("skip", &self.skip.to_string());
        }
        format!("?{}", query.finish())
    }
}

/// Returns the content of the list of threads. `base` is the path of the list.
pub(crate) fn list(
    base: &str,
    kind: ThreadKind,
    threads: &ThreadList,
    query: &ListQuery,
    names: &Names,
) -> Markup {
    let has_label = |labels: &BTreeSet<String>| {
        let label = query.label.as_ref();
        label.is_none_or(|label| labels.contains(label))
    };
    let mut open = 0;
    let mut closed = 0;
    let mut matching = Vec::new();
    for (root, summary) in &threads.rows {
        if !has_label(&summary.labels) {
            continue;
        }
        let is_open = summary.status().is_open();
        open += usize::from(is_open);
        closed += usize::from(!is_open);
        if is_open != query.closed {
            matching.push((root, summary));
        }
    }
    let listed = matching.iter().skip(query.skip).take(PAGE);
    let next = (query.skip.saturating_add(PAGE) < matching.len()).then(|| ListQuery {
        skip: query.skip.saturating_add(PAGE),
        ..query.clone()
    });
    let with_state = |closed| ListQuery {
        closed,
        skip: 0,
        ..query.clone()
    };
    html! {
        h1 { (kind.title()) }
        nav class="filters" aria-label="Filter" {
            a href={ (base) (with_state(false).link()) } aria-current=[(!query.closed).then_some("true")] { (open) " open" }
            a href={ (base) (with_state(true).link()) } aria-current=[query.closed.then_some("true")] { (closed) " closed" }
            @if let Some(label) = &query.label {
                span { "with label " bdi class="label" { (shown(label)) } " " a href=(base) { "all labels" } }
            }
        }
        @if threads.is_cut { p class="small" { "The newest " (threads.rows.len()) " are listed." } }
        @if matching.is_empty() { p { "None." } }
        ul class="log" {
            @for (root, summary) in listed {
                li {
                    (status_badge(root.kind, summary.status())) " "
                    a href={ (base) "/" (nevent(&root.id)) } { bdi { (summary.title) } } " "
                    (labels(base, &summary.labels))
                    div class="small" {
                        span { (root.kind.noun()) " by " (person(&root.author, names)) } " " (when(root.version.created_at))
                        @if summary.comments > 0 { " " span { (format_count(summary.comments as u64, "comment", "comments")) } }
                    }
                }
            }
        }
        @if let Some(next) = next { p { a href={ (base) (next.link()) } rel="next" { "Older" } } }
    }
}

/// What the page of a thread is made from.
pub(crate) struct ThreadPage<'a> {
    pub(crate) thread: &'a Thread,
    pub(crate) names: &'a Names,
    pub(crate) checks: &'a [Check],
    /// The path of the repository.
    pub(crate) base: &'a str,
    /// The path of the list that the thread is in.
    pub(crate) list: &'a str,
    /// The address to fetch from.
    pub(crate) clone: &'a str,
    pub(crate) web_client: &'a str,
    /// The rendered texts, by event; the others are shown as plain text.
    pub(crate) rendered: &'a BTreeMap<EventId, Markup>,
    /// The commits and changes of a pull request.
    pub(crate) changes: Option<Markup>,
}

/// Returns the content of the page of a thread.
pub(crate) fn thread(page: &ThreadPage<'_>) -> Markup {
    let Thread {
        root,
        summary,
        cover,
        patches,
        comments,
        ..
    } = page.thread;
    html! {
        h1 { bdi { (summary.title) } }
        p {
            (status_badge(root.kind, summary.status())) " "
            (root.kind.noun()) " by " (person(&root.author, page.names)) ", " (when(root.version.created_at))
            @if let Some(change) = summary.change {
                "; " (change.status.word(root.kind)) " by " (person(&change.by, page.names)) ", " (when(change.version.created_at))
            }
        }
        @if !summary.labels.is_empty() { p { (labels(page.list, &summary.labels)) } }
        @if root.kind == RootKind::PullRequest { (proposal(page)) }
        @if let Some(cover) = cover { (article(page, cover, "Cover note", 0)) }
        @let is_series = !patches.is_empty();
        (article(page, &first_note(root), if is_series { "1st of the series" } else { "" }, 0))
        @for patch in patches { (article(page, patch, "of the same series", 0)) }
        h2 { (format_count(comments.shown.len() as u64 + comments.omitted as u64, "comment", "comments")) }
        @for comment in &comments.shown { (comment_article(page, comment)) }
        @if comments.omitted > 0 {
            p { (comments.omitted) " more comments are not shown here; a nostr client shows all." }
        }
        p {
            a href={ (page.web_client) "/" (nevent(&root.id)) } rel="noopener nofollow" { "Answer in a web client" }
            ", or in any client that speaks nostr."
        }
        @if let Some(changes) = &page.changes { (changes) }
    }
}

fn first_note(root: &Root) -> Note {
    Note {
        version: root.version,
        author: root.author,
        text: root.text.clone(),
    }
}

/// Returns what a pull request proposes, how to get it, and what machines say about it.
fn proposal(page: &ThreadPage<'_>) -> Markup {
    let root = &page.thread.root;
    let Some(tip) = page.thread.tip() else {
        return html! { p { "It names no commit." } };
    };
    let tips = &page.thread.tips;
    let commit = tip.commit.to_string();
    html! {
        div class="box clone" {
            dl {
                dt { "Proposed commit" }
                dd {
                    @match &page.changes {
                        Some(_) => a href={ (page.base) "/commit/" (commit) } rel="nofollow" { code { (shortened(&commit, 12)) } },
                        None => code { (shortened(&commit, 12)) },
                    }
                    @if let Some(branch) = &root.branch { " from branch " bdi { code { (branch) } } }
                    @if let Some(target) = &root.target { " into " bdi { code { (target) } } }
                    @if tips.len() > 1 { ", " (tips.len()) " versions" }
                }
                dt { "Look at it with git" }
                dd { pre { "git fetch " (page.clone) " refs/nostr/" (tip.version.id.to_hex()) "\ngit log -p " (tip.merge_base.map(|base| format!("{base:.12}..")).unwrap_or_default()) "FETCH_HEAD" } }
            }
        }
        @if tips.len() > 1 {
            details {
                summary { "All versions" }
                ol {
                    @for tip in tips {
                        li { a href={ (page.base) "/commit/" (tip.commit) } rel="nofollow" { code { (format!("{:.12}", tip.commit)) } } ", " (when(tip.version.created_at)) }
                    }
                }
            }
        }
        @if !page.checks.is_empty() {
            h2 { "Checks of this commit" }
            ul {
                @for check in page.checks {
                    @let (sign, class) = outcome(check.outcome);
                    li {
                        span class=(class) { (sign) } " " bdi { (check.name) } ": " bdi { (check.words) } ", says "
                        (person(&check.by, page.names))
                        @if check.is_by_maintainer { " (maintainer)" } @else { " (not a maintainer)" }
                    }
                }
            }
        }
    }
}

fn outcome(outcome: CheckOutcome) -> (&'static str, &'static str) {
    match outcome {
        CheckOutcome::Passed => ("✓ passed", "good"),
        CheckOutcome::Failed => ("✗ failed", "bad"),
        CheckOutcome::Other => ("? unclear", "odd"),
    }
}

fn comment_article(page: &ThreadPage<'_>, comment: &Comment) -> Markup {
    let note = Note {
        version: comment.version,
        author: comment.author,
        text: comment.text.clone(),
    };
    let mut about = String::new();
    if let Some(file) = &comment.file {
        about.push_str(file);
    }
    if let Some(lines) = &comment.lines {
        about.push_str(&format!(", line {lines}"));
    }
    if let Some(commit) = &comment.commit {
        about.push_str(&format!(" of {commit:.8}"));
    }
    article(page, &note, &about, comment.depth)
}

/// Returns a text with its author, its date and its addresses.
fn article(page: &ThreadPage<'_>, note: &Note, about: &str, depth: usize) -> Markup {
    let id = &note.version.id;
    let name = nevent(id);
    let class = match depth {
        0 => "box note",
        1 => "box note d1",
        2 => "box note d2",
        _ => "box note d3",
    };
    html! {
        article class=(class) id=(anchor(id)) {
            div class="small" {
                (person(&note.author, page.names)) ", "
                a href={ "#" (anchor(id)) } { (when(note.version.created_at)) }
                @if !about.is_empty() { " · " bdi { (about) } }
                " · " a href={ "nostr:" (name) } title=(name) { "nostr:" (shortened(&name, 14)) }
                " · " a href={ (page.web_client) "/" (name) } rel="noopener nofollow" { "in a client" }
            }
            @match page.rendered.get(id) {
                Some(html) => div class="md" dir="auto" { (html) },
                None => (plain(&note.text, &anchor(id))),
            }
        }
    }
}

/// Returns a text as it is; a patch with its changes. `name` is that of its place within the page.
fn plain(text: &str, name: &str) -> Markup {
    if let Some(patch) = MailPatch::parse(text) {
        return patch.markup(&format!("{name}-"));
    }
    let text = shown(text);
    let is_cut = text.len() > MAX_TEXT_CHARS;
    let text = shortened(&text, MAX_TEXT_CHARS);
    html! {
        div class="plain" dir="auto" { (text.trim()) }
        @if is_cut { p class="small" { "The text is longer; a nostr client shows all of it." } }
    }
}

/// Returns the name of the place of an event within the page of its thread.
pub(crate) fn anchor(id: &EventId) -> String {
    let hex = id.to_hex();
    format!("e-{}", hex.get(..16).unwrap_or_default())
}

/// Returns the status with a sign, so that colour is not all that tells.
fn status_badge(kind: RootKind, status: Status) -> Markup {
    let (sign, class) = match status {
        Status::Open => ("○", "status good"),
        Status::Applied => ("✓", "status done"),
        Status::Closed => ("✗", "status bad"),
        Status::Draft => ("◌", "status small"),
    };
    html! { span class=(class) { (sign) " " (status.word(kind)) } }
}

fn labels(list: &str, labels: &BTreeSet<String>) -> Markup {
    html! {
        @for label in labels {
            @let query = ListQuery { label: Some(label.clone()), ..ListQuery::default() };
            a class="label" href={ (list) (query.link()) } rel="nofollow" { bdi { (shown(label)) } } " "
        }
    }
}

/// Returns a person: the name that it gave itself, which anybody may choose, and the beginning of its key.
fn person(key: &PublicKey, names: &Names) -> Markup {
    let whole = npub(key);
    html! {
        span title=(whole) {
            @if let Some(name) = names.get(key) { bdi { (shown(name)) } " " }
            code { (shortened(&whole, 12)) }
        }
    }
}

fn when(at: Timestamp) -> Markup {
    date(at.as_secs())
}
