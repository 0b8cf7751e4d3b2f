//! Pages of patches and pull requests: their commits, changes, checks and cover notes.

use grasp_tests::Author;
use nostr::event::Event;

use crate::page_threads::{Hosted, about};

impl Hosted {
    /// Publishes a pull request with these tags for two commits, and pushes them. Returns it with its page.
    async fn propose(&self, by: &Author, more: &[&[&str]]) -> (Event, String) {
        self.work.commit("one").await;
        let tip = self.work.commit("two").await;
        let address = self.repo.to_string();
        let tags: [&[&str]; 2] = [&["a", &address], &["c", &tip]];
        let pull = by.sign(1618, "please pull", &[&tags, more].concat());
        self.server.ingest(vec![pull.clone()]).await;
        let name = pull.id.to_hex();
        let url = self.server.clone_url(&self.repo);
        let to = format!("{tip}:refs/nostr/{name}");
        self.work.git(&["push", &url, &to]).await.expect_ok();
        self.server.until_serves(&pull).await;
        (pull, format!("pulls/{name}"))
    }

    /// Returns a page that exists.
    async fn page(&self, path: &str) -> String {
        let (status, page) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {page}");
        page
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_request_shows_its_commits_and_what_they_change() {
    let hosted = Hosted::start().await;
    let bob = Author::new();
    let (_, path) = hosted.propose(&bob, &[&["branch-name", "topic"]]).await;
    let page = hosted.page(&path).await;
    for text in [
        "2 commits",
        ">one<",
        ">two<",
        "1 changed file",
        "-first",
        "+two",
        "from branch",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(!page.contains("+one"), "only the whole difference: {page}");
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_merge_base_that_is_not_shown_is_not_used() {
    let hosted = Hosted::start().await;
    let bob = Author::new();
    let unknown = "ab".repeat(20);
    let (_, path) = hosted.propose(&bob, &[&["merge-base", &unknown]]).await;
    let page = hosted.page(&path).await;
    assert!(
        page.contains("2 commits") && page.contains("-first"),
        "{page}"
    );
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_are_shown_with_who_says_so_as_soon_as_they_are_published() {
    let hosted = Hosted::start().await;
    let (alice, bob, eve) = (&hosted.alice, Author::new(), Author::new());
    let (pull, path) = hosted.propose(&bob, &[]).await;
    let tip = pull.tags.iter().find(|tag| tag.kind() == "c");
    let tip = tip.and_then(|tag| tag.content()).unwrap();
    let address = hosted.repo.to_string();
    let check = |by: &Author, name: &str, result: &str| {
        let tags: [&[&str]; 4] = [
            &["a", &address],
            &["c", tip],
            &["name", name],
            &["conclusion", result],
        ];
        by.sign(9_842, "", &tags)
    };
    hosted.publish(&[&check(alice, "build", "success")]).await;
    let below = format!("{}/{path}", hosted.server.path(&hosted.repo));
    let before = hosted.server.get(&below, &[]).await;
    for text in ["✓ passed", "build", "(maintainer)"] {
        assert!(before.body.contains(text), "{text}: {}", before.body);
    }
    assert!(!before.body.contains("(not a maintainer)"));
    hosted.publish(&[&check(&eve, "scan", "failure")]).await;
    let given = [("If-None-Match", before.header("etag"))];
    let after = hosted.server.get(&below, &given).await;
    assert_eq!(after.status, 200);
    for text in ["✗ failed", "scan", "(not a maintainer)", "✓ passed"] {
        assert!(after.body.contains(text), "{text}: {}", after.body);
    }
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cover_note_stands_before_the_text_of_the_root() {
    let hosted = Hosted::start().await;
    let (bob, eve) = (Author::new(), Author::new());
    let issue = hosted.issue(&bob, "a long story");
    let note = |by: &Author, text: &str| {
        let id = issue.id.to_hex();
        by.sign(1624, text, &[&["e", &id, "", "root"]])
    };
    let own = note(&bob, "In short: it is done.");
    let foreign = note(&eve.later(1), "Buy this.");
    hosted.publish(&[&issue, &own, &foreign]).await;
    let page = hosted.page(&format!("issues/{}", issue.id.to_hex())).await;
    let cover = page.find("In short: it is done.").expect("the note");
    let text = page.find("the text").expect("the text of the issue");
    assert!(cover < text && page.contains("Cover note"), "{page}");
    assert!(!page.contains("Buy this."), "{page}");
    hosted.server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_series_of_patches_shows_the_changes_of_each() {
    let hosted = Hosted::start().await;
    let bob = Author::new();
    hosted.work.commit("one").await;
    hosted.work.commit("two").await;
    let mail = async |commit| {
        let arguments = ["format-patch", "-1", "--stdout", commit];
        hosted.work.git(&arguments).await.expect_ok()
    };
    let address = hosted.repo.to_string();
    let to: &[&str] = &["a", &address];
    let first = bob.sign(1617, &mail("HEAD~1").await, &[to, &["t", "root"]]);
    let id = first.id.to_hex();
    let second = bob.later(1);
    let second = second.sign(1617, &mail("HEAD").await, &[to, &["e", &id, "", "root"]]);
    hosted.publish(&[&first, &second]).await;
    let page = hosted.page(&format!("pulls/{id}")).await;
    for text in [
        "+one",
        "-one",
        "+two",
        "1st of the series",
        "1 changed file",
    ] {
        assert!(page.contains(text), "{text}: {page}");
    }
    let applied = about(&hosted.alice.later(2), 1631, &first.id, &[]);
    hosted.publish(&[&applied]).await;
    assert!(
        hosted
            .page(&format!("pulls/{id}"))
            .await
            .contains("✓ applied")
    );
    hosted.server.stop().await;
}
