//! What pages of a repository's content share.

use maud::{Markup, PreEscaped, html};

use super::revision::{Belongs, Revision, encode};
use super::{Context, Page, Tab, Work};
use crate::web::render::{Job, Place};
use crate::web::shown;

/// The largest document that is shown, in bytes.
pub(super) const MAX_DOCUMENT: u64 = 256 * 1024;

/// Returns a page at a revision. Search engines may list those of branches and tags.
pub(super) fn page(
    context: &Context<'_>,
    revision: &Revision,
    title: &str,
    tab: Tab,
    content: Markup,
) -> Page {
    let page = context.page(title, tab, content);
    match revision.is_named() {
        true => page,
        false => page.without_index(),
    }
}

/// Returns the path of a file as links to its directories.
pub(super) fn crumbs(context: &Context<'_>, revision: &Revision, path: &[String]) -> Markup {
    let base = context.base();
    let rev = encode(&revision.name);
    let mut walked = format!("{base}/tree/{rev}");
    let mut crumbs = Vec::new();
    for (at, part) in path.iter().enumerate() {
        walked = format!("{walked}/{}", encode(part));
        let is_link = at + 1 < path.len();
        crumbs.push((shown(part), walked.clone(), is_link));
    }
    let name = match revision.is_named() {
        true => shown(&revision.name),
        false => format!("{:.10}", revision.commit),
    };
    html! {
        h1 class="path" {
            a href=(format!("{base}/tree/{rev}")) { bdi { (name) } }
            @for (part, address, is_link) in crumbs {
                " / " @if is_link { a href=(address) { bdi { (part) } } } @else { bdi { (part) } }
            }
        }
    }
}

/// Returns the note above content that is not the repository's.
pub(super) fn proposed(revision: &Revision) -> Markup {
    html! {
        @if revision.belongs == Belongs::Proposed {
            p { strong class="odd" { "Proposed in a pull request; not part of this repository." } }
        }
    }
}

/// Returns a document as HTML: Markdown by a worker, all else, and what no worker renders, as plain text.
pub(super) async fn document(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
    path: &[String],
    text: &str,
) -> Markup {
    let name = path.last().map(String::as_str).unwrap_or_default();
    if is_markdown(name) {
        let directory = path.get(..path.len().saturating_sub(1)).unwrap_or_default();
        let (base, rev) = (context.base(), encode(&revision.name));
        let directory = encode(&directory.join("/"));
        let place = Place {
            base: &base,
            rev: &rev,
            directory: &directory,
        };
        let job = Job::Markdown { place, text };
        if let Some(html) = context.site.renderer.render(&job, work).await {
            return html! { div class="md" dir="auto" { (PreEscaped(html)) } };
        }
    }
    html! { pre dir="auto" { (shown(text)) } }
}

/// Returns whether a file has Markdown.
pub(super) fn is_markdown(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, end)| end);
    ["md", "markdown", "mkd"]
        .iter()
        .any(|it| it.eq_ignore_ascii_case(extension))
}

/// Returns whether a content is text: it has no zero byte at its start.
pub(super) fn is_text(content: &[u8]) -> bool {
    let start = content.get(..content.len().min(8_000)).unwrap_or_default();
    !start.contains(&0)
}

/// Returns the type of a picture that browsers show, by its content; an svg by its name.
pub(super) fn picture_type(name: &str, content: &[u8]) -> Option<&'static str> {
    let is_svg = name.to_ascii_lowercase().ends_with(".svg");
    match content {
        [0x89, b'P', b'N', b'G', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', ..] => Some("image/gif"),
        [
            b'R',
            b'I',
            b'F',
            b'F',
            _,
            _,
            _,
            _,
            b'W',
            b'E',
            b'B',
            b'P',
            ..,
        ] => Some("image/webp"),
        _ if is_svg && is_text(content) => Some("image/svg+xml"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_known_by_their_content() {
        assert_eq!(picture_type("x.txt", b"\x89PNG\r\n"), Some("image/png"));
        assert_eq!(picture_type("x.png", b"<script>"), None);
        assert_eq!(picture_type("X.SVG", b"<svg/>"), Some("image/svg+xml"));
        assert!(is_markdown("README.MD") && !is_markdown("md"));
    }
}
