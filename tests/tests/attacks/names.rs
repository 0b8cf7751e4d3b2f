//! Attacks by strangers who announce the name of an honest repository as their own.
//!
//! Anyone may announce any name. The repositories of two owners who do not list each other have nothing in common: not their
//! disk space, nor their hunt, nor their objects.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use grasp_core::ServiceIdentity;
use grasp_tests::{Author, GitServer, ServerClient, Workdir, eventually};
use nostr::event::Event;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::attacker::Attacker;
use crate::attacks;
use crate::git::is_readable;
use crate::nostr::{STORE_LOG_BYTES, messages, publish};
use crate::purgatory::until_gone;
use crate::scenario::{LatencyBound, Report, Scenario};
use crate::sync::HostileRelay;

attacks![
    disk_of_a_name_filled,
    hunt_of_a_name_starved,
    name_closed_by_announcements,
    objects_of_other_owners,
];

const MAIN: &str = "refs/heads/main";

/// Announces a repository, signs its branch `main` and pushes it.
async fn host(
    client: &ServerClient,
    owner: &Author,
    name: &str,
    work: &Workdir,
) -> Result<(), String> {
    let announcement = owner.announce(name, &client.service());
    client
        .publish(&announcement)
        .await
        .ok_or("the announcement is not answered")??;
    push(client, owner, name, work).await
}

/// Signs the branch `main` of an announced repository and pushes it.
async fn push(
    client: &ServerClient,
    owner: &Author,
    name: &str,
    work: &Workdir,
) -> Result<(), String> {
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let state = owner.state(name, &[(MAIN, &tip)]);
    client
        .publish(&state)
        .await
        .ok_or("the state is not answered")??;
    let url = client.clone_url(&owner.repo(name));
    let pushed = work.git(&["push", "-q", "-f", &url, "main"]).await;
    if pushed.ok { Ok(()) } else { Err(pushed.err) }
}

/// Hosts a repository under the name of an honest one, and pushes until it has all the disk space that it may have.
async fn disk_of_a_name_filled() -> Report {
    const REPOSITORY_BYTES: usize = 8 << 20;
    /// Size of the smallest pushes, about that of an honest one.
    const SMALLEST_BYTES: usize = 512;
    /// Duration of honest operations after the repository is full.
    const FULL_DURATION: Duration = Duration::from_secs(3);
    let limit = REPOSITORY_BYTES.to_string();
    let scenario = Scenario::with(&["--git-repository-bytes", &limit]).await;
    let client = scenario.server.client();
    let name = scenario.honest.name.clone();
    let mut stored = 0;
    let mut refusals = Vec::new();
    let attack = async {
        let eve = Author::new().earlier(600);
        let work = Workdir::init().await;
        work.commit("first").await;
        host(&client, &eve, &name, &work)
            .await
            .expect("a new repository is served");
        let mut bytes = REPOSITORY_BYTES / 4;
        for n in 1..=64 {
            // Files of different sizes have different content.
            work.commit_incompressible(bytes + 8 * n).await;
            match push(&client, &eve.later(n as u64), &name, &work).await {
                Ok(()) => stored += bytes,
                Err(_) if bytes < SMALLEST_BYTES => break,
                Err(reason) => {
                    refusals.push(reason);
                    work.git(&["reset", "-q", "--hard", "HEAD~1"])
                        .await
                        .expect_ok();
                    bytes /= 2;
                }
            }
        }
        sleep(FULL_DURATION).await;
    };
    // The repository, and as much while it is repacked, on every node.
    let disk_bound = 2 * REPOSITORY_BYTES * scenario.server.process_count();
    let report = scenario.run(disk_bound as u64, attack).await;
    let is_limited = refusals
        .iter()
        .all(|reason| reason.contains("git.repository_bytes"));
    report
        .within(LatencyBound::AsIdle)
        .and_all_succeeded()
        .and(is_limited, format!("{refusals:?}"))
        .and(
            (REPOSITORY_BYTES / 2..=REPOSITORY_BYTES).contains(&stored),
            format!("the stranger's repository has {stored} bytes of {REPOSITORY_BYTES}"),
        )
}

