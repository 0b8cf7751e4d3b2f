//! The gate of a private service (GRASP-08): what happens before a stranger is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::Router;
use axum::routing::any;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use grasp_relay::nostr::Limits;
use grasp_relay::private::{MemberList, Private};
use nostr::event::{EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::Keys;
use nostr::nips::nip19::ToBech32 as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::memory_store::MemoryStore;
use crate::support::{Relay, in_time, tagged};

/// A private relay whose pages and repositories are a handler that counts requests.
struct Service {
    relay: Relay,
    store: Arc<MemoryStore>,
    handled: Arc<AtomicUsize>,
    alice: Keys,
    _members: MemberList,
}

impl Service {
    async fn start() -> Self {
        let alice = Keys::generate();
        let members = MemberList::new([alice.public_key()].into());
        let store = Arc::new(MemoryStore::default());
        let handled = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&handled);
        let relay = Relay::on(store.clone(), Limits::default(), |parts| {
            let origin = format!("http://{}", parts.config.service);
            parts.config.private = Some(Private {
                members: members.members(),
                origin: origin.parse().unwrap(),
            });
            let handler = any(move || async move {
                counted.fetch_add(1, Ordering::SeqCst);
            });
            parts.extra = Router::new().route("/{owner}/{*rest}", handler);
        })
        .await;
        Self {
            relay,
            store,
            handled,
            alice,
            _members: members,
        }
    }

    /// Returns the value of an `Authorization` header of this key for a path.
    fn authorization(&self, keys: &Keys, path: &str) -> String {
        let root = format!("http://{}{path}", self.relay.address);
        let event = EventBuilder::new(Kind::HttpAuth, "")
            .tag(Tag::parse(["u", root.as_str()]).unwrap())
            .tag(Tag::parse(["method", "GET"]).unwrap())
            .finalize(keys)
            .unwrap();
        format!("Nostr {}", STANDARD.encode(event.as_json()))
    }

    /// Sends the head of a request, which announces a body, and returns the status.
    async fn status(&self, method: &str, target: &str, authorization: Option<&str>) -> u16 {
        let address = self.relay.address;
        let mut head =
            format!("{method} {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
        if let Some(value) = authorization {
            head.push_str(&format!("Authorization: {value}\r\n"));
        }
        if method == "POST" {
            head.push_str("Content-Length: 1000\r\n");
        }
        let mut stream = in_time(TcpStream::connect(address)).await.unwrap();
        in_time(stream.write_all((head + "\r\n").as_bytes()))
            .await
            .unwrap();
        let mut line = [0; 12];
        in_time(stream.read_exact(&mut line)).await.unwrap();
        std::str::from_utf8(&line[9..]).unwrap().parse().unwrap()
    }
}

#[tokio::test]
async fn a_stranger_is_answered_before_a_repository_is_looked_for() {
    let service = Service::start().await;
    let announcement = tagged(30_617, "", &[["d", "known"]]);
    service.relay.accept(&announcement).await;
    let owner = announcement.pubkey.to_bech32().unwrap();
    let uses = service.store.uses();
    for name in ["known", "unknown"] {
        let path = format!("/{owner}/{name}.git");
        let stranger = service.authorization(&Keys::generate(), &path);
        for authorization in [None, Some("Nostr !"), Some(stranger.as_str())] {
            for (method, target) in [
                ("GET", path.clone()),
                ("GET", format!("{path}/info/refs?service=git-upload-pack")),
                ("POST", format!("{path}/git-receive-pack")),
            ] {
                let status = service.status(method, &target, authorization).await;
                assert_eq!(status, 401, "{method} {target}");
            }
        }
    }
    assert_eq!(service.store.uses(), uses, "nothing was looked up");
    assert_eq!(service.handled.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_member_passes_and_options_need_no_authorization() {
    let service = Service::start().await;
    let path = "/npub1x/a.git";
    let target = format!("{path}/info/refs");
    let authorization = service.authorization(&service.alice, path);
    let status = service.status("GET", &target, Some(&authorization)).await;
    assert_eq!((status, service.handled.load(Ordering::SeqCst)), (200, 1));
    assert_eq!(service.status("OPTIONS", &target, None).await, 204);
    assert_eq!(service.handled.load(Ordering::SeqCst), 1);
}
