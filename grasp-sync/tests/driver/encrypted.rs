//! Relays behind TLS: those with a valid certificate are synced from, others are not.

use std::time::Duration;

use grasp_core::RelayUrl;
use grasp_core::nostr::types::Timestamp;
use grasp_sync::driver::{RelayStatus, Settings};
use grasp_sync::engine::{Fault, Flaw};
use grasp_sync::{Roots, Sidecar, Syncer};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

use crate::local::Local;
use crate::scripted::Honest;
use crate::tls_front::{Authority, Certificate, Front};
use crate::trial::Trial;

/// The year until which valid certificates hold.
const LONG: i32 = 4000;

fn trust(authority: &Authority, settings: &mut Settings) {
    settings.roots = Roots::default().with(authority.pem().as_bytes()).unwrap();
}

fn secure(front: &Front) -> RelayUrl {
    format!("wss://{}", front.host()).parse().unwrap()
}

/// Returns the fault of a relay with this certificate, beside a good relay.
async fn is_refused(authority: &Authority, shown: Certificate, flaw: Flaw) {
    let mut trial = Trial::new().await;
    let issues = trial.issues(2);
    let relay = Honest::new(issues.clone()).start().await;
    let front = Front::start(relay.address(), shown).await;
    let syncer = trial.begin_at(&[secure(&front)], |settings| trust(authority, settings)).await;

    let is_over = |status: &RelayStatus| status.failed.is_some();
    let status = Local::until_status(&syncer, &secure(&front), is_over).await;
    let failed = status.failed.unwrap();
    assert_eq!((failed.why, failed.attempts), (Fault::Certificate(flaw), 1));
    let eleven_hours = Duration::from_secs(11 * 60 * 60);
    assert!(failed.retry_at > Timestamp::now() + eleven_hours, "{failed:?}");
    trial.is_undisturbed(&syncer).await;
    // One connection for the websocket, one for NIP-11; nothing came through.
    assert!(front.guests() <= 2, "{} connections", front.guests());
    assert_eq!(relay.heard().connections, 0);
    assert!(!issues.iter().any(|issue| trial.local.has(issue)));
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_authority_the_operator_trusts_is_synced_from() {
    let mut trial = Trial::new().await;
    let (issues, authority) = (trial.issues(3), Authority::new("ours"));
    let honest = Honest::new(issues.clone());
    let relay = honest.start().await;
    let front = Front::start(relay.address(), authority.certify("localhost", LONG)).await;
    let syncer = trial.begin_at(&[secure(&front)], |settings| trust(&authority, settings)).await;
    trial.arrive(&issues).await;
    Local::until_status(&syncer, &secure(&front), |status| status.synced_at.is_some()).await;
    let live = trial.author.issue(&trial.repo, "live");
    honest.publish(live.clone());
    trial.arrive(&[live]).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_nobody_trusted_signed_is_refused_and_not_asked_for_again() {
    let (ours, theirs) = (Authority::new("ours"), Authority::new("theirs"));
    is_refused(&ours, theirs.certify("localhost", LONG), Flaw::Untrusted).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_for_another_name_is_refused_and_not_asked_for_again() {
    let ours = Authority::new("ours");
    is_refused(&ours, ours.certify("elsewhere.example", LONG), Flaw::OtherName).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_certificate_is_refused_and_not_asked_for_again() {
    let ours = Authority::new("ours");
    is_refused(&ours, ours.certify("localhost", 2020), Flaw::OutOfDate).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_speaks_no_tls_is_refused_and_not_asked_again() {
    let mut trial = Trial::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: RelayUrl = format!("wss://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move {
        while let Ok((mut guest, _)) = listener.accept().await {
            let _ = guest.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    let syncer = trial.begin_at(std::slice::from_ref(&url), |_| {}).await;
    let is_over = |status: &RelayStatus| status.failed.is_some();
    let failed = Local::until_status(&syncer, &url, is_over).await.failed.unwrap();
    assert_eq!((failed.why, failed.attempts), (Fault::Tls, 1));
    trial.is_undisturbed(&syncer).await;
    syncer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_behind_tls_is_kept_complete_from_beside_it() {
    let authority = Authority::new("ours");
    let trial = Trial::new().await;
    let (ours, issues) = (Honest::new([]), trial.issues(3));
    let (here, there) = (ours.start().await, Honest::new(issues.clone()).start().await);
    ours.publish(trial.author.announcement("grasp", &[&there.url()]));
    let front = Front::start(here.address(), authority.certify("localhost", LONG)).await;
    let mut settings = Local::settings(&[]);
    trust(&authority, &mut settings);
    let sidecar = Sidecar::trusting(secure(&front), &settings.roots);
    let syncer = Syncer::start(std::sync::Arc::new(sidecar), settings).await.unwrap();
    ours.until_has(&issues.iter().collect::<Vec<_>>()).await;
    syncer.stop().await;
}
