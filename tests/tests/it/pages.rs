//! Pages of the content of repositories: what they show, and what they never show.

use grasp_tests::{
    Author, HttpResponse, Instance, Workdir, eventually_async, request_head, write_program,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const MAIN: &str = "refs/heads/main";

/// A repository with files of some kinds, at an instance.
pub(crate) struct Site {
    pub(crate) instance: Instance,
    pub(crate) alice: Author,
    pub(crate) work: Workdir,
    /// The path of the repository.
    pub(crate) base: String,
    /// The newest commit.
    pub(crate) tip: String,
}

impl Site {
    pub(crate) async fn new() -> Self {
        Self::with(|_| ()).await
    }

    pub(crate) async fn with(choose: impl FnOnce(&mut grasp_relay::instance::Settings)) -> Self {
        Self::on(Instance::with(choose).await).await
    }

    pub(crate) async fn on(instance: Instance) -> Self {
        let alice = Author::new();
        let work = instance.host(&alice, "my repo").await;
        let write = |name: &str, text: &[u8]| {
            let path = work.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("README.md", b"# Hello <script>alert(1)</script>\n");
        write("src/a b.rs", b"fn main() {}\n// <b>\n");
        write("data.bin", &[0, 1, 2, 255]);
        write(
            "LICENSE",
            b"Permission is hereby granted, free of charge, to any person",
        );
        work.git(&["add", "."]).await.expect_ok();
        let message = "second <i>\n\nwith a body\n";
        work.git(&["commit", "-q", "-m", message]).await.expect_ok();
        let tip = work.git(&["rev-parse", "HEAD"]).await.expect_ok();
        let site = Self {
            base: instance.path(&alice.repo("my repo")),
            instance,
            alice,
            work,
            tip,
        };
        site.move_main(&site.tip, 1).await;
        site
    }

    /// Signs a state and pushes it.
    pub(crate) async fn move_main(&self, tip: &str, later: u64) {
        let state = self.alice.later(later).state("my repo", &[(MAIN, tip)]);
        self.instance.ingest(vec![state]).await;
        let url = self.instance.clone_url(&self.alice.repo("my repo"));
        let push = ["push", "-f", &url, &format!("{tip}:{MAIN}")];
        self.work.git(&push).await.expect_ok();
    }

    pub(crate) async fn get(&self, path: &str) -> HttpResponse {
        let path = format!("{}{path}", self.base);
        self.instance.get(&path, &[]).await
    }

    /// Returns the body of a page that exists.
    pub(crate) async fn body(&self, path: &str) -> String {
        let answer = self.get(path).await;
        assert_eq!(answer.status, 200, "{path}: {answer:?}");
        answer.body
    }
}

#[tokio::test]
async fn a_visitor_reads_the_content_of_a_repository() {
    let site = Site::new().await;
    let tip = &site.tip;
    let cases = [
        (
            "",
            vec![
                "Hello",
                "second &lt;i&gt;",
                ">MIT<",
                "nostr://",
                "1 branch",
                "Rust",
                "/tree/main",
            ],
        ),
        ("/refs", vec![">main<"]),
        ("/tree/main", vec!["README.md", "src", "data.bin"]),
        ("/tree/main/src", vec!["/file/main/src/a%20b.rs"]),
        (
            "/file/main/src/a%20b.rs",
            vec!["id=\"L2\"", "&lt;b&gt;", "Permanent link"],
        ),
        ("/file/main/data.bin", vec!["not text"]),
        ("/raw/main/src/a%20b.rs", vec!["fn main() {}\n// <b>\n"]),
        ("/log/main", vec!["second &lt;i&gt;", "first"]),
    ];
    for (path, texts) in cases {
        let body = site.body(path).await;
        for text in texts {
            assert!(body.contains(text), "{path}: {text}: {body}");
        }
        assert!(
            path.starts_with("/raw") || !body.contains("<script"),
            "{path}: {body}"
        );
    }
    let commit = site.body(&format!("/commit/{tip}")).await;
    for text in [
        "with a body",
        "4 changed files",
        "+fn main() {}",
        "+// &lt;b&gt;",
    ] {
        assert!(commit.contains(text), "{text}: {commit}");
    }
    let patch = site.body(&format!("/commit/{tip}.patch")).await;
    assert!(patch.starts_with(&format!("From {tip}")), "{patch}");
    site.body(&format!("/tree/{tip}/src")).await;
}

#[tokio::test]
async fn raw_content_does_nothing_in_a_browser() {
    let site = Site::new().await;
    let binary = site.get("/raw/main/data.bin").await;
    assert_eq!(binary.header("content-disposition"), "attachment");
    let text = site.get("/raw/main/README.md").await;
    assert_eq!(text.header("content-type"), "text/plain; charset=utf-8");
    for answer in [binary, text] {
        assert_eq!(
            answer.header("content-security-policy"),
            "default-src 'none'; sandbox"
        );
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
}

#[tokio::test]
async fn a_large_file_is_sent_whole() {
    let site = Site::new().await;
    let tip = site.work.commit_incompressible(20 * 1024 * 1024).await;
    site.move_main(&tip, 2).await;
    let address = site.instance.address().to_string();
    let path = format!("{}/raw/main/noise", site.base);
    let head = request_head(&address, "GET", &path, &[]);
    let mut stream = tokio::net::TcpStream::connect(&address).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let end = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
    assert!(head.contains("content-length: 20971520"), "{head}");
    assert!(head.contains("content-disposition: attachment"), "{head}");
    let file = std::fs::read(site.work.path().join("noise")).unwrap();
    assert!(answer[end + 4..] == file, "it is the same byte for byte");
    let none = site.work.git(&["rev-parse", "HEAD~1"]).await.expect_ok();
    assert_eq!(site.get(&format!("/raw/{none}/noise")).await.status, 404);
}

#[tokio::test]
async fn paths_that_lead_nowhere_are_not_found() {
    let site = Site::new().await;
    for path in [
        "/tree/none",
        "/tree/main/none",
        "/file/main/src",
        "/file/main/../x",
        "/file/main/%2e%2e%2fx",
        "/raw/main/none",
        "/log/none",
        "/commit/abc",
        "/tree/refs/heads/main",
        "/config",
    ] {
        assert_eq!(site.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_tag_with_the_name_of_a_branch_has_an_address_of_its_own() {
    let site = Site::new().await;
    let first = site.work.git(&["rev-parse", "HEAD~1"]).await.expect_ok();
    let tag = "refs/tags/main";
    let refs = [(MAIN, site.tip.as_str()), (tag, &first)];
    let state = site.alice.later(2).state("my repo", &refs);
    site.instance.ingest(vec![state]).await;
    let url = site.instance.clone_url(&site.alice.repo("my repo"));
    let push = ["push", &url, &format!("{first}:{tag}")];
    site.work.git(&push).await.expect_ok();
    let refs = site.body("/refs").await;
    let links = ["/tree/main\"", "/tree/refs/tags/main\""];
    assert!(links.iter().all(|link| refs.contains(link)), "{refs}");
    assert!(site.body("/tree/main").await.contains("README.md"));
    let old = site.body("/tree/refs/tags/main").await;
    assert!(!old.contains("README.md"), "{old}");
    site.body("/log/refs/tags/main").await;
}

#[tokio::test]
async fn replaced_foreign_and_unpublished_commits_are_on_no_page() {
    let site = Site::new().await;
    // Replaced by a forced push: kept for a while, and no longer part of the repository.
    let replaced = site.tip.clone();
    site.body(&format!("/commit/{replaced}")).await;
    let first = site.work.git(&["rev-parse", "HEAD~1"]).await.expect_ok();
    site.move_main(&first, 2).await;
    // Of another repository, and of an upload that nobody signed for.
    let bob = Author::new();
    let foreign = site.instance.host(&bob, "other").await;
    let foreign = foreign.commit("foreign").await;
    let unsigned = site.work.commit("unsigned").await;
    let pull_request = bob.pull_request(&site.alice.repo("my repo"), &unsigned);
    let url = site.instance.clone_url(&site.alice.repo("my repo"));
    let to = format!("{unsigned}:refs/nostr/{}", pull_request.id);
    site.work.git(&["push", &url, &to]).await;
    for id in [&replaced, &foreign, &unsigned] {
        for path in ["/commit/", "/tree/", "/log/"] {
            assert_eq!(
                site.get(&format!("{path}{id}")).await.status,
                404,
                "{path}{id}"
            );
        }
        assert_eq!(site.get(&format!("/commit/{id}.patch")).await.status, 404);
        assert_eq!(site.get(&format!("/file/{id}/file")).await.status, 404);
        assert_eq!(site.get(&format!("/raw/{id}/file")).await.status, 404);
        assert_eq!(site.get(&format!("/log/main?from={id}")).await.status, 404);
    }
    // With its event, the commit of the pull request is shown, and marked.
    site.instance.ingest(vec![pull_request.clone()]).await;
    site.instance.until_serves(&pull_request).await;
    let shown = site.body(&format!("/commit/{unsigned}")).await;
    assert!(shown.contains("not part of this repository"), "{shown}");
    assert!(site.body("").await.contains("1 open pull request or patch"));
}

#[tokio::test]
async fn pages_that_are_kept_show_dates_and_no_ages() {
    let site = Site::new().await;
    for path in ["", "/refs", "/log/main", &format!("/commit/{}", site.tip)] {
        let body = site.body(path).await;
        assert!(body.contains("<time datetime=\"20"), "{path}: {body}");
        assert!(!body.contains(" ago"), "{path}: {body}");
    }
}

#[tokio::test]
async fn addresses_that_people_guess_lead_on() {
    let site = Site::new().await;
    let owner = site.base.split('/').nth(1).unwrap_or_default();
    let owned = site.instance.get(&format!("/{owner}"), &[]).await;
    assert!(
        owned.status == 200 && owned.body.contains(&site.base),
        "{owned:?}"
    );
    let list = site.instance.get("/", &[]).await.body;
    assert!(list.contains(&format!("href=\"/{owner}\"")), "{list}");
    let name = site.alice.sign(0, r#"{"name":"Alice"}"#, &[]);
    site.instance.ingest(vec![name]).await;
    let named = site.instance.get(&format!("/{owner}"), &[]).await.body;
    assert!(
        named.contains("Repositories of <bdi>Alice</bdi>"),
        "{named}"
    );
    let missing = site.instance.get(&format!("/{owner}/my-repo"), &[]).await;
    assert!(
        missing.status == 404 && missing.body.contains(&site.base),
        "{missing:?}"
    );
    let short = site.base.strip_suffix(".git").unwrap_or_default();
    let tree = site.instance.get(&format!("{short}/tree/main"), &[]).await;
    assert_eq!(tree.status, 200);
    // Two addresses, of which both pages name one.
    for address in [short, &site.base] {
        let page = site.instance.get(address, &[]).await;
        let url = site.instance.clone_url(&site.alice.repo("my repo"));
        let canonical = format!("<link rel=\"canonical\" href=\"{url}\">");
        assert!(page.body.contains(&canonical), "{address}: {}", page.body);
    }
}

#[tokio::test]
async fn a_maintainer_who_has_not_agreed_is_marked() {
    let site = Site::new().await;
    let marked = "named, has not agreed";
    assert!(!site.body("").await.contains(marked));
    let bob = Author::new().key().to_hex();
    let (service, named) = (site.instance.service(), ["maintainers", bob.as_str()]);
    let announcement = site.alice.later(2);
    let announcement = announcement.announce_with("my repo", &service, &[&named]);
    site.instance.ingest(vec![announcement.clone()]).await;
    assert!(site.instance.serves(&announcement).await);
    assert_eq!(site.body("").await.matches(marked).count(), 1);
}

#[tokio::test]
async fn a_renderer_that_fails_in_any_way_leaves_plain_text() {
    let dir = tempfile::tempdir().unwrap();
    let scripts = [
        ("hangs", "exec sleep 60"),
        ("crashes", "kill -SEGV $$"),
        ("ends", "exit 1"),
        // Two gigabytes, in a process that the kernel grants a tenth of that.
        (
            "grows",
            "ulimit -d 200000; exec awk 'BEGIN { while (1) { x = x \"0123456789\"; x = x x } }'",
        ),
        // An answer without end.
        ("talks", "exec yes"),
    ];
    for (name, script) in scripts {
        let program = dir.path().join(name);
        write_program(&program, &format!("#!/bin/sh\n{script}\n"));
        let site = Site::with(|settings| settings.pages.renderer = Some(program)).await;
        let body = site.body("/file/main/src/a%20b.rs").await;
        assert!(body.contains("// &lt;b&gt;"), "{name}: {body}");
        let body = site.body("/tree/main").await;
        assert!(body.contains("# Hello &lt;script&gt;"), "{name}: {body}");
    }
}

#[tokio::test]
async fn hostile_names_of_branches_tags_and_files_are_escaped() {
    let site = Site::new().await;
    let (branch, tag) = ("refs/heads/<script>x</script>", "refs/tags/\u{202e}<b>");
    let name = "<script>\u{202e}.txt";
    std::fs::write(site.work.path().join(name), "text\n").unwrap();
    site.work.git(&["add", "."]).await.expect_ok();
    let who = "--author=A\u{202e} & B <x@example.com>";
    let message = "<script>alert(1)</script>\u{202e}\n\n<script>\u{202e}";
    site.work
        .git(&["commit", "-q", who, "-m", message])
        .await
        .expect_ok();
    let tip = site.work.git(&["rev-parse", "HEAD"]).await.expect_ok();
    let state = site
        .alice
        .later(2)
        .state("my repo", &[(MAIN, &tip), (branch, &tip), (tag, &tip)]);
    site.instance.ingest(vec![state]).await;
    let url = site.instance.clone_url(&site.alice.repo("my repo"));
    let to = |name: &str| format!("{tip}:{name}");
    let push = ["push", &url, &to(MAIN), &to(branch), &to(tag)];
    site.work.git(&push).await.expect_ok();
    let branch = "%3Cscript%3Ex%3C/script%3E";
    for path in [
        "",
        "/refs",
        &format!("/tree/{branch}"),
        &format!("/log/{branch}"),
        &format!("/file/{branch}/%3Cscript%3E%E2%80%AE.txt"),
        &format!("/commit/{tip}"),
        &format!("/tree/{tip}"),
    ] {
        let body = site.body(path).await;
        assert!(
            !body.contains("<script") && !body.contains('\u{202e}'),
            "{path}: {body}"
        );
        assert!(body.contains("&lt;script&gt;"), "{path}: {body}");
    }
}

#[tokio::test]
async fn a_deleted_repository_has_no_page_for_those_who_had_it_either() {
    let site = Site::new().await;
    let pages = [
        "",
        "/tree/main",
        "/log/main",
        "/issues",
        "/feed/issues.atom",
    ];
    let mut tags = Vec::new();
    for path in pages {
        let answer = site.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        tags.push(answer.header("etag").to_owned());
    }
    let coordinate = site.alice.repo("my repo").to_string();
    let deletion = site
        .alice
        .later(60)
        .sign(5, "", &[&["a", &coordinate], &["k", "30617"]]);
    site.instance.ingest(vec![deletion]).await;
    eventually_async(async || (site.get("").await.status == 404).then_some(())).await;
    for (path, tag) in pages.iter().zip(&tags) {
        let path = format!("{}{path}", site.base);
        let answer = site.instance.get(&path, &[("If-None-Match", tag)]).await;
        assert_eq!(answer.status, 404, "{path}");
    }
    let list = site.instance.get("/", &[]).await.body;
    assert!(!list.contains("my%20repo"), "{list}");
    let owner = site.base.split('/').nth(1).unwrap_or_default();
    let owned = site.instance.get(&format!("/{owner}"), &[]).await;
    assert!(!owned.body.contains("my%20repo.git\""), "{}", owned.body);
}

#[tokio::test]
async fn an_announcement_without_git_data_is_on_no_page() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let words = ["description", "held words"];
    let announcement = alice.announce_with("unpushed", &instance.service(), &[&words]);
    instance.ingest(vec![announcement.clone()]).await;
    assert!(!instance.serves(&announcement).await);
    let base = instance.path(&alice.repo("unpushed"));
    for page in ["", "/refs", "/issues", "/servers", "/feed/issues.atom"] {
        // Its address exists, because it is pushed to; there is nothing to read.
        let answer = instance.get(&format!("{base}{page}"), &[]).await;
        assert!([200, 404].contains(&answer.status), "{page}: {answer:?}");
        assert!(
            !answer.body.contains("held words"),
            "{page}: {}",
            answer.body
        );
    }
    // What its page links to exists.
    let page = instance.get(&base, &[]).await.body;
    let links = page
        .split("href=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next());
    let own: Vec<&str> = links
        .filter(|link| link.starts_with(&format!("{base}/")))
        .collect();
    assert!(own.len() > 2, "{page}");
    for link in own {
        assert_eq!(instance.get(link, &[]).await.status, 200, "{link}");
    }
    let owner = base.split('/').nth(1).unwrap_or_default();
    for page in ["/", "/?q=unpushed", "/?q=held", &format!("/{owner}")] {
        let answer = instance.get(page, &[]).await;
        assert!(
            !answer.body.contains("unpushed.git"),
            "{page}: {}",
            answer.body
        );
    }
}
