//! Crawlers: each page from another address, as if from another visitor.

use std::fmt::Write as _;

use futures_util::{StreamExt as _, stream};
use grasp_tests::{Author, Workdir};

use crate::attacks;
use crate::scenario::{Report, Scenario};

attacks![page_crawl];

/// Variable with the number of addresses, for a longer run.
const ADDRESSES_VAR: &str = "GRASP_CRAWL_ADDRESSES";

/// Addresses, unless that variable says otherwise: what two cores show in 15 seconds.
const ADDRESSES: usize = 1_000;

/// Addresses whose pages take more than half of the processor time for pages on any machine of two cores.
const MANY_ADDRESSES: usize = 20_000;

/// Requests at the same time.
const AT_ONCE: usize = 200;

/// Requests one difference from each of many addresses, none of which sends a second request, and none twice.
async fn page_crawl() -> Report {
    let addresses = std::env::var(ADDRESSES_VAR).ok();
    let addresses = addresses.and_then(|text| text.parse().ok());
    let addresses: usize = addresses.unwrap_or(ADDRESSES);
    let scenario = Scenario::with(&["--trusted-proxies", "127.6.6.1"]).await;
    let proxy = scenario.attacker(1);
    let (path, commits) = scenario.repository_with_commits(addresses).await;
    let mut answers: Vec<Option<u16>> = Vec::new();
    let attack = async {
        let requests = commits.into_iter().enumerate().map(|(n, commit)| {
            // A network of its own, which only this request comes from.
            let from = format!("{}.{}.{}.7", 40 + n / 65_536, n / 256 % 256, n % 256);
            let page = format!("{path}/commit/{commit}");
            async move {
                let headers = [("X-Forwarded-For", from.as_str())];
                proxy.status("GET", &page, &headers, &[]).await
            }
        });
        answers = stream::iter(requests)
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
    };
    let report = scenario.run(0, attack).await;
    let count = |wanted: u16| {
        answers
            .iter()
            .filter(|answer| **answer == Some(wanted))
            .count()
    };
    let (shown, asked, busy) = (count(200), count(429), count(503));
    println!("    {shown} of {addresses} pages shown, {asked} to be confirmed, {busy} refused");
    let expected = shown + asked + busy;
    report
        .and_all_succeeded()
        .and(expected == addresses, "an answer has another status")
        .and(shown > 0, "no page was shown")
        .and(
            asked > 0 || addresses < MANY_ADDRESSES,
            "nobody was asked to confirm",
        )
}

impl Scenario {
    /// Hosts a repository of an attacker with this number of commits, and returns its path and their ids.
    async fn repository_with_commits(&self, count: usize) -> (String, Vec<String>) {
        let (eve, client) = (Author::new().earlier(60), self.server.client());
        let work = Workdir::init().await;
        work.pipe(&["fast-import", "--quiet"], &history(count))
            .await;
        let commits = work.git(&["rev-list", "main"]).await.expect_ok();
        let commits: Vec<String> = commits.lines().map(str::to_owned).collect();
        let tip = commits.first().map(String::as_str).unwrap_or_default();
        let announcement = eve.announce("crawled", &self.server.service());
        let state = eve.state("crawled", &[("refs/heads/main", tip)]);
        client.publish_all(&[&announcement, &state]).await;
        let url = client.clone_url(&eve.repo("crawled"));
        work.git(&["push", &url, "main"]).await.expect_ok();
        (self.server.path(&eve.repo("crawled")), commits)
    }
}

/// Returns a history in which each commit changes a hundred lines of a file of a thousand, as `git fast-import` reads it.
fn history(commits: usize) -> Vec<u8> {
    let mut stream = String::new();
    for commit in 0..commits {
        let who = format!("Eve <eve@example.com> {} +0000", 1_700_000_000 + commit);
        let line = |n: usize| {
            format!(
                "line {n} of {}\n",
                if n % 10 == commit % 10 { commit } else { 0 }
            )
        };
        let text: String = (0..1_000).map(line).collect();
        let length = text.len();
        _ = writeln!(
            stream,
            "commit refs/heads/main\ncommitter {who}\ndata 4\nnext"
        );
        let file = commit % 10;
        _ = writeln!(stream, "M 644 inline file{file}\ndata {length}\n{text}");
    }
    stream.into_bytes()
}
