//! Further nodes of an instance, and a proxy that sends every connection to the next node.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use grasp_relay::Clock;
use grasp_relay::instance::Server;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::{Postgres, S3Server};

/// Nodes of an instance that has several.
const NODES_PER_INSTANCE: usize = 3;

/// Time within which a node must become the writer.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(15);

/// Returns whether servers have several nodes, where a test does not need one process: `GRASP_TEST_NODES=1`.
pub fn are_nodes_wanted() -> bool {
    std::env::var_os("GRASP_TEST_NODES").is_some_and(|value| value == "1")
}

/// A node that runs beside the writer.
struct Reader {
    server: Arc<Server>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

/// The parts of an instance of several nodes beside its writer.
pub(crate) struct OtherNodes {
    _packs: S3Server,
    readers: Vec<Reader>,
    proxy: JoinHandle<()>,
}

impl Drop for OtherNodes {
    fn drop(&mut self) {
        self.proxy.abort();
    }
}

impl OtherNodes {
    /// Opens the writer, then the readers, behind a proxy that listens. Returns the writer and its own listener.
    pub(crate) async fn start(
        server_settings: &mut grasp_relay::instance::Settings,
        clock: &Clock,
        front: TcpListener,
    ) -> (Arc<Server>, TcpListener, Self) {
        // A server that is started again in its directory has its database again.
        let known = server_settings.data_dir.join("database");
        let database = std::fs::read_to_string(&known).unwrap_or_else(|_| {
            let database = Postgres::shared()
                .expect("PostgreSQL is installed")
                .database();
            std::fs::write(&known, &database).expect("a file in the data directory");
            database
        });
        server_settings.database = Some(database.parse().expect("an address"));
        let packs = S3Server::start_in(&server_settings.data_dir.join("s3")).await;
        server_settings.packs = Some(packs.url().parse().expect("a bucket"));
        server_settings.pack_storage.variables = packs.variables();
        let dir = server_settings.data_dir.clone();
        let (writer, listener) = open(server_settings, clock, &dir).await;
        assert!(
            writer.roles().until_writer(TAKEOVER_TIMEOUT).await,
            "no other node has the lease"
        );
        let mut addresses = vec![listener.local_addr().expect("its address")];
        let mut readers = Vec::new();
        for n in 1..NODES_PER_INSTANCE {
            let (server, listener) =
                open(server_settings, clock, &dir.join(format!("node{n}"))).await;
            addresses.push(listener.local_addr().expect("its address"));
            let (stop, stopped) = oneshot::channel::<()>();
            let serving = Arc::clone(&server);
            let running = tokio::spawn(async move {
                let stop_requested = async { drop(stopped.await) };
                serving
                    .serve(listener, stop_requested)
                    .await
                    .expect("the node ends without an error");
            });
            readers.push(Reader {
                server,
                stop,
                running,
            });
        }
        let proxy = tokio::spawn(proxy_round_robin(front, addresses));
        (
            writer,
            listener,
            Self {
                _packs: packs,
                readers,
                proxy,
            },
        )
    }

    /// Stops the readers.
    pub(crate) async fn stop(mut self) {
        for Reader {
            server,
            stop,
            running,
        } in std::mem::take(&mut self.readers)
        {
            drop(stop);
            running.await.expect("the node does not panic");
            let server = Arc::into_inner(server).expect("the last reference to the node");
            server.close().await.expect("the node closes");
        }
    }
}

async fn open(
    server_settings: &grasp_relay::instance::Settings,
    clock: &Clock,
    dir: &Path,
) -> (Arc<Server>, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let mut settings = server_settings.clone();
    settings.data_dir = dir.to_owned();
    settings.node_address = Some(format!("http://{address}").parse().expect("an address"));
    let server = Server::open(&settings, clock.clone())
        .await
        .expect("a node");
    (Arc::new(server), listener)
}

/// Connects each client to the next node that accepts connections. The connection comes from the client's address,
/// because nodes charge that address.
pub async fn proxy_round_robin(listener: TcpListener, nodes: Vec<SocketAddr>) {
    let next = Arc::new(AtomicUsize::new(0));
    while let Ok((mut client, from)) = listener.accept().await {
        let (next, nodes) = (Arc::clone(&next), nodes.clone());
        tokio::spawn(async move {
            for _ in &nodes {
                let node = nodes[next.fetch_add(1, Ordering::SeqCst) % nodes.len()];
                if let Ok(mut node) = connect(from, node).await {
                    let _ = tokio::io::copy_bidirectional(&mut client, &mut node).await;
                    return;
                }
            }
        });
    }
}

async fn connect(from: SocketAddr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(SocketAddr::new(from.ip(), 0))?;
    socket.connect(to).await
}
