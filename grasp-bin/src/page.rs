//! References that are written by the program itself: each is compared with its page.

/// Set to write the pages anew instead of comparing with them.
const REWRITE: &str = "REWRITE_REFERENCE";

/// Holds a page of the documentation to what the program says; tells where they first differ.
pub(crate) fn hold_to(page: &str, said: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    if std::env::var_os(REWRITE).is_some() {
        std::fs::write(&path, said).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    if let Some(difference) = difference(&written, said) {
        panic!("docs/{page}{difference}\nRun this test with {REWRITE}=1 to write the page anew.");
    }
}

/// The first line in which a page and what it should say differ.
fn difference(written: &str, said: &str) -> Option<String> {
    if written == said {
        return None;
    }
    let (mut lines, mut right) = (written.lines(), said.lines());
    for number in 1.. {
        let (is, should) = (lines.next(), right.next());
        if is != should || is.is_none() {
            let shown = |line: Option<&str>| match line {
                Some(line) => line.chars().take(200).collect(),
                None => String::from("(the end)"),
            };
            return Some(format!(
                ":{number} is\n  {}\nand should be\n  {}",
                shown(is),
                shown(should)
            ));
        }
    }
    None
}

#[test]
fn only_the_first_differing_line_is_told() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    let told = difference("a\nb\nc\n", "a\nx\ny\n").unwrap();
    assert_eq!(told, ":2 is\n  b\nand should be\n  x");
    assert!(difference("a\n", "a\nb\n").unwrap().contains("(the end)"));
    assert!(difference("a\n", "a").is_some());
}
