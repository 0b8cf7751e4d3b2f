//! Atom feeds of repositories.

use grasp_tests::{Author, Instance};
use quick_xml::Reader;
use quick_xml::events::Event;

/// Returns the titles of the entries of a feed, which must be well-formed.
fn titles(xml: &str) -> Vec<String> {
    let mut reader = Reader::from_str(xml);
    let mut path: Vec<Vec<u8>> = Vec::new();
    let mut titles = Vec::new();
    loop {
        match reader
            .read_event()
            .unwrap_or_else(|error| panic!("{error}: {xml}"))
        {
            Event::Start(start) => path.push(start.name().as_ref().to_vec()),
            Event::End(_) => drop(path.pop()),
            Event::Text(text) if path.ends_with(&[b"entry".to_vec(), b"title".to_vec()]) => {
                titles.push(text.decode().unwrap().into_owned());
            }
            Event::Eof => return titles,
            _ => {}
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_feed_has_the_newest_entries_of_its_kind_and_is_linked() {
    let server = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = server.host(&alice, "x").await;
    let repo = alice.repo("x");
    let (base, url) = (server.path(&repo), server.clone_url(&repo));
    let next = work.commit("second").await;
    let refs = [("refs/heads/main", next.as_str()), ("refs/tags/v1", &next)];
    server.ingest(vec![alice.later(1).state("x", &refs)]).await;
    let to_tag = format!("{next}:refs/tags/v1");
    work.git(&["push", &url, "main", &to_tag]).await.expect_ok();
    let address = repo.to_string();
    let about: &[&str] = &["a", &address];
    let issue = bob.sign(1621, "text", &[about, &["subject", "an issue"]]);
    let patch = bob.sign(1617, "Subject: a patch\n", &[about, &["t", "root"]]);
    let held = bob.pull_request(&repo, &"ab".repeat(20));
    server.ingest(vec![issue, patch, held]).await;
    let feed = async |name: &str| {
        let answer = server.get(&format!("{base}/feed/{name}.atom"), &[]).await;
        assert_eq!(answer.status, 200, "{name}: {answer:?}");
        let content_type = answer.header("content-type");
        assert!(content_type.starts_with("application/atom+xml"));
        titles(&answer.body)
    };
    assert_eq!(feed("commits").await, ["second", "first"]);
    assert_eq!(feed("tags").await, ["v1"]);
    assert_eq!(feed("issues").await, ["an issue"]);
    assert_eq!(feed("pulls").await, ["a patch"]);
    for (page, name) in [
        ("", "commits"),
        ("/log/main", "commits"),
        ("/refs", "tags"),
        ("/refs", "releases"),
        ("/issues", "issues"),
        ("/pulls", "pulls"),
    ] {
        let body = server.get(&format!("{base}{page}"), &[]).await.body;
        let link = format!("href=\"{base}/feed/{name}.atom\"");
        let head = body.split("</head>").next().unwrap_or_default();
        assert!(head.contains(&link), "{page}: {body}");
        assert!(
            page.is_empty() || body.matches(&link).count() == 2,
            "{page}: {body}"
        );
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn releases_are_those_of_maintainers_or_else_the_tags() {
    let server = Instance::start().await;
    let (alice, eve) = (Author::new(), Author::new());
    let work = server.host(&alice, "x").await;
    let repo = alice.repo("x");
    let tip = work.git(&["rev-parse", "HEAD"]).await.expect_ok();
    let refs = [("refs/heads/main", tip.as_str()), ("refs/tags/v1", &tip)];
    server.ingest(vec![alice.later(1).state("x", &refs)]).await;
    let to_tag = format!("{tip}:refs/tags/v1");
    let push = ["push", &server.clone_url(&repo), &to_tag];
    work.git(&push).await.expect_ok();
    let path = format!("{}/feed/releases.atom", server.path(&repo));
    let releases = async || titles(&server.get(&path, &[]).await.body);
    let address = repo.to_string();
    let release = |by: &Author, version: &str| {
        let tags: [&[&str]; 3] = [&["d", version], &["version", version], &["a", &address]];
        by.sign(30_063, "notes", &tags)
    };
    let foreign = release(&eve, "9.9");
    server.ingest(vec![foreign.clone()]).await;
    assert!(server.serves(&foreign).await);
    assert_eq!(releases().await, ["v1"], "strangers release nothing");
    let own = release(&alice, "1.0");
    server.ingest(vec![own.clone()]).await;
    assert!(server.serves(&own).await);
    assert_eq!(releases().await, ["1.0"]);
    let app = alice.sign(32_267, "", &[&["d", "app"], &["a", &address]]);
    let of_app = format!("32267:{}:app", alice.key());
    let tags: [&[&str]; 3] = [&["d", "app@2.0"], &["version", "2.0"], &["a", &of_app]];
    let release = alice.later(5).sign(30_063, "notes", &tags);
    for event in [app, release] {
        server.ingest(vec![event.clone()]).await;
        assert!(server.serves(&event).await, "{event:?}");
    }
    assert_eq!(releases().await, ["2.0", "1.0"]);
    server.stop().await;
}
