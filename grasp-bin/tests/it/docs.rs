//! The commands and names in the documentation, executed and checked.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::postgres::Postgres;
use crate::reserved::reserve_address;
use crate::support::{CommandOutput, Server, command, get, run_to_end, skipped};

/// Time within which a command must print what a page promises.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(60);

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs")
        .join(path)
}

fn page(path: &str) -> String {
    std::fs::read_to_string(docs(path)).unwrap()
}

/// Returns the code blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    page.split(&opening)
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap().to_owned())
        .collect()
}

/// Returns a shell in a home of its own, in which `grasp` is the command under test.
fn shell(home: &Path, script: &str) -> Command {
    let bin = Path::new(env!("CARGO_BIN_EXE_grasp")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("bash");
    shell
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(home)
        .env("HOME", home)
        .env("PATH", path);
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "alice"),
        ("GIT_AUTHOR_EMAIL", "alice@example.com"),
        ("GIT_COMMITTER_NAME", "alice"),
        ("GIT_COMMITTER_EMAIL", "alice@example.com"),
    ] {
        shell.env(name, value);
    }
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("GRASP_") || name.starts_with("XDG_"))
    {
        shell.env_remove(name);
    }
    shell
}

fn run(home: &Path, script: &str) -> CommandOutput {
    let output = run_to_end(&mut shell(home, script));
    assert!(output.ok, "{script}\n{output:?}");
    output
}

fn free_port() -> String {
    reserve_address([127, 0, 0, 1]).port().to_string()
}

/// A process that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_tutorial_works_as_written() {
    let home = tempfile::tempdir().unwrap();
    let (port, second) = (free_port(), free_port());
    let text = page("tutorial/first-repository.md");
    let text = text.replace("7334", &port).replace("7335", &second);
    let blocks = blocks(&text, "sh");
    let [serve, create, host, clone, change, list, follow, followed] = &blocks[..] else {
        panic!("eight blocks")
    };
    let serve = format!("{} --listen 127.0.0.1:{port}", serve.trim_end());
    let _server = start(home.path(), &serve, &port);
    run(home.path(), create);
    run(home.path(), host);
    assert_eq!(run(home.path(), clone).out, "# hello\n");
    let changed = run(home.path(), change).out;
    assert!(changed.contains("obeys its maintainers"), "{changed}");
    let listed = run(home.path(), list).out;
    assert!(
        listed.contains("hello") && listed.contains("repositories 1,"),
        "{listed}"
    );
    assert!(
        get(&format!("127.0.0.1:{port}"), "/")
            .1
            .contains(">hello</a>")
    );
    let _second = start(home.path(), follow, &second);
    let followed = run(home.path(), followed).out;
    assert!(followed.contains("obeys its maintainers"), "{followed}");
}

/// Runs a block that starts a server, and waits until the server listens.
fn start(home: &Path, script: &str, port: &str) -> Running {
    let script = script.replace("grasp serve", "exec grasp serve");
    let server = shell(home, &script)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while std::net::TcpStream::connect(format!("127.0.0.1:{port}")).is_err() {
        std::thread::yield_now();
    }
    Running(server)
}

#[test]
fn a_backup_is_restored_as_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    let text = page("how-to/backup.md").replace("/var/lib/grasp", data.to_str().unwrap());
    let blocks = blocks(&text, "sh");
    let [backup, restore] = &blocks[..] else {
        panic!("two blocks")
    };
    let backups = home.path().join("backups");
    let [backup, restore] =
        [backup, restore].map(|block| block.replace("/var/backups", backups.to_str().unwrap()));
    // The address is the domain here, and a repository is hosted by the domain that it lists.
    let listen = format!("127.0.0.1:{}", free_port());
    let url = {
        let server = Server::start_at(&listen, &data);
        let work = "git init -q hello && cd hello && git commit -q --allow-empty -m first";
        run(home.path(), work);
        let push = format!("cd hello && grasp push --server {}", server.host());
        let output = run(home.path(), &push);
        let line = output
            .out
            .lines()
            .find_map(|line| line.trim().strip_prefix("git clone "));
        // The server runs during the backup.
        run(home.path(), &backup);
        line.unwrap().to_owned()
    };
    std::fs::remove_dir_all(&data).unwrap();
    run(home.path(), &restore);
    let _server = Server::start_at(&listen, &data);
    run(
        home.path(),
        &format!("git clone -q {url} copy && git -C copy log -1"),
    );
}

