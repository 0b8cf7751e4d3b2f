//! Files: with numbered lines, as a document, or as a picture; and their bytes.

use axum::body::Bytes;
use axum::http::StatusCode;
use grasp_purgatory::git::ObjectKind;
use maud::{Markup, PreEscaped, html};

use super::revision::{Revision, encode};
use super::tree::object_name;
use super::{Context, EncodedPage, Made, Page, PageError, Tab, Work, content, download};
use crate::web::encoded::EncodedBody;
use crate::web::render::{Job, MAX_TEXT};
use crate::web::{format_bytes, shown};

/// The largest file that is shown, in bytes.
const MAX_SHOWN: u64 = 1024 * 1024;

/// The largest file whose bytes are sent. Larger ones can be cloned.
const MAX_RAW: u64 = 64 * 1024 * 1024;

/// The largest of them that is read whole, and kept.
const MAX_WHOLE: u64 = 8 * 1024 * 1024;

/// Lines of a file that are shown.
const MAX_LINES: usize = 20_000;

/// Makes the page of a file.
pub(super) async fn make(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
    path: &[String],
    is_plain: bool,
) -> Result<Page, PageError> {
    let request = context.request;
    let mut reader = request.repos.read_objects(&request.repo, work).await?;
    let object = reader.info(&object_name(revision, path)).await?;
    let object = object.ok_or(PageError::NotFound)?;
    if object.kind != ObjectKind::Blob {
        reader.finish().await?;
        return Err(PageError::NotFound);
    }
    let read = reader.content(&object.oid.to_string(), MAX_SHOWN).await?;
    reader.finish().await?;
    let name = path.last().map(String::as_str).unwrap_or_default();
    let rest = format!("{}/{}", encode(&revision.name), encode(&path.join("/")));
    let raw = format!("{}/raw/{rest}", context.base());
    let shown_as = match read {
        None => html! { p { "This file is too large to be shown." } },
        Some((_, content)) => shown_as(context, work, revision, path, &content, is_plain).await,
    };
    let is_document = content::is_markdown(name);
    let content = html! {
        (content::crumbs(context, revision, path))
        (content::proposed(revision))
        p class="small" {
            (format_bytes(object.bytes))
            @if object.bytes <= MAX_RAW { " · " a href=(raw) rel="nofollow" { "Raw" } }
            @if is_document && !is_plain { " · " a href="?plain" rel="nofollow" { "Source" } }
            @if is_document && is_plain { " · " a href=(format!("{}/file/{rest}", context.base())) { "Document" } }
            @if revision.is_named() {
                @let file = encode(&path.join("/"));
                " · " a href=(format!("{}/file/{}/{file}", context.base(), revision.commit)) rel="nofollow" { "Permanent link" }
            }
        }
        (shown_as)
    };
    let page = content::page(context, revision, &shown(name), Tab::Files, content);
    Ok(if is_plain { page.without_index() } else { page })
}

async fn shown_as(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
    path: &[String],
    bytes: &[u8],
    is_plain: bool,
) -> Markup {
    let name = path.last().map(String::as_str).unwrap_or_default();
    if !is_plain && content::picture_type(name, bytes).is_some() {
        let path = encode(&path.join("/"));
        let raw = format!("{}/raw/{}/{path}", context.base(), encode(&revision.name));
        return html! { p { img class="picture" src=(raw) alt=(shown(name)); } };
    }
    if !content::is_text(bytes) {
        return html! { p { "This file is not text." } };
    }
    let text = String::from_utf8_lossy(bytes).into_owned();
    if text.is_empty() {
        return html! { p { "This file is empty." } };
    }
    if !is_plain && content::is_markdown(name) && text.len() <= MAX_TEXT {
        return content::document(context, work, revision, path, &text).await;
    }
    // The worker escapes; what it is given has no character that turns the direction of the page.
    let text = shown(&text.replace("\r\n", "\n"));
    let job = Job::Code {
        file_name: name,
        text: &text,
    };
    let coloured = context.site.renderer.render(&job, work).await;
    let coloured = coloured.filter(|html| html.lines().count() == text.lines().count());
    let lines = work.run(move || numbered(coloured, &text)).await;
    lines.unwrap_or_else(|_| html! { p { "This file could not be shown." } })
}

