//! Directories.

use grasp_core::Oid;
use grasp_purgatory::git::{ObjectKind, ObjectReader};
use maud::{Markup, html};

use super::revision::{Revision, encode};
use super::{Context, Page, PageError, Tab, Work, content};
use crate::web::shown;

/// Entries of a directory that are shown.
const MAX_ENTRIES: usize = 5_000;

/// The largest directory that is read, in bytes.
const MAX_BYTES: u64 = 4 * 1024 * 1024;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) name: Vec<u8>,
    pub(super) kind: EntryKind,
}

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum EntryKind {
    Directory,
    Submodule,
    Link,
    File,
}

impl Entry {
    /// Returns the name as text, if it is one.
    pub(super) fn name(&self) -> Option<&str> {
        std::str::from_utf8(&self.name).ok()
    }
}

/// Parses the content of a tree; ends at the first entry that is none.
pub(super) fn parse(tree: &[u8], of: &Oid) -> Vec<Entry> {
    let id_length = of.as_bytes().len();
    let mut entries = Vec::new();
    let mut rest = tree;
    while let Some(entry) = parse_entry(&mut rest, id_length) {
        entries.push(entry);
    }
    entries.sort_by(|a, b| {
        let is_file = |entry: &Entry| entry.kind > EntryKind::Submodule;
        (is_file(a), &a.name).cmp(&(is_file(b), &b.name))
    });
    entries
}

fn parse_entry(rest: &mut &[u8], id_length: usize) -> Option<Entry> {
    let end = rest.iter().position(|byte| *byte == 0)?;
    let (head, tail) = rest.split_at_checked(end)?;
    let space = head.iter().position(|byte| *byte == b' ')?;
    let (mode, name) = head.split_at_checked(space)?;
    let kind = match mode {
        b"40000" => EntryKind::Directory,
        b"160000" => EntryKind::Submodule,
        b"120000" => EntryKind::Link,
        _ => EntryKind::File,
    };
    *rest = tail.get(1 + id_length..)?;
    Some(Entry {
        name: name.get(1..)?.to_vec(),
        kind,
    })
}

/// Returns the name of an object in a commit, as git takes it.
pub(super) fn object_name(revision: &Revision, path: &[String]) -> String {
    format!("{}:{}", revision.commit, path.join("/"))
}

/// Reads a directory; `None` if it is too large to be shown.
pub(super) async fn read(
    reader: &mut ObjectReader,
    name: &str,
    of: &Oid,
) -> Result<Option<Vec<Entry>>, PageError> {
    let Some(object) = reader.info(name).await? else {
        return Err(PageError::NotFound);
    };
    if object.kind != ObjectKind::Tree {
        return Err(PageError::NotFound);
    }
    let read = reader.content(&object.oid.to_string(), MAX_BYTES).await?;
    Ok(read.map(|(_, content)| parse(&content, of)))
}

/// Returns the file that introduces a directory.
pub(super) fn readme(entries: &[Entry]) -> Option<&str> {
    const NAMES: [&str; 5] = [
        "readme.md",
        "readme.markdown",
        "readme",
        "readme.txt",
        "readme.rst",
    ];
    let files: Vec<&str> = entries
        .iter()
        .filter(|entry| entry.kind == EntryKind::File)
        .filter_map(Entry::name)
        .collect();
    NAMES.iter().find_map(|wanted| {
        let mut found = files
            .iter()
            .filter(|name| name.eq_ignore_ascii_case(wanted));
        found.next().copied()
    })
}

/// Makes the page of a directory.
pub(super) async fn make(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
    path: &[String],
) -> Result<Page, PageError> {
    let request = context.request;
    let mut reader = request.repos.read_objects(&request.repo, work).await?;
    let name = object_name(revision, path);
    let object = reader.info(&name).await?.ok_or(PageError::NotFound)?;
    if object.kind == ObjectKind::Blob {
        reader.finish().await?;
        return super::file::make(context, work, revision, path, false).await;
    }
    let entries = read(&mut reader, &name, &revision.commit).await?;
    let readme = match entries.as_deref().and_then(readme) {
        Some(readme) => {
            let path: Vec<String> = path.iter().cloned().chain([readme.to_owned()]).collect();
            let name = object_name(revision, &path);
            let read = reader.content(&name, content::MAX_DOCUMENT).await?;
            read.map(|(_, text)| (path, text))
        }
        None => None,
    };
    reader.finish().await?;
    let document = match readme {
        Some((path, text)) => {
            let document = document(context, work, revision, &path, &text).await;
            Some((path, document))
        }
        None => None,
    };
    let content = html! {
        (content::crumbs(context, revision, path))
        (content::proposed(revision))
        @match &entries {
            Some(entries) => { (table(&context.base(), revision, path, entries)) }
            None => { p { "This directory is too large to be shown. Clone the repository to see it." } }
        }
        @if let Some((path, document)) = document {
            h2 { (path.last().map(String::as_str).unwrap_or_default()) }
            (document)
        }
    };
    let title = match path.last() {
        Some(name) => shown(name),
        None => format!("Files at {}", shown(&revision.name)),
    };
    Ok(content::page(
        context,
        revision,
        &title,
        Tab::Files,
        content,
    ))
}

