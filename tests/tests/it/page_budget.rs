//! What pages cost: processor time, confirmation, and what is sent again.

use grasp_relay::web::{Confirm, Show};
use grasp_tests::{AdjustableClock, Instance, Workdir, eventually_async, post, write_program};

use crate::pages::Site;

#[tokio::test]
async fn lists_of_repositories_are_compressed_and_sent_again_only_if_they_have_changed() {
    let site = Site::new().await;
    let owner = site.base.split('/').nth(1).unwrap_or_default();
    let owner = format!("/{owner}");
    let gzip = ("Accept-Encoding", "gzip");
    for path in ["/", "/?q=repo", &owner] {
        // The ages on it change once a minute, perhaps between the two requests.
        eventually_async(async || {
            let list = site.instance.get(path, &[gzip]).await;
            assert_eq!(list.header("content-encoding"), "gzip", "{path}");
            let given = ("If-None-Match", list.header("etag"));
            let again = site.instance.get(path, &[gzip, given]).await;
            (again.status == 304).then_some(())
        })
        .await;
    }
    let missing = site.instance.get("/none/none", &[gzip]).await;
    assert_eq!(missing.status, 404);
    assert_eq!(missing.header("content-encoding"), "gzip");
}

#[tokio::test]
async fn costly_pages_are_confirmed_by_a_button() {
    let site = Site::with(|settings| settings.pages.confirm = Confirm::Always).await;
    let path = format!("{}/commit/{}", site.base, site.tip);
    for page in ["file", "raw", "tree", "log"] {
        let file = if page == "log" { "" } else { "/README.md" };
        let page = format!("/{page}/{}{file}", site.tip);
        assert_eq!(site.get(&page).await.status, 429, "{page}");
    }
    let asked = site.instance.get(&path, &[]).await;
    assert_eq!(asked.status, 429);
    assert!(
        asked.body.contains("action=\"/-/confirm\""),
        "{}",
        asked.body
    );
    // The default branch, and git, need no button.
    site.body("/tree/main").await;
    site.body("/log/main").await;
    let form = format!("back={}", path.replace('%', "%25"));
    let address = site.instance.address().to_string();
    let post = post(&address, "/-/confirm", &[], form.as_bytes()).await;
    assert_eq!((post.status, post.header("location")), (303, path.as_str()));
    let cookie = post
        .header("set-cookie")
        .split(';')
        .next()
        .unwrap_or_default();
    let shown = site.instance.get(&path, &[("Cookie", cookie)]).await;
    assert_eq!(shown.status, 200);
}

#[tokio::test]
async fn costly_pages_are_confirmed_while_half_of_the_time_is_used() {
    let site = Site::with(|settings| {
        settings.processes.page_cpu = std::time::Duration::from_secs(1);
        settings.trusted_proxies = vec!["127.0.0.1".parse().unwrap()];
    })
    .await;
    // Each from a network of its own, of which none has used its share.
    let get = async |path: &str, n: usize| {
        let from = format!("{}.{}.9.9", 20 + n / 200, n % 200);
        let path = format!("{}{path}", site.base);
        let headers = [("X-Forwarded-For", from.as_str())];
        site.instance.get(&path, &headers).await.status
    };
    let first = site.work.git(&["rev-parse", "HEAD~1"]).await.expect_ok();
    let patch = |commit: &str| format!("/commit/{commit}.patch");
    assert_eq!(get(&patch(&first), 0).await, 200);
    let last = patch(&site.tip);
    for n in 1..5_000 {
        let status = get(&format!("/file/main/none{n}"), n).await;
        assert!([404, 503].contains(&status), "{status}");
        match get(&format!("/tree/{}/none", site.tip), n).await {
            404 => {}
            status => {
                assert_eq!(status, 429);
                assert_eq!(get(&last, n).await, 429);
                return;
            }
        }
    }
    panic!("nobody was asked to confirm");
}

