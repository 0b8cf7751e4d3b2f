//! Attacks through git: uploads, fetches, and git servers in a hunt.

use std::time::Duration;

use futures_util::future::join_all;
use grasp_tests::wire::{ZERO_ID, pkt, push};
use grasp_tests::{Author, Behaviour, GitServer, Workdir, eventually};
use tokio::io::AsyncReadExt as _;
use tokio::time::sleep;

use crate::attacker::Attacker;
use crate::attacks;
use crate::packs::{delta_bomb, delta_chain};
use crate::scenario::{Report, Scenario};
use crate::sync::HostileRelay;

attacks![
    delta_chain_upload,
    delta_bomb_upload,
    sparse_filter,
    memory_of_fetches,
    slow_readers,
    unreachable_objects,
    removed_commits,
    endless_refs,
];

const MAIN: &str = "refs/heads/main";

/// Duration of an attack that has no end of its own.
const ATTACK_DURATION: Duration = Duration::from_secs(20);

impl Scenario {
    /// Returns the path of a git service of the honest repository.
    fn service(&self, service: &str) -> String {
        format!("{}/{service}", self.server.path(&self.honest.repo()))
    }

    /// Hosts a repository of an attacker with this content, and returns its path and the tip of its branch.
    async fn hostile_repository(&self, work: &Workdir) -> (String, String) {
        let (eve, client) = (Author::new().earlier(60), self.server.client());
        let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
        let announcement = eve.announce("hostile", &self.server.service());
        client
            .publish_all(&[&announcement, &eve.state("hostile", &[(MAIN, &tip)])])
            .await;
        let url = client.clone_url(&eve.repo("hostile"));
        work.git(&["push", "-q", &url, "main"]).await.expect_ok();
        (self.server.path(&eve.repo("hostile")), tip)
    }
}

/// Uploads one chain of 20,000 deltas without a signed state. Half of the clients do not wait for an answer.
async fn delta_chain_upload() -> Report {
    let scenario = Scenario::start().await;
    let (path, (tip, pack)) = (scenario.service("git-receive-pack"), delta_chain(20_000));
    assert!(pack.len() < 2_000_000, "{}", pack.len());
    let attackers: Vec<Attacker> = (1..=4).map(|host| scenario.attacker(host)).collect();
    let mut answers = Vec::new();
    let attack = async {
        let uploads = attackers.iter().enumerate().map(async |(n, attacker)| {
            let request = push(&[(ZERO_ID, &tip, &format!("refs/nostr/{n:064x}"))], &pack);
            if n % 2 == 0 {
                return Some(attacker.post(&path, &[], &request).await.body);
            }
            attacker.start_post(&path, &request).await;
            None
        });
        answers = join_all(uploads).await.into_iter().flatten().collect();
    };
    // Honest pushes continue for a minute or two beside it.
    let report = scenario.run(8 << 20, attack).await;
    // On a slow machine git reaches the limit of its processor time first.
    let reasons = ["chain of more than", "took more CPU time"];
    let is_refused =
        |answer: &String| reasons.iter().any(|reason| answer.contains(reason)) || is_busy(answer);
    report.and(answers.iter().all(is_refused), format!("{answers:?}"))
}

/// Uploads packs of 16 KB that unpack to 650 MB, from three networks.
async fn delta_bomb_upload() -> Report {
    let scenario = Scenario::start().await;
    let (path, (tip, pack)) = (scenario.service("git-receive-pack"), delta_bomb(650));
    assert!(pack.len() < 16_384, "{}", pack.len());
    let mut answers = Vec::new();
    let server = scenario.server.address();
    let attackers: Vec<Attacker> = (0..32)
        .map(|n| match n % 4 {
            network @ 0..2 => Attacker::in_network(server, network),
            host => Attacker::at(server, host),
        })
        .collect();
    let attack = async {
        let uploads = attackers.iter().enumerate().map(async |(n, attacker)| {
            let request = push(&[(ZERO_ID, &tip, &format!("refs/nostr/{n:064x}"))], &pack);
            attacker.post(&path, &[], &request).await.body
        });
        answers = join_all(uploads).await;
    };
    let report = scenario.run(0, attack).await;
    let is_refused = |answer: &String| answer.contains("too much memory") || is_busy(answer);
    report.and(answers.iter().all(is_refused), format!("{answers:?}"))
}

