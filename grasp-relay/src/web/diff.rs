//! The difference between two commits, as git prints it.

use maud::{Markup, html};

use super::pages::encode;
use super::{format_count, shown};

/// Files of a difference that are shown.
const MAX_FILES: usize = 300;

/// Lines of all files that are shown.
const MAX_LINES: usize = 20_000;

/// Files up to which the list of changed files is open.
const MAX_LISTED_OPEN: usize = 20;

/// Characters of a line that are shown.
const MAX_LINE: usize = 1_000;

/// A difference, perhaps cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Diff {
    pub(crate) files: Vec<FileDiff>,
    /// There is more than is shown.
    pub(crate) is_cut: bool,
}

/// The change of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileDiff {
    /// The name after the change; before it if the file was deleted.
    pub(crate) name: String,
    /// What happened to the file as a whole, such as `deleted` or `renamed from …`.
    pub(crate) notes: Vec<String>,
    pub(crate) is_deleted: bool,
    /// Lines of the hunks, with their first character.
    pub(crate) lines: Vec<String>,
}

impl Diff {
    /// Returns the number of lines that were added, of those that are shown.
    pub(crate) fn added(&self) -> usize {
        self.count('+')
    }

    /// Returns the number of lines that were removed, of those that are shown.
    pub(crate) fn removed(&self) -> usize {
        self.count('-')
    }

    fn count(&self, first: char) -> usize {
        self.files.iter().map(|file| file.count(first)).sum()
    }

    /// Parses the output of `git diff-tree -p`.
    pub(crate) fn parse(text: &str, is_cut: bool) -> Self {
        let mut diff = Self {
            is_cut,
            ..Self::default()
        };
        let mut lines_left = MAX_LINES;
        let mut hunk = Hunk::default();
        for line in text.split('\n') {
            if let Some(header) = line.strip_prefix("diff --git ").filter(|_| hunk.is_over()) {
                if diff.files.len() == MAX_FILES {
                    diff.is_cut = true;
                    break;
                }
                diff.files.push(FileDiff::new(header));
                hunk = Hunk::default();
                continue;
            }
            let Some(file) = diff.files.last_mut() else {
                continue;
            };
            if lines_left == 0 {
                diff.is_cut = true;
                break;
            }
            if file.push(line, &mut hunk) {
                lines_left -= 1;
            }
        }
        diff
    }
}

/// The lines that a hunk still has, by its head: so no content is taken for a head.
#[derive(Clone, Copy, Debug, Default)]
struct Hunk {
    old: usize,
    new: usize,
}

impl Hunk {
    /// Parses the head of a hunk: `@@ -1,2 +3 @@`.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("@@ ")?.split(' ');
        let count = |word: Option<&str>, sign| -> Option<usize> {
            let range = word?.strip_prefix(sign)?;
            range
                .split_once(',')
                .map_or(Some(1), |(_, n)| n.parse().ok())
        };
        Some(Self {
            old: count(words.next(), '-')?,
            new: count(words.next(), '+')?,
        })
    }

    fn is_over(&self) -> bool {
        self.old == 0 && self.new == 0
    }

    fn count(&mut self, line: &str) {
        match line.as_bytes().first() {
            Some(b'-') => self.old = self.old.saturating_sub(1),
            Some(b'+') => self.new = self.new.saturating_sub(1),
            Some(b'\\') => {}
            _ => {
                self.old = self.old.saturating_sub(1);
                self.new = self.new.saturating_sub(1);
            }
        }
    }
}

impl FileDiff {
    /// Creates the change of a file from the head `a/name b/name`. Later lines give the name exactly.
    fn new(header: &str) -> Self {
        let name = header.rsplit_once(" b/").map_or(header, |(_, name)| name);
        Self {
            name: name.to_owned(),
            ..Self::default()
        }
    }

    /// Counts the lines with this first character.
    fn count(&self, first: char) -> usize {
        let lines = self.lines.iter();
        lines.filter(|line| line.starts_with(first)).count()
    }

    /// Takes a line. Returns whether it is one of a hunk.
    fn push(&mut self, line: &str, hunk: &mut Hunk) -> bool {
        if hunk.is_over() && !line.starts_with('\\') {
            if let Some(next) = Hunk::parse(line) {
                *hunk = next;
                self.lines.push(line.to_owned());
                return true;
            }
            self.push_head(line);
            return false;
        }
        hunk.count(line);
        self.lines.push(line.to_owned());
        true
    }

    fn push_head(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("+++ b/") {
            self.name = name.trim_end_matches('\t').to_owned();
        } else if line.starts_with("deleted file") {
            self.is_deleted = true;
            self.notes.push("deleted".into());
        } else if line.starts_with("new file") {
            self.notes.push("new".into());
        } else if let Some(from) = line.strip_prefix("rename from ") {
            self.notes.push(format!("renamed from {from}"));
        } else if line.starts_with("Binary files ") {
            self.notes.push("not text".into());
        } else if let Some(mode) = line.strip_prefix("new mode ") {
            self.notes.push(format!("mode {mode}"));
        }
    }
}

