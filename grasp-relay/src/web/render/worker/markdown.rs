//! Markdown as HTML that may be shown beside a server's own.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use ammonia::Builder;
use comrak::nodes::{AstNode, NodeHtmlBlock, NodeValue};
use comrak::{Anchorizer, Arena, Options, format_html, parse_document};

use super::{highlight, mentions};
use crate::web::render::job::Place;

/// Put before every id of a document, so that it is none of the page's.
const ID_PREFIX: &str = "doc-";

/// Renders a document. Links in it lead to files of the repository; pictures of other hosts become links.
pub(super) fn render(place: &Place<'_>, text: &str) -> String {
    html_of(place, text, true)
}

/// Renders a comment: its lines stay lines, and it has no ids, which others on the same page could have, too.
pub(super) fn render_note(place: &Place<'_>, text: &str) -> String {
    html_of(place, text, false)
}

fn html_of(place: &Place<'_>, text: &str, is_document: bool) -> String {
    let mut options = Options::default();
    options.extension.strikethrough = true;
    options.extension.table = true;
    options.extension.autolink = true;
    options.extension.footnotes = is_document;
    options.extension.alerts = true;
    options.render.hardbreaks = !is_document;
    // HTML of the document is let through here and sanitised below, with everything else.
    options.render.r#unsafe = true;
    let arena = Arena::new();
    let document = parse_document(&arena, text, &options);
    let mut anchors = Anchorizer::new();
    // Collected first: what is changed while it is walked ends the walk.
    let nodes: Vec<_> = document.descendants().collect();
    for node in nodes {
        check_box(node);
        mentions::link(node, &arena);
        change(node, &arena, &mut anchors);
    }
    let mut html = String::new();
    // Writing to memory does not fail.
    if format_html(document, &options, &mut html).is_err() {
        return String::new();
    }
    sanitise(place, &html, is_document)
}

/// Gives headings an id, colours code, and makes links of pictures that are elsewhere.
fn change<'a>(node: &'a AstNode<'a>, arena: &'a Arena<'a>, anchors: &mut Anchorizer) {
    let value = node.data.borrow().value.clone();
    match value {
        NodeValue::Heading(_) => {
            let id = anchors.anchorize(&text_of(node));
            let anchor = NodeValue::HtmlInline(format!("<span id=\"{}\"></span>", escaped(&id)));
            node.prepend(arena.alloc(anchor.into()));
        }
        NodeValue::CodeBlock(block) => {
            let language = block.info.split([' ', ',']).next().unwrap_or_default();
            if let Some(lines) = highlight::block(language, &block.literal) {
                let literal = format!("<pre><code>{lines}</code></pre>\n");
                let block = NodeHtmlBlock {
                    block_type: 6,
                    literal,
                };
                node.data.borrow_mut().value = NodeValue::HtmlBlock(block);
            }
        }
        NodeValue::Alert(alert) => {
            let title = alert.title.as_deref();
            quote(
                node,
                arena,
                title.unwrap_or(alert.alert_type.default_title()),
            );
        }
        NodeValue::Image(link) if is_elsewhere(&link.url) => {
            let mut ancestors = node.ancestors().skip(1);
            let is_in_link =
                ancestors.any(|it| matches!(it.data.borrow().value, NodeValue::Link(_)));
            let text = match text_of(node) {
                text if text.trim().is_empty() => String::from("picture"),
                text => text,
            };
            let children: Vec<_> = node.children().collect();
            for child in children {
                child.detach();
            }
            if is_in_link {
                node.data.borrow_mut().value = NodeValue::Text(text.into());
            } else {
                node.data.borrow_mut().value = NodeValue::Link(link);
                node.append(arena.alloc(NodeValue::Text(text.into()).into()));
            }
        }
        _ => {}
    }
}

/// Makes a quotation under a title of an alert, whose class would not be let through.
fn quote<'a>(node: &'a AstNode<'a>, arena: &'a Arena<'a>, title: &str) {
    let strong = arena.alloc(NodeValue::Strong.into());
    strong.append(arena.alloc(NodeValue::Text(title.to_owned().into()).into()));
    let paragraph = arena.alloc(NodeValue::Paragraph.into());
    paragraph.append(strong);
    node.prepend(paragraph);
    node.data.borrow_mut().value = NodeValue::BlockQuote;
}

