//! Events and git data stay consistent: across repositories, restarts, failures and time.

use std::collections::BTreeSet;
use std::time::Duration;

use grasp_core::RepoId;
use grasp_purgatory::git::{Incoming, RepoStore};
use grasp_tests::{AdjustableClock, Author, Fault, Instance, Settings, Workdir, files};
use nostr::event::Event;

const MAIN: &str = "refs/heads/main";
const DAY: u64 = 24 * 60 * 60;
/// Time within which an effect must be seen, also on a busy machine.
const EFFECT_TIMEOUT: Duration = Duration::from_secs(60);

async fn message(instance: &Instance, event: &Event) -> String {
    let answer = instance.ingest(vec![event.clone()]).await[0].answer();
    assert!(answer.is_accepted, "{answer:?}");
    answer.message.to_string()
}

/// Signs a pull request to repositories of two names.
fn to_both(bob: &Author, alice: &Author, tip: &str) -> Event {
    let [x, y] = ["x", "y"].map(|name| alice.repo(name).to_string());
    bob.sign(1618, "please pull", &[&["a", &x], &["a", &y], &["c", tip]])
}

/// Hosts the same history under another name.
async fn fork(instance: &Instance, owner: &Author, name: &str, work: &Workdir) {
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let state = owner.state(name, &[(MAIN, &tip)]);
    instance
        .ingest(vec![owner.announce(name, &instance.service()), state])
        .await;
    let url = instance.clone_url(&owner.repo(name));
    work.git(&["push", "-q", &url, "main"]).await.expect_ok();
}

#[tokio::test]
async fn a_pull_request_is_shown_by_all_repositories_that_it_names_also_without_common_history() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let (work, other) = (instance.host(&alice, "x").await, Workdir::init().await);
    other.commit("of another history").await;
    fork(&instance, &alice, "y", &other).await;
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let request = to_both(&bob, &alice, &tip);
    assert_eq!(message(&instance, &request).await, "");
    let reference = format!("{tip}\trefs/nostr/{}", request.id);
    for name in ["x", "y"] {
        assert!(
            instance.refs(&alice.repo(name)).await.contains(&reference),
            "{name}"
        );
    }
}

