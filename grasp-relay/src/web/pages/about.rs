//! What a repository is made of: its licence and its languages.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use grasp_core::Oid;
use lru::LruCache;
use maud::{Markup, html};

use super::tree::{Entry, EntryKind};
use super::{Context, PageError, Work};

/// Bytes of the list of all files. Repositories with a larger one, or whose list takes too long, show no languages.
const MAX_LIST: usize = 4 * 1024 * 1024;

/// Languages that are named.
const MAX_LANGUAGES: usize = 6;

/// Languages by the ends of file names. Documents and data are none.
const LANGUAGES: [(&str, &str); 52] = [
    ("rs", "Rust"),
    ("c", "C"),
    ("h", "C"),
    ("cpp", "C++"),
    ("cc", "C++"),
    ("hpp", "C++"),
    ("go", "Go"),
    ("py", "Python"),
    ("js", "JavaScript"),
    ("mjs", "JavaScript"),
    ("jsx", "JavaScript"),
    ("ts", "TypeScript"),
    ("tsx", "TypeScript"),
    ("java", "Java"),
    ("kt", "Kotlin"),
    ("kts", "Kotlin"),
    ("swift", "Swift"),
    ("m", "Objective-C"),
    ("rb", "Ruby"),
    ("php", "PHP"),
    ("pl", "Perl"),
    ("pm", "Perl"),
    ("sh", "Shell"),
    ("bash", "Shell"),
    ("zsh", "Shell"),
    ("fish", "Shell"),
    ("ps1", "PowerShell"),
    ("lua", "Lua"),
    ("zig", "Zig"),
    ("hs", "Haskell"),
    ("ml", "OCaml"),
    ("mli", "OCaml"),
    ("ex", "Elixir"),
    ("exs", "Elixir"),
    ("erl", "Erlang"),
    ("clj", "Clojure"),
    ("scala", "Scala"),
    ("cs", "C#"),
    ("fs", "F#"),
    ("dart", "Dart"),
    ("r", "R"),
    ("jl", "Julia"),
    ("nim", "Nim"),
    ("nix", "Nix"),
    ("el", "Emacs Lisp"),
    ("lisp", "Common Lisp"),
    ("sql", "SQL"),
    ("html", "HTML"),
    ("css", "CSS"),
    ("scss", "SCSS"),
    ("vue", "Vue"),
    ("svelte", "Svelte"),
];

/// Colours of the languages, each readable as an area beside the others in both schemes.
const COLOURS: [&str; MAX_LANGUAGES] = [
    "#4c78a8", "#e07b39", "#54a24b", "#b279a2", "#c9a227", "#6b7785",
];

/// A language and its share in percent, rounded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Language {
    name: &'static str,
    tenths: u64,
}

/// Commits whose languages are remembered.
const MAX_REMEMBERED: NonZeroUsize = match NonZeroUsize::new(4_096) {
    Some(count) => count,
    None => NonZeroUsize::MIN,
};

/// The languages of commits. To find them takes longer than the rest of the page, and they never change.
pub(super) struct LanguageCache(Mutex<LruCache<Oid, Vec<Language>>>);

impl LanguageCache {
    pub(super) fn new() -> Self {
        Self(Mutex::new(LruCache::new(MAX_REMEMBERED)))
    }

    fn get(&self, commit: &Oid) -> Option<Vec<Language>> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(commit).cloned()
    }

    fn insert(&self, commit: Oid, languages: Vec<Language>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.put(commit, languages);
    }
}

/// Returns how much of each language a commit has that the repository shows.
pub(super) async fn read_languages(
    context: &Context<'_>,
    work: &Work,
    commit: Oid,
) -> Result<Vec<Language>, PageError> {
    let known = &context.site.languages;
    if let Some(languages) = known.get(&commit) {
        return Ok(languages);
    }
    let request = context.request;
    let name = commit.to_string();
    let arguments = ["-r", "-l", "-z", "--full-tree", &name];
    let (repos, repo) = (&request.repos, &request.repo);
    let listed = repos.run_for_page(repo, work, "ls-tree", &arguments, MAX_LIST);
    let languages = match listed.await {
        Ok((output, false)) => work.run(move || languages_of(&output)).await?,
        Ok((_, true)) => Vec::new(),
        Err(error) if error.is_too_expensive() => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    known.insert(commit, languages.clone());
    Ok(languages)
}

/// Counts the bytes of each language in a list of `git ls-tree -r -l -z`.
fn languages_of(list: &[u8]) -> Vec<Language> {
    let mut bytes: BTreeMap<&'static str, u64> = BTreeMap::new();
    for line in list.split(|byte| *byte == 0) {
        let line = String::from_utf8_lossy(line);
        let Some((about, path)) = line.split_once('\t') else {
            continue;
        };
        let size = about
            .rsplit(' ')
            .next()
            .and_then(|size| size.parse::<u64>().ok());
        let file = path.rsplit('/').next().unwrap_or_default();
        let end = file.rsplit_once('.').map_or("", |(_, end)| end);
        let language = LANGUAGES.iter().find(|(known, _)| *known == end);
        if let (Some(size), Some((_, language))) = (size, language) {
            let sum = bytes.entry(language).or_default();
            *sum = sum.saturating_add(size);
        }
    }
    let all = bytes
        .values()
        .fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    let mut languages: Vec<Language> = bytes
        .into_iter()
        .map(|(name, bytes)| Language {
            name,
            tenths: u128::from(bytes)
                .saturating_mul(1_000)
                .checked_div(u128::from(all))
                .and_then(|tenths| tenths.try_into().ok())
                .unwrap_or(0),
        })
        .filter(|language| language.tenths > 0)
        .collect();
    languages.sort_by(|a, b| b.tenths.cmp(&a.tenths).then_with(|| a.name.cmp(b.name)));
    languages.truncate(MAX_LANGUAGES);
    languages
}

/// Returns the languages as a bar and a list.
pub(super) fn languages(languages: &[Language]) -> Markup {
    if languages.is_empty() {
        return html! {};
    }
    let mut start = 0;
    let mut parts = Vec::new();
    for (language, colour) in languages.iter().zip(COLOURS) {
        parts.push((start, language, colour));
        start += language.tenths;
    }
    html! {
        h2 { "Languages" }
        svg class="bar" viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true" {
            @for (start, language, colour) in &parts {
                rect x=(start) y="0" width=(language.tenths) height="10" fill=(colour) {}
            }
        }
        ul class="langs" {
            @for (_, language, colour) in &parts {
                li {
                    svg width="10" height="10" aria-hidden="true" { circle cx="5" cy="5" r="5" fill=(colour) {} }
                    " " (language.name) " " (language.tenths / 10) "." (language.tenths % 10) " %"
                }
            }
        }
    }
}