#[test]
fn data_is_checked_and_repaired_as_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    let server = Server::start(&data);
    run(
        home.path(),
        "git init -q hello && cd hello && git commit -q --allow-empty -m first",
    );
    run(
        home.path(),
        &format!("cd hello && grasp push --server {}", server.host()),
    );
    let text = page("how-to/repair.md").replace("/var/lib/grasp", data.to_str().unwrap());
    let blocks = blocks(&text, "sh");
    let [check, repair, drop_invalid] = &blocks[..] else {
        panic!("three blocks")
    };
    for block in [check, repair, drop_invalid] {
        let printed = run(home.path(), block).out;
        assert!(
            printed.contains("nothing is missing or damaged"),
            "{printed}"
        );
    }
}

#[test]
fn quotas_are_shown_and_given_as_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    let server = Server::start(&data);
    run(
        home.path(),
        "git init -q hello && cd hello && git commit -q --allow-empty -m first",
    );
    let push = format!("cd hello && grasp push --server {}", server.host());
    let pushed = run(home.path(), &push).out;
    let npub = pushed
        .split_whitespace()
        .find(|word| word.starts_with("npub1"));
    let text = page("how-to/quotas.md")
        .replace("/var/lib/grasp", data.to_str().unwrap())
        .replace("<npub>", npub.unwrap())
        .replace("<name>", "hello");
    let [see, give] = &blocks(&text, "sh")[..] else {
        panic!("two blocks")
    };
    assert!(run(home.path(), see).out.contains(npub.unwrap()));
    let given = run(home.path(), give).out;
    assert_eq!(given.matches("may have").count(), 3, "{given}");
}

#[test]
fn a_server_is_monitored_as_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    let server = Server::start(&data);
    let text = page("how-to/monitor.md");
    let text = text
        .replace("/var/lib/grasp", data.to_str().unwrap())
        .replace("127.0.0.1:7334", server.host());
    if Command::new("curl").arg("--version").output().is_err() {
        skipped("curl is not installed");
        return;
    }
    let outputs: Vec<_> = blocks(&text, "sh")
        .iter()
        .map(|block| run(home.path(), block).out)
        .collect();
    assert!(
        outputs[0].contains("working")
            && outputs[1] == "ok\n"
            && outputs[2].contains("grasp_build_info")
    );
}

#[test]
fn a_server_is_moderated_as_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    let _server = Server::start(&data);
    for guide in ["how-to/moderate.md", "how-to/public-server.md"] {
        let text = page(guide).replace("/var/lib/grasp", data.to_str().unwrap());
        for block in blocks(&text, "sh") {
            run(home.path(), &block);
        }
    }
    let audit = format!("grasp admin audit --json --data-dir {}", data.display());
    let rows: Vec<serde_json::Value> = serde_json::from_str(&run(home.path(), &audit).out).unwrap();
    let methods: Vec<_> = rows
        .iter()
        .filter_map(|row| row["method"].as_str())
        .collect();
    assert_eq!(
        methods,
        ["unblockip", "blockip", "grasp.unbanrepo", "grasp.banrepo"]
    );
    assert!(rows[0]["actor"].as_str().unwrap().starts_with("local:"));
}

#[test]
fn a_server_for_a_team_is_set_up_as_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    std::fs::create_dir(&data).unwrap();
    let text = page("how-to/team.md").replace("/var/lib/grasp", data.to_str().unwrap());
    let [settings] = &blocks(&text, "toml")[..] else {
        panic!("one block of settings")
    };
    std::fs::write(data.join("grasp.toml"), settings).unwrap();
    let _server = Server::start(&data);
    let [allow] = &blocks(&text, "sh")[..] else {
        panic!("one block of commands")
    };
    let printed = run(home.path(), allow).out;
    assert!(printed.contains("website"), "{printed}");
}

#[test]
fn the_settings_and_commands_of_a_deployment_are_valid() {
    let home = tempfile::tempdir().unwrap();
    let file = docs("how-to/deploy/grasp.toml");
    // The doctor must write only below the directory of the test.
    let settings = std::fs::read_to_string(file).unwrap();
    let settings = settings.replace("/var/lib/grasp", home.path().join("data").to_str().unwrap());
    let settings = settings.replace("127.0.0.1:7334", "127.0.0.1:0");
    let path = home.path().join("grasp.toml");
    std::fs::write(&path, settings).unwrap();
    let text = page("how-to/deploy.md").replace("/etc/grasp/grasp.toml", path.to_str().unwrap());
    for block in blocks(&text, "sh") {
        run(home.path(), &block);
    }
}

