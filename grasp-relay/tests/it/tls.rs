//! Certificates by ACME at a double of an ACME server, which has renewal information (ARI) and rate limits.

mod acme_server;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use grasp_core::{Mono, Now};
use grasp_relay::Clock;
use grasp_relay::nostr::Limits;
use grasp_relay::server::{Listeners, TlsListeners};
use grasp_relay::tls::{Acme, Certificates, TlsItem, TlsStore, TlsStoreError};
use nostr::types::Timestamp;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use self::acme_server::{AcmeServer, DIRECTORY, Failure};
use crate::support::memory_store::MemoryStore;
use crate::support::{Relay, in_time};

const DOMAIN: &str = "git.example.com";
const DAY: u64 = 24 * 60 * 60;

/// What nodes share, in memory.
#[derive(Default)]
struct SharedStore(Mutex<HashMap<&'static str, String>>);

impl SharedStore {
    fn get(&self, item: TlsItem) -> Option<String> {
        self.0.lock().unwrap().get(item.name()).cloned()
    }

    fn put(&self, item: TlsItem, text: &str) {
        let mut items = self.0.lock().unwrap();
        items.insert(item.name(), text.to_owned());
    }
}

impl TlsStore for SharedStore {
    fn read(&self, item: TlsItem) -> BoxFuture<'_, Result<Option<String>, TlsStoreError>> {
        Box::pin(async move { Ok(self.get(item)) })
    }

    fn write(
        &self,
        item: TlsItem,
        text: Option<String>,
    ) -> BoxFuture<'_, Result<(), TlsStoreError>> {
        Box::pin(async move {
            let mut items = self.0.lock().unwrap();
            match text {
                Some(text) => items.insert(item.name(), text),
                None => items.remove(item.name()),
            };
            Ok(())
        })
    }
}

/// A server that keeps a certificate, with a clock that the test sets.
struct Setup {
    acme: Arc<AcmeServer>,
    store: Arc<SharedStore>,
    now: Arc<Mutex<u64>>,
    keepers: JoinSet<()>,
}

impl Setup {
    fn new() -> Self {
        Self {
            acme: Arc::new(AcmeServer::default()),
            store: Arc::default(),
            now: Arc::new(Mutex::new(Timestamp::now().as_secs())),
            keepers: JoinSet::new(),
        }
    }

    /// Starts a node.
    fn start(&mut self, may_order: bool) -> Certificates {
        let certificates = Certificates::of_store(DOMAIN, self.store.clone());
        let (acme_server, now) = (self.acme.clone(), self.now.clone());
        let acme = Acme {
            domain: DOMAIN.into(),
            directory: DIRECTORY.into(),
            contact: None,
            store: self.store.clone(),
            client: Arc::new(move |request| {
                let answer = acme_server.answer(&request);
                Box::pin(async move { Ok(answer) })
            }),
            may_order: Arc::new(move || may_order),
            clock: Clock::new(move || {
                let unix = Timestamp::from_secs(*now.lock().unwrap());
                Now::new(Mono::ZERO, unix)
            }),
        };
        self.keepers.spawn(acme.keep(certificates.clone()));
        certificates
    }

    /// Stops all nodes.
    async fn stop(&mut self) {
        self.keepers.shutdown().await;
    }

    fn now(&self) -> u64 {
        *self.now.lock().unwrap()
    }

    fn pass(&self, seconds: u64) {
        *self.now.lock().unwrap() += seconds;
    }

    /// Waits until this many certificates were issued.
    async fn until_issued(&self, count: usize) {
        self.until(|| self.acme.issued() >= count).await;
        let record = "\"failures\":0";
        self.until(|| {
            self.store
                .get(TlsItem::Orders)
                .is_some_and(|text| text.contains(record))
        })
        .await;
    }

