//! What operators decide while the server runs: bans, held repositories and the allow list, with the real git.

use grasp_core::RepoId;
use grasp_core::admission::{Outcome, Rejection};
use grasp_core::policy::PolicySubject;
use grasp_relay::policy::KEEP_HIDDEN;
use grasp_relay::store::policy::{AuditEntry, PolicyAction, PolicyChange, PolicyChanged};
use grasp_tests::wire::pkt;
use grasp_tests::{
    AdjustableClock, Author, Fault, Instance, Settings, Workdir, eventually_async, request_head,
};
use nostr::event::Event;
use nostr::types::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const MAIN: &str = "refs/heads/main";

/// Has an operator of this machine decide something.
pub(crate) async fn decide(instance: &Instance, action: PolicyAction) {
    let audit = AuditEntry {
        actor: "local:0".to_owned(),
        via: "socket".to_owned(),
        auth: None,
        method: "test".to_owned(),
        params: "[]".to_owned(),
        error: None,
    };
    let change = PolicyChange {
        at: Timestamp::now(),
        actions: vec![action],
        audit,
        auth_until: None,
    };
    let changed = instance.server().change_policy(change).await.unwrap();
    assert_eq!(changed, PolicyChanged::Done);
}

pub(crate) fn add(subject: PolicySubject) -> PolicyAction {
    PolicyAction::Add {
        subject,
        reason: "spam".to_owned(),
    }
}

/// Waits until an event is served, or no longer is.
async fn until_served(instance: &Instance, event: &Event, wanted: bool) {
    eventually_async(|| async { (instance.serves(event).await == wanted).then_some(()) }).await;
}

/// Returns what git says about a clone that is refused.
async fn refused_clone(instance: &Instance, repo: &RepoId) -> String {
    let url = instance.clone_url(repo);
    Workdir::empty()
        .git(&["ls-remote", &url])
        .await
        .expect_refused()
}

fn is_banned(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::Refused {
            reason: Rejection::Banned,
            ..
        }
    )
}

#[tokio::test]
async fn a_ban_takes_repository_and_events_out_of_service_and_its_end_brings_them_back() {
    let instance = Instance::single_process().await;
    let (alice, bob) = (Author::new(), Author::new());
    let work = instance.host(&alice, "x").await;
    instance.host(&bob, "x").await;
    let (repo, url) = (alice.repo("x"), instance.clone_url(&alice.repo("x")));
    let commit = work.git(&["rev-parse", "main"]).await.expect_ok();
    let request = bob.pull_request(&repo, commit.trim());
    instance.ingest(vec![request.clone()]).await;
    let issue = alice.issue(&bob.repo("x"), "an issue");
    let outcomes = instance.ingest(vec![issue.clone()]).await;
    assert_eq!(outcomes, [Outcome::Stored]);
    let before = instance.refs(&repo).await;
    let others = instance.refs(&bob.repo("x")).await;

    let ban = PolicySubject::BannedAuthor(alice.key());
    decide(&instance, add(ban.clone())).await;
    let path = instance.path(&repo);
    for path in [
        format!("{path}/info/refs?service=git-upload-pack"),
        format!("{path}/info/refs?service=git-receive-pack"),
        path,
    ] {
        let answer = instance.get(&path, &[]).await;
        assert_eq!(answer.status, 404, "{path}");
        assert!(answer.body.contains("not available on this server"));
    }
    let next = work.commit("next").await;
    let state = alice.later(1).state("x", &[(MAIN, &next)]);
    let outcomes = instance.ingest(vec![state.clone()]).await;
    assert!(is_banned(&outcomes[0]), "{outcomes:?}");
    work.git(&["push", &url, "main"]).await.expect_refused();
    until_served(&instance, &issue, false).await;
    // It is of another author, and belongs to nothing else.
    until_served(&instance, &request, false).await;
    instance.settle("x").await;
    assert_eq!(instance.refs(&bob.repo("x")).await, others);

    decide(&instance, PolicyAction::Remove(ban)).await;
    until_served(&instance, &issue, true).await;
    until_served(&instance, &request, true).await;
    eventually_async(|| async {
        let path = format!("{}/info/refs?service=git-upload-pack", instance.path(&repo));
        (instance.get(&path, &[]).await.status == 200).then_some(())
    })
    .await;
    // The ref of the pull request follows its event.
    eventually_async(|| async { (instance.refs(&repo).await == before).then_some(()) }).await;
    instance.ingest(vec![state.clone()]).await;
    work.git(&["push", &url, "main"]).await.expect_ok();
    assert!(instance.serves(&state).await);
}

