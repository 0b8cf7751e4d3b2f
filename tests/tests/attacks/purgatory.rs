//! Attacks on purgatory and on the disk: held events, staged uploads, deletions.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use grasp_core::RepoId;
use grasp_core::push::MAX_UPLOADS;
use grasp_tests::wire::{ZERO_ID, push};
use grasp_tests::{Author, ServerClient, Workdir, request_head};
use nostr::event::Event;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;

use crate::attacker::{Attacker, Relay};
use crate::attacks;
use crate::scenario::{LatencyBound, Report, Scenario};

attacks![
    refused_deletions,
    constant_events_of_one_name,
    proposals_with_many_names,
    purgatory_filled,
    staging_filled,
    proposal_to_sixteen_names,
    deletion_during_upload,
    proposals_for_served_commits,
    state_that_expires,
    one_state_in_many_views,
];

const MAIN: &str = "refs/heads/main";

/// Time within which an event must have its effect.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Sends events and reads the answers; returns how many were accepted.
async fn send(relay: &mut Relay, events: &[Event]) -> usize {
    for event in events {
        let event: Value = serde_json::from_str(&event.as_json()).expect("JSON");
        if !relay.send(&json!(["EVENT", event])).await {
            return 0;
        }
    }
    let mut accepted = 0;
    for _ in events {
        match tokio::time::timeout(EFFECT_TIMEOUT, relay.receive()).await {
            Ok(Some(answer)) => accepted += usize::from(answer[0] == "OK" && answer[2] == true),
            _ => break,
        }
    }
    accepted
}

/// Hosts a repository, and returns its working directory.
async fn host(client: &ServerClient, owner: &Author, name: &str, bytes: usize) -> Workdir {
    let work = Workdir::init().await;
    let tip = match bytes {
        0 => work.commit(name).await,
        bytes => work.commit_incompressible(bytes).await,
    };
    client
        .publish_all(&[
            &owner.announce(name, &client.service()),
            &owner.state(name, &[(MAIN, &tip)]),
        ])
        .await;
    work.git(&["push", "-q", &client.clone_url(&owner.repo(name)), "main"])
        .await
        .expect_ok();
    work
}