/// Returns lines with numbers that can be linked to; the worker's HTML if there is some, else the text.
fn numbered(coloured: Option<String>, text: &str) -> Markup {
    let html: Vec<Markup> = match &coloured {
        Some(coloured) => coloured
            .lines()
            .map(|line| PreEscaped(line.to_owned()))
            .collect(),
        None => text.lines().map(|line| html! { (line) }).collect(),
    };
    html! {
        div class="scroll" tabindex="0" role="region" aria-label="Content of the file" {
            pre class="lines" {
                code {
                    @for (number, line) in (1..).zip(html.iter().take(MAX_LINES)) {
                        span class="l" { a id=(format!("L{number}")) href=(format!("#L{number}")) { (number) } (line) "\n" }
                    }
                }
            }
        }
        @if html.len() > MAX_LINES { p { "The first " (MAX_LINES) " lines are shown." } }
    }
}

/// Returns the bytes of a file, as a type that does nothing in a browser.
pub(super) async fn raw(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
    path: &[String],
) -> Result<Made, PageError> {
    let request = context.request;
    let mut reader = request.repos.read_objects(&request.repo, work).await?;
    let object = reader.info(&object_name(revision, path)).await?;
    let object = object.filter(|object| object.kind == ObjectKind::Blob);
    let object = object.ok_or(PageError::NotFound)?;
    let name = path.last().map(String::as_str).unwrap_or_default();
    if object.bytes > MAX_RAW {
        reader.finish().await?;
        return Ok(Made::Page(too_large(context, object.bytes)));
    }
    if object.bytes > MAX_WHOLE {
        let turn = context.site.begin_download(work)?;
        let (first, rest) = reader.pieces(&object).await?;
        let (content_type, is_attachment) = raw_type(name, &first);
        let head = EncodedPage::file(
            content_type,
            is_attachment,
            EncodedBody::Plain(Bytes::new()),
        );
        let body = download::start(first, rest, (work.clone(), turn));
        return Ok(Made::Download {
            head,
            bytes: object.bytes,
            body,
        });
    }
    let read = reader.content(&object.oid.to_string(), MAX_WHOLE).await?;
    reader.finish().await?;
    let (_, bytes) = read.ok_or(PageError::NotFound)?;
    let (content_type, is_attachment) = raw_type(name, &bytes);
    let is_compressed = is_attachment || content_type.starts_with("image/") && content_type != SVG;
    let body = match is_compressed {
        true => EncodedBody::Plain(bytes.into()),
        false => work.run(move || EncodedBody::new(bytes)).await?,
    };
    Ok(Made::File(EncodedPage::file(
        content_type,
        is_attachment,
        body,
    )))
}

const SVG: &str = "image/svg+xml";

/// Returns the type of a file by its name and its content, or the beginning of that, and whether it is to be saved.
fn raw_type(name: &str, content: &[u8]) -> (&'static str, bool) {
    // A character may be cut at the end.
    let is_utf8 = match std::str::from_utf8(content) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    match content::picture_type(name, content) {
        Some(picture) => (picture, false),
        None if is_utf8 && content::is_text(content) => ("text/plain; charset=utf-8", false),
        None => ("application/octet-stream", true),
    }
}

fn too_large(context: &Context<'_>, bytes: u64) -> Page {
    let request = context.request;
    let content = html! {
        h1 { "This file is too large" }
        p { "It has " (format_bytes(bytes)) ". Clone the repository to get it:" }
        pre { "git clone " (context.service().repo_url(&request.address, context.site.secure)) }
    };
    let page = context.page("This file is too large", Tab::Files, content);
    page.with_status(StatusCode::PAYLOAD_TOO_LARGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_plain_ones_escaped() {
        let html = numbered(None, "a\n<b>\n").0;
        assert!(
            html.contains("<a id=\"L2\" href=\"#L2\">2</a>&lt;b&gt;\n"),
            "{html}"
        );
        let html = numbered(Some("<span class=\"k\">a</span>\nb\n".into()), "a\nb\n").0;
        assert!(html.contains("1</a><span class=\"k\">a</span>\n"), "{html}");
    }

    #[test]
    fn bytes_that_are_no_text_or_picture_are_to_be_saved() {
        let text = ("text/plain; charset=utf-8", false);
        assert_eq!(raw_type("x.html", b"<script>"), text);
        assert_eq!(
            raw_type("x", "a\u{fc}".as_bytes().split_last().unwrap().1),
            text
        );
        assert_eq!(raw_type("x.svg", b"<svg/>"), (SVG, false));
        let saved = ("application/octet-stream", true);
        for bytes in [b"a\0b".as_slice(), b"a\xffb"] {
            assert_eq!(raw_type("x", bytes), saved);
        }
    }
}