#[tokio::test]
async fn a_pull_request_to_two_names_is_served_by_both_if_either_repository_has_its_tip() {
    for having in ["x", "y"] {
        let instance = Instance::start().await;
        let (alice, bob) = (Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        fork(&instance, &alice, "y", &work).await;
        let url = instance.clone_url(&alice.repo(having));
        let tip = work.commit("a branch of one").await;
        let refs = [(MAIN, tip.as_str())];
        instance
            .ingest(vec![alice.later(1).state(having, &refs)])
            .await;
        work.git(&["push", "-q", &url, "main"]).await.expect_ok();

        let request = to_both(&bob, &alice, &tip);
        assert_eq!(
            message(&instance, &request).await,
            "",
            "its tip is in {having}"
        );
        assert!(instance.serves(&request).await);
        for name in ["x", "y"] {
            let refs = instance.refs(&alice.repo(name)).await;
            assert!(
                refs.contains(&format!("{tip}\trefs/nostr/{}", request.id)),
                "{name}: {refs}"
            );
        }
    }
}

#[tokio::test]
async fn an_upload_to_either_of_two_names_is_released_with_its_event() {
    for endpoint in ["x", "y"] {
        let instance = Instance::start().await;
        let (alice, bob) = (Author::new(), Author::new());
        let work = instance.host(&alice, "x").await;
        fork(&instance, &alice, "y", &work).await;
        let tip = work.commit("git first").await;
        let request = to_both(&bob, &alice, &tip);
        let name = format!("refs/nostr/{}", request.id);
        let url = instance.clone_url(&alice.repo(endpoint));
        work.git(&["push", &url, &format!("{tip}:{name}")])
            .await
            .expect_ok();
        assert_eq!(instance.leftovers().staged, 1);
        assert_eq!(message(&instance, &request).await, "");
        for name in ["x", "y"] {
            assert!(
                instance.refs(&alice.repo(name)).await.contains(&tip),
                "{name}"
            );
        }
        assert_eq!(instance.until_idle().await.staged, 0);
    }
}

#[tokio::test]
async fn an_event_that_is_served_at_once_is_answered_as_stored() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let tip = work.git(&["rev-parse", "main"]).await.expect_ok();
    let state = alice
        .later(1)
        .state("x", &[(MAIN, &tip), ("refs/heads/dev", &tip)]);
    assert_eq!(message(&instance, &state).await, "");
    assert!(instance.serves(&state).await);
    assert!(
        instance
            .refs(&alice.repo("x"))
            .await
            .contains("refs/heads/dev")
    );
    let request = bob.pull_request(&alice.repo("x"), &tip);
    assert_eq!(message(&instance, &request).await, "");
    // The repository of a new maintainer is filled at once.
    let key = bob.key().to_string();
    let invitation =
        alice
            .later(2)
            .announce_with("x", &instance.service(), &[&["maintainers", &key]]);
    assert_eq!(message(&instance, &invitation).await, "");
    let key = alice.key().to_string();
    let acceptance = bob.announce_with("x", &instance.service(), &[&["maintainers", &key]]);
    assert_eq!(message(&instance, &acceptance).await, "");
    assert!(
        instance
            .refs(&bob.repo("x"))
            .await
            .contains("refs/heads/dev")
    );
    // Held events and duplicates are answered as such.
    let held = alice.later(3).state("x", &[(MAIN, &"d".repeat(40))]);
    assert!(message(&instance, &held).await.starts_with("purgatory: "));
    assert!(message(&instance, &held).await.starts_with("duplicate: "));
    assert!(message(&instance, &state).await.starts_with("duplicate: "));
}

#[tokio::test]
async fn a_push_whose_state_cannot_be_stored_is_reported_as_failed() {
    let fault = Fault::default();
    let instance = Instance::with_settings(Settings {
        store: Some(fault.store_wrapper()),
        ..Settings::default()
    })
    .await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let commit = work.commit("second").await;
    let state = alice.later(1).state("x", &[(MAIN, &commit)]);
    message(&instance, &state).await;
    fault.set(true);
    let error = work.git(&["push", &url, "main"]).await.expect_refused();
    assert!(
        error.contains("could not store the state event yet"),
        "{error}"
    );
    assert!(!instance.serves(&state).await);
    // Nothing is lost: the state is stored as soon as possible.
    fault.set(false);
    instance.settle("x").await;
    assert!(instance.serves(&state).await);
    assert!(instance.refs(&alice.repo("x")).await.contains(&commit));
}

#[tokio::test]
async fn uploads_beyond_the_staging_limits_are_reported_as_refused() {
    // Too many tips of one event exceed the disk quota; too many events exceed that of purgatory.
    for (tips, events, other, why) in [
        (1, 9, "ab", "too many uploads wait"),
        (9, 1, "cd", "could not be kept"),
    ] {
        let mut settings = Settings::default();
        (
            settings.purgatory.tips_per_event,
            settings.purgatory.staged.count,
        ) = (tips, events);
        let instance = Instance::with_settings(settings).await;
        let alice = Author::new();
        let work = instance.host(&alice, "x").await;
        let url = instance.clone_url(&alice.repo("x"));
        for (text, event, fits) in [("one", "ab", true), ("two", other, false)] {
            let tip = work.commit(text).await;
            let name = format!("refs/nostr/{}", event.repeat(32));
            let pushed = work.git(&["push", &url, &format!("{tip}:{name}")]).await;
            assert_eq!(pushed.ok, fits, "{}", pushed.err);
            assert!(fits || pushed.err.contains(why), "{}", pushed.err);
        }
        assert_eq!(
            instance
                .leftovers_when(|leftovers| leftovers.staged == 1)
                .await
                .staged,
            1
        );
    }
}