fn is_busy(answer: &str) -> bool {
    answer.contains("try again later")
}

/// Fetches with a filter that visits each of 10^10 paths.
async fn sparse_filter() -> Report {
    let scenario = Scenario::start().await;
    let work = Workdir::init().await;
    let pattern = work
        .pipe(&["hash-object", "-w", "--stdin"], b"x/**/y\n")
        .await;
    let pattern = String::from_utf8(pattern).expect("an id");
    let mut below = format!("100644 blob {}\ta\n", pattern.trim());
    for _ in 0..10 {
        let tree = work.pipe(&["mktree"], below.as_bytes()).await;
        let tree = String::from_utf8(tree).expect("an id");
        below = (0..10)
            .map(|n| format!("040000 tree {}\t{n}\n", tree.trim()))
            .collect();
    }
    let tree = work.pipe(&["mktree"], below.as_bytes()).await;
    let tree = String::from_utf8(tree).expect("an id");
    let commit = work
        .git(&["commit-tree", "-m", "x", tree.trim()])
        .await
        .expect_ok();
    work.git(&["update-ref", MAIN, &commit]).await.expect_ok();
    let (path, tip) = scenario.hostile_repository(&work).await;
    let request = [
        pkt("command=fetch"),
        b"0001".to_vec(),
        pkt(format!("want {tip}\n")),
        pkt(format!("filter sparse:oid={}\n", pattern.trim())),
        pkt("done\n"),
        b"0000".to_vec(),
    ]
    .concat();
    let path = format!("{path}/git-upload-pack");
    let mut answers = Vec::new();
    let attackers: Vec<Attacker> = (0..32).map(|n| scenario.attacker(1 + n % 4)).collect();
    let attack = async {
        let headers = [("Git-Protocol", "version=2")];
        let fetches = attackers
            .iter()
            .map(|one| one.post(&path, &headers, &request));
        answers = join_all(fetches).await;
    };
    let report = scenario.run(1 << 20, attack).await;
    let is_refused = |body: &str| body.contains("filter 'sparse:oid' not supported");
    report.and(
        answers.iter().all(|answer| is_refused(&answer.body)),
        format!("{answers:?}"),
    )
}

/// Fetches a repository of some megabytes whose files are large and similar: git could look for deltas among them.
async fn memory_of_fetches() -> Report {
    const PUSHES: u64 = 15;
    let scenario = Scenario::start().await;
    let client = scenario.server.client();
    let eve = Author::new().earlier(60);
    let repo = eve.repo("hostile");
    let url = client.clone_url(&repo);
    let announcement = eve.announce("hostile", &scenario.server.service());
    let work = Workdir::init().await;
    let mut tip = String::new();
    for number in 0..PUSHES {
        let file = work.path().join(format!("file-{number}"));
        std::fs::write(file, compressible(number)).expect("a file is written");
        work.git(&["add", "."]).await.expect_ok();
        tip = work.commit(&format!("{number}")).await;
        let state = eve.later(number).state("hostile", &[(MAIN, &tip)]);
        client.publish_all(&[&announcement, &state]).await;
        work.git(&["push", "-q", &url, "main"]).await.expect_ok();
    }
    let request = [
        pkt("command=fetch"),
        b"0001".to_vec(),
        pkt("ofs-delta\n"),
        pkt(format!("want {tip}\n")),
        pkt("done\n"),
        b"0000".to_vec(),
    ]
    .concat();
    assert!(request.len() < 130, "{}", request.len());
    let path = format!("{}/git-upload-pack", scenario.server.path(&repo));
    let mut statuses = Vec::new();
    let server = scenario.server.address();
    let attackers: Vec<Attacker> = (0..36)
        .map(|n| Attacker::in_network(server, n % 6))
        .collect();
    let attack = async {
        let headers = [("Git-Protocol", "version=2")];
        let fetches = attackers
            .iter()
            .map(|one| one.status("POST", &path, &headers, &request));
        statuses = join_all(fetches).await;
    };
    let report = scenario.run(8 << 20, attack).await;
    let is_answered = |status: &Option<u16>| matches!(status, Some(200 | 503));
    report.and(statuses.iter().all(is_answered), format!("{statuses:?}"))
}

