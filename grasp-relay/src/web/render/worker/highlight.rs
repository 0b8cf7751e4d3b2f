//! Colours of source code, as classes that the stylesheet has.

use std::sync::OnceLock;

use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxReference, SyntaxSet};

use super::markdown::escaped;

/// The classes: comment, keyword, string, number, function, type, heading of markup, error.
pub(super) const CLASSES: [&str; 8] = ["c", "k", "s", "n", "f", "t", "m", "e"];

/// Scopes by the words that they begin with, and their class. The first that fits wins.
const SCOPES: [(&str, &str); 19] = [
    ("comment", "c"),
    ("string.regexp", "n"),
    ("string", "s"),
    ("constant.character.escape", "n"),
    ("constant", "n"),
    ("entity.name.function", "f"),
    ("support.function", "f"),
    ("variable.function", "f"),
    ("meta.function-call.identifier", "f"),
    ("entity.name.tag", "k"),
    ("entity.other.attribute-name", "t"),
    ("entity.name.section", "m"),
    ("entity.name", "t"),
    ("support", "t"),
    ("storage.type.string", "k"),
    ("keyword.operator", ""),
    ("keyword", "k"),
    ("storage", "k"),
    ("markup.heading", "m"),
];

/// Lines longer than this are not parsed.
const MAX_LINE: usize = 1_000;

/// Lines up to which a text is parsed.
const MAX_LINES: usize = 5_000;

fn syntaxes() -> &'static SyntaxSet {
    static SYNTAXES: OnceLock<SyntaxSet> = OnceLock::new();
    SYNTAXES.get_or_init(two_face::syntax::extra_newlines)
}

/// Returns the lines of a file with their colours; empty if its language is unknown.
pub(super) fn file(file_name: &str, text: &str) -> String {
    let syntaxes = syntaxes();
    let extension = file_name.rsplit_once('.').map_or("", |(_, end)| end);
    let by_name = syntaxes.find_syntax_by_extension(file_name);
    let syntax = by_name.or_else(|| syntaxes.find_syntax_by_extension(extension));
    let first = text.lines().next().unwrap_or_default();
    let first = first.get(..first.len().min(200)).unwrap_or_default();
    let syntax = syntax.or_else(|| syntaxes.find_syntax_by_first_line(first));
    syntax
        .and_then(|syntax| lines(syntax, text))
        .unwrap_or_default()
}

/// Returns the lines of a block of code in a document; `None` if its language is unknown.
pub(super) fn block(language: &str, text: &str) -> Option<String> {
    if language.is_empty() {
        return None;
    }
    lines(syntaxes().find_syntax_by_token(language)?, text)
}

/// Colours a text line by line: no element goes on into the next line. `None` if it is too large.
fn lines(syntax: &SyntaxReference, text: &str) -> Option<String> {
    if text.lines().count() > MAX_LINES {
        return None;
    }
    let syntaxes = syntaxes();
    let mut state = ParseState::new(syntax);
    let mut scopes = ScopeStack::new();
    let mut html = String::with_capacity(text.len() * 2);
    for line in text.split_inclusive('\n') {
        if line.len() > MAX_LINE {
            html.push_str(&escaped(line));
            continue;
        }
        let changes = state.parse_line(line, syntaxes).ok()?;
        let mut start = 0;
        for (at, change) in changes {
            push(&mut html, &scopes, line.get(start..at).unwrap_or_default());
            start = at.max(start);
            scopes.apply(&change).ok()?;
        }
        push(&mut html, &scopes, line.get(start..).unwrap_or_default());
    }
    Some(html)
}

fn push(html: &mut String, scopes: &ScopeStack, text: &str) {
    let (text, end) = match text.strip_suffix('\n') {
        Some(text) => (text, "\n"),
        None => (text, ""),
    };
    let class = if text.trim().is_empty() {
        ""
    } else {
        class(scopes)
    };
    if class.is_empty() {
        html.push_str(&escaped(text));
    } else {
        html.push_str(&format!("<span class=\"{class}\">{}</span>", escaped(text)));
    }
    html.push_str(end);
}

/// Returns the scopes of [`SCOPES`] as the parser has them, which compares them without their names.
fn classes() -> &'static [(Scope, &'static str)] {
    static PARSED: OnceLock<Vec<(Scope, &'static str)>> = OnceLock::new();
    PARSED.get_or_init(|| {
        let parse = |(start, class)| Some((Scope::new(start).ok()?, class));
        SCOPES.into_iter().filter_map(parse).collect()
    })
}

/// Returns the class of the innermost scope that has one.
fn class(scopes: &ScopeStack) -> &'static str {
    for scope in scopes.as_slice().iter().rev() {
        for (start, class) in classes() {
            if start.is_prefix_of(*scope) {
                return class;
            }
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the text that a browser shows.
    fn text_of(html: &str) -> String {
        let mut text = String::new();
        let mut rest = html;
        while let Some((before, after)) = rest.split_once('<') {
            text.push_str(before);
            rest = after.split_once('>').map_or("", |(_, rest)| rest);
        }
        text.push_str(rest);
        let text = text.replace("&lt;", "<").replace("&gt;", ">");
        text.replace("&quot;", "\"").replace("&amp;", "&")
    }

    #[test]
    fn code_is_coloured_by_the_name_of_its_file() {
        let code = "// why\nfn main() {\n    let x = \"a <b> & 1\";\n}\n";
        let html = file("main.rs", code);
        assert!(html.contains("<span class=\"k\">fn</span>") && html.contains("class=\"c\""));
        assert_eq!(text_of(&html), code);
        assert!(file("Makefile", "all:\n\techo\n").contains("<span"));
        assert!(file("x", "#!/bin/sh\nif true; then :; fi\n").contains("<span"));
        assert!(file("Cargo.toml", "[a]\nb = 1\n").contains("<span"));
        assert_eq!(file("x.unknown", "text"), "");
    }

    #[test]
    fn an_element_ends_with_its_line() {
        let html = file("a.rs", "/* a\nb\nc */\nlet s = \"x\ny\";\n");
        for line in html.lines() {
            assert_eq!(
                line.matches("<span").count(),
                line.matches("</span>").count(),
                "{line}"
            );
        }
    }

    #[test]
    fn long_lines_and_long_files_are_not_parsed() {
        let line = "x".repeat(MAX_LINE + 1);
        assert_eq!(file("a.rs", &line), line);
        assert_eq!(file("a.rs", &"\n".repeat(MAX_LINES + 1)), "");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn colours_change_no_character(code in "[a-z<>&\"'{}()/* \\n#:;=0-9é-]{0,300}", at in 0..5_usize) {
            let names = ["a.rs", "a.html", "a.js", "a.md", "a.py"];
            prop_assert_eq!(text_of(&file(names[at], &code)), code);
        }
    }
}