/// Makes a sign of the box that an item of a list begins with: `[ ]` or `[x]`.
fn check_box<'a>(node: &'a AstNode<'a>) {
    let is_first = node.previous_sibling().is_none();
    let item = node.parent().and_then(|parent| parent.parent());
    let is_in_item = item.is_some_and(|it| matches!(it.data.borrow().value, NodeValue::Item(_)));
    if !is_first || !is_in_item {
        return;
    }
    let mut data = node.data.borrow_mut();
    let NodeValue::Text(text) = &mut data.value else {
        return;
    };
    for (mark, sign) in [("[ ] ", "☐ "), ("[x] ", "☑ "), ("[X] ", "☑ ")] {
        if let Some(rest) = text.strip_prefix(mark) {
            *text = format!("{sign}{rest}").into();
            return;
        }
    }
}

/// Returns the text within a node.
fn text_of<'a>(node: &'a AstNode<'a>) -> String {
    let mut text = String::new();
    for inner in node.descendants() {
        match &inner.data.borrow().value {
            NodeValue::Text(part) => text.push_str(part),
            NodeValue::Code(code) => text.push_str(&code.literal),
            NodeValue::SoftBreak | NodeValue::LineBreak => text.push(' '),
            _ => {}
        }
    }
    text
}

pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Lets through what a document needs, without classes but those of code, and with own ids.
fn sanitise(place: &Place<'_>, html: &str, is_document: bool) -> String {
    let classes: HashSet<&str> = highlight::CLASSES.into_iter().collect();
    let place = OwnedPlace::new(place);
    let mut builder = Builder::default();
    builder
        .allowed_classes(HashMap::from([("span", classes)]))
        .add_generic_attributes(["dir"])
        .rm_tags(["map", "area", "bdo"])
        // What is wider than the screen is moved by the keyboard, too.
        .set_tag_attribute_value("pre", "tabindex", "0")
        .set_tag_attribute_value("table", "tabindex", "0")
        .id_prefix(Some(ID_PREFIX))
        .url_schemes(HashSet::from(["http", "https", "mailto", "nostr"]))
        .link_rel(Some("nofollow ugc noopener noreferrer"))
        .attribute_filter(move |element, attribute, value| {
            place.attribute(element, attribute, value)
        });
    if is_document {
        builder.add_generic_attributes(["id"]);
    }
    builder.clean(html).to_string()
}

/// Returns whether an address names another host, or is none.
fn is_elsewhere(url: &str) -> bool {
    let before_path = url.split(['/', '?', '#']).next().unwrap_or_default();
    url.starts_with("//") || url.starts_with("\\") || before_path.contains(':')
}

/// The place of a document, for a filter that outlives the call.
struct OwnedPlace {
    base: String,
    rev: String,
    directory: Vec<String>,
}

impl OwnedPlace {
    fn new(place: &Place<'_>) -> Self {
        let directory = place.directory.split('/').filter(|part| !part.is_empty());
        Self {
            base: place.base.to_owned(),
            rev: place.rev.to_owned(),
            directory: directory.map(str::to_owned).collect(),
        }
    }

