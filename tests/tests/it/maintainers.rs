//! Repositories of several maintainers on one server: peers, which copy from each other, and addresses of a lead's
//! repository. And what others do under the same name, which changes nothing.

use std::collections::BTreeSet;

use grasp_core::admission::Outcome;
use grasp_core::quota::QuotaSubject;
use grasp_core::{RepoId, kinds};
use grasp_purgatory::database::DataSource;
use grasp_tests::{Author, Instance, Workdir, files};
use nostr::event::{Event, EventId};
use nostr::filter::Filter;

const MAIN: &str = "refs/heads/main";

/// Announces a repository whose owner lists others as maintainers.
fn listing(owner: &Author, name: &str, on: &Instance, others: &[&Author]) -> Event {
    let mut tag = vec![String::from("maintainers")];
    tag.extend(others.iter().map(|other| other.key().to_hex()));
    let tag: Vec<&str> = tag.iter().map(String::as_str).collect();
    owner.announce_with(name, &on.service(), &[&tag])
}

/// Announces a repository that names its lead, and its maintainers.
fn led(owner: &Author, name: &str, on: &Instance, lead: &Author, maintainers: &[&Author]) -> Event {
    let keys: Vec<String> = maintainers.iter().map(|key| key.key().to_hex()).collect();
    let lead = lead.key().to_hex();
    let mut tags: Vec<[&str; 2]> = vec![["M", &lead]];
    tags.extend(keys.iter().map(|key| ["m", key.as_str()]));
    let tags: Vec<&[&str]> = tags.iter().map(<[&str; 2]>::as_slice).collect();
    owner.announce_with(name, &on.service(), &tags)
}

/// Returns the refs that a server shows at an address, but for HEAD.
async fn refs(instance: &Instance, work: &Workdir, repo: &RepoId) -> BTreeSet<String> {
    let listed = work
        .git(&["ls-remote", &instance.clone_url(repo)])
        .await
        .expect_ok();
    let refs = listed.lines().filter(|line| !line.ends_with("HEAD"));
    refs.map(|line| line.replace('\t', " ")).collect()
}

/// Returns the number of packs of a repository.
async fn packs(instance: &Instance, repo: &RepoId) -> usize {
    instance
        .purgatory()
        .repos()
        .row(repo)
        .await
        .unwrap()
        .packs
        .len()
}

#[tokio::test]
async fn a_push_is_served_by_the_repositories_of_all_maintainers_before_it_reports() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let bob = Author::new();
    let work = instance.host(&alice, "x").await;
    let both = vec![
        listing(&alice.later(1), "x", &instance, &[&bob]),
        listing(&bob.later(1), "x", &instance, &[&alice]),
    ];
    instance.ingest(both).await;
    for (n, signer) in [(2, &alice), (3, &bob), (4, &alice)] {
        let commit = work.commit(&format!("commit {n}")).await;
        instance
            .ingest(vec![signer.later(n).state("x", &[(MAIN, &commit)])])
            .await;
        let pushed_to = if n == 4 { &bob } else { signer };
        let url = instance.clone_url(&pushed_to.repo("x"));
        work.git(&["push", &url, MAIN]).await.expect_ok();
        for owner in [&alice, &bob] {
            let expected = BTreeSet::from([format!("{commit} {MAIN}")]);
            assert_eq!(
                refs(&instance, &work, &owner.repo("x")).await,
                expected,
                "commit {n}"
            );
        }
    }
    assert!(packs(&instance, &alice.repo("x")).await > 0);
    assert!(packs(&instance, &bob.repo("x")).await > 0);

    // Each has its own objects: with one, nothing of the other goes.
    let delete = alice
        .later(9)
        .sign(5, "", &[&["a", &alice.repo("x").to_string()]]);
    instance.ingest(vec![delete]).await;
    let url = instance.clone_url(&bob.repo("x"));
    let clone = Workdir::empty();
    clone.git(&["clone", &url, "."]).await.expect_ok();
    instance.purgatory().run_maintenance().await.unwrap();
    let again = Workdir::empty();
    again.git(&["clone", &url, "."]).await.expect_ok();
    let gone = work
        .git(&["ls-remote", &instance.clone_url(&alice.repo("x"))])
        .await;
    assert!(!gone.ok, "{}", gone.out);
}