#[tokio::test]
async fn uploads_without_a_record_are_removed_at_start() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let tip = work.commit("proposed").await;
    let request = bob.pull_request(&alice.repo("x"), &tip);
    let name = format!("refs/nostr/{}", request.id);
    work.git(&["push", &url, &format!("{tip}:{name}")])
        .await
        .expect_ok();
    let instance = instance
        .restart_after(|dir| {
            let staging = dir.join("git/staging");
            let family = std::fs::read_dir(&staging)
                .unwrap()
                .next()
                .unwrap()
                .unwrap()
                .path();
            for family in [family, staging.join("ef".repeat(32))] {
                let stray = family.join("cd".repeat(32)).join(&tip).join("pack");
                std::fs::create_dir_all(&stray).unwrap();
                std::fs::write(stray.join("pack-1.pack"), "x").unwrap();
            }
        })
        .await;
    assert_eq!(instance.leftovers().staged, 1);
    assert_eq!(
        std::fs::read_dir(instance.repositories().join("staging"))
            .unwrap()
            .count(),
        1
    );
    assert_eq!(message(&instance, &request).await, "");
}

#[tokio::test]
async fn old_tips_and_retired_views_are_removed_after_ninety_days() {
    let time = AdjustableClock::default();
    let instance = Instance::with_settings(time.settings()).await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    instance.host(&bob, "y").await;
    let first = work.git(&["rev-parse", "main"]).await.expect_ok();
    work.git(&["checkout", "-q", "--orphan", "new"])
        .await
        .expect_ok();
    let second = work.commit("second").await;
    message(&instance, &alice.later(1).state("x", &[(MAIN, &second)])).await;
    let url = instance.clone_url(&alice.repo("x"));
    work.git(&["push", "-q", "--force", &url, "new:main"])
        .await
        .expect_ok();
    // Bob moves his repository to another server.
    let elsewhere: [&[&str]; 3] = [
        &["d", "y"],
        &["clone", "https://a.example/y.git"],
        &["relays", "wss://a.example"],
    ];
    instance
        .ingest(vec![bob.later(1).sign(30617, "", &elsewhere)])
        .await;
    instance.settle("y").await;

    let retired = async || {
        let repos = instance.purgatory().repos();
        let mut counts = Vec::new();
        for repo in [alice.repo("x"), bob.repo("y")] {
            counts.push(repos.repository(&repo).retired_refs().await.unwrap().len());
        }
        counts
    };
    until(async || retired().await == [1, 1]).await;
    time.advance(89 * DAY);
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(retired().await, [1, 1], "{first} can still be restored");
    time.advance(2 * DAY);
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(retired().await, [0, 0]);
    assert!(instance.refs(&alice.repo("x")).await.contains(&second));
}

#[tokio::test]
async fn maintenance_removes_objects_that_no_held_event_may_need() {
    let time = AdjustableClock::default();
    let instance = Instance::with_settings(time.settings()).await;
    let (alice, purgatory) = (Author::new(), instance.purgatory());
    let name = alice.repo("x");
    message(&instance, &alice.announce("x", &instance.service())).await;
    assert_eq!(
        purgatory.repos().all().await.unwrap(),
        BTreeSet::from([name.clone()])
    );
    time.advance(60 * 60);
    instance.settle("x").await;
    until(async || purgatory.repos().all().await.unwrap().is_empty()).await;
    // The announcement has expired and may return, so objects that a fetch brings are kept.
    let work = Workdir::init().await;
    let tip = work.commit("fetched").await;
    let incoming = receive(purgatory.repos(), &name, &work, &tip).await;
    let tips = BTreeSet::from([tip.parse().unwrap()]);
    purgatory
        .repos()
        .repository(&name)
        .take_in(incoming, &tips)
        .await
        .unwrap();
    purgatory.run_maintenance().await.unwrap();
    assert_eq!(
        purgatory.repos().all().await.unwrap(),
        BTreeSet::from([name.clone()])
    );
    time.advance(2 * DAY);
    let waiting = name.clone();
    until(async || {
        let name = waiting.clone();
        purgatory
            .ask(move |purgatory| !purgatory.has_held(&name))
            .await
            .unwrap()
    })
    .await;
    purgatory.run_maintenance().await.unwrap();
    assert!(purgatory.repos().all().await.unwrap().is_empty());
}