#[tokio::test]
async fn pages_are_counted_by_their_result() {
    let site = Site::with(|settings| settings.pages.confirm = Confirm::Always).await;
    let tag = site.get("").await.header("etag").to_owned();
    site.body("").await;
    let given = [("If-None-Match", tag.as_str())];
    assert_eq!(site.instance.get(&site.base, &given).await.status, 304);
    assert_eq!(site.get(&format!("/commit/{}", site.tip)).await.status, 429);
    let metrics = site.instance.get("/metrics", &[]).await.body;
    for (page, result) in [
        ("overview", "made"),
        ("overview", "kept"),
        ("overview", "304"),
        ("commit", "confirm"),
    ] {
        let line = format!("grasp_pages_total{{page=\"{page}\",result=\"{result}\"}} 1\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
}

#[tokio::test]
async fn pages_can_be_short_or_off() {
    let site = Site::with(|settings| settings.pages.show = Show::Basic).await;
    assert!(site.body("").await.contains("git clone"));
    assert_eq!(site.get("/tree/main").await.status, 404);
    let site = Site::with(|settings| settings.pages.show = Show::Off).await;
    assert_eq!(site.get("").await.status, 404);
    assert!(
        site.instance
            .get("/", &[])
            .await
            .body
            .contains("shows no pages")
    );
}

#[tokio::test]
async fn pages_take_the_time_for_pages_and_git_goes_on() {
    let none = std::time::Duration::from_micros(1);
    let site = Site::with(|settings| settings.processes.page_cpu = none).await;
    let refused = site.get("/tree/main").await;
    assert_eq!(refused.status, 503);
    assert!(refused.body.contains("git clone") && !refused.header("retry-after").is_empty());
    let owner = site.base.split('/').nth(1).unwrap_or_default();
    for (path, status) in [
        ("/?q=repo", 503),
        (&format!("/{owner}"), 503),
        (&format!("/{owner}/none"), 404),
        ("/none", 404),
        ("/", 200),
    ] {
        let answer = site.instance.get(path, &[]).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
    }
    let url = site.instance.clone_url(&site.alice.repo("my repo"));
    Workdir::empty().git(&["ls-remote", &url]).await.expect_ok();
}

#[tokio::test]
async fn a_client_with_the_current_page_is_told_so_while_pages_have_no_time() {
    let clock = AdjustableClock::default();
    // Pages with names are made anew every ten minutes, so that none of them ends now.
    let now = clock.settings().clock.now().unix.as_secs();
    clock.advance(600 - now % 600);
    let site = Site::on(Instance::with_settings(clock.settings()).await).await;
    let address = site.alice.repo("my repo").to_string();
    let about: &[&str] = &["a", &address];
    let issue = site.alice.later(2).sign(1621, "text", &[about]);
    site.instance.ingest(vec![issue.clone()]).await;
    let thread = format!("/issues/{}", issue.id.to_hex());
    let mut tags = Vec::new();
    let pages = ["", "/tree/main", "/issues", "/feed/issues.atom", &thread];
    for path in pages {
        tags.push(site.get(path).await.header("etag").to_owned());
    }
    let none = std::time::Duration::from_micros(1);
    let restarted = site
        .instance
        .restart_with(|settings| settings.processes.page_cpu = none);
    let instance = restarted.await;
    for (path, tag) in pages.iter().zip(&tags) {
        let path = format!("{}{path}", site.base);
        let given = [("If-None-Match", tag.as_str())];
        for _ in 0..3 {
            assert_eq!(instance.get(&path, &given).await.status, 304, "{path}");
        }
        assert_eq!(instance.get(&path, &[]).await.status, 503, "{path}");
    }
    let comment = site
        .alice
        .later(3)
        .issue(&site.alice.repo("my repo"), "another");
    instance.ingest(vec![comment]).await;
    let path = format!("{}/issues", site.base);
    let given = [("If-None-Match", tags[2].as_str())];
    assert_eq!(
        instance.get(&path, &given).await.status,
        503,
        "it has changed"
    );
}

#[tokio::test]
async fn what_takes_git_too_long_is_left_out_or_cut_and_never_asked_for_again() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("git");
    // Ends as at the limit of CPU time: before the first line, or after some.
    let script = "#!/bin/sh\nPATH=/usr/local/bin:/usr/bin:/bin\nfor word in \"$@\"; do case $word in\n\
                  log|ls-tree) kill -XCPU $$;;\n\
                  diff-tree) git \"$@\" | head -n 12; kill -XCPU $$;;\n\
                  esac; done\nexec git \"$@\"\n";
    write_program(&program, script);
    let site = Site::with(|settings| settings.git_program = Some(program)).await;
    let overview = site.body("").await;
    assert!(overview.contains("README.md") && overview.contains("Hello"));
    assert!(!overview.contains("Languages"), "{overview}");
    let commit = site.body(&format!("/commit/{}", site.tip)).await;
    assert!(commit.contains("LICENSE") && commit.contains("clone the repository to see the rest"));
    let log = site.get("/log/main").await;
    assert_eq!((log.status, log.header("retry-after")), (413, ""));
    assert!(log.body.contains("too large to be shown"), "{log:?}");
    let path = format!("{}/log/main", site.base);
    let given = [("If-None-Match", log.header("etag"))];
    assert_eq!(site.instance.get(&path, &given).await.status, 304);
}

#[tokio::test]
async fn a_page_is_sent_again_only_if_it_has_changed() {
    let site = Site::new().await;
    let first = site.get("/tree/main").await;
    let tag = first.header("etag").to_owned();
    let path = format!("{}/tree/main", site.base);
    let again = site.instance.get(&path, &[("If-None-Match", &tag)]).await;
    assert_eq!((again.status, again.body.as_str()), (304, ""));
    let next = site.work.commit("third").await;
    site.move_main(&next, 2).await;
    let again = site.instance.get(&path, &[("If-None-Match", &tag)]).await;
    assert_eq!(again.status, 200);
    assert_ne!(again.header("etag"), tag);
    let gzip = [("Accept-Encoding", "gzip")];
    let compressed = site.instance.get(&path, &gzip).await;
    assert_eq!(compressed.header("content-encoding"), "gzip");
}