/// Files that are read for the licence of a repository.
const MAX_LICENCE_FILES: usize = 4;

/// Returns the files that may have the licence of a repository: it can have several, and one that only names them.
pub(super) fn licence_files(entries: &[Entry]) -> Vec<&str> {
    let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
    let is_licence = |name: &&str| {
        let name = name.to_ascii_uppercase();
        ["LICENSE", "LICENCE", "COPYING", "UNLICENSE"]
            .iter()
            .any(|start| name.starts_with(start))
    };
    let names = files.filter_map(Entry::name).filter(is_licence);
    names.take(MAX_LICENCE_FILES).collect()
}

/// Words by which licences are known, the more specific first.
const LICENCES: [(&str, &str); 13] = [
    ("gnu affero general public license", "AGPL"),
    ("gnu lesser general public license", "LGPL"),
    ("gnu general public license version 3", "GPL-3.0"),
    ("gnu general public license version 2", "GPL-2.0"),
    ("mozilla public license version 2.0", "MPL-2.0"),
    ("apache license version 2.0", "Apache-2.0"),
    ("boost software license", "BSL-1.0"),
    ("permission to use, copy, modify, and/or distribute", "ISC"),
    ("permission is hereby granted, free of charge", "MIT"),
    ("neither the name of", "BSD-3-Clause"),
    (
        "redistribution and use in source and binary forms",
        "BSD-2-Clause",
    ),
    ("this is free and unencumbered software", "Unlicense"),
    ("cc0 1.0 universal", "CC0-1.0"),
];

/// Returns the licence that a text is.
pub(super) fn identify(text: &str) -> Option<&'static str> {
    let words: Vec<&str> = text.split_whitespace().take(2_000).collect();
    let text = words
        .join(" ")
        .to_lowercase()
        .replace("license, version", "license version");
    // Texts of licences name others further down.
    let found = LICENCES
        .iter()
        .filter_map(|(words, name)| Some((text.find(words)?, *name)));
    let known = found.min_by_key(|(at, _)| *at);
    match known {
        // The last clause tells the two apart.
        Some((_, "BSD-2-Clause")) if text.contains("neither the name") => Some("BSD-3-Clause"),
        known => known.map(|(_, name)| name),
    }
}

pub(super) fn licences(licences: &[&'static str]) -> Markup {
    html! { @if !licences.is_empty() { h2 { "Licence" } p { (licences.join(", ")) } } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn languages_are_counted_by_bytes() {
        let list = [
            "100644 blob a     300\tsrc/a.rs",
            "100644 blob b     100\tb.py",
            "160000 commit c       -\tx.rs",
            "100644 blob d  999\tREADME.md",
            "garbage",
        ];
        let list = list.join("\0");
        let counted = languages_of(list.as_bytes());
        let shares: Vec<_> = counted.iter().map(|it| (it.name, it.tenths)).collect();
        assert_eq!(shares, [("Rust", 750), ("Python", 250)]);
        assert!(languages(&counted).0.contains("75.0 %"));
        assert_eq!(languages_of(b""), []);
    }

    #[test]
    fn licences_are_known_by_their_words() {
        let mit = "MIT License\n\nPermission is hereby granted,\nfree of charge, to any person";
        assert_eq!(identify(mit), Some("MIT"));
        assert_eq!(
            identify("Apache License\n  Version 2.0, January 2004"),
            Some("Apache-2.0")
        );
        let gpl = "GNU GENERAL PUBLIC LICENSE\nVersion 3 … the GNU Affero General Public License";
        assert_eq!(identify(gpl), Some("GPL-3.0"));
        assert_eq!(identify("all rights reserved"), None);
    }
}