/// Receives a pack with one commit and what it needs.
async fn receive(repos: &RepoStore, name: &RepoId, work: &Workdir, tip: &str) -> Incoming {
    let pack = work
        .pipe(
            &["pack-objects", "--revs", "--stdout", "-q"],
            tip.as_bytes(),
        )
        .await;
    let incoming = repos.repository(name).incoming_for().await.unwrap();
    let mut unpacking = incoming.unpack(1 << 30, 1 << 30).await.unwrap();
    unpacking.feed(&pack).await.unwrap();
    unpacking.finish().await.unwrap();
    incoming
}

/// Polls until a condition holds.
async fn until(condition: impl AsyncFn() -> bool) {
    let polling = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(EFFECT_TIMEOUT, polling)
        .await
        .expect("the condition holds in time");
}

#[tokio::test]
async fn the_effects_of_a_vanish_request_on_one_name_do_not_wait_for_another() {
    let instance = Instance::start().await;
    let (alice, repos) = (Author::new(), instance.purgatory().repos());
    let [a, b] = ["a", "b"].map(|name| alice.repo(name));
    for repo in [&a, &b] {
        message(
            &instance,
            &alice.announce(repo.identifier.as_str(), &instance.service()),
        )
        .await;
    }
    let busy = repos.lock(&a).await.unwrap();
    message(
        &instance,
        &alice.later(1).sign(62, "", &[&["relay", "ALL_RELAYS"]]),
    )
    .await;
    until(async || !repos.has_view(&b).await.unwrap()).await;
    assert!(repos.has_view(&a).await.unwrap(), "it is locked");
    drop(busy);
    until(async || !repos.has_view(&a).await.unwrap()).await;
}

#[tokio::test]
async fn maintenance_combines_packs() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let repositories = instance.repositories().join("repositories");
    let packs = || {
        files(&repositories)
            .iter()
            .filter(|f| f.to_string_lossy().ends_with(".pack"))
            .count()
    };
    let (repos, name) = (instance.purgatory().repos(), alice.repo("x"));
    for n in 0..40 {
        let tip = work.commit(&format!("content {n}")).await;
        let incoming = receive(repos, &name, &work, &tip).await;
        repos
            .lock(&name)
            .await
            .unwrap()
            .promote(incoming)
            .await
            .unwrap();
    }
    assert_eq!(packs(), 41);
    instance.purgatory().run_maintenance().await.unwrap();
    assert!(packs() < 32, "{}", packs());
    let clone = Workdir::empty();
    let url = instance.clone_url(&alice.repo("x"));
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
}

#[tokio::test]
async fn deleting_the_served_state_restores_the_one_before() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let (url, repo) = (instance.clone_url(&alice.repo("x")), alice.repo("x"));
    let first = work.git(&["rev-parse", "main"]).await.expect_ok();
    let before = alice.state("x", &[(MAIN, &first)]);
    let second = work.commit("second").await;
    let state = alice
        .later(1)
        .state("x", &[(MAIN, &second), ("refs/heads/dev", &second)]);
    message(&instance, &state).await;
    work.git(&["push", &url, "main", "main:refs/heads/dev"])
        .await
        .expect_ok();
    assert!(instance.serves(&state).await && !instance.serves(&before).await);

    let deletion = alice.later(2).sign(5, "", &[&["e", &state.id.to_hex()]]);
    assert_eq!(message(&instance, &deletion).await, "");
    instance.settle("x").await;
    assert!(!instance.serves(&state).await && instance.serves(&before).await);
    let refs = instance.refs(&repo).await;
    assert!(
        refs.contains(&format!("{first}\t{MAIN}")) && !refs.contains(&second),
        "{refs}"
    );
    assert!(
        !instance.ingest(vec![state]).await[0].answer().is_accepted,
        "it stays deleted"
    );
}