#[tokio::test]
async fn a_held_repository_survives_a_restart_and_maintenance_as_it_was() {
    let instance = Instance::single_process().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let repo = alice.repo("x");
    let before = instance.refs(&repo).await;
    let hold = PolicyAction::Hold {
        repo: repo.clone(),
        reason: String::new(),
        until: Timestamp::now() + 3_600_u64,
    };
    decide(&instance, hold).await;
    let instance = instance.restart().await;
    instance.settle("x").await;
    assert!(refused_clone(&instance, &repo).await.contains("not found"));
    decide(&instance, PolicyAction::Restore(repo.clone())).await;
    eventually_async(|| async {
        let path = format!("{}/info/refs?service=git-upload-pack", instance.path(&repo));
        (instance.get(&path, &[]).await.status == 200).then_some(())
    })
    .await;
    instance.settle("x").await;
    assert_eq!(instance.refs(&repo).await, before);
}

#[tokio::test]
async fn a_ban_of_the_settings_hides_at_the_start_and_its_removal_restores() {
    let instance = Instance::single_process().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let repo = alice.repo("x");
    let before = instance.refs(&repo).await;
    let ban = alice.key();
    let instance = instance
        .restart_with(|settings| _ = settings.policy.bans.authors.insert(ban))
        .await;
    assert!(refused_clone(&instance, &repo).await.contains("not found"));
    instance.settle("x").await;
    let instance = instance
        .restart_with(|settings| settings.policy.bans.authors.clear())
        .await;
    eventually_async(|| async {
        let path = format!("{}/info/refs?service=git-upload-pack", instance.path(&repo));
        (instance.get(&path, &[]).await.status == 200).then_some(())
    })
    .await;
    instance.settle("x").await;
    assert_eq!(instance.refs(&repo).await, before);
}

#[tokio::test]
async fn an_allow_list_hosts_what_is_listed_and_says_so() {
    let operator = Author::new();
    let key = operator.key();
    let instance = Instance::with(|settings| {
        settings.policy.allowed.only = true;
        settings.policy.operator = Some(key);
    })
    .await;
    let (alice, service) = (Author::new(), instance.service());
    let announcement = alice.announce("x", &service);
    let own = operator.announce("x", &service);
    let outcomes = instance.ingest(vec![announcement.clone(), own]).await;
    let Outcome::Refused { reason, .. } = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(*reason, Rejection::NotAllowed);
    assert_eq!(outcomes[1], Outcome::Held);
    let json = [("Accept", "application/nostr+json")];
    let document = instance.get("/", &json).await.body;
    assert!(document.contains("Only repositories that the operator has listed"));
    decide(&instance, add(PolicySubject::AllowedRepo(alice.repo("x")))).await;
    let outcomes = instance.ingest(vec![announcement]).await;
    assert_eq!(outcomes, [Outcome::Held]);
}

#[tokio::test]
async fn a_refused_kind_is_refused_and_those_of_repositories_never_are() {
    let instance = Instance::single_process().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    for kind in [1_111, 1_621] {
        decide(&instance, add(PolicySubject::RefusedKind(kind.into()))).await;
    }
    let issue = alice.issue(&alice.repo("x"), "an issue");
    assert_eq!(
        instance.ingest(vec![issue.clone()]).await,
        [Outcome::Stored]
    );
    let id = issue.id.to_hex();
    let comment = alice.sign(1_111, "a comment", &[&["E", &id], &["e", &id]]);
    let outcomes = instance.ingest(vec![comment]).await;
    let Outcome::Refused { reason, .. } = &outcomes[0] else {
        panic!("{outcomes:?}");
    };
    assert_eq!(*reason, Rejection::RefusedKind);
}

