//! Commands that push, sync and diagnose.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::operations::commit_incompressible;
use crate::support::{CommandOutput, Server, command, grasp, run_to_end};
use crate::tls_front::{Authority, Front};

pub(crate) fn git(dir: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args([
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ])
        .args(args)
        .current_dir(dir)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Creates a working copy with one commit.
pub(crate) fn working_copy(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    git(dir, &["init", "-q", "-b", "main"]);
    git(dir, &["commit", "-q", "--allow-empty", "-m", "first"]);
}

pub(crate) fn push(dir: &Path, home: &Path, server: &Server) -> CommandOutput {
    let args = ["push", "--server", server.host()];
    run_to_end(
        command()
            .args(args)
            .current_dir(dir)
            .env("HOME", home)
            .env_remove("XDG_DATA_HOME"),
    )
}

/// Returns the URL that a push printed for clones.
pub(crate) fn clone_url(pushed: &CommandOutput) -> String {
    assert!(pushed.ok, "{pushed:?}");
    let line = pushed
        .out
        .lines()
        .find_map(|line| line.trim().strip_prefix("git clone "));
    line.unwrap().to_owned()
}

#[test]
fn a_working_copy_is_hosted_and_updated_by_one_command() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let work = dir.path().join("hello");
    working_copy(&work);
    let first = push(&work, dir.path(), &server);
    assert!(first.err.contains("created your key, "), "{first:?}");
    let url = clone_url(&first);
    git(&work, &["commit", "-q", "--allow-empty", "-m", "second"]);
    git(&work, &["branch", "topic"]);
    assert_eq!(clone_url(&push(&work, dir.path(), &server)), url);
    let copy = dir.path().join("copy");
    git(dir.path(), &["clone", "-q", &url, copy.to_str().unwrap()]);
    assert_eq!(
        git(&copy, &["rev-parse", "HEAD"]),
        git(&work, &["rev-parse", "HEAD"])
    );
    let branches = git(&copy, &["branch", "-r"]);
    assert!(branches.contains("origin/topic"), "{branches}");
    let repos = grasp(&[
        "repos",
        "--data-dir",
        dir.path().join("data").to_str().unwrap(),
    ]);
    assert!(repos.out.contains("hello"), "{repos:?}");
    let json = grasp(&[
        "status",
        "--json",
        "--data-dir",
        dir.path().join("data").to_str().unwrap(),
    ]);
    let status: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let bytes = |name: &str| status[name].as_u64().unwrap();
    let (events, git) = (bytes("store_bytes"), bytes("git_bytes"));
    assert!(
        git > 0 && events > 0 && bytes("disk_bytes") >= git + events,
        "{json:?}"
    );
    // The hunt does not look for pushed data.
    let status = grasp(&[
        "status",
        "--data-dir",
        dir.path().join("data").to_str().unwrap(),
    ]);
    assert!(status.out.contains("names hunted for 0"), "{status:?}");
}

#[test]
fn a_push_that_would_lose_refs_of_the_server_needs_force() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let (work, copy) = (dir.path().join("hello"), dir.path().join("copy/hello"));
    working_copy(&work);
    git(&work, &["branch", "topic"]);
    let url = clone_url(&push(&work, dir.path(), &server));
    git(dir.path(), &["clone", "-q", &url, copy.to_str().unwrap()]);
    let tips = || git(dir.path(), &["ls-remote", "--refs", &url]);
    // A clone has one branch of its own.
    let before = tips();
    let less = push(&copy, dir.path(), &server);
    assert!(
        !less.ok && less.err.contains("lose them: refs/heads/topic; fetch"),
        "{less:?}"
    );
    git(&copy, &["branch", "topic", "origin/topic"]);
    git(
        &copy,
        &["commit", "-q", "--amend", "--allow-empty", "-m", "other"],
    );
    let other = push(&copy, dir.path(), &server);
    assert!(
        !other.ok && other.err.contains("lose them: refs/heads/main; fetch"),
        "{other:?}"
    );
    assert_eq!(tips(), before);
    let forced = ["push", "--force", "--server", server.host()];
    let forced = run_to_end(
        command()
            .args(forced)
            .current_dir(&copy)
            .env("HOME", dir.path())
            .env_remove("XDG_DATA_HOME"),
    );
    assert!(
        forced.ok && tips().starts_with(&git(&copy, &["rev-parse", "HEAD"])),
        "{forced:?}"
    );
}