#[tokio::test]
async fn deleting_the_only_state_removes_the_repository_and_its_objects() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let (url, repo) = (instance.clone_url(&alice.repo("x")), alice.repo("x"));
    let first = work.git(&["rev-parse", "main"]).await.expect_ok();
    let announcement = alice.announce("x", &instance.service());
    let coordinate = format!("30618:{}:x", alice.key());
    let deletion = alice.later(1).sign(5, "", &[&["a", &coordinate]]);
    message(&instance, &deletion).await;
    instance.settle("x").await;
    assert!(!instance.serves(&announcement).await);
    assert_eq!(instance.refs(&repo).await, "");
    work.git(&["push", "--force", &url, "main"])
        .await
        .expect_refused();

    let state = alice.later(2).state("x", &[(MAIN, &first)]);
    assert!(
        message(&instance, &state).await.starts_with("purgatory: "),
        "its objects are gone"
    );
    work.git(&["push", "--force", &url, "main"])
        .await
        .expect_ok();
    assert!(instance.serves(&announcement).await);
    assert!(instance.refs(&repo).await.contains(&first));
}

/// Deletes the event of this kind about a repository `x`.
async fn delete(instance: &Instance, author: &Author, kind: u16) {
    let coordinate = format!("{kind}:{}:x", author.key());
    message(instance, &author.sign(5, "", &[&["a", &coordinate]])).await;
    instance.settle("x").await;
}

/// Hosts a repository `x` of both authors, and retires a commit of the first: she deletes the state that named it, and
/// maintenance moves its objects away. Returns the commit.
async fn retire_commit(instance: &Instance, alice: &Author, bob: &Author) -> String {
    let work = instance.host(alice, "x").await;
    instance.host(bob, "x").await;
    let commit = work.commit("hers").await;
    message(instance, &alice.later(1).state("x", &[(MAIN, &commit)])).await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    delete(instance, &alice.later(2), 30618).await;
    instance.purgatory().run_maintenance().await.unwrap();
    assert!(
        !is_readable(instance, &bob.repo("x"), &commit).await,
        "it is retired"
    );
    commit
}

/// Returns whether a commit can be fetched by its id from a repository.
async fn is_readable(instance: &Instance, repo: &RepoId, id: &str) -> bool {
    let url = instance.clone_url(repo);
    Workdir::init()
        .await
        .git(&["fetch", "-q", &url, id])
        .await
        .ok
}

/// Publishes an event, and returns whether a commit can be fetched after all that follows from it.
async fn is_readable_after(instance: &Instance, event: &Event, repo: &RepoId, id: &str) -> bool {
    message(instance, event).await;
    instance.settle("x").await;
    is_readable(instance, repo, id).await
}

#[tokio::test]
async fn replaced_commits_come_back_with_a_state_of_their_owner_and_no_other() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    instance.host(&bob, "x").await;
    let url = instance.clone_url(&alice.repo("x"));
    let replaced = work.commit("hers alone").await;
    message(&instance, &alice.later(1).state("x", &[(MAIN, &replaced)])).await;
    work.git(&["push", "-q", &url, "main"]).await.expect_ok();
    work.git(&["checkout", "-q", "--orphan", "new"])
        .await
        .expect_ok();
    let next = work.commit("another history").await;
    message(&instance, &alice.later(2).state("x", &[(MAIN, &next)])).await;
    work.git(&["push", "-q", "--force", &url, "new:main"])
        .await
        .expect_ok();
    instance.purgatory().run_maintenance().await.unwrap();
    let his = bob.later(3).state("x", &[(MAIN, &replaced)]);
    assert!(
        message(&instance, &his).await.starts_with("purgatory: "),
        "it was never his"
    );
    assert!(!is_readable(&instance, &bob.repo("x"), &replaced).await);
    let hers = alice.later(3).state("x", &[(MAIN, &replaced)]);
    assert_eq!(message(&instance, &hers).await, "");
    assert!(
        instance
            .refs(&alice.repo("x"))
            .await
            .contains(&format!("{replaced}\t{MAIN}"))
    );
}