/// Git servers that accept connections and never answer, on every address of loopback. Dropping them closes all.
struct SilentServers {
    port: u16,
    opened: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl SilentServers {
    async fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
            .await
            .expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let opened = Arc::<AtomicUsize>::default();
        let count = Arc::clone(&opened);
        let accepting = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                open.push(stream);
                count.store(open.len(), Ordering::Relaxed);
            }
        });
        Self {
            port,
            opened,
            accepting,
        }
    }

    /// Returns the URLs of a repository on this number of addresses in one network.
    fn urls(&self, network: u8, count: u8) -> Vec<String> {
        (1..=count)
            .map(|host| format!("http://127.7.{network}.{host}:{}/x", self.port))
            .collect()
    }
}

impl Drop for SilentServers {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Announces a repository that other git servers have, and another relay.
fn announce(
    owner: &Author,
    name: &str,
    service: &ServiceIdentity,
    clone: &[String],
    relay: &str,
) -> Event {
    let mut addresses = vec!["clone"];
    addresses.extend(clone.iter().map(String::as_str));
    owner.announce_with(name, service, &[&addresses, &["relays", relay]])
}

/// Signs a state until its id is low, so that it is the first in any order of ids.
fn state_with_low_id(author: &Author, name: &str) -> Event {
    let tip = author.key().to_hex()[..40].to_owned();
    let states = (0..64).map(|second| author.earlier(second).state(name, &[(MAIN, &tip)]));
    states.min_by_key(|state| state.id).expect("some")
}

/// Waits until an event is served, and returns the time that it took if that is within the limit.
async fn time_until_served(
    client: &ServerClient,
    event: &Event,
    limit: Duration,
) -> Option<Duration> {
    let start = Instant::now();
    let filter = json!({ "ids": [event.id.to_hex()] });
    while client.matching(&filter).await?.is_empty() {
        if start.elapsed() > limit {
            return None;
        }
        sleep(Duration::from_millis(50)).await;
    }
    Some(start.elapsed())
}

/// Announces the name of a repository whose data another git server has, with as many servers that do not answer as the hunt
/// visits. Relays bring the states: the hunt for a client's events starts later.
async fn hunt_of_a_name_starved() -> Report {
    const STRANGERS: u8 = 3;
    const ADDRESSES: u8 = 32;
    /// Time within which the data of a small repository is fetched from a server that answers.
    const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
    let scenario = Scenario::start().await;
    let client = scenario.server.client();
    let service = scenario.server.service();
    let name = scenario.honest.name.clone();

    let work = Workdir::init().await;
    let first = work.commit("first").await;
    let second = work.commit("second").await;
    let git = GitServer::start().await;
    git.host("hunted", &work).await;
    let owner = Author::new();
    let other = owner.state("other", &[(MAIN, &first)]);
    let state = owner.state(&name, &[(MAIN, &second)]);
    let relay = HostileRelay::start(vec![other.as_json(), state.as_json()], false).await;
    let addresses = [git.url("hunted")];
    let url = relay.url(8, 1);
    client
        .publish_all(&[&announce(&owner, "other", &service, &addresses, &url)])
        .await;
    let idle = time_until_served(&client, &other, FETCH_TIMEOUT)
        .await
        .expect("data is fetched");

    let strangers: Vec<Author> = (0..STRANGERS).map(|_| Author::new()).collect();
    let states = strangers
        .iter()
        .map(|eve| state_with_low_id(eve, &name).as_json())
        .collect();
    let hostile = HostileRelay::start(states, false).await;
    let silent = SilentServers::start().await;
    let mut attacked = None;
    let bound = (idle * 5).max(FETCH_TIMEOUT / 4);
    let attack = async {
        for (network, eve) in (0..).zip(&strangers) {
            let addresses = silent.urls(network, ADDRESSES);
            let announcement = announce(eve, &name, &service, &addresses, &hostile.url(9, 1));
            client.publish_all(&[&announcement]).await;
        }
        let is_visited = || (silent.opened.load(Ordering::Relaxed) > 0).then_some(());
        eventually(is_visited).await;
        client
            .publish_all(&[&announce(&owner, &name, &service, &addresses, &url)])
            .await;
        attacked = time_until_served(&client, &state, bound).await;
        drop(silent);
    };
    let report = scenario.run(16 << 20, attack).await;
    report.within(LatencyBound::AsIdle).and_all_succeeded().and(
        attacked.is_some(),
        format!("a state is not served within {bound:?}; without the attack it took {idle:?}"),
    )
}

/// Announces one name by 1,548 keys, twelve of which list 128 maintainers each. Then a new owner announces it too.
async fn name_closed_by_announcements() -> Report {
    const LISTS: u8 = 12;
    /// Lists whose maintainers host the repository here too; the others announce it without a server.
    const HOSTED_LISTS: u8 = 2;
    const LISTED: usize = 128;
    let scenario = Scenario::start().await;
    let client = scenario.server.client();
    let server = scenario.server.address();
    let service = scenario.server.service();
    let name = scenario.honest.name.clone();
    let mut batches = Vec::new();
    for number in 0..LISTS {
        let members: Vec<Author> = (0..LISTED).map(|_| Author::new()).collect();
        let keys: Vec<String> = members.iter().map(|member| member.key().to_hex()).collect();
        let mut listed = vec!["maintainers"];
        listed.extend(keys.iter().map(String::as_str));
        let mut events = vec![Author::new().announce_with(&name, &service, &[&listed])];
        for member in &members {
            events.push(match number < HOSTED_LISTS {
                true => member.announce(&name, &service),
                false => member.sign(30617, "", &[&["d", &name]]),
            });
        }
        batches.push(messages(&events));
    }
    let mut accepted = 0;
    let mut newcomer = Ok(());
    let attack = async {
        // One after the other, so that the cores are not busy because of the replay.
        for (network, mut batch) in (0..).zip(batches) {
            let attacker = Attacker::in_network(server, network);
            let rest = batch.split_off(1);
            accepted += publish(attacker, batch).await;
            accepted += publish(attacker, rest).await;
        }
        let work = Workdir::init().await;
        work.commit("newcomer").await;
        newcomer = host(&client, &Author::new().earlier(60), &name, &work).await;
    };
    let report = scenario.run(STORE_LOG_BYTES, attack).await;
    report
        .within(LatencyBound::AsWithOtherName)
        .and_all_succeeded()
        .and(
            newcomer.is_ok(),
            format!("after {accepted} announcements a new owner is refused: {newcomer:?}"),
        )
}

/// Fetches by id, at the addresses of some owners of a name, what only another has pushed, and what that one has removed.
async fn objects_of_other_owners() -> Report {
    let scenario = Scenario::start().await;
    let client = scenario.server.client();
    let name = scenario.honest.name.clone();
    let honest = client.clone_url(&scenario.honest.repo());
    let mut exposed = Vec::new();
    let mut served = Vec::new();
    let attack = async {
        let alice = Author::new().earlier(60);
        let eve = Author::new().earlier(60);
        let hers = Workdir::init().await;
        let removed = hers.commit("removed").await;
        let work = Workdir::init().await;
        let pushed = work.commit("pushed by a stranger").await;
        host(&client, &alice, &name, &hers)
            .await
            .expect("a new repository is served");
        host(&client, &eve, &name, &work)
            .await
            .expect("a new repository is served");
        let of_alice = client.clone_url(&alice.repo(&name));
        let of_eve = client.clone_url(&eve.repo(&name));
        served.push(is_readable(&of_alice, &removed).await);
        served.push(is_readable(&of_eve, &pushed).await);
        for (owner, url) in [("the honest owner", &honest), ("alice", &of_alice)] {
            if is_readable(url, &pushed).await {
                exposed.push(format!("a commit that only eve pushed, from {owner}"));
            }
        }

        hers.git(&["commit", "-q", "--amend", "-m", "kept"])
            .await
            .expect_ok();
        let kept = hers.git(&["rev-parse", "main"]).await.expect_ok();
        push(&client, &alice.later(1), &name, &hers)
            .await
            .expect("a push is accepted");
        served.push(is_readable(&of_alice, &kept).await);
        for (owner, url) in [("the honest owner", &honest), ("eve", &of_eve)] {
            if is_readable(url, &removed).await {
                exposed.push(format!("a commit that alice replaced, from {owner}"));
            }
        }

        let repository = alice.repo(&name).to_string();
        client
            .publish_all(&[&alice.later(2).sign(5, "", &[&["a", &repository]])])
            .await;
        assert!(until_gone(&client, &alice.repo(&name)).await);
        for (owner, url) in [("the honest owner", &honest), ("eve", &of_eve)] {
            if is_readable(url, &kept).await {
                exposed.push(format!(
                    "a commit of alice's deleted repository, from {owner}"
                ));
            }
        }
    };
    let report = scenario.run(1 << 20, attack).await;
    report
        .within(LatencyBound::AsIdle)
        .and_all_succeeded()
        .and(
            served.iter().all(|served| *served),
            "an own commit cannot be fetched",
        )
        .and(
            exposed.is_empty(),
            format!("can be fetched by id: {exposed:?}"),
        )
}