#[test]
fn a_shallow_clone_is_pushed_where_its_history_is_and_nowhere_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let work = dir.path().join("hello");
    working_copy(&work);
    git(&work, &["commit", "-q", "--allow-empty", "-m", "second"]);
    let url = clone_url(&push(&work, dir.path(), &server));
    let shallow = dir.path().join("shallow/hello");
    git(
        dir.path(),
        &["clone", "-q", "--depth=1", &url, shallow.to_str().unwrap()],
    );
    git(&shallow, &["commit", "-q", "--allow-empty", "-m", "third"]);
    assert_eq!(clone_url(&push(&shallow, dir.path(), &server)), url);
    let tip = git(dir.path(), &["ls-remote", &url, "refs/heads/main"]);
    assert!(
        tip.starts_with(&git(&shallow, &["rev-parse", "HEAD"])),
        "{tip}"
    );

    let other_data = dir.path().join("other");
    let other = Server::start(&other_data);
    let refused = push(&shallow, dir.path(), &other);
    assert!(
        !refused.ok && refused.err.contains("git fetch --unshallow"),
        "{refused:?}"
    );
    let repos = grasp(&["repos", "--data-dir", other_data.to_str().unwrap()]);
    assert!(
        !repos.out.contains("hello"),
        "nothing was announced: {repos:?}"
    );
    let held = grasp(&["purgatory", "--data-dir", other_data.to_str().unwrap()]);
    assert!(
        !held.out.contains("hello"),
        "nothing was published: {held:?}"
    );
}

#[test]
fn the_operator_sees_what_owners_use_and_gives_them_quotas() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let server = Server::start(&data);
    let work = dir.path().join("hello");
    working_copy(&work);
    for name in 0..10 {
        commit_incompressible(&work, &name.to_string());
    }
    let url = clone_url(&push(&work, dir.path(), &server));
    let path = url
        .strip_prefix(&format!("http://{}/", server.host()))
        .unwrap();
    let repo = path.strip_suffix(".git").unwrap();
    let npub = repo.strip_suffix("/hello").unwrap();
    let run = |args: &[&str]| {
        let at = ["--data-dir", data.to_str().unwrap()];
        let all: Vec<_> = args.iter().copied().chain(at).collect();
        grasp(&all)
    };
    let usage = |args: &[&str]| -> serde_json::Value {
        let output = run(&[&["usage", "--json"], args].concat());
        serde_json::from_str(&output.out).unwrap_or_else(|_| panic!("{output:?}"))
    };
    let all = usage(&[]);
    let used = all["rows"][0]["bytes"].as_u64().unwrap();
    assert!(used > 0 && all["total_bytes"] == used, "{all}");
    assert_eq!(all["rows"][0]["owner"], npub);
    assert_eq!(all["rows"][0]["quota"], 64u64 << 30);
    let status = run(&["status", "--json"]);
    assert!(status.out.contains("git_quota_bytes"), "{status:?}");

    let given = run(&["quota", npub, &used.to_string()]);
    assert!(given.ok && given.out.contains("may have"), "{given:?}");
    git(&work, &["commit", "-q", "--allow-empty", "-m", "second"]);
    let refused = push(&work, dir.path(), &server);
    let reason = format!("{npub} uses ");
    assert!(
        !refused.ok && refused.err.contains(&reason) && refused.err.contains("this push needs"),
        "{refused:?}"
    );
    assert!(run(&["quota", repo, "10KiB"]).ok);
    let rows = usage(&[npub]);
    assert_eq!(rows["rows"][0]["is_given"], true, "{rows}");
    assert_eq!(rows["rows"][1]["repository"], "hello");
    assert_eq!(rows["rows"][1]["quota"], 10 << 10);

    let near = used + used / 12;
    assert!(run(&["quota", npub, &near.to_string()]).ok);
    assert!(run(&["quota", repo, "none"]).ok);
    let pushed = push(&work, dir.path(), &server);
    let warning = format!("grasp: warning: {npub} uses ");
    assert!(pushed.ok && pushed.err.contains(&warning), "{pushed:?}");
    assert!(!run(&["quota", "nobody", "1KiB"]).ok);
    assert!(!run(&["quota", npub, "much"]).ok);
}