#[tokio::test]
async fn commits_of_an_owner_who_vanished_do_not_come_back() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let commit = retire_commit(&instance, &alice, &bob).await;
    // Her view goes first, so that nothing of it is left to be removed when she vanishes.
    delete(&instance, &alice.later(3), 30617).await;
    let vanish = alice.later(4).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    message(&instance, &vanish).await;
    instance.settle("x").await;
    message(
        &instance,
        &alice.later(5).announce_on("x", &[instance.service()]),
    )
    .await;
    let state = alice.later(5).state("x", &[(MAIN, &commit)]);
    assert!(!is_readable_after(&instance, &state, &bob.repo("x"), &commit).await);
}

#[tokio::test]
async fn deleting_the_announcement_removes_the_repository() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    instance.host(&bob, "x").await;
    let commit = work.git(&["rev-parse", "main"]).await.expect_ok();
    let state = alice.state("x", &[(MAIN, &commit)]);
    assert!(instance.serves(&state).await);
    let announcement = alice.announce("x", &instance.service());
    let deletion = alice
        .later(1)
        .sign(5, "", &[&["e", &announcement.id.to_hex()]]);
    message(&instance, &deletion).await;
    instance.settle("x").await;
    instance.purgatory().run_maintenance().await.unwrap();
    assert_eq!(
        instance
            .get(&instance.path(&alice.repo("x")), &[])
            .await
            .status,
        404
    );
    assert_eq!(
        instance
            .get(&instance.path(&bob.repo("x")), &[])
            .await
            .status,
        200
    );

    // The state of a removed repository is not served; it is again with its repository, whose objects are kept.
    assert!(!instance.serves(&state).await);
    message(
        &instance,
        &alice.later(2).announce("x", &instance.service()),
    )
    .await;
    instance.settle("x").await;
    assert!(instance.serves(&state).await);
    assert!(
        instance
            .refs(&alice.repo("x"))
            .await
            .contains(&format!("{commit}\t{MAIN}"))
    );
}

#[tokio::test]
async fn a_deleted_repository_is_complete_after_a_new_announcement_and_push() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let first = work.git(&["rev-parse", "main"]).await.expect_ok();
    let coordinate = alice.repo("x").to_string();
    let deletion = alice.later(1).sign(5, "", &[&["a", &coordinate]]);
    message(&instance, &deletion).await;
    instance.settle("x").await;
    let path = instance.path(&alice.repo("x"));
    until_gone(&instance, &path).await;
    message(
        &instance,
        &alice.later(2).announce("x", &instance.service()),
    )
    .await;
    message(&instance, &alice.later(2).state("x", &[(MAIN, &first)])).await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    assert!(
        instance
            .refs(&alice.repo("x"))
            .await
            .contains(&format!("{first}\t{MAIN}"))
    );
}

/// Waits until a page is gone.
async fn until_gone(instance: &Instance, path: &str) {
    let gone = async {
        while instance.get(path, &[]).await.status != 404 {
            instance.settle("another").await;
        }
    };
    tokio::time::timeout(EFFECT_TIMEOUT, gone)
        .await
        .expect("the page is gone in time");
}