/// Returns a document of a directory as HTML.
pub(super) async fn document(
    context: &Context<'_>,
    work: &Work,
    revision: &Revision,
    path: &[String],
    text: &[u8],
) -> Markup {
    let text = String::from_utf8_lossy(text);
    content::document(context, work, revision, path, &text).await
}

/// Returns the table of a directory.
pub(super) fn table(base: &str, revision: &Revision, path: &[String], entries: &[Entry]) -> Markup {
    let rev = encode(&revision.name);
    let directory: String = path
        .iter()
        .map(|part| format!("{}/", encode(part)))
        .collect();
    html! {
        @if entries.is_empty() { p { "This directory is empty." } }
        @else {
            table class="tree" {
                caption { (crate::web::format_count(entries.len() as u64, "entry", "entries")) }
                thead { tr { th scope="col" { "name" } th scope="col" { "kind" } } }
                tbody {
                    @for entry in entries.iter().take(MAX_ENTRIES) { (row(base, &rev, &directory, entry)) }
                }
            }
            @if entries.len() > MAX_ENTRIES { p { "The first " (MAX_ENTRIES) " are shown." } }
        }
    }
}

fn row(base: &str, rev: &str, directory: &str, entry: &Entry) -> Markup {
    let (kind, page) = match entry.kind {
        // The slash behind its name says so.
        EntryKind::Directory => ("", Some("tree")),
        EntryKind::Submodule => ("other repository", None),
        EntryKind::Link => ("link", Some("file")),
        EntryKind::File => ("", Some("file")),
    };
    let mark = if entry.kind == EntryKind::Directory {
        "/"
    } else {
        ""
    };
    html! {
        tr {
            td data-label="name" {
                @match (entry.name(), page) {
                    (Some(name), Some(page)) => {
                        a href=(format!("{base}/{page}/{rev}/{directory}{}", encode(name))) { bdi { (shown(name)) } (mark) }
                    }
                    _ => { bdi { (shown(&String::from_utf8_lossy(&entry.name))) } }
                }
            }
            td data-label="kind" class="time small" { (kind) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut tree = Vec::new();
        for (mode, name) in entries {
            tree.extend_from_slice(format!("{mode} {name}\0").as_bytes());
            tree.extend_from_slice(&[7; 20]);
        }
        tree
    }

    #[test]
    fn directories_come_first() {
        let bytes = tree(&[
            ("100644", "b"),
            ("40000", "z"),
            ("120000", "a"),
            ("160000", "y"),
        ]);
        let names: Vec<_> = parse(&bytes, &Oid::ZERO)
            .into_iter()
            .map(|entry| (String::from_utf8(entry.name).unwrap(), entry.kind))
            .collect();
        let expected = [
            ("y".to_owned(), EntryKind::Submodule),
            ("z".to_owned(), EntryKind::Directory),
            ("a".to_owned(), EntryKind::Link),
            ("b".to_owned(), EntryKind::File),
        ];
        assert_eq!(names, expected);
    }

    #[test]
    fn a_tree_that_is_cut_has_the_entries_before() {
        let bytes = tree(&[("100644", "a"), ("100644", "b")]);
        for length in 0..bytes.len() {
            assert!(parse(&bytes[..length], &Oid::ZERO).len() <= 1);
        }
        assert_eq!(parse(b"garbage", &Oid::ZERO), []);
    }

    #[test]
    fn names_are_escaped_in_text_and_in_addresses() {
        let bytes = tree(&[("100644", "<b>\" ?#.rs")]);
        let revision = Revision {
            name: "a&b".into(),
            commit: Oid::ZERO,
            belongs: super::super::revision::Belongs::Named,
        };
        let html = table(
            "/x.git",
            &revision,
            &["d e".into()],
            &parse(&bytes, &Oid::ZERO),
        )
        .0;
        assert!(
            html.contains("/x.git/file/a%26b/d%20e/%3Cb%3E%22%20%3F%23.rs"),
            "{html}"
        );
        assert!(!html.contains("<b>"), "{html}");
    }

    #[test]
    fn the_markdown_file_introduces_a_directory() {
        let entries = parse(
            &tree(&[("100644", "README"), ("100644", "ReadMe.md")]),
            &Oid::ZERO,
        );
        assert_eq!(readme(&entries), Some("ReadMe.md"));
        assert_eq!(
            readme(&parse(&tree(&[("40000", "README.md")]), &Oid::ZERO)),
            None
        );
    }
}