#[test]
fn an_announcement_keeps_the_relays_of_earlier_pushes() {
    let dir = tempfile::tempdir().unwrap();
    let [first, second] = ["a", "b"].map(|name| Server::start(&dir.path().join(name)));
    let work = dir.path().join("hello");
    working_copy(&work);
    clone_url(&push(&work, dir.path(), &first));
    clone_url(&push(&work, dir.path(), &second));
    let kept = std::fs::read_to_string(work.join(".git/grasp/announcements.json")).unwrap();
    for server in [&first, &second] {
        assert!(
            kept.contains(&format!("\"{}\"", server.url)),
            "{} in {kept}",
            server.url
        );
    }
}

#[test]
fn a_push_to_an_unresponsive_server_times_out() {
    let dir = tempfile::tempdir().unwrap();
    let work = dir.path().join("hello");
    working_copy(&work);
    let unresponsive = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unresponsive.local_addr().unwrap().to_string();
    let args = ["push", "--timeout", "1s", "--server", &address];
    let mut push = command();
    push.args(args)
        .current_dir(&work)
        .env("HOME", dir.path())
        .env_remove("XDG_DATA_HOME");
    let output = run_to_end(&mut push);
    assert!(
        !output.ok && output.err.contains("not done after 1s;"),
        "{output:?}"
    );
}

#[test]
fn a_push_outside_of_a_working_copy_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let push = |path: &str| {
        let mut push = command();
        push.args(["push"])
            .current_dir(dir.path())
            .env("HOME", dir.path())
            .env("PATH", path);
        run_to_end(push.env_remove("XDG_DATA_HOME"))
    };
    let outside = push(&std::env::var("PATH").unwrap());
    assert!(
        !outside.ok && outside.err.contains("not in a git working copy"),
        "{outside:?}"
    );
    let without_git = push("");
    assert!(
        !without_git.ok && without_git.err.contains("is it installed"),
        "{without_git:?}"
    );
    assert_eq!(
        dir.path().read_dir().unwrap().count(),
        0,
        "no key was created"
    );
}

#[test]
fn the_demo_ends_with_the_repository_on_both_servers() {
    let output = grasp(&["demo"]);
    assert!(output.ok, "{output:?}");
    assert!(output.out.contains("the second has it"), "{output:?}");
    // Its servers are stopped: a command to clone from them would fail.
    assert!(!output.out.contains("git clone"), "{output:?}");
}

#[test]
fn sync_once_fetches_everything_from_a_relay_and_reports_completion() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let work = dir.path().join("hello");
    working_copy(&work);
    clone_url(&push(&work, dir.path(), &server));
    let mirror = dir.path().join("mirror");
    let mirror = mirror.to_str().unwrap();
    // An archive also stores repositories that do not list it.
    let args = [
        "sync",
        "--once",
        "--from",
        &server.url,
        "--data-dir",
        mirror,
        "--archive-everything",
    ];
    let once = grasp(&args);
    assert!(
        once.ok && once.out.contains("1 of 1 relay complete"),
        "{once:?}"
    );
    assert!(once.out.contains(" new events in "), "{once:?}");
    assert!(!once.out.contains("complete, 0 new"), "{once:?}");
}

#[test]
fn sync_once_from_the_server_itself_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().to_str().unwrap();
    let us = [
        "--from",
        "wss://git.example.com",
        "--domain",
        "git.example.com",
    ];
    let output = run_to_end(
        command()
            .args(["sync", "--once", "--data-dir", data])
            .args(us),
    );
    assert!(
        !output.ok && output.err.contains("is this server itself"),
        "{output:?}"
    );
}

#[test]
fn sync_once_from_an_unreachable_relay_is_incomplete() {
    let dir = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let unreachable = format!("ws://{}", listener.local_addr().unwrap());
    drop(listener);
    let data = dir.path().to_str().unwrap();
    let args = [
        "sync",
        "--once",
        "--from",
        &unreachable,
        "--timeout",
        "2s",
        "--data-dir",
        data,
    ];
    let output = command().args(args).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stdout).contains("0 of 1 relay complete"));
}

/// Returns a runtime with a TLS proxy on it that has a certificate for `localhost`.
fn behind_tls(server: &Server, by: &Authority) -> (tokio::runtime::Runtime, Front) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = server.host().parse().unwrap();
    let front = runtime.block_on(Front::start(address, by.certify("localhost", 4000)));
    (runtime, front)
}

