//! Events and keys that a text names (NIP-21, NIP-27): they lead to their page here, or to a web client.

use comrak::Arena;
use comrak::nodes::{AstNode, NodeLink, NodeValue};

const SCHEME: &str = "nostr:";

/// What names begin with that lead somewhere. Others, such as those of secret keys, stay text.
const NAMES: [&str; 5] = ["npub1", "nprofile1", "note1", "nevent1", "naddr1"];

/// Characters of a name.
const MAX_NAME: usize = 1_000;

/// Characters of a name that are shown.
const SHOWN: usize = 14;

/// Makes links of the names in a text.
pub(super) fn link<'a>(node: &'a AstNode<'a>, arena: &'a Arena<'a>) {
    let text = match &node.data.borrow().value {
        NodeValue::Text(text) if text.contains(SCHEME) => text.to_string(),
        _ => return,
    };
    let mut ancestors = node.ancestors().skip(1);
    if ancestors.any(|it| matches!(it.data.borrow().value, NodeValue::Link(_))) {
        return;
    }
    let mut rest = text.as_str();
    while let Some((before, name, after)) = next(rest) {
        let url = format!("{SCHEME}{name}");
        let shown: String = url.chars().take(SCHEME.len() + SHOWN).collect();
        let link = NodeLink {
            url,
            title: String::new(),
        };
        let link: &AstNode<'_> = arena.alloc(NodeValue::Link(Box::new(link)).into());
        link.append(arena.alloc(NodeValue::Text(format!("{shown}…").into()).into()));
        let before = NodeValue::Text(before.to_owned().into());
        node.insert_before(arena.alloc(before.into()));
        node.insert_before(link);
        rest = after;
    }
    let rest = NodeValue::Text(rest.to_owned().into());
    node.data.borrow_mut().value = rest;
}

/// Returns the text before the first name, the name, and the text after it.
fn next(text: &str) -> Option<(&str, &str, &str)> {
    let mut from = 0;
    loop {
        let at = from + text.get(from..)?.find(SCHEME)?;
        let start = at + SCHEME.len();
        let rest = text.get(start..)?;
        let length = rest.bytes().take_while(u8::is_ascii_alphanumeric).count();
        let (name, after) = rest.split_at(length);
        if is_name(name) {
            return Some((text.get(..at)?, name, after));
        }
        from = start;
    }
}

fn is_name(name: &str) -> bool {
    let is_plain = name
        .bytes()
        .all(|it| it.is_ascii_lowercase() || it.is_ascii_digit());
    is_plain && name.len() <= MAX_NAME && NAMES.iter().any(|start| name.starts_with(start))
}

/// Returns the address that leads to a name, from the path of any repository of the server.
pub(super) fn address(base: &str, link: &str) -> Option<String> {
    let name = link.strip_prefix(SCHEME).filter(|name| is_name(name))?;
    let mount = base.rsplitn(3, '/').nth(2)?;
    Some(format!("{mount}/e/{name}"))
}

#[cfg(test)]
mod tests {
    use super::super::markdown::render_note;
    use super::*;
    use crate::web::render::Place;

    fn html(text: &str) -> String {
        let place = Place {
            base: "/git/npub1x/y.git",
            rev: "main",
            directory: "",
        };
        render_note(&place, text)
    }

    #[test]
    fn names_in_a_text_are_links() {
        let page = html("see nostr:nevent1qqqq, and [this](nostr:naddr1xyz) by nostr:npub1abc.");
        for link in ["nevent1qqqq", "naddr1xyz", "npub1abc"] {
            assert!(
                page.contains(&format!("href=\"/git/e/{link}\"")),
                "{link}: {page}"
            );
        }
        assert!(
            page.contains("see <a") && page.contains("</a>, and") && page.contains("</a>."),
            "{page}"
        );
    }

    #[test]
    fn other_names_and_code_stay_text() {
        for text in [
            "nostr:nsec1abc",
            "nostr:",
            "`nostr:npub1abc`",
            "nostr:../x",
            "[x](nostr:nsec1abc)",
        ] {
            assert!(!html(text).contains("href"), "{text}: {}", html(text));
        }
        assert_eq!(
            address("/npub1x/y.git", "nostr:note1a").as_deref(),
            Some("/e/note1a")
        );
    }
}
