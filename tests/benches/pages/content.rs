//! The repository whose pages are measured.

use std::fmt::Write as _;
use std::path::PathBuf;

use grasp_tests::{Author, ServerClient, Workdir, eventually_async};

use crate::server::Server;

/// Commits of the repository.
const COMMITS: usize = 5_000;

/// Directories, and the files in each.
const DIRECTORIES: usize = 60;
const FILES_PER_DIRECTORY: usize = 49;

/// Large files, one in each directory.
const LINES_OF_LARGE_FILE: usize = 1_000;

/// Rounds for which there is something new to show.
pub(crate) const MAX_ROUNDS: usize = 30;

const NAME: &str = "bench";
const MAIN: &str = "refs/heads/main";

/// A repository on a server, and where it came from.
pub(crate) struct Content {
    alice: Author,
    work: Workdir,
    commits: Vec<String>,
    /// The path of its page.
    pub(crate) base: String,
}

/// Returns the path of a directory.
pub(crate) fn directory(round: usize) -> String {
    format!("crates/part{:02}", round % DIRECTORIES)
}

/// Returns the path of a file with 1,000 lines.
pub(crate) fn large_file(round: usize) -> String {
    format!("{}/large.rs", directory(round))
}

impl Content {
    /// Creates the repository and pushes it.
    pub(crate) async fn push(server: &Server) -> Self {
        let work = Workdir::init().await;
        work.pipe(&["fast-import", "--quiet"], &history()).await;
        let listed = work.git(&["rev-list", "main"]).await.expect_ok();
        let commits: Vec<String> = listed.lines().map(str::to_owned).collect();
        assert_eq!(commits.len(), COMMITS);
        let alice = Author::new().earlier(3_600);
        let content = Self {
            base: server.service().repo_path(&alice.repo(NAME)),
            alice,
            work,
            commits,
        };
        let announcement = content.alice.announce(NAME, &server.service());
        client(server).publish_all(&[&announcement]).await;
        content.sign(server, 0, &[(MAIN, content.commit(0))]).await;
        let url = server.clone_url(&content.alice.repo(NAME));
        let pushed = content.work.git(&["push", "-q", &url, "main"]).await;
        pushed.expect_ok();
        content
    }

    /// Adds a branch, so that all pages of the repository by branch are new. Without new objects its state is served at once.
    pub(crate) async fn move_branch(&self, server: &Server, round: usize) {
        let name = format!("refs/heads/round{round}");
        let refs = [(MAIN, self.commit(0)), (name.as_str(), self.commit(round))];
        self.sign(server, round as u64 + 1, &refs).await;
        let url = server.clone_url(&self.alice.repo(NAME));
        eventually_async(async || {
            let served = self.work.git(&["ls-remote", &url, &name]).await.expect_ok();
            served.contains(&name).then_some(())
        })
        .await;
    }

    async fn sign(&self, server: &Server, later: u64, refs: &[(&str, &str)]) {
        let state = self.alice.later(later).state(NAME, refs);
        client(server).publish_all(&[&state]).await;
    }

    /// Returns the id of a commit, 0 being the newest.
    pub(crate) fn commit(&self, back: usize) -> &str {
        &self.commits[back % (COMMITS - 60)]
    }

    /// Returns the directory of the repository that was pushed.
    pub(crate) fn path(&self) -> PathBuf {
        self.work.path().join(".git")
    }
}

fn client(server: &Server) -> ServerClient {
    ServerClient::at(server.address.parse().expect("an address"))
}

/// Returns the history, as `git fast-import` reads it.
fn history() -> Vec<u8> {
    let mut stream = String::new();
    for commit in 0..COMMITS {
        let date = 1_600_000_000 + commit * 3_600;
        let message = format!(
            "part{:02}: change what happens in step {commit}\n\nThe reason is that it is measured.\n",
            commit % DIRECTORIES
        );
        let who = format!("Alice <alice@example.com> {date} +0000");
        _ = write!(
            stream,
            "commit {MAIN}\nauthor {who}\ncommitter {who}\ndata {}\n{message}",
            message.len()
        );
        if commit == 0 {
            all_files(&mut stream);
        } else {
            let file = commit % FILES_PER_DIRECTORY;
            put(
                &mut stream,
                &small_file(commit, file),
                &source(file, 120, commit),
            );
            put(
                &mut stream,
                &small_file(commit + 7, file),
                &source(file + 1, 120, commit),
            );
        }
        stream.push('\n');
    }
    stream.into_bytes()
}

fn all_files(stream: &mut String) {
    let paragraph =
        "Text with `code`, [a link](crates/part01/file03.rs) and **more** of it.\n".repeat(8);
    let section = format!(
        "## A section\n\n{paragraph}\n- one\n- two\n\n```rust\n{}```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n",
        source(1, 12, 0)
    );
    put(
        stream,
        "README.md",
        &format!("# A project\n\n{}", section.repeat(4)),
    );
    put(
        stream,
        "LICENSE",
        "Permission is hereby granted, free of charge, to any person\n",
    );
    for part in 0..DIRECTORIES {
        put(
            stream,
            &large_file(part),
            &source(part, LINES_OF_LARGE_FILE, part),
        );
        for file in 0..FILES_PER_DIRECTORY {
            put(stream, &small_file(part, file), &source(file, 120, part));
        }
    }
}

fn small_file(part: usize, file: usize) -> String {
    format!("{}/file{file:02}.rs", directory(part))
}

fn put(stream: &mut String, path: &str, text: &str) {
    _ = writeln!(stream, "M 644 inline {path}\ndata {}\n{text}", text.len());
}

/// Returns code of this many lines. Versions differ in some of them.
fn source(seed: usize, lines: usize, version: usize) -> String {
    let mut text = String::new();
    for line in 0..lines {
        let number = seed * 31 + line;
        let changes = (line + version).is_multiple_of(40);
        let value = if changes { version } else { number };
        _ = match line % 10 {
            0 => writeln!(
                text,
                "/// Returns what part {number} has, if it is {value}."
            ),
            1 => writeln!(
                text,
                "pub fn part_{number}(input: &str, at: usize) -> Option<String> {{"
            ),
            2 => writeln!(text, "    let mut found = Vec::with_capacity({value});"),
            3 => writeln!(
                text,
                "    for (index, word) in input.split(' ').enumerate().skip(at) {{"
            ),
            4 => writeln!(
                text,
                "        if word.len() > {value} && index < 0x{number:x} {{ continue; }}"
            ),
            5 => writeln!(
                text,
                "        found.push(format!(\"{{word}}-{{index}}-{value}\\n\")); // as in part {number}"
            ),
            6 => writeln!(text, "    }}"),
            7 => writeln!(
                text,
                "    match found.first() {{ Some(first) => Some(first.to_owned()), None => None }}"
            ),
            8 => writeln!(text, "}}"),
            _ => writeln!(text),
        };
    }
    text
}
