//! `grasp purge`: what no ref needs goes at once, by the running server or without one.

use std::path::Path;
use std::process::Command;

use crate::commands::{clone_url, git, push, working_copy};
use crate::operations::free_address;
use crate::support::{CommandOutput, Server, command, grasp, run_to_end};

fn purge(data: &Path, repository: &str) -> CommandOutput {
    grasp(&["purge", "--data-dir", data.to_str().unwrap(), repository])
}

/// Commits, and pushes even if that replaces what is there.
fn push_commit(
    work: &Path,
    home: &Path,
    server: &Server,
    message: &str,
) -> (String, CommandOutput) {
    git(work, &["commit", "-q", "--allow-empty", "-m", message]);
    let mut pushing = command();
    pushing
        .args(["push", "--force", "--server", server.host()])
        .current_dir(work)
        .env("HOME", home)
        .env_remove("XDG_DATA_HOME");
    (git(work, &["rev-parse", "HEAD"]), run_to_end(&mut pushing))
}

/// Replaces a commit by another one, and returns both.
fn replace(work: &Path, home: &Path, server: &Server, message: &str) -> [String; 2] {
    let (replaced, pushed) = push_commit(work, home, server, &format!("{message}, replaced"));
    assert!(pushed.ok, "{pushed:?}");
    git(work, &["reset", "-q", "--hard", "HEAD~1"]);
    let (stays, pushed) = push_commit(work, home, server, message);
    assert!(pushed.ok, "{pushed:?}");
    [replaced, stays]
}

/// Returns whether a server delivers a commit by its id.
fn is_readable(url: &str, commit: &str) -> bool {
    let dir = tempfile::tempdir().unwrap();
    git(dir.path(), &["init", "-q"]);
    let fetch = Command::new("git")
        .args(["fetch", "-q", url, commit])
        .current_dir(dir.path())
        .output();
    fetch.unwrap().status.success()
}

#[test]
fn a_purge_removes_what_a_forced_push_replaced_beside_a_server_and_without_one() {
    let dir = tempfile::tempdir().unwrap();
    let (data, work, address) = (
        dir.path().join("data"),
        dir.path().join("hello"),
        free_address(),
    );
    let mut server = Server::start_at(&address, &data);
    working_copy(&work);
    let url = clone_url(&push(&work, dir.path(), &server));
    let path = url.strip_prefix(&format!("http://{address}/")).unwrap();
    let repository = path.strip_suffix(".git").unwrap();

    let [replaced, stays] = replace(&work, dir.path(), &server, "running");
    assert!(is_readable(&url, &replaced) && is_readable(&url, &stays));
    let purged = purge(&data, repository);
    assert!(
        purged.ok && purged.out.contains("removed what"),
        "{purged:?}"
    );
    assert!(!is_readable(&url, &replaced) && is_readable(&url, &stays));
    let again = purge(&data, repository);
    assert!(again.ok && again.out.contains("has nothing"), "{again:?}");

    let [replaced, stays] = replace(&work, dir.path(), &server, "stopped");
    assert!(is_readable(&url, &replaced));
    let pid = server.child.id().to_string();
    let stopped = Command::new("kill").args(["-TERM", &pid]).status();
    assert!(stopped.unwrap().success());
    server.child.wait().unwrap();
    let purged = purge(&data, repository);
    assert!(
        purged.ok && purged.out.contains("removed what"),
        "{purged:?}"
    );
    let _server = Server::start_at(&address, &data);
    assert!(!is_readable(&url, &replaced) && is_readable(&url, &stays));

    let unknown = purge(&data, &repository.replace("hello", "unknown"));
    assert!(
        unknown.ok && unknown.out.contains("has nothing"),
        "{unknown:?}"
    );
}
