//! Authorizations of git requests to private services (NIP-98), for the server and for `grasp push`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use grasp_core::outbound::OutboundPolicy;
use grasp_core::private::root_of_url;
use grasp_core::service::relay_of_clone_url;
use grasp_core::{CloneUrl, RelayUrl};
use grasp_purgatory::git::{Authorize, Signer};
use grasp_sync::Roots;
use grasp_sync::driver;
use nostr::event::{EventBuilder, FinalizeEvent as _, Kind, Tag};
use nostr::key::Keys;

use crate::instance::error::Result;

/// The time for which a server counts as private, since its document said so.
const PRIVATE_FOR: Duration = Duration::from_secs(10 * 60);

/// The time for which it counts as public, or as unreachable.
const PUBLIC_FOR: Duration = Duration::from_secs(60);

/// Servers that are remembered.
const MAX_REMEMBERED: usize = 1_000;

/// Returns the value of an `Authorization` header for git at this URL, valid for a minute from now.
pub(crate) fn authorization(keys: &Keys, url: &CloneUrl) -> Result<String> {
    let event = EventBuilder::new(Kind::HttpAuth, "")
        .tag(Tag::parse(["u", root_of_url(url)])?)
        .tag(Tag::parse(["method", "GET"])?)
        .finalize(keys)?;
    Ok(format!("Nostr {}", STANDARD.encode(event.as_json())))
}

/// Returns what authorizes git requests with these keys: those to servers whose NIP-11 document, at the same host and port,
/// says that they are private, and no others.
pub(crate) fn authorize(keys: Keys, outbound: OutboundPolicy, roots: Roots) -> Authorize {
    let peers = Arc::new(Peers {
        outbound,
        roots,
        known: Mutex::default(),
    });
    let authorize: Authorize = Arc::new(move |url: CloneUrl| {
        let peers = Arc::clone(&peers);
        let keys = keys.clone();
        Box::pin(async move {
            let relay = relay_of_clone_url(&url)?;
            if !peers.is_private(&relay).await {
                return None;
            }
            let sign = move || {
                authorization(&keys, &url).unwrap_or_else(|error| {
                    tracing::error!(%error, "could not sign an authorization");
                    String::new()
                })
            };
            Some(Signer::new(sign))
        })
    });
    authorize
}

/// Which servers are private, as far as that was asked lately.
struct Peers {
    outbound: OutboundPolicy,
    roots: Roots,
    known: Mutex<BTreeMap<RelayUrl, (Instant, bool)>>,
}

impl Peers {
    async fn is_private(&self, relay: &RelayUrl) -> bool {
        if let Some(is_private) = self.known(relay) {
            return is_private;
        }
        let facts = driver::relay_information(relay, self.outbound, &self.roots).await;
        let is_private = facts.is_some_and(|facts| facts.is_private);
        let until = if is_private { PRIVATE_FOR } else { PUBLIC_FOR };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_REMEMBERED {
            known.clear();
        }
        known.insert(relay.clone(), (Instant::now() + until, is_private));
        is_private
    }

    fn known(&self, relay: &RelayUrl) -> Option<bool> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, is_private) = known.get(relay)?;
        (Instant::now() < *until).then_some(*is_private)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nostr::event::Event;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    const PRIVATE: &str = r#"{"supported_grasps":["GRASP-01","GRASP-08"]}"#;
    const PUBLIC: &str = r#"{"supported_grasps":["GRASP-01"]}"#;

    /// Answers all requests on a port of its own with this text; returns the port, and the number of requests.
    async fn server(document: &'static str) -> (u16, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let requests = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&requests);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::SeqCst);
                let _ = stream.read(&mut [0; 4096]).await;
                let length = document.len();
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                let _ = stream.write_all((head + document).as_bytes()).await;
            }
        });
        (port, requests)
    }

    const ROOT: &str = "/npub10xlxvlhemja6c4dqv22uapctqupfhlxm9h8z3k2e72q4k9hcz7vqpkge6d/a.git";

    fn clone_url(port: u16) -> CloneUrl {
        format!("http://127.0.0.1:{port}{ROOT}").parse().unwrap()
    }

    #[tokio::test]
    async fn only_the_host_and_port_whose_document_says_private_get_an_authorization() {
        let (private, asked) = server(PRIVATE).await;
        let (public, _) = server(PUBLIC).await;
        let (unreadable, _) = server("<html>").await;
        let everywhere = OutboundPolicy::everywhere();
        let authorize = authorize(Keys::generate(), everywhere, Roots::default());
        for _ in 0..2 {
            assert!(authorize(clone_url(private)).await.is_some());
        }
        assert_eq!(asked.load(Ordering::SeqCst), 1, "it is remembered");
        for port in [public, unreadable] {
            assert!(authorize(clone_url(port)).await.is_none(), "{port}");
        }
    }

    #[test]
    fn an_authorization_names_the_repository_and_is_of_now() {
        let keys = Keys::generate();
        let before = nostr::types::Timestamp::now();
        let header = authorization(&keys, &clone_url(7)).unwrap();
        let encoded = header.strip_prefix("Nostr ").unwrap();
        let event = Event::from_json(STANDARD.decode(encoded).unwrap()).unwrap();
        event.verify().unwrap();
        assert_eq!(
            (event.kind, event.pubkey),
            (Kind::HttpAuth, keys.public_key())
        );
        assert!(event.created_at >= before);
        let tags: Vec<_> = event
            .tags
            .iter()
            .map(|tag| tag.as_slice().to_vec())
            .collect();
        let root = format!("http://127.0.0.1:7{ROOT}");
        assert_eq!(tags, [["u", root.as_str()], ["method", "GET"]]);
    }
}
