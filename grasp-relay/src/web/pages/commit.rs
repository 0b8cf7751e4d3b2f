//! A commit: its message, and what it changed.

use axum::http::StatusCode;
use grasp_core::Oid;
use grasp_purgatory::git::ObjectKind;
use maud::{Markup, html};

use super::revision::Revision;
use super::{Context, EncodedPage, Page, PageError, Tab, Work, changes, content};
use crate::web::encoded::EncodedBody;
use crate::web::{date, diff, shown};

/// The largest commit that is shown, without its content, in bytes.
const MAX_COMMIT: u64 = 256 * 1024;

/// The largest patch, in bytes.
const MAX_PATCH: usize = 1024 * 1024;

/// A commit as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Commit {
    pub(super) parents: Vec<Oid>,
    pub(super) author: Signature,
    pub(super) committer: Signature,
    pub(super) message: String,
}

/// A person and a time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Signature {
    pub(super) name: String,
    /// In Unix seconds.
    pub(super) date: u64,
}

impl Signature {
    /// Parses `Name <address> 1700000000 +0100`. The address is not shown.
    fn parse(text: &str) -> Self {
        let (name, rest) = text.split_once('<').unwrap_or((text, ""));
        let date = rest.rsplit_once('>').map_or("", |(_, date)| date);
        let date = date.split_ascii_whitespace().next().unwrap_or_default();
        Self {
            name: name.trim().to_owned(),
            date: date.parse().unwrap_or(0),
        }
    }
}

impl Commit {
    /// Parses the content of a commit.
    pub(super) fn parse(content: &[u8]) -> Self {
        let text = String::from_utf8_lossy(content);
        let (head, message) = text.split_once("\n\n").unwrap_or((&text, ""));
        let mut commit = Self {
            message: message.to_owned(),
            ..Self::default()
        };
        for line in head.lines() {
            match line.split_once(' ') {
                Some(("parent", id)) => commit.parents.extend(id.parse::<Oid>().ok()),
                Some(("author", author)) => commit.author = Signature::parse(author),
                Some(("committer", committer)) => commit.committer = Signature::parse(committer),
                _ => {}
            }
        }
        commit
    }

    /// Returns the first line of the message.
    pub(super) fn subject(&self) -> &str {
        let line = self.message.trim_start().lines().next();
        line.filter(|line| !line.is_empty())
            .unwrap_or("(no subject)")
    }
}

/// Reads a commit.
pub(super) async fn read(
    context: &Context<'_>,
    work: &Work,
    oid: Oid,
) -> Result<Commit, PageError> {
    let request = context.request;
    let mut reader = request.repos.read_objects(&request.repo, work).await?;
    let read = reader.content(&oid.to_string(), MAX_COMMIT).await?;
    reader.finish().await?;
    let read = read.filter(|(object, _)| object.kind == ObjectKind::Commit);
    let (_, content) = read.ok_or(PageError::NotFound)?;
    Ok(Commit::parse(&content))
}

pub(super) async fn make(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
) -> Result<Page, PageError> {
    let oid = revision.commit;
    let commit = read(context, work, oid).await?;
    let diff = changes::diff(context, work, commit.parents.first().copied(), oid).await?;
    let base = context.base();
    let subject = shown(commit.subject());
    let shown_diff = diff.clone();
    let files = format!("{base}/file/{oid}");
    let changes = work
        .run(move || diff::markup(&shown_diff, "f", Some(&files)))
        .await?;
    let content = html! {
        h1 { bdi { (subject) } }
        (content::proposed(revision))
        (about(&base, &commit, oid))
        h2 { "Changes" @if commit.parents.len() > 1 { " compared with the first parent" } }
        (diff::summary(&diff, "f"))
        (changes)
        @if diff.is_cut {
            p { "There is more; clone the repository to see the rest:" }
            pre { "git clone " (context.service().repo_url(&context.request.address, context.site.secure)) }
        }
    };
    Ok(context.page(&subject, Tab::Log, content).without_index())
}

fn about(base: &str, commit: &Commit, oid: Oid) -> Markup {
    let Commit {
        author, committer, ..
    } = commit;
    let message = shown(commit.message.trim());
    let body = message.split_once('\n').map_or("", |(_, body)| body.trim());
    html! {
        @if !body.is_empty() { pre class="message" dir="auto" { (body) } }
        div class="box" {
            p {
                bdi { (shown(&author.name)) } " wrote it on " (date(author.date))
                @if committer.name != author.name { "; " bdi { (shown(&committer.name)) } " committed it on " (date(committer.date)) }
            }
            p {
                "Commit " code { (oid) } " · "
                a href=(format!("{base}/tree/{oid}")) rel="nofollow" { "files" } " · "
                a href=(format!("{base}/commit/{oid}.patch")) rel="nofollow" { "patch" }
            }
            @if !commit.parents.is_empty() {
                p {
                    (if commit.parents.len() == 1 { "Parent" } else { "Parents" })
                    @for parent in &commit.parents {
                        " " a href=(format!("{base}/commit/{parent}")) rel="nofollow" { code { (format!("{parent:.10}")) } }
                    }
                }
            }
        }
    }
}

/// Returns a commit as a patch that `git am` takes.
pub(super) async fn patch(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
) -> Result<EncodedPage, PageError> {
    let request = context.request;
    let oid = revision.commit.to_string();
    let arguments = [
        "-1",
        "--stdout",
        "--no-ext-diff",
        "--no-textconv",
        "-M",
        "-l200",
        &oid,
    ];
    let (repos, repo) = (&request.repos, &request.repo);
    let made = repos.run_for_page(repo, work, "format-patch", &arguments, MAX_PATCH);
    let (patch, is_cut) = made.await?;
    if is_cut {
        let content = html! {
            h1 { "This patch is too large" }
            p { "Clone the repository to get it:" }
            pre { "git clone " (context.service().repo_url(&request.address, context.site.secure)) }
        };
        let page = context.page("This patch is too large", Tab::Log, content);
        return Ok(page.with_status(StatusCode::PAYLOAD_TOO_LARGE).encode(None));
    }
    let body = work.run(move || EncodedBody::new(patch)).await?;
    Ok(EncodedPage::file("text/plain; charset=utf-8", false, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_is_parsed_without_addresses() {
        let id = "a".repeat(40);
        let text = format!(
            "tree {id}\nparent {id}\nauthor A <B> <a@example.com> 1700000000 +0100\ncommitter C <c@x> 1 +0000\n\
             gpgsig -----BEGIN\n parent x\n\nsubject\n\nbody\n"
        );
        let commit = Commit::parse(text.as_bytes());
        assert_eq!(commit.parents, [id.parse().unwrap()]);
        assert_eq!(
            (commit.author.name.as_str(), commit.author.date),
            ("A", 1_700_000_000)
        );
        assert_eq!(commit.subject(), "subject");
        for garbage in ["", "\n\n", "author", "author <\n\n", "author x> 1\n\n\n"] {
            assert_eq!(Commit::parse(garbage.as_bytes()).subject(), "(no subject)");
        }
    }
}