/// Starts a server, and creates a working copy to try commands with.
fn start_with_working_copy(home: &Path) -> Server {
    let server = Server::start(&home.join("other"));
    run(
        home,
        "git init -q hello && cd hello && git commit -q --allow-empty -m first",
    );
    server
}

/// Starts a command that runs until it is killed, without its output.
fn spawn(home: &Path, block: &str) -> Running {
    let script = format!("exec {}", block.trim());
    let mut shell = shell(home, &script);
    Running(
        shell
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

/// Repeats a command until its output contains a text.
fn until(home: &Path, script: &str, wanted: &str) -> String {
    let began = Instant::now();
    loop {
        let answer = run_to_end(&mut shell(home, script));
        if answer.ok && answer.out.contains(wanted) {
            return answer.out;
        }
        assert!(began.elapsed() < COMMAND_TIMEOUT, "{script}: {answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn repositories_are_mirrored_as_written() {
    let home = tempfile::tempdir().unwrap();
    let (first, second) = (
        start_with_working_copy(home.path()),
        Server::start(&home.path().join("second")),
    );
    let text = page("how-to/mirror.md")
        .replace("a.example.com", first.host())
        .replace("b.example.com", second.host())
        .replace("wss://relay.example.com", &first.url);
    let blocks = blocks(&text, "sh");
    let [push, serve, once] = &blocks[..] else {
        panic!("three blocks")
    };
    let pushed = run(home.path(), &format!("cd hello && {push}")).out;
    assert_eq!(pushed.matches("git clone").count(), 2, "{pushed}");
    let synced = run(home.path(), once).out;
    assert!(synced.contains("1 of 1 relay complete"), "{synced}");
    let serve = format!(
        "{} --listen 127.0.0.1:0 --allow-private-targets",
        serve.trim()
    );
    let _server = spawn(home.path(), &serve);
    until(home.path(), "grasp repos --data-dir ./mirror", "hello");
    let status = run(home.path(), "grasp status --json --data-dir ./mirror").out;
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    // Archived repositories are on the landing page too.
    let landing = get(status["service"].as_str().unwrap(), "/").1;
    assert!(landing.contains(">hello</a>"), "{landing}");
}

#[test]
fn a_server_moves_to_several_machines_as_written() {
    let Some(postgres) = Postgres::durable() else {
        return;
    };
    let home = tempfile::tempdir().unwrap();
    let single = start_with_working_copy(home.path());
    let host = single.host().to_owned();
    run(
        home.path(),
        &format!("cd hello && grasp push --server {host}"),
    );
    drop(single);
    let (packs, port) = (home.path().join("packs"), free_port());
    std::fs::create_dir(&packs).unwrap();
    let text = page("how-to/several-machines.md")
        .replace("postgres://grasp@db/grasp", &postgres.database())
        .replace("s3://bucket/prefix", &format!("file://{}", packs.display()))
        .replace("http://node1:7334", &format!("http://127.0.0.1:{port}"))
        .replace(
            "/var/lib/grasp",
            home.path().join("other").to_str().unwrap(),
        )
        .replace("git.example.com", &host);
    let blocks = blocks(&text, "sh");
    let [serve, import] = &blocks[..] else {
        panic!("two blocks")
    };
    let imported = run(home.path(), import).out;
    assert!(
        imported.starts_with("imported 2 events, 1 repository and 1 pack"),
        "{imported}"
    );
    let serve = format!(
        "{} --listen 127.0.0.1:{port} --data-dir ./node",
        serve.trim()
    );
    let _node = spawn(home.path(), &serve);
    until(home.path(), "grasp status --data-dir ./node", "writer");
    until(home.path(), "grasp repos --data-dir ./node", "hello");
    let repos = run(home.path(), "grasp repos --json --data-dir ./node").out;
    let repos: serde_json::Value = serde_json::from_str(&repos).unwrap();
    let path = repos[0]["path"].as_str().unwrap();
    run(
        home.path(),
        &format!("git clone -q http://127.0.0.1:{port}{path} clone"),
    );
}

#[test]
fn a_relay_gets_a_sidecar_as_written() {
    let home = tempfile::tempdir().unwrap();
    let (other, relay) = (
        start_with_working_copy(home.path()),
        Server::start(&home.path().join("relay")),
    );
    let text = page("how-to/embed.md")
        .replace("ws://127.0.0.1:7777", &relay.url)
        .replace("wss://other.example.com", &other.url);
    let blocks = blocks(&text, "sh");
    let [sidecar, status] = &blocks[..] else {
        panic!("two blocks")
    };
    let _sidecar = spawn(home.path(), sidecar);
    let output = until(home.path(), status, "complete, live");
    assert!(output.starts_with("sidecar of ws://"), "{output}");
}

#[test]
fn events_are_migrated_as_written() {
    let home = tempfile::tempdir().unwrap();
    let old = start_with_working_copy(home.path());
    let data = home.path().join("new");
    // The old server at an address that is not its domain.
    let text = page("how-to/migrate.md")
        .replace(
            "ws://127.0.0.1:7334",
            &old.url.replace("127.0.0.1", "localhost"),
        )
        .replace("git.example.com", old.host())
        .replace("/var/lib/grasp", data.to_str().unwrap());
    let push = format!("cd hello && grasp push --server {}", old.host());
    run(home.path(), &push);
    let blocks = blocks(&text, "sh");
    let [once] = &blocks[..] else {
        panic!("one block")
    };
    let synced = run(home.path(), once).out;
    // The announcement and the state, under the same domain as before.
    assert!(
        synced.contains("1 of 1 relay complete, 2 new events"),
        "{synced}"
    );
}

#[test]
fn the_readme_works_as_written() {
    let home = tempfile::tempdir().unwrap();
    let port = free_port();
    let text = page("../README.md").replace("7334", &port);
    let blocks = blocks(&text, "sh");
    let [serve, install, demo, push, test] = &blocks[..] else {
        panic!("five blocks")
    };
    assert_eq!(install.trim(), "cargo install --path grasp-bin");
    assert_eq!(
        test.trim(),
        "cargo test --workspace",
        "the tests of this run"
    );
    // The command that was built for this run.
    let serve = serve.replace("cargo run --release --", "grasp");
    assert!(run(home.path(), demo).out.contains("the second has it"));
    run(
        home.path(),
        "git init -q hello && cd hello && git commit -q --allow-empty -m first",
    );
    let _server = spawn(
        home.path(),
        &format!("{} --listen 127.0.0.1:{port}", serve.trim()),
    );
    until(home.path(), "grasp status", "working");
    assert!(
        run(home.path(), &format!("cd hello && {push}"))
            .out
            .contains("git clone")
    );
}

#[test]
fn the_commands_of_the_settings_reference_work() {
    let home = tempfile::tempdir().unwrap();
    for block in blocks(&page("reference/configuration.md"), "sh") {
        assert!(
            run(home.path(), &block)
                .out
                .contains("listen = \"127.0.0.1:7334\"")
        );
    }
}

/// Pages all of whose commands are executed by a test of this file.
const TESTED_PAGES: [&str; 15] = [
    "../README.md",
    "tutorial/first-repository.md",
    "how-to/backup.md",
    "how-to/deploy.md",
    "how-to/embed.md",
    "how-to/migrate.md",
    "how-to/mirror.md",
    "how-to/moderate.md",
    "how-to/monitor.md",
    "how-to/public-server.md",
    "how-to/quotas.md",
    "how-to/repair.md",
    "how-to/several-machines.md",
    "how-to/team.md",
    "reference/configuration.md",
];

#[test]
fn every_command_of_the_documentation_is_tested() {
    let tested: Vec<_> = TESTED_PAGES
        .iter()
        .map(|page| docs(page).canonicalize().unwrap())
        .collect();
    for path in pages().into_iter().chain([docs("../README.md")]) {
        let text = std::fs::read_to_string(&path).unwrap();
        if !tested.contains(&path.canonicalize().unwrap()) {
            let commands = blocks(&text, "sh");
            let lines = commands.iter().flat_map(|block| block.lines());
            lines.for_each(|line| assert!(is_benchmark(line), "{path:?}: {line}"));
        }
        // Console blocks contain only commands that need root or a container engine.
        for line in blocks(&text, "console")
            .iter()
            .flat_map(|block| block.lines())
        {
            let is_allowed = line.starts_with("# ") || line.starts_with("$ podman ");
            assert!(is_allowed, "{path:?}: {line}");
        }
    }
}

/// Returns whether a line runs a benchmark that exists.
fn is_benchmark(line: &str) -> bool {
    let words = line
        .split_whitespace()
        .skip_while(|word| word.contains('='));
    let words: Vec<_> = words.take_while(|word| *word != "#").collect();
    let after = |flag: &str| {
        let at = words.iter().position(|word| *word == flag)?;
        words.get(at + 1).copied()
    };
    let Some(package) = after("-p").filter(|_| words.starts_with(&["cargo", "bench"])) else {
        return false;
    };
    let folder = if package == "grasp-tests" {
        "tests"
    } else {
        package
    };
    let manifest = page(&format!("../{folder}/Cargo.toml"));
    after("--bench").is_none_or(|bench| manifest.contains(&format!("name = \"{bench}\"")))
}

#[test]
fn the_settings_of_the_container_and_the_unit_exist() {
    let settings = page("reference/configuration.md");
    let files = [
        "deploy.md",
        "deploy/Containerfile",
        "deploy/Containerfile.binary",
        "deploy/compose.yml",
        "deploy/compose-single.yml",
    ];
    let text: String = files
        .map(|file| page(&format!("how-to/{file}")) + "\n")
        .concat();
    let words = text.split(|c: char| !c.is_ascii_uppercase() && c != '_');
    let ours: BTreeSet<_> = words
        .filter_map(|word| word.strip_prefix("GRASP_"))
        .collect();
    assert!(ours.len() >= 3, "{ours:?}");
    for name in ours {
        // A variable has `_` where the key of a section has a dot.
        let key = name.to_ascii_lowercase();
        let keys = [key.clone(), key.replacen('_', ".", 1)];
        let is_setting = keys
            .iter()
            .any(|key| settings.contains(&format!("| `{key}` |")));
        assert!(is_setting, "{name}");
    }
    let unit = page("how-to/deploy/grasp.service");
    // The one that the command writes.
    assert_eq!(unit, include_str!("../../src/init/grasp.service"));
    assert!(
        unit.contains("Type=notify") && unit.contains("grasp serve --config"),
        "{unit}"
    );
    let file = docs("how-to/deploy/grasp.service");
    let mut check = Command::new("systemd-analyze");
    match check.arg("verify").arg(&file).output() {
        Err(_) => skipped("systemd-analyze is not installed"),
        // The command itself need not be installed; everything else must be valid.
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            let ours = errors.lines().filter(|line| line.contains("grasp.service"));
            let wrong: Vec<_> = ours
                .filter(|line| !line.contains("is not executable"))
                .collect();
            assert!(wrong.is_empty(), "{wrong:?}");
        }
    }
}

#[test]
fn every_metric_in_the_migration_guide_exists() {
    let (text, metrics) = (page("how-to/migrate.md"), page("reference/metrics.md"));
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let ours: BTreeSet<_> = words.filter(|word| word.starts_with("grasp_")).collect();
    assert!(ours.len() > 15, "{ours:?}");
    for name in ours {
        assert!(metrics.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn every_required_package_is_used_where_the_decisions_say() {
    let (text, manifest) = (page("explanation/decisions.md"), page("../Cargo.toml"));
    let required = [
        "tokio",
        "nostr",
        "nostr-relay-pool",
        "nostr-sqlite",
        "git2",
        "thiserror",
        "serde",
        "clap",
        "tracing-subscriber",
        "proptest",
    ];
    for package in required {
        assert!(manifest.contains(&format!("\n{package} = ")), "{package}");
        let row = text
            .lines()
            .find(|line| line.starts_with(&format!("| `{package}` |")))
            .unwrap();
        let cell = row.split('|').nth(2).unwrap();
        let paths = cell
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|path| path.contains('/'));
        for path in paths {
            assert!(docs("..").join(path).exists(), "{package}: {path}");
        }
    }
}

/// Returns whether code defines an item of this name, outside of comments.
fn defines(code: &str, item: &str) -> bool {
    const KEYWORDS: [&str; 7] = ["fn", "struct", "enum", "trait", "type", "const", "static"];
    let is_other = |c: char| !c.is_alphanumeric() && c != '_';
    let mut lines = code
        .lines()
        .filter(|line| !line.trim_start().starts_with("//"));
    lines.any(|line| {
        let words: Vec<_> = line
            .split(is_other)
            .filter(|word| !word.is_empty())
            .collect();
        words
            .windows(2)
            .any(|pair| KEYWORDS.contains(&pair[0]) && pair[1] == item)
    })
}

/// Returns whether the file, item (`file.rs::item`), metric or setting of this name exists; `None` for any other word.
fn exists(name: &str) -> Option<bool> {
    let (path, item) = name.split_once("::").unwrap_or((name, ""));
    if path.contains('/') && path.ends_with(".rs") {
        let code = std::fs::read_to_string(docs("..").join(path));
        return Some(code.is_ok_and(|code| item.is_empty() || defines(&code, item)));
    }
    if name.starts_with("grasp_") {
        return Some(page("reference/metrics.md").contains(&format!("| `{name}` |")));
    }
    let settings = page("reference/configuration.md");
    let (section, _) = name.split_once('.')?;
    let is_setting = settings.contains(&format!("`[{section}]`"));
    is_setting.then(|| settings.contains(&format!("| `{name}` |")))
}

#[test]
fn every_name_in_the_design_map_exists() {
    let text = page("explanation/design-map.md");
    let named: BTreeSet<_> = text.split('`').skip(1).step_by(2).collect();
    let checked: Vec<_> = named
        .iter()
        .filter_map(|name| Some((name, exists(name)?)))
        .collect();
    let missing: Vec<_> = checked.iter().filter(|(_, exists)| !exists).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert!(checked.len() > 150, "{}", checked.len());
    for wrong in [
        "grasp-core/src/sync/nowhere.rs",
        "grasp-core/src/sync/state.rs::no_such_item",
        "grasp_sync_no_such_metric",
        "sync.no_such_setting",
    ] {
        assert_eq!(exists(wrong), Some(false), "{wrong}");
    }
}

/// Returns every file below a directory whose name ends so.
fn files(directory: PathBuf, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut left) = (Vec::new(), vec![directory]);
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(
                std::fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// Returns every page of the documentation.
fn pages() -> Vec<PathBuf> {
    files(docs(""), "md")
}

#[test]
fn every_module_in_the_architecture_and_the_glossary_exists() {
    let crates = ["core", "sync", "purgatory", "relay", "bin"];
    let mut sources = Vec::new();
    for name in crates {
        for dir in ["src", "tests"] {
            sources.extend(files(docs("..").join(format!("grasp-{name}/{dir}")), "rs"));
        }
    }
    // A module may be named by its file, or by its path without the ending.
    let is_module = |name: &str| {
        let name = name.trim_end_matches('/');
        let file = if name.ends_with(".rs") {
            name.to_owned()
        } else {
            format!("{name}.rs")
        };
        sources.iter().any(|path| path.ends_with(&file))
    };
    let mut checked = 0;
    for page in [page("../ARCHITECTURE.md"), page("reference/glossary.md")] {
        let names = page.split('`').skip(1).step_by(2);
        let modules = names.filter(|name| name.ends_with(".rs") || name.contains("/src/"));
        for name in modules.filter(|name| *name != "foo.rs") {
            assert!(is_module(name), "{name}");
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
    assert!(!is_module("no_such_module.rs") && !is_module("grasp-core/src/nowhere"));
}

#[test]
fn settings_in_the_documentation_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grasp.toml");
    for path in [
        "how-to/mirror.md",
        "how-to/quotas.md",
        "how-to/repair.md",
        "reference/configuration.md",
    ] {
        let blocks = blocks(&page(path), "toml");
        assert!(!blocks.is_empty(), "{path}");
        for block in blocks {
            std::fs::write(&file, &block).unwrap();
            let output = run_to_end(command().args(["config", "check", "--config"]).arg(&file));
            assert!(output.ok, "{path}: {output:?}");
        }
    }
}

#[test]
fn every_setting_in_the_migration_guide_exists() {
    let text = page("how-to/migrate.md");
    let settings = page("reference/configuration.md");
    let rows = text
        .lines()
        .filter(|line| line.starts_with("| `NGIT_") || line.starts_with("| `RUST_"));
    let mut checked = 0;
    for row in rows {
        let ours = row.split('|').nth(2).unwrap();
        for key in ours.split('`').skip(1).step_by(2) {
            assert!(settings.contains(&format!("| `{key}` |")), "{key}");
            checked += 1;
        }
    }
    assert!(checked > 15);
}

#[test]
fn every_link_of_the_documentation_exists() {
    let mut checked = 0;
    for path in pages().into_iter().chain([docs("../README.md")]) {
        let text = std::fs::read_to_string(&path).unwrap();
        for link in text
            .split("](")
            .skip(1)
            .map(|rest| rest.split(')').next().unwrap())
        {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || link.contains("://") {
                continue;
            }
            assert!(
                path.parent().unwrap().join(file).exists(),
                "{}: {link}",
                path.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 20);
}
