//! The servers that are compared, each a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use grasp_tests::{Instance, Settings};
use nostr::event::Event;

use crate::backend;

/// Tells a process of this very program which server to be.
const KIND: &str = "GRASP_BENCH_SERVER";
/// Where the repositories of the other server are.
const ROOT: &str = "GRASP_BENCH_ROOT";

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Grasp,
    Backend,
}

impl Kind {
    /// What this process was told to be.
    pub(crate) fn told() -> Option<Self> {
        match std::env::var(KIND).ok()?.as_str() {
            "grasp" => Some(Self::Grasp),
            _ => Some(Self::Backend),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Grasp => "grasp",
            Self::Backend => "backend",
        }
    }
}

/// Serves until nobody writes to it any more. Each line that it reads is an event, each line that it says an answer.
pub(crate) fn run(kind: Kind) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let root = std::env::var_os(ROOT).map(PathBuf::from).unwrap_or_default();
        let extra = (kind == Kind::Backend).then(|| backend::routes(root));
        let instance = Instance::with_settings(Settings { extra, ..Settings::default() }).await;
        say(&instance.address().to_string());
        let (lines, mut events) = tokio::sync::mpsc::channel::<String>(1);
        std::thread::spawn(move || {
            let lines_of_parent = std::io::stdin().lines().map_while(Result::ok);
            lines_of_parent.for_each(|line| _ = lines.blocking_send(line));
        });
        while let Some(line) = events.recv().await {
            let event = Event::from_json(line).expect("an event");
            let verdict = instance.ingest(vec![event]).await;
            say(&format!("{:?}", verdict.first()));
        }
    });
}

fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// A running server.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) address: String,
    pub(crate) root: PathBuf,
    child: Child,
    talk: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Server {
    pub(crate) fn start(kind: Kind, dir: &Path) -> Self {
        let root = dir.join("backend");
        std::fs::create_dir_all(&root).expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(KIND, kind.name())
            .env(ROOT, &root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let stdin = child.stdin.take().expect("a way in");
        let mut stdout = BufReader::new(child.stdout.take().expect("a way out"));
        let mut address = String::new();
        stdout.read_line(&mut address).expect("an address");
        let address = address.trim().to_owned();
        Self { kind, address, root, child, talk: Mutex::new((stdin, stdout)) }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Gives it an event, and waits for its answer.
    pub(crate) fn tell(&self, event: &Event) {
        let mut talk = self.talk.lock().expect("nobody panics here");
        writeln!(talk.0, "{}", event.as_json()).expect("a listening server");
        let mut answer = String::new();
        talk.1.read_line(&mut answer).expect("an answer");
        assert!(answer.contains("Held") || answer.contains("Stored"), "{answer}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
