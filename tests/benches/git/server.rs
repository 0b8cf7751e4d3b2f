//! The servers that are compared, each a process of its own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use grasp_tests::{Instance, Settings};
use nostr::event::Event;

use crate::backend;

/// Variable that makes a process of this program one of the servers.
const KIND_VAR: &str = "GRASP_BENCH_SERVER";
/// Variable with the directory of the repositories of `git http-backend`.
const ROOT_VAR: &str = "GRASP_BENCH_ROOT";

/// The kind of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Grasp,
    Backend,
}

impl Kind {
    /// Returns the kind that the environment of this process names.
    pub(crate) fn from_env() -> Option<Self> {
        match std::env::var(KIND_VAR).ok()?.as_str() {
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

/// Serves until its standard input ends. Each line of input is an event, each line of output its outcome.
pub(crate) fn run(kind: Kind) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let root = std::env::var_os(ROOT_VAR)
            .map(PathBuf::from)
            .unwrap_or_default();
        let extra = (kind == Kind::Backend).then(|| backend::routes(root));
        let instance = Instance::with_settings(Settings {
            extra,
            ..Settings::default()
        })
        .await;
        print_line(&instance.address().to_string());
        let (lines, mut events) = tokio::sync::mpsc::channel::<String>(1);
        std::thread::spawn(move || {
            let lines_of_parent = std::io::stdin().lines().map_while(Result::ok);
            lines_of_parent.for_each(|line| _ = lines.blocking_send(line));
        });
        while let Some(line) = events.recv().await {
            let event = Event::from_json(line).expect("an event");
            let outcomes = instance.ingest(vec![event]).await;
            print_line(&format!("{:?}", outcomes.first()));
        }
    });
}

fn print_line(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// A running server.
pub(crate) struct Server {
    pub(crate) kind: Kind,
    pub(crate) address: String,
    pub(crate) root: PathBuf,
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Server {
    pub(crate) fn start(kind: Kind, dir: &Path) -> Self {
        let root = dir.join("backend");
        std::fs::create_dir_all(&root).expect("a directory");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .env(KIND_VAR, kind.name())
            .env(ROOT_VAR, &root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let stdin = child.stdin.take().expect("a piped stdin");
        let mut stdout = BufReader::new(child.stdout.take().expect("a piped stdout"));
        let mut address = String::new();
        stdout.read_line(&mut address).expect("an address");
        let address = address.trim().to_owned();
        Self {
            kind,
            address,
            root,
            child,
            pipes: Mutex::new((stdin, stdout)),
        }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Publishes an event, and waits for its outcome.
    pub(crate) fn publish(&self, event: &Event) {
        let mut pipes = self.pipes.lock().expect("no thread panicked");
        writeln!(pipes.0, "{}", event.as_json()).expect("a running server");
        let mut outcome = String::new();
        pipes.1.read_line(&mut outcome).expect("an outcome");
        assert!(
            outcome.contains("Held") || outcome.contains("Stored"),
            "{outcome}"
        );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