/// Returns 15 MB that compress to a hundredth: one of 60 words, each repeated, in an order of its own.
fn compressible(seed: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut random = seed + 1;
    while bytes.len() < 15 << 20 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let word = format!("{:08x}", (random >> 33) % 60 * 0x0101_4f6b);
        bytes.extend(word.repeat(400).into_bytes());
    }
    bytes
}

/// Reads clones at 3.4 KB per second.
async fn slow_readers() -> Report {
    let scenario = Scenario::start().await;
    let work = Workdir::init().await;
    work.commit_incompressible(16 << 20).await;
    let (path, tip) = scenario.hostile_repository(&work).await;
    let want = pkt(format!("want {tip} side-band-64k ofs-delta\n"));
    let request = [want, b"0000".to_vec(), pkt("done\n")].concat();
    let path = format!("{path}/git-upload-pack");
    let readers: Vec<Attacker> = (0..32).map(|n| scenario.attacker(1 + n)).collect();
    let attack = async {
        let read = async |reader: &Attacker| {
            let Some(mut stream) = reader.start_post(&path, &request).await else {
                return;
            };
            let mut buffer = vec![0; 340];
            while stream.read(&mut buffer).await.is_ok_and(|read| read > 0) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        let _ = tokio::time::timeout(ATTACK_DURATION, join_all(readers.iter().map(read))).await;
    };
    scenario.run(32 << 20, attack).await
}

/// Pushes signed refs with many more objects than the refs reach.
async fn unreachable_objects() -> Report {
    const EXTRA_BYTES: usize = 8 << 20;
    let scenario = Scenario::start().await;
    let (client, service) = (scenario.server.client(), scenario.server.service());
    let attacker = scenario.attacker(1);
    let work = Workdir::init().await;
    let extra = work.commit_incompressible(EXTRA_BYTES).await;
    let list = work
        .git(&["rev-list", "--objects", "--no-object-names", &extra])
        .await
        .expect_ok();
    work.git(&["checkout", "-q", "--orphan", "small"])
        .await
        .expect_ok();
    work.git(&["rm", "-q", "-r", "-f", "."]).await.expect_ok();
    let tip = work.commit("small").await;
    let own = work
        .git(&["rev-list", "--objects", "--no-object-names", &tip])
        .await
        .expect_ok();
    let objects = format!("{list}\n{own}\n");
    let pack = work
        .pipe(&["pack-objects", "--stdout", "-q"], objects.as_bytes())
        .await;
    assert!(pack.len() > EXTRA_BYTES, "{}", pack.len());
    let mut answers = Vec::new();
    let attack = async {
        for n in 0..4 {
            let (eve, name) = (Author::new(), format!("hostile-{n}"));
            let announcement = eve.announce(&name, &service);
            client
                .publish_all(&[&announcement, &eve.state(&name, &[(MAIN, &tip)])])
                .await;
            let path = format!("{}/git-receive-pack", service.repo_path(&eve.repo(&name)));
            let request = push(&[(ZERO_ID, &tip, MAIN)], &pack);
            answers.push(attacker.post(&path, &[], &request).await.body);
        }
    };
    let report = scenario.run(2 << 20, attack).await;
    let is_accepted = |answer: &String| answer.contains("ok refs/heads/main");
    report.and(answers.iter().all(is_accepted), format!("{answers:?}"))
}

/// Returns whether a commit can be fetched by its id.
pub(crate) async fn is_readable(url: &str, commit: &str) -> bool {
    Workdir::init()
        .await
        .git(&["fetch", "-q", "--depth", "1", url, commit])
        .await
        .ok
}

/// Fetches a commit whose owner has vanished through another owner of the same identifier. A commit that a forced push
/// replaced stays readable for its own repository.
async fn removed_commits() -> Report {
    let mut scenario = Scenario::start().await;
    let (client, service) = (scenario.server.client(), scenario.server.service());
    let (alice, bob) = (Author::new().earlier(60), Author::new().earlier(60));
    let (hers, his) = (Workdir::init().await, Workdir::init().await);
    let of_alice = hers.commit_incompressible(1 << 20).await;
    let first = his.commit("removed").await;
    for (owner, work, tip) in [(&alice, &hers, &of_alice), (&bob, &his, &first)] {
        client
            .publish_all(&[&owner.announce("shared", &service)])
            .await;
        client
            .publish_all(&[&owner.state("shared", &[(MAIN, tip)])])
            .await;
        let url = client.clone_url(&owner.repo("shared"));
        work.git(&["push", "-q", &url, "main"]).await.expect_ok();
    }
    let url = client.clone_url(&bob.repo("shared"));
    his.git(&["commit", "-q", "--amend", "-m", "amended"])
        .await
        .expect_ok();
    let second = his.git(&["rev-parse", "main"]).await.expect_ok();
    client
        .publish_all(&[&bob.later(1).state("shared", &[(MAIN, &second)])])
        .await;
    his.git(&["push", "-q", "-f", &url, "main"])
        .await
        .expect_ok();
    client
        .publish_all(&[&alice.later(1).sign(62, "", &[&["relay", "ALL_RELAYS"]])])
        .await;
    let gone = async || client.refs(&alice.repo("shared")).await.is_none();
    while !gone().await {
        sleep(Duration::from_millis(50)).await;
    }
    // Maintenance visits every identifier every few hours, and once after the start.
    scenario.server.restart().await;
    let (mut readable, mut served) = (true, false);
    let attack = async {
        let end = tokio::time::Instant::now() + ATTACK_DURATION;
        while readable && tokio::time::Instant::now() < end {
            sleep(Duration::from_millis(200)).await;
            readable = is_readable(&url, &of_alice).await;
        }
        served = is_readable(&url, &second).await && is_readable(&url, &first).await;
    };
    let report = scenario.run(2 << 20, attack).await;
    report
        .and(!readable, "a removed commit can be fetched")
        .and(served, "a served commit cannot be fetched")
}

/// States whose git servers advertise refs without end. A relay brings them: the hunt for a client's events starts later.
async fn endless_refs() -> Report {
    let scenario = Scenario::start().await;
    let authors: Vec<Author> = (0..16).map(|_| Author::new()).collect();
    let name = |n: usize| format!("hostile-{n}");
    let state = |(n, eve): (usize, &Author)| eve.state(&name(n), &[(MAIN, &format!("{n:040x}"))]);
    let states = authors.iter().enumerate().map(state);
    let states = states
        .map(|state| serde_json::to_string(&state).expect("an event"))
        .collect();
    let relay = HostileRelay::start(states, false).await;
    let mut servers = Vec::new();
    for (n, eve) in authors.iter().enumerate() {
        let server = GitServer::at(&format!("127.9.9.{}", n + 1), Behaviour::EndlessRefs).await;
        let (clone, url) = (server.url(&name(n)), relay.url(9, 9));
        let tags: [&[&str]; 2] = [&["clone", &clone], &["relays", &url]];
        let announcement = eve.announce_with(&name(n), &scenario.server.service(), &tags);
        scenario.server.client().publish_all(&[&announcement]).await;
        servers.push(server);
    }
    let is_visited = |server: &GitServer| server.git_requests().len() >= 2;
    let attack = async {
        let all_visited = || servers.iter().all(is_visited).then_some(());
        eventually(all_visited).await;
    };
    scenario.run(16 << 20, attack).await
}
