//! cgit, as a CGI program behind the HTTP server of this project.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::Response;
use axum::routing::get;
use grasp_tests::{Instance, Settings};

/// Where distributions install it.
const PROGRAMS: [&str; 2] = ["/usr/lib/cgit/cgit.cgi", "/usr/share/webapps/cgit/cgit.cgi"];

const CONFIG_VAR: &str = "CGIT_CONFIG";

fn program() -> Option<PathBuf> {
    let mut programs = PROGRAMS.iter().map(PathBuf::from);
    programs.find(|path| path.is_file())
}

/// Returns the path of a page of the repository.
pub(crate) fn path(page: &str) -> String {
    format!("/cgit/bench/{page}")
}

/// A server with cgit. Killed when dropped.
pub(crate) struct Cgit {
    pub(crate) address: String,
    child: Child,
}

impl Cgit {
    /// Starts a server that shows a repository; `None` if cgit is not installed.
    pub(crate) fn start(dir: &Path, repository: PathBuf) -> Option<Self> {
        program()?;
        let config = dir.join("cgitrc");
        // Its defaults otherwise: 50 commits in a log, nothing kept, no colours.
        let text = format!(
            "virtual-root=/cgit/\ncss=/cgit.css\nlogo=\nreadme=:README.md\nrepo.url=bench\nrepo.path={}\n",
            repository.display()
        );
        std::fs::write(&config, text).expect("a file is written");
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("cgit")
            .env(CONFIG_VAR, &config)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a server");
        let mut address = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("a piped stdout"));
        stdout.read_line(&mut address).expect("an address");
        Some(Self {
            address: address.trim().to_owned(),
            child,
        })
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Cgit {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Serves pages of cgit until the standard input ends.
pub(crate) fn serve() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let extra = Some(Router::new().route("/cgit/{*path}", get(run)));
        let instance = Instance::with_settings(Settings {
            extra,
            ..Settings::one_process()
        })
        .await;
        println!("{}", instance.address());
        let until_end = || std::io::stdin().lines().for_each(drop);
        _ = tokio::task::spawn_blocking(until_end).await;
    });
}

async fn run(request: Request) -> Response {
    let path = request.uri().path();
    let output = tokio::process::Command::new(program().expect("an installed cgit"))
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env(CONFIG_VAR, std::env::var_os(CONFIG_VAR).unwrap_or_default())
        .env("HTTP_HOST", "127.0.0.1")
        .env("REQUEST_METHOD", "GET")
        .env("SCRIPT_NAME", "/cgit")
        .env("PATH_INFO", path.strip_prefix("/cgit").unwrap_or(path))
        .env("QUERY_STRING", request.uri().query().unwrap_or_default())
        .stdin(Stdio::null())
        .output()
        .await
        .expect("cgit runs");
    let end = output.stdout.windows(2).position(|two| two == b"\n\n");
    let (head, body) = output.stdout.split_at(end.map_or(0, |end| end + 2));
    let head = String::from_utf8_lossy(head);
    let status = head.lines().find_map(|line| line.strip_prefix("Status: "));
    let status = status.and_then(|status| status.get(..3)).unwrap_or("200");
    assert!(
        !body.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let response = Response::builder().status(status);
    response
        .body(Body::from(body.to_vec()))
        .expect("a response")
}