#[test]
fn sync_once_does_not_wait_for_a_relay_with_a_bad_certificate() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let (_runtime, front) = behind_tls(&server, &Authority::new("unknown"));
    let (bad, data) = (format!("wss://{}", front.host()), dir.path().join("mirror"));
    let began = Instant::now();
    let output = command()
        .args([
            "sync",
            "--once",
            "--timeout",
            "10m",
            "--from",
            &server.url,
            "--from",
            &bad,
        ])
        .arg("--data-dir")
        .arg(&data)
        .output()
        .unwrap();
    let took = began.elapsed();
    assert_eq!(output.status.code(), Some(2));
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.contains("1 of 2 relays complete"), "{out}");
    assert!(
        out.contains(&format!(
            "{bad}: its certificate is not signed by a trusted authority"
        )),
        "{out}"
    );
    assert!(took < Duration::from_secs(60), "{took:?}");
    assert!(
        front.connections() <= 2,
        "{} connections",
        front.connections()
    );
}

#[test]
fn sync_once_retries_relays_that_an_earlier_run_gave_up() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let authority = Authority::new("ours");
    let (_runtime, front) = behind_tls(&server, &authority);
    let roots = dir.path().join("ours.pem");
    std::fs::write(&roots, authority.pem()).unwrap();
    let (relay, data) = (format!("wss://{}", front.host()), dir.path().join("mirror"));
    let pass = |more: &[&str]| {
        let args = [
            "sync",
            "--once",
            "--timeout",
            "100s",
            "--from",
            &relay,
            "--data-dir",
        ];
        run_to_end(command().args(args).arg(&data).args(more))
    };
    assert!(!pass(&[]).ok);
    let trusting = pass(&["--trusted-roots", roots.to_str().unwrap()]);
    assert!(
        trusting.ok && trusting.out.contains("1 of 1 relay complete"),
        "{trusting:?}"
    );
}

#[test]
fn trusted_roots_without_a_certificate_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("empty.pem");
    std::fs::write(&file, "").unwrap();
    let (file, data) = (file.to_str().unwrap(), dir.path().join("data"));
    let args = [
        "serve",
        "--listen",
        "127.0.0.1:0",
        "--trusted-roots",
        file,
        "--data-dir",
    ];
    let output = run_to_end(command().args(args).arg(&data));
    assert!(
        !output.ok && output.err.contains("no certificate in it"),
        "{output:?}"
    );
    let doctor = grasp(&[
        "doctor",
        "--data-dir",
        data.to_str().unwrap(),
        "--trusted-roots",
        file,
    ]);
    assert!(
        !doctor.ok && doctor.out.contains("no certificate in it"),
        "{doctor:?}"
    );
}

/// Creates this number of tags of a working copy's commit, with names of this form.
fn tag(dir: &Path, count: usize, name: impl Fn(usize) -> String) {
    use std::io::Write as _;

    let commit = git(dir, &["rev-parse", "HEAD"]);
    let mut child = Command::new("git")
        .args(["update-ref", "--stdin"])
        .current_dir(dir)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let lines: String = (0..count)
        .map(|n| format!("create refs/tags/{} {commit}\n", name(n)))
        .collect();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(lines.as_bytes())
        .unwrap();
    assert!(child.wait().unwrap().success());
}

#[test]
fn many_refs_are_pushed_at_once_and_deleted_ones_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let work = dir.path().join("hello");
    working_copy(&work);
    tag(&work, 1_000, |n| format!("v\"#{n}"));
    let url = clone_url(&push(&work, dir.path(), &server));
    let tags = || git(&work, &["ls-remote", "--tags", &url]).lines().count();
    assert_eq!(tags(), 1_000);
    git(&work, &["tag", "--delete", "v\"#7"]);
    git(&work, &["tag", "--no-sign", "more"]);
    let refused = push(&work, dir.path(), &server);
    assert!(
        !refused.ok && refused.err.contains("would lose them"),
        "{refused:?}"
    );
    let args = [
        "push",
        "--force",
        "--refs",
        "main",
        "--refs",
        "refs/tags/v*",
        "--server",
    ];
    let forced = command()
        .args(args)
        .arg(server.host())
        .current_dir(&work)
        .env("HOME", dir.path())
        .env_remove("XDG_DATA_HOME")
        .output()
        .unwrap();
    assert!(forced.status.success(), "{forced:?}");
    assert_eq!(
        tags(),
        999,
        "one is deleted, and the new one was not chosen"
    );
}

#[test]
fn too_many_refs_are_refused_with_the_limit_and_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(&dir.path().join("data"));
    let work = dir.path().join("hello");
    working_copy(&work);
    tag(&work, 5_000, |n| format!("v{n}-{}", "x".repeat(180)));
    let refused = push(&work, dir.path(), &server);
    let expected = format!(
        "5001 refs are too many for {}, which takes about 4",
        server.host()
    );
    assert!(
        !refused.ok && refused.err.contains(&expected),
        "{refused:?}"
    );
    assert!(
        refused.err.contains("choose some with --refs"),
        "{refused:?}"
    );
}