/// Returns the number of changed files and lines, and a list of the files that leads to their changes. `name` is that of the
/// place of the changes within the page.
pub(crate) fn summary(diff: &Diff, name: &str) -> Markup {
    let is_open = diff.files.len() <= MAX_LISTED_OPEN;
    html! {
        details class="files" open[is_open] {
            summary {
                (format_count(diff.files.len() as u64, "changed file", "changed files")) ": "
                span class="good" { (diff.added()) " lines added" } ", "
                span class="bad" { (diff.removed()) " removed" }
                @if diff.is_cut { ", and more that is not shown" }
            }
            ul {
                @for (number, file) in (1..).zip(&diff.files) {
                    li {
                        a href={ "#" (name) (number) } { bdi { (shown(&file.name)) } } " "
                        span class="good" { "+" (file.count('+')) } " " span class="bad" { "−" (file.count('-')) }
                    }
                }
            }
        }
    }
}

/// Returns the changes of all files. `name` is that of the place of the changes within the page; `files` is the path that
/// the files after the change are below, if they are shown.
pub(crate) fn markup(diff: &Diff, name: &str, files: Option<&str>) -> Markup {
    html! {
        @for (number, file) in (1..).zip(&diff.files) {
            h3 class="file" id={ (name) (number) } {
                @match files.filter(|_| !file.is_deleted && !file.name.starts_with('"')) {
                    Some(files) => a href={ (files) "/" (encode(&file.name)) } rel="nofollow" { bdi { (shown(&file.name)) } },
                    None => bdi { (shown(&file.name)) },
                }
                @for note in &file.notes { " " span class="small" { (shown(note)) } }
            }
            @if !file.lines.is_empty() {
                div class="scroll" tabindex="0" role="region" aria-label={ "Changes of " (shown(&file.name)) } {
                    pre class="diff" { code { @for line in &file.lines { (diff_line(line)) } } }
                }
            }
        }
    }
}

fn diff_line(line: &str) -> Markup {
    let class = match line.as_bytes().first() {
        Some(b'+') => "l a",
        Some(b'-') => "l d",
        Some(b'@') => "l h",
        _ => "l",
    };
    let text = shown(line.trim_end_matches('\r'));
    let end = text
        .char_indices()
        .nth(MAX_LINE)
        .map_or(text.len(), |(at, _)| at);
    html! { span class=(class) { (text.get(..end).unwrap_or_default()) @if end < text.len() { "…" } "\n" } }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "diff --git a/x.rs b/y.rs\nsimilarity index 90%\nrename from x.rs\nrename to y.rs\n\
                        --- a/x.rs\n+++ b/y.rs\n@@ -1,2 +1,2 @@ fn f\n-diff --git a/q b/q\n+<b>\n same\n\
                        diff --git a/z b/z\ndeleted file mode 100644\n--- a/z\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n\
                        \\ No newline at end of file\n";

    #[test]
    fn files_and_hunks_are_found_and_content_is_not_taken_for_a_head() {
        let diff = Diff::parse(TEXT, false);
        assert_eq!(diff.files.len(), 2);
        assert_eq!(diff.files[0].name, "y.rs");
        assert_eq!(diff.files[0].notes, ["renamed from x.rs"]);
        assert_eq!(diff.files[0].lines.len(), 4);
        assert!(diff.files[1].is_deleted && diff.files[1].name == "z");
        assert_eq!((diff.added(), diff.removed()), (1, 2));
    }

    #[test]
    fn lines_are_escaped() {
        let html = markup(&Diff::parse(TEXT, false), "f", Some("/x.git/file/abc")).0;
        assert!(
            html.contains("<span class=\"l a\">+&lt;b&gt;\n</span>"),
            "{html}"
        );
        assert!(
            html.contains("/x.git/file/abc/y.rs") && !html.contains("<b>"),
            "{html}"
        );
    }

    #[test]
    fn a_difference_is_cut_at_many_files_and_many_lines() {
        let files: String = (0..MAX_FILES + 1)
            .map(|n| format!("diff --git a/{n} b/{n}\nnew file mode 100644\n"))
            .collect();
        let diff = Diff::parse(&files, false);
        assert!(diff.is_cut && diff.files.len() == MAX_FILES);
        let count = MAX_LINES + 5;
        let text = format!(
            "diff --git a/x b/x\n@@ -0,0 +1,{count} @@\n{}",
            "+a\n".repeat(count)
        );
        let diff = Diff::parse(&text, false);
        assert!(diff.is_cut && diff.files[0].lines.len() == MAX_LINES);
    }

    #[test]
    fn anything_is_parsed() {
        for text in [
            "",
            "\n",
            "@@",
            "diff --git",
            "diff --git \n@@ -9,9999999999999999999999 +1 @@\n",
            "\\",
        ] {
            let _ = Diff::parse(text, true);
        }
    }
}
