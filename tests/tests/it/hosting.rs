//! Hosting of a repository with plain git and a nostr key.

use grasp_tests::{Author, Instance, Workdir};

const MAIN: &str = "refs/heads/main";

/// Hosts a repository with one commit, and checks that nothing is served before the push.
async fn hosted(instance: &Instance, alice: &Author) -> (Workdir, String) {
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let announcement = alice.announce("x", &instance.service());
    let state = alice.state("x", &[(MAIN, &commit)]);
    let outcomes = instance
        .ingest(vec![announcement.clone(), state.clone()])
        .await;
    for outcome in outcomes {
        assert!(
            outcome.answer().message.starts_with("purgatory: "),
            "{outcome:?}"
        );
    }
    assert!(!instance.serves(&announcement).await && !instance.serves(&state).await);
    let url = instance.clone_url(&alice.repo("x"));
    work.git(&["push", &url, "main"]).await.expect_ok();
    assert!(instance.serves(&announcement).await && instance.serves(&state).await);
    (work, commit)
}

#[tokio::test]
async fn announce_sign_push_clone() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let (_work, commit) = hosted(&instance, &alice).await;
    let clone = Workdir::empty();
    let url = instance.clone_url(&alice.repo("x"));
    clone.git(&["clone", "-q", &url, "."]).await.expect_ok();
    assert_eq!(clone.git(&["rev-parse", "HEAD"]).await.expect_ok(), commit);
    assert_eq!(
        clone.git(&["branch", "--show-current"]).await.expect_ok(),
        "main"
    );
}

#[tokio::test]
async fn a_push_without_a_signed_state_is_refused_with_the_reason() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    instance
        .ingest(vec![alice.announce("x", &instance.service())])
        .await;
    let url = instance.clone_url(&alice.repo("x"));
    let error = work.git(&["push", &url, "main"]).await.expect_refused();
    assert!(
        error.contains("! [remote rejected] main -> main (no state event"),
        "{error}"
    );

    instance
        .ingest(vec![alice.state("x", &[(MAIN, &"d".repeat(40))])])
        .await;
    let error = work.git(&["push", &url, "main"]).await.expect_refused();
    assert!(
        error.contains(&format!(
            "would be at {} but the signed state says dddddddd",
            &commit[..8]
        )),
        "{error}"
    );
}

#[tokio::test]
async fn a_served_repository_changes_by_signed_states_only() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let (work, first) = hosted(&instance, &alice).await;
    let url = instance.clone_url(&alice.repo("x"));
    let second = work.commit("second").await;
    work.git(&["push", &url, "main"]).await.expect_refused();

    let eve = Author::new().state("x", &[(MAIN, &second)]);
    assert!(!instance.ingest(vec![eve]).await[0].answer().is_accepted);
    work.git(&["push", &url, "main"]).await.expect_refused();

    let state = alice.later(1).state("x", &[(MAIN, &second)]);
    instance.ingest(vec![state.clone()]).await;
    work.git(&["push", &url, "main"]).await.expect_ok();
    assert!(instance.serves(&state).await);

    // A forced push back, with a new branch and a tag.
    work.git(&["tag", "-a", "v1", "-m", "v1"]).await.expect_ok();
    let tag = work.git(&["rev-parse", "v1"]).await.expect_ok();
    let peeled = [("refs/tags/v1^{}", second.as_str())];
    let refs = [
        (MAIN, first.as_str()),
        ("refs/heads/dev", &second),
        ("refs/tags/v1", &tag),
    ];
    let state = alice.later(2).state("x", &[&refs[..], &peeled].concat());
    instance.ingest(vec![state.clone()]).await;
    let main = format!("+{first}:{MAIN}");
    work.git(&["push", &url, &main, "main:refs/heads/dev", "v1"])
        .await
        .expect_ok();
    assert!(instance.serves(&state).await);
    let listed = work.git(&["ls-remote", &url]).await.expect_ok();
    assert!(
        listed.contains(&format!("{first}\t{MAIN}"))
            && listed.contains(&format!("{tag}\trefs/tags/v1"))
    );

    // Deletion of the branch and the tag.
    let state = alice.later(3).state("x", &[(MAIN, &first)]);
    instance.ingest(vec![state.clone()]).await;
    work.git(&["push", &url, ":refs/heads/dev", ":refs/tags/v1"])
        .await
        .expect_ok();
    assert!(instance.serves(&state).await);
    let listed = work.git(&["ls-remote", &url]).await.expect_ok();
    assert!(
        !listed.contains("dev") && !listed.contains("v1"),
        "{listed}"
    );
}

#[tokio::test]
async fn a_state_whose_git_data_is_here_is_applied_without_a_push() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let (work, first) = hosted(&instance, &alice).await;
    let state = alice
        .later(1)
        .state("x", &[(MAIN, &first), ("refs/heads/dev", &first)]);
    instance.ingest(vec![state.clone()]).await;
    let url = instance.clone_url(&alice.repo("x"));
    instance.settle("x").await;
    assert!(instance.serves(&state).await);
    assert!(
        work.git(&["ls-remote", &url])
            .await
            .expect_ok()
            .contains("refs/heads/dev")
    );
}

