//! Private services (GRASP-08), from the command line.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::commands::{clone_url, git, push, working_copy};
use crate::support::{Server, get, grasp};

/// The public key of the secret key 1.
const ALICE: &str = "npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d";

/// Gives a user the secret key 1.
fn give_key(home: &Path) {
    let dir = home.join(".local/share/grasp");
    std::fs::create_dir_all(&dir).unwrap();
    let file = dir.join("user.key");
    std::fs::write(&file, format!("{}1", "0".repeat(63))).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn a_member_pushes_by_one_command_and_others_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let settings = ["--listen", "127.0.0.1:0", "--private", "--members", ALICE];
    let server = Server::start_with(&settings, &dir.path().join("data"));
    let (home, stranger) = (dir.path().join("alice"), dir.path().join("mallory"));
    give_key(&home);
    let work = dir.path().join("hello");
    working_copy(&work);
    let url = clone_url(&push(&work, &home, &server));
    for n in 0..300 {
        git(&work, &["branch", &format!("b{n}")]);
    }
    // So many refs are pushed from a repository of their own.
    assert_eq!(clone_url(&push(&work, &home, &server)), url);
    git(&work, &["commit", "-q", "--allow-empty", "-m", "second"]);
    assert_eq!(clone_url(&push(&work, &home, &server)), url);
    let config = std::fs::read_to_string(work.join(".git/config")).unwrap();
    assert!(!config.contains("Authorization"), "{config}");
    let announced = std::fs::read_to_string(work.join(".git/grasp/announcements.json")).unwrap();
    assert!(announced.contains(r#"["private","true"]"#), "{announced}");
    let refused = push(&work, &stranger, &server);
    assert!(
        !refused.ok && refused.err.contains("restricted: "),
        "{refused:?}"
    );
    let cloned = Command::new("git")
        .args(["clone", "-q", &url, "copy"])
        .current_dir(dir.path())
        .env("GIT_TERMINAL_PROMPT", "0")
        .output()
        .unwrap();
    assert!(!cloned.status.success());
    assert_eq!(get(server.host(), "/metrics"), (401, String::new()));
}

#[test]
fn a_server_that_could_not_be_private_does_not_start() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    for (settings, reason) in [
        (vec!["--private"], "private: nobody could use it"),
        (vec!["--members", ALICE], "members: only a private service"),
        (
            vec!["--private", "--members", "npub1bad"],
            "expected a public key",
        ),
        (
            vec!["--private", "--members", ALICE, "--contributor-proposals"],
            "contributor_proposals: ",
        ),
        (
            vec![
                "--private",
                "--members",
                ALICE,
                "--public-origin",
                "https://git.example/x",
            ],
            "expected a scheme, a host and a port, and nothing else",
        ),
        (
            vec!["--private", "--members-file", "/nonexistent/members"],
            "could not read /nonexistent/members",
        ),
    ] {
        let args = [
            &["serve", "--data-dir", data, "--listen", "127.0.0.1:0"],
            &settings[..],
        ];
        let served = grasp(&args.concat());
        assert!(
            !served.ok && served.err.contains(reason),
            "{reason}: {served:?}"
        );
    }
}
