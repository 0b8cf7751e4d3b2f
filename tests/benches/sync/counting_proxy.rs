//! A proxy that counts bytes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use grasp_core::{RelayUrl, ServiceIdentity};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

pub(crate) struct CountingProxy {
    address: SocketAddr,
    bytes: Arc<AtomicU64>,
}

impl CountingProxy {
    pub(crate) async fn to(far: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let bytes = Arc::new(AtomicU64::new(0));
        let counted = bytes.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let far = TcpStream::connect(far).await.unwrap();
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((near_read, near_write), (far_read, far_write)) =
                    (near.into_split(), far.into_split());
                tokio::spawn(copy_counted(near_read, far_write, counted.clone()));
                tokio::spawn(copy_counted(far_read, near_write, counted.clone()));
            }
        });
        Self { address, bytes }
    }

    pub(crate) fn url(&self) -> RelayUrl {
        format!("ws://{}", self.address).parse().unwrap()
    }

    pub(crate) fn service(&self) -> ServiceIdentity {
        self.address.to_string().parse().unwrap()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

async fn copy_counted(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, counted: Arc<AtomicU64>) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        counted.fetch_add(read as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