/// Waits until git has nothing of a repository to serve.
async fn until_gone(instance: &Instance, repo: &RepoId) {
    eventually_async(|| async { (!has_view(instance, repo).await).then_some(()) }).await;
}

async fn has_view(instance: &Instance, repo: &RepoId) -> bool {
    let repos = instance.purgatory().repos().repositories().await;
    repos.unwrap().contains(repo)
}

#[tokio::test]
async fn what_its_author_deletes_while_it_is_withheld_is_gone_afterwards() {
    let instance = Instance::single_process().await;
    let (alice, bob) = (Author::new(), Author::new());
    let ban = PolicySubject::BannedAuthor(alice.key());
    let hold = PolicyAction::Hold {
        repo: bob.repo("x"),
        reason: String::new(),
        until: Timestamp::now() + 3_600_u64,
    };
    let restore = PolicyAction::Restore(bob.repo("x"));
    for (author, begin, end) in [
        (&alice, add(ban.clone()), PolicyAction::Remove(ban)),
        (&bob, hold, restore),
    ] {
        instance.host(author, "x").await;
        let repo = author.repo("x");
        decide(&instance, begin).await;
        let announcement = author.announce("x", &instance.service());
        until_served(&instance, &announcement, false).await;
        let coordinate = repo.to_string();
        let deletion = author.later(1).sign(5, "", &[&["a", &coordinate]]);
        assert_eq!(instance.ingest(vec![deletion]).await, [Outcome::Stored]);
        instance.settle("x").await;
        assert!(has_view(&instance, &repo).await, "it may come back");
        decide(&instance, end).await;
        until_gone(&instance, &repo).await;
    }
}

#[tokio::test]
async fn the_git_data_of_a_banned_author_who_vanishes_is_removed_at_once() {
    let instance = Instance::single_process().await;
    let alice = Author::new();
    instance.host(&alice, "x").await;
    let announcement = alice.announce("x", &instance.service());
    decide(&instance, add(PolicySubject::BannedAuthor(alice.key()))).await;
    until_served(&instance, &announcement, false).await;
    let vanish = alice.later(1).sign(62, "", &[&["relay", "ALL_RELAYS"]]);
    assert_eq!(instance.ingest(vec![vanish]).await, [Outcome::Stored]);
    until_gone(&instance, &alice.repo("x")).await;
}

/// A server whose commits can be held back.
async fn with_fault() -> (Instance, Fault) {
    let fault = Fault::default();
    let settings = Settings {
        store: Some(fault.store_wrapper()),
        ..Settings::one_process()
    };
    (Instance::with_settings(settings).await, fault)
}

