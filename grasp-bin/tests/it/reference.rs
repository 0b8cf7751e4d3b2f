//! The reference pages below `docs/` are those that the command prints.

use crate::support::grasp;

/// Variable that makes the tests write the pages instead of comparing them.
const REWRITE_VAR: &str = "REWRITE_REFERENCE";

/// Asserts that a page of the documentation is the generated one; names the first line that differs.
fn assert_page(page: &str, generated: &str) {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(page);
    if std::env::var_os(REWRITE_VAR).is_some() {
        std::fs::write(&path, generated).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    if let Some(difference) = difference(&written, generated) {
        panic!("docs/{page}{difference}\nRun this test with {REWRITE_VAR}=1 to write the page.");
    }
}

/// Returns the first line in which a page differs from the generated one.
fn difference(written: &str, generated: &str) -> Option<String> {
    if written == generated {
        return None;
    }
    let (mut lines, mut expected) = (written.lines(), generated.lines());
    for number in 1.. {
        let (found, wanted) = (lines.next(), expected.next());
        if found != wanted || found.is_none() {
            let shown = |line: Option<&str>| match line {
                Some(line) => line.chars().take(200).collect(),
                None => String::from("(the end)"),
            };
            return Some(format!(
                ":{number} is\n  {}\nand should be\n  {}",
                shown(found),
                shown(wanted)
            ));
        }
    }
    None
}

#[test]
fn each_reference_page_is_up_to_date() {
    for (of, page) in [
        ("settings", "reference/configuration.md"),
        ("metrics", "reference/metrics.md"),
        ("commands", "reference/cli.md"),
    ] {
        let printed = grasp(&["reference", "--of", of]);
        assert!(printed.ok, "{printed:?}");
        assert_page(page, &printed.out);
    }
}

#[test]
fn only_the_first_difference_is_reported() {
    assert_eq!(difference("a\nb\n", "a\nb\n"), None);
    let first = difference("a\nb\nc\n", "a\nx\ny\n").unwrap();
    assert_eq!(first, ":2 is\n  b\nand should be\n  x");
    assert!(difference("a\n", "a\nb\n").unwrap().contains("(the end)"));
    assert!(difference("a\n", "a").is_some());
}