#[tokio::test]
async fn a_pull_request_is_served_with_its_commit_in_either_order() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let bob = Author::new();
    let (work, _) = hosted(&instance, &alice).await;
    let url = instance.clone_url(&alice.repo("x"));
    let repo = alice.repo("x");

    let tip = work.commit("proposed").await;
    let event_first = bob.pull_request(&repo, &tip);
    assert!(
        instance.ingest(vec![event_first.clone()]).await[0]
            .answer()
            .is_accepted
    );
    assert!(!instance.serves(&event_first).await);
    let wrong = work.commit("wrong").await;
    let name = format!("refs/nostr/{}", event_first.id);
    let error = work
        .git(&["push", &url, &format!("{wrong}:{name}")])
        .await
        .expect_refused();
    assert!(error.contains("its event names commit"), "{error}");
    work.git(&["push", &url, &format!("{tip}:{name}")])
        .await
        .expect_ok();
    assert!(instance.serves(&event_first).await);

    let tip = work.commit("git first").await;
    let git_first = bob.later(1).pull_request(&repo, &tip);
    let name = format!("refs/nostr/{}", git_first.id);
    work.git(&["push", &url, &format!("{wrong}:{name}")])
        .await
        .expect_ok();
    work.git(&["push", &url, &format!("{tip}:{name}")])
        .await
        .expect_ok();
    assert!(
        !work
            .git(&["ls-remote", &url])
            .await
            .expect_ok()
            .contains(&name),
        "staged, not served"
    );
    instance.ingest(vec![git_first.clone()]).await;
    instance.settle("x").await;
    assert!(instance.serves(&git_first).await);
    let listed = work.git(&["ls-remote", &url]).await.expect_ok();
    assert!(listed.contains(&format!("{tip}\t{name}")), "{listed}");
}

#[tokio::test]
async fn served_and_held_events_survive_a_restart() {
    let instance = Instance::start().await;
    let alice = Author::new();
    let (work, first) = hosted(&instance, &alice).await;
    let second = work.commit("second").await;
    let held = alice.later(1).state("x", &[(MAIN, &second)]);
    instance.ingest(vec![held.clone()]).await;
    let instance = instance.restart().await;
    let url = instance.clone_url(&alice.repo("x"));
    assert!(
        work.git(&["ls-remote", &url])
            .await
            .expect_ok()
            .contains(&first)
    );
    assert!(!instance.serves(&held).await);
    work.git(&["push", &url, "main"]).await.expect_ok();
    assert!(instance.serves(&held).await);
}

#[tokio::test]
async fn an_invited_fork_owner_cannot_take_over() {
    let instance = Instance::start().await;
    let (alice, eve) = (Author::new(), Author::new());
    let (work, _) = hosted(&instance, &alice).await;
    let eves = work.commit("by eve").await;
    instance
        .ingest(vec![
            eve.announce("x", &instance.service()),
            eve.state("x", &[(MAIN, &eves)]),
        ])
        .await;
    work.git(&["push", &instance.clone_url(&eve.repo("x")), "main"])
        .await
        .expect_ok();

    // Alice lists eve. Nothing in alice's repository changes, and eve cannot push to it.
    let key = eve.key().to_string();
    let invitation =
        alice
            .later(1)
            .announce_with("x", &instance.service(), &[&["maintainers", &key]]);
    assert!(
        instance.ingest(vec![invitation]).await[0]
            .answer()
            .is_accepted
    );
    instance.settle("x").await;
    let url = instance.clone_url(&alice.repo("x"));
    assert!(
        !work
            .git(&["ls-remote", &url])
            .await
            .expect_ok()
            .contains(&eves)
    );
    let again = eve
        .later(5)
        .state("x", &[(MAIN, &eves), ("refs/heads/y", &eves)]);
    instance.ingest(vec![again]).await;
    work.git(&["push", &url, "+main", "+main:refs/heads/y"])
        .await
        .expect_refused();
}

#[tokio::test]
async fn a_state_updates_every_view_that_its_author_may_sign_for() {
    let instance = Instance::start().await;
    let (alice, bob, eve) = (Author::new(), Author::new(), Author::new());
    let lists = |by: &Author, other: &Author| {
        by.announce_with(
            "x",
            &instance.service(),
            &[&["maintainers", &other.key().to_string()]],
        )
    };
    let (alices, bobs) = (lists(&alice, &bob), lists(&bob, &alice));
    // Eve announces the same name, and no other owner lists her.
    let eves = lists(&eve, &alice);
    let work = Workdir::init().await;
    let commit = work.commit("first").await;
    let state = bob.state("x", &[(MAIN, &commit)]);
    instance
        .ingest(vec![
            alices.clone(),
            bobs.clone(),
            eves.clone(),
            state.clone(),
        ])
        .await;
    work.git(&["push", &instance.clone_url(&alice.repo("x")), "main"])
        .await
        .expect_ok();
    for event in [&alices, &bobs, &state] {
        assert!(instance.serves(event).await);
    }
    for author in [&alice, &bob] {
        assert!(
            instance
                .refs(&author.repo("x"))
                .await
                .contains(&format!("{commit}\t{MAIN}"))
        );
    }
    assert!(!instance.serves(&eves).await);
    assert_eq!(instance.refs(&eve.repo("x")).await, "");

    // A new maintainer's view is filled by their announcement, without a push.
    let carol = Author::new();
    let both = [bob.key().to_string(), carol.key().to_string()];
    let with_carol = [&["maintainers", &both[0], &both[1]][..]];
    let replaced = alice
        .later(1)
        .announce_with("x", &instance.service(), &with_carol);
    instance.ingest(vec![replaced]).await;
    let accepts = lists(&carol, &alice);
    instance.ingest(vec![accepts.clone()]).await;
    instance.settle("x").await;
    assert!(instance.serves(&accepts).await);
    assert!(
        instance
            .refs(&carol.repo("x"))
            .await
            .contains(&format!("{commit}\t{MAIN}"))
    );
}