#[test]
fn an_old_git_is_refused_by_serve_and_doctor_with_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("git");
    // Written by a shell: children of other tests would inherit the open file, and it could not be executed.
    let write = "printf '#!/bin/sh\\necho git version 2.36.6\\n' > \"$0\" && chmod 755 \"$0\"";
    assert!(
        Command::new("/bin/sh")
            .args(["-c", write])
            .arg(&old)
            .status()
            .unwrap()
            .success()
    );
    let data = dir.path().join("data");
    let at = [
        "--data-dir",
        data.to_str().unwrap(),
        "--listen",
        "127.0.0.1:0",
    ];
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    for args in [&["serve"][..], &["doctor", "--offline"]] {
        let output = run_to_end(command().args(args).args(at).env("PATH", &path));
        let text = format!("{}{}", output.out, output.err);
        assert!(
            !output.ok && text.contains("git 2.36 is too old"),
            "{output:?}"
        );
        assert!(text.contains("install git 2.37 or newer"), "{output:?}");
    }
}

#[test]
fn the_doctor_accepts_a_running_server_and_reports_a_port_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path());
    let data = dir.path().to_str().unwrap();
    let args = [
        "doctor",
        "--data-dir",
        data,
        "--listen",
        server.host(),
        "--domain",
        server.host(),
    ];
    let good = grasp(&args);
    assert!(
        good.ok
            && good
                .out
                .contains("shows the NIP-11 document of this server"),
        "{good:?}"
    );
    let other = tempfile::tempdir().unwrap();
    let other = other.path().to_str().unwrap();
    let bad = grasp(&[
        "doctor",
        "--offline",
        "--data-dir",
        other,
        "--listen",
        server.host(),
    ]);
    assert!(
        !bad.ok && bad.out.contains("is taken") && bad.out.contains("→"),
        "{bad:?}"
    );
}

#[test]
fn completions_and_manual_pages_know_all_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = grasp(&["completions", shell]);
        assert!(output.ok && output.out.contains("sidecar"), "{output:?}");
    }
    // The shell itself takes it.
    let script = format!(
        "source <('{}' completions bash) && complete -p grasp",
        env!("CARGO_BIN_EXE_grasp")
    );
    let known = run_to_end(std::process::Command::new("bash").args(["-c", &script]));
    assert!(known.ok && known.out.contains("grasp"), "{known:?}");
    let page = grasp(&["man"]);
    assert!(page.ok && page.out.contains(".TH grasp 1"), "{page:?}");
    let dir = tempfile::tempdir().unwrap();
    assert!(grasp(&["man", "--dir", dir.path().to_str().unwrap()]).ok);
    for name in ["grasp.1", "grasp-serve.1", "grasp-config-check.1"] {
        assert!(dir.path().join(name).is_file(), "{name}");
    }
}

#[test]
fn init_writes_settings_once_and_a_dry_run_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grasp.toml");
    let operator = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg";
    let init = |more: &[&str]| {
        let args = [
            "init",
            "--domain",
            "git.example.com",
            "--behind-proxy",
            "--operator",
            operator,
        ];
        run_to_end(command().args(args).args(more).current_dir(dir.path()))
    };
    let dry = init(&["--dry-run"]);
    assert!(
        dry.ok && dry.out.contains("domain = \"git.example.com\""),
        "{dry:?}"
    );
    assert!(!file.exists());
    // Whether the checks of this machine pass depends on what else runs on it.
    let first = init(&[]);
    assert!(
        first.out.contains("wrote ") && first.out.contains("git"),
        "{first:?}"
    );
    let checked = run_to_end(command().args(["config", "check", "--config"]).arg(&file));
    assert!(checked.ok, "{checked:?}");
    assert!(
        init(&[]).out.contains("kept "),
        "a second run changes nothing"
    );
    let edited = std::fs::read_to_string(&file).unwrap() + "# mine\n";
    std::fs::write(&file, &edited).unwrap();
    let refused = init(&[]);
    assert!(
        !refused.ok && refused.err.contains("is not overwritten"),
        "{refused:?}"
    );
    assert_eq!(std::fs::read_to_string(&file).unwrap(), edited);
}
