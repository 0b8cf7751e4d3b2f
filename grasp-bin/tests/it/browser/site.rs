//! A server with everything that pages show: code, threads, a repository without content.

use std::path::{Path, PathBuf};
use std::process::Command;

use futures_util::{SinkExt as _, StreamExt as _};
use nostr::event::{Event, EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::{Keys, PublicKey};
use nostr::types::Timestamp;
use tokio_tungstenite::tungstenite::Message;

use crate::support::{Server, command, get, run_to_end};

const README: &str = "# A project\n\nText with `code`, [a file](src/main.rs) and **more**.\n\n![a picture](docs/picture.svg)\n\n\
                      ![badge](https://elsewhere.example/badge.svg)\n\n- [x] done\n- [ ] to do\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```rust\nfn main() {}\n```\n\n\
                      <script>alert(1)</script><img src=docs/picture.svg alt=again onerror=alert(2)>\n";

const CODE: &str = "//! What it is.\n\n/// Says hello.\nfn main() {\n    let number = 42; // why\n    println!(\"hello {number}\");\n}\n";

/// A picture with a script, which marks itself if it runs.
const PICTURE: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='80' height='40' \
                       onload='document.documentElement.dataset.ran=1'>\
                       <script>document.documentElement.dataset.ran = 1</script>\
                       <rect width='80' height='40' fill='teal'/></svg>";

const LICENCE: &str =
    "Permission is hereby granted, free of charge, to any person obtaining a copy\n";

const ISSUE: &str =
    "It **fails** with:\n\n```rust\nlet x = 1;\n```\n\n1. start\n2. wait\n\nSee `src/main.rs`.";

/// The pages of a server, by name.
pub(super) struct Site {
    /// As `http://127.0.0.1:1234`.
    pub(super) root: String,
    /// The address of the repository.
    pub(super) repository: String,
    pub(super) pages: Vec<(&'static str, String)>,
    work: PathBuf,
}

impl Site {
    /// Pushes a repository to a server, and publishes what is said about it.
    pub(super) async fn create(server: &Server, home: &Path) -> Self {
        let mut site = Self::push(server, home);
        let (bob, carol) = (Keys::generate(), Keys::generate());
        let address = site.coordinate();
        let about = ["a", address.as_str()];
        let subject = |text| ["subject", text];
        let label = ["t", "bug"];
        let issue_tags: [&[&str]; 3] = [&about, &subject("It fails on the second day"), &label];
        let issue = sign(&bob, 1621, ISSUE, &issue_tags);
        let other_tags: [&[&str]; 2] = [&about, &subject("An issue that is closed")];
        let other = sign(&carol, 1621, "no longer", &other_tags);
        let (id, other_id) = (issue.id.to_hex(), other.id.to_hex());
        let comment_tags: [&[&str]; 4] = [&["E", &id], &["K", "1621"], &["e", &id], &["k", "1621"]];
        let comment = sign(&carol, 1111, "The same here, with `main`.", &comment_tags);
        let reply_id = comment.id.to_hex();
        let reply_tags: [&[&str]; 4] = [
            &["E", &id],
            &["K", "1621"],
            &["e", &reply_id],
            &["k", "1111"],
        ];
        let reply = sign(&bob, 1111, "Thank you.", &reply_tags);
        let closed_tags: [&[&str]; 1] = [&["e", &other_id, "", "root"]];
        let closed = sign(&carol, 1632, "", &closed_tags);
        let text = site.git(&["format-patch", "-1", "--stdout", "HEAD"]);
        let patch_tags: [&[&str]; 2] = [&about, &["t", "root"]];
        let patch = sign(&carol, 1617, &text, &patch_tags);
        for event in [&issue, &other, &comment, &reply, &closed, &patch] {
            publish(server, event).await;
        }
        let pull = site.propose(server, &bob, &about).await;
        let empty = site.announce_empty(server).await;
        let repository = site.repository.clone();
        let proposed = site.git(&["rev-parse", "HEAD"]);
        let commit = site.git(&["rev-parse", "main"]);
        let owner = repository.rsplit_once('/').expect("an owner").0.to_owned();
        let root = &site.root;
        let below = |path: &str| format!("{repository}/{path}");
        site.pages = vec![
            ("landing", format!("{root}/")),
            ("search", format!("{root}/?q=long+name")),
            ("owner", owner),
            ("repository", repository.clone()),
            ("empty", empty),
            ("tree", below("tree/main/src")),
            ("file", below("file/main/src/main.rs")),
            ("document", below("file/main/README.md")),
            ("picture", below("file/main/docs/picture.svg")),
            ("log", below("log/main")),
            ("commit", below(&format!("commit/{commit}"))),
            ("proposed", below(&format!("commit/{proposed}"))),
            ("refs", below("refs")),
            ("issues", below("issues")),
            ("closed", below("issues?state=closed")),
            ("issue", below(&format!("issues/{id}"))),
            ("pulls", below("pulls")),
            ("patch", below(&format!("pulls/{}", patch.id.to_hex()))),
            ("pull", below(&format!("pulls/{}", pull.id.to_hex()))),
            ("servers", below("servers")),
            ("status", format!("{root}/status")),
        ];
        site
    }

    /// Pushes a repository to a server.
    pub(super) fn push(server: &Server, home: &Path) -> Self {
        let work = home.join("a-repository-with-quite-a-long-name");
        std::fs::create_dir_all(&work).expect("a directory");
        let site = Self {
            root: format!("http://{}", server.host()),
            repository: String::new(),
            pages: Vec::new(),
            work,
        };
        site.git(&["init", "-q", "-b", "main"]);
        site.write("README.md", README);
        site.write("src/main.rs", CODE);
        site.write("docs/picture.svg", PICTURE);
        site.write("LICENSE", LICENCE);
        site.git(&["add", "."]);
        site.git(&["commit", "-q", "-m", "first\n\nIt has a body."]);
        site.git(&["tag", "-m", "the first release", "v1.0"]);
        site.write("src/main.rs", &CODE.replace("hello", "good bye"));
        let subject = "second, with a subject that is somewhat longer than others are";
        site.git(&["commit", "-qam", subject]);
        let push = ["push", "--server", server.host()];
        let pushed = run_to_end(
            command()
                .args(push)
                .current_dir(&site.work)
                .env("HOME", home),
        );
        assert!(pushed.ok, "{pushed:?}");
        let lines = pushed.out.lines();
        let mut urls = lines.filter_map(|line| line.trim().strip_prefix("git clone "));
        Self {
            repository: urls.next().expect("an address").to_owned(),
            ..site
        }
    }

    /// Returns the address of the newest commit that the page of the repository links to.
    pub(super) fn newest_commit(&self) -> String {
        let path = self.repository.strip_prefix(&self.root).expect("a path");
        let host = self.root.strip_prefix("http://").expect("a host");
        let (_, page) = get(host, path);
        let (_, link) = page.split_once("/commit/").expect("a link to a commit");
        format!("{}/commit/{}", self.repository, &link[..40])
    }

    /// Returns the coordinate of the repository.
    fn coordinate(&self) -> String {
        let mut parts = self.repository.rsplit('/');
        let name = parts.next().and_then(|name| name.strip_suffix(".git"));
        let owner = PublicKey::parse(parts.next().expect("an owner")).expect("a key");
        format!("30617:{owner}:{}", name.expect("a name"))
    }

    /// Signs a pull request and pushes its commit.
    async fn propose(&self, server: &Server, by: &Keys, about: &[&str]) -> Event {
        self.git(&["checkout", "-q", "-b", "proposal"]);
        self.write("src/main.rs", &CODE.replace("42", "43"));
        self.git(&["commit", "-qam", "Count one more"]);
        let tip = self.git(&["rev-parse", "HEAD"]);
        let tags: [&[&str]; 4] = [
            about,
            &["c", &tip],
            &["subject", "Count one more"],
            &["clone", &self.repository],
        ];
        let pull = sign(by, 1618, "It was one too few.", &tags);
        publish(server, &pull).await;
        let to = format!("{tip}:refs/nostr/{}", pull.id.to_hex());
        self.git(&["push", "-q", &self.repository, &to]);
        pull
    }

    /// Announces a repository that nothing is pushed to, and returns the address of its page.
    async fn announce_empty(&self, server: &Server) -> String {
        let dave = Keys::generate();
        let owner = grasp_core::service::npub(&dave.public_key());
        let url = format!("{}/{owner}/empty.git", self.root);
        let tags: [&[&str]; 3] = [&["d", "empty"], &["clone", &url], &["relays", &server.url]];
        let announcement = sign(&dave, 30617, "", &tags);
        publish(server, &announcement).await;
        url
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.work.join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, text).expect("a file is written");
    }

    /// Runs git in the working directory, and returns its output.
    fn git(&self, arguments: &[&str]) -> String {
        let mut git = Command::new("git");
        git.args([
            "-c",
            "user.name=alice",
            "-c",
            "user.email=alice@example.com",
        ]);
        let home = self.work.parent().expect("a directory");
        let done = run_to_end(
            git.args(arguments)
                .current_dir(&self.work)
                .env("HOME", home),
        );
        assert!(done.ok, "{done:?}");
        done.out.trim().to_owned()
    }
}

fn sign(by: &Keys, kind: u16, content: &str, tags: &[&[&str]]) -> Event {
    let tags = tags
        .iter()
        .map(|tag| Tag::parse(tag.iter().copied()).expect("a tag"));
    let event = EventBuilder::new(Kind::from_u16(kind), content).tags(tags);
    let event = event.custom_created_at(Timestamp::now());
    event.finalize(by).expect("a key can sign")
}

/// Publishes an event, which the server must accept.
async fn publish(server: &Server, event: &Event) {
    let connected = tokio_tungstenite::connect_async(&server.url).await;
    let (mut socket, _) = connected.expect("a relay");
    let text = format!(r#"["EVENT",{}]"#, event.as_json());
    socket.send(Message::text(text)).await.expect("a relay");
    loop {
        let message = socket.next().await.expect("an answer").expect("an answer");
        let Message::Text(text) = message else {
            continue;
        };
        let answer: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        if answer[0] == "OK" {
            assert_eq!(answer[2], true, "{answer}");
            return;
        }
    }
}