#[tokio::test]
async fn a_state_whose_objects_a_peer_has_is_released_without_network() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let bob = Author::new();
    let work = instance.host(&bob, "x").await;
    let commit = work.commit("only at bob's").await;
    instance
        .ingest(vec![bob.later(1).state("x", &[(MAIN, &commit)])])
        .await;
    work.git(&["push", &instance.clone_url(&bob.repo("x")), MAIN])
        .await
        .expect_ok();

    let announced = listing(&alice, "x", &instance, &[&bob]);
    let state = alice.later(2).state("x", &[(MAIN, &commit)]);
    let listed = listing(&bob.later(1), "x", &instance, &[&alice]);
    instance
        .ingest_from_relay(vec![announced.clone(), listed, state.clone()])
        .await;
    instance.until_serves(&state).await;
    assert!(instance.serves(&announced).await);
    let expected = BTreeSet::from([format!("{commit} {MAIN}")]);
    assert_eq!(refs(&instance, &work, &alice.repo("x")).await, expected);
}

#[tokio::test]
async fn a_repository_copies_no_more_from_a_peer_than_its_quota_allows() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let bob = Author::new();
    let work = instance.host(&alice, "x").await;
    let both = vec![
        listing(&alice.later(1), "x", &instance, &[&bob]),
        listing(&bob.later(1), "x", &instance, &[&alice]),
    ];
    instance.ingest(both).await;
    instance.settle("x").await;
    let before = refs(&instance, &work, &alice.repo("x")).await;
    let quota = instance.purgatory().quota();
    let of_alice = QuotaSubject::Repository(alice.repo("x"));
    quota.set(of_alice.clone(), Some(50_000)).await.unwrap();

    let commit = work.commit_incompressible(200_000).await;
    let state = bob.later(2).state("x", &[(MAIN, &commit)]);
    instance.ingest(vec![state]).await;
    let url = instance.clone_url(&bob.repo("x"));
    work.git(&["push", &url, MAIN]).await.expect_ok();
    let expected = BTreeSet::from([format!("{commit} {MAIN}")]);
    assert_eq!(refs(&instance, &work, &bob.repo("x")).await, expected);
    instance.settle("x").await;
    assert_eq!(refs(&instance, &work, &alice.repo("x")).await, before);

    quota.set(of_alice, None).await.unwrap();
    instance.settle("x").await;
    assert_eq!(refs(&instance, &work, &alice.repo("x")).await, expected);
}

#[tokio::test]
async fn an_announcement_whose_lead_is_hosted_is_an_address_of_the_leads_repository() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let bob = Author::new();
    let work = Workdir::init().await;
    let first = work.commit("first").await;
    let address = led(&bob, "x", &instance, &alice, &[&bob]);
    instance
        .ingest(vec![
            led(&alice, "x", &instance, &alice, &[&bob]),
            address.clone(),
        ])
        .await;
    assert!(
        !instance.serves(&address).await,
        "its lead shows nothing yet"
    );

    // A push to the address is one to the repository, whoever of the maintainers signs.
    let at_bob = instance.clone_url(&bob.repo("x"));
    instance
        .ingest(vec![bob.state("x", &[(MAIN, &first)])])
        .await;
    work.git(&["push", &at_bob, MAIN]).await.expect_ok();
    instance.until_serves(&address).await;
    let second = work.commit("second").await;
    instance
        .ingest(vec![alice.later(1).state("x", &[(MAIN, &second)])])
        .await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), MAIN])
        .await
        .expect_ok();
    let tip = work.commit("a proposal").await;
    let request = Author::new().pull_request(&bob.repo("x"), &tip);
    work.git(&["push", &at_bob, &format!("{tip}:refs/nostr/{}", request.id)])
        .await
        .expect_ok();
    instance.ingest(vec![request.clone()]).await;
    let expected = BTreeSet::from([
        format!("{second} {MAIN}"),
        format!("{tip} refs/nostr/{}", request.id),
    ]);
    for owner in [&alice, &bob] {
        assert_eq!(refs(&instance, &work, &owner.repo("x")).await, expected);
    }
    assert_eq!(packs(&instance, &bob.repo("x")).await, 0);
    let page = instance
        .get(&instance.path(&bob.repo("x")), &[("accept", "text/html")])
        .await;
    assert_eq!(page.status, 200);

    // The lead leaves: the address becomes a repository, with the objects that the lead's had.
    let elsewhere = "elsewhere.example".parse().unwrap();
    let own = led(&bob.later(5), "x", &instance, &bob, &[&bob]);
    instance
        .ingest(vec![alice.later(5).announce("x", &elsewhere), own.clone()])
        .await;
    instance.until_serves(&own).await;
    instance.settle("x").await;
    let clone = Workdir::empty();
    clone.git(&["clone", &at_bob, "."]).await.expect_ok();
    assert!(packs(&instance, &bob.repo("x")).await > 0);
}

