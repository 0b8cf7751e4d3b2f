//! `grasp demo`: two servers on loopback that sync a repository.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use grasp_core::service::npub;
use grasp_relay::Clock;
use grasp_relay::instance::{InstanceError, Server, Settings};
use grasp_relay::publish::{self, Audience, PushServer, RelayClient, RemoteRepo, Work};
use nostr::key::Keys;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::signals::Signals;
use crate::warn;

/// Limits the time until the second server has the repository; usually it takes a few seconds.
const SYNC_TIMEOUT: Duration = Duration::from_secs(120);

const POLL_INTERVAL: Duration = Duration::from_millis(100);

const REPOSITORY: &str = "demo";

/// Runs the demo; with `keep`, the servers run until a signal stops them.
pub(crate) async fn run(keep: bool) -> Result<()> {
    // Before any directory exists, so that Ctrl-C always removes them.
    let stop = Signals::listen().stop_requested();
    let mut stop = std::pin::pin!(stop);
    let dir = tempfile::tempdir().context("could not create a directory")?;
    let first = Instance::start(&dir.path().join("first"), None).await?;
    let second = Instance::start(&dir.path().join("second"), Some(&first)).await?;
    println!(
        "two servers, each with a directory of its own:\n  first   http://{}\n  second  http://{}\n",
        first.address, second.address
    );
    let result = tokio::select! {
        result = sync_repository(dir.path(), &first, &second) => result,
        () = &mut stop => Err(anyhow!("stopped before the demo was done")),
    };
    if let (true, Ok(urls)) = (keep, &result) {
        println!("\nboth servers are running; Ctrl-C ends them\n");
        for url in urls {
            println!("  git clone {url}");
        }
        stop.await;
    }
    second.stop().await?;
    first.stop().await?;
    dir.close().context("could not remove the directories")?;
    println!("\nboth servers are stopped and their directories are removed");
    if !keep {
        println!("`grasp demo --keep` keeps them running, to clone from");
    }
    result.map(drop)
}

/// Announces a repository on both servers, pushes it to the first, and waits until the second has it. Returns the URLs to
/// clone it from.
async fn sync_repository(dir: &Path, first: &Instance, second: &Instance) -> Result<[String; 2]> {
    let keys = Keys::generate();
    let repo = grasp_core::RepoId::new(keys.public_key(), REPOSITORY.parse()?);
    println!("a maintainer:\n  {}\n", npub(&keys.public_key()));
    let servers = [first.target(), second.target()];
    let work = working_copy(&dir.join(REPOSITORY)).await?;
    let refs = work.refs(&[]).await?;

    let announcement = publish::announce(&keys, &repo, &servers, Audience::Anyone, None)?;
    for server in &servers {
        RelayClient::connect(&server.relay()?)
            .await?
            .publish(&announcement)
            .await?;
    }
    println!("announced on both (kind 30617)");
    let state = publish::sign(&keys, &repo, &refs, None)?;
    RelayClient::connect(&servers[0].relay()?)
        .await?
        .publish(&state)
        .await?;
    println!("signed the state for the first only (kind 30618)");
    let began = Instant::now();
    let pushed_url = servers[0].clone_url(&repo);
    let synced_url = servers[1].clone_url(&repo);
    let [pushed_to, synced_to] = [&pushed_url, &synced_url].map(|url| RemoteRepo {
        url: url.clone(),
        member: None,
    });
    work.push_to(&pushed_to, &refs, warn).await?;
    println!(
        "pushed with git to the first only, in {} ms",
        began.elapsed().as_millis()
    );
    let pushed = Instant::now();
    let tip = refs.tips.values().next().cloned().unwrap_or_default();
    wait_for_tip(&work, &synced_to, &tip).await?;
    println!(
        "the second has it, {} ms later",
        pushed.elapsed().as_millis()
    );
    Ok([pushed_url, synced_url])
}

/// Creates a working copy with one commit.
async fn working_copy(dir: &Path) -> Result<Work> {
    std::fs::create_dir_all(dir)?;
    let identity = ["-c", "user.name=demo", "-c", "user.email=demo@example.com"];
    publish::git(dir, &["init", "--quiet", "--initial-branch=main"]).await?;
    std::fs::write(dir.join("README.md"), "# demo\n\nServed by two servers.\n")?;
    publish::git(dir, &["add", "README.md"]).await?;
    publish::git(
        dir,
        &[&identity[..], &["commit", "--quiet", "--message", "first"]].concat(),
    )
    .await?;
    Ok(Work::open(dir).await?)
}

/// Polls a server until one of its refs is at this tip.
async fn wait_for_tip(work: &Work, remote: &RemoteRepo, tip: &str) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < SYNC_TIMEOUT {
        if work.remote_has(remote, tip).await {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let seconds = SYNC_TIMEOUT.as_secs();
    bail!("the second server did not get the repository within {seconds} seconds")
}

/// One server of the demo.
struct Instance {
    address: SocketAddr,
    server: Arc<Server>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<Result<(), InstanceError>>,
}

impl Instance {
    async fn start(dir: &Path, other: Option<&Self>) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")
            .await
            .context("could not listen on loopback")?;
        let address = listener.local_addr()?;
        let mut settings = Settings::new(address.to_string().parse()?, dir);
        settings.outbound.allow_private = true;
        if let Some(other) = other {
            settings.sync.engine.bootstrap.push(other.target().relay()?);
        }
        let server = Arc::new(Server::open(&settings, Clock::system()).await?);
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn({
            let server = Arc::clone(&server);
            async move { server.serve(listener, async { drop(stopped.await) }).await }
        });
        Ok(Self {
            address,
            server,
            stop,
            running,
        })
    }

    fn target(&self) -> PushServer {
        let service = self.server.parts().config.service.clone();
        PushServer {
            service,
            secure: false,
        }
    }

    async fn stop(self) -> Result<()> {
        drop(self.stop);
        self.running.await??;
        match Arc::into_inner(self.server) {
            Some(server) => Ok(server.close().await?),
            None => Ok(()),
        }
    }
}