    /// Waits until something holds. Time of the runtime passes by itself.
    async fn until(&self, holds: impl Fn() -> bool) {
        for _ in 0..10_000 {
            if holds() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("it did not happen; {:?}", self.store.0.lock().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn renews_when_the_acme_server_wants_it_and_names_the_old_certificate() {
    let mut setup = Setup::new();
    let certificates = setup.start(true);
    setup.until_issued(1).await;
    setup.until(|| certificates.current().is_some()).await;
    assert_eq!(setup.acme.replaced(), Vec::<String>::new());
    setup.acme.want_renewal();
    // It is asked again after six hours, long before two thirds of the lifetime.
    setup.pass(6 * 60 * 60 + 60);
    setup.until_issued(2).await;
    assert_eq!(setup.acme.replaced().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn renews_at_two_thirds_of_the_lifetime_without_renewal_information() {
    let mut setup = Setup::new();
    let certificates = setup.start(true);
    setup.until_issued(1).await;
    setup.until(|| certificates.current().is_some()).await;
    setup.pass(59 * DAY);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.acme.issued(), 1);
    setup.pass(2 * DAY);
    setup.until_issued(2).await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_is_waited_for_and_told() {
    let mut setup = Setup::new();
    setup.acme.limit_orders_for(Some(7_200));
    let certificates = setup.start(true);
    setup
        .until(|| {
            let problem = certificates.status().problem;
            problem.is_some_and(|problem| problem.contains("too many orders"))
        })
        .await;
    assert!(certificates.status().validity.is_none());
    let orders = setup.acme.orders();
    setup.pass(7_000);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.acme.orders(), orders, "it asked to be left alone");
    setup.acme.limit_orders_for(None);
    setup.pass(300);
    setup.until_issued(1).await;
    setup
        .until(|| certificates.status().problem.is_none())
        .await;
}

#[tokio::test(start_paused = true)]
async fn only_one_node_orders_and_all_serve_the_certificate() {
    let mut setup = Setup::new();
    let readers = [setup.start(false), setup.start(false)];
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(setup.acme.orders(), 0);
    let writer = setup.start(true);
    setup.until_issued(1).await;
    for node in readers.iter().chain([&writer]) {
        setup
            .until(|| node.current().is_some_and(|own| own.covers(DOMAIN)))
            .await;
    }
    assert_eq!(setup.acme.orders(), 1);
    assert_eq!(setup.store.get(TlsItem::Challenge), None);
}

#[tokio::test(start_paused = true)]
async fn a_stored_certificate_that_cannot_be_read_is_replaced() {
    let mut setup = Setup::new();
    setup.start(true);
    setup.until_issued(1).await;
    setup.stop().await;
    setup.store.put(TlsItem::Certificate, "damaged");
    let certificates = setup.start(true);
    setup.until_issued(2).await;
    setup.until(|| certificates.current().is_some()).await;
    // The one in memory would be lost at the next start.
    setup.store.put(TlsItem::Certificate, "damaged again");
    setup.until_issued(3).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_order_tells_that_the_stored_certificate_is_damaged() {
    let mut setup = Setup::new();
    setup.store.put(TlsItem::Certificate, "damaged");
    let certificates = setup.start(false);
    setup
        .until(|| {
            let problem = certificates.status().problem;
            problem.is_some_and(|problem| problem.contains("the stored certificate"))
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_damaged_account_is_replaced() {
    let mut setup = Setup::new();
    setup.store.put(TlsItem::Account, "{\"directory\":");
    setup.start(true);
    setup.until_issued(1).await;
    let account = setup.store.get(TlsItem::Account).unwrap();
    assert!(account.contains("credentials"), "{account}");
}

#[tokio::test(start_paused = true)]
async fn an_account_that_the_acme_server_does_not_know_is_replaced() {
    let mut setup = Setup::new();
    let certificates = setup.start(true);
    setup.until_issued(1).await;
    setup.until(|| certificates.current().is_some()).await;
    setup.acme.forget_account();
    setup.pass(61 * DAY);
    setup
        .until(|| setup.store.get(TlsItem::Account).is_none())
        .await;
    setup.pass(60);
    setup.until_issued(2).await;
}

#[tokio::test(start_paused = true)]
async fn the_reason_of_a_failed_check_is_told() {
    let of_order = Some("the domain could not be checked");
    let of_challenge = Some("connection refused");
    let cases = [
        (None, of_challenge, "connection refused"),
        (of_order, of_challenge, "connection refused"),
        (of_order, None, "the domain could not be checked"),
    ];
    for (of_order, of_challenge, reason) in cases {
        let mut setup = Setup::new();
        setup.acme.fail_checks(Failure {
            of_order,
            of_challenge,
        });
        let certificates = setup.start(true);
        setup
            .until(|| certificates.status().problem.is_some())
            .await;
        let problem = certificates.status().problem.unwrap();
        assert!(problem.ends_with(reason), "{problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_certificate_for_another_domain_degrades_the_server_until_it_is_replaced() {
    let mut setup = Setup::new();
    let made = rcgen::generate_simple_self_signed(["old.example.com".to_owned()]).unwrap();
    let pem = made.cert.pem() + &made.signing_key.serialize_pem();
    setup.store.put(TlsItem::Certificate, &pem);
    let reader = setup.start(false);
    setup.until(|| reader.current().is_some()).await;
    assert!(reader.status().is_degraded(setup.now()));
    setup.start(true);
    setup
        .until(|| !reader.status().is_degraded(setup.now()))
        .await;
}

/// Returns the status of a request for the health of a relay, or of the refusal of its connection.
async fn status(relay: &Relay) -> String {
    let mut stream = in_time(TcpStream::connect(relay.address)).await.unwrap();
    let request = "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let _ = in_time(stream.write_all(request.as_bytes())).await;
    let mut answer = Vec::new();
    let _ = in_time(stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer)
        .chars()
        .skip(9)
        .take(3)
        .collect()
}

#[tokio::test]
async fn a_client_of_the_tls_port_is_counted_before_its_handshake() {
    let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let https = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, of_tls) = (plain.local_addr().unwrap(), https.local_addr().unwrap());
    let listeners = Listeners::from(plain).with_tls(TlsListeners {
        https,
        http: None,
        certificates: Certificates::of_files(DOMAIN),
    });
    let limits = Limits {
        connections_per_ip: 1,
        ..Limits::default()
    };
    let store = Arc::new(MemoryStore::default());
    let relay = Relay::at(address, listeners, store, limits, |_| {}).await;
    let silent = in_time(TcpStream::connect(of_tls)).await.unwrap();
    // Once may be because of the connection before; a refused one is not counted.
    let mut refused_in_a_row = 0;
    in_time(async {
        while refused_in_a_row < 10 {
            match status(&relay).await.as_str() {
                "429" => refused_in_a_row += 1,
                _ => refused_in_a_row = 0,
            }
        }
    })
    .await;
    drop(silent);
    in_time(async { while status(&relay).await != "200" {} }).await;
}