#[tokio::test]
async fn what_is_judged_before_a_ban_and_stored_after_it_is_refused() {
    let (instance, fault) = with_fault().await;
    let (alice, bob) = (Author::new(), Author::new());
    instance.host(&alice, "x").await;
    let issue = bob.issue(&alice.repo("x"), "an issue");
    let ban = PolicySubject::BannedAuthor(bob.key());
    fault.hold_commits();
    let banned_meanwhile = async {
        fault.until_commit_is_held().await;
        decide(&instance, add(ban.clone())).await;
        fault.let_commits_go();
    };
    let (outcomes, ()) = tokio::join!(instance.ingest(vec![issue.clone()]), banned_meanwhile);
    assert!(is_banned(&outcomes[0]), "{outcomes:?}");
    assert!(!instance.serves(&issue).await);
    decide(&instance, PolicyAction::Remove(ban)).await;
    instance.ingest(vec![issue.clone()]).await;
    assert!(instance.serves(&issue).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ban_during_a_push_that_has_the_lock_leaves_a_whole_repository() {
    let (instance, fault) = with_fault().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let (repo, url) = (alice.repo("x"), instance.clone_url(&alice.repo("x")));
    let before = instance.refs(&repo).await;
    let commit = work.commit("next").await;
    let state = alice.later(1).state("x", &[(MAIN, &commit)]);
    instance.ingest(vec![state]).await;
    let ban = PolicySubject::BannedAuthor(alice.key());
    fault.hold_commits();
    let banned_meanwhile = async {
        fault.until_commit_is_held().await;
        decide(&instance, add(ban.clone())).await;
        fault.let_commits_go();
    };
    let push = ["push", "-q", &url, "main"];
    let (pushed, ()) = tokio::join!(work.git(&push), banned_meanwhile);
    assert!(refused_clone(&instance, &repo).await.contains("not found"));
    decide(&instance, PolicyAction::Remove(ban)).await;
    let path = format!("{}/info/refs?service=git-upload-pack", instance.path(&repo));
    eventually_async(|| async { (instance.get(&path, &[]).await.status == 200).then_some(()) })
        .await;
    instance.settle("x").await;
    let after = instance.refs(&repo).await;
    let is_moved = after.contains(&format!("{commit}\t{MAIN}"));
    assert!(
        is_moved || (!pushed.ok && after == before),
        "{pushed:?} {after}"
    );
    let clone = Workdir::empty();
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
    clone.git(&["fsck", "--strict"]).await.expect_ok();
    work.git(&push).await.expect_ok();
}

#[tokio::test]
async fn a_ban_ends_a_clone_that_is_running() {
    let instance = Instance::single_process().await;
    let alice = Author::new();
    let work = instance.host(&alice, "x").await;
    let next = work.commit_incompressible(16 << 20).await;
    let state = alice.later(1).state("x", &[(MAIN, &next)]);
    instance.ingest(vec![state]).await;
    let (repo, url) = (alice.repo("x"), instance.clone_url(&alice.repo("x")));
    work.git(&["push", "-q", &url, "main"]).await.expect_ok();
    let want = pkt(format!("want {next} side-band-64k ofs-delta\n"));
    let request = [want, b"0000".to_vec(), pkt("done\n")].concat();
    let address = instance.address().to_string();
    let mut stream = TcpStream::connect(&address).await.unwrap();
    let path = format!("{}/git-upload-pack", instance.path(&repo));
    let length = request.len().to_string();
    let head = request_head(&address, "POST", &path, &[("Content-Length", &length)]);
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&request).await.unwrap();
    let mut received = vec![0; 100_000];
    stream.read_exact(&mut received).await.unwrap();
    decide(&instance, add(PolicySubject::BannedAuthor(alice.key()))).await;
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest).await;
    assert!(
        rest.len() < 12 << 20,
        "{} bytes came after the ban",
        rest.len()
    );
    assert_eq!(instance.until_idle().await.processes.len(), 0);
}

#[tokio::test]
async fn a_held_repository_is_removed_once_it_can_be_restored_no_longer() {
    let time = AdjustableClock::default();
    let settings = Settings {
        one_process: true,
        ..time.settings()
    };
    let instance = Instance::with_settings(settings).await;
    let (alice, bob) = (Author::new(), Author::new());
    instance.host(&alice, "x").await;
    instance.host(&bob, "x").await;
    let hold = PolicyAction::Hold {
        repo: alice.repo("x"),
        reason: String::new(),
        until: Timestamp::now() + KEEP_HIDDEN,
    };
    decide(&instance, hold).await;
    let announcement = alice.announce("x", &instance.service());
    until_served(&instance, &announcement, false).await;
    for (forward, is_kept) in [(KEEP_HIDDEN / 2, true), (KEEP_HIDDEN, false)] {
        time.advance(forward.as_secs());
        let parts = instance.server().parts();
        parts.store.sweep(parts.clock.now().unix).await.unwrap();
        instance.purgatory().run_maintenance().await.unwrap();
        assert_eq!(has_view(&instance, &alice.repo("x")).await, is_kept);
        assert!(has_view(&instance, &bob.repo("x")).await);
    }
}
