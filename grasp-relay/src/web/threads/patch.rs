//! Patches: mails as `git format-patch` writes them.

use maud::{Markup, html};

use crate::web::diff::{self, Diff};
use crate::web::shown;

/// Bytes of a patch that are shown.
const MAX_BYTES: usize = 1024 * 1024;

/// A patch: why, and what it changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MailPatch {
    /// The subject in one line, with what is in brackets before it.
    pub(crate) subject: String,
    /// The message below the subject.
    pub(crate) message: String,
    pub(crate) diff: Diff,
}

impl MailPatch {
    /// Parses a patch; `None` if the text is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let start = match text.starts_with("diff --git ") {
            true => 0,
            false => text.find("\ndiff --git ")? + 1,
        };
        let (before, changes) = text.split_at(start);
        let mut end = changes.len().min(MAX_BYTES);
        while !changes.is_char_boundary(end) {
            end -= 1;
        }
        let is_cut = end < changes.len();
        let diff = Diff::parse(changes.get(..end).unwrap_or_default(), is_cut);
        let (head, body) = before.split_once("\n\n").unwrap_or((before, ""));
        // The list of changed files follows a line with three dashes.
        let message = match body.split_once("\n---\n") {
            Some((message, _)) => message,
            None => body.strip_prefix("---\n").map_or(body, |_| ""),
        };
        Some(Self {
            subject: subject(head),
            message: message.trim().to_owned(),
            diff,
        })
    }

    /// Returns the patch. `name` is that of the place of its changes within the page.
    pub(crate) fn markup(&self, name: &str) -> Markup {
        html! {
            @if !self.subject.is_empty() { p class="subject" { bdi { (shown(&self.subject)) } } }
            @if !self.message.is_empty() { div class="plain" dir="auto" { (shown(&self.message)) } }
            div {
                (diff::summary(&self.diff, name))
                (diff::markup(&self.diff, name, None))
            }
        }
    }
}

/// Returns the subject in the head of a mail, which may be folded.
fn subject(head: &str) -> String {
    let mut subject: Option<String> = None;
    for line in head.lines() {
        match &mut subject {
            Some(subject) if line.starts_with([' ', '\t']) => {
                subject.push(' ');
                subject.push_str(line.trim());
            }
            Some(_) => break,
            None => subject = line.strip_prefix("Subject: ").map(str::to_owned),
        }
    }
    subject.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAIL: &str = "From abc Mon Sep 17 00:00:00 2001\nFrom: A <a@example.com>\nDate: now\n\
                        Subject: [PATCH 2/3] add <b>\n a long line\n\nWhy it is.\n---\n x | 1 +\n 1 file changed\n\n\
                        diff --git a/x b/x\nindex 1..2 100644\n--- a/x\n+++ b/x\n@@ -0,0 +1 @@\n+<i>\n-- \n2.47.3\n\n";

    #[test]
    fn patch_has_subject_message_and_changes() {
        let patch = MailPatch::parse(MAIL).unwrap();
        assert_eq!(patch.subject, "[PATCH 2/3] add <b> a long line");
        assert_eq!(patch.message, "Why it is.");
        assert_eq!((patch.diff.files.len(), patch.diff.added()), (1, 1));
        let html = patch.markup("p").into_string();
        assert!(
            html.contains("+&lt;i&gt;") && html.contains("href=\"#p1\""),
            "{html}"
        );
        assert!(
            !html.contains("<i>") && !html.contains("a@example.com"),
            "{html}"
        );
    }

    #[test]
    fn anything_is_a_patch_or_none() {
        assert_eq!(MailPatch::parse("a text that names diff --git"), None);
        assert_eq!(MailPatch::parse(""), None);
        let bare = MailPatch::parse("diff --git a/é b/é\nnew file mode 100644\n").unwrap();
        assert_eq!((bare.subject.as_str(), bare.diff.files.len()), ("", 1));
        let without_message = MAIL.replace("Why it is.\n", "");
        assert_eq!(MailPatch::parse(&without_message).unwrap().message, "");
        let long = format!("x\ndiff --git a/x b/x\n{}", "é".repeat(MAX_BYTES));
        assert!(MailPatch::parse(&long).unwrap().diff.is_cut);
    }
}
