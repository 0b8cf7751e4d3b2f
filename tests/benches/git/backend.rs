//! `git http-backend` behind the HTTP server of this project.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{ChildStdin, Command};

/// Returns the path of the program, if it is installed.
pub(crate) fn program() -> Option<PathBuf> {
    let output = std::process::Command::new("git")
        .arg("--exec-path")
        .output()
        .ok()?;
    let path =
        PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()).join("git-http-backend");
    path.is_file().then_some(path)
}

struct Backend {
    program: PathBuf,
    root: PathBuf,
}

/// Returns routes that pass every request to the program.
pub(crate) fn routes(root: PathBuf) -> Router {
    let program = program().expect("an installed http-backend");
    Router::new()
        .fallback(serve)
        .with_state(Arc::new(Backend { program, root }))
}

async fn serve(State(backend): State<Arc<Backend>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let header = |name: &str| {
        let value = parts
            .headers
            .get(name)
            .and_then(|value| value.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let mut child = Command::new(&backend.program)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_PROJECT_ROOT", &backend.root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", header("content-length"))
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .env("REMOTE_USER", "alice")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("http-backend runs");
    let input = child.stdin.take().expect("a piped stdin");
    tokio::spawn(feed(input, body));
    let mut output =
        BufReader::with_capacity(64 * 1024, child.stdout.take().expect("a piped stdout"));
    let mut response = Response::builder();
    loop {
        let mut line = String::new();
        output.read_line(&mut line).await.expect("a header");
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        response = match name {
            "Status" => response.status(&value[..3]),
            _ => response.header(name, value),
        };
    }
    let body = stream::unfold((output, child), |(mut output, child)| async move {
        let mut buffer = Vec::with_capacity(64 * 1024);
        let read = output.read_buf(&mut buffer).await;
        match read {
            Ok(1..) => Some((
                Ok::<_, std::io::Error>(Bytes::from(buffer)),
                (output, child),
            )),
            _ => None,
        }
    });
    response.body(Body::from_stream(body)).expect("a response")
}

async fn feed(mut input: ChildStdin, body: Body) {
    let mut body = body.into_data_stream();
    while let Some(Ok(bytes)) = body.next().await {
        if input.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
