//! Attacks through requests of git that the server answers or judges itself.

use std::io::Write as _;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::future::join_all;
use grasp_tests::wire::{CAPABILITIES, ZERO_ID, pkt, push};
use grasp_tests::{Author, Workdir};
use tokio::time::{Instant, sleep};

use crate::attacker::Attacker;
use crate::attacks;
use crate::scenario::{Report, Scenario};

attacks![
    long_command_lists,
    lists_of_many_refs,
    refused_pushes_of_many_commands,
    unsigned_uploads_to_one_repository,
];

/// Duration of each attack.
const ATTACK_DURATION: Duration = Duration::from_secs(20);

/// Connections of the one address that attacks.
const CONNECTIONS: usize = 60;

/// Returns this number of commands without the end of the list, each with a name of about this length.
fn command_list(count: usize, name_length: usize) -> Vec<u8> {
    let mut list = Vec::new();
    let mut random: u64 = 1;
    for n in 0..count {
        let capabilities = if n == 0 {
            format!("\0{CAPABILITIES}")
        } else {
            String::new()
        };
        let mut name = format!("refs/heads/{n:05}");
        while name.len() < name_length {
            name += "/";
            name += &"x".repeat(200.min(name_length.saturating_sub(name.len())).max(1));
        }
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let new = format!("{random:016x}{:024x}", random.rotate_left(7));
        list.extend(pkt(format!("{ZERO_ID} {new} {name}{capabilities}")));
    }
    list
}

/// Repeats a request until the attack ends, each time with a new connection.
pub(crate) async fn repeat(
    attacker: Attacker,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> Vec<u16> {
    let end = Instant::now() + ATTACK_DURATION;
    let mut statuses = Vec::new();
    while Instant::now() < end {
        match attacker.status(method, path, headers, body).await {
            Some(status) => statuses.push(status),
            None => sleep(Duration::from_millis(20)).await,
        }
    }
    statuses
}

/// Sends lists of refs with names of 1 KB, compressed and not, that never end.
async fn long_command_lists() -> Report {
    let scenario = Scenario::start().await;
    let path = scenario.server.path(&scenario.honest.repo()) + "/git-receive-pack";
    let long = command_list(20_000, 1_000);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&long).expect("a write to memory");
    let compressed = encoder.finish().expect("a write to memory");
    assert!(
        long.len() / compressed.len() > 20,
        "{} of {}",
        compressed.len(),
        long.len()
    );
    let plain = command_list(20_000, 110);
    let attacker = scenario.attacker(1);
    let attack = async {
        let lists = (0..CONNECTIONS).map(async |n| {
            let (encoding, body) = if n % 2 == 0 {
                ("gzip", &compressed)
            } else {
                ("identity", &plain)
            };
            let _stream = attacker.start_unfinished_post(&path, encoding, body).await;
            sleep(ATTACK_DURATION).await;
        });
        join_all(lists).await;
    };
    scenario.run(0, attack).await
}

/// Requests all 10,000 refs of a repository, for fetches and pushes, and those with one of thousands of prefixes.
async fn lists_of_many_refs() -> Report {
    const REFS: usize = 10_000;
    const PREFIXES: usize = 5_200;
    let scenario = Scenario::start().await;
    let attacker = scenario.attacker(1);
    let path = scenario.repository_with_refs(REFS).await;
    let mut listing = [pkt("command=ls-refs\n"), b"0001".to_vec()].concat();
    for n in 0..PREFIXES {
        listing.extend(pkt(format!("ref-prefix {n:x}x")));
    }
    listing.extend(b"0000");
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&listing).expect("a write to memory");
    let listing = encoder.finish().expect("a write to memory");
    let mut answers = Vec::new();
    let attack = async {
        let fetch = format!("{path}/info/refs?service=git-upload-pack");
        let receive = format!("{path}/info/refs?service=git-receive-pack");
        let upload = format!("{path}/git-upload-pack");
        let version_2 = [("Git-Protocol", "version=2"), ("Content-Encoding", "gzip")];
        let requests = (0..CONNECTIONS).map(async |n| match n % 3 {
            0 => repeat(attacker, "GET", &fetch, &[], &[]).await,
            1 => repeat(attacker, "GET", &receive, &[], &[]).await,
            _ => repeat(attacker, "POST", &upload, &version_2, &listing).await,
        });
        answers = join_all(requests).await.concat();
    };
    let report = scenario.run(8 << 20, attack).await;
    let is_expected = |status: &u16| [200, 429, 503].contains(status);
    report
        .and(
            answers.iter().all(is_expected),
            "an answer has another status",
        )
        .and(answers.contains(&200), "no list was sent")
}