#[tokio::test]
async fn a_repository_that_becomes_an_address_leaves_its_objects_to_its_lead() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let bob = Author::new();
    instance.host(&alice, "x").await;
    let work = instance.host(&bob, "x").await;
    let commit = work.commit("at bob's").await;
    instance
        .ingest(vec![bob.later(1).state("x", &[(MAIN, &commit)])])
        .await;
    work.git(&["push", &instance.clone_url(&bob.repo("x")), MAIN])
        .await
        .expect_ok();
    let roles = vec![
        led(&alice.later(2), "x", &instance, &alice, &[&bob]),
        led(&bob.later(2), "x", &instance, &alice, &[&bob]),
    ];
    instance.ingest(roles).await;
    let expected = BTreeSet::from([format!("{commit} {MAIN}")]);
    let follows = async {
        while refs(&instance, &work, &alice.repo("x")).await != expected {
            instance.settle("x").await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), follows)
        .await
        .expect("in time");
    assert_eq!(refs(&instance, &work, &bob.repo("x")).await, expected);
    let view = instance
        .purgatory()
        .repos()
        .view(&bob.repo("x"))
        .await
        .unwrap();
    assert_eq!(view.shows, Some(alice.key()));
    assert!(view.refs.refs.is_empty());
}

/// All that can be seen of one repository on a server.
#[derive(Debug, PartialEq)]
struct Seen {
    refs: BTreeSet<String>,
    states: Vec<EventId>,
    maintainers: usize,
    /// Bytes that its maintainers, and others, may still add today.
    room: [u64; 2],
    /// Whether each of these commits can be fetched by its id.
    readable: Vec<bool>,
}

async fn seen(instance: &Instance, work: &Workdir, owner: &Author, commits: &[String]) -> Seen {
    let repo = owner.repo("x");
    let states = Filter::new().kind(kinds::STATE).author(owner.key());
    let relay = instance.purgatory().relay();
    let states = relay
        .events(states)
        .await
        .unwrap()
        .iter()
        .map(|event| event.id)
        .collect();
    let view = instance.purgatory().repos().view(&repo).await.unwrap();
    let mut readable = Vec::new();
    for commit in commits {
        let into = Workdir::init().await;
        readable.push(
            into.git(&["fetch", &instance.clone_url(&repo), commit])
                .await
                .ok,
        );
    }
    let disk = instance.purgatory().disk();
    let now = relay.now().mono;
    let stranger = grasp_core::resources::Claimant::default();
    let maintainer = stranger.signed_by(owner.key()).with_authority();
    Seen {
        refs: refs(instance, work, &repo).await,
        states,
        maintainers: view.maintainers.len(),
        room: [maintainer, stranger]
            .map(|claimant| disk.room(now, &repo, &claimant, DataSource::Pushed)),
        readable,
    }
}