    /// Returns the value that an attribute gets; `None` removes it.
    fn attribute<'u>(
        &self,
        element: &str,
        attribute: &str,
        value: &'u str,
    ) -> Option<Cow<'u, str>> {
        match (element, attribute) {
            ("img", "src") if is_elsewhere(value) => None,
            ("img", "src") => Some(self.resolve("raw", value)?.into()),
            ("a", "href") if value.starts_with('#') => {
                let name = value.trim_start_matches('#');
                Some(format!("#{ID_PREFIX}{name}").into())
            }
            ("a", "href") if value.starts_with("nostr:") => {
                Some(mentions::address(&self.base, value)?.into())
            }
            ("a", "href") if !is_elsewhere(value) => Some(self.resolve("file", value)?.into()),
            (_, "cite" | "longdesc" | "background") => None,
            _ => Some(value.into()),
        }
    }

    /// Returns the address of a file of the repository; `None` for one above its top.
    fn resolve(&self, page: &str, link: &str) -> Option<String> {
        let end = link.find(['?', '#']).unwrap_or(link.len());
        let (path, rest) = link.split_at(end);
        let rest = if rest.starts_with('#') { rest } else { "" };
        let mut parts: Vec<&str> = match path.starts_with('/') {
            true => Vec::new(),
            false => self.directory.iter().map(String::as_str).collect(),
        };
        for part in path.split('/') {
            match part {
                "" | "." => {}
                ".." => _ = parts.pop()?,
                part => parts.push(part),
            }
        }
        let page = match path.ends_with('/') && page == "file" {
            true => "tree",
            false => page,
        };
        Some(format!(
            "{}/{page}/{}/{}{rest}",
            self.base,
            self.rev,
            parts.join("/")
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PLACE: Place<'static> = Place {
        base: "/npub1x/y.git",
        rev: "main",
        directory: "docs",
    };

    fn html(text: &str) -> String {
        render(&PLACE, text)
    }

    #[test]
    fn links_lead_to_files_and_pictures_to_raw_ones() {
        let page = html("[a](../src/lib.rs#L3) [b](/x.md) ![c](c.png) [up](../../x) [t](t/)");
        for link in [
            "href=\"/npub1x/y.git/file/main/src/lib.rs#L3\"",
            "href=\"/npub1x/y.git/file/main/x.md\"",
            "src=\"/npub1x/y.git/raw/main/docs/c.png\"",
            "href=\"/npub1x/y.git/tree/main/docs/t\"",
        ] {
            assert!(page.contains(link), "{link}: {page}");
        }
        assert!(!page.contains("../"), "{page}");
    }

    #[test]
    fn pictures_of_other_hosts_become_links() {
        let page = html("![badge](https://ci.example/b.svg) [![in](//x/y)](https://z.example)");
        assert!(page.contains("href=\"https://ci.example/b.svg\"") && page.contains(">badge</a>"));
        assert!(page.contains(">in</a>") && !page.contains("<img"), "{page}");
        let page = html("<img src='https://x.example/a' alt=b> <img src='\\\\x.example/a'>");
        assert!(!page.contains("x.example"), "{page}");
    }

    #[test]
    fn an_alert_is_a_quotation_under_its_title() {
        let page = html("> [!WARNING]\n> Take *care*.\n\n> [!NOTE] Own <title>\n> text");
        let quoted = "<blockquote>\n<p><strong>Warning</strong></p>\n<p>Take <em>care</em>.</p>";
        assert!(page.contains(quoted), "{page}");
        assert!(
            page.contains("<strong>Own &lt;title&gt;</strong>"),
            "{page}"
        );
    }

    #[test]
    fn ids_and_links_to_them_are_the_documents_own() {
        let page = html("# A Title\n\n[there](#a-title) <p id=main>x</p>");
        assert!(page.contains("id=\"doc-a-title\"") && page.contains("href=\"#doc-a-title\""));
        assert!(page.contains("id=\"doc-main\""), "{page}");
    }

    #[test]
    fn nothing_that_acts_is_let_through() {
        let text = "<script>alert(1)</script><a href='javascript:x'>l</a><p onclick=x style='color:red' class=skip>y</p>\
                    <iframe src=x></iframe><form action=x><input name=y><button>z</button></form><svg onload=x></svg>\
                    <style>*{}</style><link rel=stylesheet href=x><meta http-equiv=refresh content=0><base href=//x>\
                    <math><mtext></mtext></math><object data=x></object>\n\n[x](javascript:alert(1)) <x:y z=1>\n";
        let page = html(text);
        for bad in [
            "<script",
            "javascript:",
            "onclick",
            "style",
            "class=",
            "<iframe",
            "<form",
            "<input",
            "<svg",
            "<link",
            "<meta",
            "<base",
            "<math",
            "<object",
            "<button",
        ] {
            assert!(!page.contains(bad), "{bad}: {page}");
        }
    }

    #[test]
    fn code_of_a_known_language_is_coloured() {
        let page = html("```rust\nfn main() { let a = \"<b>\"; }\n```\n\n```nothing\n<b>\n```\n");
        assert!(page.contains("<span class=\"k\">fn</span>"), "{page}");
        assert!(
            page.contains("&lt;b&gt;") && !page.contains("<b>"),
            "{page}"
        );
    }

    #[test]
    fn what_is_wider_than_the_screen_is_moved_by_the_keyboard() {
        let page = html("    code\n\n| a |\n|---|\n| b |\n");
        assert!(page.contains("<pre tabindex=\"0\"><code>"), "{page}");
        assert!(page.contains("<table tabindex=\"0\">"), "{page}");
    }

    #[test]
    fn comments_keep_their_lines_and_have_no_ids() {
        let page = render_note(&PLACE, "# A\nb\nc <p id=x>y</p>\n\n- [x] done");
        assert!(page.contains("b<br>\nc") && !page.contains("id="), "{page}");
        assert!(page.contains("☑ done"), "{page}");
    }

    #[test]
    fn links_are_marked_as_those_of_a_stranger() {
        let page = html("https://x.example and [y](https://y.example)");
        assert_eq!(
            page.matches("rel=\"nofollow ugc noopener noreferrer\"")
                .count(),
            2
        );
    }

    proptest! {
        #[test]
        fn no_text_becomes_something_that_acts(text in "[<>a-z/\"'= \\n#\\[\\]()!`*&;:-]{0,200}") {
            let page = html(&text).to_lowercase();
            for bad in ["<script", "<style", "<iframe", "<svg", "<form", "<object", "<embed", "<link", "<meta", "<base"] {
                prop_assert!(!page.contains(bad), "{}", page);
            }
        }
    }
}