/// Pushes 20,000 refs that nobody signed, again and again.
async fn refused_pushes_of_many_commands() -> Report {
    let scenario = Scenario::start().await;
    let path = scenario.server.path(&scenario.honest.repo()) + "/git-receive-pack";
    let body = [command_list(20_000, 20), b"0000".to_vec()].concat();
    let attacker = scenario.attacker(1);
    let mut answers = Vec::new();
    let attack = async {
        let requests = (0..CONNECTIONS).map(|_| repeat(attacker, "POST", &path, &[], &body));
        answers = join_all(requests).await.concat();
    };
    let report = scenario.run(0, attack).await;
    let is_expected = |status: &u16| [200, 429, 503].contains(status);
    report.and(
        answers.iter().all(is_expected),
        "an answer has another status",
    )
}

/// Uploads commits of pull requests that do not exist to the repository of the maintainer, from six networks.
async fn unsigned_uploads_to_one_repository() -> Report {
    const NETWORKS: u8 = 6;
    const CONNECTIONS_PER_NETWORK: usize = 6;
    let scenario = Scenario::start().await;
    let path = scenario.server.path(&scenario.honest.repo()) + "/git-receive-pack";
    let work = Workdir::init().await;
    let tip = work.commit("upload").await;
    let pack = work.pack(&["main"]).await;
    let server = scenario.server.address();
    let attack = async {
        let networks = (0..NETWORKS).flat_map(|network| {
            (0..CONNECTIONS_PER_NETWORK).map(move |n| (Attacker::in_network(server, network), n))
        });
        let uploads = networks.enumerate().map(async |(number, (attacker, _))| {
            let end = Instant::now() + ATTACK_DURATION;
            let mut sent = 0;
            while Instant::now() < end {
                let names: Vec<String> = (0..8)
                    .map(|n| format!("refs/nostr/{number:016x}{sent:016x}{n:032x}"))
                    .collect();
                let commands: Vec<_> = names
                    .iter()
                    .map(|name| (ZERO_ID, &*tip, name.as_str()))
                    .collect();
                attacker.post(&path, &[], &push(&commands, &pack)).await;
                sent += 1;
            }
        });
        join_all(uploads).await;
    };
    scenario.run(64 << 20, attack).await
}

impl Scenario {
    /// Hosts a repository of an attacker with this number of branches, and returns its path.
    async fn repository_with_refs(&self, count: usize) -> String {
        let (eve, client) = (Author::new().earlier(60), self.server.client());
        let work = Workdir::init().await;
        let tip = work.commit("many").await;
        let pack = work.pack(&["main"]).await;
        let names: Vec<String> = (0..count).map(|n| format!("refs/heads/{n}")).collect();
        let refs: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*tip)).collect();
        let announcement = eve.announce("hostile", &self.server.service());
        client
            .publish_all(&[&announcement, &eve.state("hostile", &refs)])
            .await;
        let path = self.server.path(&eve.repo("hostile"));
        let commands: Vec<_> = refs
            .iter()
            .map(|(name, tip)| (ZERO_ID, *tip, *name))
            .collect();
        let attacker = Attacker::in_network(self.server.address(), 99);
        let push = push(&commands, &pack);
        let answer = attacker
            .post(&format!("{path}/git-receive-pack"), &[], &push)
            .await
            .body;
        assert!(
            !answer.contains("ng refs"),
            "{}",
            &answer[..answer.len().min(500)]
        );
        path
    }
}