/// What a stranger does under the same name: lists the owner, signs her refs and others, pushes, and sends uploads.
async fn interfere(instance: &Instance, owner: &Author, stolen: &str) -> String {
    let eve = Author::new();
    let mallory = Author::new();
    let work = instance.host(&eve, "x").await;
    let own = work.commit("of a stranger").await;
    let url = instance.clone_url(&eve.repo("x"));
    instance
        .ingest(vec![
            listing(&eve.later(1), "x", instance, &[owner, &mallory]),
            listing(&mallory, "x", instance, &[&eve, owner]),
            eve.later(1)
                .state("x", &[(MAIN, &own), ("refs/heads/stolen", stolen)]),
            eve.later(2).state("x", &[(MAIN, &own)]),
            mallory.state("x", &[(MAIN, stolen)]),
            mallory.pull_request(&eve.repo("x"), &own),
        ])
        .await;
    work.git(&["push", &url, MAIN]).await.expect_ok();
    let id = "ab".repeat(32);
    work.git(&["push", &url, &format!("{own}:refs/nostr/{id}")])
        .await;
    own
}

#[tokio::test]
async fn what_strangers_do_under_the_same_name_changes_nothing_for_a_repository() {
    let alone = Instance::start().await;
    let among_others = Instance::start().await;
    let alice = Author::new();
    let bob = Author::new();
    let work = Workdir::init().await;
    let mut commits = Vec::new();
    for (n, text) in [(1, "one"), (2, "two"), (3, "three")] {
        commits.push(work.commit(text).await);
        let commit = &commits[n - 1];
        if n > 1 {
            let theirs = interfere(&among_others, &alice, commit).await;
            commits.insert(0, theirs);
        }
        let commit = commits.last().unwrap();
        for instance in [&alone, &among_others] {
            let at = alice.later(n as u64);
            let announced = listing(&at, "x", instance, &[&bob]);
            let state = at.state("x", &[(MAIN, commit)]);
            instance.ingest(vec![announced, state]).await;
            let url = instance.clone_url(&alice.repo("x"));
            work.git(&["push", "--force", &url, MAIN]).await.expect_ok();
        }
        let expected = seen(&alone, &work, &alice, &commits).await;
        let actual = seen(&among_others, &work, &alice, &commits).await;
        assert_eq!(actual, expected, "step {n}");
    }

    // If its owner vanishes, exactly its files go; those of others stay, and have nothing of it.
    let before = files(&among_others.repositories().join("repositories")).len();
    let vanish = alice.later(9).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    among_others.ingest(vec![vanish]).await;
    let after = grasp_tests::eventually(|| {
        let left = files(&among_others.repositories().join("repositories")).len();
        (left < before).then_some(left)
    });
    assert!(after.await > 0, "repositories of others are kept");
}

#[tokio::test]
async fn many_who_list_the_maintainers_of_a_repository_keep_none_of_their_states_out() {
    let instance = Instance::start().await;
    let (alice, bob, carol) = (Author::new(), Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    instance
        .ingest(vec![listing(
            &alice.later(1),
            "x",
            &instance,
            &[&bob, &carol],
        )])
        .await;
    // Their own repositories are on another server, as is usual for maintainers of this one.
    let elsewhere = "elsewhere.example".parse().unwrap();
    let accepting = |by: &Author, listed: &Author| {
        let tag = ["maintainers", &listed.key().to_hex()];
        by.announce_with("x", &elsewhere, &[&tag])
    };
    instance.ingest(vec![accepting(&bob, &alice)]).await;
    let mut crowd = Vec::new();
    for _ in 0..130 {
        let other = Author::new().later(2);
        crowd.push(listing(&other, "x", &instance, &[&bob, &carol]));
        // Without refs, so that it is served without a push.
        crowd.push(other.state("x", &[]));
    }
    let last = crowd[258].clone();
    instance.ingest(crowd).await;
    instance.settle("x").await;
    assert!(instance.serves(&last).await);

    let accepted = instance.ingest(vec![accepting(&carol, &bob)]).await;
    assert_eq!(accepted, [Outcome::Stored]);
    for (n, signer) in [(3, &carol), (4, &bob)] {
        let commit = work.commit(&format!("commit {n}")).await;
        let state = signer.later(n).state("x", &[(MAIN, &commit)]);
        assert_eq!(instance.ingest(vec![state]).await, [Outcome::Held]);
        let url = instance.clone_url(&alice.repo("x"));
        work.git(&["push", &url, MAIN]).await.expect_ok();
        let expected = BTreeSet::from([format!("{commit} {MAIN}")]);
        assert_eq!(refs(&instance, &work, &alice.repo("x")).await, expected);
    }
}
