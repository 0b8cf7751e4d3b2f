//! Hostile content of repositories: whatever the worker that renders does, the page is shown, and the next one is rendered.

use std::path::Path;
use std::process::Command;

use crate::support::{Server, command, get, run_to_end};

/// Pushes files as a repository, and returns the host and the path of its page.
fn push(server: &Server, home: &Path, files: &[(&str, String)]) -> (String, String) {
    let work = home.join("hostile");
    std::fs::create_dir_all(&work).unwrap();
    for (name, text) in files {
        std::fs::write(work.join(name), text).unwrap();
    }
    let commands: [&[&str]; 3] = [
        &["init", "-q", "-b", "main"],
        &["add", "."],
        &["commit", "-q", "-m", "<script>alert(1)</script>\u{202e}gpj"],
    ];
    for arguments in commands {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=<b>\u{202e}",
            "-c",
            "user.email=a@example.com",
        ]);
        let done = run_to_end(git.args(arguments).current_dir(&work).env("HOME", home));
        assert!(done.ok, "{done:?}");
    }
    let push = ["push", "--server", server.host()];
    let pushed = run_to_end(command().args(push).current_dir(&work).env("HOME", home));
    assert!(pushed.ok, "{pushed:?}");
    let urls = pushed.out.lines();
    let mut urls = urls.filter_map(|line| line.trim().strip_prefix("git clone http://"));
    let (host, path) = urls.next().unwrap().split_once('/').unwrap();
    (host.to_owned(), format!("/{path}"))
}

#[test]
fn hostile_content_is_shown_as_text_and_harms_no_other_page() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let files = [
        (
            "README.md",
            String::from("# Rendered\n\n<script>alert(1)</script>\n"),
        ),
        ("nested.md", "<div>".repeat(45_000)),
        ("quotes.md", "> ".repeat(100_000)),
        ("brackets.md", "[".repeat(100_000)),
        ("stars.md", "*a **a ".repeat(30_000)),
        (
            "tables.md",
            format!("|{}\n|{}\n", "x|".repeat(20_000), "-|".repeat(20_000)),
        ),
        ("line.rs", "x".repeat(1_000_000)),
        ("deep.html", "<b>".repeat(80_000)),
        ("code.rs", "let a = \"\\".repeat(20_000)),
        (
            "evil\u{202e}<b>.md",
            String::from("<img src=x onerror=alert(1)>"),
        ),
    ];
    let (host, path) = push(&server, dir.path(), &files);
    for (name, _) in &files {
        let encoded: String = name.bytes().map(|byte| format!("%{byte:02X}")).collect();
        for page in [
            format!("file/main/{encoded}"),
            format!("file/main/{encoded}?plain"),
        ] {
            let (status, body) = get(&host, &format!("{path}/{page}"));
            assert_eq!(status, 200, "{name}");
            assert!(
                !body.contains("<script") && !body.contains("<img src=x"),
                "{name}"
            );
            assert!(!body.contains('\u{202e}'), "{name}");
            assert!(body.contains("</html>"), "{name}");
        }
        let (_, page) = get(&host, &path);
        assert!(
            page.contains("doc-rendered"),
            "the overview is rendered after {name}"
        );
    }
    let (status, log) = get(&host, &format!("{path}/log/main"));
    assert!(status == 200 && log.contains("&lt;script&gt;") && !log.contains('\u{202e}'));
}