/// Waits until a view has no ref whose line contains this text.
async fn until_without_ref(instance: &Instance, repo: &RepoId, text: &str) {
    let gone = async {
        while instance.refs(repo).await.contains(text) {
            instance.settle("x").await;
        }
    };
    tokio::time::timeout(EFFECT_TIMEOUT, gone)
        .await
        .expect("the ref is gone in time");
}

#[tokio::test]
async fn the_refs_of_a_deleted_pull_request_are_removed() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let (url, repo) = (instance.clone_url(&alice.repo("x")), alice.repo("x"));
    let tip = work.commit("work").await;
    let requests = [0, 1].map(|later| bob.later(later).pull_request(&repo, &tip));
    for request in &requests {
        message(&instance, request).await;
        work.git(&["push", &url, &format!("{tip}:refs/nostr/{}", request.id)])
            .await
            .expect_ok();
        assert!(instance.serves(request).await);
    }
    let [gone, stays] = requests.each_ref().map(|request| request.id.to_hex());
    let deletion = bob.later(2).sign(5, "", &[&["e", &gone]]);
    message(&instance, &deletion).await;
    until_without_ref(&instance, &repo, &gone).await;
    assert!(instance.refs(&repo).await.contains(&stays));
}

#[tokio::test]
async fn a_vanish_request_removes_repositories_and_pull_requests_for_good() {
    let instance = Instance::start().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    instance.host(&bob, "x").await;
    instance.host(&alice, "y").await;
    // Repositories that were deleted before are removed too.
    let deletion = alice
        .later(1)
        .sign(5, "", &[&["a", &alice.repo("y").to_string()]]);
    message(&instance, &deletion).await;
    until_gone(&instance, &instance.path(&alice.repo("y"))).await;
    let tip = work.commit("work").await;
    let request = alice.pull_request(&bob.repo("x"), &tip);
    message(&instance, &request).await;
    let spec = format!("{tip}:refs/nostr/{}", request.id);
    work.git(&["push", &instance.clone_url(&bob.repo("x")), &spec])
        .await
        .expect_ok();

    let vanish = alice.later(2).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    message(&instance, &vanish).await;
    until_gone(&instance, &instance.path(&alice.repo("x"))).await;
    until_without_ref(&instance, &bob.repo("x"), "refs/nostr/").await;
    assert!(instance.refs(&bob.repo("x")).await.contains(MAIN));
    instance.purgatory().run_maintenance().await.unwrap();
    let repositories = instance.repositories().join("repositories");
    let hers = alice.key().to_hex();
    let left = files(&repositories);
    assert!(
        !left
            .iter()
            .any(|file| file.to_string_lossy().contains(&hers)),
        "{left:?}"
    );

    // A later announcement of the same key creates an empty repository.
    message(
        &instance,
        &alice.later(9).announce("x", &instance.service()),
    )
    .await;
    assert_eq!(instance.refs(&alice.repo("x")).await, "");
}

#[tokio::test]
async fn a_state_whose_objects_come_with_a_pull_request_is_released_with_it() {
    let (instance, alice, bob) = (Instance::start().await, Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    let (repo, next) = (alice.repo("x"), work.commit("next").await);
    let state = alice.later(1).state("x", &[("refs/heads/main", &next)]);
    instance.ingest(vec![state.clone()]).await;

    // A contribution is based on commits that are not here yet, and is pushed before its event.
    let tip = work.commit("a contribution").await;
    let proposal = bob.pull_request(&repo, &tip);
    let spec = format!("HEAD:refs/nostr/{}", proposal.id);
    work.git(&["push", "-q", &instance.clone_url(&repo), &spec])
        .await
        .expect_ok();
    assert!(
        !instance.serves(&state).await,
        "objects of a staged upload are not used"
    );
    instance.ingest(vec![proposal.clone()]).await;
    instance.settle("x").await;
    assert!(instance.serves(&proposal).await);
    assert!(instance.serves(&state).await, "its objects are here");
    assert!(
        instance
            .refs(&repo)
            .await
            .contains(&format!("{next}\trefs/heads/main"))
    );
}
