//! What the documentation tells people to do, done.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::{Said, Server, command, get, said};

fn docs(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(path)
}

fn page(path: &str) -> String {
    std::fs::read_to_string(docs(path)).unwrap()
}

/// The blocks of a page that are marked as this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let opening = format!("```{language}\n");
    page.split(&opening).skip(1).map(|rest| rest.split("```").next().unwrap().to_owned()).collect()
}

/// A shell in a home of its own, in which `grasp` is the command under test.
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

fn run(home: &Path, script: &str) -> Said {
    let said = said(&mut shell(home, script));
    assert!(said.ok, "{script}\n{said:?}");
    said
}

/// A port that is free just now.
fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// Stopped as an operator would stop it.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_tutorial_works_as_it_is_written() {
    let home = tempfile::tempdir().unwrap();
    let port = free_port();
    let text = page("tutorial/first-repository.md").replace("7334", &port);
    let blocks = blocks(&text, "sh");
    let (first, rest) = blocks.split_first().unwrap();
    let serve = format!("{} --listen 127.0.0.1:{port}", first.trim_end())
        .replace("grasp serve", "exec grasp serve");
    let server =
        shell(home.path(), &serve).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _server = Running(server);
    let host = format!("127.0.0.1:{port}");
    while std::net::TcpStream::connect(&host).is_err() {
        std::thread::yield_now();
    }
    let outputs: Vec<_> = rest.iter().map(|block| run(home.path(), block).out).collect();
    let (cloned, changed, looked) = (&outputs[2], &outputs[3], &outputs[4]);
    assert_eq!(cloned, "# hello\n");
    assert!(changed.contains("obeys its maintainers"), "{changed}");
    assert!(looked.contains("hello") && looked.contains("1 repository"), "{looked}");
    assert!(get(&host, "/").1.contains(">hello</a>"));
}

#[test]
fn a_backup_is_restored_as_it_is_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    let text = page("how-to/backup.md").replace("/var/lib/grasp", data.to_str().unwrap());
    let blocks = blocks(&text, "sh");
    let [backup, restore] = &blocks[..] else { panic!("two blocks") };
    // The address is the domain here, and a repository belongs to the domain that it lists.
    let listen = format!("127.0.0.1:{}", free_port());
    let url = {
        let server = Server::start_at(&listen, &data);
        let work = "git init -q hello && cd hello && git commit -q --allow-empty -m first";
        run(home.path(), work);
        let push = format!("cd hello && grasp push --server {}", server.host());
        let said = run(home.path(), &push);
        let line = said.out.lines().find_map(|line| line.trim().strip_prefix("git clone "));
        line.unwrap().to_owned()
    };
    run(home.path(), backup);
    std::fs::remove_dir_all(&data).unwrap();
    run(home.path(), restore);
    let _server = Server::start_at(&listen, &data);
    run(home.path(), &format!("git clone -q {url} copy && git -C copy log -1"));
}

#[test]
fn a_server_is_monitored_as_it_is_written() {
    let home = tempfile::tempdir().unwrap();
    let data = home.path().join("grasp");
    let server = Server::start(&data);
    let text = page("how-to/monitor.md");
    let text = text
        .replace("/var/lib/grasp", data.to_str().unwrap())
        .replace("127.0.0.1:7334", server.host());
    if Command::new("curl").arg("--version").output().is_err() {
        println!("skipped: there is no curl here");
        return;
    }
    let outputs: Vec<_> =
        blocks(&text, "sh").iter().map(|block| run(home.path(), block).out).collect();
    assert!(
        outputs[0].contains("working")
            && outputs[1] == "ok\n"
            && outputs[2].contains("grasp_build_info")
    );
}

#[test]
fn the_settings_for_a_deployment_are_valid_and_what_is_told_about_them_works() {
    let home = tempfile::tempdir().unwrap();
    let file = docs("how-to/deploy/grasp.toml");
    // Where the doctor writes nothing that is not ours.
    let mine = std::fs::read_to_string(file).unwrap();
    let mine = mine.replace("/var/lib/grasp", home.path().join("data").to_str().unwrap());
    let mine = mine.replace("127.0.0.1:7334", "127.0.0.1:0");
    let path = home.path().join("grasp.toml");
    std::fs::write(&path, mine).unwrap();
    let text = page("how-to/deploy.md").replace("/etc/grasp/grasp.toml", path.to_str().unwrap());
    for block in blocks(&text, "sh") {
        run(home.path(), &block);
    }
}

#[test]
fn settings_that_pages_show_are_valid() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("grasp.toml");
    for path in ["how-to/mirror.md", "reference/configuration.md"] {
        let blocks = blocks(&page(path), "toml");
        assert!(!blocks.is_empty(), "{path}");
        for block in blocks {
            std::fs::write(&file, &block).unwrap();
            let said = said(command().args(["config", "check", "--config"]).arg(&file));
            assert!(said.ok, "{path}: {said:?}");
        }
    }
}

#[test]
fn every_setting_that_a_migration_leads_to_exists() {
    let text = page("how-to/migrate.md");
    let settings = page("reference/configuration.md");
    let rows =
        text.lines().filter(|line| line.starts_with("| `NGIT_") || line.starts_with("| `RUST_"));
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
fn no_page_leads_nowhere() {
    let mut pages = vec![docs("")];
    let mut checked = 0;
    while let Some(path) = pages.pop() {
        if path.is_dir() {
            pages.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let file = link.split('#').next().unwrap();
            if file.is_empty() || link.contains("://") {
                continue;
            }
            assert!(path.parent().unwrap().join(file).exists(), "{}: {link}", path.display());
            checked += 1;
        }
    }
    assert!(checked > 20);
}
