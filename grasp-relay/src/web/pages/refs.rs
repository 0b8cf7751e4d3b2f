//! Branches and tags, newest first.

use grasp_core::{Namespace, Oid, RefName};
use maud::{Markup, html};

use super::revision::{self, encode};
use super::{Context, Page, PageError, Tab, Work};
use crate::web::frame::FeedLink;
use crate::web::{date, shown};

/// Branches and tags on one page.
const PER_PAGE: usize = 200;

/// Branches and tags up to which they are sorted by date, which reads a commit for each.
const MAX_DATED: usize = 20_000;

/// Bytes of their list.
const MAX_BYTES: usize = 8 * 1024 * 1024;

/// A branch or tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefRow {
    pub(crate) name: RefName,
    pub(crate) oid: Oid,
    /// The date of its commit or tag, in Unix seconds, and the subject.
    pub(crate) about: Option<(u64, String)>,
}

impl RefRow {
    /// Parses a line of the list below.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split('\0');
        let name = RefName::new(fields.next()?).ok()?;
        let oid = fields.next()?.parse().ok()?;
        let date = fields.next()?.parse().unwrap_or(0);
        let subject = fields.next()?.to_owned();
        Some(Self {
            name,
            oid,
            about: Some((date, subject)),
        })
    }
}

/// Returns the refs with these prefixes, newest first, or by name if there are very many.
pub(crate) async fn list(
    context: &Context<'_>,
    work: &Work,
    prefixes: &[&str],
    count: usize,
) -> Result<Vec<RefRow>, PageError> {
    let refs = &context.view.refs.refs;
    let is_meant = |name: &RefName| {
        prefixes
            .iter()
            .any(|prefix| name.as_str().starts_with(prefix))
    };
    let shown: Vec<_> = refs.iter().filter(|(name, _)| is_meant(name)).collect();
    if shown.len() > MAX_DATED {
        let rows = shown.into_iter().map(|(name, target)| RefRow {
            name: name.clone(),
            oid: target.oid,
            about: None,
        });
        return Ok(rows.collect());
    }
    let request = context.request;
    let count = format!("--count={count}");
    let mut arguments = vec![
        "--sort=-creatordate",
        &count,
        "--format=%(refname)%00%(objectname)%00%(creatordate:unix)%00%(contents:subject)",
    ];
    arguments.extend(prefixes);
    let (repos, repo) = (&request.repos, &request.repo);
    let listed = repos.run_for_page(repo, work, "for-each-ref", &arguments, MAX_BYTES);
    let (output, _) = listed.await?;
    let text = String::from_utf8_lossy(&output);
    Ok(text.lines().filter_map(RefRow::parse).collect())
}

pub(super) async fn make(
    context: &Context<'_>,
    work: &Work,
    skip: usize,
) -> Result<Page, PageError> {
    let prefixes = ["refs/heads/", "refs/tags/"];
    let rows = list(context, work, &prefixes, skip.saturating_add(PER_PAGE + 1)).await?;
    let base = context.base();
    let page: Vec<_> = rows.iter().skip(skip).take(PER_PAGE).collect();
    let feeds = vec![
        context.feed("tags", "tags"),
        context.feed("releases", "releases"),
    ];
    let content = html! {
        h1 { "Branches and tags" }
        @if page.is_empty() { p { "None." } } @else { (table(context, &base, &page)) }
        @if rows.len() > skip.saturating_add(PER_PAGE) {
            p { a href=(format!("{base}/refs?skip={}", skip + PER_PAGE)) { "Older ones" } }
        }
        (FeedLink::line(&feeds))
    };
    let page = context.page("Branches and tags", Tab::Refs, content);
    let page = page.with_feeds(feeds);
    Ok(match skip {
        0 => page,
        _ => page.without_index(),
    })
}

fn table(context: &Context<'_>, base: &str, rows: &[&RefRow]) -> Markup {
    html! {
        table {
            caption { "The newest first" }
            thead { tr { th scope="col" { "name" } th scope="col" { "kind" } th scope="col" { "newest commit" } th scope="col" { "date" } } }
            tbody {
                @for row in rows { (table_row(&revision::name_of(&context.view, &row.name), base, row)) }
            }
        }
    }
}

fn table_row(address: &str, base: &str, row: &RefRow) -> Markup {
    let (name, kind) = match row.name.namespace() {
        Namespace::Branch(name) => (name, "branch"),
        Namespace::Tag(name) => (name, "tag"),
        _ => (row.name.as_str(), "ref"),
    };
    html! {
        tr {
            td data-label="name" { a href=(format!("{base}/tree/{}", encode(address))) { bdi { (shown(name)) } } }
            td data-label="kind" { (kind) }
            td data-label="newest commit" dir="auto" {
                @if let Some((_, subject)) = &row.about { (shown(subject)) } @else { code { (format!("{:.8}", row.oid)) } }
            }
            td data-label="date" class="time" {
                @if let Some((seconds, _)) = &row.about { (date(*seconds)) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_git_is_parsed_and_others_are_left_out() {
        let oid = "a".repeat(40);
        let row = RefRow::parse(&format!("refs/tags/v1\0{oid}\x0012\0a <b> subject"));
        let row = row.unwrap();
        assert_eq!(row.name.as_str(), "refs/tags/v1");
        assert_eq!(row.about, Some((12, "a <b> subject".into())));
        assert_eq!(RefRow::parse(""), None);
        assert_eq!(RefRow::parse("refs/tags/v1\0x\x001\0y"), None);
    }
}
