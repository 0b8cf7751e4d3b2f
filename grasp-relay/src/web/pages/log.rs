//! The commits of a branch, newest first.

use grasp_core::Oid;
use maud::{Markup, html};

use super::revision::{Revision, encode};
use super::{Context, Page, PageError, Tab, Work, content};
use crate::web::frame::FeedLink;
use crate::web::{date, shown};

/// Commits on one page.
const PER_PAGE: usize = 50;

/// Bytes of their list.
const MAX_BYTES: usize = 1024 * 1024;

/// A commit in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogEntry {
    pub(super) oid: Oid,
    pub(super) author: String,
    /// In Unix seconds.
    pub(super) date: u64,
    pub(super) subject: String,
    is_merge: bool,
}

/// Commits of a list, newest first.
pub(super) struct LogEntries {
    pub(super) commits: Vec<LogEntry>,
    /// It took too long to find all that were asked for.
    pub(super) is_cut: bool,
}

impl LogEntry {
    /// Parses the fields of one commit.
    fn parse(fields: &[&str]) -> Option<Self> {
        let [oid, parents, author, date, subject] = fields else {
            return None;
        };
        Some(Self {
            oid: oid.trim_start().parse().ok()?,
            is_merge: parents.contains(' '),
            author: (*author).to_owned(),
            date: date.parse().unwrap_or(0),
            subject: (*subject).to_owned(),
        })
    }
}

/// Lists commits from one on, newest first; of a merge only the branch that was merged into.
pub(super) async fn list(
    context: &Context<'_>,
    work: &Work,
    from: Oid,
    count: usize,
) -> Result<LogEntries, PageError> {
    let from = from.to_string();
    read(context, work, &["--first-parent", &from], count).await
}

/// Lists the commits that another one lacks, newest first.
pub(super) async fn list_since(
    context: &Context<'_>,
    work: &Work,
    base: Option<Oid>,
    tip: Oid,
    count: usize,
) -> Result<LogEntries, PageError> {
    let tip = tip.to_string();
    match base {
        Some(base) => read(context, work, &[&tip, &format!("^{base}")], count).await,
        None => read(context, work, &[&tip], count).await,
    }
}

async fn read(
    context: &Context<'_>,
    work: &Work,
    commits: &[&str],
    count: usize,
) -> Result<LogEntries, PageError> {
    let request = context.request;
    let count = format!("--max-count={count}");
    let mut arguments = vec![
        "--no-color",
        "--encoding=UTF-8",
        "--format=tformat:%H%x00%P%x00%an%x00%at%x00%s%x00",
        &count,
    ];
    arguments.extend(commits);
    arguments.push("--");
    let (repos, repo) = (&request.repos, &request.repo);
    let listed = repos.run_for_page(repo, work, "log", &arguments, MAX_BYTES);
    let (output, is_cut) = listed.await?;
    let text = String::from_utf8_lossy(&output);
    let fields: Vec<&str> = text.split('\0').collect();
    let commits = fields.chunks_exact(5).filter_map(LogEntry::parse);
    Ok(LogEntries {
        commits: commits.collect(),
        is_cut,
    })
}

pub(super) async fn make(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
    from: Option<Oid>,
) -> Result<Page, PageError> {
    let start = from.unwrap_or(revision.commit);
    let LogEntries { commits, is_cut } = list(context, work, start, PER_PAGE + 1).await?;
    let base = context.base();
    let older = commits.get(PER_PAGE);
    // The feed is that of the default branch.
    let head = context.view.refs.head.as_str();
    let is_head = head.strip_prefix("refs/heads/") == Some(&revision.name);
    let feeds = match is_head {
        true => vec![context.feed("commits", "commits")],
        false => Vec::new(),
    };
    let has_merges = commits.iter().any(|commit| commit.is_merge);
    let content = html! {
        h1 { "Commits of " bdi { (shown(&revision.name)) } }
        (content::proposed(revision))
        @if has_merges { p class="small" { "The commits of a merged branch are behind its merge." } }
        ol class="log" {
            @for commit in commits.iter().take(PER_PAGE) { (item(&base, commit)) }
        }
        @if let Some(older) = older {
            @let rev = encode(&revision.name);
            p { a href=(format!("{base}/log/{rev}?from={}", older.oid)) rel="nofollow" { "Older commits" } }
        } @else if is_cut {
            p { "There are more, which took too long to be listed; clone the repository to see them." }
        }
        @if !feeds.is_empty() { (FeedLink::line(&feeds)) }
    };
    let title = format!("Commits of {}", shown(&revision.name));
    let page = context.page(&title, Tab::Log, content).with_feeds(feeds);
    Ok(match from.is_none() && revision.is_named() {
        true => page,
        false => page.without_index(),
    })
}

/// Returns a commit as an item of a list.
pub(super) fn item(base: &str, commit: &LogEntry) -> Markup {
    let subject = match shown(&commit.subject) {
        subject if subject.trim().is_empty() => "(no subject)".into(),
        subject => subject,
    };
    html! {
        li {
            a href=(format!("{base}/commit/{}", commit.oid)) rel="nofollow" { bdi { (subject) } }
            div class="small" {
                bdi { (shown(&commit.author)) }
                (date(commit.date))
                code { (format!("{:.10}", commit.oid)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_parsed_by_their_fields() {
        let oid = "a".repeat(40);
        let id = format!("\n{oid}");
        let fields = [id.as_str(), "b c", "Al <b>", "12", "s\u{1}\n"];
        let entry = LogEntry::parse(&fields).unwrap();
        assert!(entry.is_merge && entry.date == 12 && entry.author == "Al <b>");
        assert_eq!(LogEntry::parse(&["x", "", "a", "1", "s"]), None);
        let html = item("/x.git", &entry).0;
        assert!(
            html.contains(">1970-01-01</time>") && html.contains("Al &lt;b&gt;"),
            "{html}"
        );
    }
}
