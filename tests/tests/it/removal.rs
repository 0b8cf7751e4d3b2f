//! However a repository is removed: its rows and files go, those of others stay, and nothing of it is readable elsewhere.

use std::collections::BTreeSet;
use std::path::PathBuf;

use grasp_core::RepoId;
use grasp_tests::{Author, Instance, Workdir, eventually_async, files};
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags};

const MAIN: &str = "refs/heads/main";

/// A way to remove a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Deletion,
    Vanishing,
    Delisting,
    Ban,
}

/// Rows that say what there is: not the bytes of the last day, and not numbers that only grow.
const TABLES: [&str; 14] = [
    "events",
    "lists",
    "heads",
    "expirations",
    "superseded",
    "views",
    "proposal_refs",
    "maintained",
    "packs",
    "retired_refs",
    "garbage",
    "held",
    "staged",
    "tasks",
];

/// Rows that a request of the author adds.
const OF_REQUESTS: [&str; 3] = ["events", "lists", "heads"];

/// A row with its table.
type Row = (&'static str, String);

/// All that a server has on its disk.
#[derive(Clone, Debug, Default)]
struct Content {
    rows: BTreeSet<Row>,
    files: BTreeSet<PathBuf>,
}

fn content(instance: &Instance) -> Content {
    let path = instance.dir().join("grasp.db");
    let conn = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut content = Content::default();
    for table in TABLES {
        let mut statement = conn.prepare(&format!("SELECT * FROM {table}")).unwrap();
        let names = statement.column_names();
        // A pack is read as a whole from time to time.
        let shown: Vec<usize> = (0..names.len())
            .filter(|at| names[*at] != "verified")
            .collect();
        let mut found = statement.query([]).unwrap();
        while let Some(row) = found.next().unwrap() {
            let values = shown.iter().map(|at| text(row.get(*at).unwrap()));
            let values: Vec<String> = values.collect();
            content.rows.insert((table, values.join(" ")));
        }
    }
    let found = files(&instance.repositories()).into_iter();
    let below = found.map(|file| {
        file.strip_prefix(instance.repositories())
            .unwrap()
            .to_owned()
    });
    // Caches and places for uploads come and go.
    content.files = below
        .filter(|file| file.starts_with("repositories"))
        .collect();
    content
}

fn text(value: Value) -> String {
    match value {
        Value::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        Value::Text(text) => text,
        Value::Integer(number) => number.to_string(),
        Value::Null | Value::Real(_) => String::new(),
    }
}

/// Hosts a repository with a commit that no other one has, and returns it.
async fn host(instance: &Instance, owner: &Author, name: &str) -> String {
    let work = Workdir::init().await;
    let tip = work.commit(&format!("{name} of {}", owner.key())).await;
    let state = owner.state(name, &[(MAIN, &tip)]);
    let announced = owner.announce(name, &instance.service());
    instance.ingest(vec![announced, state]).await;
    let url = instance.clone_url(&owner.repo(name));
    work.git(&["push", &url, MAIN]).await.expect_ok();
    tip
}

/// Replaces the commit of a repository, adds a pull request, and returns all of their commits.
async fn fill(instance: &Instance, owner: &Author, name: &str) -> Vec<String> {
    let replaced = host(instance, owner, name).await;
    let repo = owner.repo(name);
    let url = instance.clone_url(&repo);
    let work = Workdir::init().await;
    let tip = work.commit(&format!("newer {}", owner.key())).await;
    instance
        .ingest(vec![owner.later(1).state(name, &[(MAIN, &tip)])])
        .await;
    work.git(&["push", "-f", &url, MAIN]).await.expect_ok();
    let proposed = work.commit(&format!("for {}", owner.key())).await;
    let request = Author::new().pull_request(&repo, &proposed);
    instance.ingest(vec![request.clone()]).await;
    let pushed = format!("{proposed}:refs/nostr/{}", request.id);
    work.git(&["push", &url, &pushed]).await.expect_ok();
    vec![replaced, tip, proposed]
}

async fn is_readable(instance: &Instance, repo: &RepoId, commit: &str) -> bool {
    let url = instance.clone_url(repo);
    Workdir::init()
        .await
        .git(&["fetch", "-q", &url, commit])
        .await
        .ok
}

/// Removes the repository `x` of an author.
async fn remove(instance: Instance, owner: &Author, way: Way) -> Instance {
    let repo = owner.repo("x");
    let request = match way {
        Way::Deletion => {
            let targets = [30_617, 30_618].map(|kind| format!("{kind}:{}:x", owner.key()));
            owner
                .later(2)
                .sign(5, "", &[&["a", &targets[0]], &["a", &targets[1]]])
        }
        Way::Vanishing => owner.later(2).sign(62, "", &[&["relay", "ALL_RELAYS"]]),
        Way::Delisting => {
            let elsewhere = "elsewhere.example".parse().unwrap();
            owner.later(2).announce("x", &elsewhere)
        }
        Way::Ban => {
            let banned = |settings: &mut grasp_relay::instance::Settings| {
                _ = settings.policy.bans.repos.insert(repo);
            };
            return instance.restart_with(banned).await;
        }
    };
    instance.ingest(vec![request]).await;
    instance
}

/// Returns whether a row of git data is one of the repository `x` of an author.
fn is_of(row: &Row, owner: &Author) -> bool {
    row.1.contains(&owner.key().to_hex()) && row.1.split(' ').any(|value| value == "x")
}

#[tokio::test]
async fn every_removal_takes_the_rows_and_files_of_one_repository_and_no_others() {
    for way in [Way::Deletion, Way::Vanishing, Way::Delisting, Way::Ban] {
        let instance = Instance::single_process().await;
        let (alice, bob) = (Author::new(), Author::new());
        let others = [bob.repo("x"), bob.repo("y"), alice.repo("y")];
        for repo in &others[..2] {
            let tip = host(&instance, &bob, repo.identifier.as_str()).await;
            assert!(is_readable(&instance, repo, &tip).await);
        }
        if way != Way::Vanishing {
            let tip = host(&instance, &alice, "y").await;
            assert!(is_readable(&instance, &others[2], &tip).await);
        }
        let before = content(&instance);
        let own_commits = fill(&instance, &alice, "x").await;
        let repo = alice.repo("x");
        for commit in &own_commits {
            assert!(is_readable(&instance, &repo, commit).await, "{way:?}");
        }
        let with_it = content(&instance);
        assert!(with_it.rows.is_superset(&before.rows), "{way:?}");
        assert!(with_it.files.len() > before.files.len(), "{way:?}");

        let instance = remove(instance, &alice, way).await;
        let done = async || {
            instance.settle("x").await;
            let after = content(&instance);
            let is_gone = match way {
                Way::Vanishing => after.files == before.files,
                Way::Deletion | Way::Delisting => {
                    let row = instance.purgatory().repos().row(&repo).await;
                    row.unwrap().view.is_none()
                }
                Way::Ban => !is_readable(&instance, &repo, &own_commits[0]).await,
            };
            is_gone.then_some(after)
        };
        let after = eventually_async(done).await;
        let lost: Vec<&Row> = before.rows.difference(&after.rows).collect();
        assert!(lost.is_empty(), "{way:?}: {lost:?}");
        let files_lost: Vec<&PathBuf> = before.files.difference(&after.files).collect();
        assert!(files_lost.is_empty(), "{way:?}: {files_lost:?}");
        for row in after.rows.difference(&before.rows) {
            let is_retired = ["packs", "retired_refs", "garbage"].contains(&row.0);
            let is_expected = match way {
                Way::Vanishing => !is_of(row, &alice) && OF_REQUESTS.contains(&row.0),
                // It may come back, and so may what was proposed to it.
                Way::Deletion => is_retired || !is_of(row, &alice) && OF_REQUESTS.contains(&row.0),
                Way::Delisting => !is_of(row, &alice) || is_retired || row.0 == "events",
                // A banned repository is held: rows of its owner stay.
                Way::Ban => with_it.rows.contains(row) || row.1.contains(&alice.key().to_hex()),
            };
            assert!(is_expected, "{way:?}: {row:?}");
        }
        if way == Way::Ban {
            assert_eq!(after.files, with_it.files, "a ban removes no git data");
        }
        for at in others.iter().chain([&repo]) {
            for commit in &own_commits {
                assert!(!is_readable(&instance, at, commit).await, "{way:?} at {at}");
            }
        }
        let _ = instance.stop().await;
    }
}