/// Waits until a repository is no longer served, and returns whether that happened in time.
pub(crate) async fn until_gone(client: &ServerClient, repo: &RepoId) -> bool {
    let gone = async {
        while client.refs(repo).await.is_some() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(EFFECT_TIMEOUT, gone).await.is_ok()
}

async fn relay(attacker: Attacker) -> Relay {
    attacker.relay().await.expect("the server listens")
}

/// Publishes deletion requests that are refused, with higher ids than that of the one that follows.
async fn refused_deletions() -> Report {
    let scenario = Scenario::start().await;
    let (client, attacker, honest) = (
        scenario.server.client(),
        scenario.attacker(1),
        scenario.honest.repo(),
    );
    let gone = AtomicBool::new(false);
    let attack = async {
        let (eve, victim) = (Author::new().earlier(60), Author::new().earlier(60));
        host(&client, &eve, "eve", 0).await;
        host(&client, &victim, "victim", 0).await;
        let announced = victim.announce("victim", &client.service());
        let own = format!("30617:{}:eve", eve.key());
        let request = |n: usize| {
            let foreign = announced.id.to_hex();
            eve.later(1)
                .sign(5, &n.to_string(), &[&["a", &own], &["e", &foreign]])
        };
        let requests: Vec<Event> = (0..1_100).map(request).collect();
        let mut relay = relay(attacker).await;
        for some in requests.chunks(100) {
            send(&mut relay, some).await;
        }
        let all = format!("30617:{}:victim", victim.key());
        let mine = |n: usize| victim.later(1).sign(5, &n.to_string(), &[&["a", &all]]);
        let lowest = (0..64)
            .map(mine)
            .min_by_key(|event| event.id)
            .expect("some");
        client.publish_all(&[&lowest]).await;
        gone.store(
            until_gone(&client, &victim.repo("victim")).await,
            Ordering::Relaxed,
        );
        assert_ne!(honest.owner, victim.key());
    };
    let report = scenario.run(16 << 20, attack).await;
    report.and(gone.into_inner(), "a deleted repository is still served")
}

/// Publishes three events per second under the name that is pushed to.
async fn constant_events_of_one_name() -> Report {
    let scenario = Scenario::start().await;
    let (attacker, service, name) = (
        scenario.attacker(1),
        scenario.server.service(),
        scenario.honest.name.clone(),
    );
    let attack = async {
        let mut relay = relay(attacker).await;
        for _ in 0..60 {
            send(&mut relay, &[Author::new().announce(&name, &service)]).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    scenario
        .run(16 << 20, attack)
        .await
        .within(LatencyBound::AsIdle)
}

/// Publishes 990 pull requests to the repository that is pushed to, each of which names fifteen others.
async fn proposals_with_many_names() -> Report {
    let scenario = Scenario::start().await;
    let (server, repo) = (
        scenario.server.address(),
        scenario.honest.repo().to_string(),
    );
    let attack = async {
        for network in 0..11 {
            let mut relay = relay(Attacker::in_network(server, network)).await;
            let eve = Author::new();
            let proposals: Vec<Event> = (0..90)
                .map(|n| {
                    let other = |m: usize| format!("30617:{}:{network}-{n}-{m}", eve.key());
                    let others: Vec<String> = (0..15).map(other).collect();
                    let mut tags = vec![vec!["a", repo.as_str()]];
                    tags.extend(others.iter().map(|other| vec!["a", other.as_str()]));
                    let tip = format!("{:040x}", n + 1_000 * usize::from(network) + 1);
                    tags.push(vec!["c", &tip]);
                    let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
                    eve.sign(1618, "", &tags)
                })
                .collect();
            send(&mut relay, &proposals).await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
    };
    scenario.run(64 << 20, attack).await
}

/// Publishes large states of a few keys, more than purgatory may hold.
async fn purgatory_filled() -> Report {
    let scenario = Scenario::start().await;
    let (client, server) = (scenario.server.client(), scenario.server.address());
    let service = scenario.server.service();
    let served = AtomicBool::new(false);
    let attack = async {
        for key in 0..18 {
            let eve = Author::new().earlier(100);
            let mut relay = relay(Attacker::in_network(server, key % 6)).await;
            send(&mut relay, &[eve.announce("eve", &service)]).await;
            for n in 0..17 {
                let refs: Vec<(String, String)> = (0..1_900)
                    .map(|m| {
                        (
                            format!("refs/heads/{m}-{}", "b".repeat(80)),
                            format!("{:040x}", m + n + 1),
                        )
                    })
                    .collect();
                let refs: Vec<(&str, &str)> = refs
                    .iter()
                    .map(|(name, oid)| (name.as_str(), oid.as_str()))
                    .collect();
                send(&mut relay, &[eve.later(n).state("eve", &refs)]).await;
            }
        }
        let newcomer = Author::new().earlier(60);
        host(&client, &newcomer, "newcomer", 0).await;
        served.store(
            client.refs(&newcomer.repo("newcomer")).await.is_some(),
            Ordering::Relaxed,
        );
    };
    let report = scenario.run(256 << 20, attack).await;
    report.and(served.into_inner(), "a new repository is not served")
}

/// Pushes from 32 networks, each with the maximum of uploads without a signed event.
async fn staging_filled() -> Report {
    let scenario = Scenario::start().await;
    let (client, server, repo) = (
        scenario.server.client(),
        scenario.server.address(),
        scenario.honest.repo(),
    );
    let path = format!("{}/git-receive-pack", scenario.server.path(&repo));
    let theirs = Workdir::init().await;
    let tip = theirs.commit("upload").await;
    let pack = theirs.pack(&["main"]).await;
    let (work, newcomer) = (Workdir::init().await, Author::new());
    let proposal = newcomer.pull_request(&repo, &work.commit("proposed").await);
    let name = format!("refs/nostr/{}", proposal.id);
    let (mut staged, mut served) = (0, false);
    let attack = async {
        for network in 0..32 {
            let name = |n: usize| format!("refs/nostr/{:064x}", usize::from(network) << 8 | n);
            let names: Vec<String> = (0..MAX_UPLOADS).map(name).collect();
            let uploads: Vec<_> = names.iter().map(|name| (ZERO_ID, &*tip, &**name)).collect();
            let request = push(&uploads, &pack);
            let answer = Attacker::in_network(server, network)
                .post(&path, &[], &request)
                .await;
            staged += answer.body.matches("ok refs/nostr/").count();
        }
        let url = client.clone_url(&repo);
        let pushed = work
            .git(&["push", "-q", &url, &format!("main:{name}")])
            .await;
        served = pushed.ok && matches!(client.publish(&proposal).await, Some(Ok(())));
        served &= client.refs(&repo).await.unwrap_or_default().contains(&name);
    };
    let report = scenario.run(64 << 20, attack).await;
    report
        .and(staged > 100, format!("{staged} uploads were accepted"))
        .and(served, "there is no room for the upload of a new author")
}

/// Publishes a pull request of a large repository that tags sixteen names.
async fn proposal_to_sixteen_names() -> Report {
    const LARGE: usize = 8 << 20;
    let scenario = Scenario::start().await;
    let client = scenario.server.client();
    let attack = async {
        let eve = Author::new().earlier(60);
        let work = host(&client, &eve, "large", LARGE).await;
        let mut tags = vec![eve.repo("large").to_string()];
        for n in 0..15 {
            let name = format!("small-{n}");
            host(&client, &eve, &name, 0).await;
            tags.push(eve.repo(&name).to_string());
        }
        let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
        let mut tags: Vec<Vec<&str>> = tags.iter().map(|to| vec!["a", to.as_str()]).collect();
        tags.push(vec!["c", &tip]);
        let tags: Vec<&[&str]> = tags.iter().map(Vec::as_slice).collect();
        client.publish_all(&[&eve.sign(1618, "", &tags)]).await;
        tokio::time::sleep(Duration::from_secs(3)).await;
    };
    // The objects once, and the space of sixteen empty repositories.
    // Each repository that it names gets a copy, within the limits of its author.
    scenario.run(18 * LARGE as u64, attack).await
}

/// Pushes to a repository that its owner deletes during the upload.
async fn deletion_during_upload() -> Report {
    let scenario = Scenario::start().await;
    let (client, attacker, server) = (
        scenario.server.client(),
        scenario.attacker(1),
        scenario.server.address(),
    );
    let victim = Author::new().earlier(60);
    let path = scenario.server.path(&victim.repo("victim"));
    let gone = AtomicBool::new(false);
    let attack = async {
        host(&client, &victim, "victim", 0).await;
        let command = format!(
            "{} {} refs/nostr/{}\0report-status",
            "0".repeat(40),
            "1".repeat(40),
            "2".repeat(64)
        );
        let body = format!("{:04x}{command}0000PACK", command.len() + 4);
        let headers = [
            ("Content-Type", "application/x-git-receive-pack-request"),
            ("Content-Length", "1000000"),
        ];
        let request = request_head(
            &server.to_string(),
            "POST",
            &format!("{path}/git-receive-pack"),
            &headers,
        );
        let mut upload = attacker.connect().await.expect("the server listens");
        upload
            .write_all(&[request.as_bytes(), body.as_bytes()].concat())
            .await
            .expect("the server reads the request");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let all = format!("30617:{}:victim", victim.key());
        client
            .publish_all(&[&victim.later(1).sign(5, "", &[&["a", &all]])])
            .await;
        gone.store(
            until_gone(&client, &victim.repo("victim")).await,
            Ordering::Relaxed,
        );
        drop(upload);
    };
    let report = scenario.run(16 << 20, attack).await;
    report.and(gone.into_inner(), "a deleted repository is still served")
}

/// Publishes hundreds of pull requests for a served commit.
async fn proposals_for_served_commits() -> Report {
    let scenario = Scenario::start().await;
    let (client, server, repo) = (
        scenario.server.client(),
        scenario.server.address(),
        scenario.honest.repo(),
    );
    let tip = scenario
        .honest
        .work
        .git(&["rev-parse", "main"])
        .await
        .expect_ok();
    let bounded = AtomicBool::new(false);
    let attack = async {
        let eve = Author::new().earlier(1_000);
        let mut relay = relay(Attacker::in_network(server, 1)).await;
        let proposals: Vec<Event> = (0..400)
            .map(|n| eve.later(n).pull_request(&repo, &tip))
            .collect();
        for some in proposals.chunks(50) {
            send(&mut relay, some).await;
        }
        let refs = client.refs(&repo).await.unwrap_or_default();
        bounded.store(
            refs.matches("refs/nostr/").count() <= 200,
            Ordering::Relaxed,
        );
    };
    let report = scenario.run(16 << 20, attack).await;
    report.and(
        bounded.into_inner(),
        "the proposals of one author fill the advertisement",
    )
}

/// Publishes a state with an expiration.
async fn state_that_expires() -> Report {
    let scenario = Scenario::start().await;
    let client = scenario.server.client();
    let gone = AtomicBool::new(false);
    let attack = async {
        let (eve, work) = (Author::new(), Workdir::init().await);
        let tip = work.commit("brief").await;
        let end = (nostr::types::Timestamp::now().as_secs() + 5).to_string();
        let state = eve.sign(
            30618,
            "",
            &[&["d", "brief"], &[MAIN, &tip], &["expiration", &end]],
        );
        client
            .publish_all(&[&eve.announce("brief", &client.service()), &state])
            .await;
        let url = client.clone_url(&eve.repo("brief"));
        work.git(&["push", "-q", &url, "main"]).await.expect_ok();
        let is_served = async || {
            client
                .refs(&eve.repo("brief"))
                .await
                .unwrap_or_default()
                .contains(&tip)
        };
        let ended = async {
            while is_served().await {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        gone.store(
            tokio::time::timeout(EFFECT_TIMEOUT, ended).await.is_ok(),
            Ordering::Relaxed,
        );
    };
    let report = scenario.run(16 << 20, attack).await;
    report.and(
        gone.into_inner(),
        "refs are served after their state has expired",
    )
}

/// Announces repositories of 300 keys under the name that is pushed to, all with one lead, who signs a state of as many refs
/// as an event can have.
async fn one_state_in_many_views() -> Report {
    const KEYS: usize = 300;
    const REFS: usize = 12_000;
    let scenario = Scenario::start().await;
    let (client, server) = (scenario.server.client(), scenario.server.address());
    let (service, name) = (scenario.server.service(), scenario.honest.name.clone());
    let work = Workdir::init().await;
    let tip = work.commit("lead").await;
    let pack = work.pack(&["main"]).await;
    let mut pushed = String::new();
    let shown = AtomicUsize::new(0);
    let attack = async {
        let lead = Author::new().earlier(600);
        let key = lead.key().to_string();
        let attacker = Attacker::in_network(server, 0);
        let path = format!("{}/git-receive-pack", service.repo_path(&lead.repo(&name)));
        let announce = |author: &Author| author.announce_with(&name, &service, &[&["M", &key]]);
        let mut relay_of_lead = relay(attacker).await;
        send(&mut relay_of_lead, &[announce(&lead)]).await;
        let followers: Vec<Author> = (1..KEYS).map(|_| Author::new().earlier(600)).collect();
        for (network, some) in (1..).zip(followers.chunks(50)) {
            let mut relay = relay(Attacker::in_network(server, network)).await;
            let announcements: Vec<Event> = some.iter().map(announce).collect();
            send(&mut relay, &announcements).await;
        }
        let names: Vec<String> = (0..REFS).map(|n| format!("refs/heads/{n}")).collect();
        let refs: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &*tip)).collect();
        // Too much for all views, and then as much as they may show.
        for (n, count) in (0..).zip([REFS, REFS, REFS, 160, 159, 158]) {
            send(
                &mut relay_of_lead,
                &[lead.later(n).state(&name, &refs[..count])],
            )
            .await;
            if n == 0 {
                let uploads: Vec<_> = refs
                    .iter()
                    .map(|(name, tip)| (ZERO_ID, *tip, *name))
                    .collect();
                pushed = attacker.post(&path, &[], &push(&uploads, &pack)).await.body;
            }
        }
        for author in followers.iter().chain([&lead]) {
            let refs = client.refs(&author.repo(&name)).await.unwrap_or_default();
            shown.fetch_add(refs.matches("refs/heads/").count(), Ordering::Relaxed);
        }
    };
    let report = scenario.run(256 << 20, attack).await;
    let shown = shown.into_inner();
    report
        .within(LatencyBound::Tolerable)
        .and(pushed.contains("unpack ok"), pushed)
        .and(
            (1..=4_000_000).contains(&shown),
            format!("{shown} refs are shown"),
        )
}
