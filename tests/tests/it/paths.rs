//! URL paths that try to leave a repository.

use grasp_core::service::npub;
use grasp_tests::{Author, Instance, Workdir, exchange, files, post};

/// Spellings of parent and other directories below an owner.
const TRAVERSALS: &[&str] = &[
    "../x.git",
    "%2e%2e/x.git",
    "%2E%2E%2Fx.git",
    "..%2fx.git",
    "..%5cx.git",
    "..\\x.git",
    "%252e%252e%252fx.git",
    "x.git/../../../../etc/passwd",
    "x.git/%2e%2e/%2e%2e/%2e%2e/version",
    "x.git/objects/../../../identifier",
    "x.git/..%2f..%2fidentifier",
    "x.git/./config",
    "x.git//config",
    "x.git/config",
    "x.git/packed-refs",
    "x.git/objects/info/alternates%00",
    "x%00.git",
    "x%00/../y.git",
    "%c0%ae%c0%ae%c0%afx.git",
    "%e0%80%ae%e0%80%ae/x.git",
    "%ff%fe.git",
    ".git",
    "..git",
    "...git",
    "%2e.git",
    "%2e%2e.git",
    "a%2fb.git",
    "a%5cb.git",
    "%2fetc%2fpasswd.git",
    "x.git%2finfo%2frefs",
    "x.git%3fservice=git-upload-pack",
    "x%",
    "x%2.git",
    "x%zz.git",
    "",
    "/",
];

#[tokio::test]
async fn no_spelling_of_a_path_leaves_the_repository() {
    let instance = Instance::start().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let before = files(&instance.repositories());
    let (address, owner) = (instance.address().to_string(), npub(&alice.key()));
    for traversal in TRAVERSALS {
        for suffix in ["", "/info/refs?service=git-upload-pack", "/HEAD"] {
            let path = format!("/{owner}/{traversal}{suffix}");
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
            let answer = exchange(&address, request.as_bytes()).await;
            // Within the repository the dumb protocol is refused by name.
            let is_owners_page = traversal.is_empty() && suffix.is_empty();
            let refused = [400, 404].contains(&answer.status)
                || (is_owners_page && answer.body.contains("Repositories of"))
                || (answer.status == 403 && answer.body.contains("dumb HTTP protocol"));
            assert!(refused, "{path}: {answer:?}");
            assert!(
                !answer.body.contains("refs/heads/main"),
                "{path}: {answer:?}"
            );
        }
        for service in ["git-upload-pack", "git-receive-pack"] {
            let path = format!("/{owner}/{traversal}/{service}");
            let answer = post(&address, &path, &[], b"0000").await;
            assert!(
                [400, 403, 404, 405].contains(&answer.status),
                "{path}: {answer:?}"
            );
        }
    }
    assert_eq!(files(&instance.repositories()), before);
}

#[tokio::test]
async fn an_owner_has_exactly_one_spelling() {
    let instance = Instance::start().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let npub = npub(&alice.key());
    let swapped = if npub.ends_with('q') { "p" } else { "q" };
    let spellings = [
        alice.key().to_hex(),
        npub.to_uppercase(),
        npub[..npub.len() - 1].to_owned() + swapped,
        npub.clone() + "%20",
        String::from("%6e") + &npub[1..],
        String::from(
            "nprofile1qqsw3dy8cpumpanud9dwd3xz254y0uu2m739x0x9jf4a9sgzjshaedcpr4mhxue69uhkummnw3",
        ),
        String::from("prs/") + &npub,
    ];
    assert_eq!(
        instance.get(&format!("/{npub}/x.git"), &[]).await.status,
        200
    );
    for owner in spellings {
        let path = format!("/{owner}/x.git/info/refs?service=git-upload-pack");
        assert_eq!(instance.get(&path, &[]).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn a_repository_is_found_without_git_at_its_end() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let path = instance.path(&alice.repo("x"));
    let short = path.strip_suffix(".git").unwrap();
    let page = instance.get(short, &[]).await;
    assert_eq!(
        (page.status, &page.body),
        (200, &instance.get(&path, &[]).await.body)
    );
    assert_eq!(
        instance.get(&short.replace("/x", "/y"), &[]).await.status,
        404
    );
    let url = instance.clone_url(&alice.repo("x"));
    let url = url.strip_suffix(".git").unwrap();
    let clone = Workdir::empty();
    clone.git(&["clone", "-q", url, "."]).await.expect_ok();
    let next = work.commit("next").await;
    let state = alice.later(1).state("x", &[("refs/heads/main", &next)]);
    instance.ingest(vec![state.clone()]).await;
    work.git(&["push", "-q", url, "main"]).await.expect_ok();
    assert!(instance.serves(&state).await);
}

#[tokio::test]
async fn unusual_identifiers_are_not_treated_as_paths() {
    let instance = Instance::start().await;
    let alice = Author::new();
    for name in [
        "my repo",
        "a:b",
        "x.git",
        "CON",
        "émoji 🦀",
        "%2e%2e",
        "-rf",
        "con\u{7}trol",
    ] {
        instance.host(&alice, name).await;
        let path = instance.path(&alice.repo(name));
        assert_eq!(instance.get(&path, &[]).await.status, 200, "{name}");
    }
}

#[tokio::test]
async fn similar_host_names_are_not_this_service() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let (us, owner) = (instance.service().to_string(), npub(&alice.key()));
    let port = instance.address().port();
    let ours = (format!("http://{us}/{owner}/x.git"), format!("ws://{us}"));
    let alike = [
        format!("{us}.evil.org"),
        format!("evil.org/{us}"),
        format!("{us}@evil.org"),
        format!("evil.org#{us}"),
        format!("evil.org?{us}"),
        format!("127.0.0.1.evil.org:{port}"),
        format!("127.0.0.1:{}", port ^ 1),
        format!("127.0.0.1:{port}0"),
        String::from("127.0.0.1"),
        format!("127.0.0.11:{port}"),
        format!("localhost:{port}"),
        format!("x127.0.0.1:{port}"),
    ];
    for host in &alike {
        let clone = format!("http://{host}/{owner}/x.git");
        let relay = format!("ws://{host}");
        for (clone, relay) in [(&clone, &ours.1), (&ours.0, &relay), (&clone, &relay)] {
            let tags: [&[&str]; 3] = [&["d", "x"], &["clone", clone], &["relays", relay]];
            let answer = instance.ingest(vec![alice.sign(30617, "", &tags)]).await[0].answer();
            assert!(!answer.is_accepted, "{clone} {relay}");
        }
    }
    assert_eq!(
        instance
            .get(&instance.path(&alice.repo("x")), &[])
            .await
            .status,
        404
    );
    let tags: [&[&str]; 3] = [&["d", "x"], &["clone", &ours.0], &["relays", &ours.1]];
    assert!(
        instance.ingest(vec![alice.sign(30617, "", &tags)]).await[0]
            .answer()
            .is_accepted
    );
}
