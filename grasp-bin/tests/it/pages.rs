//! Hostile content of repositories: whatever the worker that renders does, the page is shown, and the next one is rendered.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Server, command, get, run_to_end, skipped};

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
        ("nested2.md", "<i>".repeat(85_000)),
        ("nested3.md", "<div>".repeat(100_000)),
        ("lists.md", "- ".repeat(100_000)),
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

#[test]
fn the_overview_can_be_read_in_a_text_browser() {
    let dir = tempfile::tempdir().unwrap();
    let mut lynx = Command::new("lynx");
    if lynx.arg("-version").output().is_err() {
        skipped("lynx is not installed");
        return;
    }
    let server = Server::start(&dir.path().join("data"));
    let readme = "# A project\n\nText with `code` and\n\n- one\n- two\n";
    let files = [
        ("README.md", String::from(readme)),
        ("main.rs", String::from("fn main() {}\n")),
    ];
    let (host, path) = push(&server, dir.path(), &files);
    let url = format!("http://{host}{path}");
    let mut lynx = Command::new("lynx");
    lynx.args([
        "-dump",
        "-nolist",
        "-width=80",
        "-display_charset=utf-8",
        &url,
    ]);
    let dump = run_to_end(lynx.env("HOME", dir.path()).env("TERM", "dumb"));
    assert!(dump.ok, "{dump:?}");
    // What it is, how to get it, what is in it, and whose it is, from top to bottom.
    let mut rest = dump.out.as_str();
    for text in [
        "Skip to content",
        "hostile",
        "git clone http",
        "Files at main",
        "main.rs",
        "A project",
        "Text with code and",
        "Maintainers",
    ] {
        let found = rest.find(text);
        let at = found.unwrap_or_else(|| panic!("{text} is not below: {}", dump.out));
        rest = &rest[at..];
    }
}

#[test]
fn a_commit_with_ten_thousand_files_is_cut() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let names: Vec<String> = (0..10_000).map(|n| format!("file{n:05}")).collect();
    let files: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), format!("{name}\n")))
        .collect();
    let (host, path) = push(&server, dir.path(), &files);
    let (_, log) = get(&host, &format!("{path}/log/main"));
    let (_, link) = log.split_once("/commit/").expect("a link to the commit");
    let commit = link.get(..40).expect("an id");
    let (status, page) = get(&host, &format!("{path}/commit/{commit}"));
    assert_eq!(status, 200);
    let shown = page.matches("/file/").count();
    assert!(
        shown == 300 && page.contains("clone the repository to see the rest"),
        "{shown} files"
    );
    let (status, page) = get(&host, &format!("{path}/tree/main"));
    let shown = page.matches("/file/").count();
    assert!(
        status == 200 && shown == 5_000 && page.contains("The first 5000 are shown"),
        "{shown} entries"
    );
    assert_eq!(get(&host, &path).0, 200);
    let (status, patch) = get(&host, &format!("{path}/commit/{commit}.patch"));
    assert!(status == 413 && patch.contains("git clone"), "{status}");
}

#[test]
fn a_worker_that_renders_has_the_limits_of_the_kernel() {
    let mut worker = command()
        .arg("render")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // A job, whose answer shows that the limits are set.
    let mut job = vec![b'c'];
    for part in ["a.rs", "", "", "fn main() {}\n"] {
        job.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
        job.extend(part.as_bytes());
    }
    worker.stdin.as_mut().unwrap().write_all(&job).unwrap();
    let mut head = [0; 12];
    worker
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut head)
        .unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", worker.id()));
    drop(worker.stdin.take());
    assert!(worker.wait().unwrap().success());
    // Other systems than Linux do not show them.
    let Ok(limits) = limits else { return };
    for (limit, value) in [
        ("Max data size", "268435456"),
        ("Max file size", "0"),
        ("Max cpu time", "600"),
    ] {
        let line = limits.lines().find_map(|line| line.strip_prefix(limit));
        let values: Vec<&str> = line.unwrap().split_whitespace().take(2).collect();
        assert_eq!(values, [value, value], "{limit}");
    }
}
