//! libgit2, the other implementation of git, as a client.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use git2::build::RepoBuilder;
use git2::{FetchOptions, PushOptions, RemoteCallbacks, Repository, Signature};
use grasp_tests::{Author, Instance, Workdir};

const MAIN: &str = "refs/heads/main";

/// Runs blocking work on a thread of its own.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(work).await.unwrap()
}

fn open(path: &Path) -> Repository {
    Repository::open(path).unwrap()
}

/// Adds an empty commit to main, and returns its id.
fn commit(repository: &Repository, text: &str) -> String {
    let parent = repository.head().unwrap().peel_to_commit().unwrap();
    let (tree, alice) = (
        parent.tree().unwrap(),
        Signature::now("alice", "alice@x").unwrap(),
    );
    let id = repository
        .commit(Some("HEAD"), &alice, &alice, text, &tree, &[&parent])
        .unwrap();
    id.to_string()
}

/// Pushes, and returns the status of each ref: `None`, or the reason of its refusal.
fn push(path: &Path, url: &str, refspecs: &[&str]) -> Vec<(String, Option<String>)> {
    let statuses = Rc::new(RefCell::new(Vec::new()));
    let mut callbacks = RemoteCallbacks::new();
    let collected = Rc::clone(&statuses);
    callbacks.push_update_reference(move |name, status| {
        collected
            .borrow_mut()
            .push((name.to_owned(), status.map(str::to_owned)));
        Ok(())
    });
    let mut options = PushOptions::new();
    options.remote_callbacks(callbacks);
    let repository = open(path);
    let mut remote = repository.remote_anonymous(url).unwrap();
    remote.push(refspecs, Some(&mut options)).unwrap();
    drop((remote, options));
    let mut statuses = Rc::into_inner(statuses).unwrap().into_inner();
    statuses.sort();
    statuses
}

struct Cloned {
    instance: Instance,
    alice: Author,
    url: String,
    work: Workdir,
}

/// Hosts a repository, and clones it by libgit2.
async fn cloned() -> Cloned {
    let instance = Instance::start().await;
    let alice = Author::new();
    let first = instance.host(&alice, "x").await;
    let tip = first.git(&["rev-parse", "main"]).await.expect_ok();
    let url = instance.clone_url(&alice.repo("x"));
    let work = Workdir::empty();
    let (from, to) = (url.clone(), work.path().to_owned());
    let head = blocking(move || {
        let repository = RepoBuilder::new().clone(&from, &to).unwrap();
        let head = repository.head().unwrap();
        (
            head.name().unwrap().to_owned(),
            head.target().unwrap().to_string(),
        )
    })
    .await;
    assert_eq!(head, (MAIN.to_owned(), tip));
    Cloned {
        instance,
        alice,
        url,
        work,
    }
}

impl Cloned {
    async fn commit(&self, text: &'static str) -> String {
        let path = self.work.path().to_owned();
        blocking(move || commit(&open(&path), text)).await
    }

    async fn push(&self, refspecs: &[&str]) -> Vec<(String, Option<String>)> {
        let (path, url) = (self.work.path().to_owned(), self.url.clone());
        let refspecs: Vec<String> = refspecs.iter().map(|spec| (*spec).to_owned()).collect();
        blocking(move || {
            let refspecs: Vec<&str> = refspecs.iter().map(String::as_str).collect();
            push(&path, &url, &refspecs)
        })
        .await
    }
}

#[tokio::test]
async fn libgit2_clones_and_fetches() {
    let cloned = cloned().await;
    let other = Workdir::empty();
    other
        .git(&["clone", "-q", &cloned.url, "."])
        .await
        .expect_ok();
    let next = other.commit("next").await;
    let state = cloned.alice.later(1).state("x", &[(MAIN, &next)]);
    cloned.instance.ingest(vec![state]).await;
    other
        .git(&["push", "-q", "origin", "main"])
        .await
        .expect_ok();
    let path = cloned.work.path().to_owned();
    let found = blocking(move || {
        let repository = open(&path);
        let mut remote = repository.find_remote("origin").unwrap();
        remote
            .fetch(&[] as &[&str], Some(&mut FetchOptions::new()), None)
            .unwrap();
        let main = repository
            .find_reference("refs/remotes/origin/main")
            .unwrap();
        main.target().unwrap().to_string()
    })
    .await;
    assert_eq!(found, next);
}

#[tokio::test]
async fn libgit2_pushes_signed_refs() {
    let cloned = cloned().await;
    let next = cloned.commit("next").await;
    let dev = "refs/heads/dev";
    let state = cloned
        .alice
        .later(1)
        .state("x", &[(MAIN, &next), (dev, &next)]);
    cloned.instance.ingest(vec![state.clone()]).await;
    let statuses = cloned
        .push(&[&format!("{MAIN}:{MAIN}"), &format!("{MAIN}:{dev}")])
        .await;
    assert_eq!(statuses, [(dev.to_owned(), None), (MAIN.to_owned(), None)]);
    assert!(cloned.instance.serves(&state).await);

    let state = cloned.alice.later(2).state("x", &[(MAIN, &next)]);
    cloned.instance.ingest(vec![state.clone()]).await;
    assert_eq!(
        cloned.push(&[&format!(":{dev}")]).await,
        [(dev.to_owned(), None)]
    );
    assert!(cloned.instance.serves(&state).await);
    assert!(
        !cloned
            .instance
            .refs(&cloned.alice.repo("x"))
            .await
            .contains(dev)
    );
}

#[tokio::test]
async fn libgit2_gets_the_reason_of_each_refused_ref() {
    let cloned = cloned().await;
    let next = cloned.commit("next").await;
    let refspecs = [format!("{MAIN}:{MAIN}"), format!("{MAIN}:refs/heads/dev")];
    let refspecs: Vec<&str> = refspecs.iter().map(String::as_str).collect();
    let statuses = cloned.push(&refspecs).await;
    let reason = |at: usize| statuses[at].1.clone().unwrap_or_default();
    assert_eq!(statuses.len(), 2);
    assert!(
        reason(0).contains("is not in the signed state"),
        "{statuses:?}"
    );
    assert!(
        reason(1).contains("but the signed state says"),
        "{statuses:?}"
    );

    // One pull request is accepted, one is refused.
    let bob = Author::new();
    let request = bob.pull_request(&cloned.alice.repo("x"), &"d".repeat(40));
    cloned.instance.ingest(vec![request.clone()]).await;
    let wrong = format!("refs/nostr/{}", request.id);
    let unknown = format!("refs/nostr/{}", "ab".repeat(32));
    let statuses = cloned
        .push(&[&format!("{MAIN}:{wrong}"), &format!("{MAIN}:{unknown}")])
        .await;
    let find = |name: &str| {
        statuses
            .iter()
            .find(|(other, _)| other == name)
            .unwrap()
            .1
            .clone()
    };
    assert!(
        find(&wrong)
            .unwrap()
            .contains("its event names commit dddddddd"),
        "{statuses:?}"
    );
    assert_eq!(find(&unknown), None);
    assert!(
        !cloned
            .instance
            .refs(&cloned.alice.repo("x"))
            .await
            .contains(&next)
    );
}
